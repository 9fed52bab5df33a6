package alloc

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// numa is the free parts of one NUMA node.
type numa struct {
	node  int
	near  bool
	parts []part
	free  cluster.Amount
}

// byNode groups free parts by node, unknown (-1) last.
func byNode(parts []part, near map[int]bool) []numa {
	at := map[int]int{}
	var out []numa
	for _, p := range parts {
		if p.free == 0 {
			continue
		}
		i, ok := at[p.NUMA]
		if !ok {
			i = len(out)
			at[p.NUMA] = i
			out = append(out, numa{node: p.NUMA, near: near[p.NUMA]})
		}
		out[i].parts = append(out[i].parts, p)
		out[i].free += p.free
	}
	slices.SortFunc(out, func(a, b numa) int { return cmp.Compare(uint(a.node), uint(b.node)) })
	return out
}

// nodesFor orders nodes for a request: one node that holds all of it when there is one
// (near ones first, then by placement), else near ones and then the emptiest, so that few are needed.
func nodesFor(nodes []numa, want cluster.Amount, placement Placement) []numa {
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b numa) int {
		fitsA, fitsB := a.free >= want, b.free >= want
		switch {
		case fitsA != fitsB:
			return yes(fitsA, fitsB)
		case a.near != b.near:
			return yes(a.near, b.near)
		case fitsA && placement == Pack:
			return cmp.Compare(a.free, b.free)
		}
		return cmp.Compare(b.free, a.free)
	})
	return nodes
}

// yes orders true before false.
func yes(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// pickWhole takes whole units, one NUMA node where possible, siblings together. It returns
// nil when the free units are cut up so that too few whole ones are left.
func pickWhole(parts []part, want cluster.Amount, near map[int]bool, placement Placement) map[string]cluster.Amount {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].free -= parts[i].free % cluster.Milli
	}
	nodes := byNode(parts, near)
	out := map[string]cluster.Amount{}
	for left := want; left > 0; {
		if len(nodes) == 0 {
			return nil
		}
		nodes = nodesFor(nodes, left, placement)
		take := min(left, nodes[0].free)
		takeSiblings(nodes[0].parts, take, placement, out)
		left -= take
		nodes = nodes[1:]
	}
	return out
}

// takeSiblings takes want from the parts of one node, which hold at least that much. Whole
// sibling groups go first; a remainder goes to a group that is broken already.
func takeSiblings(parts []part, want cluster.Amount, placement Placement, out map[string]cluster.Amount) {
	if parts[0].Slot == cluster.SlotCPU && parts[0].Capacity > cluster.Milli {
		takeShared(parts, want, out)
		return
	}
	groups := siblings(parts)
	slices.SortStableFunc(groups, func(a, b group) int {
		if placement == Spread {
			return cmp.Compare(b.free, a.free)
		}
		return cmp.Or(yes(a.whole, b.whole), cmp.Compare(b.free, a.free))
	})
	for want > 0 {
		// The first group that is used up, else the one with the least left over.
		at := slices.IndexFunc(groups, func(g group) bool { return g.free <= want && (g.whole || placement == Spread) })
		if at < 0 {
			for i, g := range groups {
				if g.free >= want && (at < 0 || g.free < groups[at].free || g.free == groups[at].free && !g.whole && groups[at].whole) {
					at = i
				}
			}
		}
		if at < 0 {
			at = 0 // only broken groups are left; the largest comes first
		}
		g := groups[at]
		groups = slices.Delete(groups, at, at+1)
		for evenly := true; evenly && want > 0; {
			// One unit from each in turn, so that devices of several units share the load.
			evenly = false
			for i := range g.parts {
				if want > 0 && g.parts[i].free > 0 {
					g.parts[i].free -= cluster.Milli
					out[g.parts[i].ID] += cluster.Milli
					want -= cluster.Milli
					evenly = true
				}
			}
		}
	}
}

// takeShared takes units of overcommitted cores one by one, each from the core with the most
// left, so that a request for two cores really runs on two.
func takeShared(parts []part, want cluster.Amount, out map[string]cluster.Amount) {
	for ; want > 0; want -= cluster.Milli {
		emptiest := 0
		for i, p := range parts {
			if p.free > parts[emptiest].free {
				emptiest = i
			}
		}
		parts[emptiest].free -= cluster.Milli
		out[parts[emptiest].ID] += cluster.Milli
	}
}

