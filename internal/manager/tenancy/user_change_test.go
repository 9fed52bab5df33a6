package tenancy_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

// made is a new user, and the actor that logs in as it.
func made(t *testing.T, w *managertest.World, email string, change ...func(*tenancy.UserProps)) (*tenancy.User, authz.Actor) {
	t.Helper()
	p := tenancy.UserProps{Password: new(seal.Secret("correct horse"))}
	for _, c := range change {
		c(&p)
	}
	u, err := w.Tenancy.CreateUser(t.Context(), w.Admin, email, p)
	require.NoError(t, err)
	k, err := w.Tenancy.Authorize(t.Context(), u.Domain, email, "correct horse")
	require.NoError(t, err)
	a, secret, err := w.Tenancy.Authenticate(t.Context(), k.AccessKey)
	require.NoError(t, err)
	require.Equal(t, k.SecretKey, secret)
	return u, a
}

func as(role authz.Role) func(*tenancy.UserProps) {
	return func(p *tenancy.UserProps) { p.Role = &role }
}

// A new user logs in with the password, has a keypair of their own and is a member of the projects that were named; the log tells it
// without the secrets.
func TestNewUsersLogIn(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	projects, err := w.Tenancy.ListProjects(t.Context(), w.Admin, "default")
	require.NoError(t, err)
	u, a := made(t, w, "ada@x", func(p *tenancy.UserProps) {
		p.Projects, p.FullName = &[]cluster.ProjectID{projects[0].ID, projects[0].ID}, new("Ada")
	})
	require.Equal(t, "ada@x", u.Username)
	require.Equal(t, "Ada", u.FullName)
	require.Equal(t, a.AccessKey, u.MainAccessKey)
	require.Equal(t, authz.RoleUser, a.Role)
	require.Equal(t, []cluster.ProjectID{projects[0].ID}, a.Projects)
	page, err := w.Audit.List(t.Context(), w.Admin, audit.Query{Filter: `action == "user.create"`})
	require.NoError(t, err)
	require.Len(t, page.Items, 1)
	require.Equal(t, 3, page.Items[0].ChangeCount, "the user, the keypair and the membership")
	for _, c := range page.Items[0].Changes {
		require.NotContains(t, string(c.After), "argon2id")
	}
}

// Who is not active any more is let in nowhere from then on; made active again, they are as before.
func TestInactiveUsersAreShutOutAtOnce(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, a := made(t, w, "ada@x")
	epoch := func() (n int64) {
		require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT coalesce(max(epoch), 0) FROM rights_epochs WHERE subject = $1`,
			"user:"+string(a.UserID)).Scan(&n))
		return n
	}
	before := epoch()
	require.NoError(t, w.Tenancy.DeleteUser(ctx, w.Admin, "ada@x"))
	managertest.Soon(t, "the key is refused", func() bool {
		_, _, err := w.Tenancy.Authenticate(ctx, a.AccessKey)
		return fault.Is(err, fault.Unauthenticated)
	})
	require.Greater(t, epoch(), before, "tokens of storage proxies end")
	_, err := w.Tenancy.Authorize(ctx, "default", "ada@x", "correct horse")
	require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
	require.NoError(t, w.Tenancy.ModifyUser(ctx, w.Admin, "ada@x", tenancy.UserProps{Status: new("active")}))
	managertest.Soon(t, "the key is let in", func() bool {
		_, _, err := w.Tenancy.Authenticate(ctx, a.AccessKey)
		return err == nil
	})
}

// An administrator of a domain administers its users, but gets nobody above themselves, touches no superadmin and no other domain.
func TestAdministratorsOfADomainStayBelow(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
	_, boss := made(t, w, "boss@x", as(authz.RoleAdmin))
	made(t, w, "root2@x", as(authz.RoleSuperadmin))
	made(t, w, "far@x", func(p *tenancy.UserProps) { p.Domain = new("other") })
	password := new(seal.Secret("correct horse"))

	_, err := w.Tenancy.CreateUser(ctx, boss, "ada@x", tenancy.UserProps{Password: password})
	require.NoError(t, err)
	require.NoError(t, w.Tenancy.ModifyUser(ctx, boss, "ada@x", tenancy.UserProps{FullName: new("Ada")}))
	for _, role := range []authz.Role{authz.RoleSuperadmin, authz.RoleMonitor} {
		_, err = w.Tenancy.CreateUser(ctx, boss, "new@x", tenancy.UserProps{Password: password, Role: &role})
		require.True(t, fault.Is(err, fault.Denied), "create %s: %v", role, err)
		err = w.Tenancy.ModifyUser(ctx, boss, "ada@x", tenancy.UserProps{Role: &role})
		require.True(t, fault.Is(err, fault.Denied), "make %s: %v", role, err)
		err = w.Tenancy.ModifyUser(ctx, boss, "boss@x", tenancy.UserProps{Role: &role})
		require.True(t, fault.Is(err, fault.Conflict), "become %s: %v", role, err)
	}
	_, err = w.Tenancy.CreateUser(ctx, boss, "new@x", tenancy.UserProps{Password: password, Domain: new("other")})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	for _, email := range []string{"root2@x", "far@x", "nobody@x"} {
		err = w.Tenancy.DeleteUser(ctx, boss, email)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", email, err)
		err = w.Tenancy.ModifyUser(ctx, boss, email, tenancy.UserProps{Password: password})
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", email, err)
	}
	err = w.Tenancy.ModifyUser(ctx, boss, "ada@x", tenancy.UserProps{Domain: new("other")})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// However many superadmins step back at once, one stays.
func TestOneSuperadminStays(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, second := made(t, w, "root2@x", as(authz.RoleSuperadmin))
	var running sync.WaitGroup
	var errs [2]error
	running.Go(func() { errs[0] = w.Tenancy.DeleteUser(ctx, w.Admin, "root2@x") })
	running.Go(func() {
		errs[1] = w.Tenancy.ModifyUser(ctx, second, w.Admin.Email, tenancy.UserProps{Role: new(authz.RoleUser)})
	})
	running.Wait()
	require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v, %v", errs[0], errs[1])
	for _, err := range errs {
		if err != nil {
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		}
	}
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM users WHERE role = 'superadmin' AND status = 'active') = 1; END $$`)
}

