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
	parked   []*kindQueue   // blocked kinds that are out of their heap until the end of the pass
	closed   []bool         // by agent: nothing behind a reservation may start there, where backfill is off
	released bool           // a reservation or claim went away between passes
	claims   []*claim

	masked freeVector // scratch: what keptFrom leaves
	later  freeVector // scratch
	ends   []*hold
	byFree []int
	left   []cluster.Amount
}

// reservation keeps room for a session that is blocked.
//
// Where declared lifetimes tell when enough will be free, end is that time, and others may start on the reserved agents if they end
// by then or leave what is kept free. Where they do not, end is forever, and what is kept is taken out of what is free now and later.
//
// So a reservation never gets worse: end does not move to a later time, and what is missing where end is unknown only shrinks. A
// session at the front of the queue is overtaken on its agents for Backfill.PassedOver at most. Then it starts when the sessions end
// that hold its place.
type reservation struct {
	w     *waiting
	end   int64 // when there is room for it; forever: unknown
	parts []part
}

// part is what a reservation keeps on one agent.
type part struct {
	agent *agent
	sum   []want       // cores and memory are kept by amount; other slots in it are ignored
	takes []alloc.Take // accelerators are kept device by device, each device at most once
}

// on is what is kept on an agent, nil when nothing is.
func (r *reservation) on(a *agent) *part {
	for i := range r.parts {
		if r.parts[i].agent == a {
			return &r.parts[i]
		}
	}
	return nil
}

// same reports whether two reservations keep the same for the same session.
func (r *reservation) same(o *reservation) bool {
	return r.w == o.w && r.end == o.end && slices.EqualFunc(r.parts, o.parts, func(a, b part) bool {
		return a.agent == b.agent && slices.Equal(a.takes, b.takes) && slices.Equal(a.sum, b.sum)
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
	if o := l.band.owner.over(l.kind); o != nil {
		rs.notReserved(l.head(rs.queue))
		rs.queue.limit(l, o.scope) // it could not start even if it had room
		return
	}
	// The kind leaves its heap until the end of the pass, so that the next kind becomes the first.
	t := rs.queue.kinds[l.kind]
	t.join(nil)
	rs.parked = append(rs.parked, t)
	if slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return r.w.lane.kind == l.kind }) {
		return // the kind was tried again in this pass, after a companion had started
	}
	n := len(rs.reserved)
	r := rs.reserve(l.head(rs.queue))
	rs.reserved = append(rs.reserved, r)
	rs.closeAgents()
	if n >= len(rs.previous) || !r.same(rs.previous[n]) {
		rs.queue.wakeHeldBack()
	}
}

// notReserved notes that a session which had a reservation in the last pass does not get one in this pass.
func (rs *reservations) notReserved(w *waiting) {
	if i := slices.IndexFunc(rs.previous, func(r *reservation) bool { return r.w == w }); i >= 0 {
		rs.previous = slices.Delete(rs.previous, i, i+1)
		rs.queue.wakeHeldBack()
	}
}

// kindNotReserved is notReserved for all sessions of a kind.
func (rs *reservations) kindNotReserved(k *kind) {
	for i := 0; i < len(rs.previous); {
		if w := rs.previous[i].w; w.lane.kind == k {
			rs.notReserved(w)
			continue
		}
		i++
	}
}

// returnParked puts the kinds with a reservation back into their heap, at the end of a pass.
func (rs *reservations) returnParked() {
	for _, t := range rs.parked {
		if t.refused == blocked {
			t.join(&rs.queue.blocked)
		}
	}
	rs.parked = rs.parked[:0]
}

// closeAgents marks the agents that the kinds with reservations could ever run on, where backfill is off.
func (rs *reservations) closeAgents() {
	if !rs.policy.Disabled {
		return
	}
	rs.closed = append(rs.closed[:0], make([]bool, len(rs.search.agents))...)
	for i, a := range rs.search.agents {
		for _, r := range rs.reserved {
			k := r.w.lane.kind
			for _, u := range k.units {
				rs.closed[i] = rs.closed[i] || a.eligible(k, u.shape) == "" && rs.search.fits(a, a.empty(), u.shape)
			}
		}
	}
}

// unreserve drops the reservation of a session that starts.
func (rs *reservations) unreserve(w *waiting) {
	if i := slices.IndexFunc(rs.reserved, func(r *reservation) bool { return r.w == w }); i >= 0 {
		rs.reserved = slices.Delete(rs.reserved, i, i+1)
		rs.released = true
		rs.closeAgents()
	}
}

