package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
)

const (
	// maxLocals bounds how many apps are open at a time.
	maxLocals = 64
	// maxTokens bounds the tokens of PUT /conf; the oldest go.
	maxTokens = 64
	// maxListed bounds the sessions of the page.
	maxListed = 50
	// callTimeout bounds what one request asks of the manager.
	callTimeout = time.Minute
)

// proxy is the local app proxy.
type proxy struct {
	c      *api.Client
	origin string // of the console that may call it; "" for none
	host   string // 127.0.0.1:port
	path   string // /random/
	now    func() time.Time
	mux    *http.ServeMux
	// console says that the whole console is served beside this.
	console bool

	mu     sync.Mutex
	tokens []string
	locals map[localKey]*local
	closed bool
}

type localKey struct{ session, app string }

func newProxy(c *api.Client, origin, secret, host string, now func() time.Time) *proxy {
	p := &proxy{
		c: c, origin: origin, host: host, path: "/" + secret + "/", now: now, mux: http.NewServeMux(), locals: map[localKey]*local{},
	}
	p.mux.HandleFunc("GET /{$}", p.page)
	p.mux.HandleFunc("GET /open", p.open)
	p.mux.HandleFunc("PUT /conf", p.conf)
	p.mux.HandleFunc("GET /proxy/{token}/{session}/add", p.add)
	p.mux.HandleFunc("GET /proxy/{token}/{session}", p.list)
	p.mux.HandleFunc("GET /proxy/{token}/{session}/delete", p.remove)
	p.mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok", "api_version": "v1"})
	})
	return p
}

