package webserver_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// A person who forgot a password or was invited has a page for it, without a login, scripts, or a cookie.
func TestEMailsLeadToPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ask := s.do("GET", "/server/reset", "").has(t, 200, "Forgotten your password?", `name="email"`)
	require.Contains(t, ask.header.Get("Content-Security-Policy"), "form-action 'self';")
	require.Equal(t, "no-store", ask.header.Get("Cache-Control"))
	s.do("POST", "/server/reset", url.Values{"email": {"ada@x"}}.Encode()).has(t, 200, "If there is an account")
	_, body := s.manager.last(t)
	require.JSONEq(t, `{"email":"ada@x"}`, body)

	shown := s.do("GET", "/server/reset?token="+url.QueryEscape(`"><b>`), "").has(t, 200, "Set a new password")
	require.NotContains(t, shown.body, "<b>")
	before := s.manager.requests()
	form := url.Values{"token": {"letter"}, "password": {"a new one, long"}, "again": {"another"}}
	s.do("POST", "/server/reset", form.Encode()).has(t, 400, "The two passwords differ", `value="letter"`)
	require.Equal(t, before, s.manager.requests())
	form.Set("again", "a new one, long")
	s.do("POST", "/server/reset", form.Encode()).has(t, 200, "Your password is set")
	r, body := s.manager.last(t)
	require.Equal(t, "/auth/reset-password/confirm", r.URL.Path)
	require.JSONEq(t, `{"token":"letter","new_password":"a new one, long"}`, body)

	s.do("GET", "/server/invitation?token=letter", "").has(t, 200, "Make your account", `name="username"`)
	s.do("GET", "/server/invitation", "").has(t, 400, "incomplete")
	s.do("GET", "/server/invitation?token="+strings.Repeat("a", 300), "").has(t, 400, "incomplete")
	form.Set("full_name", " Ada ")
	s.do("POST", "/server/invitation", form.Encode()).has(t, 200, "Your account is made")
	r, body = s.manager.last(t)
	require.Equal(t, "/auth/invitations/accept", r.URL.Path)
	require.JSONEq(t, `{"token":"letter","password":"a new one, long","full_name":"Ada"}`, body)

	s.manager.refuse = &api.Problem{Type: api.ProblemPrefix + "auth-failed", Msg: "the token of the e-mail <i>has ended"}
	s.do("POST", "/server/reset", form.Encode()).has(t, 401, "&lt;i&gt;has ended")
	s.do("POST", "/server/reset", form.Encode(), "Sec-Fetch-Site: cross-site").has(t, 403)
	s.do("DELETE", "/server/reset", "").has(t, 405)
	s.do("POST", "/server/reset", "%zz").has(t, 400)
	s.manager.Close()
	s.do("POST", "/server/reset", form.Encode()).has(t, 503, "No manager")
}

// Web interfaces elsewhere ask for the same through /func, without a login.
func TestForgottenPasswordsNeedNoLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/auth/reset-password", "/auth/reset-password/confirm", "/auth/invitations/accept"} {
		s.do("POST", "/func"+path, `{"token":"x"}`).has(t, 200)
		r, _ := s.manager.last(t)
		require.Equal(t, path, r.URL.Path)
		require.Empty(t, r.Header.Get("Authorization"))
	}
	s.do("POST", "/func/auth/invitations", `{"email":"x@y"}`).has(t, 401)
}
