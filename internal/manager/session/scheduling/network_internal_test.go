package scheduling

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// TestNetworksNeverOverlap: whatever networks an earlier configuration has left, no two sessions get the same number or addresses, and a
// session is refused only when no block of the pool is free.
func TestNetworksNeverOverlap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := NetworkConfig{Pool: "10.0.0.0/24", Bits: rapid.IntRange(25, 29).Draw(t, "bits")}
		pool, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		n := &networks{pool: pool, bits: c.Bits}
		for i := range rapid.IntRange(0, 4).Draw(t, "earlier") {
			bits := rapid.IntRange(24, 30).Draw(t, "length")
			p := netip.PrefixFrom(blockAddress(netip.MustParsePrefix("10.0.0.0/23"), bits, rapid.IntRange(0, 1<<(bits-23)-1).Draw(t, "block")), bits)
			n.taken = append(n.taken, dbgen.SessionNetworksRow{Number: int32(i * 2), Subnet: p, SessionID: fmt.Sprint("earlier", i)})
		}
		earlier := len(n.taken)
		for i := range 40 {
			before := len(n.taken)
			made, err := n.choose(cluster.SessionID(fmt.Sprint(i)), "default", 2)
			if err != nil {
				for block := range 1 << (c.Bits - 24) {
					p := netip.PrefixFrom(blockAddress(pool, c.Bits, block), c.Bits)
					free := true
					for _, o := range n.taken {
						free = free && !o.Subnet.Overlaps(p)
					}
					if free {
						t.Fatalf("session %d is refused although %s is free: %v", i, p, err)
					}
				}
				continue
			}
			if !pool.Overlaps(made.subnet) || made.subnet != made.subnet.Masked() || made.subnet.Bits() != c.Bits {
				t.Fatalf("session %d has %s, which is no block of the pool", i, made.subnet)
			}
			for _, o := range n.taken[:before] {
				if o.Number == made.number || o.Subnet.Overlaps(made.subnet) {
					t.Fatalf("session %d has number %d and %s, and another has %d and %s", i, made.number, made.subnet, o.Number, o.Subnet)
				}
			}
		}
		if len(n.taken) > earlier {
			id := cluster.SessionID(n.taken[earlier].SessionID)
			if again, err := n.choose(id, "default", 2); again != nil || err != nil {
				t.Fatalf("a session that has a network gets another: %v, %v", again, err)
			}
		}
	})
}

func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultNetworkConfig().Validate())
	for _, c := range []NetworkConfig{{}, {Pool: "10.0.0.0/8", Bits: 7}, {Pool: "10.0.0.0/8", Bits: 30}, {Pool: "8.8.0.0/16", Bits: 26},
		{Pool: "fd00::/64", Bits: 80}, {Pool: "10.0.0.0/16", Bits: 31}, {Pool: "10.0.0.1", Bits: 26}} {
		require.Error(t, c.Validate(), "%+v", c)
	}
}
