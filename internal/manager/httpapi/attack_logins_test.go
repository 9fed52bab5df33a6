package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/audit"
)

// logged are entries of the audit log as lines, in the order in which they were written.
func (s *site) logged(where string) []string {
	s.t.Helper()
	require.NoError(s.t, s.nouns.Audit.WriteRefused(s.t.Context(), time.Now(), true))
	rows, err := s.store.Pool().Query(s.t.Context(), `SELECT concat_ws('|', action, object, result, reason, means, access_key, acting_for,
    attempts) FROM audit_log WHERE `+where+` ORDER BY id`)
	require.NoError(s.t, err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var line string
		require.NoError(s.t, rows.Scan(&line))
		out = append(out, line)
	}
	require.NoError(s.t, rows.Err())
	return out
}

// Every proof of who somebody is that is refused stands in the audit log, with the account where there is one, the means and the address;
// what opened a login does, too, with its means. What asks nobody for a proof does not.
func TestRefusedProofsAreRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	email, key := s.admin.Email, string(s.admin.AccessKey)
	wrong := func(account string) string {
		return fmt.Sprintf(`{"type":"keypair","username":%q,"password":"hunter2 of the hills"}`, account)
	}
	signed := func(access, secret string) {
		r := s.request("GET", "/auth/test", "", "")
		api.SignRequest(r, access, secret, time.Now())
		require.Equal(t, 401, s.send(r).status)
	}
	s.login("")
	for range 3 {
		require.Equal(t, 401, s.post("/auth/authorize", wrong(email)).status)
	}
	require.Equal(t, 401, s.post("/auth/authorize", wrong("hunter2 of the hills")).status)
	signed(key, "wrong")
	signed("AKIAAAAAAAAAAAAAAAAA", "wrong")
	require.Equal(t, 401, s.with("berth_"+strings.Repeat("A", 43), "GET", "/auth/test", "").status)
	require.Equal(t, 401, s.post("/totp/anon", `{"registration_token":"x"}`).status)
	require.Equal(t, 401, s.post("/auth/reset-password/confirm", `{"token":"x","new_password":"correct horse of the hills"}`).status)
	require.Equal(t, 401, s.call("POST", "/auth/signout", fmt.Sprintf(`{"username":%q,"password":"x"}`, email)).status)
	// Nobody has tried to prove anything here.
	require.Equal(t, 401, s.send(s.request("GET", "/auth/test", "", "")).status)
	s.resume(strings.Repeat("A", 64)).problem(t, 401, "login-session-expired")
	require.Equal(t, 404, s.call("DELETE", "/auth/logins/nonsense", "").status)

	require.ElementsMatch(t, []string{
		"login.open|" + email + "|denied|auth-failed|password|||3",
		"login.open||denied|auth-failed|password|||1",
		"request.authenticate|" + key + "|denied|auth-failed|signature|||1",
		"request.authenticate||denied|auth-failed|signature|||1",
		"request.authenticate||denied|auth-failed|api-token|||1",
		"user.enrol-otp||denied|auth-failed|registration-token|||1",
		"user.reset-password||denied|auth-failed|letter|||1",
		"user.sign-out|" + email + "|denied|auth-failed|password|||1",
	}, s.logged(`means <> '' AND result = 'denied'`))
	require.Equal(t, []string{"login.open|" + email + "|done||password|" + key + "||1"}, s.logged(`action = 'login.open' AND result = 'done'`))
	var addresses int
	require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE means <> '' AND result = 'denied'
    AND (address <> '127.0.0.1' OR request_id = '' OR user_id <> '')`).Scan(&addresses))
	require.Zero(t, addresses)
	for _, table := range []string{"audit_log", "audit_changes"} {
		var typed int
		require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM `+table+` x WHERE x::text LIKE '%hunter2%'`).Scan(&typed))
		require.Zero(t, typed, table)
	}
}

