// Package circuit decides who may pass an app proxy: the table of circuits, the tickets of visitors, and the admission of a
// request or connection. It is pure: addresses, headers and the time are inputs.
package circuit

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/wire/proxy"
)

// Circuit is one published way to an app; it is never changed, only replaced.
type Circuit struct {
	proxy.Circuit
	secureCookie string
	seeds        []uint64 // of the targets, see Pick
}

// New makes a circuit from what the manager sent. IPv4 addresses that are written as IPv6 become plain IPv4.
func New(p proxy.Circuit) *Circuit {
	c := &Circuit{Circuit: p, secureCookie: cookieOf(p.ID), seeds: make([]uint64, len(p.Targets))}
	for i := range p.Targets {
		c.seeds[i] = seedOf(p.Targets[i].ID())
	}
	c.Allowed, c.Admitted, c.Targets = slices.Clone(p.Allowed), slices.Clone(p.Admitted), slices.Clone(p.Targets)
	for i, prefix := range c.Allowed {
		if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
			c.Allowed[i] = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
	}
	for i, addr := range c.Admitted {
		c.Admitted[i] = plain(addr)
	}
	return c
}

// plain is an address in the form in which rules compare it.
func plain(a netip.Addr) netip.Addr { return clientaddr.Plain(a) }

// Table is a set of circuits that is never changed: With makes another one, at a cost that does not grow with the table.
type Table struct {
	byID    index[string]
	byLabel index[string]
	byPort  index[int]
	keys    [][]byte
	gone    graves
}

// ByLabel finds the circuit of a host name's first part, in lower case; nil when there is none.
func (t *Table) ByLabel(label string) *Circuit { return t.byLabel.get(label) }

// ByPort finds the circuit of a port of the proxy.
func (t *Table) ByPort(port int) *Circuit { return t.byPort.get(port) }

// ByID finds a circuit.
func (t *Table) ByID(id string) *Circuit { return t.byID.get(id) }

// Len counts the circuits.
func (t *Table) Len() int { return t.byID.n }

// Keys sign (the first) and check (all) tickets.
func (t *Table) Keys() [][]byte { return t.keys }

// All lists the circuits in no order.
func (t *Table) All() []*Circuit {
	out := make([]*Circuit, 0, t.Len())
	for _, c := range t.byID.all() {
		out = append(out, c)
	}
	return out
}

// Ports lists the ports in use in order.
func (t *Table) Ports() []int {
	out := make([]int, 0, t.byPort.n)
	for port := range t.byPort.all() {
		out = append(out, port)
	}
	slices.Sort(out)
	return out
}

// Change is what one batch of events does to a table.
type Change struct {
	// Reset forgets everything that Put does not name: a whole snapshot.
	Reset bool
	Put   []proxy.Circuit
	Gone  []string
	Keys  [][]byte // nil leaves the present ones
}

// Closed names a circuit whose connections must end, and why.
type Closed struct {
	ID     string
	Reason string // "gone", "revoked" or "moved"
	// From limits it to raw connections that these addresses were admitted for, Targets to connections to these targets. Both
	// empty means all connections; never are both set.
	From    []netip.Addr
	Targets []proxy.TargetID
}

// With returns the table after a change, and what has to be closed because of it: circuits that are gone, whose epoch rose,
// whose visitors are limited otherwise, or whose app is elsewhere now; and targets that are gone from circuits which have
// others. t may be nil.
//
// The same change may come twice, and changes may come late:
//   - A lower revision of a circuit never replaces a higher one. The same one replaces it when it brings newer grants.
//   - A circuit that Gone named stays gone; ids are never used again.
//   - Of two circuits that claim one port or label the one with the higher revision has it, and the other is gone.
//   - A circuit that a snapshot does not name may come again later, because it may be newer than the snapshot. Callers must
//     not put what is older than the last snapshot.
func (t *Table) With(c Change) (*Table, []Closed) {
	if t == nil {
		t = &Table{}
	}
	next := &Table{keys: t.keys, byID: t.byID.edit(), byLabel: t.byLabel.edit(), byPort: t.byPort.edit(), gone: t.gone}
	if c.Keys != nil {
		next.keys = c.Keys
	}
	touched := map[string]bool{} // whose connections may have to end
	if c.Reset {
		keep := make(map[string]bool, len(c.Put))
		for _, p := range c.Put {
			keep[p.ID] = true
		}
		next.gone.open(keep) // a snapshot is the truth, also about what was thought gone
		for id, old := range t.byID.all() {
			if !keep[id] {
				next.remove(old, touched)
			}
		}
	}
	for _, p := range c.Put {
		next.put(New(p), touched)
	}
	for _, id := range c.Gone {
		if old := next.byID.get(id); old != nil {
			next.remove(old, touched)
		}
		next.gone.dig(id)
	}
	next.byID.seal()
	next.byLabel.seal()
	next.byPort.seal()
	var closed []Closed
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		if old := t.byID.get(id); old != nil {
			now := next.byID.get(id)
			if reason := lost(old, now); reason != "" {
				closed = append(closed, Closed{ID: id, Reason: reason})
				continue
			}
			if out := leaving(old, now); len(out) > 0 {
				closed = append(closed, Closed{ID: id, Reason: "revoked", From: out})
			}
			if out := goneTargets(old, now); len(out) > 0 {
				closed = append(closed, Closed{ID: id, Reason: "moved", Targets: out})
			}
		}
	}
	return next, closed
}

