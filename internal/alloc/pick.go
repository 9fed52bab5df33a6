package alloc

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// Chooser chooses devices. It owns the space it works in, so that a choice allocates nothing:
// one chooser serves one goroutine. The zero value is ready.
type Chooser struct {
	t     *Topology
	parts []part
	node  []part // the parts of one NUMA node
	out   []Take
	near  []int // NUMA nodes chosen so far
	begun int   // where the takes of this choice begin
	nodes []numa
	cards []card
	set   []int
	best  []int
	left  []cluster.Amount // what is free beside the wants before, where cards have several slots
}

// part is a device with what is left of it, rounded down to what can be handed out.
type part struct {
	device int32
	group  int32
	numa   int
	near   bool
	free   cluster.Amount
	size   cluster.Amount // its capacity
}

// numa is what one NUMA node has left.
type numa struct {
	id   int
	near bool
	free cluster.Amount
}

// card is devices that share a core or a card; whole when none of it is used.
type card struct {
	group, members int32
	count          int32
	free           cluster.Amount
	whole          bool
	used           bool // taken already
}

// Choose finds devices for wants, which must be sorted by slot, among those that are free. It
// appends to takes; false means that nothing was chosen. The same arguments give the same choice.
func (c *Chooser) Choose(t *Topology, free []cluster.Amount, wants []Want, p *Policy, takes []Take) ([]Take, bool) {
	c.t, c.near, c.out, c.begun = t, c.near[:0], takes, len(takes)
	exclusive := t.faces != nil && len(wants) > 1
	if exclusive {
		c.left = append(c.left[:0], free...)
		free = c.left
	}
	for _, w := range wants {
		from := len(c.out)
		if !c.choose(free, w, p) {
			return takes, false
		}
		if exclusive {
			for _, x := range c.out[from:] {
				free[x.Device] -= x.Amount
			}
		}
		for _, x := range c.out[from:] {
			if id := t.devices[x.Device].NUMA; id >= 0 && !slices.Contains(c.near, id) {
				c.near = append(c.near, id)
			}
		}
	}
	return c.out, true
}

func (c *Chooser) choose(free []cluster.Amount, w Want, p *Policy) bool {
	s := &c.t.sections[w.Slot]
	if w.On == 0 && !c.t.Holds(free, w, p) {
		return false
	}
	unit := s.rule.unit()
	c.parts = c.parts[:0]
	for i := s.from; i < s.to; i++ {
		d := &c.t.devices[i]
		left := c.t.Left(free, i)
		if left < unit || w.On != 0 && int(w.On) != i+1 || !usable(d, p) {
			continue
		}
		c.parts = append(c.parts, part{
			device: int32(i), group: c.t.groups[i], numa: d.NUMA, near: slices.Contains(c.near, d.NUMA),
			free: left - left%unit, size: d.Capacity,
		})
	}
	switch {
	case w.On != 0:
		if len(c.parts) == 0 || c.parts[0].free < w.Amount || w.Amount%unit != 0 {
			return false
		}
		c.take(c.parts[0].device, w.Amount)
	case s.rule == Bulk || s.rule == Divisible:
		c.pickBulk(w.Amount, p.Placement)
	case s.rule == Fraction:
		c.pickFraction(s, w.Amount, p)
	case adapter(s.slot) && len(c.out) > c.begun:
		c.pickBeside(w.Amount)
	default:
		c.pickWhole(s, w.Amount, p.Placement)
	}
	return true
}

// pickBeside takes whole units, one by one, each from the adapter that is nearest to an accelerator of this choice. The accelerators
// are served evenly, and adapters that serve none yet come before others.
func (c *Chooser) pickBeside(want cluster.Amount) {
	from := len(c.out)
	served := c.out[c.begun:from]
	units := int(want / cluster.Milli)
	for i := range c.parts {
		c.take(c.parts[i].device, 0)
	}
	taken := c.out[from:]
	for n := range units {
		beside := &c.t.devices[served[n*len(served)/units].Device]
		at := -1
		for i := range c.parts {
			switch {
			case c.parts[i].free-taken[i].Amount < cluster.Milli:
			case at < 0 || taken[i].Amount < taken[at].Amount:
				at = i
			case taken[i].Amount == taken[at].Amount && c.apart(i, beside) < c.apart(at, beside):
				at = i
			}
		}
		taken[at].Amount += cluster.Milli
	}
	c.out = slices.DeleteFunc(c.out, func(x Take) bool { return x.Amount == 0 })
}

