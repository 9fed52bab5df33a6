package authz_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

func TestNetworks(t *testing.T) {
	t.Parallel()
	a := actor(authz.RoleUser, "u", "d")
	require.NoError(t, authz.From(a, netip.MustParseAddr("1.2.3.4")))
	require.NoError(t, authz.From(a, netip.Addr{}), "who has no list comes from anywhere")
	a.AllowedClientIP = authz.ParseNetworks(nil)
	require.NoError(t, authz.From(a, netip.MustParseAddr("1.2.3.4")))

	a.AllowedClientIP = authz.ParseNetworks(
		[]string{"10.0.0.0/8", "192.0.2.7", "192.0.2.16/28", "192.0.2.99/24x", "2001:db8::/32", "::ffff:172.16.0.0/108", "::ffff:198.51.100.1",
			" 100.64.*.* ", "203.0.113.*", "fe80::1", "junk", "1.*.3.*", "*", "1.2.3.4.*", "", "2001:db8:ffff:*"},
	)
	for ip, want := range map[string]bool{
		"10.9.8.7": true, "::ffff:10.9.8.7": true, "11.0.0.1": false,
		"192.0.2.7": true, "192.0.2.8": false, "192.0.2.17": true, "192.0.2.31": true, "192.0.2.32": false, "192.0.2.15": false,
		"2001:db8::1": true, "2001:db9::1": false, "172.31.255.255": true, "172.32.0.0": false, "198.51.100.1": true, "198.51.100.2": false,
		"100.64.255.1": true, "100.65.0.1": false, "203.0.113.200": true, "203.0.114.1": false,
		"fe80::1": true, "fe80::1%eth0": true, "fe80::2": false, "1.2.3.4": false, "1.0.3.0": false, "0.0.0.0": false, "::": false,
	} {
		require.Equal(t, want, authz.From(a, netip.MustParseAddr(ip)) == nil, ip)
	}
	err := authz.From(a, netip.Addr{})
	require.True(t, fault.Is(err, fault.Unauthenticated), "an address that is not known is in no network: %v", err)
	require.ErrorContains(t, authz.From(a, netip.MustParseAddr("1.2.3.4")), "u@x may not come from 1.2.3.4")

	a.AllowedClientIP = authz.ParseNetworks([]string{"junk"})
	require.Error(t, authz.From(a, netip.MustParseAddr("1.2.3.4")), "a list of which nothing can be read admits nobody")
	a.AllowedClientIP = authz.ParseNetworks([]string{"0.0.0.0/0"})
	require.NoError(t, authz.From(a, netip.MustParseAddr("1.2.3.4")))
	require.Error(t, authz.From(a, netip.MustParseAddr("::1")))
}
