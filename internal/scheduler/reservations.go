package scheduler

import (
	"cmp"
	"slices"
	"sort"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// reservations are the places that are kept: for the first blocked sessions of the queue, and for sessions whose victims are ending.
//
// Invariants, between passes:
//   - reserved has at most policy.Reservations entries (one where that is 0), of different kinds, in the order in which they were made;
//   - no agent has parts of two reservations; a claim may share an agent with the reservation of a later session;
//   - every victim in claims runs and names its claim, and a session has one claim at most.
type reservations struct {
	queue  *queue
	search *search
	policy Backfill

	reserved []*reservation // of the last pass, or of this one as far as it came
	previous []*reservation // of the pass before, less those that are known not to be made again
	parked   []*turn        // blocked kinds that are out of their heap until the end of the pass
	closed   []bool         // by agent: nothing behind a reservation may start there, where backfill is off
	released bool           // a reservation or claim went away between passes
	claims   []*claim

	masked freeVector // scratch: what keptFrom leaves
	later  freeVector // scratch
	ends   []*hold
	byFree []int
	left   []cluster.Amount
}

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
func (rs *reservations) nextReserved() *lane {
	if len(rs.reserved) >= max(1, rs.policy.Reservations) {
		return nil
	}
	return rs.queue.blocked.first()
}

// reserveFor reserves a place for the head of a blocked lane.
func (rs *reservations) reserveFor(l *lane) {
	if o := l.band.party.account.over(l.kind); o != nil {
		rs.lost(l.head(rs.queue))
		rs.queue.limit(l, o.scope) // it could not start even if it had room
		return
	}
	// Out of its heap until the end of the pass, so that the next kind becomes the first.
	t := rs.queue.kinds[l.kind]
	t.join(nil)
	rs.parked = append(rs.parked, t)
	if slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return r.w.lane.kind == l.kind }) {
		return // it was tried again in this pass
	}
	n := len(rs.reserved)
	r := rs.reserve(l.head(rs.queue))
	rs.reserved = append(rs.reserved, r)
	rs.bar()
	if n >= len(rs.previous) || !r.same(rs.previous[n]) {
		rs.queue.wakeBehind()
	}
}

// lost tells that a session which had a reservation in the last pass does not get one in this.
func (rs *reservations) lost(w *waiting) {
	if i := slices.IndexFunc(rs.previous, func(r *reservation) bool { return r.w == w }); i >= 0 {
		rs.previous = slices.Delete(rs.previous, i, i+1)
		rs.queue.wakeBehind()
	}
}

// lostKind is lost for all sessions of a kind.
func (rs *reservations) lostKind(k *kind) {
	for i := 0; i < len(rs.previous); {
		if w := rs.previous[i].w; w.lane.kind == k {
			rs.lost(w)
			continue
		}
		i++
	}
}

// unpark gives kinds with a reservation back to their heap.
func (rs *reservations) unpark() {
	for _, t := range rs.parked {
		if t.refused == blocked {
			t.join(&rs.queue.blocked)
		}
	}
	rs.parked = rs.parked[:0]
}

// bar marks the machines that the kinds with reservations could ever run on, where backfill is off.
func (rs *reservations) bar() {
	if !rs.policy.Disabled {
		return
	}
	rs.closed = append(rs.closed[:0], make([]bool, len(rs.search.machines))...)
	for i, m := range rs.search.machines {
		for _, r := range rs.reserved {
			k := r.w.lane.kind
			for _, u := range k.units {
				rs.closed[i] = rs.closed[i] || m.eligible(k, u.shape) == "" && rs.search.fits(m, m.empty(), u.shape)
			}
		}
	}
}

// unreserve drops the reservation of a session that starts.
func (rs *reservations) unreserve(w *waiting) {
	if i := slices.IndexFunc(rs.reserved, func(r *reservation) bool { return r.w == w }); i >= 0 {
		rs.reserved = slices.Delete(rs.reserved, i, i+1)
		rs.released = true
		rs.bar()
	}
}

// closedFor are the machines closed for w, nil when there are none.
func (rs *reservations) closedFor(w *waiting) []bool {
	if !rs.policy.Disabled || len(rs.reserved) == 0 || len(rs.closed) != len(rs.search.machines) || rs.queue.before(rs.reserved[0].w, w) >= 0 {
		return nil
	}
	return rs.closed
}