// apart is the distance class between an adapter and an accelerator.
func (c *Chooser) apart(part int, accelerator *Device) int {
	d := &c.t.devices[c.parts[part].device]
	if class, ok := d.Links[accelerator.PCI]; ok && accelerator.PCI != "" {
		return class
	}
	if d.NUMA >= 0 && d.NUMA == accelerator.NUMA {
		return DistanceNode
	}
	return DistanceFar
}

func (c *Chooser) take(device int32, amount cluster.Amount) {
	c.out = append(c.out, Take{device, amount})
}

// pickWhole takes whole units, one NUMA node where possible, siblings together. The parts hold
// at least that much.
func (c *Chooser) pickWhole(s *section, want cluster.Amount, placement Placement) {
	c.nodes = c.nodes[:0]
	for i := range c.parts {
		p := &c.parts[i]
		at := slices.IndexFunc(c.nodes, func(n numa) bool { return n.id == p.numa })
		if at < 0 {
			at = len(c.nodes)
			c.nodes = append(c.nodes, numa{id: p.numa, near: p.near})
		}
		c.nodes[at].free += p.free
	}
	slices.SortFunc(c.nodes, func(a, b numa) int { return cmp.Compare(uint(a.id), uint(b.id)) }) // unknown (-1) last
	for want > 0 {
		at := 0
		for i := range c.nodes {
			if betterNode(&c.nodes[i], &c.nodes[at], want, placement) {
				at = i
			}
		}
		n := c.nodes[at]
		c.nodes = slices.Delete(c.nodes, at, at+1)
		c.node = c.node[:0]
		for _, p := range c.parts {
			if p.numa == n.id {
				c.node = append(c.node, p)
			}
		}
		take := min(want, n.free)
		want -= take
		switch {
		case s.slot == cluster.SlotCPU && c.node[0].size > cluster.Milli:
			c.takeShared(take)
		case s.distance != nil && take < n.free && c.units():
			c.takeNearest(s, int(take/cluster.Milli), cluster.Milli, placement)
		default:
			c.takeSiblings(take, placement)
		}
	}
}

// betterNode prefers a node that holds all of a request (near ones first, then by placement),
// else near ones and then the emptiest, so that few are needed.
func betterNode(a, b *numa, want cluster.Amount, placement Placement) bool {
	fitsA, fitsB := a.free >= want, b.free >= want
	switch {
	case fitsA != fitsB:
		return fitsA
	case a.near != b.near:
		return a.near
	case fitsA && placement == Pack:
		return a.free < b.free
	}
	return a.free > b.free
}

// units reports whether each part of the node is exactly one unit.
func (c *Chooser) units() bool {
	for i := range c.node {
		if c.node[i].size != cluster.Milli {
			return false
		}
	}
	return true
}

