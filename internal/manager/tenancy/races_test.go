package tenancy_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

// atOnce runs things beside each other and returns what became of them.
func atOnce(things ...func() error) []error {
	var running sync.WaitGroup
	errs := make([]error, len(things))
	for i, thing := range things {
		running.Go(func() { errs[i] = thing() })
	}
	running.Wait()
	return errs
}

// Two administrators who delete the same thing at once: it is gone, and whoever comes second is told or finds it done. Nobody gets an
// internal error.
func TestTwoDeletionsAtOnce(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	made(t, w, "ada@x")
	k, err := w.Tenancy.CreateKeypair(ctx, w.Admin, "ada@x", tenancy.KeypairProps{})
	require.NoError(t, err)
	_, err = w.Tenancy.CreateDomain(ctx, w.Admin, "physics", tenancy.DomainProps{})
	require.NoError(t, err)
	lasers, err := w.Tenancy.CreateProject(ctx, w.Admin, "lasers", tenancy.ProjectProps{})
	require.NoError(t, err)
	require.NoError(t, w.Tenancy.CreateKeypairPolicy(ctx, w.Admin, "spare", tenancy.KeypairPolicyProps{}))
	require.NoError(t, w.Tenancy.CreateUserPolicy(ctx, w.Admin, "spare", tenancy.PolicyProps{}))
	require.NoError(t, w.Tenancy.CreateProjectPolicy(ctx, w.Admin, "spare", tenancy.PolicyProps{}))
	there := func(sql string) (n int) {
		require.NoError(t, w.Store.Pool().QueryRow(ctx, "SELECT count(*) FROM "+sql).Scan(&n))
		return n
	}
	for _, c := range []struct {
		remove func() error
		left   string
		again  bool // a second one changes nothing; otherwise it finds nothing
	}{
		{func() error { return w.Tenancy.DeleteKeypair(ctx, w.Admin, k.AccessKey) },
			"keypairs WHERE deleted_at IS NULL AND access_key = '" + string(k.AccessKey) + "'", false},
		{func() error { return w.Tenancy.DeleteUser(ctx, w.Admin, "ada@x") }, "users WHERE status = 'active' AND email = 'ada@x'", true},
		{func() error { return w.Tenancy.DeleteProject(ctx, w.Admin, string(lasers.ID)) }, "projects WHERE is_active AND name = 'lasers'", true},
		{func() error { return w.Tenancy.DeleteDomain(ctx, w.Admin, "physics") }, "domains WHERE is_active AND name = 'physics'", true},
		{func() error { return w.Tenancy.DeleteKeypairPolicy(ctx, w.Admin, "spare") },
			"keypair_resource_policies WHERE name = 'spare'", false},
		{func() error { return w.Tenancy.DeleteUserPolicy(ctx, w.Admin, "spare") }, "user_resource_policies WHERE name = 'spare'", false},
		{func() error { return w.Tenancy.DeleteProjectPolicy(ctx, w.Admin, "spare") }, "project_resource_policies WHERE name = 'spare'", false},
	} {
		require.Equal(t, 1, there(c.left), c.left)
		done := 0
		for _, err := range atOnce(c.remove, c.remove, c.remove) {
			if err == nil {
				done++
				continue
			}
			require.True(t, fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict), "%s: %v", c.left, err)
		}
		require.Zero(t, there(c.left), c.left)
		if c.again {
			require.Equal(t, 3, done, c.left)
		} else {
			require.Equal(t, 1, done, c.left)
		}
	}
}

// A policy that is deleted while somebody gets it: either of the two is refused, and nobody is left with a policy that is not there.
func TestAPolicyIsDeletedOrGiven(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	made(t, w, "ada@x")
	_, err := w.Tenancy.CreateProject(ctx, w.Admin, "lasers", tenancy.ProjectProps{})
	require.NoError(t, err)
	key := w.Admin.AccessKey
	for range 5 {
		require.NoError(t, w.Tenancy.CreateKeypairPolicy(ctx, w.Admin, "spare", tenancy.KeypairPolicyProps{}))
		require.NoError(t, w.Tenancy.CreateUserPolicy(ctx, w.Admin, "spare", tenancy.PolicyProps{}))
		require.NoError(t, w.Tenancy.CreateProjectPolicy(ctx, w.Admin, "spare", tenancy.PolicyProps{}))
		for what, race := range map[string][2]func(policy string) error{
			"keypair": {func(p string) error {
				return w.Tenancy.ModifyKeypair(ctx, w.Admin, key, tenancy.KeypairProps{ResourcePolicy: &p})
			},
				func(p string) error { return w.Tenancy.DeleteKeypairPolicy(ctx, w.Admin, p) }},
			"user": {func(p string) error {
				return w.Tenancy.ModifyUser(ctx, w.Admin, "ada@x", tenancy.UserProps{ResourcePolicy: &p})
			},
				func(p string) error { return w.Tenancy.DeleteUserPolicy(ctx, w.Admin, p) }},
			"project": {func(p string) error {
				return w.Tenancy.ModifyProject(ctx, w.Admin, "lasers", tenancy.ProjectProps{ResourcePolicy: &p})
			},
				func(p string) error { return w.Tenancy.DeleteProjectPolicy(ctx, w.Admin, p) }},
		} {
			errs := atOnce(func() error { return race[0]("spare") }, func() error { return race[1]("spare") })
			require.True(t, (errs[0] == nil) != (errs[1] == nil), "%s: %v", what, errs)
			for _, err := range errs {
				require.True(t, err == nil || fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict), "%s: %v", what, err)
			}
			require.NoError(t, race[0]("default"))
			if errs[1] != nil {
				require.NoError(t, race[1]("spare"))
			}
		}
	}
}

// Somebody is made in a domain, or added to a project, while it is closed: what follows is what would have followed one after the other.
func TestAClosingDomainKeepsOutWhoComes(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, err := w.Tenancy.CreateDomain(ctx, w.Admin, "physics", tenancy.DomainProps{})
	require.NoError(t, err)
	errs := atOnce(
		func() error { return w.Tenancy.DeleteDomain(ctx, w.Admin, "physics") },
		func() error {
			_, err := w.Tenancy.CreateUser(ctx, w.Admin, "ada@x",
				tenancy.UserProps{Domain: new("physics"), Password: new(seal.Secret("correct horse"))})
			return err
		})
	require.NoError(t, errs[0])
	managertest.Soon(t, "whoever came is not let in", func() bool {
		_, err := w.Tenancy.Authorize(context.WithoutCancel(ctx), "physics", "ada@x", "correct horse")
		return fault.Is(err, fault.Unauthenticated)
	})
}