// keptFrom reports whether room of a machine is kept from a session; rs.masked is then what is left for it.
func (rs *reservations) keptFrom(m *machine, w *waiting) bool {
	kept := false
	for _, r := range rs.reserved {
		if p := r.on(m); p != nil && rs.keeps(r, w) && !rs.endsInTime(r, w) {
			rs.mask(p, r.end, &kept)
		}
	}
	for _, c := range rs.claims {
		if p := c.on(m); p != nil && rs.keeps(&c.reservation, w) {
			rs.mask(p, forever, &kept)
		}
	}
	return kept
}

// keeps reports whether a reservation is for a session that comes before w.
func (rs *reservations) keeps(r *reservation, w *waiting) bool {
	return r.w != w && rs.queue.before(r.w, w) < 0
}

// endsInTime reports whether w may use what a reservation keeps: because it ends before, or
// because nobody knows when it ends and the reservation is still young.
func (rs *reservations) endsInTime(r *reservation, w *waiting) bool {
	life := w.lane.kind.life
	if life == 0 {
		window := int64(rs.policy.PassedOver)
		return window > 0 && rs.queue.now-window < r.w.since()
	}
	return r.end != forever && rs.queue.now+life <= r.end
}

// mask takes what is kept off rs.masked.
func (rs *reservations) mask(p *part, end int64, kept *bool) {
	m := p.m
	if !*kept {
		m.copyTo(&rs.masked)
		*kept = true
	}
	later := m.now()
	if end != forever {
		m.copyTo(&rs.later)
		for _, h := range m.holds {
			if h.run.end <= max(end, rs.queue.now) {
				m.give(&rs.later, h.takes, 1)
			}
		}
		later = rs.later
	}
	for _, w := range p.sum {
		if !rs.search.accelerates(w.slot) {
			rs.masked.room[w.slot] = max(0, min(rs.masked.room[w.slot], later.room[w.slot]-w.amount))
		}
	}
	for _, x := range p.takes {
		rs.masked.free[x.Device] = max(0, min(rs.masked.free[x.Device], later.free[x.Device]-x.Amount))
		i := m.slotOfDevice(int(x.Device))
		_, _, from, to := m.topo.Slot(i)
		sum := cluster.Amount(0)
		for d := from; d < to; d++ {
			sum += rs.masked.free[d] - rs.masked.free[d]%m.units[i]
		}
		rs.masked.room[m.slot[i]] = sum
	}
}

// taken reports whether a machine is kept for another session already.
func (rs *reservations) taken(m *machine, w *waiting) bool {
	return slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return r.w != w && r.on(m) != nil }) ||
		slices.ContainsFunc(rs.claims, func(c *claim) bool { return c.w != w && c.on(m) != nil })
}

// reserve finds the earliest time and the place where a blocked session fits.
func (rs *reservations) reserve(w *waiting) *reservation {
	k := w.lane.kind
	if c := rs.claimOf(w); c != nil {
		return &c.reservation
	}
	if len(k.units) > 1 {
		return rs.reserveGang(w)
	}
	r := &reservation{w: w, end: forever}
	sh := k.units[0].shape
	b := rs.horizon(sh)
	best, bestEnd, bestTier := -1, forever, 0
	for i, end := range b.ends {
		m := rs.search.machines[i]
		if end == never || end == forever {
			continue
		}
		if end = max(end, rs.queue.now); best >= 0 && end > bestEnd {
			continue
		}
		tier := rs.search.tier(k, m)
		if tier < 0 || rs.taken(m, w) || best >= 0 && end == bestEnd && tier >= bestTier {
			continue
		}
		best, bestEnd, bestTier = i, end, tier
	}
	if best >= 0 {
		m := rs.search.machines[best]
		m.copyTo(&rs.later)
		for _, h := range m.holds {
			if h.run.end <= bestEnd {
				m.give(&rs.later, h.takes, 1)
			}
		}
		r.end = bestEnd
		rs.keep(r, m, rs.later, sh)
		return r
	}
	bestLack := 0.0
	for i, end := range b.ends {
		m := rs.search.machines[i]
		if end != forever || rs.search.tier(k, m) < 0 || rs.taken(m, w) {
			continue
		}
		if b.lackVersion[i] != m.version {
			b.lacks[i], b.lackVersion[i] = rs.lack(m, m.now(), sh), m.version
		}
		if lack := b.lacks[i]; best < 0 || lack < bestLack {
			best, bestLack = i, lack
		}
	}
	if best >= 0 {
		m := rs.search.machines[best]
		r.parts = append(r.parts, part{m: m, sum: sh.sum, takes: rs.freest(m, m.now(), sh)})
	}
	return r
}

