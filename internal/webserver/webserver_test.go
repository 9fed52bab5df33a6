package webserver_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	clientlogin "berth.dev/berth/api/login"
	"berth.dev/berth/internal/testkit/address"
	"berth.dev/berth/internal/webserver"
)

// fakeManager answers as a manager does, as far as the web server looks at it, and remembers what it got.
type fakeManager struct {
	*httptest.Server
	mu     sync.Mutex
	got    []*http.Request
	bodies []string
	tokens map[string]bool
	serve  http.HandlerFunc // of everything but logins
	refuse *api.Problem     // of what is about passwords and accounts
}

const (
	accessKey = "AKIATESTTESTTESTTEST"
	secretKey = "secret-of-the-test"
	password  = "right-password"
)

func newManager(t *testing.T) *fakeManager {
	m := &fakeManager{tokens: map[string]bool{}}
	m.Server = address.Serve(t, m)
	return m
}

func (m *fakeManager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	m.got, m.bodies = append(m.got, r), append(m.bodies, string(raw))
	serve := m.serve
	m.mu.Unlock()
	var in map[string]any
	_ = json.Unmarshal(raw, &in)
	text := func(name string) string { s, _ := in[name].(string); return s }
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(status int, slug, msg string) {
		say(status, api.Problem{Type: api.ProblemPrefix + slug, Title: slug, Msg: msg})
	}
	login := func(token string) {
		l := api.Login{AccessKey: accessKey, Role: "user", Status: "active", SessionToken: token, Expires: time.Now().Add(time.Hour)}
		if r.URL.Path == "/auth/authorize" {
			l.SecretKey = secretKey
		}
		say(200, api.LoginReply{Data: l})
	}
	if !strings.HasPrefix(r.URL.Path, "/auth/") && serve != nil {
		serve(w, r)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch token := text("session_token"); r.URL.Path {
	case "/auth/authorize":
		switch {
		case text("username") == "many@x":
			refuse(429, "rate-limit-exceeded", "too many wrong passwords")
		case text("username") == "old@x":
			refuse(401, "password-expired", "Password expired on 2026-01-01")
		case text("username") == "twice@x" && in["force"] != true:
			refuse(409, "active-login-session-exists", "has 1 logins")
		case text("username") == "enrol@x":
			say(401, api.Problem{Type: api.ProblemPrefix + "require-totp-registration", Title: "t", Msg: "enrol first",
				Data: json.RawMessage(`{"two_factor_registration_token":"t"}`)})
		case text("username") == "otp@x" && text("otp") != "123456":
			refuse(401, "require-totp-authentication", "OTP not provided")
		case text("password") != password:
			refuse(401, "auth-failed", "no")
		default:
			fresh := strings.Repeat(fmt.Sprintf("%08d", len(m.tokens)), 8)
			m.tokens[fresh] = true
			login(fresh)
		}
	case "/auth/logins/resume", "/auth/logins/extend":
		if !m.tokens[token] {
			refuse(401, "login-session-expired", "ended")
			return
		}
		login(token)
	case "/auth/oidc":
		say(200, map[string]any{"items": []map[string]string{{"name": "corp", "title": "Corp"}}})
	case "/auth/oidc/begin":
		if text("provider") != "corp" {
			refuse(404, "object-not-found", "there is no identity provider <b>")
			return
		}
		say(200, map[string]string{"url": "https://login.example.org/?state=s", "flow": "flow of " + text("next")})
	case "/auth/oidc/finish":
		next, ok := strings.CutPrefix(text("flow"), "flow of ")
		if !ok || text("state") != "s" || text("code") == "" {
			refuse(401, "auth-failed", "not begun in this browser <script>")
			return
		}
		token := strings.Repeat("t", 64)
		m.tokens[token] = true
		say(200, map[string]any{"next": next, "data": api.Login{AccessKey: accessKey, SecretKey: secretKey, SessionToken: token,
			Expires: time.Now().Add(time.Hour)}})
	case "/auth/token-login":
		if text("sToken") != "good" {
			refuse(401, "auth-failed", "this is no login token")
			return
		}
		token := strings.Repeat("u", 64)
		m.tokens[token] = true
		login(token)
	case "/auth/passkeys/login/begin", "/auth/passkeys/enrol/begin":
		say(200, map[string]any{"flow": "f", "options": in})
	case "/auth/passkeys/enrol/finish":
		refuse(403, "generic-forbidden", "not fresh")
	case "/auth/logins/sibling":
		if !m.tokens[token] {
			refuse(401, "login-session-expired", "ended")
			return
		}
		fresh := strings.Repeat(fmt.Sprintf("%08d", len(m.tokens)), 8)
		m.tokens[fresh] = true
		login(fresh)
	case "/auth/logout":
		delete(m.tokens, token)
		say(200, struct{}{})
	case "/auth/signup":
		say(201, map[string]string{"access_key": accessKey, "secret_key": secretKey})
	case "/auth/update-password-no-auth":
		switch {
		case m.refuse != nil:
			say(401, m.refuse)
		case text("current_password") != password:
			refuse(401, "auth-failed", "no")
		default:
			say(201, api.PasswordReplaced{ChangedAt: time.Now()})
		}
	case "/":
		say(200, map[string]string{"path": r.RequestURI, "version": api.Version, "manager": "24.09.12"})
	default:
		if m.refuse != nil {
			say(401, m.refuse)
			return
		}
		w.Header().Set("Set-Cookie", "evil=1")
		say(200, map[string]string{"path": r.RequestURI})
	}
}

// last is the newest request, without those of this server's own.
func (m *fakeManager) last(t *testing.T) (*http.Request, string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.got) - 1; i >= 0; i-- {
		if !strings.HasPrefix(m.got[i].URL.Path, "/auth/log") {
			return m.got[i], m.bodies[i]
		}
	}
	t.Fatal("the manager got no request")
	return nil, ""
}