// group is devices that share a core or card; whole when none of it is used.
type group struct {
	parts []part
	free  cluster.Amount
	whole bool
}

func siblings(parts []part) []group {
	at := make(map[string]int, len(parts))
	for i, p := range parts {
		at[p.ID] = i
	}
	var out []group
	placed := make([]bool, len(parts))
	for i, p := range parts {
		if placed[i] {
			continue
		}
		members, size := []int{i}, 1
		for id, d := range p.Links {
			if d > DistanceSibling {
				continue
			}
			size++
			if j, ok := at[id]; ok && !placed[j] {
				members = append(members, j)
			}
		}
		slices.Sort(members) // the order of parts, not of the map
		g := group{whole: len(members) >= size}
		for _, j := range members {
			placed[j] = true
			g.parts = append(g.parts, parts[j])
			g.free += parts[j].free
			g.whole = g.whole && parts[j].free == parts[j].Capacity
		}
		out = append(out, g)
	}
	return out
}

// pickBulk takes an exact amount from as few devices as possible, the near ones first.
func pickBulk(parts []part, want cluster.Amount, near map[int]bool, placement Placement) map[string]cluster.Amount {
	out := map[string]cluster.Amount{}
	for left := want; left > 0; {
		at := -1
		for i, p := range parts {
			if p.free > 0 && out[p.ID] == 0 && (at < 0 || betterBulk(p, parts[at], left, near, placement)) {
				at = i
			}
		}
		if at < 0 {
			return nil
		}
		take := min(left, parts[at].free)
		out[parts[at].ID] = take
		left -= take
	}
	return out
}

func betterBulk(a, b part, want cluster.Amount, near map[int]bool, placement Placement) bool {
	if nearA, nearB := near[a.NUMA], near[b.NUMA]; nearA != nearB {
		return nearA
	}
	fitsA, fitsB := a.free >= want, b.free >= want
	if fitsA != fitsB {
		return fitsA
	}
	if fitsA && placement == Pack {
		return a.free < b.free
	}
	return a.free > b.free
}

// pickFraction takes the tightest single device that holds the request; else the fewest
// devices, in equal parts where they can hold them, leaving the smallest rests.
func pickFraction(parts []part, want cluster.Amount, near map[int]bool, policy Policy) map[string]cluster.Amount {
	parts = slices.Clone(parts)
	var largest cluster.Amount
	for i := range parts {
		parts[i].free -= parts[i].free % Quantum
		largest = max(largest, parts[i].Capacity)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.free, a.free) })
	var sum cluster.Amount
	count := 0
	for sum < want {
		if count == len(parts) || parts[count].free == 0 {
			return nil
		}
		sum += parts[count].free
		count++
	}
	if policy.NoFragment {
		whole := int((want + largest - 1) / largest)
		if count > whole {
			return nil
		}
	}
	// Devices that hold an equal part; the remainder of quanta goes one by one to the first.
	equal := want / cluster.Amount(count)
	equal -= equal % Quantum
	extra := int((want - equal*cluster.Amount(count)) / Quantum)
	need := equal
	if extra > 0 {
		need += Quantum
	}
	var holders []part
	for _, p := range parts {
		if p.free >= need {
			holders = append(holders, p)
		}
	}
	if len(holders) >= count {
		slices.SortStableFunc(holders, func(a, b part) int {
			if c := yes(near[a.NUMA], near[b.NUMA]); c != 0 {
				return c
			}
			if policy.Placement == Spread {
				return cmp.Compare(b.free, a.free)
			}
			return cmp.Compare(a.free, b.free)
		})
		out := map[string]cluster.Amount{}
		for i, p := range holders[:count] {
			out[p.ID] = equal
			if i < extra {
				out[p.ID] += Quantum
			}
		}
		return out
	}
	if policy.NoFragment {
		return nil
	}
	// The largest ones, smallest of them first, each taking its share of what is left.
	out := map[string]cluster.Amount{}
	for i := count - 1; i >= 0; i-- {
		share := want / cluster.Amount(i+1)
		if r := share % Quantum; r != 0 {
			share += Quantum - r
		}
		take := min(share, parts[i].free, want)
		out[parts[i].ID] = take
		want -= take
	}
	return out
}