// takeSiblings takes want from the parts of one node, which hold at least that much. Whole
// cards go first; a remainder goes to a card that is broken already.
func (c *Chooser) takeSiblings(want cluster.Amount, placement Placement) {
	c.cards = c.cards[:0]
	first := int32(-1)
	for i := range c.node {
		p := &c.node[i]
		at := -1
		if p.group < first { // parts of one card need not follow each other
			at = slices.IndexFunc(c.cards, func(k card) bool { return k.group == p.group })
		} else if p.group == first {
			at = len(c.cards) - 1
			if c.cards[at].group != p.group {
				at = slices.IndexFunc(c.cards, func(k card) bool { return k.group == p.group })
			}
		}
		if at < 0 {
			at = len(c.cards)
			c.cards = append(c.cards, card{group: p.group, members: c.t.members[p.device], whole: true})
			first = max(first, p.group)
		}
		k := &c.cards[at]
		k.count++
		k.free += p.free
		k.whole = k.whole && p.free == p.size
	}
	for i := range c.cards {
		c.cards[i].whole = c.cards[i].whole && c.cards[i].count >= c.cards[i].members
	}
	slices.SortStableFunc(c.cards, func(a, b card) int {
		if placement == Spread || a.whole == b.whole {
			return cmp.Compare(b.free, a.free)
		}
		if a.whole {
			return -1
		}
		return 1
	})
	from := 0 // the first that is not taken
	for want > 0 {
		// The first card that is used up, else the one with the least left over, else the largest.
		at := -1
		for i := from; i < len(c.cards); i++ {
			if k := &c.cards[i]; !k.used && k.free <= want && (k.whole || placement == Spread) {
				at = i
				break
			}
		}
		if at < 0 {
			for i := from; i < len(c.cards); i++ {
				k := &c.cards[i]
				if k.used || k.free < want {
					continue
				}
				if at < 0 || k.free < c.cards[at].free || k.free == c.cards[at].free && !k.whole && c.cards[at].whole {
					at = i
				}
			}
		}
		if at < 0 {
			at = from
		}
		k := &c.cards[at]
		k.used = true
		for from < len(c.cards) && c.cards[from].used {
			from++
		}
		want -= c.takeCard(k.group, min(want, k.free))
	}
}

// takeCard takes one unit from each part in turn, so that parts of several units share the load.
func (c *Chooser) takeCard(group int32, want cluster.Amount) (took cluster.Amount) {
	from := len(c.out)
	for round := cluster.Amount(0); took < want; round += cluster.Milli {
		n := from
		for i := range c.node {
			p := &c.node[i]
			if p.group != group {
				continue
			}
			if round == 0 {
				c.take(p.device, 0)
			}
			if took < want && p.free > round {
				c.out[n].Amount += cluster.Milli
				took += cluster.Milli
			}
			n++
		}
	}
	c.out = slices.DeleteFunc(c.out, func(x Take) bool { return x.Amount == 0 })
	return took
}

// takeShared takes units of overcommitted cores one by one, each from the core with the most
// left, so that a request for two cores really runs on two.
func (c *Chooser) takeShared(want cluster.Amount) {
	from := len(c.out)
	for i := range c.node {
		c.take(c.node[i].device, 0)
	}
	for ; want > 0; want -= cluster.Milli {
		emptiest := 0
		for i := range c.node {
			if c.node[i].free > c.node[emptiest].free {
				emptiest = i
			}
		}
		c.node[emptiest].free -= cluster.Milli
		c.out[from+emptiest].Amount += cluster.Milli
	}
	c.out = slices.DeleteFunc(c.out, func(x Take) bool { return x.Amount == 0 })
}

// takeNearest takes count parts of the node that are near to each other and, when packing,
// far from those that it leaves: a link that joins free devices is worth keeping.
func (c *Chooser) takeNearest(s *section, count int, amount cluster.Amount, placement Placement) {
	n := s.to - s.from
	between := func(a, b int) int {
		return int(s.distance[(int(c.node[a].device)-s.from)*n+int(c.node[b].device)-s.from])
	}
	bestInside, bestOutside := -1, 0
	for seed := range c.node {
		c.set = append(c.set[:0], seed)
		inside := 0
		for len(c.set) < count {
			next, nextIn, nextOut := -1, 0, 0
			for i := range c.node {
				if slices.Contains(c.set, i) {
					continue
				}
				in, out := 0, 0
				for _, j := range c.set {
					in += between(i, j)
				}
				for j := range c.node {
					if j != i && !slices.Contains(c.set, j) {
						out -= between(i, j)
					}
				}
				if next < 0 || in < nextIn || in == nextIn && out < nextOut && placement == Pack {
					next, nextIn, nextOut = i, in, out
				}
			}
			c.set = append(c.set, next)
			inside += nextIn
		}
		outside := 0 // the smaller, the farther from what is left
		for _, i := range c.set {
			for j := range c.node {
				if !slices.Contains(c.set, j) {
					outside -= between(i, j)
				}
			}
		}
		if bestInside < 0 || inside < bestInside || inside == bestInside && outside < bestOutside && placement == Pack {
			bestInside, bestOutside = inside, outside
			c.best = append(c.best[:0], c.set...)
		}
	}
	slices.Sort(c.best)
	for _, i := range c.best {
		c.take(c.node[i].device, amount)
	}
}

