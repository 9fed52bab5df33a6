// Package circuit decides who may pass an app proxy: the table of circuits, the tickets of visitors, and the admission of a
// request or connection. It is pure: addresses, headers and the time are inputs.
package circuit

import (
	"maps"
	"slices"

	"berth.dev/berth/internal/wire/proxy"
)

// Circuit is one published way to an app; it is never changed, only replaced.
type Circuit struct {
	proxy.Circuit
}

// Table is a set of circuits that is never changed: With makes another one.
type Table struct {
	byID    map[string]*Circuit
	byLabel map[string]*Circuit
	byPort  map[int]*Circuit
	keys    [][]byte
}

// ByLabel finds the circuit of a host name's first part, ByPort that of a port of the proxy; nil when there is none.
func (t *Table) ByLabel(label string) *Circuit { return t.byLabel[label] }

// ByPort finds the circuit of a port of the proxy.
func (t *Table) ByPort(port int) *Circuit { return t.byPort[port] }

// ByID finds a circuit.
func (t *Table) ByID(id string) *Circuit { return t.byID[id] }

// Len counts the circuits.
func (t *Table) Len() int { return len(t.byID) }

// Keys sign (the first) and check (all) tickets.
func (t *Table) Keys() [][]byte { return t.keys }

// Ports lists the ports in use in order.
func (t *Table) Ports() []int { return slices.Sorted(maps.Keys(t.byPort)) }

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
}

// With returns the table after a change, and the circuits whose open connections have lost their right: those that are
// gone, whose epoch rose, whose visitors are limited otherwise, or whose app is elsewhere now.
func (t *Table) With(c Change) (*Table, []Closed) {
	next := &Table{byID: map[string]*Circuit{}, byLabel: map[string]*Circuit{}, byPort: map[int]*Circuit{}}
	if t != nil {
		next.keys = t.keys
		if !c.Reset {
			maps.Copy(next.byID, t.byID)
		}
	}
	if c.Keys != nil {
		next.keys = c.Keys
	}
	for _, p := range c.Put {
		old := next.byID[p.ID]
		if old == nil && t != nil {
			old = t.byID[p.ID]
		}
		if old != nil && old.Revision >= p.Revision {
			next.byID[p.ID] = old // an event may be a repetition
			continue
		}
		next.byID[p.ID] = &Circuit{p}
	}
	for _, id := range c.Gone {
		delete(next.byID, id)
	}
	for _, p := range next.byID {
		switch p.Mode {
		case proxy.ModePort:
			next.byPort[p.Port] = p
		case proxy.ModeSubdomain:
			next.byLabel[p.Label] = p
		}
	}
	var closed []Closed
	if t != nil {
		for id, old := range t.byID {
			if reason := lost(old, next.byID[id]); reason != "" {
				closed = append(closed, Closed{ID: id, Reason: reason})
			}
		}
		slices.SortFunc(closed, func(a, b Closed) int { return compare(a.ID, b.ID) })
	}
	return next, closed
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// lost says why connections that old allowed must end under now; "" when they may stay.
func lost(old, now *Circuit) string {
	switch {
	case now == nil:
		return "gone"
	case now == old:
		return ""
	case now.Epoch != old.Epoch, old.Public && !now.Public, !slices.Equal(old.Allowed, now.Allowed):
		return "revoked"
	case now.Kernel != old.Kernel, now.Target != old.Target, now.Mode != old.Mode, now.Port != old.Port, now.Label != old.Label:
		return "moved"
	}
	return ""
}
