package link

import (
	"net/netip"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// maxMembers bounds the kernels of one session.
const maxMembers = 4096

// networkOf reads the network of a kernel's session; nil where there is none. Addresses that do not belong to it are an error: a kernel
// with a false address would answer for another.
func networkOf(p *node.SessionNetwork) (*cluster.SessionNetwork, error) {
	if p == nil {
		return nil, nil
	}
	n := &cluster.SessionNetwork{Number: p.GetNumber(), Encrypted: p.GetEncrypted()}
	var err error
	if n.Subnet, err = netip.ParsePrefix(p.GetSubnet()); err != nil || n.Subnet != n.Subnet.Masked() || cluster.MembersOf(n.Subnet) == 0 {
		return nil, fault.Invalidf("the network of its session has the subnet %.64q, which is none", p.GetSubnet())
	}
	if n.Number >= cluster.MaxSessionNetworks || len(p.GetMembers()) > maxMembers {
		return nil, fault.Invalidf("the network of its session has the number %d and %d members", n.Number, len(p.GetMembers()))
	}
	taken := map[netip.Addr]bool{}
	for _, m := range p.GetMembers() {
		out := cluster.NetworkMember{Kernel: cluster.KernelID(m.GetKernelId()), Name: m.GetName(), Agent: cluster.AgentID(m.GetAgentId())}
		if out.Address, err = netip.ParseAddr(m.GetAddress()); err != nil || !n.Subnet.Contains(out.Address) || taken[out.Address] {
			return nil, fault.Invalidf("kernel %.64q has the address %.64q in the network %s of its session", m.GetKernelId(),
				m.GetAddress(), n.Subnet)
		}
		taken[out.Address] = true
		// Where an encrypted network is reached in clear is nothing that this agent wants to know.
		if a, err := netip.ParseAddr(m.GetHost()); err == nil && node.NetworkAddress(a) && !n.Encrypted {
			out.Host = a
		}
		if at, err := netip.ParseAddrPort(m.GetTunnelEndpoint()); err == nil && node.NetworkAddress(at.Addr()) && at.Port() != 0 &&
			n.Encrypted && node.TunnelKey(m.GetTunnelKey()) {
			out.Tunnel = cluster.Tunnel{Key: m.GetTunnelKey(), Endpoint: at}
		}
		n.Members = append(n.Members, out)
	}
	return n, nil
}
