package network

import "net/netip"

// HostAddress is where this host is reached by other agents' kernels, for those in the network of the host; not valid when no address is
// known. The host need not be guarded for it.
func (n *Network) HostAddress() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.set.address.IsValid() {
		return n.set.address
	}
	if n.sessions.own.IsValid() {
		return n.sessions.own
	}
	l := n.sessions.links
	l.underlay = n.ns
	return l.ownAddress()
}
