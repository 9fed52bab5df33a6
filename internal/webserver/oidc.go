package webserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/api/credential"
)

// Logins at identity providers. The managers know the providers and check what they say. What belongs to a login under way is sealed by
// a manager, and kept in a cookie that only these addresses get.

const (
	flowCookie = "BERTH_OIDC"
	flowPath   = "/server/oidc"
	flowSpan   = 600 // seconds; the manager has its own
	maxQuery   = 32 << 10
)

// serveOIDC answers below /server/oidc: the list of providers, and for each start and callback.
func (s *Server) serveOIDC(v *visit, rest string) {
	if v.Method != http.MethodGet { // a HEAD would use what is good once
		v.w.Header().Set("Allow", "GET")
		v.problem(http.StatusMethodNotAllowed, slugMethod, "only GET is allowed here")
		return
	}
	name, step, _ := strings.Cut(rest, "/")
	switch {
	case rest == "":
		s.listProviders(v)
	case step == "start":
		s.startOIDC(v, name)
	case step == "callback":
		s.finishOIDC(v, name)
	default:
		v.problem(http.StatusNotFound, slugNotFound, "no such address")
	}
}

func (s *Server) listProviders(v *visit) {
	out, err := s.providers(v)
	switch {
	case unavailable(err):
		v.away()
	case err != nil:
		v.problem(http.StatusBadGateway, slugGateway, "the manager could not list the providers")
	default:
		v.json(http.StatusOK, out)
	}
}

func (s *Server) providers(v *visit) (credential.Providers, error) {
	out := credential.Providers{Items: []credential.Provider{}}
	r, err := s.ask(v.ctx(), "/auth/oidc", nil)
	if err != nil {
		return out, err
	}
	if r.status != http.StatusOK {
		return out, errors.New("the manager lists no providers")
	}
	return out, json.Unmarshal(r.body, &out)
}

func (s *Server) startOIDC(v *visit, name string) {
	query := v.URL.Query()
	r, err := s.ask(v.ctx(), "/auth/oidc/begin", credential.OIDCStart{Provider: name, Origin: v.origin, Next: query.Get("next"),
		Force: query.Get("force") == "1"})
	if err != nil {
		s.refuse(v, http.StatusServiceUnavailable, "No manager of the cluster answers. Try again in some seconds.", "")
		return
	}
	var begun credential.OIDCBegun
	if r.status != http.StatusOK || json.Unmarshal(r.body, &begun) != nil || begun.URL == "" {
		s.refuseOIDC(v, r, name)
		return
	}
	// Lax: the provider sends the browser back from another site.
	http.SetCookie(v.w, &http.Cookie{Name: flowCookie, Value: begun.Flow, Path: flowPath, HttpOnly: true, Secure: v.secure,
		SameSite: http.SameSiteLaxMode, MaxAge: flowSpan})
	v.leadTo(begun.URL)
}

// leadTo sends the browser to another address.
func (v *visit) leadTo(address string) {
	h := v.w.Header()
	h.Set("Location", address)
	h.Set("Cache-Control", "no-store")
	v.write(http.StatusSeeOther, nil)
}

func (s *Server) finishOIDC(v *visit, name string) {
	if len(v.URL.RawQuery) > maxQuery {
		s.refuse(v, http.StatusRequestURITooLong, "The provider's answer is too long.", "")
		return
	}
	flow := ""
	for _, c := range v.CookiesNamed(flowCookie) {
		if flow != "" && flow != c.Value { // nobody knows which is the browser's own
			flow = ""
			break
		}
		flow = c.Value
	}
	// Whatever becomes of it, it was used.
	http.SetCookie(v.w, &http.Cookie{Name: flowCookie, Path: flowPath, HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteLaxMode,
		MaxAge: -1})
	query := v.URL.Query()
	r, err := s.ask(v.ctx(), "/auth/oidc/finish", credential.OIDCAnswer{Provider: name, Flow: flow, State: query.Get("state"),
		Code: query.Get("code"), Issuer: query.Get("iss"), Error: query.Get("error"), Details: query.Get("error_description")})
	if err != nil {
		s.refuse(v, http.StatusServiceUnavailable, "No manager of the cluster answers. Try again in some seconds.", "")
		return
	}
	l, err := r.login()
	if err != nil {
		s.refuseOIDC(v, r, name)
		return
	}
	var done credential.OIDCDone
	if json.Unmarshal(r.body, &done) != nil || !localPath(done.Next) {
		done.Next = "/"
	}
	s.setCookie(v, l.SessionToken, l.Expires)
	v.leadTo(done.Next)
}

// localPath reports whether an address is a path of this server. The manager has looked already.
func localPath(p string) bool {
	return strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "//") && !strings.ContainsAny(p, "\\\r\n\t")
}

// refuseOIDC tells a person why the login did not open.
func (s *Server) refuseOIDC(v *visit, r reply, name string) {
	p := r.problem()
	status, msg, force := r.status, p.Msg, ""
	if status < 400 || msg == "" {
		status, msg = http.StatusBadGateway, "The manager could not open the login."
	}
	if p.Slug() == "active-login-session-exists" {
		force = flowPath + "/" + name + "/start?force=1"
	}
	s.refuse(v, status, msg, force)
}

// refuse shows why nobody is logged in; force leads to a login that ends another one.
func (s *Server) refuse(v *visit, status int, words, force string) {
	p := page{Title: "You are not logged in", Text: words, Links: []link{{"/", "Back"}}}
	if force != "" {
		p.Links = append([]link{{force, "End the oldest login and log in"}}, p.Links...)
	}
	s.page(v, status, p, "")
}

// relay passes the members of a visit to an address of the managers, with the token of the login where that stands for the user. It is
// for ceremonies of passkeys.
func (s *Server) relay(v *visit, address string, withLogin bool) {
	body, ok := v.members()
	if !ok {
		return
	}
	delete(body, "session_token")
	if withLogin {
		t := v.token()
		if len(t) != tokenLength {
			v.problem(http.StatusUnauthorized, slugAuth, "you are not logged in")
			return
		}
		body["session_token"] = t
	}
	r, err := s.ask(v.ctx(), address, body)
	if err != nil {
		v.away()
		return
	}
	var out json.RawMessage
	switch p := r.problem(); {
	case r.status == http.StatusOK && json.Unmarshal(r.body, &out) == nil:
		v.json(http.StatusOK, out)
	case r.status >= 400 && r.status < 500 && strings.HasPrefix(p.Type, api.ProblemPrefix):
		v.problem(r.status, p.Slug(), p.Msg)
	default:
		v.problem(http.StatusBadGateway, slugGateway, "the manager did not do it")
	}
}
