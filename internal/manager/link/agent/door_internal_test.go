package agent

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// visitors counts who lost a place.
type visitors struct {
	t    *testing.T
	door *door
	lost map[*place]bool
}

func newVisitors(t *testing.T, p places) *visitors {
	v := &visitors{t: t, door: newDoor(p), lost: map[*place]bool{}}
	v.door.pick = func(int) int { return 0 } // the oldest
	return v
}

func (v *visitors) enter(addr string) *place {
	v.t.Helper()
	var p *place
	p = v.door.enter(netip.MustParseAddr(addr), func() { v.lost[p] = true })
	return p
}

func TestDoorBoundsEachAddress(t *testing.T) {
	t.Parallel()
	v := newVisitors(t, places{address: 2, strangers: 100, known: 100, remembered: 10})
	other := v.enter("10.0.0.1")
	first, second := v.enter("10.0.0.2"), v.enter("10.0.0.2")
	require.Empty(t, v.lost)
	third := v.enter("10.0.0.2")
	require.Equal(t, map[*place]bool{first: true}, v.lost, "somebody of the same address makes room")
	second.leave()
	second.leave() // once more is no harm
	v.enter("10.0.0.2")
	require.Len(t, v.lost, 1)
	require.False(t, v.lost[other] || v.lost[third])
}

func TestDoorBoundsStrangers(t *testing.T) {
	t.Parallel()
	v := newVisitors(t, places{address: 3, strangers: 6, known: 2, remembered: 10})
	joining := v.enter("10.0.0.1")
	for _, attacker := range []string{"10.9.9.1", "10.9.9.1", "10.9.9.1", "10.9.9.2", "10.9.9.2"} {
		v.enter(attacker)
	}
	require.Empty(t, v.lost)
	// The house is full of strangers. Whoever comes now takes the place of an address that holds many.
	for range 10 {
		for _, attacker := range []string{"10.9.9.1", "10.9.9.2"} {
			v.enter(attacker)
		}
	}
	second := v.enter("10.0.0.2")
	require.Len(t, v.lost, 21)
	require.False(t, v.lost[second])
	require.False(t, v.lost[joining], "one that holds a single place keeps it while others hold several")
	require.LessOrEqual(t, v.door.taken[false], 6)
}

func TestDoorKeepsPlacesForNodes(t *testing.T) {
	t.Parallel()
	v := newVisitors(t, places{address: 1, strangers: 2, known: 3, remembered: 2})
	v.enter("10.0.0.1").identified() // it had a certificate
	node := v.enter("10.0.0.1")
	v.enter("10.0.0.1").leave() // one address may be that of many nodes
	require.Empty(t, v.lost)
	for i := range 50 {
		v.enter(netip.AddrFrom4([4]byte{10, 9, 9, byte(i)}).String())
	}
	require.Len(t, v.lost, 48)
	require.False(t, v.lost[node], "strangers never take the place of a known address")
	// The memory of addresses is bounded, the last ones stay.
	v.enter("10.0.0.2").identified()
	v.enter("10.0.0.3").identified()
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}, v.door.nodes)
	node.leave()
	require.Zero(t, v.door.taken[true])
}

func TestAddressOf(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"10.0.0.1:5":            "10.0.0.1",
		"[::ffff:10.0.0.1]:5":   "10.0.0.1",
		"[2001:db8:1:2:3::4]:5": "2001:db8:1:2::",
		"[fe80::1%eth0]:5":      "fe80::",
	} {
		require.Equal(t, want, addressOf(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))).String(), addr)
	}
	require.False(t, addressOf(&net.UnixAddr{}).IsValid())
}
