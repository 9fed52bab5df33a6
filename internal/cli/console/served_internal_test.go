package console

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

const mine = "AKIASERVEDSERVEDSERV"

// browser asks a served console; it has the cookie once it entered.
type browser struct {
	t      *testing.T
	s      *served
	cookie string
}

func (b *browser) ask(method, target, body string, header ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), method, "http://"+b.s.host+target, strings.NewReader(body))
	if b.cookie != "" {
		r.Header.Set("Cookie", b.cookie+"; other=secret")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	b.s.ServeHTTP(w, r)
	return w
}

func newBrowser(t *testing.T, manager http.HandlerFunc) *browser {
	t.Helper()
	m := httptest.NewServer(manager)
	t.Cleanup(m.Close)
	c, err := api.New(api.Config{Endpoint: m.URL, AccessKey: mine, SecretKey: "0123456789012345678901234567890123456789", Domain: "default"})
	require.NoError(t, err)
	p := newProxy(c, "", "random-part", "127.0.0.1:5050", time.Now)
	t.Cleanup(p.close)
	s := newServed(p, fstest.MapFS{
		"index.html":  {Data: []byte(`<meta content="{{nonce}}">the page`)},
		"assets/a.js": {Data: []byte("code")},
	})
	p.mux.HandleFunc("GET /"+entry, s.enter)
	return &browser{t: t, s: s}
}

func (b *browser) enter() {
	b.t.Helper()
	w := b.ask("GET", "/random-part/console", "")
	require.Equal(b.t, 200, w.Code)
	set := w.Result().Cookies()
	require.Len(b.t, set, 1)
	require.True(b.t, set[0].HttpOnly)
	require.Equal(b.t, http.SameSiteStrictMode, set[0].SameSite)
	b.cookie = set[0].Name + "=" + set[0].Value
}

func TestServedConsoleIsForWhoKnowsTheAddress(t *testing.T) {
	t.Parallel()
	asked := 0
	b := newBrowser(t, func(http.ResponseWriter, *http.Request) { asked++ })
	for _, at := range []string{"/", "/sessions", "/func/session", "/server/login-check", "/assets/a.js", "/wrong/console"} {
		require.Equal(t, 404, b.ask("GET", at, "").Code, at)
	}
	b.cookie = "berth-local-console=guess"
	require.Equal(t, 404, b.ask("GET", "/func/session", "").Code)
	b.enter()
	require.Equal(t, 421, b.ask("GET", "/func/session", "", "Host", "evil.example:5050").Code, "names that lead here are not ours")
	require.Equal(t, 403, b.ask("POST", "/func/session", "{}", "Origin", "https://evil.example").Code)
	require.Equal(t, 403, b.ask("GET", "/func/session", "", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors").Code,
		"a page at another port of this machine")
	require.Zero(t, asked)
}

func TestServedConsoleShowsPages(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, func(http.ResponseWriter, *http.Request) {})
	b.enter()
	for _, at := range []string{"/", "/sessions/abc?tab=logs", "/index.html"} {
		w := b.ask("GET", at, "")
		require.Equal(t, 200, w.Code, at)
		require.Contains(t, w.Body.String(), "the page")
		require.NotContains(t, w.Body.String(), "{{")
		require.NotContains(t, w.Header().Get("Content-Security-Policy"), "unsafe")
	}
	w := b.ask("GET", "/assets/a.js", "")
	require.Equal(t, "code", w.Body.String())
	require.Contains(t, w.Header().Get("Cache-Control"), "immutable")
	require.Equal(t, 404, b.ask("GET", "/assets/gone.js", "").Code)
	require.Equal(t, 404, b.ask("GET", "/func/../server/login-check", "").Code)
	require.Equal(t, 405, b.ask("POST", "/sessions", "").Code)
	w = b.ask("POST", "/server/login-check", "{}")
	require.Contains(t, w.Body.String(), `"authenticated":true`)
	w = b.ask("POST", "/server/login", "{}")
	require.Equal(t, 404, w.Code)
	require.Contains(t, w.Body.String(), "berth login")
}

func TestServedConsolePassesRequestsOn(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]string{"at": r.URL.RequestURI(), "body": string(body),
			"proof": r.Header.Get("Authorization"), "cookie": r.Header.Get("Cookie"), "origin": r.Header.Get("Origin")})
	})
	b.enter()
	w := b.ask("POST", "/func/folders/a%2Fb/mkdir?x=1", `{"path":"d"}`, "Origin", "http://127.0.0.1:5050", "Content-Type", "application/json")
	require.Equal(t, 200, w.Code)
	var got map[string]string
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, "/folders/a%2Fb/mkdir?x=1", got["at"])
	require.JSONEq(t, `{"path":"d"}`, got["body"])
	require.Contains(t, got["proof"], "credential="+mine+":")
	require.Empty(t, got["cookie"]+got["origin"], "what the browser says of itself stays here")
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "sandbox", "files of users are no pages of this origin")
}

func TestServedConsoleOpensAppsHere(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stream/session/lab/apps" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(`[{"name":"jupyter","protocol":"http","ports":[8070]}]`))
	})
	b.enter()
	w := b.ask("POST", "/func/session/lab/tickets", `{"app":"jupyter"}`)
	require.Equal(t, 200, w.Code, w.Body.String())
	var ticket struct {
		Circuit string `json:"circuit"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &ticket))
	w = b.ask("POST", "/func/apps/circuits/"+ticket.Circuit+"/enter", "{}")
	var entered struct {
		URL string `json:"url"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &entered))
	u, err := url.Parse(entered.URL)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname())
	require.Equal(t, "local-"+u.Port(), ticket.Circuit)

	require.Equal(t, 404, b.ask("POST", "/func/session/lab/tickets", `{"app":"nope"}`).Code)
	require.Equal(t, 400, b.ask("POST", "/func/session/lab/tickets", `{`).Code)
	require.Equal(t, 404, b.ask("POST", "/func/apps/circuits/local-1/enter", "{}").Code)
}
