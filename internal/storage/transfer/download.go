package transfer

import (
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// download serves GET and HEAD /download: one file with ranges, or a directory as an archive. dst_dir is
// accepted and means nothing here: the token is bound to its path.
func (s *Server) download(w *reply, r *http.Request) error {
	g, err := s.admit(r, opDownload)
	if err != nil {
		return err
	}
	w.note(g.folder.String(), "")
	r, release, err := s.entitle(w, r, g)
	if err != nil {
		return err
	}
	defer release()
	q := r.URL.Query()
	if _, err := join(q.Get("dst_dir"), g.path); err != nil {
		return err
	}
	tree, leave, err := s.reading(r, g)
	if err != nil {
		return err
	}
	defer leave()
	f, err := tree.Open(g.path)
	if err != nil {
		return s.directory(w, r, tree, g, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("download %s: %w", g.path, err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachment(path.Base(g.path)))
	h.Set("ETag", etag(fi))
	h.Set("Cache-Control", cacheControl(q))
	// It takes the length from the file's end, the kernel's way of sending through reply.ReadFrom, and tells
	// clients of a file that shrinks meanwhile by ending the connection.
	defer cork(r)()
	http.ServeContent(w, r, "", fi.ModTime(), f)
	return nil
}

// reading opens the folder of a grant for one transfer.
func (s *Server) reading(r *http.Request, g grant) (tree volume.Tree, leave func(), err error) {
	v, err := s.volume(g.volume)
	if err != nil {
		return nil, nil, err
	}
	out, err := s.limit.enter(r.Context(), s.o.QueueWait, s.shares(g, s.o.MaxTransfers)...)
	if err != nil {
		return nil, nil, err
	}
	if tree, err = v.OpenFolder(r.Context(), g.folder); err != nil {
		out()
		return nil, nil, fmt.Errorf("download %s: %w", g.path, err)
	}
	return tree, func() { _ = tree.Close(); out() }, nil
}

// directory goes on with a path that is no regular file.
func (s *Server) directory(w *reply, r *http.Request, tree volume.Tree, g grant, err error) error {
	e, serr := tree.Stat(g.path)
	if serr != nil || e.Kind != volume.KindDirectory {
		return fmt.Errorf("download %s: %w", g.path, err)
	}
	q := r.URL.Query()
	if !g.archive && !truth(q.Get("archive")) {
		return fault.Invalidf("%s is a directory", g.path).WithReason(reasonInvalidParams).WithNext("ask for it with archive=true")
	}
	name := path.Base(g.path)
	if g.path == "." {
		name = string(g.folder.Folder)
	}
	return s.archive(w, r, tree, []string{g.path}, g.path, name)
}

// downloadArchive serves GET and HEAD /download-archive: several paths as one archive.
func (s *Server) downloadArchive(w *reply, r *http.Request) error {
	g, err := s.admit(r, opArchive)
	if err != nil {
		return err
	}
	w.note(g.folder.String(), "")
	r, release, err := s.entitle(w, r, g)
	if err != nil {
		return err
	}
	defer release()
	tree, leave, err := s.reading(r, g)
	if err != nil {
		return err
	}
	defer leave()
	for _, p := range g.paths {
		if _, err := tree.Stat(p); err != nil {
			return fmt.Errorf("download %s: %w", p, err)
		}
	}
	name := path.Base("/" + g.filename)
	for _, ext := range []string{".zip", ".tar.zst"} {
		name = strings.TrimSuffix(name, ext)
	}
	if name == "" || name == "/" || name == "." || name == ".." {
		name = "files"
		if len(g.paths) == 1 && g.paths[0] != "." {
			name = path.Base(g.paths[0])
		}
	}
	return s.archive(w, r, tree, g.paths, parentOf(g.paths), name)
}

// parentOf is the deepest directory that holds all paths.
func parentOf(paths []string) string {
	parent := path.Dir(paths[0])
	for _, p := range paths[1:] {
		for !within(path.Dir(p), parent) {
			parent = path.Dir(parent)
		}
	}
	return parent
}

// etag changes whenever a file is replaced or written, at the resolution of its file system's clock.
func etag(fi fs.FileInfo) string {
	return `"` + strconv.FormatInt(fi.Size(), 16) + "-" + strconv.FormatInt(fi.ModTime().UnixNano(), 16) + `"`
}

func cacheControl(q url.Values) string {
	if truth(q.Get("no_cache")) {
		return "no-store"
	}
	return "private, no-cache"
}

func truth(s string) bool {
	switch strings.ToLower(s) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	}
	return false
}

// attachment names a download in both ways of RFC 6266. Whatever a file is called, the header stays one header
// and the name stays a name.
func attachment(name string) string {
	name = strings.ToValidUTF8(name, "_")
	plain := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || strings.ContainsRune(`"\/%`, c) {
			return '_'
		}
		return c
	}, name)
	return `attachment;filename="` + plain + `";filename*=UTF-8''` + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
}

// archiveFormat is a way to pack; the content type is that of the packed stream.
type archiveFormat struct{ ext, contentType string }

var archiveFormats = map[string]archiveFormat{
	"":        {".zip", "application/zip"},
	"zip":     {".zip", "application/zip"},
	"tar.zst": {".tar.zst", mime.FormatMediaType("application/zstd", nil)},
}
