package tenancy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/token"
	"berth.dev/berth/internal/testkit/await"
)

// leader is a user called eve who administers a project.
func leader(t *testing.T, w *managertest.World, role authz.Role) authz.Actor {
	t.Helper()
	projects, err := w.Tenancy.ListProjects(t.Context(), w.Admin, "default")
	require.NoError(t, err)
	ids := []cluster.ProjectID{projects[0].ID}
	_, eve := made(t, w, "eve@x", as(role), func(p *tenancy.UserProps) { p.Projects = &ids })
	w.Exec(`UPDATE project_members SET is_admin = true WHERE user_id = $1`, string(eve.UserID))
	require.Equal(t, ids, eve.Projects)
	eve.Leads = ids
	return eve
}

// Whoever loses their role, their account, their keypair, their API token or a project while their request waits has not done what it asked
// for: else an administrator who is being removed makes the next one.
func TestRightsThatEndDuringARequest(t *testing.T) {
	t.Parallel()
	const eves = `(SELECT id FROM users WHERE email = 'eve@x')`
	for what, c := range map[string]struct {
		role  authz.Role
		token bool
		sql   []string
	}{
		"role":    {authz.RoleSuperadmin, false, []string{`UPDATE users SET role = 'user' WHERE email = 'eve@x'`}},
		"account": {authz.RoleSuperadmin, false, []string{`UPDATE users SET status = 'inactive' WHERE email = 'eve@x'`}},
		"keypair": {authz.RoleSuperadmin, false, []string{`UPDATE keypairs SET is_active = false WHERE user_id = ` + eves}},
		"domain": {authz.RoleSuperadmin, false, []string{`UPDATE domains SET is_active = false
    WHERE name = (SELECT domain_name FROM users WHERE email = 'eve@x')`}},
		"keypair that is deleted": {authz.RoleSuperadmin, false, []string{`UPDATE users SET main_access_key = NULL WHERE email = 'eve@x'`,
			`DELETE FROM keypairs WHERE user_id = ` + eves}},
		"keypair that ends": {authz.RoleSuperadmin, false, []string{`UPDATE keypairs SET expires_at = now() WHERE user_id = ` + eves}},
		"user who is purged": {authz.RoleSuperadmin, false, []string{`UPDATE users SET main_access_key = NULL WHERE email = 'eve@x'`,
			`DELETE FROM keypairs WHERE user_id = ` + eves, `DELETE FROM users WHERE email = 'eve@x'`}},
		"token taken back": {authz.RoleSuperadmin, true, []string{`DELETE FROM api_tokens`}},
		"token that ends":  {authz.RoleSuperadmin, true, []string{`UPDATE api_tokens SET expires_at = now()`}},
		"domain she moves from": {authz.RoleAdmin, false, []string{`DELETE FROM project_members WHERE user_id = ` + eves,
			`UPDATE users SET domain_name = 'other' WHERE email = 'eve@x'`}},
		"project":           {authz.RoleAdmin, false, []string{`DELETE FROM project_members WHERE user_id = ` + eves}},
		"project she leads": {authz.RoleAdmin, false, []string{`UPDATE project_members SET is_admin = false WHERE user_id = ` + eves}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := managertest.New(t)
			w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
			ctx := t.Context()
			eve := leader(t, w, c.role)
			if c.token {
				_, text, err := w.Tokens.Create(ctx, eve, token.Request{Name: "ci"})
				require.NoError(t, err)
				eve, err = w.Tokens.Authenticate(ctx, text)
				require.NoError(t, err)
			}
			bob, _ := made(t, w, "bob@x")
			tx, err := w.Store.Pool().Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }() // after the commit it does nothing
			_, err = tx.Exec(ctx, `SELECT 1 FROM users WHERE email = 'bob@x' FOR UPDATE`)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				ended <- w.Tenancy.ModifyUser(ctx, eve, bob.Email, tenancy.UserProps{FullName: new("Bob of eve")})
			}()
			managertest.Soon(t, "the request waits", func() bool { return storetest.Waiting(t, w.Store) > 0 })
			for _, sql := range c.sql {
				_, err = tx.Exec(ctx, sql)
				require.NoError(t, err)
			}
			require.NoError(t, tx.Commit(ctx))
			err = await.Value(t, ended)
			require.True(t, fault.Is(err, fault.Denied), "%v", err)
			require.Contains(t, err.Error(), "lost the right")
			after, err := w.Tenancy.GetUser(ctx, w.Admin, string(bob.ID))
			require.NoError(t, err)
			require.NotEqual(t, "Bob of eve", after.FullName)
			page, err := w.Audit.List(ctx, w.Admin, audit.Query{Filter: `action == "user.modify"`})
			require.NoError(t, err)
			require.Len(t, page.Items, 1)
			require.Equal(t, audit.Denied, page.Items[0].Result)
			if c.token {
				require.Equal(t, eve.Scope.Token, page.Items[0].Token)
			}
		})
	}
}

// What somebody does to themselves is no loss of a right during the request.
func TestWhoEndsTheirOwnRights(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	eve := leader(t, w, authz.RoleAdmin)
	me := &tenancy.MemberChange{Mode: tenancy.RemoveMembers, Users: []string{string(eve.UserID)}}
	require.NoError(t, w.Tenancy.ModifyProject(t.Context(), eve, string(eve.Projects[0]), tenancy.ProjectProps{Members: me}))
	err := w.Tenancy.UpdateFullName(t.Context(), eve, "", "Eve")
	require.True(t, fault.Is(err, fault.Denied), "by then it was somebody else: %v", err)
}
