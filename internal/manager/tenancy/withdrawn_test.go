package tenancy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/testkit/await"
)

// Whoever loses their role, their account or their keypair while their request waits has not done what it asked for: else an administrator
// who is being removed makes the next one.
func TestRightsThatEndDuringARequest(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"role":    `UPDATE users SET role = 'user' WHERE email = 'eve@x'`,
		"account": `UPDATE users SET status = 'inactive' WHERE email = 'eve@x'`,
		"keypair": `UPDATE keypairs SET is_active = false WHERE user_id = (SELECT id FROM users WHERE email = 'eve@x')`,
		"domain":  `UPDATE domains SET is_active = false WHERE name = (SELECT domain_name FROM users WHERE email = 'eve@x')`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := managertest.New(t)
			w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
			_, eve := made(t, w, "eve@x", as(authz.RoleSuperadmin), func(p *tenancy.UserProps) { p.Domain = new("other") })
			bob, _ := made(t, w, "bob@x")
			ctx := t.Context()
			tx, err := w.Store.Pool().Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }() // after the commit it does nothing
			_, err = tx.Exec(ctx, `SELECT 1 FROM users WHERE email = 'bob@x' FOR UPDATE`)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				ended <- w.Tenancy.ModifyUser(ctx, eve, bob.Email, tenancy.UserProps{Role: new(authz.RoleSuperadmin)})
			}()
			managertest.Soon(t, "the request waits", func() bool {
				var n int
				require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND wait_event_type = 'Lock'`).Scan(&n))
				return n > 0
			})
			_, err = tx.Exec(ctx, sql)
			require.NoError(t, err)
			require.NoError(t, tx.Commit(ctx))
			err = await.Value(t, ended)
			require.True(t, fault.Is(err, fault.Denied), "%v", err)
			after, err := w.Tenancy.GetUser(ctx, w.Admin, string(bob.ID))
			require.NoError(t, err)
			require.Equal(t, authz.RoleUser, after.Role)
			page, err := w.Audit.List(ctx, w.Admin, audit.Query{Filter: `action == "user.modify"`})
			require.NoError(t, err)
			require.Len(t, page.Items, 1)
			require.Equal(t, audit.Denied, page.Items[0].Result)
		})
	}
}