// A good credential from an address that the user may not come from is recorded.
func TestGoodCredentialsFromElsewhereAreRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ci := s.token(`{"name":"ci"}`)
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE users SET allowed_client_ip = '{10.9.9.9}' WHERE email = $1`, s.admin.Email)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.call("GET", "/auth/test", "").status == http.StatusUnauthorized }, patience,
		10*time.Millisecond)
	require.Equal(t, 401, s.with(ci.Secret, "GET", "/auth/test", "").status)
	require.Equal(t, 401, s.post("/auth/authorize", s.loginBody("")).status)
	key := string(s.admin.AccessKey)
	got := s.logged(`means <> '' AND result = 'denied'`)
	require.Len(t, got, 3)
	for _, prefix := range []string{"request.authenticate|" + key + "|denied|address-not-allowed|signature|",
		"request.authenticate|" + key + "|denied|address-not-allowed|api-token|",
		"login.open|" + s.admin.Email + "|denied|auth-failed|password|"} {
		require.True(t, strings.Contains(strings.Join(got, "\n"), prefix), "%s in %v", prefix, got)
	}
}

// Whoever asks for something on behalf of another keypair stands in the record with both, also when it is refused.
func TestBothIdentitiesAreRecorded(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	bob, eve := c.user("bob", "user", true), c.user("eve", "user", true)
	key, root, eves := string(bob.admin.AccessKey), string(c.admin.AccessKey), string(eve.admin.AccessKey)
	create := `{"image":"berth/python:1.0","session_name":"sess-1","owner_access_key":"` + key + `","enqueueOnly":true,` +
		`"config":{"resources":{"cpu":"1","mem":"256m"}}}`
	owner := `"owner_access_key":"` + key + `"`
	file := `{"path":".vimrc","permission":"644","data":"x",` + owner + `}`
	for _, r := range [][2]string{
		{"POST /session", create},
		{"POST /session/sess-1/rename?owner_access_key=" + key, `{"name":"sess-2"}`},
		{"PATCH /session/sess-1?owner_access_key=" + key, ""},
		{"DELETE /session/sess-1?owner_access_key=" + key, ""},
		{"POST /session/sess-1/commit?owner_access_key=" + key, ""},
		{"POST /session/sess-1/start-service", `{"app":"jupyter",` + owner + `}`},
		{"POST /session/sess-1/shutdown-service", `{"service_name":"jupyter","app":"jupyter",` + owner + `}`},
		{"POST /session/sess-1/keep-alive", `{"for":"1h",` + owner + `}`},
		{"POST /template/session", `{"payload":{"api_version":"6","kind":"taskTemplate","metadata":{"name":"t"},` +
			`"spec":{"kernel":{"image":"berth/python:1.0","architecture":"x86_64"}}},` + owner + `}`},
		{"POST /user-config/dotfiles", file},
		{"PATCH /user-config/dotfiles", file},
		{"DELETE /user-config/dotfiles?path=.vimrc&owner_access_key=" + key, ""},
	} {
		method, target, _ := strings.Cut(r[0], " ")
		a := eve.call(method, target, r[1])
		require.Contains(t, []int{403, 404}, a.status, "%s: %s", r[0], a.body)
	}
	got := c.logged(`access_key = '` + eves + `' AND acting_for = '` + key + `' AND result = 'denied'`)
	require.Len(t, got, 12, "%v", got)
	require.Empty(t, c.logged(`access_key = '`+eves+`' AND acting_for <> '`+key+`'`))

	require.Equal(t, 200, c.call("POST", "/user-config/dotfiles", file).status)
	made := c.call("POST", "/session", create)
	require.Contains(t, []int{200, 201}, made.status, made.body)
	require.Equal(t, 200, c.call("DELETE", "/session/sess-1?owner_access_key="+key, "").status)
	require.Len(t, c.logged(`access_key = '`+root+`' AND acting_for = '`+key+`' AND result = '`+audit.Done+`'
    AND action IN ('dotfile.create', 'session.create', 'session.destroy')`), 3)
	require.Empty(t, c.logged(`access_key = '`+key+`'`), "bob has done nothing")
}

// The record names the API token of a request, also when its scope is why it is refused, and after it was taken back.
func TestTheTokenOfARequestIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	all, reads := s.token(`{"name":"all"}`), s.token(`{"name":"reads","read_only":true}`)
	require.Equal(t, 200, s.with(all.Secret, "POST", "/auth/update-full-name", `{"full_name":"A"}`).status)
	require.Equal(t, 403, s.with(reads.Secret, "POST", "/manager/announcement", `{"enabled":true,"message":"x"}`).status)
	require.Equal(t, 204, s.call("DELETE", "/auth/tokens/"+all.ID, "").status)
	require.Equal(t, 200, s.call("POST", "/auth/update-full-name", `{"full_name":"B"}`).status)
	require.Len(t, s.logged(`action = 'user.rename' AND token = '`+all.ID+`'`), 1)
	require.Len(t, s.logged(`action = 'user.rename' AND token = ''`), 1)
	require.Len(t, s.logged(`result = 'denied' AND token = '`+reads.ID+`'`), 1)
	require.Contains(t, s.call("GET", "/audit", "").body, `"token":"`+all.ID+`"`)
}
