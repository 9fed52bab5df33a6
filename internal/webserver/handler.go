package webserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/webserver/payload"
	"berth.dev/berth/internal/webserver/upstream"
)

// visit is one request with what is known of its sender.
type visit struct {
	*http.Request
	w *answer
	// client is who sends it, secure whether the browser uses TLS, origin scheme://host as the browser knows this server.
	client netip.Addr
	secure bool
	origin string
	part   string // for metrics
	// stalled says that the body stopped coming.
	stalled atomic.Bool
}

// answer remembers the status, and ends answers that nobody takes.
type answer struct {
	http.ResponseWriter
	stall  time.Duration
	status int
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 || a.status < 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.stall)) // tests' writers have none
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// The ends of problem types that this server answers itself; words of the wire.
const (
	slugParams     = "invalid-api-params"
	slugBad        = "generic-bad-request"
	slugAuth       = "auth-failed"
	slugForbidden  = "generic-forbidden"
	slugNotFound   = "url-not-found"
	slugMethod     = "method-not-allowed"
	slugTooLarge   = "request-too-large"
	slugTooMany    = "too-many-requests"
	slugAway       = "service-unavailable"
	slugGateway    = "bad-gateway"
	slugUnexpected = "internal-server-error"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peer := clientaddr.Parse(r.RemoteAddr)
	v := &visit{Request: r, w: &answer{ResponseWriter: w, stall: s.cfg.Limits.StallTimeout}, part: "other"}
	v.client = s.trusted.Client(peer, r.Header.Values(clientaddr.ForwardedFor))
	v.secure = s.trusted.Secure(peer, r.TLS != nil, r.Header.Values(clientaddr.ForwardedProto))
	v.origin = s.originOf(v)
	s.open.Add(1)
	started := time.Now()
	defer func() {
		s.open.Add(-1)
		failed := recover()
		if failed != nil && failed != http.ErrAbortHandler {
			s.log.Error("handler panicked", "path", r.URL.Path, "panic", failed, "stack", string(debug.Stack()))
			if v.w.status == 0 {
				v.problem(http.StatusInternalServerError, slugUnexpected, "the web server met an error that it did not expect")
			}
			failed = http.ErrAbortHandler
		}
		if v.w.status == 0 {
			v.w.status = http.StatusSwitchingProtocols // the connection was taken over
		}
		s.served.WithLabelValues(v.part, strconv.Itoa(v.w.status/100)+"xx").Inc()
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
			slog.Int("status", v.w.status), slog.Duration("took", time.Since(started)), slog.String("from", v.client.String()))
		if r.ContentLength != 0 {
			// The server reads what is left of a body, so that the connection can be used again.
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(restPatience))
			_ = rc.SetWriteDeadline(time.Now().Add(restPatience + s.cfg.Limits.StallTimeout))
		}
		if failed != nil {
			panic(failed) // the connection ends
		}
	}()
	s.route(v)
}

// originOf is this server's address as the browser knows it. The Host is what the client sent: proxies in front keep it.
func (s *Server) originOf(v *visit) string {
	if s.cfg.URL != "" {
		return strings.TrimSuffix(s.cfg.URL, "/")
	}
	if v.secure {
		return "https://" + v.Host
	}
	return "http://" + v.Host
}

// route is the list of what the server answers, in the order in which it is looked at.
func (s *Server) route(v *visit) {
	h := v.w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
	if s.cfg.HSTS && v.secure {
		h.Set("Strict-Transport-Security", chassis.HSTS)
	}
	p := v.URL.Path
	if !plainPath(p) {
		v.problem(http.StatusNotFound, slugNotFound, "no such address")
		return
	}
	leave, own, ok := s.places.take(v.client)
	switch {
	case ok:
		defer leave()
	case own:
		h.Set("Retry-After", "5")
		v.problem(http.StatusTooManyRequests, slugTooMany, "too many requests of your address are under way; try again in some seconds")
		return
	default:
		h.Set("Retry-After", "5")
		v.problem(http.StatusServiceUnavailable, slugAway, "too many requests are under way; try again in some seconds")
		return
	}
	if done := s.crossOrigin(v); done {
		return
	}
	inside := func(prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }
	switch {
	case p == commandLinePath:
		v.part = "login"
		s.serveCommandLine(v)
	case inside("/server"):
		v.part = "login"
		s.serveLogin(v)
	case inside("/func"):
		v.part = "forward"
		s.serveFunc(v)
	case p == "/health" || p == "/livez":
		v.part = "health"
		v.json(http.StatusOK, map[string]string{"version": s.build.Version, "details": "Success"})
	case p == "/readyz":
		v.part = "health"
		s.serveReady(v)
	case v.Method != http.MethodGet && v.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		v.problem(http.StatusMethodNotAllowed, slugMethod, "only GET and HEAD are allowed here")
	case p == "/config.toml" || p == "/config.ini":
		v.part = "static"
		s.serveUI(v)
	default:
		v.part = "static"
		s.serveFile(v)
	}
}

// plainPath reports whether a path means what it says: it is absolute, and has no parts that lead up, no empty ones, and nothing that
// others may take for a separator.
func plainPath(p string) bool {
	if p == "" || p[0] != '/' || strings.ContainsAny(p, "\\\x00") || len(p) > 8192 {
		return false
	}
	return path.Clean(p) == p || path.Clean(p)+"/" == p
}