// closedFor are the agents closed for w, nil when there are none.
func (rs *reservations) closedFor(w *waiting) []bool {
	if !rs.policy.Disabled || len(rs.reserved) == 0 || len(rs.closed) != len(rs.search.agents) || rs.queue.before(rs.reserved[0].w, w) >= 0 {
		return nil
	}
	return rs.closed
}

// keptFrom reports whether something on an agent is kept for sessions before w. If so, rs.masked is the free vector that is left
// for w.
func (rs *reservations) keptFrom(a *agent, w *waiting) bool {
	kept := false
	for _, r := range rs.reserved {
		if p := r.on(a); p != nil && rs.keeps(r, w) && !rs.endsInTime(r, w) {
			rs.mask(p, r.end, &kept)
		}
	}
	for _, c := range rs.claims {
		if p := c.on(a); p != nil && rs.keeps(&c.reservation, w) {
			rs.mask(p, forever, &kept)
		}
	}
	return kept
}

// keeps reports whether a reservation is for a session that comes before w.
func (rs *reservations) keeps(r *reservation, w *waiting) bool {
	return r.w != w && rs.queue.before(r.w, w) < 0
}

// endsInTime reports whether w may use what a reservation keeps. With a declared lifetime it may if it ends when the reservation
// needs the room, at the latest. Without one it may until the reserved session has waited for Backfill.PassedOver.
func (rs *reservations) endsInTime(r *reservation, w *waiting) bool {
	life := w.lane.kind.life
	if life == 0 {
		window := int64(rs.policy.PassedOver)
		return window > 0 && rs.queue.now-window < r.w.since()
	}
	return r.end != forever && rs.queue.now+life <= r.end
}

// mask takes a part, needed from end on, off rs.masked. The first call fills rs.masked from the present free vector and sets kept.
//
// Somebody who runs beyond end may use no more than is free at end without the part, and no more than is free now.
func (rs *reservations) mask(p *part, end int64, kept *bool) {
	a := p.agent
	if !*kept {
		a.copyTo(&rs.masked)
		*kept = true
	}
	later := a.now()
	if end != forever {
		a.copyTo(&rs.later)
		for _, h := range a.holds {
			if h.run.end <= max(end, rs.queue.now) {
				a.give(&rs.later, h.takes, 1)
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
		rs.recount(a, int(x.Device))
		for _, other := range a.topo.Faces(int(x.Device)) {
			rs.recount(a, int(other))
		}
	}
}

// recount sums up the room of a device's slot in what is left beside the reservations.
func (rs *reservations) recount(a *agent, device int) {
	i := a.slotOfDevice(device)
	_, _, from, to := a.topo.Slot(i)
	sum := cluster.Amount(0)
	for d := from; d < to; d++ {
		sum += a.roomIn(rs.masked, d)
	}
	rs.masked.room[a.slot[i]] = sum
}

// taken reports whether an agent has a part of another session's reservation or claim. Reservations do not share agents.
func (rs *reservations) taken(a *agent, w *waiting) bool {
	return slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return r.w != w && r.on(a) != nil }) ||
		slices.ContainsFunc(rs.claims, func(c *claim) bool { return c.w != w && c.on(a) != nil })
}

// reserve finds the place that is kept for a blocked session: the agent where declared ends leave room first, or else the one that
// lacks least. A claim serves as its session's reservation.
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
	b := rs.updateEnds(sh)
	best, bestEnd, bestPreference := -1, forever, 0
	for i, end := range b.ends {
		a := rs.search.agents[i]
		if end == never || end == forever {
			continue
		}
		if end = max(end, rs.queue.now); best >= 0 && end > bestEnd {
			continue
		}
		preference := rs.search.preference(k, a)
		if preference < 0 || rs.taken(a, w) || best >= 0 && end == bestEnd && preference >= bestPreference {
			continue
		}
		best, bestEnd, bestPreference = i, end, preference
	}
	if best >= 0 {
		a := rs.search.agents[best]
		a.copyTo(&rs.later)
		for _, h := range a.holds {
			if h.run.end <= bestEnd {
				a.give(&rs.later, h.takes, 1)
			}
		}
		r.end = bestEnd
		rs.keep(r, a, rs.later, sh)
		return r
	}
	leastShortage := 0.0
	for i, end := range b.ends {
		a := rs.search.agents[i]
		if end != forever || rs.search.preference(k, a) < 0 || rs.taken(a, w) {
			continue
		}
		if b.shortageVersion[i] != a.version {
			b.shortages[i], b.shortageVersion[i] = rs.shortage(a, a.now(), sh), a.version
		}
		if x := b.shortages[i]; best < 0 || x < leastShortage {
			best, leastShortage = i, x
		}
	}
	if best >= 0 {
		a := rs.search.agents[best]
		r.parts = append(r.parts, part{agent: a, sum: sh.sum, takes: rs.mostFree(a, a.now(), sh)})
	}
	return r
}

