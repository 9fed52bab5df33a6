package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

// post sends an unsigned request.
func (s *site) post(path, body string) answer {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	return s.send(r)
}

func (s *site) loginBody(more string) string {
	return fmt.Sprintf(`{"type":"keypair","domain":"default","username":%q,"password":%q%s}`, s.admin.Email, s.admin.Password.Reveal(), more)
}

// login opens a login as the first administrator.
func (s *site) login(more string) api.Login {
	s.t.Helper()
	a := s.post("/auth/authorize", s.loginBody(more))
	require.Equal(s.t, 200, a.status, a.body)
	var l api.LoginReply
	a.into(s.t, &l)
	return l.Data
}

func (s *site) resume(token string) answer {
	s.t.Helper()
	return s.post("/auth/logins/resume", fmt.Sprintf(`{"session_token":%q}`, token))
}

// simpleClock is moved by tests.
type simpleClock struct{ ahead atomic.Int64 }

func (c *simpleClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *simpleClock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

func withClock(c *simpleClock) siteOption {
	return func(n *nouns.Deps, h *httpapi.Deps) {
		n.Clock = c.now
		h.Clock = n.Clock
	}
}

func TestALoginIsHeldByItsToken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.login("")
	require.Len(t, l.SessionToken, 64)
	require.Equal(t, string(s.admin.AccessKey), l.AccessKey)
	a := s.resume(l.SessionToken)
	require.Equal(t, 200, a.status, a.body)
	var again api.LoginReply
	a.into(t, &again)
	require.NotEmpty(t, l.SecretKey)
	l.SecretKey = ""
	require.Equal(t, l, again.Data)

	var list api.LoginList
	a = s.call("GET", "/auth/logins", "")
	a.into(t, &list)
	require.Len(t, list.Items, 1)
	require.Equal(t, l.LoginID, list.Items[0].ID)
	require.NotContains(t, a.body, l.SessionToken, "a list of logins lets nobody in")

	require.Equal(t, 200, s.post("/auth/logout", fmt.Sprintf(`{"session_token":%q}`, l.SessionToken)).status)
	s.resume(l.SessionToken).problem(t, 401, "login-session-expired")
	for _, bad := range []string{"", "x", strings.Repeat("A", 64), l.SessionToken[:63], l.SessionToken + "A"} {
		if a := s.resume(bad); bad == "" {
			a.problem(t, 400, "invalid-api-params")
		} else {
			a.problem(t, 401, "login-session-expired")
		}
	}
	other := s.login("")
	a = s.call("DELETE", "/auth/logins/"+other.LoginID, "")
	require.Equal(t, 200, a.status, a.body)
	s.resume(other.SessionToken).problem(t, 401, "login-session-expired")
	s.call("DELETE", "/auth/logins/"+other.LoginID, "").problem(t, 404, "object-not-found")
	s.login("")
	s.login("")
	require.JSONEq(t, `{"ended":2}`, s.call("DELETE", "/auth/logins/all", "").body)
}

// TestALoginActsAndTellsNoSecret: the token of a login is good for requests as its user until the login ends, and nobody gets the secret of
// the keypair for it, which would be good for longer.
func TestALoginActsAndTellsNoSecret(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.login("")
	token := fmt.Sprintf(`{"session_token":%q,"agent":"berth on lab"}`, l.SessionToken)
	for _, path := range []string{"/auth/logins/resume", "/auth/logins/extend", "/auth/logins/sibling"} {
		a := s.post(path, token)
		require.Equal(t, 200, a.status, "%s: %s", path, a.body)
		require.NotContains(t, a.body, "secret_key", path)
		require.NotContains(t, a.body, l.SecretKey, path)
	}
	as := func(authorization string) answer {
		s.t.Helper()
		r := s.request("GET", "/auth/role", "", "")
		r.Header.Set("Authorization", authorization)
		return s.send(r)
	}
	require.Equal(t, 200, as("BerthLogin "+l.SessionToken).status)
	require.Contains(t, as("berthlogin  "+l.SessionToken).body, "superadmin")
	key := cluster.AccessKey(l.AccessKey)
	byLogin, err := s.nouns.Tenancy.ActorOfLogin(t.Context(), seal.Secret(l.SessionToken))
	require.NoError(t, err)
	k, err := s.nouns.Tenancy.GetKeypair(t.Context(), byLogin, key)
	require.NoError(t, err)
	require.Empty(t, k.SecretKey, "what outlives the login is not told")
	signs, _, err := s.nouns.Tenancy.Authenticate(t.Context(), key)
	require.NoError(t, err)
	k, err = s.nouns.Tenancy.GetKeypair(t.Context(), signs, key)
	require.NoError(t, err)
	require.Equal(t, l.SecretKey, k.SecretKey.Reveal())
	for _, bad := range []string{"BerthLogin", "BerthLogin ", "BerthLogin x", "BerthLogin " + l.SessionToken[1:], "Bearer " + l.SessionToken,
		"BerthLogin " + l.SecretKey} {
		require.Equal(t, 401, as(bad).status, bad)
	}
	require.Equal(t, 200, s.post("/auth/logout", token).status)
	as("BerthLogin "+l.SessionToken).problem(t, 401, "login-session-expired")

	other := s.login("")
	_, err = s.store.Pool().Exec(t.Context(), `UPDATE keypairs SET is_active = false WHERE access_key = $1`, l.AccessKey)
	require.NoError(t, err)
	as("BerthLogin "+other.SessionToken).problem(t, 401, "login-session-expired")
}

