package scheduler

import (
	"container/heap"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Pass decides about a group at an instant. Sessions that it starts count as running from
// then on: a caller that could not commit one says so by Enqueue, with fresher facts of its
// agents by SetAgent and Run. Victims count as running until the caller removes them.
//
// A pass looks at sessions in the order of the queue. Those that cannot start are set aside and
// looked at again only when something changed that could help them: room on an agent that they
// could use, a quota, an agent, a policy.
func (c *Cluster) Pass(name string, now time.Time, work Work) (Result, error) {
	g := c.groups[name]
	if g == nil {
		return Result{}, nil
	}
	g.begin(now)
	var out Result
	if g.policy.Inactive {
		out.Wake = g.wakeTime()
		return out, nil
	}
	if !g.wake(work) {
		g.more, out.More = true, true
		return out, nil
	}
	g.searchBlocked()
	moves := g.moves
	for n := 0; ; n++ {
		l := g.ready.first()
		if l == nil {
			if out.Decisions = g.keepPlaces(nil, out.Decisions); len(g.ready) == 0 {
				g.tried = moves
				break
			}
			continue // a reservation moved and left room
		}
		if work.Placements > 0 && len(out.Decisions) >= work.Placements || work.Steps > 0 && n > 0 && g.steps >= work.Steps {
			out.More = true
			break
		}
		w := l.head(g)
		if out.Decisions = g.keepPlaces(w, out.Decisions); g.ready.first() != l {
			continue
		}
		g.steps++
		if o := g.over(l.band.party.account, l.kind); o != nil {
			g.lost(w)
			g.limit(l, o.scope)
			continue
		}
		holds, why, reason := g.place(w)
		if why == inTurn {
			out.Decisions = append(out.Decisions, g.commit(w, holds))
			continue
		}
		if why != blocked {
			g.lostKind(l.kind)
		}
		if g.refuse(l.kind, why, reason); why == blocked {
			g.searchFor(g.kinds[l.kind])
		}
	}
	g.unpark()
	g.more = out.More
	out.Wake = g.wakeTime()
	return out, nil
}

// begin brings a group to an instant.
func (g *group) begin(now time.Time) {
	g.at, g.steps = nanos(now), 0
	if !g.more { // otherwise it goes on with the one before
		g.passes++
	}
	g.sync()
	for len(g.future) > 0 && g.future[0].starts <= g.at {
		w := heap.Pop((*byStart)(&g.future)).(*waiting)
		g.enqueue(w)
	}
	g.cluster.wakeLoosened()
	if l, ok := g.strategy.(learner); ok {
		l.Settle(g)
	}
	if g.reshared {
		for _, p := range g.parties {
			p.Domain, p.Project, p.User = g.sharesOf(p.Owner)
		}
	}
	if aged := g.ageAt(g.at); g.reshared || g.ageing > 0 && g.aged != aged {
		g.aged = aged
		g.again()
		g.unreserved = true // who waited behind a reservation may come before it now
	}
	g.reshared = false
	g.former, g.reserved = g.reserved, nil
}

// wake makes kinds ready that what changed since the last pass could help; false when the bound
// on work ended it, with nothing lost.
func (g *group) wake(work Work) bool {
	if g.stirred {
		for len(g.refusals) > 0 {
			g.tryAgain(g.refusals[0])
		}
		g.stirred, g.unreserved, g.grown = false, false, g.grown[:0]
		return true
	}
	if g.unreserved || len(g.grown) > 0 {
		g.wakeBehind()
		g.unreserved = false
	}
	// Several kernels are placed one after the other: also less room can make a better start. And
	// who waits for kept room alone waits for any when that is gone.
	at := g.forgotten + len(g.changes)
	if !g.more {
		busy := len(g.ready) > 0 // something may change before their turn comes
		g.wakeKinds(func(k *kind, f *turn) bool {
			return (busy || f.seen != at) && (f.refused == behind || f.refused == blocked && k.kernels > 1)
		})
	}
	slices.SortFunc(g.grown, func(a, b *machine) int { return a.index - b.index })
	g.grown = slices.Compact(g.grown)
	for len(g.grown) > 0 {
		if work.Steps > 0 && g.steps >= work.Steps {
			return false
		}
		m := g.grown[len(g.grown)-1]
		g.grown = g.grown[:len(g.grown)-1]
		if m.group != g {
			continue
		}
		for i := 0; i < len(g.refusals); {
			k := g.refusals[i]
			g.steps++
			if g.kinds[k].refused == blocked && g.helps(m, k) {
				g.tryAgain(k) // moves another kind to i
				continue
			}
			i++
		}
	}
	return true
}

// helps reports whether a machine has room for a part of a kind of session.
func (g *group) helps(m *machine, k *kind) bool {
	var last *shape
	for i := range k.units {
		sh := k.units[i].shape
		if sh != last && m.eligible(k, sh) == "" && g.fits(m, m.now(), sh) {
			return true
		}
		last = sh
	}
	return false
}

// wakeBehind makes those ready that were refused room that is kept for others in an earlier pass.
func (g *group) wakeBehind() {
	g.wakeKinds(func(_ *kind, f *turn) bool { return f.refused == behind && f.pass != g.passes })
}

func (g *group) wakeKinds(which func(*kind, *turn) bool) {
	for i := 0; i < len(g.refusals); {
		if k := g.refusals[i]; which(k, g.kinds[k]) {
			g.tryAgain(k) // moves another kind to i
			continue
		}
		i++
	}
}

// commit turns a waiting session into a running one whose devices are booked.
func (g *group) commit(w *waiting, holds []*hold) Decision {
	k, a := w.lane.kind, w.lane.band.party.account
	r := &running{
		id: w.id, name: w.name, group: g, account: a, sum: k.sum, holds: holds, started: g.at, end: forever,
		priority: w.lane.band.priority, private: k.private, preemptible: k.session.Preemptible, companions: k.session.Companions,
	}
	if k.life > 0 {
		r.end = g.at + k.life
	}
	d := Decision{Session: w.id, Placements: make([]Placement, len(holds))}
	for i, h := range holds {
		h.run = r
		h.allocation = h.machine.topo.Allocation(h.takes)
		d.Placements[i] = Placement{Kernel: h.kernel, Agent: h.machine.id, Allocation: h.allocation}
	}
	g.lost(w)
	g.fulfil(w, r)
	g.unreserve(w)
	g.withdraw(w)
	g.start(r)
	return d
}

// place books room for a session, all or none: holds by kernel, or why not.
func (g *group) place(w *waiting) ([]*hold, place, Reason) {
	k := w.lane.kind
	if k.kernels == 0 {
		return nil, hopeless, TooBig
	}
	holds := make([]*hold, k.kernels)
	kept := false // room that is kept for others was passed by
	cursor := g.cursor
	for _, i := range g.sequence(k) {
		u := &k.units[i]
		m, takes, passed := g.seat(w, k, u.shape)
		kept = kept || passed
		if m == nil {
			g.unplace(holds)
			g.cursor = cursor
			if !kept {
				why, reason := g.diagnose(k)
				return nil, why, reason
			}
			// It waits for kept room only if it would start there.
			g.heedless = true
			holds, why, reason := g.place(w)
			g.heedless = false
			if why == inTurn {
				g.unplace(holds)
				g.cursor = cursor
				return nil, behind, WaitsBehind
			}
			return nil, why, reason
		}
		for n, kernel := range u.kernels {
			h := &hold{machine: m, kernel: w.kernelID(kernel), takes: takes[n]}
			m.take(h.takes, 1)
			holds[kernel] = h
		}
		g.changed(m)
		g.cursor = m.id
	}
	return holds, inTurn, ""
}

// unplace gives back what place booked.
func (g *group) unplace(holds []*hold) {
	for _, h := range holds {
		if h != nil {
			h.machine.take(h.takes, -1)
			g.changed(h.machine)
		}
	}
}

// sequence is the order in which the units of a kind are placed: those with the fewest machines
// to choose from first, then the largest.
func (g *group) sequence(k *kind) []int {
	g.sequenced = g.sequenced[:0]
	for i := range k.units {
		g.sequenced = append(g.sequenced, i)
	}
	if first := k.units[0].shape; slices.ContainsFunc(k.units, func(u unit) bool { return u.shape != first }) {
		slices.SortStableFunc(g.sequenced, func(a, b int) int {
			return g.boardOf(k.units[a].shape).fits - g.boardOf(k.units[b].shape).fits
		})
	}
	return g.sequenced
}

// seat finds the best machine for a shape and devices on it, by request. passed reports that a
// machine was passed by because its room is kept for others.
func (g *group) seat(w *waiting, k *kind, sh *shape) (m *machine, takes [][]alloc.Take, passed bool) {
	b := g.boardOf(sh)
	g.skip = g.skip[:0]
	barred := g.bars(w)
	if g.heedless {
		barred = nil
	}
	for {
		i := g.best(b, k, barred)
		if i < 0 {
			break
		}
		m := g.machines[i]
		s := m.now()
		if !g.heedless && g.keptFrom(m, w) {
			if !g.fits(m, g.masked, sh) {
				passed = true
				g.skip = append(g.skip, int32(i))
				continue
			}
			s = g.masked
		}
		if takes := g.devices(m, s, sh); takes != nil {
			return m, takes, passed
		}
		g.skip = append(g.skip, int32(i))
	}
	if barred != nil && !passed {
		for i, key := range b.keys {
			passed = passed || key != nowhere && barred[i]
		}
	}
	return nil, nil, passed
}

// devices chooses devices for each request of a shape in a state of a machine.
func (g *group) devices(m *machine, s state, sh *shape) [][]alloc.Take {
	on := int32(0)
	if p, ok := g.strategy.(picker); ok {
		on = int32(1 + p.Pick(&View{m: m, w: Wanted{g: g, s: sh}}))
	}
	if len(sh.requests) == 1 {
		takes, ok := g.choose(m, s.free, &sh.requests[0], on, make([]alloc.Take, 0, 8))
		if !ok && on > 0 {
			takes, ok = g.choose(m, s.free, &sh.requests[0], 0, takes[:0])
		}
		if !ok {
			return nil
		}
		return [][]alloc.Take{takes}
	}
	out := make([][]alloc.Take, len(sh.requests))
	g.scratch.free = append(g.scratch.free[:0], s.free...)
	g.scratch.room = append(g.scratch.room[:0], s.room...)
	for i := range sh.requests {
		takes, ok := g.choose(m, g.scratch.free, &sh.requests[i], 0, nil)
		if !ok {
			return nil
		}
		m.give(&g.scratch, takes, -1)
		out[i] = takes
	}
	return out
}

// best is the machine with the best worth that is not skipped or barred, -1 when none is left.
// Wishes of the session come first: companions, then agents that did not just fail it.
func (g *group) best(b *board, k *kind, barred []bool) int {
	g.steps += 1 + len(b.keys)/64
	if b.fits == 0 {
		return -1
	}
	from := 0
	if g.strategy.Turns() {
		from, _ = slices.BinarySearchFunc(g.machines, g.cursor, func(m *machine, id cluster.AgentID) int {
			if m.id <= id {
				return -1
			}
			return 1
		})
	}
	plain := g.plain(k) && barred == nil && len(g.skip) == 0
	best, bestKey, bestTier := -1, nowhere, 0
	for n := range b.keys {
		i := n + from
		if i >= len(b.keys) {
			i -= len(b.keys)
		}
		key := b.keys[i]
		if key == nowhere || plain && key >= bestKey {
			continue
		}
		if !plain {
			tier := g.tier(k, g.machines[i])
			if tier < 0 || barred != nil && barred[i] || slices.Contains(g.skip, int32(i)) {
				continue
			}
			if best >= 0 && (tier > bestTier || tier == bestTier && key >= bestKey) {
				continue
			}
			bestTier = tier
		}
		best, bestKey = i, key
		if plain && g.strategy.Turns() {
			break
		}
	}
	return best
}

// tier is how well a machine suits the wishes of a session, smaller first; -1 excludes it.
func (g *group) tier(k *kind, m *machine) int {
	s := &k.session
	if len(s.Designated) > 0 && !slices.Contains(s.Designated, m.id) || m.hangs(k) {
		return -1
	}
	tier := 0
	if at := g.companions[s.Companions.Name]; s.Companions.Name != "" && len(at) > 0 {
		if (at[m] > 0) == s.Companions.Apart {
			if s.Companions.Strict {
				return -1
			}
			tier += 2
		}
	}
	if slices.Contains(s.Failed, m.id) {
		tier++
	}
	return tier
}

// diagnose finds out why a kind has no room: whether it ever could have.
func (g *group) diagnose(k *kind) (place, Reason) {
	usable, fitsSums := false, false
	for _, u := range k.units {
		for _, m := range g.machines {
			if m.eligible(k, u.shape) != "" {
				continue
			}
			usable = true
			if short, _ := g.shortOf(m, m.now(), u.shape); !short {
				fitsSums = true
			}
		}
	}
	g.steps += len(g.machines)
	switch {
	case !usable:
		return hopeless, WaitsForAgent
	case !g.couldEver(k, false):
		if g.couldEver(k, true) {
			return hopeless, WaitsForAgent
		}
		return hopeless, TooBig
	case fitsSums && g.plain(k) && len(k.units) == 1:
		return blocked, WaitsForDevices
	}
	return blocked, WaitsForCapacity
}

// shortOf reports whether sums alone keep a shape from fitting, and the first slot that is short.
func (g *group) shortOf(m *machine, s state, sh *shape) (bool, int32) {
	for _, w := range sh.sum {
		if w.amount > 0 && (int(w.slot) >= len(s.room) || s.room[w.slot] < w.amount) {
			return true, w.slot
		}
	}
	return false, -1
}

// couldEver reports whether a kind fits when nothing runs, counting also lost and unschedulable
// agents when away is set.
func (g *group) couldEver(k *kind, away bool) bool {
	usable := func(m *machine, sh *shape) bool {
		f := m.eligible(k, sh)
		return f == "" || away && (f == filterLost || f == filterNotSchedulable || f == filterVolume)
	}
	if len(k.units) == 1 {
		sh := k.units[0].shape
		return slices.ContainsFunc(g.machines, func(m *machine) bool { return usable(m, sh) && g.fits(m, m.empty(), sh) })
	}
	// Whether many kernels of different sizes can be arranged is a puzzle; that they cannot must be
	// certain. So look at each shape by itself, and at the sums.
	var sum []cluster.Amount
	for _, m := range g.machines {
		if slices.ContainsFunc(k.units, func(u unit) bool { return usable(m, u.shape) }) {
			for slot, v := range m.total {
				sum = addTo(sum, []want{{int32(slot), v}}, 1)
			}
		}
	}
	for _, w := range k.sum {
		if int(w.slot) >= len(sum) || sum[w.slot] < w.amount {
			return false
		}
	}
	for i, u := range k.units {
		if slices.ContainsFunc(k.units[:i], func(v unit) bool { return v.shape == u.shape }) {
			continue
		}
		need := 0
		for _, v := range k.units[i:] {
			if v.shape == u.shape {
				need++
			}
		}
		for _, m := range g.machines {
			if need > 0 && usable(m, u.shape) && g.fits(m, m.empty(), u.shape) {
				need -= m.copies(u.shape)
			}
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// copies is at most how many of a shape that fits an empty machine it holds together.
func (m *machine) copies(sh *shape) int {
	n := int64(1) << 30
	for _, w := range sh.sum {
		if w.amount > 0 {
			n = min(n, int64(m.totalOf(w.slot)/w.amount))
		}
	}
	return int(n)
}

// byStart is a heap of sessions that wait for their start time.
type byStart []*waiting

func (h byStart) Len() int { return len(h) }
func (h byStart) Less(i, j int) bool {
	return h[i].starts < h[j].starts || h[i].starts == h[j].starts && h[i].id < h[j].id
}
func (h byStart) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *byStart) Push(x any)   { *h = append(*h, x.(*waiting)) }
func (h *byStart) Pop() any {
	n := len(*h) - 1
	w := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return w
}

func (g *group) pushFuture(w *waiting) { heap.Push((*byStart)(&g.future), w) }

func (g *group) dropFuture(w *waiting) {
	if i := slices.Index(g.future, w); i >= 0 {
		heap.Remove((*byStart)(&g.future), i)
	}
}

// wakeTime is when time alone changes something.
func (g *group) wakeTime() time.Time {
	at := forever
	if len(g.future) > 0 {
		at = g.future[0].starts
	}
	for _, r := range g.reserved {
		if r.end > g.at {
			at = min(at, r.end)
		}
	}
	if t := g.preemptTime(); t > g.at {
		at = min(at, t)
	}
	if at == forever {
		return time.Time{}
	}
	return time.Unix(0, at).UTC()
}

// learn tells the strategy what is asked for.
func (g *group) learn(k *kind, typical bool) {
	if l, ok := g.strategy.(learner); ok {
		for i := range k.units {
			l.Learn(&Wanted{g: g, s: k.units[i].shape}, typical)
		}
	}
}