func (m *fakeManager) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.got)
}

// site is a web server in front of fake managers.
type site struct {
	t       *testing.T
	manager *fakeManager
	*httptest.Server
}

func newSite(t *testing.T, change ...func(*webserver.Config)) *site {
	t.Helper()
	m := newManager(t)
	cfg := webserver.DefaultConfig()
	cfg.Managers, cfg.StateDir = []string{m.URL}, t.TempDir()
	for _, c := range change {
		c(&cfg)
	}
	s, err := webserver.New(cfg, webserver.Deps{})
	require.NoError(t, err)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return &site{t, m, server}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) has(t *testing.T, status int, texts ...string) reply {
	t.Helper()
	require.Equal(t, status, r.status, r.body)
	for _, text := range texts {
		require.Contains(t, r.body, text)
	}
	return r
}

// cookie is the value of the session cookie that an answer sets.
func (r reply) cookie(t *testing.T) *http.Cookie {
	t.Helper()
	for _, c := range (&http.Response{Header: r.header}).Cookies() {
		if c.Name == "AIOHTTP_SESSION" {
			return c
		}
	}
	t.Fatal("no cookie is set")
	return nil
}

// do sends a request; headers are "Name: value".
func (s *site) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	require.NoError(s.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	// The server's own client: any server of httptest that closes takes the connections of the default one away.
	c := *s.Client()
	c.CheckRedirect, c.Timeout = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, time.Minute
	resp, err := c.Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return reply{resp.StatusCode, resp.Header, string(raw)}
}

func loginBody(user string) string {
	return fmt.Sprintf(`{"username":%q,"password":%q}`, user, password)
}

// login returns the headers of a browser that is logged in.
func (s *site) login() (token, cookie string) {
	s.t.Helper()
	r := s.do("POST", "/server/login", loginBody("a@x")).has(s.t, 200, `"authenticated":true`)
	token = r.cookie(s.t).Value
	return token, "Cookie: AIOHTTP_SESSION=" + token
}

func encode(plain, iv, endpoint string) string {
	key := (base64.StdEncoding.EncodeToString([]byte(endpoint)) + iv + iv)[:32]
	block, _ := aes.NewCipher([]byte(key)) // 32 bytes
	pad := 16 - len(plain)%16
	raw := append([]byte(plain), bytes.Repeat([]byte{byte(pad)}, pad)...)
	cipher.NewCBCEncrypter(block, []byte(iv)).CryptBlocks(raw, raw)
	return iv + ":" + base64.StdEncoding.EncodeToString(raw)
}