func TestLoginsEndByThemselves(t *testing.T) {
	t.Parallel()
	c := &simpleClock{}
	s := newSite(t, withClock(c), func(n *nouns.Deps, _ *httpapi.Deps) {
		n.LoginPolicy = tenancy.LoginPolicy{MaxAge: 10 * time.Hour, MaxLife: 15 * time.Hour, Idle: 4 * time.Hour}
	})
	l := s.login("")
	alive := func(after time.Duration, want int) {
		t.Helper()
		c.advance(after)
		require.Equal(t, want, s.resume(l.SessionToken).status)
	}
	alive(3*time.Hour, 200)
	alive(3*time.Hour, 200) // used meanwhile
	alive(3*time.Hour, 200)
	extended := s.post("/auth/logins/extend", fmt.Sprintf(`{"session_token":%q}`, l.SessionToken))
	require.Equal(t, 200, extended.status, extended.body)
	var to api.LoginReply
	extended.into(t, &to)
	require.WithinDuration(t, l.Expires.Add(5*time.Hour), to.Data.Expires, time.Second, "no login outlives its life")
	alive(3*time.Hour, 200)
	alive(3*time.Hour, 401)

	l = s.login("")
	alive(4*time.Hour, 401) // nobody used it
}

// A login of a login counts as one, has its own name, and lives no longer than the first may.
func TestSiblingsOfLogins(t *testing.T) {
	t.Parallel()
	c := &simpleClock{}
	s := newSite(t, withClock(c), func(n *nouns.Deps, _ *httpapi.Deps) {
		n.LoginPolicy = tenancy.LoginPolicy{MaxAge: 10 * time.Hour, MaxLife: 15 * time.Hour, Idle: 14 * time.Hour, Concurrent: 2}
	})
	first := s.login("")
	sibling := func(of string) (api.Login, answer) {
		r := s.post("/auth/logins/sibling", fmt.Sprintf(`{"session_token":%q,"agent":"berth on lab"}`, of))
		var l api.LoginReply
		if r.status == 200 {
			r.into(t, &l)
		}
		return l.Data, r
	}
	second, r := sibling(first.SessionToken)
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, s.call("GET", "/auth/logins", "").body, "berth on lab")
	require.Equal(t, 200, s.call("DELETE", "/auth/logins/"+second.LoginID, "").status)
	c.advance(8 * time.Hour)
	second, r = sibling(first.SessionToken)
	require.Equal(t, 200, r.status, r.body)
	require.NotEqual(t, first.SessionToken, second.SessionToken)
	require.Equal(t, first.AccessKey, second.AccessKey)
	require.WithinDuration(t, first.Expires.Add(5*time.Hour), second.Expires, time.Second)
	_, r = sibling(second.SessionToken)
	r.problem(t, 409, "active-login-session-exists")
	require.Equal(t, 200, s.resume(first.SessionToken).status, "a login ended for another")
	for _, bad := range []string{"", "x", strings.Repeat("A", 64)} {
		_, r = sibling(bad)
		require.Contains(t, []int{400, 401}, r.status, "%q", bad)
	}
}

func TestLoginsEndWithWhatTheyStandFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	exec := func(sql string) {
		_, err := s.store.Pool().Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	for what, sql := range map[string][2]string{
		"the user":    {`UPDATE users SET status = 'inactive'`, `UPDATE users SET status = 'active'`},
		"the domain":  {`UPDATE domains SET is_active = false`, `UPDATE domains SET is_active = true`},
		"the keypair": {`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET is_active = true`},
		"a password":  {`UPDATE users SET password_changed_at = now() + interval '1 s'`, ``},
	} {
		l := s.login("")
		exec(sql[0])
		require.Equal(t, 401, s.resume(l.SessionToken).status, what)
		if sql[1] != "" {
			exec(sql[1])
			require.Equal(t, 401, s.resume(l.SessionToken).status, "%s is back, its logins are not", what)
			require.Eventually(t, func() bool { return s.call("GET", "/auth", "").status == 200 }, patience, 5*time.Millisecond)
		}
	}
	l := s.login("")
	fresh := "another-password-1"
	a := s.call("POST", "/auth/update-password", fmt.Sprintf(`{"old_password":%q,"new_password":%q,"new_password2":%q}`,
		s.admin.Password.Reveal(), fresh, fresh))
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, 401, s.resume(l.SessionToken).status)
	s.admin.Password = seal.Secret(fresh)
	s.login("")
}

func TestConcurrentLoginsAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(n *nouns.Deps, _ *httpapi.Deps) { n.LoginPolicy.Concurrent = 2 })
	first, second := s.login(""), s.login("")
	msg := s.post("/auth/authorize", s.loginBody("")).problem(t, 409, "active-login-session-exists")
	require.Contains(t, msg, "2 logins")
	s.login(`,"force":true`)
	require.Equal(t, 401, s.resume(first.SessionToken).status, "the oldest login made room")
	require.Equal(t, 200, s.resume(second.SessionToken).status)
	// The user's policy comes before the manager's bound.
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE user_resource_policies SET max_concurrent_logins = 3`)
	require.NoError(t, err)
	s.login("")
	s.post("/auth/authorize", s.loginBody("")).problem(t, 409, "active-login-session-exists")
}

// factor asks for a code.
type factor struct{ seen *[]map[string]string }

func (f factor) Check(_ context.Context, _ authz.Actor, answers map[string]string) error {
	*f.seen = append(*f.seen, answers)
	switch answers["otp"] {
	case "":
		return tenancy.OTPNeeded()
	case "123456":
		return nil
	}
	return tenancy.OTPWrong()
}

func TestALoginAsksSecondFactors(t *testing.T) {
	t.Parallel()
	var seen []map[string]string
	s := newSite(t, func(n *nouns.Deps, _ *httpapi.Deps) { n.SecondFactors = []tenancy.SecondFactor{factor{&seen}} })
	require.Equal(t, "OTP not provided", s.post("/auth/authorize", s.loginBody("")).problem(t, 401, "require-totp-authentication"))
	require.Equal(t, "Invalid TOTP code provided", s.post("/auth/authorize", s.loginBody(`,"otp":"1"`)).problem(t, 401, "auth-failed"))
	s.login(`,"otp":"123456","force":true`)
	require.Equal(t, []map[string]string{{}, {"otp": "1"}, {"otp": "123456"}}, seen)
	wrong := strings.Replace(s.loginBody(`,"otp":"123456"`), s.admin.Password.Reveal(), "no", 1)
	s.post("/auth/authorize", wrong).problem(t, 401, "auth-failed")
	require.Len(t, seen, 3, "codes are not asked before the password is right")
}

func TestCodesAreGuessedNoLongerThanPasswords(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(n *nouns.Deps, _ *httpapi.Deps) {
		n.SecondFactors = []tenancy.SecondFactor{factor{new([]map[string]string)}}
	})
	for range 10 {
		s.post("/auth/authorize", s.loginBody(`,"otp":"1"`)).problem(t, 401, "auth-failed")
	}
	require.Equal(t, 429, s.post("/auth/authorize", s.loginBody(`,"otp":"1"`)).status)
	require.Equal(t, 429, s.post("/auth/authorize", s.loginBody(`,"otp":"123456"`)).status)
}

func TestPasswordsExpire(t *testing.T) {
	t.Parallel()
	c := &simpleClock{}
	s := newSite(t, withClock(c), func(n *nouns.Deps, _ *httpapi.Deps) { n.LoginPolicy.PasswordMaxAge = 24 * time.Hour })
	l := s.login("")
	c.advance(25 * time.Hour)
	require.Contains(t, s.post("/auth/authorize", s.loginBody("")).problem(t, 401, "password-expired"), "Password expired on 20")
	replace := func(current, fresh string) answer {
		return s.post("/auth/update-password-no-auth", fmt.Sprintf(`{"domain":"default","username":%q,"current_password":%q,"new_password":%q}`,
			s.admin.Email, current, fresh))
	}
	old := s.admin.Password.Reveal()
	replace("wrong", "good-enough-1").problem(t, 401, "auth-failed")
	for _, bad := range []string{"short", old, strings.Repeat("a", 12), strings.Repeat("x", 2000)} {
		require.Equal(t, 400, replace(old, bad).status, "%.20s", bad)
	}
	// Time as the database sees it does not follow the test's clock.
	c.ahead.Store(0)
	a := replace(old, "good-enough-1")
	require.Equal(t, 201, a.status, a.body)
	var done api.PasswordReplaced
	a.into(t, &done)
	require.WithinDuration(t, time.Now(), done.ChangedAt, time.Minute)
	require.Equal(t, 401, s.resume(l.SessionToken).status)
	s.admin.Password = "good-enough-1"
	s.login("")
}

func TestPasswordsThatDoNotExpireAreNotReplacedUnsigned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const body = `{"domain":"default","username":%q,"current_password":%q,"new_password":"good-1-good"}`
	s.post("/auth/update-password-no-auth", fmt.Sprintf(body, s.admin.Email, s.admin.Password.Reveal())).problem(t, 400, "generic-bad-request")
}

func TestUsersSignOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := s.login("")
	body := func(email, password string) string { return fmt.Sprintf(`{"email":%q,"password":%q}`, email, password) }
	s.call("POST", "/auth/signout", body("other@x.org", "x")).problem(t, 400, "invalid-api-params")
	s.call("POST", "/auth/signout", body(s.admin.Email, "x")).problem(t, 401, "auth-failed")
	msg := s.call("POST", "/auth/signout", body(s.admin.Email, s.admin.Password.Reveal())).problem(t, 400, "generic-bad-request")
	require.Contains(t, msg, "last active superadmin")
	require.Equal(t, 200, s.resume(l.SessionToken).status)
}
