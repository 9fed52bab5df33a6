package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// What browsers may send and see. Tokens alone authorize, so credentials are not among it.
var (
	corsMethods = "GET, HEAD, POST, PATCH, DELETE, OPTIONS"
	corsAllow   = "Authorization, Content-Type, If-Range, Range, Tus-Resumable, Upload-Checksum, Upload-Length, Upload-Metadata, " +
		"Upload-Offset, X-HTTP-Method-Override, X-Requested-With"
	corsExpose = strings.Join([]string{
		"Accept-Ranges", "Content-Disposition", "Content-Length", "Content-Range", "Content-Type", "ETag", "Last-Modified", "Retry-After",
		"Tus-Checksum-Algorithm", "Tus-Extension", "Tus-Max-Size", "Tus-Resumable", "Tus-Version",
		"Upload-Expires", "Upload-Length", "Upload-Metadata", "Upload-Offset",
	}, ", ")
)

// ServeHTTP serves the client-facing API. Give it the connection's own ResponseWriter: the kernel sends files only
// through that.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	began := s.o.Clock.Now()
	id, err := s.tokens.id()
	w := &reply{ResponseWriter: rw, control: http.NewResponseController(rw), idle: s.o.IdleTimeout, plain: connOf(r) != nil, id: id,
		method: r.Method}
	h := w.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the token is in the URL
	if s.o.HSTS && r.TLS != nil {
		h.Set("Strict-Transport-Security", chassis.HSTS)
	}
	s.cors(h, r)
	if err == nil {
		err = s.route(w, r)
	}
	if why := w.revocation(); err != nil && why != nil {
		err = why // the error is what came of it
	}
	if err != nil {
		w.refuse(err)
	}
	w.calm()
	s.log(w, r, s.o.Clock.Now().Sub(began))
	if w.abort {
		panic(http.ErrAbortHandler) // the one way to end a reply so that it does not look complete
	}
}

func (s *Server) route(w *reply, r *http.Request) error {
	if r.Method == http.MethodOptions {
		return s.options(w)
	}
	switch r.URL.Path {
	case "/upload":
		return s.tus(w, r)
	case "/download", "/download-archive", "/":
	default:
		return fault.NotFoundf("there is nothing at %s", fault.Clip(r.URL.Path, maxEcho)).WithReason(reasonURL).
			WithNext("use the address that the manager gave with the token")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return notAllowed(w, "GET, HEAD, OPTIONS", r.Method)
	}
	switch r.URL.Path {
	case "/download":
		return s.download(w, r)
	case "/download-archive":
		return s.downloadArchive(w, r)
	}
	body, err := json.Marshal(map[string]string{"status": "ok", "type": "client-facing", "storage-proxy": s.o.Version})
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client has gone when this fails
	}
	return nil
}

// options answers both what tus asks and what browsers ask; neither needs a token.
func (s *Server) options(w *reply) error {
	h := w.Header()
	h.Set("Tus-Resumable", tusVersion)
	h.Set("Tus-Version", tusVersion)
	h.Set("Tus-Extension", tusExtensions)
	h.Set("Tus-Checksum-Algorithm", tusSums)
	h.Set("Tus-Max-Size", strconv.FormatInt(s.o.MaxUploadSize, 10))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) cors(h http.Header, r *http.Request) {
	origin := r.Header.Get("Origin")
	switch {
	case len(s.o.AllowedOrigins) == 0 || slices.Contains(s.o.AllowedOrigins, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	case slices.Contains(s.o.AllowedOrigins, origin):
		h.Add("Vary", "Origin")
		h.Set("Access-Control-Allow-Origin", origin)
	default:
		h.Add("Vary", "Origin")
		return
	}
	h.Set("Access-Control-Expose-Headers", corsExpose)
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", corsMethods)
		h.Set("Access-Control-Allow-Headers", corsAllow)
		h.Set("Access-Control-Max-Age", "86400")
	}
}

func notAllowed(w *reply, allow, method string) error {
	w.Header().Set("Allow", allow)
	return fault.Invalidf("%s is not possible here", fault.Clip(method, maxEcho)).WithReason(reasonMethod).WithNext("use one of %s", allow)
}

// log writes one line for a request, without its query: the token is there.
func (s *Server) log(w *reply, r *http.Request, took time.Duration) {
	level := slog.LevelDebug
	attrs := []slog.Attr{
		slog.String("request", w.id), slog.String("method", fault.Clip(r.Method, maxEcho)), slog.String("path", fault.Clip(r.URL.Path, maxEcho)),
		slog.Int("status", w.status), slog.Duration("took", took), slog.Int64("sent", w.sent), slog.Int64("received", w.received),
	}
	if w.folder != "" {
		attrs = append(attrs, slog.String("folder", w.folder))
	}
	if w.session != "" {
		attrs = append(attrs, slog.String("session", w.session))
	}
	if w.left {
		attrs = append(attrs, slog.Bool("client_left", true))
	}
	if w.problem != nil {
		level = slog.LevelInfo
		switch k := fault.KindOf(w.problem); {
		case w.left || errors.Is(w.problem, context.Canceled):
		case k == fault.Internal:
			level = slog.LevelError
		case k == fault.Unavailable:
			level = slog.LevelWarn
		}
		attrs = append(attrs, slog.Any("error", w.problem), slog.Bool("cut", w.abort))
	}
	s.o.Log.LogAttrs(r.Context(), level, "transfer", attrs...)
}
