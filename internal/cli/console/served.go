package console

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/web"
)

// entry is the part of the random path that lets a browser into the console.
const entry = "console"

// maxAsk bounds the requests that are answered here.
const maxAsk = 64 << 10

// served is the whole console of a remote cluster on this machine. It acts as the keypair or login of the command line, so only browsers
// with its cookie get in, which the random path gives, and no page of another site.
type served struct {
	*proxy
	files   fs.FS
	cookie  *http.Cookie
	forward http.Handler
}

func newServed(p *proxy, files fs.FS) *served {
	s := &served{proxy: p, files: files, forward: http.StripPrefix("/func", forward(p.c))}
	// The name begins as those of apps do, which no app at another port of this machine gets to see.
	s.cookie = &http.Cookie{
		Name: "berth-local-console", Value: rand.Text(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
	return s
}

// enter lets the browser in that followed the random path.
func (s *served) enter(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, s.cookie)
	// A page that moves on by itself: a strict cookie does not come with a redirect that another program began.
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
	_, _ = w.Write([]byte(`<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>Berth</title><a href="/">Berth</a>`))
}

func (s *served) holds(r *http.Request) bool {
	for _, c := range r.CookiesNamed(s.cookie.Name) {
		if subtle.ConstantTimeCompare([]byte(c.Value), []byte(s.cookie.Value)) == 1 {
			return true
		}
	}
	return false
}

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Host != s.host || strings.HasPrefix(r.URL.Path, s.path) || !s.holds(r) {
		s.proxy.ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	if foreign(r, s.host) {
		http.Error(w, "a page of another site may not use this console", http.StatusForbidden)
		return
	}
	at := r.URL.Path
	switch {
	case at != "/" && path.Clean(at) != strings.TrimSuffix(at, "/"):
		http.NotFound(w, r)
	case strings.HasPrefix(at, "/server/"):
		s.server(w, r)
	case strings.HasPrefix(at, "/func/"):
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		s.call(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "only GET and HEAD are allowed here", http.StatusMethodNotAllowed)
	default:
		s.file(w, r, strings.TrimPrefix(at, "/"))
	}
}

// server answers what consoles ask the web server about logins: the command line is logged in already.
func (s *served) server(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch r.URL.Path {
	case "/server/login-check":
		cfg := s.c.Config()
		answer(w, http.StatusOK, map[string]any{"authenticated": true, "session_id": "",
			"data": map[string]any{"access_key": cfg.AccessKey, "role": "", "status": "active"}})
	case "/server/logout":
		answer(w, http.StatusOK, map[string]any{})
	default:
		refuse(w, http.StatusNotFound, "url-not-found", "logins are managed at the cluster's own web server", "berth login")
	}
}

func refuse(w http.ResponseWriter, status int, slug, msg, next string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemPrefix + slug, Title: http.StatusText(status), Msg: msg, Next: next,
		Code: slug})
}

// localCircuit begins the names of apps that are open on this machine, where a cluster has ids of circuits.
const localCircuit = "local-"

// call passes a request on. Apps are opened at ports of this machine: the browser may not reach the cluster's app proxy.
func (s *served) call(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/func/"), "/")
	switch {
	case r.Method == http.MethodPost && len(parts) == 3 && parts[0] == "session" && parts[2] == "tickets":
		var asked struct {
			App string `json:"app"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk)).Decode(&asked); err != nil || asked.App == "" {
			refuse(w, http.StatusBadRequest, "invalid-api-params", "the body names no app", "")
			return
		}
		l, err := s.local(r.Context(), parts[1], asked.App)
		if err != nil {
			fail(w, err)
			return
		}
		answer(w, http.StatusOK, map[string]any{"circuit": localCircuit + strconv.Itoa(l.port), "url": "", "ticket": ""})
	case r.Method == http.MethodPost && len(parts) == 4 && parts[0] == "apps" && strings.HasPrefix(parts[2], localCircuit):
		l := s.at(strings.TrimPrefix(parts[2], localCircuit))
		if l == nil || parts[3] != "enter" {
			refuse(w, http.StatusNotFound, "object-not-found", "the app is not open here any more", "open it again")
			return
		}
		answer(w, http.StatusOK, map[string]any{"url": l.enter()})
	default:
		s.forward.ServeHTTP(w, r)
	}
}

// at finds the app at a port of this machine.
func (s *served) at(port string) *local {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.locals {
		if strconv.Itoa(l.port) == port {
			return l
		}
	}
	return nil
}

func (s *served) file(w http.ResponseWriter, r *http.Request, name string) {
	if name != "" && name != "index.html" && fs.ValidPath(name) && web.ServeFile(w, r, s.files, name) {
		return
	}
	if strings.HasPrefix(name, web.Assets) {
		http.NotFound(w, r)
		return
	}
	page, err := fs.ReadFile(s.files, "index.html")
	if err != nil {
		http.Error(w, "this binary was built without the console", http.StatusNotFound)
		return
	}
	nonce := rand.Text()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", strings.ReplaceAll(web.Policy, web.NonceMark, nonce))
	_, _ = w.Write(bytes.ReplaceAll(page, []byte(web.NonceMark), []byte(nonce)))
}
