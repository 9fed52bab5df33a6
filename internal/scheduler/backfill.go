package scheduler

import (
	"cmp"
	"slices"
	"sort"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// reservation keeps room for a session that cannot start yet: from its end on, the time when
// declared lifetimes will have freed enough. Where they never will, room is kept as it becomes free.
//
// It never gets worse: what is kept is given only to sessions that end before it is needed, so
// the earliest time does not move back, and where no time is known what is missing only shrinks.
// A session that came to the front of the queue is thus overtaken for PassedOver at most, and
// then starts when the sessions that hold its place have ended.
type reservation struct {
	w     *waiting
	end   int64 // forever: unknown
	parts []part
}

// part is what a reservation keeps on one machine.
type part struct {
	m     *machine
	sum   []want // of all slots
	takes []alloc.Take
}

func (r *reservation) on(m *machine) *part {
	for i := range r.parts {
		if r.parts[i].m == m {
			return &r.parts[i]
		}
	}
	return nil
}

func (r *reservation) same(o *reservation) bool {
	return r.w == o.w && r.end == o.end && slices.EqualFunc(r.parts, o.parts, func(a, b part) bool {
		return a.m == b.m && slices.Equal(a.takes, b.takes) && slices.Equal(a.sum, b.sum)
	})
}

// since is when a session could first have started.
func (w *waiting) since() int64 { return max(w.enqueued, w.starts) }

// nextReserved is the first blocked lane without a reservation, nil when there are as many as the policy says.
func (g *group) nextReserved() *lane {
	if len(g.reserved) >= max(1, g.policy.Backfill.Reservations) {
		return nil
	}
	return g.blocked.first()
}

// reserveFor reserves a place for the head of a blocked lane.
func (g *group) reserveFor(l *lane) {
	if o := g.over(l.band.party.account, l.kind); o != nil {
		g.lost(l.head(g))
		g.limit(l, o.scope) // it could not start even if it had room
		return
	}
	// Out of its heap until the end of the pass, so that the next kind becomes the first.
	t := g.kinds[l.kind]
	t.join(nil)
	g.parked = append(g.parked, t)
	if slices.ContainsFunc(g.reserved, func(r *reservation) bool { return r.w.lane.kind == l.kind }) {
		return // it was tried again in this pass
	}
	n := len(g.reserved)
	r := g.reserve(l.head(g))
	g.reserved = append(g.reserved, r)
	g.bar()
	if n >= len(g.former) || !r.same(g.former[n]) {
		g.wakeBehind()
	}
}

// lost tells that a session which had a reservation in the last pass does not get one in this.
func (g *group) lost(w *waiting) {
	if i := slices.IndexFunc(g.former, func(r *reservation) bool { return r.w == w }); i >= 0 {
		g.former = slices.Delete(g.former, i, i+1)
		g.wakeBehind()
	}
}

// lostKind is lost for all sessions of a kind.
func (g *group) lostKind(k *kind) {
	for i := 0; i < len(g.former); {
		if w := g.former[i].w; w.lane.kind == k {
			g.lost(w)
			continue
		}
		i++
	}
}

// unpark gives kinds with a reservation back to their heap.
func (g *group) unpark() {
	for _, t := range g.parked {
		if t.refused == blocked {
			t.join(&g.blocked)
		}
	}
	g.parked = g.parked[:0]
}

// bar marks the machines that the kinds with reservations could ever run on, where backfill is off.
func (g *group) bar() {
	if !g.policy.Backfill.Disabled {
		return
	}
	g.barred = append(g.barred[:0], make([]bool, len(g.machines))...)
	for i, m := range g.machines {
		for _, r := range g.reserved {
			k := r.w.lane.kind
			for _, u := range k.units {
				g.barred[i] = g.barred[i] || m.eligible(k, u.shape) == "" && g.fits(m, m.empty(), u.shape)
			}
		}
	}
}

// unreserve drops the reservation of a session that starts.
func (g *group) unreserve(w *waiting) {
	if i := slices.IndexFunc(g.reserved, func(r *reservation) bool { return r.w == w }); i >= 0 {
		g.reserved = slices.Delete(g.reserved, i, i+1)
		g.unreserved = true
		g.bar()
	}
}

// bars are the machines closed for w, nil when there are none.
func (g *group) bars(w *waiting) []bool {
	if !g.policy.Backfill.Disabled || len(g.reserved) == 0 || len(g.barred) != len(g.machines) || g.before(g.reserved[0].w, w) >= 0 {
		return nil
	}
	return g.barred
}

// keptFrom reports whether room of a machine is kept from a session; g.masked is then what is left for it.
func (g *group) keptFrom(m *machine, w *waiting) bool {
	kept := false
	for _, r := range g.reserved {
		if p := r.on(m); p != nil && g.keeps(r, w) && !g.endsInTime(r, w) {
			g.mask(p, r.end, &kept)
		}
	}
	for _, c := range g.claims {
		if p := c.on(m); p != nil && g.keeps(&c.reservation, w) {
			g.mask(p, forever, &kept)
		}
	}
	return kept
}

// keeps reports whether a reservation is for a session that comes before w.
func (g *group) keeps(r *reservation, w *waiting) bool { return r.w != w && g.before(r.w, w) < 0 }

// endsInTime reports whether w may use what a reservation keeps: because it ends before, or
// because nobody knows when it ends and the reservation is still young.
func (g *group) endsInTime(r *reservation, w *waiting) bool {
	life := w.lane.kind.life
	if life == 0 {
		window := int64(g.policy.Backfill.PassedOver)
		return window > 0 && g.at-window < r.w.since()
	}
	return r.end != forever && g.at+life <= r.end
}

// mask takes what is kept off g.masked.
func (g *group) mask(p *part, end int64, kept *bool) {
	m := p.m
	if !*kept {
		m.copyTo(&g.masked)
		*kept = true
	}
	later := m.now()
	if end != forever {
		m.copyTo(&g.later)
		for _, h := range m.holds {
			if h.run.end <= max(end, g.at) {
				m.give(&g.later, h.takes, 1)
			}
		}
		later = g.later
	}
	for _, w := range p.sum {
		if !g.accelerates(w.slot) {
			g.masked.room[w.slot] = max(0, min(g.masked.room[w.slot], later.room[w.slot]-w.amount))
		}
	}
	for _, x := range p.takes {
		g.masked.free[x.Device] = max(0, min(g.masked.free[x.Device], later.free[x.Device]-x.Amount))
		i := m.slotOfDevice(int(x.Device))
		_, _, from, to := m.topo.Slot(i)
		sum := cluster.Amount(0)
		for d := from; d < to; d++ {
			sum += g.masked.free[d] - g.masked.free[d]%m.units[i]
		}
		g.masked.room[m.slot[i]] = sum
	}
}

func (g *group) accelerates(slot int32) bool { return slot != g.cluster.cpu && slot != g.cluster.mem }

// taken reports whether a machine is kept for another session already.
func (g *group) taken(m *machine, w *waiting) bool {
	return slices.ContainsFunc(g.reserved, func(r *reservation) bool { return r.w != w && r.on(m) != nil }) ||
		slices.ContainsFunc(g.claims, func(c *claim) bool { return c.w != w && c.on(m) != nil })
}

// reserve finds the earliest time and the place where a blocked session fits.
func (g *group) reserve(w *waiting) *reservation {
	k := w.lane.kind
	if c := g.claimOf(w); c != nil {
		return &c.reservation
	}
	if len(k.units) > 1 {
		return g.reserveGang(w)
	}
	r := &reservation{w: w, end: forever}
	sh := k.units[0].shape
	b := g.horizon(sh)
	best, bestEnd, bestTier := -1, forever, 0
	for i, end := range b.ends {
		m := g.machines[i]
		if end == never || end == forever {
			continue
		}
		if end = max(end, g.at); best >= 0 && end > bestEnd {
			continue
		}
		tier := g.tier(k, m)
		if tier < 0 || g.taken(m, w) || best >= 0 && end == bestEnd && tier >= bestTier {
			continue
		}
		best, bestEnd, bestTier = i, end, tier
	}
	if best >= 0 {
		m := g.machines[best]
		m.copyTo(&g.later)
		for _, h := range m.holds {
			if h.run.end <= bestEnd {
				m.give(&g.later, h.takes, 1)
			}
		}
		r.end = bestEnd
		r.keep(g, m, g.later, sh)
		return r
	}
	bestLack := 0.0
	for i, end := range b.ends {
		m := g.machines[i]
		if end != forever || g.tier(k, m) < 0 || g.taken(m, w) {
			continue
		}
		if b.lackVersion[i] != m.version {
			b.lacks[i], b.lackVersion[i] = g.lack(m, m.now(), sh), m.version
		}
		if lack := b.lacks[i]; best < 0 || lack < bestLack {
			best, bestLack = i, lack
		}
	}
	if best >= 0 {
		m := g.machines[best]
		r.parts = append(r.parts, part{m: m, sum: sh.sum, takes: g.freest(m, m.now(), sh)})
	}
	return r
}

// never is the horizon of a machine that a shape does not fit even when nothing runs.
const never = -forever

// horizon brings up to date when each machine will have room for a shape.
func (g *group) horizon(sh *shape) *board {
	b := g.boardOf(sh)
	if len(b.ends) != len(g.machines) || b.endFacts != g.facts {
		b.ends, b.endVersion = make([]int64, len(g.machines)), make([]uint64, len(g.machines))
		b.lacks, b.lackVersion = make([]float64, len(g.machines)), make([]uint64, len(g.machines))
		b.endFacts = g.facts
	}
	for i, m := range g.machines {
		if b.endVersion[i] != m.version {
			b.ends[i], b.endVersion[i] = g.endOn(m, sh), m.version
			g.steps++
		}
	}
	return b
}

// endOn is when enough on a machine has ended for a shape to fit: forever when not all of it is
// known to end, never when it would not fit then.
func (g *group) endOn(m *machine, sh *shape) int64 {
	if m.eligible(nil, sh) != "" || !g.fits(m, m.empty(), sh) {
		return never
	}
	if g.fits(m, m.now(), sh) {
		return 0
	}
	g.ends = g.ends[:0]
	for _, h := range m.holds {
		if h.run.end != forever {
			g.ends = append(g.ends, h)
		}
	}
	if len(g.ends) == 0 {
		return forever
	}
	slices.SortFunc(g.ends, func(a, b *hold) int { return cmp.Compare(a.run.end, b.run.end) })
	m.copyTo(&g.later)
	for i, h := range g.ends {
		m.give(&g.later, h.takes, 1)
		if (i+1 == len(g.ends) || g.ends[i+1].run.end != h.run.end) && g.fits(m, g.later, sh) {
			return h.run.end
		}
	}
	return forever
}

// keep adds what a shape takes of a machine in a state to a reservation, and takes it off the state.
func (r *reservation) keep(g *group, m *machine, s state, sh *shape) {
	p := part{m: m, sum: sh.sum}
	for _, takes := range g.devices(m, s, sh) {
		p.takes = addTakes(p.takes, g.accelerators(m, takes))
	}
	r.merge(p)
}

// accelerators keeps the takes of devices that are neither cores nor memory.
func (g *group) accelerators(m *machine, takes []alloc.Take) []alloc.Take {
	var out []alloc.Take
	for _, x := range takes {
		if g.accelerates(m.slot[m.slotOfDevice(int(x.Device))]) {
			out = append(out, x)
		}
	}
	return out
}

// merge adds a part; parts of one machine become one.
func (r *reservation) merge(p part) {
	old := r.on(p.m)
	if old == nil {
		r.parts = append(r.parts, p)
		return
	}
	sum := slices.Clone(old.sum)
	for _, w := range p.sum {
		if i := slices.IndexFunc(sum, func(x want) bool { return x.slot == w.slot }); i >= 0 {
			sum[i].amount += w.amount
		} else {
			sum = append(sum, w)
		}
	}
	old.sum, old.takes = sum, addTakes(slices.Clone(old.takes), p.takes)
}

// addTakes adds takes to a list in which every device stands once.
func addTakes(list, takes []alloc.Take) []alloc.Take {
	for _, x := range takes {
		if i := slices.IndexFunc(list, func(y alloc.Take) bool { return y.Device == x.Device }); i >= 0 {
			list[i].Amount += x.Amount
		} else {
			list = append(list, x)
		}
	}
	return list
}

// eachFreest walks the devices that a shape would use if those with the most free became wholly so.
func (g *group) eachFreest(m *machine, s state, sh *shape, do func(w want, device int, portion, have cluster.Amount)) {
	g.left = append(g.left[:0], s.free...) // less what earlier requests use
	for i := range sh.requests {
		for _, w := range sh.requests[i].wants {
			section := m.sectionOf(w.slot)
			if section < 0 || !g.accelerates(w.slot) {
				continue
			}
			_, _, from, to := m.topo.Slot(section)
			order := g.freed[:0]
			for d := from; d < to; d++ {
				dev := m.topo.Device(d)
				if models := sh.requests[i].models; dev.Healthy && (len(models) == 0 || slices.Contains(models, dev.Model)) {
					order = append(order, d)
				}
			}
			g.freed = order
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.left[b], g.left[a]) })
			left := w.amount
			for _, d := range order {
				portion := min(left, m.topo.Device(d).Capacity)
				if portion <= 0 {
					break
				}
				do(w, d, portion, g.left[d])
				g.left[d] -= portion
				left -= portion
			}
		}
	}
}

