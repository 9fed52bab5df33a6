package webserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/api"
)

// Names of the wire.
const (
	cookieName    = "AIOHTTP_SESSION"
	headerSession = api.HeaderLogin
)

// token is the one of the visit; the header goes before the cookie. Who sends two cookies of the name has none: nobody knows which is
// the browser's own.
func (v *visit) token() string {
	if t := v.Header.Get(headerSession); t != "" {
		return t
	}
	found := ""
	for _, c := range v.CookiesNamed(cookieName) {
		if found != "" && c.Value != found {
			return ""
		}
		found = c.Value
	}
	return found
}

func (s *Server) serveLogin(v *visit) {
	if rest, ok := strings.CutPrefix(v.URL.Path, "/server/oidc"); ok && (rest == "" || rest[0] == '/') {
		s.serveOIDC(v, strings.Trim(rest, "/"))
		return
	}
	if v.URL.Path == resetPath || v.URL.Path == invitationPath {
		s.serveLetter(v)
		return
	}
	if v.Method != http.MethodPost {
		v.w.Header().Set("Allow", http.MethodPost)
		v.problem(http.StatusMethodNotAllowed, slugMethod, "only POST is allowed here")
		return
	}
	switch strings.TrimSuffix(v.URL.Path, "/") {
	case "/server/login":
		s.openLogin(v, "/auth/authorize")
	case "/server/token-login":
		s.openLogin(v, "/auth/token-login")
	case "/server/login-check":
		s.checkLogin(v)
	case "/server/logout":
		s.logout(v)
	case "/server/extend-login-session":
		s.extendLogin(v)
	case "/server/passkeys/login/begin":
		s.relay(v, "/auth/passkeys/login/begin", false)
	case "/server/passkeys/login/finish":
		s.openLogin(v, "/auth/passkeys/login/finish")
	case "/server/passkeys/enrol/begin":
		s.relay(v, "/auth/passkeys/enrol/begin", true)
	case "/server/passkeys/enrol/finish":
		s.relay(v, "/auth/passkeys/enrol/finish", true)
	case "/server/update-password-no-auth":
		s.replacePassword(v)
	default:
		v.problem(http.StatusNotFound, slugNotFound, "no such address")
	}
}

// members reads the JSON body of the visit; an empty one has no members.
func (v *visit) members() (map[string]any, bool) {
	raw, err := v.read(maxLoginBody)
	if err != nil {
		v.unread(err)
		return nil, false
	}
	out := map[string]any{}
	if len(strings.TrimSpace(string(raw))) == 0 {
		return out, true
	}
	if err := json.Unmarshal(raw, &out); err != nil || out == nil {
		v.problem(http.StatusBadRequest, slugParams, "the body is no JSON object")
		return nil, false
	}
	return out, true
}

// refusal is how a login that did not open is told; clients read data.type and data.details. Its status is 200, as clients of this version
// of the wire expect it.
type refusal struct {
	Authenticated bool        `json:"authenticated"`
	Data          refusalData `json:"data"`
}

type refusalData struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Details string `json:"details"`
	Enrol   string `json:"two_factor_registration_token,omitempty"`
}

// refusalOf tells a refusal. exact says that the words of a wrong password are those that clients compare.
func refusalOf(p api.Problem, exact bool) refusalData {
	d := refusalData{Type: p.Type, Title: p.Title, Details: p.Msg}
	if p.Slug() == slugAuth && !strings.HasPrefix(p.Msg, "Invalid TOTP") && exact {
		d.Details = "User credential mismatch."
	}
	var data struct {
		Token string `json:"two_factor_registration_token"`
	}
	_ = json.Unmarshal(p.Data, &data) // not every refusal has data
	d.Enrol = data.Token
	return d
}

// account is what clients are told of who is logged in.
type account struct {
	AccessKey string `json:"access_key"`
	Role      string `json:"role"`
	Status    string `json:"status"`
}

type loginState struct {
	Authenticated bool     `json:"authenticated"`
	Data          *account `json:"data"`
	SessionID     *string  `json:"session_id"`
}

// openLogin opens a login, as the address of the manager has it: by password, token or passkey. It never takes over the token that the
// visit brings: whoever planted one in a browser does not get in with it.
func (s *Server) openLogin(v *visit, address string) {
	body, ok := v.members()
	if !ok {
		return
	}
	if t := v.token(); t != "" {
		switch _, err := s.logins.find(v.ctx(), t); {
		case err == nil:
			v.problem(http.StatusBadRequest, slugBad, "You have already logged in.")
			return
		case unavailable(err):
			v.away()
			return
		}
	}
	if need := s.complete(v, body, address); need != "" {
		v.problem(http.StatusBadRequest, slugParams, need)
		return
	}
	r, err := s.ask(v.ctx(), address, body)
	switch {
	case unavailable(err):
		v.away()
		return
	case err != nil:
		v.problem(http.StatusBadGateway, slugGateway, "the manager did not answer")
		return
	}
	switch l, err := r.login(); {
	case err == nil:
		s.setCookie(v, l.SessionToken, l.Expires)
		v.w.Header().Set(headerSession, l.SessionToken)
		v.json(http.StatusOK, map[string]any{"authenticated": true, "data": account{l.AccessKey, l.Role, l.Status}})
	case r.status == http.StatusTooManyRequests:
		v.problem(http.StatusTooManyRequests, slugTooMany, r.problem().Msg)
	case r.status == http.StatusUnauthorized || r.status == http.StatusConflict || r.status == http.StatusForbidden:
		v.json(http.StatusOK, refusal{Data: refusalOf(r.problem(), address == "/auth/authorize")})
	case r.status == http.StatusBadRequest:
		v.problem(http.StatusBadRequest, slugParams, r.problem().Msg)
	default:
		v.problem(http.StatusBadGateway, slugGateway, "the manager could not open the login")
	}
}