// never is what fitsFrom gives for an agent that a shape does not fit even when nothing runs.
const never = -forever

// updateEnds brings up to date from when on each agent has room for a shape.
func (rs *reservations) updateEnds(sh *shape) *candidates {
	b := rs.search.candidatesOf(sh)
	if b.endFacts != rs.search.facts {
		b.ends, b.endVersion = make([]int64, len(rs.search.agents)), make([]uint64, len(rs.search.agents))
		b.shortages, b.shortageVersion = make([]float64, len(rs.search.agents)), make([]uint64, len(rs.search.agents))
		b.endFacts = rs.search.facts
	}
	for i, a := range rs.search.agents {
		if b.endVersion[i] != a.version {
			b.ends[i], b.endVersion[i] = rs.fitsFrom(a, sh), a.version
			rs.search.steps++
		}
	}
	return b
}

// fitsFrom is from when on a shape fits an agent, if sessions end as declared: 0 when it fits now, forever when too few of them
// declared an end, never when it does not fit even when nothing runs.
func (rs *reservations) fitsFrom(a *agent, sh *shape) int64 {
	if a.eligible(nil, sh) != "" || !rs.search.fits(a, a.empty(), sh) {
		return never
	}
	if rs.search.fits(a, a.now(), sh) {
		return 0
	}
	rs.ends = rs.ends[:0]
	for _, h := range a.holds {
		if h.run.end != forever {
			rs.ends = append(rs.ends, h)
		}
	}
	if len(rs.ends) == 0 {
		return forever
	}
	slices.SortFunc(rs.ends, func(x, y *hold) int { return cmp.Compare(x.run.end, y.run.end) })
	a.copyTo(&rs.later)
	for i, h := range rs.ends {
		a.give(&rs.later, h.takes, 1)
		if (i+1 == len(rs.ends) || rs.ends[i+1].run.end != h.run.end) && rs.search.fits(a, rs.later, sh) {
			return h.run.end
		}
	}
	return forever
}

// keep adds to a reservation what a shape takes of a free vector of an agent.
func (rs *reservations) keep(r *reservation, a *agent, v freeVector, sh *shape) {
	p := part{agent: a, sum: sh.sum}
	for _, takes := range rs.search.devices(a, v, sh) {
		p.takes = addTakes(p.takes, rs.accelerators(a, takes))
	}
	r.merge(p)
}

// accelerators are the takes of devices that are neither cores nor memory.
func (rs *reservations) accelerators(a *agent, takes []alloc.Take) []alloc.Take {
	var out []alloc.Take
	for _, x := range takes {
		if rs.search.accelerates(a.slot[a.slotOfDevice(int(x.Device))]) {
			out = append(out, x)
		}
	}
	return out
}

// merge adds a part. Parts on one agent become one.
func (r *reservation) merge(p part) {
	old := r.on(p.agent)
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

// eachMostFree calls do for the accelerators that a shape would use if those with the most free became wholly free: portion is what
// it would take of the device, have what the device has free beside earlier requests of the shape.
func (rs *reservations) eachMostFree(a *agent, v freeVector, sh *shape, do func(w want, device int, portion, have cluster.Amount)) {
	rs.left = append(rs.left[:0], v.free...)
	for i := range sh.requests {
		for _, w := range sh.requests[i].wants {
			section := a.sectionOf(w.slot)
			if section < 0 || !rs.search.accelerates(w.slot) {
				continue
			}
			_, _, from, to := a.topo.Slot(section)
			policy := rs.search.policy(&sh.requests[i])
			order := rs.byFree[:0]
			for d := from; d < to; d++ {
				if a.topo.Device(d).Healthy && a.topo.Usable(d, &policy) {
					order = append(order, d)
				}
			}
			rs.byFree = order
			slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(a.topo.Left(rs.left, y), a.topo.Left(rs.left, x)) })
			left := w.amount
			for _, d := range order {
				portion := min(left, a.topo.Device(d).Capacity)
				if portion <= 0 {
					break
				}
				do(w, d, portion, a.topo.Left(rs.left, d))
				rs.left[d] -= portion
				left -= portion
			}
		}
	}
}

