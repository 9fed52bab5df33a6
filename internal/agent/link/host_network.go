package link

import (
	"net/netip"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// hostPeersOf reads where the kernels of a session are whose kernels run in the network of their hosts. Those of which nothing is known
// yet come without an endpoint.
func hostPeersOf(list []*node.HostPeer) ([]cluster.HostPeer, error) {
	if len(list) > maxMembers {
		return nil, fault.Invalidf("its session has %d kernels, %d are the most", len(list), maxMembers)
	}
	var out []cluster.HostPeer
	taken := map[netip.AddrPort]bool{}
	for _, p := range list {
		h := cluster.HostPeer{Name: p.GetName()}
		if text := p.GetEndpoint(); text != "" {
			at, err := netip.ParseAddrPort(text)
			if err != nil || !node.NetworkAddress(at.Addr()) || at.Port() < 1024 || taken[at] {
				return nil, fault.Invalidf("kernel %.64q of its session is at %.64q, where none can be", p.GetName(), text)
			}
			h.Endpoint, taken[at] = at, true
		}
		out = append(out, h)
	}
	return out, nil
}
