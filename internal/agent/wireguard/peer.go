package wireguard

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// MaxPeers bounds the other agents that one agent has tunnels to.
const MaxPeers = 4096

// Peer is another agent.
type Peer struct {
	Key PublicKey
	// Endpoint is where it hears encrypted packets.
	Endpoint netip.AddrPort
}

// plan is the change from the peers that a device has to those that it should have, as its configuration protocol writes it
// (https://www.wireguard.com/xplatform/); "" when nothing has to change. Those that go come first.
func plan(have, want map[PublicKey]netip.AddrPort) string {
	var b strings.Builder
	for _, k := range inOrder(have) {
		if _, stays := want[k]; !stays {
			fmt.Fprintf(&b, "public_key=%s\nremove=true\n", hex.EncodeToString(k[:]))
		}
	}
	for _, k := range inOrder(want) {
		if at, known := have[k]; !known || at != want[k] {
			// From this peer its own inner address is taken and no other.
			fmt.Fprintf(&b, "public_key=%s\nendpoint=%s\nreplace_allowed_ips=true\nallowed_ip=%s/128\n", hex.EncodeToString(k[:]), want[k],
				k.Inner())
		}
	}
	return b.String()
}

func inOrder(m map[PublicKey]netip.AddrPort) []PublicKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b PublicKey) int { return bytes.Compare(a[:], b[:]) })
}

// peersOf checks what an agent is told of others.
func peersOf(own PublicKey, list []Peer) (map[PublicKey]netip.AddrPort, error) {
	if len(list) > MaxPeers {
		return nil, fault.Exhaustedf("%d agents are to have tunnels to this one, at most %d can", len(list), MaxPeers)
	}
	out := make(map[PublicKey]netip.AddrPort, len(list))
	for _, p := range list {
		a := p.Endpoint.Addr()
		at := netip.AddrPortFrom(a.Unmap(), p.Endpoint.Port())
		before, known := out[p.Key]
		switch {
		case p.Key == PublicKey{} || p.Key == own:
			return nil, fault.Invalidf("the agent at %s is named with the key %s, which is none of another agent", p.Endpoint, p.Key)
		case !at.IsValid() || at.Port() == 0 || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast():
			return nil, fault.Invalidf("the agent with the key %s is named at %s, where none can be", p.Key, p.Endpoint)
		case known && before != at:
			return nil, fault.Conflictf("the agent with the key %s is named at %s and at %s", p.Key, before, at)
		}
		out[p.Key] = at
	}
	return out, nil
}

// What a tunnel adds to a packet, in bytes: a header of WireGuard with its seal, one of UDP, and one of IPv4 or IPv6.
const (
	overhead4 = 32 + 8 + 20
	overhead6 = 32 + 8 + 40
	// leastMTU is what IPv6 needs, and mostMTU what a packet in user space can be.
	leastMTU = 1280
	mostMTU  = 65535 - overhead6
)

// MTU is the size of the largest packet inside of a tunnel, where the way to the peers takes packets of so many bytes; ok is false when
// that is too little for any. It is a multiple of 16 less than what fits, because WireGuard pads.
func MTU(way int, v4 bool) (size int, ok bool) {
	size = way - overhead6
	if v4 {
		size = way - overhead4
	}
	size = min(size, mostMTU) &^ 15
	return size, size >= leastMTU
}
