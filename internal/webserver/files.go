package webserver

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/web"
)

// files are those of a web interface. What lies outside of its directory cannot be reached, also not by links.
type files struct {
	fs.FS
	// own are the files of the console inside the binary: text is compressed there, names below assets follow from the content, and the
	// pages need no exception from the policy.
	own bool
}

// indexFile is what addresses without a file show; the interface finds its page by itself.
const (
	indexFile = "index.html"
	maxIndex  = 4 << 20
	nonceMark = web.NonceMark
)

func openFiles(dir string) (*files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Invalidf("webserver.static_dir cannot be opened").WithCause(err).
			WithNext("set it to the directory that holds the web interface's index.html")
	}
	f := &files{FS: root.FS()}
	if _, err := f.index(); err != nil {
		return nil, errors.Join(fault.Invalidf("webserver.static_dir %s has no readable %s", dir, indexFile).WithCause(err), root.Close())
	}
	return f, nil
}

func (f *files) index() ([]byte, error) {
	in, err := f.Open(indexFile)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxIndex+1))
	if err == nil && len(text) > maxIndex {
		err = fmt.Errorf("%s has more than %d bytes", indexFile, maxIndex)
	}
	return text, err
}

// contentTypes are those of web interfaces; the system's table differs from machine to machine.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".mjs": "text/javascript; charset=utf-8", ".json": "application/json", ".map": "application/json", ".svg": "image/svg+xml",
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif",
	".ico": "image/x-icon", ".woff": "font/woff", ".woff2": "font/woff2", ".ttf": "font/ttf", ".otf": "font/otf", ".xml": "application/xml",
	".txt": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8", ".wasm": "application/wasm", ".pdf": "application/pdf",
	".webmanifest": "application/manifest+json", ".ini": "text/plain; charset=utf-8", ".toml": "text/plain; charset=utf-8",
}

// cachedFor is how browsers may keep files, by the first letters of their type.
func cachedFor(kind string) string {
	switch {
	case strings.HasPrefix(kind, "image/"), strings.HasPrefix(kind, "font/"):
		return "max-age=259200, public"
	case strings.HasPrefix(kind, "text/css"), strings.HasPrefix(kind, "text/javascript"), strings.HasPrefix(kind, "application/wasm"):
		return "max-age=86400, public, must-revalidate, proxy-revalidate"
	}
	return "no-store"
}

func (s *Server) serveFile(v *visit) {
	name := strings.TrimPrefix(path.Clean(v.URL.Path), "/")
	if s.files == nil {
		s.servePage(v, name == "")
		return
	}
	hidden := strings.HasPrefix(name, ".") && !strings.HasPrefix(name, ".well-known/") || strings.Contains(name, "/.")
	if name == "" || name == indexFile || hidden {
		s.serveIndex(v)
		return
	}
	if !fs.ValidPath(name) {
		s.serveIndex(v)
		return
	}
	if s.files.own {
		s.serveOwn(v, name)
		return
	}
	in, err := s.files.Open(name)
	if err != nil {
		s.serveIndex(v)
		return
	}
	defer in.Close()
	info, err := in.Stat()
	content, seeks := in.(io.ReadSeeker)
	if err != nil || !info.Mode().IsRegular() || !seeks {
		s.serveIndex(v)
		return
	}
	kind := contentType(name)
	h := v.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", cachedFor(kind))
	if strings.HasPrefix(kind, "text/html") {
		s.policy(v, nil)
	}
	http.ServeContent(v.w, v.Request, name, info.ModTime(), content)
}

func contentType(name string) string {
	if kind, ok := contentTypes[strings.ToLower(path.Ext(name))]; ok {
		return kind
	}
	return "application/octet-stream"
}

// Policies of the index page of a web interface. It talks to storage proxies and app proxies at addresses that only managers know.
const (
	policyRest = "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob: https:; font-src 'self' data:; worker-src 'self' blob:; " +
		"connect-src 'self' http: https: ws: wss: data: blob:; frame-src 'self' http: https:; object-src 'none'; base-uri 'self'; " +
		"form-action 'self' http: https:; frame-ancestors 'none'"
	policyNonce = "default-src 'self'; script-src 'self' 'nonce-" + nonceMark + "' 'wasm-unsafe-eval' blob:; " + policyRest
	// policyPlain is for pages without a place for the nonce, whose own scripts must run all the same.
	policyPlain = "default-src 'self'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' blob:; " + policyRest
)

// policy sets the Content-Security-Policy of a page and returns it with the nonce put in.
func (s *Server) policy(v *visit, text []byte) []byte {
	nonce := newNonce()
	rule := s.cfg.Policy
	switch {
	case rule != "":
	case s.files.own:
		rule = web.Policy
	case bytes.Contains(text, []byte(nonceMark)):
		rule = policyNonce
	default:
		rule = policyPlain
	}
	if rule != "off" {
		v.w.Header().Set("Content-Security-Policy", strings.ReplaceAll(rule, nonceMark, nonce))
	}
	return bytes.ReplaceAll(text, []byte(nonceMark), []byte(nonce))
}

func (s *Server) serveIndex(v *visit) {
	text, err := s.files.index()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("the index page cannot be read", "error", err)
		}
		v.problem(http.StatusNotFound, slugNotFound, "no such address")
		return
	}
	text = s.policy(v, text)
	h := v.w.Header()
	h.Set("Content-Type", contentTypes[".html"])
	h.Set("Cache-Control", "no-store")
	v.write(http.StatusOK, text)
}

var welcome = template.Must(template.New("welcome").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>Berth</title>
<style nonce="{{.Nonce}}">body{font:16px/1.5 system-ui,sans-serif;max-width:38rem;margin:12vh auto;padding:0 1rem}
code{background:#8882;border-radius:4px;padding:.1rem .3rem}</style></head>
<body><h1>Berth</h1>
<p>This is the web server of a Berth cluster. This binary was built without the console: <code>make build</code> puts it in where
Node.js 18 and npm are installed.</p>
<p>Log in on a command line: <code>berth login {{.Origin}}</code>, then <code>berth run python -c 'print(6*7)'</code>.</p>
<p>With the official client: <code>BACKEND_ENDPOINT_TYPE=session BACKEND_ENDPOINT={{.Origin}} backend.ai login</code>, then
<code>backend.ai run python -c 'print(6*7)'</code>.</p>
<p>An administrator can serve the files of a web interface here: <code>webserver.static_dir</code>.</p>
</body></html>
`))

// servePage is what there is where no web interface is.
func (s *Server) servePage(v *visit, first bool) {
	if !first {
		v.problem(http.StatusNotFound, slugNotFound, "no such address")
		return
	}
	nonce := newNonce()
	v.show(http.StatusOK, welcome, map[string]string{"Nonce": nonce, "Origin": v.origin}, nonce, "")
}
