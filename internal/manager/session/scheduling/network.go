package scheduling

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// NetworkConfig says which addresses the networks of sessions have. A session of several kernels has one of its own, whichever agents
// hold its kernels.
type NetworkConfig struct {
	// Pool is the block of private IPv4 addresses that the networks of sessions are parts of, ADDRESS/BITS. Nothing else that sessions
	// reach may have addresses of it.
	Pool string
	// Bits is the length of a network's prefix: 26 gives each session room for 62 kernels.
	Bits int
}

// DefaultNetworkConfig returns the documented defaults: 1024 sessions of up to 62 kernels.
func DefaultNetworkConfig() NetworkConfig { return NetworkConfig{Pool: "10.223.0.0/16", Bits: 26} }

// Validate reports the first value that cannot be used.
func (c NetworkConfig) Validate() error {
	_, err := c.read()
	return err
}

func (c NetworkConfig) read() (pool netip.Prefix, err error) {
	pool, err = netip.ParsePrefix(c.Pool)
	switch {
	case err != nil || !pool.Addr().Is4() || !pool.Addr().IsPrivate() || pool.Bits() < 8 || pool.Bits() > 28:
		return pool, fault.Invalidf("the pool %q of the networks of sessions is no block of private IPv4 addresses", c.Pool).WithCause(err).
			WithNext("write ADDRESS/BITS with 8 to 28 bits, for example 10.223.0.0/16")
	case c.Bits < pool.Bits() || c.Bits > 30 || c.Bits-pool.Bits() > 20:
		return pool, fault.Invalidf("networks of sessions of /%d cannot be parts of %s", c.Bits, pool).
			WithNext("choose a length between %d and %d", pool.Bits(), min(30, pool.Bits()+20))
	}
	return pool.Masked(), nil
}

// given is a network that a session gets.
type given struct {
	number  int32
	subnet  netip.Prefix
	session cluster.SessionID
	// encrypted: agents carry it in encrypted tunnels.
	encrypted bool
}

// networks are the networks of sessions at a moment, under the lock of placements.
type networks struct {
	pool  netip.Prefix
	bits  int
	taken []dbgen.SessionNetworksRow
	// encrypted are the resource groups whose new networks are encrypted.
	encrypted []string
	// next is the first block that may be free.
	next int
}

// choose gives a session of a group with so many kernels a network that nobody has; what it has already it keeps. The error is for people.
func (n *networks) choose(session cluster.SessionID, group string, kernels int) (made *given, err error) {
	for _, t := range n.taken {
		if t.SessionID == string(session) {
			return nil, nil
		}
	}
	block := netip.PrefixFrom(n.pool.Addr(), n.bits)
	if room := cluster.MembersOf(block); kernels > room {
		return nil, fault.Exhaustedf("its network would need %d addresses, and networks of sessions have %d", kernels, room)
	}
	total := 1 << (n.bits - n.pool.Bits())
	for ; n.next < total; n.next++ {
		candidate := netip.PrefixFrom(blockAddress(n.pool, n.bits, n.next), n.bits)
		free := true
		for _, t := range n.taken { // other lengths of an earlier configuration may be among them
			free = free && !t.Subnet.Overlaps(candidate)
		}
		if !free {
			continue
		}
		made = &given{n.number(), candidate, session, slices.Contains(n.encrypted, group)}
		n.taken = append(n.taken, dbgen.SessionNetworksRow{Number: made.number, Subnet: candidate, SessionID: string(session)})
		return made, nil
	}
	return nil, fault.Exhaustedf("all %d networks of sessions in %s are in use", total, n.pool)
}

// number is the smallest that is free.
func (n *networks) number() int32 {
	used := make(map[int32]bool, len(n.taken))
	for _, t := range n.taken {
		used[t.Number] = true
	}
	v := int32(0)
	for used[v] {
		v++
	}
	return v
}

func blockAddress(pool netip.Prefix, bits, i int) netip.Addr {
	b := pool.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(i) << (32 - bits)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// freshNetworks takes networks away that nobody holds any more, and reads those in use; nil when no session of the batch needs one. The
// caller holds the lock of placements.
func freshNetworks(ctx context.Context, tx *store.Tx, c NetworkConfig, batch []proposal) (*networks, error) {
	needed := false
	for i := range batch {
		needed = needed || len(batch[i].placements) > 1 && !batch[i].host
	}
	if !needed {
		return nil, nil
	}
	pool, err := c.read()
	if err != nil {
		return nil, err
	}
	if err := tx.FreeSessionNetworks(ctx); err != nil {
		return nil, fmt.Errorf("free networks of sessions: %w", err)
	}
	taken, err := tx.SessionNetworks(ctx)
	if err != nil {
		return nil, fmt.Errorf("read networks of sessions: %w", err)
	}
	encrypted, err := tx.GroupsWithEncryptedNetworks(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which resource groups have encrypted networks: %w", err)
	}
	return &networks{pool: pool, bits: c.Bits, taken: taken, encrypted: encrypted}, nil
}

// WaitsForNetwork is the reason of sessions of several kernels that find no network.
const WaitsForNetwork scheduler.Reason = "session-network"

// lack notes which sessions of a group found no network in its last pass, each with why.
func (m *memory) lack(group string, why map[cluster.SessionID]string) {
	before := maps.Clone(m.unconnected)
	maps.DeleteFunc(m.unconnected, func(id cluster.SessionID, _ string) bool {
		e := m.sessions[id]
		return e == nil || e.group == group
	})
	maps.Copy(m.unconnected, why)
	m.changed = m.changed || !maps.Equal(before, m.unconnected)
}

// explain is why a session waits: the scheduler's answer, or that it found a place and no network at the last try.
func (m *memory) explain(id cluster.SessionID) (scheduler.Explanation, bool) {
	h, ok := m.cluster.Explain(id)
	if why := m.unconnected[id]; why != "" && m.sessions[id] != nil && m.sessions[id].status == cluster.Pending {
		ok = true // the scheduler has placed it
		h.Reason, h.Text, h.Rejected, h.Shortfall = WaitsForNetwork, why, nil, nil
		h.Remedies = []string{"end sessions of several kernels, or have an administrator widen manager.session_networks.pool"}
		if m.sessions[id].host {
			h.Remedies = []string{"destroy it, or have an administrator set use_host_network of its resource group"}
		}
	}
	return h, ok
}