// crossOrigin refuses what pages of other origins have a browser do with the user's cookie: changes, logins, WebSockets. Pages of the
// configured origins may. It reports whether the request has been answered.
func (s *Server) crossOrigin(v *visit) bool {
	origin := v.Header.Get("Origin")
	ours := origin != "" && (strings.EqualFold(origin, v.origin) || s.mayCall(origin))
	if s.mayCall(origin) {
		h := v.w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", "*, X-BackendAI-SessionID")
		h.Add("Vary", "Origin")
		if v.Method == http.MethodOptions && v.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
			h.Set("Access-Control-Allow-Headers", v.Header.Get("Access-Control-Request-Headers"))
			h.Set("Access-Control-Max-Age", "600")
			v.w.WriteHeader(http.StatusNoContent)
			return true
		}
	}
	if ours {
		return false
	}
	check := v.Request
	if v.upgrades() {
		// A WebSocket begins with a GET and then does everything.
		check = v.Clone(v.Context())
		check.Method = http.MethodPost
	}
	// Whoever is between a browser and the page of this name by plain HTTP writes that page; browsers say no more of it than its Origin.
	inTheClear := v.secure && strings.HasPrefix(strings.ToLower(origin), "http://") && !endpoint.ChangesNothing(check.Method)
	if s.cross.Check(check) == nil && !inTheClear {
		return false
	}
	v.problem(http.StatusForbidden, slugForbidden,
		"this request was made by a page of another site; an administrator may add that site to webserver.origins")
	return true
}

// mayCall reports whether a page of the origin may use the API with the user's cookie.
func (s *Server) mayCall(origin string) bool {
	for _, o := range s.cfg.Origins {
		if origin != "" && strings.EqualFold(strings.TrimSuffix(o, "/"), origin) {
			return true
		}
	}
	return false
}

func (v *visit) upgrades() bool { return v.Header.Get("Upgrade") != "" }

// ctx is the context of what is asked of managers for the visit.
func (v *visit) ctx() context.Context {
	port := uint16(0)
	if at, err := netip.ParseAddrPort(v.RemoteAddr); err == nil {
		port = at.Port()
	}
	return upstream.From(v.Context(), netip.AddrPortFrom(v.client, port), v.UserAgent())
}

func (v *visit) json(status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // own types only
	}
	h := v.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	v.write(status, raw)
}

func (v *visit) write(status int, raw []byte) {
	v.w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	v.w.WriteHeader(status)
	if v.Method != http.MethodHead {
		_, _ = v.w.Write(raw) // nobody is left to tell
	}
}

// problem answers with a problem document of the wire.
func (v *visit) problem(status int, slug, msg string) {
	p := api.Problem{Type: api.ProblemPrefix + slug, Title: http.StatusText(status), Msg: msg, Code: slug}
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // texts only
	}
	h := v.w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	v.write(status, raw)
}

// away answers when no manager does.
func (v *visit) away() {
	v.w.Header().Set("Retry-After", "2")
	v.problem(http.StatusServiceUnavailable, slugAway, "no manager of the cluster answers; try again in some seconds")
}

// maxBody bounds the bodies that this server reads itself, bodyPatience how long it waits for them.
const (
	maxLoginBody   = 64 << 10
	maxEncodedBody = 1 << 20
	bodyPatience   = 15 * time.Second
	restPatience   = 2 * time.Second
)

var errTooLarge = errors.New("the body is too large")

// read reads a whole body of bounded size, and decodes it where it is encoded.
func (v *visit) read(limit int64) ([]byte, error) {
	rc := http.NewResponseController(v.w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyPatience)) // connections of tests have none
	raw, err := io.ReadAll(http.MaxBytesReader(v.w, v.Body, limit))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, err
	}
	_ = rc.SetReadDeadline(time.Time{})
	if !v.encoded() {
		return raw, nil
	}
	// Clients write the address with a slash at its end or without, and may use another scheme than a proxy in front.
	_, host, _ := strings.Cut(v.origin, "://")
	return payload.Open(raw, v.origin, v.origin+"/", "http://"+v.Host, "https://"+v.Host, "http://"+v.Host+"/", "https://"+v.Host+"/",
		"http://"+host, "https://"+host)
}

func (v *visit) encoded() bool { return strings.EqualFold(v.Header.Get("X-BackendAI-Encoded"), "true") }

// unread answers when a body could not be read.
func (v *visit) unread(err error) {
	v.w.Header().Set("Connection", "close")
	switch {
	case errors.Is(err, errTooLarge):
		v.problem(http.StatusRequestEntityTooLarge, slugTooLarge, "the body is too large")
	case errors.Is(err, payload.ErrUnreadable):
		v.problem(http.StatusBadRequest, slugParams,
			"the encoded body cannot be read; behind a reverse proxy, an administrator sets webserver.url to the address that browsers use")
	default:
		v.problem(http.StatusBadRequest, slugBad, "the body did not come")
	}
}

func (s *Server) serveReady(v *visit) {
	ctx, cancel := context.WithTimeout(v.Context(), 2*time.Second)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		v.away()
		return
	}
	v.json(http.StatusOK, map[string]string{"version": s.build.Version, "details": "Success"})
}

// unavailable reports whether an error is that no manager answers.
func unavailable(err error) bool { return fault.Is(err, fault.Unavailable) }
