package agent

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// places are the bounds of a door.
type places struct {
	// address bounds the strangers of one remote address that is not known, strangers those of all such addresses, and known those
	// of all that are: one known address may stand for many nodes that come back at once.
	address, strangers, known int
	// remembered bounds the known addresses.
	remembered int
}

var defaultPlaces = places{address: 64, strangers: 512, known: 512, remembered: 4096}

// door gives places to connections that have not shown a certificate yet. It never makes anybody wait and never turns a newcomer
// away: when there is no place left, another stranger of the address that holds most places loses its own. A handshake takes
// milliseconds, so a node that joins is through before its turn comes, while connections that just sit there are pushed out.
//
// Addresses from which a node of this cluster has come have places of their own, which strangers elsewhere cannot take.
type door struct {
	limits places
	pick   func(n int) int // a random number below n

	mu   sync.Mutex
	open map[netip.Addr][]*place
	// taken are the places in use, of strangers and of known addresses.
	taken map[bool]int
	// nodes are the known addresses, the one that was seen last at the end.
	nodes []netip.Addr
}

// place is one connection's. It is lost to others only before its owner is known.
type place struct {
	d    *door
	addr netip.Addr
	node bool // the address was known: says which bound it counts against
	end  func()
}

func newDoor(p places) *door {
	return &door{limits: p, pick: rand.IntN, open: map[netip.Addr][]*place{}, taken: map[bool]int{}}
}

// addressOf is what bounds are counted by: an IPv4 address, or the /64 network of an IPv6 address, which one host has whole.
func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, err := addr.Prefix(64)
		if err == nil {
			return network.Addr()
		}
	}
	return addr
}

// enter gives a newcomer a place; end is how it loses it, and must not block.
func (d *door) enter(addr netip.Addr, end func()) *place {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &place{d: d, addr: addr, node: slices.Contains(d.nodes, addr), end: end}
	most := d.limits.strangers
	if p.node {
		most = d.limits.known
	}
	switch {
	case !p.node && len(d.open[addr]) >= d.limits.address:
		d.push(d.open[addr])
	case d.taken[p.node] >= most:
		d.push(d.largest(p.node))
	}
	d.open[addr] = append(d.open[addr], p)
	d.taken[p.node]++
	return p
}

// push ends one of these connections, at random: so a flood of newcomers does not surely push out who came just before.
func (d *door) push(list []*place) {
	p := list[d.pick(len(list))]
	d.remove(p)
	p.end()
}

// largest are the places of the addresses that hold most of those that count against a bound.
func (d *door) largest(node bool) (out []*place) {
	most := 1
	for _, list := range d.open {
		var same []*place
		for _, p := range list {
			if p.node == node {
				same = append(same, p)
			}
		}
		switch {
		case len(same) > most:
			out, most = same, len(same)
		case len(same) == most:
			out = append(out, same...)
		}
	}
	return out
}

// remove reports whether the place was still there.
func (d *door) remove(p *place) bool {
	list := d.open[p.addr]
	i := slices.Index(list, p)
	if i < 0 {
		return false
	}
	d.taken[p.node]--
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(d.open, p.addr)
	} else {
		d.open[p.addr] = list
	}
	return true
}

// leave gives the place back; it may be called more than once.
func (p *place) leave() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.remove(p)
}

// identified gives the place back because the owner is a node of this cluster, and remembers its address.
func (p *place) identified() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.remove(p)
	nodes := slices.DeleteFunc(p.d.nodes, func(a netip.Addr) bool { return a == p.addr })
	p.d.nodes = append(nodes, p.addr)[max(0, len(nodes)+1-p.d.limits.remembered):]
}
