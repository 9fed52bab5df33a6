package webserver_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// flow is the cookie of a login under way.
func (r reply) flow(t *testing.T) *http.Cookie {
	t.Helper()
	for _, c := range (&http.Response{Header: r.header}).Cookies() {
		if c.Name == "BERTH_OIDC" {
			return c
		}
	}
	t.Fatal("no cookie is set")
	return nil
}

func TestALoginAtAProviderGoesThroughTheBrowser(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("GET", "/server/oidc", "").has(t, 200, `"name":"corp"`)
	start := s.do("GET", "/server/oidc/corp/start?next="+url.QueryEscape("/data?x=1"), "").has(t, 303)
	require.Equal(t, "https://login.example.org/?state=s", start.header.Get("Location"))
	flow := start.flow(t)
	require.True(t, flow.HttpOnly)
	require.Equal(t, "/server/oidc", flow.Path)
	require.Equal(t, http.SameSiteLaxMode, flow.SameSite)

	back := s.do("GET", "/server/oidc/corp/callback?code=c&state=s", "", "Cookie: BERTH_OIDC="+flow.Value).has(t, 303)
	require.Equal(t, "/data?x=1", back.header.Get("Location"))
	require.Negative(t, back.flow(t).MaxAge, "the cookie was used")
	cookie := back.cookie(t)
	require.True(t, cookie.HttpOnly)
	s.do("POST", "/server/login-check", "", "Cookie: AIOHTTP_SESSION="+cookie.Value).has(t, 200, `"authenticated":true`)
}

// Words of others are shown, not run; nobody is led elsewhere, logged in without their own cookie, or by another method.
func TestWhatStrangersTryWithProviders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, headers := range [][]string{nil, {"Cookie: BERTH_OIDC=x"}, {"Cookie: BERTH_OIDC=flow of /; BERTH_OIDC=flow of /x"}} {
		r := s.do("GET", "/server/oidc/corp/callback?code=c&state=s", "", headers...).has(t, 401, "not begun in this browser &lt;script&gt;")
		require.Contains(t, r.header.Get("Content-Security-Policy"), "default-src 'none'")
		for _, c := range (&http.Response{Header: r.header}).Cookies() {
			require.NotEqual(t, "AIOHTTP_SESSION", c.Name)
		}
	}
	s.do("GET", "/server/oidc/corp/callback?code=c&state=other", "", "Cookie: BERTH_OIDC=flow of /").has(t, 401)
	s.do("GET", "/server/oidc/none/start", "").has(t, 404, "&lt;b&gt;")
	s.do("GET", "/server/oidc/corp/other", "").has(t, 404)
	s.do("HEAD", "/server/oidc/corp/callback?code=c&state=s", "", "Cookie: BERTH_OIDC=flow of /").has(t, 405)
	s.do("POST", "/server/oidc/corp/callback", "").has(t, 405)
	for _, next := range []string{"//evil.example.org", "https://evil.example.org", "/\\evil.example.org"} {
		r := s.do("GET", "/server/oidc/corp/callback?code=c&state=s", "", "Cookie: BERTH_OIDC=\"flow of "+next+"\"")
		if r.status == 303 {
			require.Equal(t, "/", r.header.Get("Location"), next)
		}
	}
}

func TestPasskeysGoThroughTheWebServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("POST", "/server/passkeys/login/begin", "").has(t, 200, `"flow":"f"`)
	s.do("POST", "/server/passkeys/enrol/begin", "").has(t, 401, "not logged in")
	token, cookie := s.login()
	// The token is the browser's own, whatever the body says.
	s.do("POST", "/server/passkeys/enrol/begin", `{"session_token":"x"}`, cookie).has(t, 200, token)
	s.do("POST", "/server/passkeys/enrol/finish", `{}`, cookie).has(t, 403, "not fresh")
	s.do("POST", "/server/passkeys/enrol/begin", ``, cookie, "Origin: https://evil.example.org").has(t, 403, "another site")
}