// pickBulk takes an exact amount from as few devices as possible, the near ones first.
func (c *Chooser) pickBulk(want cluster.Amount, placement Placement) {
	for want > 0 {
		at := -1
		for i := range c.parts {
			if c.parts[i].free > 0 && (at < 0 || betterBulk(&c.parts[i], &c.parts[at], want, placement)) {
				at = i
			}
		}
		p := &c.parts[at]
		take := min(want, p.free)
		c.take(p.device, take)
		p.free = 0
		want -= take
	}
}

func betterBulk(a, b *part, want cluster.Amount, placement Placement) bool {
	fitsA, fitsB := a.free >= want, b.free >= want
	switch {
	case a.near != b.near:
		return a.near
	case fitsA != fitsB:
		return fitsA
	case fitsA && placement == Pack:
		return a.free < b.free
	}
	return a.free > b.free
}

// pickFraction takes the tightest single device that holds the request; else the fewest
// devices, in equal parts where they can hold them, leaving the smallest rests.
func (c *Chooser) pickFraction(s *section, want cluster.Amount, policy *Policy) {
	byFree := func(a, b part) int { return cmp.Compare(b.free, a.free) }
	slices.SortStableFunc(c.parts, byFree)
	var sum cluster.Amount
	count := 0
	for sum < want {
		sum += c.parts[count].free
		count++
	}
	// Devices that hold an equal part; the remainder of quanta goes one by one to the first.
	equal := want / cluster.Amount(count)
	equal -= equal % Quantum
	extra := int((want - equal*cluster.Amount(count)) / Quantum)
	need := equal
	if extra > 0 {
		need += Quantum
	}
	holders := 0
	for holders < len(c.parts) && c.parts[holders].free >= need {
		holders++
	}
	if holders < count {
		// The largest ones, smallest of them first, each taking its share of what is left.
		for i := count - 1; i >= 0; i-- {
			share := want / cluster.Amount(i+1)
			if r := share % Quantum; r != 0 {
				share += Quantum - r
			}
			take := min(share, c.parts[i].free, want)
			c.take(c.parts[i].device, take)
			want -= take
		}
		return
	}
	c.parts = c.parts[:holders]
	if count > 1 && extra == 0 && s.distance != nil && count < holders {
		c.node = append(c.node[:0], c.parts...)
		slices.SortFunc(c.node, func(a, b part) int { return cmp.Compare(a.device, b.device) })
		if c.sameNode(count) {
			c.takeNearest(s, count, equal, policy.Placement)
			return
		}
	}
	slices.SortStableFunc(c.parts, func(a, b part) int {
		switch {
		case a.near != b.near && a.near:
			return -1
		case a.near != b.near:
			return 1
		case policy.Placement == Spread:
			return byFree(a, b)
		}
		return byFree(b, a)
	})
	for i, p := range c.parts[:count] {
		amount := equal
		if i < extra {
			amount += Quantum
		}
		c.take(p.device, amount)
	}
}

// sameNode keeps only near parts in c.node when they suffice, and reports whether choosing by
// links is left to do: the tightest parts matter more than links where some are partly used.
func (c *Chooser) sameNode(count int) bool {
	near := 0
	for i := range c.node {
		if c.node[i].near {
			near++
		}
		if c.node[i].free != c.node[0].free {
			return false
		}
	}
	if near > 0 && near < count {
		return false
	}
	if near >= count {
		c.node = slices.DeleteFunc(c.node, func(p part) bool { return !p.near })
	}
	return true
}