func TestLoginAndLogout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("POST", "/server/login-check", "").has(t, 200, `{"authenticated":false,"data":null,"session_id":null}`)
	r := s.do("POST", "/server/login", loginBody("a@x")).has(t, 200)
	require.JSONEq(t, `{"authenticated":true,"data":{"access_key":"`+accessKey+`","role":"user","status":"active"}}`, r.body)
	require.NotContains(t, r.body, secretKey)
	c := r.cookie(t)
	require.Equal(t, r.header.Get("X-BackendAI-SessionID"), c.Value)
	require.True(t, c.HttpOnly)
	require.False(t, c.Secure, "the browser came by plain HTTP")
	require.Equal(t, http.SameSiteLaxMode, c.SameSite)
	require.Equal(t, "/", c.Path)
	require.InDelta(t, 3600, c.MaxAge, 60)

	cookie := "Cookie: AIOHTTP_SESSION=" + c.Value
	for _, way := range []string{cookie, "X-BackendAI-SessionID: " + c.Value} {
		s.do("POST", "/server/login-check", "", way).has(t, 200, `"authenticated":true`, accessKey, c.Value)
	}
	s.do("POST", "/server/login", loginBody("a@x"), cookie).has(t, 400, "already logged in")
	s.do("POST", "/server/extend-login-session", "", cookie).has(t, 200, `"status":201`, `"expires":"20`).cookie(t)
	s.do("POST", "/func/session", "{}", cookie).has(t, 200)
	require.Negative(t, s.do("POST", "/server/logout", "{}", cookie).has(t, 200).cookie(t).MaxAge)
	s.do("POST", "/func/session", "{}", cookie).has(t, 401, "auth-failed")
	s.do("POST", "/server/extend-login-session", "", cookie).has(t, 401)
	s.do("POST", "/server/logout", "{}", cookie).has(t, 200)
	s.do("GET", "/server/login", "").has(t, 405)
	s.do("POST", "/server/anything", "").has(t, 404)
}

// A page lets a command line in as the user of the browser; what leaves the server only this command line can read.
func TestACommandLineIsLoggedInByAPage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h, err := clientlogin.NewHandover()
	require.NoError(t, err)
	page := "/server/cli?key=" + h.Key() + "&name=" + url.QueryEscape("berth on <b>lab")
	first := s.do("GET", page, "").has(t, 401, "Log in first", "Log in with")
	require.Contains(t, first.body, "start?next="+strings.ReplaceAll(url.QueryEscape("/server/cli?key="+h.Key()), "&", "&amp;"))
	_, cookie := s.login()
	shown := s.do("GET", page, "", cookie).has(t, 200, "berth on &lt;b&gt;lab", `<form method="post"`)
	require.Contains(t, shown.header.Get("Content-Security-Policy"), "form-action 'self';")
	before := len(s.manager.tokens)
	s.do("POST", page, "", cookie, "Sec-Fetch-Site: cross-site").has(t, 403)
	require.Len(t, s.manager.tokens, before, "a page of another site opened a login")

	done := s.do("POST", page, "", cookie).has(t, 200, "Copy this code")
	code := regexp.MustCompile(`<code id="code">([^<]+)<`).FindStringSubmatch(done.body)
	require.Len(t, code, 2)
	token, err := h.Open(code[1])
	require.NoError(t, err)
	require.NotContains(t, done.body, string(token))
	s.do("POST", "/server/login-check", "", "X-BackendAI-SessionID: "+string(token)).has(t, 200, `"authenticated":true`)

	local := s.do("POST", page+"&port=4711", "", cookie).has(t, 303)
	require.True(t, strings.HasPrefix(local.header.Get("Location"), "http://127.0.0.1:4711/?code="), local.header.Get("Location"))
	shown = s.do("GET", page+"&port=4711", "", cookie).has(t, 200)
	require.Contains(t, shown.header.Get("Content-Security-Policy"), "form-action 'self' http://127.0.0.1:4711;")
	for _, bad := range []string{"", "?key=" + h.Key(), "?name=x", "?name=x&key=AAAA", "?name=x&key=" + h.Key() + "&port=80",
		"?name=x&key=" + h.Key() + "&port=evil.example", "?name=%00&key=" + h.Key()} {
		s.do("GET", "/server/cli"+bad, "", cookie).has(t, 400, "incomplete")
		s.do("POST", "/server/cli"+bad, "", cookie).has(t, 400, "incomplete")
	}
	s.do("DELETE", page, "", cookie).has(t, 405)
	s.do("POST", "/func/auth/logins/sibling", "{}", cookie).has(t, 404)
}

