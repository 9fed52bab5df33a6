// Package webterm is the terminal for browsers: a page with xterm.js and the WebSocket that carries one of the session's
// terminals to it. Reloading the page, or losing the connection, leads back to the same shell with what it showed.
//
// It serves connections that somebody else accepted and that are allowed to be here: the app proxy says who may. What it checks
// itself is that the page that opens the WebSocket is its own. Runner registers it.
package webterm

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/runner/terminal"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// Config says what the page shows.
type Config struct {
	Terminals *terminal.Set
	Title     string
	Log       *slog.Logger
}

// Server is app ttyd.
type Server struct {
	cfg    Config
	assets func() map[string]asset

	mu        sync.Mutex
	visits    int64
	keyboards map[string]*keyboard // by the names that pages give themselves
}

// New returns app ttyd.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, assets: sync.OnceValue(loadAssets), keyboards: map[string]*keyboard{}}
}

// Name is the app's; the name is the wire's.
func (s *Server) Name() string { return "ttyd" }

// Port is where tunnels find it.
func (s *Server) Port() int { return tunnel.PortTerminal }

// Protocol is HTTP with WebSockets.
func (s *Server) Protocol() run.AppProtocol { return run.AppHTTP }

// Serve serves one connection until either side ends it or ctx is done. It closes conn.
func (s *Server) Serve(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup // the connection's goroutine of the HTTP server
	var taken atomic.Bool   // by a WebSocket, which ends with its handler
	only := &onlyConn{Conn: conn, closed: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = only.Close() })
	defer stop()
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			defer func() {
				if taken.Load() {
					work.Done()
				}
			}()
			s.serve(w, q)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				work.Add(1)
			case http.StateHijacked:
				taken.Store(true)
			case http.StateClosed:
				work.Done()
			}
		},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	_ = srv.Serve(only) // it ends with the connection
	cancel()
	work.Wait()
}

// onlyConn is a listener with one connection; it ends when the connection is closed.
type onlyConn struct {
	net.Conn
	closed    chan struct{}
	give, end sync.Once
}

func (o *onlyConn) Accept() (net.Conn, error) {
	first := false
	o.give.Do(func() { first = true })
	if first {
		return &served{Conn: o.Conn, only: o}, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

// Close of the listener is the server's reaction to the end of Accept.
func (o *onlyConn) Close() error {
	var err error
	o.end.Do(func() {
		err = o.Conn.Close()
		close(o.closed)
	})
	return err
}

func (o *onlyConn) Addr() net.Addr { return o.LocalAddr() }

type served struct {
	net.Conn
	only *onlyConn
}

func (c *served) Close() error { return c.only.Close() }

// asset is a file of the page.
type asset struct {
	kind  string
	plain []byte
	gz    []byte // nil when it is kept plain
	tag   string
}

//go:embed assets
var files embed.FS

var kinds = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".mjs": "text/javascript; charset=utf-8"}

// loadAssets reads the files of the page by their names without .gz.
func loadAssets() map[string]asset {
	all := map[string]asset{}
	entries, _ := files.ReadDir("assets") // what is embedded is there
	for _, e := range entries {
		b, _ := files.ReadFile("assets/" + e.Name())
		name, packed := strings.CutSuffix(e.Name(), ".gz")
		kind, ok := kinds[path.Ext(name)]
		if !ok {
			continue
		}
		sum := sha256.Sum256(b)
		a := asset{kind: kind, plain: b, tag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		if packed {
			a.plain, a.gz = nil, b
		}
		all[name] = a
	}
	return all
}

func (s *Server) serve(w http.ResponseWriter, q *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// Nobody frames a terminal: a click or a key that is led astray would be a command.
	h.Set("X-Frame-Options", "DENY")
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the terminal is read with GET", http.StatusMethodNotAllowed)
		return
	}
	switch name := strings.TrimPrefix(q.URL.Path, "/"); name {
	case "", "index.html":
		s.page(w, q)
	case "ws":
		s.socket(w, q)
	default:
		s.asset(w, q, name)
	}
}

func (s *Server) page(w http.ResponseWriter, q *http.Request) {
	nonce := rand.Text()
	// xterm.js makes style sheets, which get the nonce, and sets style attributes; nothing else is inline.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "+
		"style-src 'self'; style-src-elem 'self' 'nonce-"+nonce+
		"'; style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", kinds[".html"])
	text := strings.NewReplacer("{{.}}", html.EscapeString(s.cfg.Title), "{{nonce}}", nonce).Replace(string(s.assets()["page.html"].plain))
	if q.Method == http.MethodHead {
		return
	}
	_, _ = io.WriteString(w, text) // a client that left needs none
}

func (s *Server) asset(w http.ResponseWriter, q *http.Request, name string) {
	a, ok := s.assets()[name]
	if !ok || name == "page.html" {
		http.NotFound(w, q)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", a.tag)
	h.Set("Vary", "Accept-Encoding")
	if q.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := a.plain
	if a.gz != nil {
		if strings.Contains(q.Header.Get("Accept-Encoding"), "gzip") {
			body = a.gz
			h.Set("Content-Encoding", "gzip")
		} else if z, err := gzip.NewReader(bytes.NewReader(a.gz)); err == nil {
			body, _ = io.ReadAll(z) // what is embedded is whole
		}
	}
	if q.Method == http.MethodGet {
		_, _ = w.Write(body)
	}
}
