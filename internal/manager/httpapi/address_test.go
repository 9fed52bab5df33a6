package httpapi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/tenancy"
)

// A user who may come from some addresses only is refused from all others: requests, streams, GraphQL and logins with a
// password alike. What a header says about the address counts for nothing.
func TestUsersComeFromAllowedAddresses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	allow := func(list any) {
		_, err := s.store.Pool().Exec(t.Context(), `UPDATE users SET allowed_client_ip = $1`, list)
		require.NoError(t, err)
	}
	targets := []string{
		"GET /auth",
		"GET /session/none",
		"GET /stream/session/none/execute",
		"GET /events/session?sessionName=*&scope=kernel",
		"POST /admin/gql",
		"GET /auth/my-ip",
	}
	for _, refused := range [][]string{{"10.0.0.0/8"}, {"junk"}, {"::1", "192.0.2.*"}} {
		allow(refused)
		for _, target := range targets {
			method, path := target[:len("GET")], target[len("GET "):]
			if target[0] == 'P' {
				method, path = "POST", target[len("POST "):]
			}
			r := s.request(method, path, "text/plain", "")
			r.Header.Set("X-Forwarded-For", "10.1.2.3")
			r.Header.Set("X-Real-IP", "10.1.2.3")
			api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
			require.Contains(t, s.send(r).problem(t, 401, "auth-failed"), "may not come from 127.0.0.1", "%s with %v", target, refused)
		}
		login := s.send(s.request("POST", "/auth/authorize", "application/json",
			`{"domain":"default","username":"`+tenancy.AdminEmail+`","password":"`+s.admin.Password.Reveal()+`"}`))
		login.problem(t, 401, "auth-failed")
		require.NotContains(t, login.body, s.admin.SecretKey.Reveal())

		// Who cannot sign learns nothing of the list.
		r := s.request("GET", "/auth", "text/plain", "")
		api.SignRequest(r, string(s.admin.AccessKey), "wrong", time.Now())
		require.NotContains(t, s.send(r).problem(t, 401, "auth-failed"), "may not come")
	}
	for _, fine := range []any{[]string{"10.0.0.0/8", "127.0.0.1"}, []string{"127.*.*.*"}, []string{}, nil} {
		allow(fine)
		require.Equal(t, 200, s.call("GET", "/auth", "").status, "%v", fine)
	}
}

// The rate of a keypair is what its row says.
func TestKeypairsHaveTheirOwnRate(t *testing.T) {
	t.Parallel()
	s := newSite(t, oneWindow)
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE keypairs SET rate_limit = 2`)
	require.NoError(t, err)
	require.Equal(t, 200, s.call("GET", "/auth", "").status)
	require.Equal(t, 200, s.call("GET", "/auth", "").status)
	s.call("GET", "/auth", "").problem(t, 429, "rate-limit-exceeded")
	_, err = s.store.Pool().Exec(t.Context(), `UPDATE keypairs SET rate_limit = 0`)
	require.NoError(t, err)
	require.Equal(t, 200, s.call("GET", "/auth", "").status, "0 is no limit")
}
