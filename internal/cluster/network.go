package cluster

import (
	"net/netip"
	"slices"
)

// SessionNetwork is the network that the kernels of one session have in common. It is theirs alone: a kernel reaches the others on every
// port, and nobody else reaches it.
type SessionNetwork struct {
	// Number tells it from the networks of other sessions in the cluster, from 0 to MaxSessionNetworks-1.
	Number uint32
	Subnet netip.Prefix
	// Members are all kernels of the session in the order of their addresses.
	Members []NetworkMember
	// Encrypted: between agents it is carried in their encrypted tunnels and in nothing else. No Host of a member is known then.
	Encrypted bool
}

// MaxSessionNetworks is how many networks of sessions a cluster has at most.
const MaxSessionNetworks = 1 << 20

// NetworkMember is a kernel in the network of its session.
type NetworkMember struct {
	Kernel KernelID
	Name   string // as its session knows it: main1, sub1, ...
	// Address is the kernel's as long as its session lives, wherever it runs.
	Address netip.Addr
	// Agent holds the kernel; "" while none does.
	Agent AgentID
	// Host is where other agents reach that agent; not valid while it is not known.
	Host netip.Addr
	// Tunnel is the end of that agent's encrypted tunnels, where the network is encrypted.
	Tunnel Tunnel
}

// Tunnel is one end of encrypted tunnels between agents.
type Tunnel struct {
	// Key is the agent's public key in base64; "" while it has none.
	Key string
	// Endpoint is where the agent hears encrypted packets; not valid while it is not known.
	Endpoint netip.AddrPort
}

// Member returns a kernel's place in the network.
func (n *SessionNetwork) Member(id KernelID) (NetworkMember, bool) {
	i := slices.IndexFunc(n.Members, func(m NetworkMember) bool { return m.Kernel == id })
	if i < 0 {
		return NetworkMember{}, false
	}
	return n.Members[i], true
}

// Equal reports whether two networks are the same in all; both may be nil.
func (n *SessionNetwork) Equal(o *SessionNetwork) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.Number == o.Number && n.Subnet == o.Subnet && n.Encrypted == o.Encrypted && slices.Equal(n.Members, o.Members)
}

// MemberAddress is the address of the n-th member of a network, from 0; it is not valid when the subnet has no room for it.
func MemberAddress(subnet netip.Prefix, n int) netip.Addr {
	if !subnet.IsValid() || !subnet.Addr().Is4() || n < 0 || n >= MembersOf(subnet) {
		return netip.Addr{}
	}
	b := subnet.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n) + 1
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// MembersOf is how many members a subnet has room for: without its own address and the one for broadcasts.
func MembersOf(subnet netip.Prefix) int {
	if !subnet.Addr().Is4() || subnet.Bits() < 8 || subnet.Bits() > 30 {
		return 0
	}
	return 1<<(32-subnet.Bits()) - 2
}
