package tenancy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/tenancy"
)

// Policies of the three kinds are made, changed and deleted; one that somebody has is not, and who has it is said.
func TestPoliciesComeAndGo(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	made(t, w, "ada@x")
	project := projectOf(t, w)
	for kind, c := range map[string]struct {
		create, change, remove func(a authz.Actor, name string) error
		use                    func()
		who                    string
	}{
		"keypair": {
			func(a authz.Actor, name string) error {
				return w.Tenancy.CreateKeypairPolicy(ctx, a, name, tenancy.KeypairPolicyProps{MaxConcurrentSessions: new(2)})
			},
			func(a authz.Actor, name string) error {
				return w.Tenancy.ModifyKeypairPolicy(ctx, a, name, tenancy.KeypairPolicyProps{MaxConcurrentSessions: new(3)})
			},
			func(a authz.Actor, name string) error { return w.Tenancy.DeleteKeypairPolicy(ctx, a, name) },
			func() {
				w.Exec(`UPDATE keypairs k SET resource_policy = 'team' FROM users u WHERE u.id = k.user_id AND u.email = 'ada@x'`)
			}, "ada@x (AKIA",
		},
		"user": {
			func(a authz.Actor, name string) error {
				return w.Tenancy.CreateUserPolicy(ctx, a, name, tenancy.PolicyProps{MaxFolders: new(2)})
			},
			func(a authz.Actor, name string) error {
				return w.Tenancy.ModifyUserPolicy(ctx, a, name, tenancy.PolicyProps{MaxScopeBytes: new(int64(-1))})
			},
			func(a authz.Actor, name string) error { return w.Tenancy.DeleteUserPolicy(ctx, a, name) },
			func() { w.Exec(`UPDATE users SET resource_policy = 'team' WHERE email = 'ada@x'`) }, "ada@x",
		},
		"project": {
			func(a authz.Actor, name string) error {
				return w.Tenancy.CreateProjectPolicy(ctx, a, name, tenancy.PolicyProps{MaxNetworks: new(2)})
			},
			func(a authz.Actor, name string) error {
				return w.Tenancy.ModifyProjectPolicy(ctx, a, name, tenancy.PolicyProps{MaxFolders: new(5)})
			},
			func(a authz.Actor, name string) error { return w.Tenancy.DeleteProjectPolicy(ctx, a, name) },
			func() { w.Exec(`UPDATE projects SET resource_policy = 'team' WHERE id = $1`, string(project)) }, "default/default",
		},
	} {
		t.Run(kind, func(t *testing.T) {
			boss := w.Admin
			boss.Role = authz.RoleAdmin
			for _, do := range []func(authz.Actor, string) error{c.create, c.change, c.remove} {
				kindIs(t, fault.Denied, do(boss, "team"))
			}
			kindIs(t, fault.NotFound, c.change(w.Admin, "team"))
			kindIs(t, fault.NotFound, c.remove(w.Admin, "team"))
			for _, name := range []string{"", "a b", "a\nb", "a\x00", strings.Repeat("x", 65)} {
				kindIs(t, fault.Invalid, c.create(w.Admin, name))
			}
			require.NoError(t, c.create(w.Admin, "team"))
			kindIs(t, fault.Conflict, c.create(w.Admin, "team"))
			require.NoError(t, c.change(w.Admin, "team"))
			c.use()
			err := c.remove(w.Admin, "team")
			kindIs(t, fault.Conflict, err)
			require.Contains(t, err.Error(), c.who)
			kindIs(t, fault.Conflict, c.remove(w.Admin, "default"))
			require.NoError(t, c.create(w.Admin, "spare"))
			require.NoError(t, c.remove(w.Admin, "spare"))
		})
	}
}

// Limits that make no sense are refused, and nothing is made.
func TestPoliciesThatCannotBe(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	for i, p := range []tenancy.KeypairPolicyProps{
		{MaxConcurrentSessions: new(-1)}, {MaxContainers: new(0)}, {MaxPriority: new(101)}, {MaxPendingSessions: new(-2)},
		{DefaultForUnspecified: new("maybe")}, {TotalSlots: map[string]string{"cpu": "-1"}}, {TotalSlots: map[string]string{"cpu": "x"}},
	} {
		kindIs(t, fault.Invalid, w.Tenancy.CreateKeypairPolicy(ctx, w.Admin, fmt.Sprint("p", i), p))
	}
	for i, p := range []tenancy.PolicyProps{{MaxFolders: new(-1)}, {MaxScopeBytes: new(int64(-2))}} {
		kindIs(t, fault.Invalid, w.Tenancy.CreateUserPolicy(ctx, w.Admin, fmt.Sprint("p", i), p))
		kindIs(t, fault.Invalid, w.Tenancy.CreateProjectPolicy(ctx, w.Admin, fmt.Sprint("p", i), p))
	}
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM keypair_resource_policies) = 1
    AND (SELECT count(*) FROM user_resource_policies) = 1; END $$`)
	// -1 lifts what null cannot: a missing value changes nothing.
	require.NoError(t, w.Tenancy.ModifyKeypairPolicy(ctx, w.Admin, "default", tenancy.KeypairPolicyProps{MaxPendingSessions: new(4)}))
	require.NoError(t, w.Tenancy.ModifyKeypairPolicy(ctx, w.Admin, "default", tenancy.KeypairPolicyProps{MaxPendingSessions: new(-1)}))
	p, err := w.Tenancy.GetKeypairPolicy(ctx, w.Admin, "")
	require.NoError(t, err)
	require.Nil(t, p.MaxPendingSessions)
}