// Lists of logins show by which program each was made, which is not the web server.
func TestManagersHearOfTheProgramThatLogsIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("POST", "/server/login", loginBody("a@x"), "User-Agent: fox/1").has(t, 200, accessKey)
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	require.Equal(t, "fox/1", s.manager.got[len(s.manager.got)-1].UserAgent())
}

func TestWhyALoginIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for user, want := range map[string]string{
		"old@x": "password-expired", "twice@x": "active-login-session-exists", "otp@x": "require-totp-authentication",
	} {
		s.do("POST", "/server/login", loginBody(user)).has(t, 200, `"authenticated":false`, want+`"`)
	}
	s.do("POST", "/server/login", loginBody("otp@x")).has(t, 200, `"details":"OTP not provided"`)
	s.do("POST", "/server/login", `{"username":"otp@x","password":"`+password+`","otp":"123456"}`).has(t, 200, `"authenticated":true`)
	s.do("POST", "/server/login", `{"username":"twice@x","password":"`+password+`","force":true}`).has(t, 200, `"authenticated":true`)
	s.do("POST", "/server/login", `{"username":"a@x","password":"wrong"}`).has(t, 200, "User credential mismatch.", "auth-failed")
	s.do("POST", "/server/login", loginBody("many@x")).has(t, 429, "too-many-requests")
	for _, bad := range []string{"", "{}", "[]", "null", "{", `{"username":"a"}`, `{"username":1,"password":2}`} {
		s.do("POST", "/server/login", bad).has(t, 400, "invalid-api-params")
	}
	s.do("POST", "/server/login", `{"username":"`+strings.Repeat("a", 70_000)+`"}`).has(t, 413)
	s.do("POST", "/server/token-login", `{"sToken":"x"}`).has(t, 200, `"authenticated":false`, "this is no login token")
	s.do("POST", "/server/token-login", `{}`).has(t, 400, "sToken")
	s.do("POST", "/server/token-login", `{"sToken":"good"}`).has(t, 200, `"authenticated":true`).cookie(t)
	s.do("POST", "/server/token-login", ``, "Cookie: sToken=good").has(t, 200, `"authenticated":true`).cookie(t)
}

func TestEncodedBodies(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *webserver.Config) { c.URL = "https://berth.example.org" })
	const iv = "ABCDEFGHIJKLMNOP"
	for _, endpoint := range []string{"https://berth.example.org", "https://berth.example.org/", s.URL, "http://berth.example.org"} {
		s.do("POST", "/server/login", encode(loginBody("a@x"), iv, endpoint), "X-BackendAI-Encoded: true").has(t, 200, `"authenticated":true`)
	}
	s.do("POST", "/server/login", encode(loginBody("a@x"), iv, "http://elsewhere"), "X-BackendAI-Encoded: true").has(t, 400)
	s.do("POST", "/server/login", loginBody("a@x"), "X-BackendAI-Encoded: true").has(t, 400)
	_, cookie := s.login()
	s.do("POST", "/func/auth/update-password", encode(`{"old_password":"x"}`, iv, s.URL), "X-BackendAI-Encoded: true", cookie,
		"Content-Type: application/octet-stream").has(t, 200)
	r, body := s.manager.last(t)
	require.Equal(t, `{"old_password":"x"}`, body)
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	require.Empty(t, r.Header.Get("X-BackendAI-Encoded"))
}

// The manager gets what the client asked, for the login, and nothing that the client says of itself.
func TestRequestsArePassedOnForTheLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	token, cookie := s.login()
	s.do("PUT", "/func/session/a%20b/x%2Fy?q=%20&r=+", "the body", cookie, "Content-Type: text/x-test; charset=utf-8",
		"X-BackendAI-Version: v6.20220615", "Authorization: BackendAI forged", "Date: yesterday", "X-Forwarded-For: 1.2.3.4",
		"X-Forwarded-Proto: https", "Forwarded: for=1.2.3.4", "X-Method-Override: DELETE", "X-BackendAI-Domain: other",
		"X-BackendAI-Token: jwt", "X-Berth-Signature: forged", "X-Real-IP: 1.2.3.4", "Keep-Alive: x", "Connection: X-Secret, close",
		"X-Secret: 1").has(t, 200, `/session/a%20b/x%2Fy?q=%20\u0026r=+`)
	r, body := s.manager.last(t)
	require.Equal(t, "the body", body)
	require.Equal(t, "PUT", r.Method)
	require.Equal(t, []string{"127.0.0.1"}, r.Header["X-Forwarded-For"])
	require.Equal(t, []string{"http"}, r.Header["X-Forwarded-Proto"])
	require.Equal(t, "default", r.Header.Get("X-BackendAI-Domain"))
	require.Equal(t, "v6.20220615", r.Header.Get("X-BackendAI-Version"))
	for _, gone := range []string{"Cookie", "Date", "X-Berth-Signature", "Forwarded", "X-Method-Override", "X-BackendAI-Token",
		"X-Real-IP", "X-Secret", "Keep-Alive"} {
		require.Empty(t, r.Header.Values(gone), gone)
	}
	require.Equal(t, "BerthLogin "+token, r.Header.Get("Authorization"))
}

