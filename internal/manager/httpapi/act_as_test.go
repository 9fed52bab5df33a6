package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// A superadmin does as somebody else what that user may do, and no more; the record names both.
func TestActingAsAnotherUser(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	bob, eve := c.user("bob", "user", true), c.user("eve", "user", true)
	var id, root string
	require.NoError(t, c.store.Pool().QueryRow(t.Context(), `SELECT user_id::text FROM keypairs WHERE access_key = $1`,
		string(bob.admin.AccessKey)).Scan(&id))
	require.NoError(t, c.store.Pool().QueryRow(t.Context(), `SELECT user_id::text FROM keypairs WHERE access_key = $1`, c.admin.AccessKey).
		Scan(&root))
	_, err := c.store.Pool().Exec(t.Context(), `UPDATE users SET main_access_key = $1 WHERE id = $2`, string(bob.admin.AccessKey), id)
	require.NoError(t, err)
	ask := func(access, secret, as, method, target, body string) answer {
		r := c.request(method, target, "application/json", body)
		for one := range strings.SplitSeq(as, "|") {
			r.Header.Add("X-BackendAI-Act-As", one)
		}
		api.SignRequest(r, access, secret, time.Now())
		return c.send(r)
	}
	admin := func(as, method, target, body string) answer {
		return ask(string(c.admin.AccessKey), c.admin.SecretKey.Reveal(), as, method, target, body)
	}
	require.Contains(t, admin(id, "GET", "/auth/role", "").body, `"global_role":"user"`)
	admin(id, "POST", "/manager/announcement", `{"enabled":true,"message":"x"}`).problem(t, http.StatusForbidden, "generic-forbidden")
	require.Equal(t, 200, admin(id, "POST", "/auth/update-full-name", `{"full_name":"Bob"}`).status)
	var email, key, acting string
	require.NoError(t, c.store.Pool().QueryRow(t.Context(),
		`SELECT email, access_key, acting_for FROM audit_log WHERE action = 'user.rename' AND result = 'done'`).Scan(&email, &key, &acting))
	require.Equal(t, string(c.admin.AccessKey), key)
	require.Equal(t, string(bob.admin.AccessKey), acting)

	// What proves who somebody is stays theirs.
	admin(id, "POST", "/auth/tokens", `{"name":"x"}`).problem(t, http.StatusForbidden, "generic-forbidden")
	admin(id, "POST", "/totp", "").problem(t, http.StatusForbidden, "generic-forbidden")
	superadmin, _, err := c.nouns.Tenancy.Authenticate(t.Context(), c.admin.AccessKey)
	require.NoError(t, err)
	asBob, err := c.nouns.Tenancy.ActAs(t.Context(), superadmin, id)
	require.NoError(t, err)
	k, err := c.nouns.Tenancy.GetKeypair(t.Context(), asBob, bob.admin.AccessKey)
	require.NoError(t, err)
	require.Empty(t, k.SecretKey, "with it the superadmin would be bob, and no record would tell")
	for _, bad := range []string{"", "x", id + "|" + id} {
		require.Equal(t, 400, admin(bad, "GET", "/auth/role", "").status, bad)
	}
	admin(root, "GET", "/auth/role", "").problem(t, http.StatusForbidden, "generic-forbidden")
	for _, as := range []string{id, "00000000-0000-4000-8000-000000000000"} {
		ask(string(eve.admin.AccessKey), eve.admin.SecretKey.Reveal(), as, "GET", "/auth/role", "").
			problem(t, http.StatusForbidden, "generic-forbidden")
	}
	_, err = c.store.Pool().Exec(t.Context(), `UPDATE users SET status = 'inactive' WHERE id = $1`, id)
	require.NoError(t, err)
	require.Equal(t, 400, admin(id, "GET", "/auth/role", "").status)
}
