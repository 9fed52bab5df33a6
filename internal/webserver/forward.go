package webserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/webserver/payload"
	"berth.dev/berth/internal/webserver/upstream"
)

// passed are the header fields of clients that managers get. All others end here: cookies and signatures of clients, what says on whose
// behalf or by which method a request is, what names other addresses.
var passed = map[string]bool{
	"Accept": true, "Accept-Language": true, "Content-Type": true, "Range": true, "If-Range": true, "If-Match": true,
	"If-None-Match": true, "If-Modified-Since": true, "If-Unmodified-Since": true, "Last-Event-Id": true, "User-Agent": true,
	"X-Backendai-Version": true, "X-Backendai-Act-As": true,
	"Tus-Resumable": true, "Upload-Length": true, "Upload-Metadata": true, "Upload-Offset": true,
	"Connection": true, "Upgrade": true, "Sec-Websocket-Key": true, "Sec-Websocket-Version": true, "Sec-Websocket-Protocol": true,
	"Sec-Websocket-Extensions": true,
}

// manner is how a request to /func is passed on.
type manner int

const (
	asLogin   manner = iota // for the login of the visit
	anonymous               // for nobody, whoever sends it
	answered                // answered here
)

// mannerOf tells how the wire has a request passed on; p is the path without /func.
func mannerOf(method, p string) manner {
	reads := method == http.MethodGet || method == http.MethodHead
	writes := method == http.MethodPost
	below := func(prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }
	parts := strings.Split(p, "/")
	switch {
	case p == "/ping":
		return answered
	case p == "/" || p == "":
		return anonymous
	case below("/folders/_/tus/upload") && (method == http.MethodHead || method == http.MethodPatch || method == http.MethodOptions):
		return anonymous
	case (below("/cloud") || below("/custom-auth") || below("/openid")) && (reads || writes):
		return anonymous
	case (below("/auth/reset-password") || p == "/auth/invitations/accept") && writes:
		return anonymous // who has forgotten a password, or has no account yet, cannot log in first
	case (below("/saml") || below("/totp/anon") || p == "/auth/signup") && writes:
		return anonymous
	case len(parts) >= 5 && parts[1] == "v2" && parts[3] == "public":
		return anonymous
	}
	return asLogin
}

// internal are what only this server asks managers, unsigned.
func internal(p string) bool {
	p = strings.TrimSuffix(p, "/")
	return p == "/auth/authorize" || p == "/auth/logout" || p == "/auth/logins/resume" || p == "/auth/logins/extend" ||
		p == "/auth/logins/sibling"
}

func (s *Server) serveFunc(v *visit) {
	p := strings.TrimPrefix(v.URL.Path, "/func")
	h := v.w.Header()
	// What managers pass on may be files of users: no page of this origin is made of it.
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
	switch v.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		v.problem(http.StatusMethodNotAllowed, slugMethod, "this method is not allowed here")
		return
	}
	if internal(p) {
		v.problem(http.StatusNotFound, slugNotFound, "log in and out at /server")
		return
	}
	how := mannerOf(v.Method, p)
	if how == answered {
		v.json(http.StatusOK, map[string]string{"version": api.Version, "details": "Success"})
		return
	}
	if how == anonymous && v.Method == http.MethodPost && p == "/auth/signup" {
		s.forwardSignup(v)
		return
	}
	if how == anonymous {
		s.forward(v, v.ctx(), v.Body, v.ContentLength)
		return
	}
	token := v.token()
	switch _, err := s.logins.find(v.ctx(), token); {
	case errors.Is(err, errNoLogin):
		v.problem(http.StatusUnauthorized, slugAuth, "you are not logged in")
		return
	case err != nil:
		v.away()
		return
	}
	ctx, release := s.logins.hold(v.ctx(), token)
	defer release()
	s.forward(v, upstream.As(ctx, api.Secret(token)), v.Body, v.ContentLength)
}

// forwardSignup passes on who wants to become a user of the server's domain.
func (s *Server) forwardSignup(v *visit) {
	body, ok := v.members()
	if !ok {
		return
	}
	body["domain"] = s.cfg.Domain
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // it was JSON a moment ago
	}
	v.Header.Del("X-BackendAI-Encoded")
	v.Header.Set("Content-Type", "application/json")
	s.forward(v, v.ctx(), io.NopCloser(bytes.NewReader(raw)), int64(len(raw)))
}

// moving is a request body that ends the request when nothing comes for a while.
type moving struct {
	io.ReadCloser
	v     *visit
	stall time.Duration
}

