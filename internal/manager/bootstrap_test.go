package manager_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

func deps(t testing.TB, s *store.Store) tenancy.Deps {
	return tenancy.Deps{Store: s, Seal: managertest.Key(t), PasswordCost: managertest.PasswordCost,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func TestBootstrapMakesTheFirstRowsOnce(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	d := deps(t, s)
	ctx := t.Context()

	// Several managers start together.
	type result struct {
		c       tenancy.Credentials
		created bool
		err     error
	}
	results := make(chan result, 3)
	for range 3 {
		go func() {
			c, created, err := manager.Bootstrap(ctx, d)
			results <- result{c, created, err}
		}()
	}
	var made tenancy.Credentials
	var all []result
	for range 3 {
		r := <-results
		require.NoError(t, r.err)
		if r.created {
			require.Empty(t, made.AccessKey, "two managers made rows")
			made = r.c
		}
		all = append(all, r)
	}
	require.Regexp(t, `^AKIA[A-Z2-7]{16}$`, string(made.AccessKey))
	require.Regexp(t, `^[A-Za-z0-9_-]{40}$`, made.SecretKey.Reveal())
	require.GreaterOrEqual(t, len(made.Password), 20)
	for _, r := range all {
		require.Equal(t, made.AccessKey, r.c.AccessKey)
		require.Equal(t, made.SecretKey, r.c.SecretKey)
		require.Equal(t, made.ClusterID, r.c.ClusterID)
		if !r.created {
			require.Empty(t, r.c.Password)
		}
	}

	people, err := tenancy.New(d)
	require.NoError(t, err)
	a, secret, err := people.Authenticate(ctx, made.AccessKey)
	require.NoError(t, err)
	require.Equal(t, made.SecretKey, secret)
	require.True(t, a.Superadmin())
	require.Len(t, a.Projects, 1)

	login, err := people.Authorize(ctx, "default", tenancy.AdminEmail, made.Password)
	require.NoError(t, err)
	require.Equal(t, made.AccessKey, login.AccessKey)
	require.Equal(t, authz.RoleSuperadmin, login.Role)
	for _, c := range []struct {
		domain, email string
		password      seal.Secret
	}{{"default", tenancy.AdminEmail, "wrong"}, {"other", tenancy.AdminEmail, made.Password}, {"default", "nobody@berth.local", made.Password},
		{"default", tenancy.AdminEmail, ""}} {
		_, err := people.Authorize(ctx, c.domain, c.email, c.password)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
		require.Equal(t, "auth-failed", fault.ReasonOf(err))
	}
	for _, key := range []cluster.AccessKey{"", "AKIAAAAAAAAAAAAAAAAA", "x'; drop table users"} {
		_, _, err := people.Authenticate(ctx, key)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
	}

	require.NoError(t, people.UpdatePassword(ctx, a, made.Password, "a fresh password"))
	require.Error(t, people.UpdatePassword(ctx, a, made.Password, "another password"))
	_, err = people.Authorize(ctx, "default", tenancy.AdminEmail, "a fresh password")
	require.NoError(t, err)

	email, password, err := people.ResetAdminPassword(ctx)
	require.NoError(t, err)
	require.Equal(t, tenancy.AdminEmail, email)
	_, err = people.Authorize(ctx, "default", email, "a fresh password")
	require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
	login, err = people.Authorize(ctx, "default", email, password)
	require.NoError(t, err)
	require.Equal(t, made.AccessKey, login.AccessKey, "keypairs stay")

	k, err := people.GenerateSSHKeypair(ctx, a)
	require.NoError(t, err)
	require.Contains(t, k.Public, "ssh-ed25519 ")
	require.NoError(t, people.SetSSHKeypair(ctx, a, k.Public, k.Private))
	again, err := people.SSHKeypair(ctx, a)
	require.NoError(t, err)
	require.Equal(t, k.Public, again.Public)
}
