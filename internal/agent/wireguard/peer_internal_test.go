package wireguard

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	a, b := PublicKey{1}, PublicKey{2}
	at, moved := netip.MustParseAddrPort("192.0.2.1:51"), netip.MustParseAddrPort("[2001:db8::1]:52")
	const hexA = "0100000000000000000000000000000000000000000000000000000000000000"
	const hexB = "0200000000000000000000000000000000000000000000000000000000000000"
	reach := func(hex, at string, k PublicKey) string {
		return "public_key=" + hex + "\nendpoint=" + at + "\nreplace_allowed_ips=true\nallowed_ip=" + k.Inner().String() + "/128\n"
	}
	for _, c := range []struct {
		what       string
		have, want map[PublicKey]netip.AddrPort
		says       string
	}{
		{"nothing", nil, nil, ""},
		{"the same", map[PublicKey]netip.AddrPort{a: at}, map[PublicKey]netip.AddrPort{a: at}, ""},
		{"a new one", nil, map[PublicKey]netip.AddrPort{a: at}, reach(hexA, "192.0.2.1:51", a)},
		{"moved", map[PublicKey]netip.AddrPort{a: at}, map[PublicKey]netip.AddrPort{a: moved}, reach(hexA, "[2001:db8::1]:52", a)},
		{"one for another", map[PublicKey]netip.AddrPort{b: at}, map[PublicKey]netip.AddrPort{a: at},
			"public_key=" + hexB + "\nremove=true\n" + reach(hexA, "192.0.2.1:51", a)},
	} {
		require.Equal(t, c.says, plan(c.have, c.want), c.what)
	}
}

func TestPeersThatCannotBe(t *testing.T) {
	t.Parallel()
	own, a := PublicKey{9}, PublicKey{1}
	at := netip.MustParseAddrPort("192.0.2.1:51")
	for what, list := range map[string][]Peer{
		"itself":         {{own, at}},
		"no key":         {{PublicKey{}, at}},
		"no endpoint":    {{a, netip.AddrPort{}}},
		"no port":        {{a, netip.MustParseAddrPort("192.0.2.1:0")}},
		"everywhere":     {{a, netip.MustParseAddrPort("0.0.0.0:51")}},
		"a group":        {{a, netip.MustParseAddrPort("224.0.0.1:51")}},
		"a zone":         {{a, netip.MustParseAddrPort("[fe80::1%eth0\nprivate_key=]:51")}},
		"at two places":  {{a, at}, {a, netip.MustParseAddrPort("192.0.2.2:51")}},
		"more than fits": make([]Peer, MaxPeers+1),
	} {
		_, err := peersOf(own, list)
		require.Error(t, err, what)
	}
	got, err := peersOf(own, []Peer{{a, netip.MustParseAddrPort("[::ffff:192.0.2.1]:51")}, {a, at}})
	require.NoError(t, err)
	require.Equal(t, map[PublicKey]netip.AddrPort{a: at}, got)
}

func TestMTU(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		way  int
		v4   bool
		size int
		ok   bool
	}{{1500, true, 1440, true}, {1500, false, 1408, true}, {9000, true, 8928, true}, {1339, true, 1264, false}, {1340, true, 1280, true},
		{1 << 20, true, 65440, true}} {
		size, ok := MTU(c.way, c.v4)
		require.Equal(t, c.size, size, "%+v", c)
		require.Equal(t, c.ok, ok, "%+v", c)
	}
}