func (t *Table) put(c *Circuit, touched map[string]bool) {
	if t.gone.holds(c.ID) {
		return
	}
	old := t.byID.get(c.ID)
	if old != nil && (old.Revision > c.Revision || old.Revision == c.Revision && !renews(old, c)) {
		return
	}
	if other := t.rival(c); other != nil {
		if other.Revision > c.Revision {
			// The manager has given the port or label to another circuit since. So c is outdated, and old is gone, too.
			if old != nil {
				t.remove(old, touched)
			}
			return
		}
		t.remove(other, touched)
	}
	if old != nil {
		t.remove(old, touched)
	}
	t.byID.set(c.ID, c)
	switch c.Mode {
	case proxy.ModePort:
		t.byPort.set(c.Port, c)
	case proxy.ModeSubdomain:
		t.byLabel.set(strings.ToLower(c.Label), c)
	}
}

// renews reports whether now is the same circuit with newer grants.
func renews(old, now *Circuit) bool {
	if len(old.Targets) != len(now.Targets) {
		return false
	}
	newer := false
	for i := range now.Targets {
		if old.Targets[i].ID() != now.Targets[i].ID() {
			return false
		}
		was, now := old.Targets[i].Grant, now.Targets[i].Grant
		if was == now {
			continue
		}
		g, err := proxy.ReadGrant(now)
		if err != nil {
			return false
		}
		if before, err := proxy.ReadGrant(was); err == nil && !g.Expires.After(before.Expires) {
			return false // it came late
		}
		newer = true
	}
	return newer
}

// rival is another circuit that has the port or label of c; nil when there is none.
func (t *Table) rival(c *Circuit) *Circuit {
	var other *Circuit
	switch c.Mode {
	case proxy.ModePort:
		other = t.byPort.get(c.Port)
	case proxy.ModeSubdomain:
		other = t.byLabel.get(strings.ToLower(c.Label))
	}
	if other != nil && other.ID != c.ID {
		return other
	}
	return nil
}

func (t *Table) remove(c *Circuit, touched map[string]bool) {
	touched[c.ID] = true
	t.byID.drop(c.ID)
	switch c.Mode {
	case proxy.ModePort:
		t.byPort.drop(c.Port)
	case proxy.ModeSubdomain:
		t.byLabel.drop(strings.ToLower(c.Label))
	}
}

// Stands reports whether everything that c allowed its visitors is still allowed by now, the same circuit in a later table.
func (c *Circuit) Stands(now *Circuit) bool { return lost(c, now) == "" && len(leaving(c, now)) == 0 }

// lost is the reason why all connections that old allowed must end when now replaces it; "" when they may stay.
func lost(old, now *Circuit) string {
	switch {
	case now == nil:
		return "gone"
	case now == old:
		return ""
	case now.Epoch != old.Epoch, old.Public && !now.Public, !slices.Equal(old.Allowed, now.Allowed):
		return "revoked"
	case now.Protocol != old.Protocol, now.Mode != old.Mode, now.Port != old.Port, now.Label != old.Label:
		return "moved"
	case len(old.Targets) > 0 && len(goneTargets(old, now)) == len(old.Targets):
		return "moved"
	}
	return ""
}

// goneTargets are the targets of old that now has no more, whatever they weigh.
func goneTargets(old, now *Circuit) []proxy.TargetID {
	if now == old {
		return nil
	}
	var out []proxy.TargetID
	for i := range old.Targets {
		if id := old.Targets[i].ID(); !now.Has(id) {
			out = append(out, id)
		}
	}
	return out
}

// leaving are the addresses that old admitted and now does not. The connections of all others stay.
func leaving(old, now *Circuit) []netip.Addr {
	if now == old || now.Public {
		return nil
	}
	var out []netip.Addr
	for _, a := range old.Admitted {
		if !slices.Contains(now.Admitted, a) {
			out = append(out, a)
		}
	}
	return out
}

// maxGraves is how many ids of each generation of graves are kept. A look-up during which more circuits than that ended could
// bring one of them back, until the next snapshot.
const maxGraves = 4096

// graves are the ids of circuits that are gone: at least the last maxGraves of them. They are kept in two generations; when the
// younger is full it becomes the older one, and what was the older is dropped. Like a table they are immutable once published:
// dig copies the small list fresh and only now and then the map.
type graves struct {
	old, young map[string]bool
	fresh      []string // not in young yet
}

// freshGraves bounds the list that every dig copies.
const freshGraves = 64

func (g *graves) holds(id string) bool {
	return g.young[id] || g.old[id] || slices.Contains(g.fresh, id)
}

// open removes some ids.
func (g *graves) open(ids map[string]bool) {
	lives := func(id string, _ bool) bool { return ids[id] }
	g.old, g.young = maps.Clone(g.old), maps.Clone(g.young)
	maps.DeleteFunc(g.old, lives)
	maps.DeleteFunc(g.young, lives)
	g.fresh = slices.DeleteFunc(slices.Clone(g.fresh), func(id string) bool { return ids[id] })
}

func (g *graves) dig(id string) {
	if g.holds(id) {
		return
	}
	g.fresh = append(slices.Clone(g.fresh), id)
	if len(g.fresh) < freshGraves {
		return
	}
	young := make(map[string]bool, len(g.young)+len(g.fresh))
	maps.Copy(young, g.young)
	for _, id := range g.fresh {
		young[id] = true
	}
	g.young, g.fresh = young, nil
	if len(young) >= maxGraves {
		g.old, g.young = young, nil
	}
}