// What cannot be a user is refused with words, and leaves nothing.
func TestUsersThatCannotBe(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
	w.Exec(`INSERT INTO projects (id, name, domain_name, resource_policy)
VALUES ('00000000-0000-4000-8000-0000000000aa', 'p', 'other', 'default')`)
	_, other := made(t, w, "ada@x")
	foreign := []cluster.ProjectID{"00000000-0000-4000-8000-0000000000aa"}
	for name, c := range map[string]struct {
		email  string
		change func(*tenancy.UserProps)
		kind   fault.Kind
	}{
		"email in use":    {"ada@x", func(p *tenancy.UserProps) { p.Username = new("else") }, fault.Conflict},
		"name in use":     {"bob@x", func(p *tenancy.UserProps) { p.Username = new("ada@x") }, fault.Conflict},
		"no email":        {"bob", nil, fault.Invalid},
		"spaces":          {"b ob@x", nil, fault.Invalid},
		"a line break":    {"bob@x\n", nil, fault.Invalid},
		"short password":  {"bob@x", func(p *tenancy.UserProps) { p.Password = new(seal.Secret("short")) }, fault.Invalid},
		"no password":     {"bob@x", func(p *tenancy.UserProps) { p.Password = nil }, fault.Invalid},
		"no such role":    {"bob@x", func(p *tenancy.UserProps) { p.Role = new(authz.Role("owner")) }, fault.Invalid},
		"no such status":  {"bob@x", func(p *tenancy.UserProps) { p.Status = new("gone") }, fault.Invalid},
		"no such policy":  {"bob@x", func(p *tenancy.UserProps) { p.ResourcePolicy = new("none") }, fault.NotFound},
		"no such domain":  {"bob@x", func(p *tenancy.UserProps) { p.Domain = new("none") }, fault.NotFound},
		"foreign project": {"bob@x", func(p *tenancy.UserProps) { p.Projects = &foreign }, fault.NotFound},
		"no project's id": {"bob@x", func(p *tenancy.UserProps) { p.Projects = &[]cluster.ProjectID{"'; DROP"} }, fault.Invalid},
		"no network":      {"bob@x", func(p *tenancy.UserProps) { p.AllowedClientIP = &[]string{"10.0.0.0/99"} }, fault.Invalid},
	} {
		p := tenancy.UserProps{Password: new(seal.Secret("correct horse"))}
		if c.change != nil {
			c.change(&p)
		}
		_, err := w.Tenancy.CreateUser(ctx, w.Admin, c.email, p)
		require.Equal(t, c.kind, fault.KindOf(err), "%s: %v", name, err)
	}
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM users) = 2 AND (SELECT count(*) FROM keypairs) = 2; END $$`)
	for name, p := range map[string]tenancy.UserProps{
		"another's key": {MainAccessKey: &other.AccessKey},
	} {
		err := w.Tenancy.ModifyUser(ctx, w.Admin, w.Admin.Email, p)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
	}
}
