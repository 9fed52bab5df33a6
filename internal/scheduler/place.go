package scheduler

import "berth.dev/berth/internal/alloc"

// commit turns a waiting session into a running one whose devices are booked.
func (g *group) commit(w *waiting, holds []*hold) Decision {
	k, a := w.lane.kind, w.lane.band.owner.account
	r := &running{
		id: w.id, name: w.name, group: g, account: a, sum: k.sum, holds: holds, started: g.queue.now, end: forever,
		priority: w.lane.band.priority, private: k.private, preemptible: k.session.Preemptible, companions: k.session.Companions,
	}
	if k.life > 0 {
		r.end = g.queue.now + k.life
	}
	d := Decision{Session: w.id, Placements: make([]Placement, len(holds))}
	for i, h := range holds {
		h.run = r
		h.allocation = h.agent.topo.Allocation(h.takes)
		d.Placements[i] = Placement{Kernel: h.kernel, Agent: h.agent.id, Allocation: h.allocation}
	}
	g.reservations.notReserved(w)
	g.reservations.settleClaims(w, r)
	g.reservations.unreserve(w)
	g.withdraw(w)
	g.start(r)
	return d
}

// place books room for a session, all or none: holds by kernel, or why not. With ignoreKept, what is kept for others is used too.
func (g *group) place(w *waiting, ignoreKept bool) ([]*hold, standing, Reason) {
	k := w.lane.kind
	if k.kernels == 0 {
		return nil, impossible, TooBig
	}
	holds := make([]*hold, k.kernels)
	kept := false // room that is kept for others was passed by
	cursor := g.search.cursor
	for _, i := range g.search.placementOrder(k) {
		u := &k.units[i]
		a, takes, passed := g.findAgent(w, k, u.shape, ignoreKept)
		kept = kept || passed
		if a == nil {
			g.unplace(holds)
			g.search.cursor = cursor
			if !kept {
				why, reason := g.search.whyNoRoom(k)
				return nil, why, reason
			}
			// It waits for kept room only if it would start there.
			holds, why, reason := g.place(w, true)
			if why == mayStart {
				g.unplace(holds)
				g.search.cursor = cursor
				return nil, heldBack, WaitsBehind
			}
			return nil, why, reason
		}
		for n, kernel := range u.kernels {
			h := &hold{agent: a, kernel: w.kernelID(kernel), takes: takes[n]}
			a.take(h.takes, 1)
			holds[kernel] = h
		}
		g.search.changed(a)
		g.search.cursor = a.id
	}
	return holds, mayStart, ""
}

// unplace gives back what place booked.
func (g *group) unplace(holds []*hold) {
	for _, h := range holds {
		if h != nil {
			h.agent.take(h.takes, -1)
			g.search.changed(h.agent)
		}
	}
}

// findAgent finds the best agent for a shape and devices on it, by request. passed reports that a
// agent was passed by because its room is kept for others.
func (g *group) findAgent(w *waiting, k *kind, sh *shape, ignoreKept bool) (a *agent, takes [][]alloc.Take, passed bool) {
	b := g.search.candidatesOf(sh)
	g.search.skip = g.search.skip[:0]
	var closed []bool
	if !ignoreKept {
		closed = g.reservations.closedFor(w)
	}
	for {
		i := g.search.best(b, k, closed)
		if i < 0 {
			break
		}
		a := g.search.agents[i]
		s := a.now()
		if !ignoreKept && g.reservations.keptFrom(a, w) {
			if !g.search.fits(a, g.reservations.masked, sh) {
				passed = true
				g.search.skip = append(g.search.skip, int32(i))
				continue
			}
			s = g.reservations.masked
		}
		if takes := g.search.devices(a, s, sh); takes != nil {
			return a, takes, passed
		}
		g.search.skip = append(g.search.skip, int32(i))
	}
	if closed != nil && !passed {
		for i, score := range b.scores {
			passed = passed || score != noRoom && closed[i]
		}
	}
	return nil, nil, passed
}

// keepPlaces does what is due for the sessions before w that did not start at their turn, in their order: a claim that did not
// help is dropped, victims are looked for, and a place is reserved. nil stands for the end of the queue.
func (g *group) keepPlaces(w *waiting, decisions []Decision) []Decision {
	for {
		var next *waiting
		consider := func(s *waiting) bool {
			if s == nil || next != nil && g.queue.before(s, next) >= 0 {
				return false
			}
			next = s
			return true
		}
		do := 0
		stale := g.reservations.nextSpentClaim()
		if stale != nil && consider(stale.w) {
			do = 1
		}
		s, i := g.preemption.nextSearch()
		if consider(s) {
			do = 2
		}
		if l := g.reservations.nextReserved(); l != nil && consider(l.head(g.queue)) {
			do = 3
		}
		if next == nil || w != nil && g.queue.before(next, w) >= 0 {
			return decisions
		}
		switch do {
		case 1:
			g.reservations.dropClaim(stale) // something else came between
			g.queue.wakeHeldBack()
		case 2:
			decisions = g.preemption.searchNext(i, decisions)
		case 3:
			g.reservations.reserveFor(g.queue.blocked.first())
		}
	}
}