// never is the horizon of a machine that a shape does not fit even when nothing runs.
const never = -forever

// horizon brings up to date when each machine will have room for a shape.
func (rs *reservations) horizon(sh *shape) *board {
	b := rs.search.boardOf(sh)
	if len(b.ends) != len(rs.search.machines) || b.endFacts != rs.search.facts {
		b.ends, b.endVersion = make([]int64, len(rs.search.machines)), make([]uint64, len(rs.search.machines))
		b.lacks, b.lackVersion = make([]float64, len(rs.search.machines)), make([]uint64, len(rs.search.machines))
		b.endFacts = rs.search.facts
	}
	for i, m := range rs.search.machines {
		if b.endVersion[i] != m.version {
			b.ends[i], b.endVersion[i] = rs.endOn(m, sh), m.version
			rs.search.steps++
		}
	}
	return b
}

// endOn is when enough on a machine has ended for a shape to fit: forever when not all of it is
// known to end, never when it would not fit then.
func (rs *reservations) endOn(m *machine, sh *shape) int64 {
	if m.eligible(nil, sh) != "" || !rs.search.fits(m, m.empty(), sh) {
		return never
	}
	if rs.search.fits(m, m.now(), sh) {
		return 0
	}
	rs.ends = rs.ends[:0]
	for _, h := range m.holds {
		if h.run.end != forever {
			rs.ends = append(rs.ends, h)
		}
	}
	if len(rs.ends) == 0 {
		return forever
	}
	slices.SortFunc(rs.ends, func(a, b *hold) int { return cmp.Compare(a.run.end, b.run.end) })
	m.copyTo(&rs.later)
	for i, h := range rs.ends {
		m.give(&rs.later, h.takes, 1)
		if (i+1 == len(rs.ends) || rs.ends[i+1].run.end != h.run.end) && rs.search.fits(m, rs.later, sh) {
			return h.run.end
		}
	}
	return forever
}

// keep adds what a shape takes of a machine in a state to a reservation, and takes it off the state.
func (rs *reservations) keep(r *reservation, m *machine, s freeVector, sh *shape) {
	p := part{m: m, sum: sh.sum}
	for _, takes := range rs.search.devices(m, s, sh) {
		p.takes = addTakes(p.takes, rs.accelerators(m, takes))
	}
	r.merge(p)
}

// accelerators keeps the takes of devices that are neither cores nor memory.
func (rs *reservations) accelerators(m *machine, takes []alloc.Take) []alloc.Take {
	var out []alloc.Take
	for _, x := range takes {
		if rs.search.accelerates(m.slot[m.slotOfDevice(int(x.Device))]) {
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
func (rs *reservations) eachFreest(m *machine, s freeVector, sh *shape, do func(w want, device int, portion, have cluster.Amount)) {
	rs.left = append(rs.left[:0], s.free...) // less what earlier requests use
	for i := range sh.requests {
		for _, w := range sh.requests[i].wants {
			section := m.sectionOf(w.slot)
			if section < 0 || !rs.search.accelerates(w.slot) {
				continue
			}
			_, _, from, to := m.topo.Slot(section)
			order := rs.byFree[:0]
			for d := from; d < to; d++ {
				dev := m.topo.Device(d)
				if models := sh.requests[i].models; dev.Healthy && (len(models) == 0 || slices.Contains(models, dev.Model)) {
					order = append(order, d)
				}
			}
			rs.byFree = order
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rs.left[b], rs.left[a]) })
			left := w.amount
			for _, d := range order {
				portion := min(left, m.topo.Device(d).Capacity)
				if portion <= 0 {
					break
				}
				do(w, d, portion, rs.left[d])
				rs.left[d] -= portion
				left -= portion
			}
		}
	}
}

// freest are the accelerators that a shape waits for where nobody knows when they become free.
func (rs *reservations) freest(m *machine, s freeVector, sh *shape) []alloc.Take {
	var out []alloc.Take
	rs.eachFreest(m, s, sh, func(_ want, d int, portion, _ cluster.Amount) {
		out = addTakes(out, []alloc.Take{{Device: int32(d), Amount: portion}})
	})
	return out
}

