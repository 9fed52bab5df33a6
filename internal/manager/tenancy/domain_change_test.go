package tenancy_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

// A domain has what it was given; a new name is for one that nothing belongs to.
func TestDomainsAreMadeAndChanged(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	d, err := w.Tenancy.CreateDomain(ctx, w.Admin, "physics", tenancy.DomainProps{Description: new("Physics"),
		TotalSlots:   map[string]string{"cpu": "4", "mem": "8g", "cuda.shares": "1.5", "disk": "Infinity"},
		AllowedHosts: map[string]any{"p:v": []string{"mount-in-session"}}, AllowedRegistries: &[]string{"r.example"},
		IntegrationID: new("ldap-7")})
	require.NoError(t, err)
	require.Equal(t, "4", d.TotalSlots.Wire()["cpu"])
	require.Equal(t, "8589934592", d.TotalSlots.Wire()["mem"])
	require.NotContains(t, d.TotalSlots.Wire(), "disk")
	require.Contains(t, d.AllowedHosts, "p:v")
	require.Equal(t, []string{"r.example"}, d.AllowedRegistries)

	require.NoError(t, w.Tenancy.ModifyDomain(ctx, w.Admin, "physics", tenancy.DomainProps{TotalSlots: map[string]string{}}))
	require.NoError(t, w.Tenancy.ModifyDomain(ctx, w.Admin, "physics", tenancy.DomainProps{Name: new("Физика.1")}))
	d, err = w.Tenancy.GetDomain(ctx, w.Admin, "Физика.1")
	require.NoError(t, err)
	require.Empty(t, d.TotalSlots)
	require.Equal(t, "Physics", *d.Description, "what is not named stays")
	made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Domain = new("Физика.1") })
	err = w.Tenancy.ModifyDomain(ctx, w.Admin, "Физика.1", tenancy.DomainProps{Name: new("physics")})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = w.Tenancy.CreateDomain(ctx, w.Admin, "Физика.1", tenancy.DomainProps{})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// Who belongs to a domain that is not active is let in nowhere, and is again when it is.
func TestDeletedDomainsShutTheirUsersOut(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, err := w.Tenancy.CreateDomain(ctx, w.Admin, "physics", tenancy.DomainProps{})
	require.NoError(t, err)
	_, ada := made(t, w, "ada@x", func(p *tenancy.UserProps) { p.Domain = new("physics") })
	in := func() bool {
		_, _, err := w.Tenancy.Authenticate(ctx, ada.AccessKey)
		require.True(t, err == nil || fault.Is(err, fault.Unauthenticated), "%v", err)
		return err == nil
	}
	require.NoError(t, w.Tenancy.DeleteDomain(ctx, w.Admin, "physics"))
	managertest.Soon(t, "the key is refused", func() bool { return !in() })
	_, err = w.Tenancy.Authorize(ctx, "physics", "ada@x", "correct horse")
	require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
	require.NoError(t, w.Tenancy.ModifyDomain(ctx, w.Admin, "physics", tenancy.DomainProps{Active: new(true)}))
	managertest.Soon(t, "the key is let in", in)
}

// The first domain stays as it is, nobody shuts themselves out, and a superadmin who is let in stays, whoever acts at once.
func TestDomainsThatStay(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, err := w.Tenancy.CreateDomain(ctx, w.Admin, "ops", tenancy.DomainProps{})
	require.NoError(t, err)
	_, second := made(t, w, "root2@x", as(authz.RoleSuperadmin), func(p *tenancy.UserProps) { p.Domain = new("ops") })
	for name, try := range map[string]func() error{
		"deactivate the first domain": func() error { return w.Tenancy.DeleteDomain(ctx, second, "default") },
		"rename the first domain": func() error {
			return w.Tenancy.ModifyDomain(ctx, second, "default", tenancy.DomainProps{Name: new("other")})
		},
		"deactivate one's own domain": func() error { return w.Tenancy.DeleteDomain(ctx, second, "ops") },
	} {
		require.True(t, fault.Is(try(), fault.Conflict), "%s: %v", name, try())
	}
	// At once: the domain of the second superadmin ends, and the first one is made a user.
	var running sync.WaitGroup
	var errs [2]error
	running.Go(func() { errs[0] = w.Tenancy.DeleteDomain(ctx, w.Admin, "ops") })
	running.Go(func() {
		errs[1] = w.Tenancy.ModifyUser(ctx, second, w.Admin.Email, tenancy.UserProps{Role: new(authz.RoleUser)})
	})
	running.Wait()
	require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v, %v", errs[0], errs[1])
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM users u JOIN domains d ON d.name = u.domain_name
WHERE u.role = 'superadmin' AND u.status = 'active' AND d.is_active) = 1; END $$`)
}

// What cannot be a domain is refused with words, and leaves nothing.
func TestDomainsThatCannotBe(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	for _, name := range []string{"", " x", "x ", "a/b", "a\nb", "a\x00b", "-x", ".x", "a:b", strings.Repeat("x", 65),
		"'; DROP TABLE users; --",
		"00000000-0000-4000-8000-000000000001", "a b", "\u202ea", "x\xff"} {
		_, err := w.Tenancy.CreateDomain(ctx, w.Admin, name, tenancy.DomainProps{})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q: %v", name, err)
	}
	for name, p := range map[string]tenancy.DomainProps{
		"no amount":       {TotalSlots: map[string]string{"cpu": "many"}},
		"less than zero":  {TotalSlots: map[string]string{"cpu": "-1"}},
		"no slot":         {TotalSlots: map[string]string{"": "1"}},
		"no registry":     {AllowedRegistries: &[]string{"r.example/team"}},
		"long":            {Description: new(strings.Repeat("x", 513))},
		"no text":         {Description: new("a\x00b")},
		"many registries": {AllowedRegistries: new(make([]string, 101))},
	} {
		_, err := w.Tenancy.CreateDomain(ctx, w.Admin, "new", p)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
		err = w.Tenancy.ModifyDomain(ctx, w.Admin, "default", p)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
	}
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM domains) = 1; END $$`)
	err := w.Tenancy.ModifyDomain(ctx, w.Admin, "nowhere", tenancy.DomainProps{})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	// Administrators of a domain change nothing of what their domain may have.
	_, boss := made(t, w, "boss@x", as(authz.RoleAdmin))
	err = w.Tenancy.ModifyDomain(ctx, boss, "default", tenancy.DomainProps{TotalSlots: map[string]string{}})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Tenancy.CreateUser(ctx, boss, "x@x", tenancy.UserProps{Password: new(seal.Secret("correct horse")), Domain: new("nowhere")})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
}
