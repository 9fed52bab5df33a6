package scheduler

import "berth.dev/berth/internal/alloc"

// commit makes a waiting session a running one. Its devices are booked already.
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

// place books devices for all kernels of a session or for none. It gives what each kernel holds, or why the session does not start.
// With ignoreKept, what is kept for others may be used.
func (g *group) place(w *waiting, ignoreKept bool) ([]*hold, standing, Reason) {
	k := w.lane.kind
	if k.kernels == 0 {
		return nil, impossible, TooBig
	}
	holds := make([]*hold, k.kernels)
	kept := false // an agent was passed over because of what is kept on it
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
			// It is held back only if it would start otherwise.
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

// unplace gives back what place has booked.
func (g *group) unplace(holds []*hold) {
	for _, h := range holds {
		if h != nil {
			h.agent.take(h.takes, -1)
			g.search.changed(h.agent)
		}
	}
}

// findAgent finds the best candidate for a shape, and devices there for each request of the shape. passed reports that an agent was
// passed over because of what is kept on it.
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

// keepPlaces does what is due for the sessions before w that did not start at their turn, one after the other: a claim whose victims
// have gone is dropped, victims are looked for, a place is reserved. nil stands for the end of the queue.
func (g *group) keepPlaces(w *waiting, decisions []Decision) []Decision {
	const (
		dropClaim = iota
		searchVictims
		reserve
	)
	for {
		var next *waiting
		due := dropClaim
		// first notes what is due for s if s comes before the sessions seen so far.
		first := func(s *waiting, what int) {
			if s != nil && (next == nil || g.queue.before(s, next) < 0) {
				next, due = s, what
			}
		}
		spent := g.reservations.nextSpentClaim()
		if spent != nil {
			first(spent.w, dropClaim)
		}
		s, lane := g.preemption.nextSearch()
		first(s, searchVictims)
		l := g.reservations.nextReserved()
		if l != nil {
			first(l.head(g.queue), reserve)
		}
		if next == nil || w != nil && g.queue.before(next, w) >= 0 {
			return decisions
		}
		switch due {
		case dropClaim:
			g.reservations.dropClaim(spent)
			g.queue.wakeHeldBack()
		case searchVictims:
			decisions = g.preemption.searchNext(lane, decisions)
		case reserve:
			g.reservations.reserveFor(l)
		}
	}
}