// ServeHTTP lets through who names our own host, knows the random path and comes from no other site.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Host != p.host {
		http.Error(w, "this is not the name of this server", http.StatusMisdirectedRequest)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, p.path)
	// The comparison of the first part alone decides, in constant time.
	if first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); !ok ||
		subtle.ConstantTimeCompare([]byte("/"+first+"/"), []byte(p.path)) != 1 {
		http.NotFound(w, r)
		return
	}
	origin := r.Header.Get("Origin")
	switch {
	case origin == "" || origin == "http://"+p.host:
	case p.origin != "" && origin == p.origin:
		h.Set("Access-Control-Allow-Origin", p.origin)
		h.Set("Vary", "Origin")
		h.Set("Access-Control-Allow-Methods", "GET, PUT")
		h.Set("Access-Control-Allow-Headers", "Content-Type")
		h.Set("Access-Control-Allow-Private-Network", "true")
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	default:
		http.Error(w, "pages of "+origin+" may not use this server; berth console --local --origin allows one", http.StatusForbidden)
		return
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = "/"+rest, ""
	p.mux.ServeHTTP(w, r)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// conf gives a console a token. What it sends, its endpoint and login, is not used: apps are reached as this keypair.
func (p *proxy) conf(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Endpoint string `json:"endpoint"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&asked); err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"code": 400, "msg": "the body is no JSON"})
		return
	}
	token := rand.Text()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = append(p.tokens, token)
	if len(p.tokens) > maxTokens {
		p.tokens = p.tokens[1:]
	}
	answer(w, http.StatusOK, map[string]any{"token": token})
}

// known checks the token of a request.
func (p *proxy) known(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tokens {
		if subtle.ConstantTimeCompare([]byte(t), []byte(r.PathValue("token"))) == 1 {
			return true
		}
	}
	answer(w, http.StatusUnauthorized, map[string]any{"code": 401, "msg": "the token is not known; PUT /conf gives one"})
	return false
}

// add opens an app at a local port.
func (p *proxy) add(w http.ResponseWriter, r *http.Request) {
	if !p.known(w, r) {
		return
	}
	l, err := p.local(r.Context(), r.PathValue("session"), r.URL.Query().Get("app"))
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"code": 200, "url": l.enter(), "port": l.port})
}

// list says which apps of a session are open.
func (p *proxy) list(w http.ResponseWriter, r *http.Request) {
	if !p.known(w, r) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.locals {
		if k.session == r.PathValue("session") {
			answer(w, http.StatusOK, map[string]any{"code": 200})
			return
		}
	}
	answer(w, http.StatusNotFound, map[string]any{"code": 404, "msg": "nothing of this session is open"})
}

// remove closes the apps of a session.
func (p *proxy) remove(w http.ResponseWriter, r *http.Request) {
	if !p.known(w, r) {
		return
	}
	p.mu.Lock()
	var gone []*local
	for k, l := range p.locals {
		if k.session == r.PathValue("session") {
			gone = append(gone, l)
			delete(p.locals, k)
		}
	}
	p.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
	answer(w, http.StatusOK, map[string]any{"code": 200})
}

// open leads a person from the page to an app.
func (p *proxy) open(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	l, err := p.local(r.Context(), q.Get("session"), q.Get("app"))
	if err != nil {
		fail(w, err)
		return
	}
	if !l.http {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("connect to " + l.addr + "\n"))
		return
	}
	http.Redirect(w, r, l.enter(), http.StatusSeeOther)
}

func fail(w http.ResponseWriter, err error) {
	status, next := http.StatusBadGateway, ""
	var refused *api.Error
	if errors.As(err, &refused) {
		status, next = refused.Status, refused.Next
	}
	answer(w, status, map[string]any{"code": status, "msg": err.Error(), "next": next})
}

// local finds or makes the local port of an app.
func (p *proxy) local(ctx context.Context, session, name string) (*local, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := p.c.Apps(ctx, session)
	if err != nil {
		return nil, err
	}
	var app *api.App
	for i := range list {
		if list[i].Name == name {
			app = &list[i]
		}
	}
	if app == nil {
		return nil, &api.Error{
			Status: http.StatusNotFound, Problem: api.Problem{Msg: "the session has no app " + name, Next: "berth app list " + session},
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := localKey{session, name}
	if l := p.locals[key]; l != nil {
		return l, nil
	}
	if p.closed || len(p.locals) >= maxLocals {
		return nil, &api.Error{
			Status:  http.StatusTooManyRequests,
			Problem: api.Problem{Msg: "too many apps are open", Next: "end berth console and begin anew"},
		}
	}
	l, err := listen(p.c, session, *app, p.now)
	if err != nil {
		return nil, err
	}
	p.locals[key] = l
	return l, nil
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	gone := p.locals
	p.locals = nil
	p.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

var pageText = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Apps at {{.Endpoint}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}li{margin:.2rem 0}
	small{opacity:.7}</style>
<h1>Apps at {{.Endpoint}}</h1>
{{if .Console}}<p><a href="console">Open the console</a></p>{{end}}
{{with .Problem}}<p role="alert">{{.}}</p>{{end}}
{{range .Sessions}}<h2>{{.Name}}</h2>{{with .Problem}}<p role="alert">{{.}}</p>{{end}}<ul>
{{range .Apps}}<li><a href="{{.Link}}" target="_blank" rel="noopener">{{.Name}}</a> <small>{{.Protocol}}{{with .State}}, {{.}}{{end}}
	{{- with .Detail}}: {{.}}{{end}}</small></li>
{{end}}</ul>
{{else}}{{if not .Problem}}<p>No session runs. <code>berth session create python</code> starts one.</p>{{end}}{{end}}
</html>
`))

type pageSession struct {
	Name, Problem string
	Apps          []pageApp
}

type pageApp struct{ Name, Protocol, State, Detail, Link string }

// page lists the running sessions and their apps.
func (p *proxy) page(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	data := struct {
		Endpoint, Problem string
		Console           bool
		Sessions          []pageSession
	}{Endpoint: p.c.Config().Endpoint, Console: p.console}
	list, err := p.c.Sessions(ctx, api.SessionFilter{Statuses: []string{api.StatusRunning}, Limit: maxListed})
	if err != nil {
		data.Problem = err.Error()
	}
	for _, s := range list {
		if own := p.c.Config().AccessKey; s.AccessKey != "" && s.AccessKey != own {
			continue
		}
		row := pageSession{Name: s.Name}
		apps, err := p.c.Apps(ctx, s.ID)
		if err != nil {
			row.Problem = err.Error()
		}
		for _, a := range apps {
			row.Apps = append(
				row.Apps, pageApp{a.Name, a.Protocol, a.State, a.Detail, "open?" + url.Values{"session": {s.ID}, "app": {a.Name}}.Encode()},
			)
		}
		data.Sessions = append(data.Sessions, row)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'")
	_ = pageText.Execute(w, data)
}
