package quota

import (
	"cmp"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// Bounds of guarantees.
const (
	ByGuarantee = "guarantee"
	ByLimit     = "limit"
	ByTotal     = "total" // of a domain
)

// Problem is a promise that cannot be kept: what is guaranteed in a node or below it is more than the node has.
type Problem struct {
	Node  ID
	Path  string
	Group string
	Slot  cluster.SlotName
	By    string         // ByGuarantee, ByLimit or ByTotal
	Sum   cluster.Amount // what is guaranteed, or what is guaranteed together below it
	Bound cluster.Amount
}

// Words say what is wrong, with the amounts as text writes them.
func (p *Problem) Words(text func(cluster.SlotName, cluster.Amount) string) string {
	where := p.Path
	if p.Group != "" {
		where += " in resource group " + p.Group
	}
	return fmt.Sprintf("the guarantees in %s sum up to %s, and its %s is %s", where, text(p.Slot, p.Sum), p.By, text(p.Slot, p.Bound))
}

// Check finds the promises that cannot be kept. What is guaranteed below a node is at most what the node itself is guaranteed, and no more
// is guaranteed than what limits allow.
func Check(f Facts) []Problem {
	var out []Problem
	t := New(f)
	if t == nil {
		return nil
	}
	below := make([]cluster.Slots, len(t.all)) // what the children of a node need together
	need := func(n *Node, slot cluster.SlotName) cluster.Amount {
		v := below[n.Index][slot]
		if l := n.find(slot); l != nil && l.assured {
			v = max(v, l.guaranteed)
		}
		return v
	}
	// A node has a higher index than those above it.
	for i := len(t.all) - 1; i >= 0; i-- {
		n := t.all[i]
		slots := map[cluster.SlotName]bool{}
		for slot := range below[i] {
			slots[slot] = true
		}
		for _, l := range n.slots {
			slots[l.slot] = true
		}
		for slot := range slots {
			v := need(n, slot)
			if v == 0 {
				continue
			}
			if n.parent != nil {
				if below[n.parent.Index] == nil {
					below[n.parent.Index] = cluster.Slots{}
				}
				below[n.parent.Index][slot] += v
			}
			p := Problem{Node: n.ID, Path: n.Path, Group: n.Group, Slot: slot, Sum: v}
			if l := n.find(slot); l != nil && l.assured && v > l.guaranteed {
				p.By, p.Bound = ByGuarantee, l.guaranteed
				out = append(out, p)
			}
			if l := n.find(slot); l != nil && l.limited && v > l.limit {
				p.By, p.Bound = ByLimit, l.limit
				out = append(out, p)
			}
			if total, limited := f.Totals[n.ID.Domain][slot]; limited && n.ID.Domain != "" && n.Group == "" && v > total {
				p.By, p.Bound = ByTotal, total
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.By, b.By))
	})
	return out
}

// Worse finds the first promise that a change breaks or breaks further, nil when it breaks none.
func Worse(before, after Facts) *Problem {
	type place struct {
		node      ID
		group, by string
		slot      cluster.SlotName
	}
	at := func(p Problem) place { return place{p.Node, p.Group, p.By, p.Slot} }
	was := map[place]cluster.Amount{}
	for _, p := range Check(before) {
		was[at(p)] = p.Sum - p.Bound
	}
	for _, p := range Check(after) {
		if p.Sum-p.Bound > was[at(p)] {
			return &p
		}
	}
	return nil
}

// State is what a tree tells of a node and a slot.
type State struct {
	Slot              cluster.SlotName
	Guaranteed, Limit cluster.Amount
	Assured, Limited  bool
	// Effective is the lowest limit of the node and of those above it; EffectiveBy is whose it is. They mean something where Bounded is true.
	Effective     cluster.Amount
	EffectiveBy   string
	Bounded       bool
	Used, Waiting cluster.Amount
	// Borrowed is what is used beyond the guarantee; Lent is what of the guarantee is not used and nobody waits for.
	Borrowed, Lent cluster.Amount
}

// States tell of every slot that the node, or one above it, has rules for, by name.
func (n *Node) States() []State {
	var out []State
	seen := map[cluster.SlotName]bool{}
	for at := n; at != nil; at = at.parent {
		for i := range at.slots {
			if l := &at.slots[i]; (l.assured || l.limited) && !seen[l.slot] {
				seen[l.slot] = true
				out = append(out, n.state(l.slot))
			}
		}
	}
	slices.SortFunc(out, func(a, b State) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}

func (n *Node) state(slot cluster.SlotName) State {
	s := State{Slot: slot}
	if l := n.find(slot); l != nil {
		s.Guaranteed, s.Limit, s.Assured, s.Limited, s.Used, s.Waiting = l.guaranteed, l.limit, l.assured, l.limited, l.used, l.wanted
		if l.assured {
			s.Borrowed, s.Lent = max(l.used-l.guaranteed, 0), max(l.unused()-l.wanted, 0)
		}
	}
	for at := n; at != nil; at = at.parent {
		if l := at.find(slot); l != nil && l.limited && (!s.Bounded || l.limit <= s.Effective) {
			s.Effective, s.EffectiveBy, s.Bounded = l.limit, at.Path, true
		}
	}
	return s
}
