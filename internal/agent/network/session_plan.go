package network

import (
	"cmp"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/cluster"
)

// wanted is the network of one session as it should be on this agent.
type wanted struct {
	subnet netip.Prefix
	// local are the members whose containers are here.
	local []cluster.NetworkMember
	// far are members on other agents, by their address; the value is where their agent is reached.
	far map[netip.Addr]netip.Addr
	// mtu is the size of the largest packet that passes between its members, in bytes.
	mtu int
	// encrypted: what goes to other agents goes through encrypted tunnels. inner is this agent's address inside of them then, and far has
	// such addresses; peers are the agents.
	encrypted bool
	inner     netip.Addr
	peers     []wireguard.Peer
}

// from is the address at which this agent's way to the others begins: that among agents, or the one inside of encrypted tunnels.
func (w wanted) from(own netip.Addr) netip.Addr {
	if w.encrypted {
		return w.inner
	}
	return own
}

// present is the network of one session as it is on this agent.
type present struct {
	bridge bool // is there and up
	tunnel *tunnel
	ports  []port
}

// port is the interface of a container in the network of its session.
type port struct {
	name   string
	kernel cluster.KernelID // "" while it is being made
}

// tunnel is the way to the other agents of a session.
type tunnel struct {
	local netip.Addr // this agent's address
	mtu   int
	up    bool // and a port of its bridge
	far   map[netip.Addr]netip.Addr
}

// The steps that make networks of sessions true.
type verb string

const (
	makeBridge   verb = "make bridge"
	removeBridge verb = "remove bridge"
	makeTunnel   verb = "make tunnel"
	removeTunnel verb = "remove tunnel"
	reachMember  verb = "reach member"
	forgetMember verb = "forget member"
	removePort   verb = "remove port"
)

// step is one change of one network.
type step struct {
	do     verb
	number uint32
	mtu    int
	member netip.Addr
	host   netip.Addr
	port   string
	// encrypted: a tunnel is to be made inside of the encrypted one. local is its address.
	encrypted bool
	local     netip.Addr
}

// planNetworks says what is to be done, in order, so that the networks of sessions are as they should be. own is this agent's address
// among agents, here says whether a kernel has a container here. A network that nobody wants stays while such containers are connected to
// it: after a restart their kernels are known before the manager says what they are to have.
func planNetworks(want map[uint32]wanted, have map[uint32]present, own netip.Addr, here func(cluster.KernelID) bool) []step {
	var steps []step
	numbers := map[uint32]bool{}
	for n := range want {
		numbers[n] = true
	}
	for n := range have {
		numbers[n] = true
	}
	for _, n := range slices.Sorted(mapsKeys(numbers)) {
		w, is := want[n]
		h := have[n]
		used := false
		for _, p := range h.ports {
			if p.kernel != "" && !here(p.kernel) { // its container is gone, and something holds its namespace
				steps = append(steps, step{do: removePort, number: n, port: p.name})
				continue
			}
			used = true
		}
		if !is {
			if used {
				continue
			}
			if h.tunnel != nil {
				steps = append(steps, step{do: removeTunnel, number: n})
			}
			steps = append(steps, step{do: removeBridge, number: n})
			continue
		}
		if !h.bridge {
			steps = append(steps, step{do: makeBridge, number: n})
		}
		steps = append(steps, planTunnel(n, w, h.tunnel, w.from(own))...)
	}
	return steps
}

func planTunnel(n uint32, w wanted, h *tunnel, own netip.Addr) []step {
	if len(w.far) == 0 || !own.IsValid() {
		if h != nil {
			return []step{{do: removeTunnel, number: n}}
		}
		return nil
	}
	var steps []step
	if h != nil && (h.local != own || h.mtu != w.mtu || !h.up) {
		steps = append(steps, step{do: removeTunnel, number: n})
		h = nil
	}
	if h == nil {
		steps = append(steps, step{do: makeTunnel, number: n, mtu: w.mtu, encrypted: w.encrypted, local: own})
		h = &tunnel{}
	}
	for _, member := range slices.SortedFunc(mapsKeys(h.far), netip.Addr.Compare) {
		if w.far[member] != h.far[member] {
			steps = append(steps, step{do: forgetMember, number: n, member: member, host: h.far[member]})
		}
	}
	for _, member := range slices.SortedFunc(mapsKeys(w.far), netip.Addr.Compare) {
		if h.far[member] != w.far[member] {
			steps = append(steps, step{do: reachMember, number: n, member: member, host: w.far[member]})
		}
	}
	return steps
}