func TestAnswersOfManagersSetNoCookiesAndMakeNoPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, cookie := s.login()
	s.manager.serve = func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for k, v := range map[string]string{"Set-Cookie": "AIOHTTP_SESSION=evil", "Content-Security-Policy": "default-src *", "Server": "x",
			"Access-Control-Allow-Origin": "*", "Content-Type": "text/html", "X-Content-Type-Options": "other", "Retry-After": "7"} {
			h.Set(k, v)
		}
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "<script>alert(1)</script>")
	}
	r := s.do("GET", "/func/session/x/download", "", cookie).has(t, 503, "<script>")
	require.Equal(t, "7", r.header.Get("Retry-After"))
	require.Contains(t, r.header.Get("Content-Security-Policy"), "sandbox")
	require.Equal(t, []string{"nosniff"}, r.header["X-Content-Type-Options"])
	for _, gone := range []string{"Set-Cookie", "Server", "Access-Control-Allow-Origin"} {
		require.Empty(t, r.header.Values(gone), gone)
	}
}

func TestWhatNeedsNoLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("GET", "/func/ping", "").has(t, 200, `"details":"Success"`, "v8.20240915")
	for _, path := range []string{"GET /func/", "GET /func", "POST /func/saml/x", "GET /func/v2/x/public/y",
		"HEAD /func/folders/_/tus/upload/a", "GET /func/openid/x", "POST /func/totp/anon/x"} {
		method, path, _ := strings.Cut(path, " ")
		r := s.do(method, path, "", "Authorization: BackendAI x", "Cookie: AIOHTTP_SESSION="+strings.Repeat("a", 64))
		require.Equal(t, 200, r.status, path)
		got, _ := s.manager.last(t)
		require.Empty(t, got.Header.Get("Authorization"), path)
	}
	s.do("POST", "/func/auth/signup", `{"email":"b@x","domain":"other"}`).has(t, 201)
	_, body := s.manager.last(t)
	require.JSONEq(t, `{"email":"b@x","domain":"default"}`, body)
	for _, path := range []string{"/func/session", "/func/auth", "/func/v2/x/y/z", "/func/folders/_/tus/uploads"} {
		s.do("GET", path, "").has(t, 401, "auth-failed")
	}
	before := s.manager.requests()
	for _, path := range []string{"/func/auth/authorize", "/func/auth/logins/resume", "/func/auth/logins/extend/", "/func/auth/logout"} {
		s.do("POST", path, "{}").has(t, 404)
	}
	require.Equal(t, before, s.manager.requests(), "what only this server asks is asked by nobody else")
}

func TestPathsLeadNowhereElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	web := filepath.Join(dir, "web")
	require.NoError(t, os.MkdirAll(filepath.Join(web, "assets"), 0o755))
	for name, text := range map[string]string{"secret.txt": "SECRET", "web/index.html": "<p>index</p>", "web/.env": "SECRET",
		"web/assets/a.js": "1", "web/assets/.git": "SECRET"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "secret.txt"), filepath.Join(web, "link.txt")))
	s := newSite(t, func(c *webserver.Config) { c.StaticDir = web })
	_, cookie := s.login()
	before := s.manager.requests()
	for _, path := range []string{"/func/../server/login", "/func/%2e%2e/server", "/func/a/../../x", "/func//auth", "/func/a%5C..%5Cb",
		"/func/./auth", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "/a%00b", "/assets//a.js"} {
		r := s.raw("GET "+path+" HTTP/1.1", "Host: x", cookie, "Connection: close")
		require.NotContains(t, r, "SECRET", path)
		require.Contains(t, r, "404 Not Found", path)
	}
	require.Equal(t, before, s.manager.requests())
	for _, path := range []string{"/link.txt", "/.env", "/assets/.git", "/assets", "/assets/", "/some/page", "/index.html", "/"} {
		s.do("GET", path, "").has(t, 200, "<p>index</p>")
	}
	r := s.do("GET", "/assets/a.js", "").has(t, 200, "1")
	require.Equal(t, "text/javascript; charset=utf-8", r.header.Get("Content-Type"))
	require.Contains(t, r.header.Get("Cache-Control"), "max-age=86400")
	s.do("POST", "/assets/a.js", "").has(t, 405)
}

