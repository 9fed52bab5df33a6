package webserver_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/webserver"
)

func packed(t *testing.T, text string) *fstest.MapFile {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return &fstest.MapFile{Data: out.Bytes()}
}

// TestConsole serves the console that is inside of the binary: files, pages, policy, what browsers keep.
func TestConsole(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cfg := webserver.DefaultConfig()
	cfg.Managers, cfg.StateDir = []string{m.URL}, t.TempDir()
	console := fstest.MapFS{
		"index.html":          {Data: []byte(`<meta name="csp-nonce" content="{{nonce}}"><p>console</p>`)},
		"icon.svg.gz":         packed(t, "<svg/>"),
		"assets/main-1.js.gz": packed(t, "start()"),
		"assets/font-1.woff2": {Data: []byte("font")},
		".sources":            {Data: []byte("SECRET")},
	}
	server, err := webserver.New(cfg, webserver.Deps{Console: console})
	require.NoError(t, err)
	s := &site{t, m, httptest.NewServer(server)}
	t.Cleanup(s.Close)

	var nonces []string
	for _, path := range []string{"/", "/index.html", "/sessions", "/session/a%20b", "/.sources", "/nothing.txt"} {
		r := s.do("GET", path, "").has(t, 200, "<p>console</p>")
		_, rest, _ := strings.Cut(r.body, `content="`)
		nonce, _, _ := strings.Cut(rest, `"`)
		require.Len(t, nonce, 24)
		require.NotContains(t, nonces, nonce, "a nonce is used once")
		nonces = append(nonces, nonce)
		policy := r.header.Get("Content-Security-Policy")
		require.Contains(t, policy, "script-src 'self' 'nonce-"+nonce+"'; style-src 'self' 'nonce-"+nonce+"';")
		require.NotContains(t, policy, "unsafe")
		require.Contains(t, policy, "default-src 'none'")
		require.Equal(t, "no-store", r.header.Get("Cache-Control"))
		require.Equal(t, "DENY", r.header.Get("X-Frame-Options"))
	}

	plain := s.do("GET", "/assets/main-1.js", "", "Accept-Encoding: identity").has(t, 200, "start()")
	require.Empty(t, plain.header.Get("Content-Encoding"))
	require.Equal(t, "text/javascript; charset=utf-8", plain.header.Get("Content-Type"))
	require.Equal(t, "public, max-age=31536000, immutable", plain.header.Get("Cache-Control"))
	require.Equal(t, "Accept-Encoding", plain.header.Get("Vary"))
	s.do("GET", "/assets/main-1.js", "", "Accept-Encoding: br, gzip;q=0").has(t, 200, "start()")
	small := s.do("GET", "/assets/main-1.js", "", "Accept-Encoding: br, gzip")
	require.Equal(t, "gzip", small.header.Get("Content-Encoding"))
	require.Equal(t, string(console["assets/main-1.js.gz"].Data), small.body)
	s.do("HEAD", "/assets/main-1.js", "").has(t, 200)
	again := s.do("GET", "/assets/main-1.js", "", "Accept-Encoding: gzip", "If-None-Match: "+small.header.Get("ETag"))
	require.Equal(t, 304, again.status)

	s.do("GET", "/assets/font-1.woff2", "").has(t, 200, "font")
	icon := s.do("GET", "/icon.svg", "", "Accept-Encoding: identity").has(t, 200, "<svg/>")
	require.Equal(t, "no-cache", icon.header.Get("Cache-Control"))
	// A page of an earlier version asks for a file that is no more: a page in its place would be read as a program.
	s.do("GET", "/assets/main-0.js", "").has(t, 404)
	s.do("POST", "/assets/main-1.js", "").has(t, 405)
	for _, path := range []string{"/assets/../../secret", "/%2e%2e/secret", "/assets/..%2f..%2fx", "/a%00b"} {
		require.NotContains(t, s.raw("GET "+path+" HTTP/1.1", "Host: x", "Connection: close"), "SECRET", path)
	}
	// What the operator serves goes first.
	require.NotContains(t, s.do("GET", "/config.toml", "").body, "console")
}
