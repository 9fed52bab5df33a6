package authz_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

func TestFrom(t *testing.T) {
	t.Parallel()
	a := actor(authz.RoleUser, "u", "d")
	require.NoError(t, authz.From(a, netip.MustParseAddr("1.2.3.4")))
	require.NoError(t, authz.From(a, netip.Addr{}), "who has no list comes from anywhere")
	a.AllowedClientIP = clientaddr.ParseNetworks([]string{"10.0.0.0/8"})
	require.NoError(t, authz.From(a, netip.MustParseAddr("10.2.3.4")))
	err := authz.From(a, netip.Addr{})
	require.True(t, fault.Is(err, fault.Unauthenticated), "an address that is not known is in no network: %v", err)
	require.ErrorContains(t, authz.From(a, netip.MustParseAddr("1.2.3.4")), "u@x may not come from 1.2.3.4")
}