// raw sends lines as they are.
func (s *site) raw(lines ...string) string {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(s.t, err)
	defer conn.Close()
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n")
	require.NoError(s.t, err)
	text, err := io.ReadAll(conn)
	require.NoError(s.t, err)
	return string(text)
}

func TestIndexGetsItsNonce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	index := filepath.Join(dir, "index.html")
	require.NoError(t, os.WriteFile(index, []byte(`<script nonce="{{nonce}}">1</script>`), 0o644))
	s := newSite(t, func(c *webserver.Config) { c.StaticDir = dir })
	seen := map[string]bool{}
	for range 2 {
		r := s.do("GET", "/start", "").has(t, 200)
		_, rest, _ := strings.Cut(r.body, `nonce="`)
		nonce, _, _ := strings.Cut(rest, `"`)
		require.Len(t, nonce, 24)
		require.False(t, seen[nonce], "a nonce is used once")
		seen[nonce] = true
		require.Contains(t, r.header.Get("Content-Security-Policy"), "script-src 'self' 'nonce-"+nonce+"'")
		require.NotContains(t, r.header.Get("Content-Security-Policy"), "script-src 'self' 'unsafe-inline'")
		require.Equal(t, "no-store", r.header.Get("Cache-Control"))
		require.Equal(t, "DENY", r.header.Get("X-Frame-Options"))
	}
	require.NoError(t, os.WriteFile(index, []byte(`<script>1</script>`), 0o644))
	require.Contains(t, s.do("GET", "/", "").header.Get("Content-Security-Policy"), "script-src 'self' 'unsafe-inline'")
}

func TestPageAndSettingsWithoutFiles(t *testing.T) {
	t.Parallel()
	ui := filepath.Join(t.TempDir(), "ui.toml")
	require.NoError(t, os.WriteFile(ui, []byte("[general]\nsignupSupport = true\n[plugin]\nlogin = \"a\"\n"), 0o600))
	s := newSite(t, func(c *webserver.Config) { c.UIFile = ui })
	require.NotContains(t, s.raw("GET / HTTP/1.1", `Host: "><script>`, "Connection: close"), "<script>")
	r := s.do("GET", "/", "", "Host: berth.example.org").has(t, 200, "BACKEND_ENDPOINT=http://berth.example.org backend.ai login")
	require.Contains(t, r.header.Get("Content-Security-Policy"), "default-src 'none'")
	s.do("GET", "/other", "").has(t, 404, "url-not-found")
	r = s.do("GET", "/config.toml", "", "Host: berth.example.org").has(t, 200)
	require.Contains(t, r.header.Get("Content-Type"), "text/plain")
	var got map[string]map[string]any
	require.NoError(t, toml.Unmarshal([]byte(r.body), &got))
	require.Equal(t, "http://berth.example.org", got["general"]["apiEndpoint"])
	require.Equal(t, "SESSION", got["general"]["connectionMode"])
	require.Equal(t, true, got["general"]["signupSupport"])
	require.Equal(t, "a", got["plugin"]["login"])
	s.do("GET", "/health", "").has(t, 200, "Success")
	s.do("GET", "/readyz", "").has(t, 200, "Success")
}