// wantedNetworks sums up what the kernels of an agent are to have. Members without an agent, and those of agents that cannot be reached,
// are left out until they can. inner is this agent's address inside of encrypted tunnels. mtu answers how large packets to a host may be,
// 0 when none would arrive.
func wantedNetworks(kernels map[cluster.KernelID]*cluster.SessionNetwork, agent cluster.AgentID, own, inner netip.Addr,
	mtu func(host netip.Addr, encrypted bool) int) map[uint32]wanted {
	out := map[uint32]wanted{}
	// Members of one network are told at the same time; while they differ, the smaller id decides, whatever the order.
	for _, id := range slices.SortedFunc(mapsKeys(kernels), func(a, b cluster.KernelID) int { return cmp.Compare(a, b) }) {
		n := kernels[id]
		me, is := n.Member(id)
		if !is {
			continue
		}
		w, known := out[n.Number]
		if !known {
			w = wanted{subnet: n.Subnet, far: map[netip.Addr]netip.Addr{}, mtu: defaultMTU, encrypted: n.Encrypted}
			if n.Encrypted {
				w.inner = inner
			}
			for _, m := range n.Members {
				if m.Agent != agent && m.Agent != "" && own.IsValid() {
					w.reach(m, own, mtu)
				}
			}
		}
		if w.subnet == n.Subnet {
			w.local = append(w.local, me)
		}
		out[n.Number] = w
	}
	return out
}

// reach adds a member on another agent, if there is a way to it. To one of an encrypted network there is no other way than the tunnel.
func (w *wanted) reach(m cluster.NetworkMember, own netip.Addr, mtu func(host netip.Addr, encrypted bool) int) {
	host, way, peer := m.Host, m.Host, wireguard.Peer{}
	if w.encrypted {
		key, err := wireguard.ParsePublicKey(m.Tunnel.Key)
		if err != nil || !m.Tunnel.Endpoint.IsValid() || !w.inner.IsValid() || key.Inner() == w.inner {
			return
		}
		peer.Key, peer.Endpoint = key, m.Tunnel.Endpoint
		host, way = key.Inner(), m.Tunnel.Endpoint.Addr()
	}
	if !way.IsValid() || way.Is4() != own.Is4() {
		return
	}
	size := mtu(way, w.encrypted)
	if size <= 0 {
		return
	}
	if len(w.far) == 0 || size < w.mtu {
		w.mtu = size
	}
	w.far[m.Address] = host
	if w.encrypted && !slices.Contains(w.peers, peer) {
		w.peers = append(w.peers, peer)
	}
}

// peersOf are the agents to which encrypted networks have tunnels. One that is named at several places is left out: only one of them can
// have the key, and it is not known which.
func peersOf(want map[uint32]wanted) []wireguard.Peer {
	at := map[wireguard.PublicKey]netip.AddrPort{}
	for _, w := range want {
		for _, p := range w.peers {
			if before, known := at[p.Key]; known && before != p.Endpoint {
				p.Endpoint = netip.AddrPort{}
			}
			at[p.Key] = p.Endpoint
		}
	}
	var out []wireguard.Peer
	for key, endpoint := range at {
		if endpoint.IsValid() {
			out = append(out, wireguard.Peer{Key: key, Endpoint: endpoint})
		}
	}
	slices.SortFunc(out, func(a, b wireguard.Peer) int { return a.Key.Inner().Compare(b.Key.Inner()) })
	return out
}