// mostFree are the accelerators that are kept for a shape where nobody knows when they become free.
func (rs *reservations) mostFree(a *agent, v freeVector, sh *shape) []alloc.Take {
	var out []alloc.Take
	rs.eachMostFree(a, v, sh, func(_ want, d int, portion, _ cluster.Amount) {
		out = addTakes(out, []alloc.Take{{Device: int32(d), Amount: portion}})
	})
	return out
}

// shortage is what a free vector lacks for a shape: the sum over slots of the missing part of what is asked.
func (rs *reservations) shortage(a *agent, v freeVector, sh *shape) float64 {
	sum := 0.0
	for _, w := range sh.sum {
		if have := v.room[w.slot]; !rs.search.accelerates(w.slot) && have < w.amount {
			sum += float64(w.amount-have) / float64(w.amount)
		}
	}
	rs.eachMostFree(a, v, sh, func(w want, _ int, portion, have cluster.Amount) {
		if have < portion {
			sum += float64(portion-have) / float64(w.amount)
		}
	})
	return sum
}

// reserveGang finds the place that is kept for a blocked gang: at the earliest declared end at which all its units fit, or else, for
// each unit, on the agent that lacks least.
func (rs *reservations) reserveGang(w *waiting) *reservation {
	k := w.lane.kind
	var usable []*agent
	var ends []int64
	for _, a := range rs.search.agents {
		if rs.taken(a, w) || rs.search.preference(k, a) < 0 || !slices.ContainsFunc(k.units, func(u unit) bool {
			return a.eligible(k, u.shape) == "" && rs.search.fits(a, a.empty(), u.shape)
		}) {
			continue
		}
		usable = append(usable, a)
		for _, h := range a.holds {
			if h.run.end != forever {
				ends = append(ends, max(h.run.end, rs.queue.now))
			}
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	var found *reservation
	// More has ended at a later end, so the first one that suffices is searched by halves. Units are placed one after the other, so in
	// rare cases they fit at one end and not at a later one; then the one found may be later than the first, or none is found.
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
	return rs.gangWithoutEnd(w, usable)
}

// gangAt places the units of a gang one after the other, each on the first agent where it fits at an instant; nil when one does not.
func (rs *reservations) gangAt(w *waiting, agents []*agent, end int64) *reservation {
	r := &reservation{w: w, end: end}
	then := make([]*freeVector, len(agents)) // at end, less earlier units
	for _, u := range w.lane.kind.units {
		placed := false
		for i, a := range agents {
			rs.search.steps++
			if a.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			if then[i] == nil {
				v := &freeVector{}
				a.copyTo(v)
				for _, h := range a.holds {
					if h.run.end <= end {
						a.give(v, h.takes, 1)
					}
				}
				then[i] = v
			}
			if !rs.search.fits(a, *then[i], u.shape) {
				continue
			}
			all := rs.search.devices(a, *then[i], u.shape)
			if all == nil {
				continue
			}
			p := part{agent: a, sum: u.shape.sum}
			for _, takes := range all {
				a.give(then[i], takes, -1)
				p.takes = addTakes(p.takes, rs.accelerators(a, takes))
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

// gangWithoutEnd keeps room for each unit of a gang on the agent that lacks least for it, beside the units before it.
func (rs *reservations) gangWithoutEnd(w *waiting, agents []*agent) *reservation {
	r := &reservation{w: w, end: forever}
	// Free vectors less earlier units: of what is free now, which may become negative, and of the empty agent.
	now, empty := make([]*freeVector, len(agents)), make([]*freeVector, len(agents))
	for _, u := range w.lane.kind.units {
		best, leastShortage := -1, 0.0
		for i, a := range agents {
			rs.search.steps++
			if a.eligible(w.lane.kind, u.shape) != "" {
				continue
			}
			v, e := a.now(), a.empty()
			if now[i] != nil {
				v, e = *now[i], *empty[i]
			}
			if !rs.search.fits(a, e, u.shape) {
				continue
			}
			if x := rs.shortage(a, v, u.shape); best < 0 || x < leastShortage {
				best, leastShortage = i, x
			}
		}
		if best < 0 {
			return &reservation{w: w, end: forever}
		}
		a := agents[best]
		if now[best] == nil {
			e := a.empty()
			now[best], empty[best] = &freeVector{}, &freeVector{free: slices.Clone(e.free), room: slices.Clone(e.room)}
			a.copyTo(now[best])
		}
		p := part{agent: a, sum: u.shape.sum, takes: rs.mostFree(a, *now[best], u.shape)}
		for _, takes := range rs.search.devices(a, *empty[best], u.shape) {
			a.give(empty[best], takes, -1)
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

// forget drops what is kept for a session that left the queue without having started.
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
			rs.dropClaim(c)
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
