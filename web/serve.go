package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"
)

const (
	// Assets is the directory of the console's files whose names change with their content.
	Assets = "assets/"
	// NonceMark stands in the page and in Policy for what each answer has anew.
	NonceMark = "{{nonce}}"
	// Policy is the Content-Security-Policy of the page: nothing inline, and connections to storage proxies and app proxies beside the
	// server that it comes from.
	Policy = "default-src 'none'; script-src 'self' 'nonce-" + NonceMark + "'; style-src 'self' 'nonce-" + NonceMark + "'; " +
		"img-src 'self' data: blob:; font-src 'self'; manifest-src 'self'; worker-src 'self'; connect-src 'self' http: https: ws: wss:; " +
		"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

// kinds are the types of the console's files; the system's table differs from machine to machine.
var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".json": "application/json", ".svg": "image/svg+xml",
	".png": "image/png", ".woff2": "font/woff2", ".webmanifest": "application/manifest+json", ".txt": "text/plain; charset=utf-8",
}

// ServeFile answers with a file of the console. It reports whether there is one of that name; if not, it has written nothing.
func ServeFile(w http.ResponseWriter, r *http.Request, files fs.FS, name string) bool {
	raw, err := fs.ReadFile(files, name)
	packed := false
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = fs.ReadFile(files, name+".gz")
		packed = err == nil
	}
	if err != nil {
		return false
	}
	kind, ok := kinds[strings.ToLower(path.Ext(name))]
	if !ok {
		kind = "application/octet-stream"
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, Assets) {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if packed {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header) {
			h.Set("Content-Encoding", "gzip")
		} else if raw, err = unpack(raw); err != nil {
			panic(err) // the build compressed it
		}
	}
	sum := sha256.Sum256(raw)
	h.Set("ETag", fmt.Sprintf("\"%x\"", sum[:12]))
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(raw))
	return true
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