// complete adds to the members of a login what the manager needs, and says what is missing.
func (s *Server) complete(v *visit, body map[string]any, address string) (missing string) {
	text := func(name string) string { t, _ := body[name].(string); return t }
	switch address {
	case "/auth/authorize":
		if text("username") == "" || text("password") == "" {
			return "You must provide the username and password fields."
		}
		body["type"], body["domain"] = "keypair", s.cfg.Domain
		delete(body, "email")
	case "/auth/token-login":
		if text("sToken") == "" {
			if cookies := v.CookiesNamed("sToken"); len(cookies) == 1 {
				body["sToken"] = cookies[0].Value
			}
		}
		if text("sToken") == "" {
			return "You must provide the sToken field or cookie."
		}
	}
	return ""
}

// setCookie gives the browser a token. Pages cannot read it, and other sites do not send it along with what they have a browser do.
func (s *Server) setCookie(v *visit, token string, expires time.Time) {
	http.SetCookie(v.w, &http.Cookie{Name: cookieName, Value: token, Path: "/", HttpOnly: true, Secure: v.secure,
		SameSite: http.SameSiteLaxMode, MaxAge: max(int(expires.Sub(s.clock.Now())/time.Second), 1)})
}

func (s *Server) dropCookie(v *visit) {
	http.SetCookie(v.w, &http.Cookie{Name: cookieName, Path: "/", HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteLaxMode,
		MaxAge: -1})
}

func (s *Server) checkLogin(v *visit) {
	t := v.token()
	l, err := s.logins.find(v.ctx(), t)
	switch {
	case err == nil:
		v.w.Header().Set(headerSession, l.SessionToken)
		v.json(http.StatusOK, loginState{true, &account{l.AccessKey, l.Role, l.Status}, &l.SessionToken})
	case errors.Is(err, errNoLogin):
		v.json(http.StatusOK, loginState{})
	default:
		v.away()
	}
}

func (s *Server) logout(v *visit) {
	t := v.token()
	if len(t) == tokenLength {
		r, err := s.ask(v.ctx(), "/auth/logout", api.LoginToken{Token: t})
		if err != nil || r.status != http.StatusOK {
			v.away() // the login goes on, and the cookie with it
			return
		}
		s.logins.forget(t, true)
	}
	s.dropCookie(v)
	v.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	v.w.Header().Set("Cache-Control", "no-store")
	v.write(http.StatusOK, nil)
}

func (s *Server) extendLogin(v *visit) {
	t := v.token()
	if len(t) != tokenLength {
		v.problem(http.StatusUnauthorized, slugAuth, "you are not logged in")
		return
	}
	r, err := s.ask(v.ctx(), "/auth/logins/extend", api.LoginToken{Token: t})
	if err != nil {
		v.away()
		return
	}
	l, err := r.login()
	if err != nil {
		v.problem(http.StatusUnauthorized, slugAuth, "you are not logged in")
		return
	}
	s.logins.forget(t, false)
	s.setCookie(v, l.SessionToken, l.Expires)
	v.json(http.StatusOK, map[string]any{"status": http.StatusCreated, "expires": l.Expires.UTC().Format(time.RFC3339)})
}

// pythonClient begins the User-Agent of the official command line, which takes every answer 200 about a password for a success.
const pythonClient = "Backend.AI Client for Python"

func (s *Server) replacePassword(v *visit) {
	body, ok := v.members()
	if !ok {
		return
	}
	text := func(name string) string { t, _ := body[name].(string); return t }
	change := api.PasswordReplacement{Domain: s.cfg.Domain, Username: text("username"), Current: text("current_password"),
		New: text("new_password")}
	if change.Username == "" || change.Current == "" || change.New == "" {
		v.problem(http.StatusBadRequest, slugParams, "You must provide the username, current_password and new_password fields.")
		return
	}
	r, err := s.ask(v.ctx(), "/auth/update-password-no-auth", change)
	if err != nil {
		v.away()
		return
	}
	var done api.PasswordReplaced
	switch {
	case r.status == http.StatusCreated && json.Unmarshal(r.body, &done) == nil:
		v.json(http.StatusOK, map[string]any{"data": nil, "password_changed_at": done.ChangedAt.UTC().Format(time.RFC3339Nano)})
	case r.status == http.StatusTooManyRequests:
		v.problem(http.StatusTooManyRequests, slugTooMany, r.problem().Msg)
	case r.status < 500 && strings.HasPrefix(v.UserAgent(), pythonClient):
		slug := slugParams
		if r.status == http.StatusUnauthorized {
			slug = slugAuth
		}
		v.problem(r.status, slug, r.problem().Msg)
	case r.status < 500:
		v.json(http.StatusOK, map[string]any{"data": refusalOf(r.problem(), true), "password_changed_at": nil})
	default:
		v.problem(http.StatusBadGateway, slugGateway, "the manager could not change the password")
	}
}
