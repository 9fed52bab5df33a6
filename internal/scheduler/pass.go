package scheduler

import (
	"container/heap"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Pass decides about a group at an instant, by the rules of docs/scheduling.md. Sessions that it starts count as running from then on:
// a caller that could not commit one says so by Enqueue, and tells fresher facts of its agents by SetAgent and Run. Victims count as
// running until the caller removes them.
//
// Sessions are tried in the order of the queue. Those that cannot start are set aside, and tried again only when something changed that
// could help them: room on an agent that they could use, a limit, an agent, a policy.
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
		g.unfinished, out.More = true, true
		return out, nil
	}
	g.preemption.searchBlocked()
	events := g.queue.events
	for n := 0; ; n++ {
		l := g.queue.ready.first()
		if l == nil {
			if out.Decisions = g.keepPlaces(nil, out.Decisions); len(g.queue.ready) == 0 {
				g.preemption.searched = events
				break
			}
			continue // a reservation changed, and some kinds that were held back are tried again
		}
		if work.Placements > 0 && len(out.Decisions) >= work.Placements || work.Steps > 0 && n > 0 && g.search.steps >= work.Steps {
			out.More = true
			break
		}
		w := l.head(g.queue)
		if out.Decisions = g.keepPlaces(w, out.Decisions); g.queue.ready.first() != l {
			continue
		}
		g.search.steps++
		if o := l.band.owner.over(l.kind); o != nil {
			g.reservations.notReserved(w)
			g.queue.limit(l, o.scope)
			continue
		}
		holds, why, reason := g.place(w, false)
		if why == mayStart {
			out.Decisions = append(out.Decisions, g.commit(w, holds))
			g.noteProbes(holds)
			continue
		}
		if why != blocked {
			g.reservations.kindNotReserved(l.kind)
		}
		if g.queue.refuse(l.kind, why, reason, g.search.position()); why == blocked {
			g.preemption.searchFor(g.queue.kinds[l.kind])
		}
	}
	g.reservations.returnParked()
	g.unfinished = out.More
	out.Wake = g.wakeTime()
	return out, nil
}

// begin prepares a pass: it brings everything that follows from time, agents and shares up to date.
func (g *group) begin(now time.Time) {
	g.queue.now, g.search.steps = nanos(now), 0
	if !g.unfinished { // otherwise this goes on with the pass before
		g.queue.pass++
	}
	g.forgetProbes()
	g.preemption.borrowed = nil // other groups may have started and ended sessions
	g.sync()
	for len(g.queue.future) > 0 && g.queue.future[0].starts <= g.queue.now {
		w := heap.Pop((*byStart)(&g.queue.future)).(*waiting)
		g.queue.enqueue(w)
	}
	g.cluster.wakeLoosened()
	if l, ok := g.search.strategy.(learner); ok {
		l.Settle(g.search)
	}
	if g.fairness.changed {
		for _, p := range g.fairness.owners {
			g.fairness.noteShares(p)
		}
	}
	if aged := g.queue.agingStep(g.queue.now); g.fairness.changed || g.queue.aging > 0 && g.queue.agedTo != aged {
		g.queue.agedTo = aged
		g.queue.reorder()
		g.reservations.released = true // sessions that were held back may come before the reserved ones now
	}
	g.fairness.changed = false
	g.reservations.previous, g.reservations.reserved = g.reservations.reserved, nil
}

// noteProbes closes agents that get one session only, once this has been placed.
func (g *group) noteProbes(holds []*hold) {
	for _, h := range holds {
		if a := h.agent; a.facts.Probe != cluster.NoProbe && !a.probed {
			a.probed = true
			a.version++
			g.search.changed(a)
			g.probed = append(g.probed, a)
		}
	}
}

// forgetProbes opens those agents again. Where the placement was committed, the caller has told so by SetAgent meanwhile.
func (g *group) forgetProbes() {
	for _, a := range g.probed {
		a.probed = false
		a.version++
		g.noteFacts()
	}
	g.probed = nil
}

// wake makes those refused kinds ready that the changes since the last pass could help. It reports false when the bound on work ended
// it; then the next pass goes on where it stopped.
func (g *group) wake(work Work) bool {
	if g.factsChanged {
		for len(g.queue.refusals) > 0 {
			g.queue.tryAgain(g.queue.refusals[0])
		}
		g.factsChanged, g.reservations.released, g.freed = false, false, g.freed[:0]
		return true
	}
	if g.reservations.released || len(g.freed) > 0 {
		g.queue.wakeHeldBack()
		g.reservations.released = false
	}
	// Gangs are placed one unit after the other, so with less room a unit may go to another agent and the gang fits: they are tried
	// again after any change. So are kinds that were held back, because they may be blocked by now.
	at := g.search.position()
	if !g.unfinished {
		busy := len(g.queue.ready) > 0 // those that start first change agents too
		g.queue.wakeKinds(func(k *kind, f *kindQueue) bool {
			return (busy || f.seen != at) && (f.refused == heldBack || f.refused == blocked && k.kernels > 1)
		})
	}
	slices.SortFunc(g.freed, func(x, y *agent) int { return x.index - y.index })
	g.freed = slices.Compact(g.freed)
	for len(g.freed) > 0 {
		if work.Steps > 0 && g.search.steps >= work.Steps {
			return false
		}
		a := g.freed[len(g.freed)-1]
		g.freed = g.freed[:len(g.freed)-1]
		if a.group != g {
			continue
		}
		for i := 0; i < len(g.queue.refusals); {
			k := g.queue.refusals[i]
			g.search.steps++
			if g.queue.kinds[k].refused == blocked && g.canUse(a, k) {
				g.queue.tryAgain(k) // moves another kind to i
				continue
			}
			i++
		}
	}
	return true
}

// canUse reports whether an agent has room for a unit of a kind.
func (g *group) canUse(a *agent, k *kind) bool {
	var last *shape
	for i := range k.units {
		sh := k.units[i].shape
		if sh != last && a.eligible(k, sh) == "" && g.search.fits(a, a.now(), sh) {
			return true
		}
		last = sh
	}
	return false
}

// byStart is a heap of sessions that wait for their start time.
type byStart []*waiting

// wakeTime is when time alone changes something.
func (g *group) wakeTime() time.Time {
	at := forever
	if len(g.queue.future) > 0 {
		at = g.queue.future[0].starts
	}
	for _, r := range g.reservations.reserved {
		if r.end > g.queue.now {
			at = min(at, r.end)
		}
	}
	if t := g.preemption.ripeAt(); t > g.queue.now {
		at = min(at, t)
	}
	if at == forever {
		return time.Time{}
	}
	return time.Unix(0, at).UTC()
}
