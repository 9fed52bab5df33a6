package webserver

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// assets is the directory of the console's files whose names change with their content.
const assets = "assets/"

// serveOwn answers with a file of the console. An address that is no file is a page, except below assets: there it is a file of an earlier
// version, and the page that asks for it has to hear so.
func (s *Server) serveOwn(v *visit, name string) {
	raw, err := fs.ReadFile(s.files, name)
	packed := false
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = fs.ReadFile(s.files, name+".gz")
		packed = err == nil
	}
	switch {
	case err != nil && strings.HasPrefix(name, assets):
		v.problem(http.StatusNotFound, slugNotFound, "no such file in this version of the console")
		return
	case err != nil:
		s.serveIndex(v)
		return
	}
	h := v.w.Header()
	h.Set("Content-Type", contentType(name))
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, assets) {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if packed {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(v.Request.Header) {
			h.Set("Content-Encoding", "gzip")
		} else if raw, err = unpack(raw); err != nil {
			panic(err) // the build compressed it
		}
	}
	sum := sha256.Sum256(raw)
	h.Set("ETag", fmt.Sprintf("\"%x\"", sum[:12]))
	http.ServeContent(v.w, v.Request, name, time.Time{}, bytes.NewReader(raw))
}

// acceptsGzip reports whether a client reads gzip. Whoever excludes it by a quality of zero gets plain text.
func acceptsGzip(h http.Header) bool {
	for coding := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return !zeroQuality.MatchString(quality)
		}
	}
	return false
}

var zeroQuality = regexp.MustCompile(`^\s*q=0(\.0*)?\s*$`)

func unpack(raw []byte) ([]byte, error) {
	in, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(in)
}
