package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

func actor(role authz.Role, user, domain string) authz.Actor {
	return authz.Actor{
		UserID:    cluster.UserID(user),
		AccessKey: cluster.AccessKey("AK-" + user),
		Email:     user + "@x",
		Role:      role,
		Domain:    domain,
	}
}

func TestActors(t *testing.T) {
	t.Parallel()
	require.NoError(t, authz.Authenticated(actor(authz.RoleUser, "u", "d")))
	for _, a := range []authz.Actor{{}, {UserID: "u", Role: authz.RoleSuperadmin}, {AccessKey: "k", Role: authz.RoleMonitor}} {
		require.True(t, fault.Is(authz.Authenticated(a), fault.Denied))
		require.False(t, a.Known())
		require.False(t, a.Superadmin())
		require.False(t, a.Monitor())
	}
	require.True(t, actor(authz.RoleSuperadmin, "u", "d").Superadmin())
	require.False(t, actor(authz.RoleMonitor, "u", "d").Superadmin())
	require.True(t, actor(authz.RoleMonitor, "u", "d").Monitor())
	require.False(t, actor(authz.RoleSuperadmin, "u", "d").Monitor())
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	require.EqualError(t, authz.NotFound("session", "x"), "No such session: x")
	require.EqualError(t, authz.NotFound("session", ""), "No such session.")
	require.True(t, fault.Is(authz.NotFound("session", "x"), fault.NotFound))
}