// freest are the accelerators that a shape waits for where nobody knows when they become free.
func (g *group) freest(m *machine, s state, sh *shape) []alloc.Take {
	var out []alloc.Take
	g.eachFreest(m, s, sh, func(_ want, d int, portion, _ cluster.Amount) {
		out = addTakes(out, []alloc.Take{{Device: int32(d), Amount: portion}})
	})
	return out
}

// lack measures what a state is short of for a shape, as a sum of parts of what is asked.
func (g *group) lack(m *machine, s state, sh *shape) float64 {
	lack := 0.0
	for _, w := range sh.sum {
		if have := s.room[w.slot]; !g.accelerates(w.slot) && have < w.amount {
			lack += float64(w.amount-have) / float64(w.amount)
		}
	}
	g.eachFreest(m, s, sh, func(w want, _ int, portion, have cluster.Amount) {
		if have < portion {
			lack += float64(portion-have) / float64(w.amount)
		}
	})
	return lack
}

// reserveGang finds the earliest of the declared ends at which all units of a session fit.
func (g *group) reserveGang(w *waiting) *reservation {
	k := w.lane.kind
	var usable []*machine
	var ends []int64
	for _, m := range g.machines {
		if g.taken(m, w) || g.tier(k, m) < 0 || !slices.ContainsFunc(k.units, func(u unit) bool {
			return m.eligible(k, u.shape) == "" && g.fits(m, m.empty(), u.shape)
		}) {
			continue
		}
		usable = append(usable, m)
		for _, h := range m.holds {
			if h.run.end != forever {
				ends = append(ends, max(h.run.end, g.at))
			}
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	var found *reservation
	// More has ended later: the first end that suffices can be searched by halves.
	sort.Search(len(ends), func(i int) bool {
		r := g.gangAt(w, usable, ends[i])
		if r != nil {
			found = r
		}
		return r != nil
	})
	if found != nil {
		return found
	}
	return g.gangSomeDay(w, usable)
}

// gangAt places the units of a session in the states of machines at an instant, nil when they do not fit.
func (g *group) gangAt(w *waiting, machines []*machine, end int64) *reservation {
	r := &reservation{w: w, end: end}
	states := make([]*state, len(machines))
	for _, u := range w.lane.kind.units {
		placed := false
		for i, m := range machines {
			g.steps++
			if m.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			if states[i] == nil {
				s := &state{}
				m.copyTo(s)
				for _, h := range m.holds {
					if h.run.end <= end {
						m.give(s, h.takes, 1)
					}
				}
				states[i] = s
			}
			if !g.fits(m, *states[i], u.shape) {
				continue
			}
			all := g.devices(m, *states[i], u.shape)
			if all == nil {
				continue
			}
			p := part{m: m, sum: u.shape.sum}
			for _, takes := range all {
				m.give(states[i], takes, -1)
				p.takes = addTakes(p.takes, g.accelerators(m, takes))
			}
			r.merge(p)
			placed = true
			break
		}
		if !placed {
			return nil
		}
	}
	return r
}

// gangSomeDay keeps, for each unit of a session, the machine that lacks least.
func (g *group) gangSomeDay(w *waiting, machines []*machine) *reservation {
	r := &reservation{w: w, end: forever}
	now, bare := make([]*state, len(machines)), make([]*state, len(machines))
	for _, u := range w.lane.kind.units {
		best, bestLack := -1, 0.0
		for i, m := range machines {
			g.steps++
			if m.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			s, e := m.now(), m.empty()
			if now[i] != nil {
				s, e = *now[i], *bare[i]
			}
			if !g.fits(m, e, u.shape) {
				continue
			}
			if lack := g.lack(m, s, u.shape); best < 0 || lack < bestLack {
				best, bestLack = i, lack
			}
		}
		if best < 0 {
			return &reservation{w: w, end: forever}
		}
		m := machines[best]
		if now[best] == nil {
			e := m.empty()
			now[best], bare[best] = &state{}, &state{free: slices.Clone(e.free), room: slices.Clone(e.room)}
			m.copyTo(now[best])
		}
		p := part{m: m, sum: u.shape.sum, takes: g.freest(m, *now[best], u.shape)}
		for _, takes := range g.devices(m, *bare[best], u.shape) {
			m.give(bare[best], takes, -1)
		}
		for _, x := range p.takes {
			now[best].free[x.Device] -= x.Amount
		}
		for _, x := range u.shape.sum {
			now[best].room[x.slot] -= x.amount
		}
		r.merge(p)
	}
	return r
}

// forget drops what is kept for a session that left the queue.
func (g *group) forget(id cluster.SessionID) {
	drop := func(r *reservation) bool { return r.w.id == id }
	for _, list := range []*[]*reservation{&g.reserved, &g.former} {
		n := len(*list)
		*list = slices.DeleteFunc(*list, drop)
		if len(*list) != n {
			g.unreserved = true
			g.moves++
		}
	}
	for _, c := range slices.Clone(g.claims) {
		if c.w.id == id {
			g.unclaimFor(c)
		}
	}
}