func (m moving) Read(p []byte) (int, error) {
	rc := http.NewResponseController(m.v.w)
	_ = rc.SetReadDeadline(time.Now().Add(m.stall)) // connections of tests have none
	n, err := m.ReadCloser.Read(p)
	var slow net.Error
	switch {
	case err == io.EOF: // after any other error nobody waits for the rest
		_ = rc.SetReadDeadline(time.Time{})
	case errors.As(err, &slow) && slow.Timeout():
		m.v.stalled.Store(true)
	}
	return n, err
}

// forward passes a request on and streams the answer back.
func (s *Server) forward(v *visit, ctx context.Context, body io.ReadCloser, length int64) {
	if v.encoded() {
		raw, err := v.read(maxEncodedBody)
		if err != nil {
			v.unread(err)
			return
		}
		body, length = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
		v.Header.Set("Content-Type", "application/json")
	} else if length != 0 {
		body = moving{http.MaxBytesReader(v.w, body, s.cfg.Limits.BodyBytes), v, s.cfg.Limits.StallTimeout}
	}
	in := v.WithContext(ctx)
	in.Body, in.ContentLength = body, length
	if length == 0 {
		in.Body = http.NoBody
	}
	(&httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { s.rewrite(v, pr) }, Transport: s.managers, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), ModifyResponse: func(r *http.Response) error {
			for _, k := range []string{"Set-Cookie", "Server", "Strict-Transport-Security", "Content-Security-Policy", "X-Frame-Options"} {
				r.Header.Del(k)
			}
			if r.Header.Get("Cache-Control") == "" {
				r.Header.Set("Cache-Control", "no-store")
			}
			for k := range r.Header {
				if strings.HasPrefix(k, "Access-Control-") || v.w.Header().Get(k) != "" && k != "Vary" {
					r.Header.Del(k) // this server has said it already
				}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { s.failed(v, err) },
	}).ServeHTTP(v.w, in)
}

// rewrite makes the manager's request of a client's.
func (s *Server) rewrite(v *visit, pr *httputil.ProxyRequest) {
	out := pr.Out
	// The target goes on as the client wrote it, every character of it.
	path := strings.TrimPrefix(v.URL.EscapedPath(), "/func")
	if path == "" {
		path = "/"
	}
	out.URL.Path, out.URL.RawPath = strings.TrimPrefix(v.URL.Path, "/func"), path
	if out.URL.Path == "" {
		out.URL.Path = "/"
	}
	out.URL.RawQuery = v.URL.RawQuery
	for k := range out.Header {
		if !passed[k] && !strings.HasPrefix(k, "X-Berth-") || k == api.HeaderSignature {
			delete(out.Header, k)
		}
	}
	s.tell(v.Context(), out)
	out.Header.Set(api.HeaderDomain, s.cfg.Domain)
	out.Header.Set(clientaddr.ForwardedFor, v.client.String())
	out.Header.Set("X-Forwarded-Host", v.Host)
	proto, _, _ := strings.Cut(v.origin, ":")
	out.Header.Set(clientaddr.ForwardedProto, proto)
}

// tell says to managers on whose behalf this server asks.
func (s *Server) tell(ctx context.Context, r *http.Request) {
	if client, ok := upstream.Client(ctx); ok {
		r.Header.Set(clientaddr.ForwardedFor, client.String())
	}
	if r.Header.Get("User-Agent") == "" {
		// Lists of logins show it.
		agent := upstream.Agent(ctx)
		if agent == "" {
			agent = "berth-webserver"
		}
		r.Header.Set("User-Agent", agent)
	}
}

// failed answers what could not be passed on.
func (s *Server) failed(v *visit, err error) {
	var large *http.MaxBytesError
	switch {
	case v.w.status != 0 && v.w.status != http.StatusSwitchingProtocols:
		panic(http.ErrAbortHandler) // a part of the answer is on its way
	case errors.Is(err, payload.ErrUnreadable):
		v.unread(err)
	case errors.As(err, &large):
		v.w.Header().Set("Connection", "close")
		v.problem(http.StatusRequestEntityTooLarge, slugTooLarge, "the body is too large")
	case v.stalled.Load():
		v.w.Header().Set("Connection", "close")
		v.problem(http.StatusRequestTimeout, slugBad, "the body did not come")
	case v.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client left
	case errors.Is(err, context.Canceled):
		v.problem(http.StatusUnauthorized, slugAuth, "the login has ended")
	default:
		s.log.Debug("no manager answers", "error", err)
		v.away()
	}
}