// Pages of other sites make a browser send its cookie; they change nothing with it, and open no WebSocket.
func TestOtherSitesDoNothingWithTheCookie(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *webserver.Config) { c.Origins = []string{"https://ui.example.org"} })
	_, cookie := s.login()
	for _, headers := range [][]string{
		{"Sec-Fetch-Site: cross-site"}, {"Sec-Fetch-Site: same-site"}, {"Origin: https://evil.example"}, {"Origin: null"},
		{"Sec-Fetch-Site: same-site", "Origin: http://app1.apps.localhost"},
	} {
		for _, at := range []string{"POST /func/session", "DELETE /func/folders/x", "POST /server/login", "POST /server/logout",
			"PATCH /func/x", "GET /func/stream/session/x/pty"} {
			method, path, _ := strings.Cut(at, " ")
			more := append([]string{cookie}, headers...)
			if method == "GET" {
				more = append(more, "Upgrade: websocket", "Connection: Upgrade")
			}
			r := s.do(method, path, "{}", more...).has(t, 403, "generic-forbidden")
			require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
		}
	}
	for _, headers := range [][]string{
		{}, {"Sec-Fetch-Site: same-origin"}, {"Origin: " + s.URL}, {"Origin: https://ui.example.org", "Sec-Fetch-Site: cross-site"},
	} {
		s.do("POST", "/func/session", "{}", append([]string{cookie}, headers...)...).has(t, 200)
	}
	r := s.do("OPTIONS", "/func/session", "", "Origin: https://ui.example.org", "Access-Control-Request-Method: POST",
		"Access-Control-Request-Headers: x-backendai-sessionid").has(t, 204)
	require.Equal(t, "https://ui.example.org", r.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "true", r.header.Get("Access-Control-Allow-Credentials"))
	r = s.do("OPTIONS", "/func/session", "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
	require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
}

func TestTokensOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	planted := strings.Repeat("p", 64)
	r := s.do("POST", "/server/login", loginBody("a@x"), "Cookie: AIOHTTP_SESSION="+planted).has(t, 200)
	token := r.cookie(t).Value
	require.NotEqual(t, planted, token, "a planted token becomes nobody's")
	s.do("GET", "/func/x", "", "Cookie: AIOHTTP_SESSION="+planted).has(t, 401)
	own := "Cookie: AIOHTTP_SESSION=" + token
	s.do("GET", "/func/x", "", own).has(t, 200)
	s.do("GET", "/func/x", "", own, "X-BackendAI-SessionID: "+planted).has(t, 401)
	s.do("GET", "/func/x", "", own+"; AIOHTTP_SESSION="+planted).has(t, 401)
	for _, bad := range []string{"x", token[:63], token + "0", strings.ToUpper("zz" + token[2:]), "../../x"} {
		s.do("GET", "/func/x", "", "Cookie: AIOHTTP_SESSION="+bad).has(t, 401)
	}
}

func TestForwardedHeadersCountFromTrustedProxiesAlone(t *testing.T) {
	t.Parallel()
	stranger := newSite(t)
	require.False(t, stranger.do("POST", "/server/login", loginBody("a@x"), "X-Forwarded-Proto: https").cookie(t).Secure)
	behind := newSite(t, func(c *webserver.Config) { c.TrustedProxies = []string{"127.0.0.1"} })
	r := behind.do("POST", "/server/login", loginBody("a@x"), "X-Forwarded-Proto: https", "X-Forwarded-For: 192.0.2.9")
	require.True(t, r.cookie(t).Secure)
	behind.do("GET", "/func/x", "", "Cookie: AIOHTTP_SESSION="+r.cookie(t).Value, "X-Forwarded-For: 6.6.6.6, 192.0.2.9",
		"X-Forwarded-Proto: https").has(t, 200)
	got, _ := behind.manager.last(t)
	require.Equal(t, []string{"192.0.2.9"}, got.Header["X-Forwarded-For"])
	require.Equal(t, []string{"https"}, got.Header["X-Forwarded-Proto"])
}

func TestManagersThatAreGone(t *testing.T) {
	t.Parallel()
	second := newManager(t)
	s := newSite(t, func(c *webserver.Config) { c.Managers = append(c.Managers, second.URL) })
	token, cookie := s.login()
	second.mu.Lock()
	second.tokens[token] = true
	second.mu.Unlock()
	s.manager.Close()
	moved := s.do("POST", "/func/session", "a body that goes to the other one", cookie)
	if moved.status == 503 { // a kept connection broke under it: whether that manager heard it is not known, so it is not sent again
		moved = s.do("POST", "/func/session", "a body that goes to the other one", cookie)
	}
	moved.has(t, 200)
	_, body := second.last(t)
	require.Equal(t, "a body that goes to the other one", body)
	second.Close()
	for _, at := range []string{"GET /func/x", "POST /func/x", "POST /server/login", "POST /server/logout", "GET /readyz", "GET /func/"} {
		method, path, _ := strings.Cut(at, " ")
		text := loginBody("a@x")
		if method == "GET" {
			text = ""
		}
		who := cookie
		if path == "/server/login" {
			who = "X-Nobody: 1"
		}
		r := s.do(method, path, text, who).has(t, 503, "service-unavailable")
		require.Equal(t, "2", r.header.Get("Retry-After"), at)
		require.Empty(t, r.header.Values("Set-Cookie"), "nobody is logged out by it")
	}
}

func TestStreamsFlowAndEndWithTheLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	next := make(chan string)
	ended := make(chan struct{})
	s.manager.serve = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		defer close(ended)
		for {
			select {
			case text := <-next:
				_, _ = io.WriteString(w, text+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	_, cookie := s.login()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/func/events/session", nil)
	require.NoError(t, err)
	r.Header.Set("Cookie", strings.TrimPrefix(cookie, "Cookie: "))
	go func() { next <- "one" }()
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for _, want := range []string{"one", "two", "three"} {
		if want != "one" {
			next <- want
		}
		got, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want+"\n", got)
	}
	s.do("POST", "/server/logout", "{}", cookie).has(t, 200)
	_, err = lines.ReadString('\n')
	require.Error(t, err, "the stream ends with the login")
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the manager's stream goes on")
	}
}

func TestSlowAndLargeBodiesEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *webserver.Config) { c.Limits.StallTimeout, c.Limits.BodyBytes = time.Second, 1<<20 })
	token, cookie := s.login()
	// No more than a little beyond the limit: who is still sending when the connection ends may not see the answer.
	s.do("POST", "/func/x", strings.Repeat("a", 1<<20+100), cookie).has(t, 413)
	text := s.raw("POST /func/x HTTP/1.1", "Host: x", "Cookie: AIOHTTP_SESSION="+token, "Content-Length: 100")
	require.Contains(t, text, "408 Request Timeout")
	for _, path := range []string{"/func/x", "/server/logout"} { // refused, or waited for
		text = s.raw("POST "+path+" HTTP/1.1", "Host: x", "Content-Length: 100")
		require.Contains(t, text, "HTTP/1.1 ", "the connection ends although the body never comes")
	}
}

func TestTooManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *webserver.Config) { c.Limits.Requests, c.Limits.PerAddress = 8, 2 })
	_, cookie := s.login()
	release := make(chan struct{})
	arrived := make(chan struct{}, 2)
	s.manager.serve = func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-release }
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { s.do("GET", "/func/x", "", cookie) })
	}
	<-arrived
	<-arrived
	require.Eventually(t, func() bool { return s.do("GET", "/health", "").status == 429 }, time.Minute, time.Millisecond)
	close(release)
	all.Wait()
	// An answer may be there before its request has left its place.
	require.Eventually(t, func() bool { return s.do("GET", "/health", "").status == 200 }, time.Minute, time.Millisecond)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := webserver.DefaultConfig()
	require.NoError(t, good.Validate())
	require.NoError(t, good.Complete())
	for what, change := range map[string]func(*webserver.Config){
		"listen": func(c *webserver.Config) { c.Listen = "x" }, "url": func(c *webserver.Config) { c.URL = "https://x/path" },
		"managers": func(c *webserver.Config) { c.Managers = []string{"10.0.0.1:8081"} },
		"origins":  func(c *webserver.Config) { c.Origins = []string{"*"} }, "static_dir": func(c *webserver.Config) { c.StaticDir = "web" },
		"trusted_proxies": func(c *webserver.Config) { c.TrustedProxies = []string{"proxy"} },
		"hsts":            func(c *webserver.Config) { c.HSTS = true }, "domain": func(c *webserver.Config) { c.Domain = "" },
		"policy":     func(c *webserver.Config) { c.Policy = "a\r\nb" },
		"limits":     func(c *webserver.Config) { c.Limits.PerAddress = 1 << 20 },
		"body_bytes": func(c *webserver.Config) { c.Limits.BodyBytes = 1 },
	} {
		c := webserver.DefaultConfig()
		change(&c)
		err := c.Validate()
		require.Error(t, err, what)
		require.Contains(t, err.Error(), what)
	}
	c := webserver.DefaultConfig()
	c.StateDir, c.StaticDir = t.TempDir(), t.TempDir()
	_, err := webserver.New(c, webserver.Deps{})
	require.ErrorContains(t, err, "index.html")
}