// lack measures what a state is short of for a shape, as a sum of parts of what is asked.
func (rs *reservations) lack(m *machine, s freeVector, sh *shape) float64 {
	lack := 0.0
	for _, w := range sh.sum {
		if have := s.room[w.slot]; !rs.search.accelerates(w.slot) && have < w.amount {
			lack += float64(w.amount-have) / float64(w.amount)
		}
	}
	rs.eachFreest(m, s, sh, func(w want, _ int, portion, have cluster.Amount) {
		if have < portion {
			lack += float64(portion-have) / float64(w.amount)
		}
	})
	return lack
}

// reserveGang finds the earliest of the declared ends at which all units of a session fit.
func (rs *reservations) reserveGang(w *waiting) *reservation {
	k := w.lane.kind
	var usable []*machine
	var ends []int64
	for _, m := range rs.search.machines {
		if rs.taken(m, w) || rs.search.tier(k, m) < 0 || !slices.ContainsFunc(k.units, func(u unit) bool {
			return m.eligible(k, u.shape) == "" && rs.search.fits(m, m.empty(), u.shape)
		}) {
			continue
		}
		usable = append(usable, m)
		for _, h := range m.holds {
			if h.run.end != forever {
				ends = append(ends, max(h.run.end, rs.queue.now))
			}
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	var found *reservation
	// More has ended later: the first end that suffices can be searched by halves.
	sort.Search(len(ends), func(i int) bool {
		r := rs.gangAt(w, usable, ends[i])
		if r != nil {
			found = r
		}
		return r != nil
	})
	if found != nil {
		return found
	}
	return rs.gangSomeDay(w, usable)
}

// gangAt places the units of a session in the states of machines at an instant, nil when they do not fit.
func (rs *reservations) gangAt(w *waiting, machines []*machine, end int64) *reservation {
	r := &reservation{w: w, end: end}
	states := make([]*freeVector, len(machines))
	for _, u := range w.lane.kind.units {
		placed := false
		for i, m := range machines {
			rs.search.steps++
			if m.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			if states[i] == nil {
				s := &freeVector{}
				m.copyTo(s)
				for _, h := range m.holds {
					if h.run.end <= end {
						m.give(s, h.takes, 1)
					}
				}
				states[i] = s
			}
			if !rs.search.fits(m, *states[i], u.shape) {
				continue
			}
			all := rs.search.devices(m, *states[i], u.shape)
			if all == nil {
				continue
			}
			p := part{m: m, sum: u.shape.sum}
			for _, takes := range all {
				m.give(states[i], takes, -1)
				p.takes = addTakes(p.takes, rs.accelerators(m, takes))
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
func (rs *reservations) gangSomeDay(w *waiting, machines []*machine) *reservation {
	r := &reservation{w: w, end: forever}
	now, bare := make([]*freeVector, len(machines)), make([]*freeVector, len(machines))
	for _, u := range w.lane.kind.units {
		best, bestLack := -1, 0.0
		for i, m := range machines {
			rs.search.steps++
			if m.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			s, e := m.now(), m.empty()
			if now[i] != nil {
				s, e = *now[i], *bare[i]
			}
			if !rs.search.fits(m, e, u.shape) {
				continue
			}
			if lack := rs.lack(m, s, u.shape); best < 0 || lack < bestLack {
				best, bestLack = i, lack
			}
		}
		if best < 0 {
			return &reservation{w: w, end: forever}
		}
		m := machines[best]
		if now[best] == nil {
			e := m.empty()
			now[best], bare[best] = &freeVector{}, &freeVector{free: slices.Clone(e.free), room: slices.Clone(e.room)}
			m.copyTo(now[best])
		}
		p := part{m: m, sum: u.shape.sum, takes: rs.freest(m, *now[best], u.shape)}
		for _, takes := range rs.search.devices(m, *bare[best], u.shape) {
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
func (rs *reservations) forget(id cluster.SessionID) {
	drop := func(r *reservation) bool { return r.w.id == id }
	for _, list := range []*[]*reservation{&rs.reserved, &rs.previous} {
		n := len(*list)
		*list = slices.DeleteFunc(*list, drop)
		if len(*list) != n {
			rs.released = true
			rs.queue.events++
		}
	}
	for _, c := range slices.Clone(rs.claims) {
		if c.w.id == id {
			rs.unclaimFor(c)
		}
	}
}

// reservationOf finds what is kept for a session.
func (rs *reservations) reservationOf(w *waiting) *reservation {
	for _, r := range rs.reserved {
		if r.w == w {
			return r
		}
	}
	return nil
}
