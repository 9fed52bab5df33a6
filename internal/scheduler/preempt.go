package scheduler

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// preemption chooses live sessions that end for waiting ones of higher priority.
//
// A search is repeated only when queue.events shows that it may find more, or when a session has become old enough to be a victim.
// Invariant: preemptible[p] is the number of live sessions of priority p that are preemptible and not private.
type preemption struct {
	queue        *queue
	search       *search
	reservations *reservations
	fairness     *fairness
	policy       Preemption

	searches    []victimSearch // that are due in this pass
	tries       int            // searches made in this pass
	searched    uint64         // queue.events at the last complete round of searches
	nextRipe    int64          // when a session that was too young becomes a possible victim; 0: none was
	preemptible [maxPriority + 1]int

	// borrowed is what Cluster.borrowed says at borrowedAt, in queue.events.
	borrowed   map[*running]bool
	borrowedAt uint64

	cleared freeVector // scratch
}

// maxTries bounds the searches for victims of one pass.
const maxTries = 64

// The scopes and orders of Preemption, the default first.
var (
	victimScopes = []string{"user", "project", "domain", "resource-group"}
	victimOrders = []string{"newest", "oldest", "fewest-sessions", "smallest-resources"}
)

// check is Invalid for a scope or an order that does not exist.
func (p Preemption) check() error {
	if p.VictimScope != "" && !slices.Contains(victimScopes, p.VictimScope) {
		return fault.Invalidf("preemption: the victim scope %q does not exist", p.VictimScope).WithNext("use one of %q", victimScopes)
	}
	if p.Order != "" && !slices.Contains(victimOrders, p.Order) {
		return fault.Invalidf("preemption: the order %q does not exist", p.Order).WithNext("use one of %q", victimOrders)
	}
	return nil
}

// victimSearch is a lane whose sessions look for victims in this pass, and how many of them did.
type victimSearch struct {
	lane *lane
	done int
}

// Bounds of the searches for victims of one pass: lanes that are looked at, of one kind and altogether, and sessions of one lane.
const (
	maxSearches     = 256
	maxKindSearches = 16
	maxLaneSearches = 16
)

// searchBlocked makes searches due for the kinds that are blocked since an earlier pass, if they could find more than the last ones.
func (pr *preemption) searchBlocked() {
	pr.tries, pr.searches = 0, pr.searches[:0]
	if !pr.policy.Enabled || len(pr.queue.blocked) == 0 || pr.searched == pr.queue.events && (pr.nextRipe == 0 || pr.queue.now < pr.nextRipe) {
		return
	}
	pr.nextRipe = 0
	var kinds []*kindQueue
	for len(pr.queue.blocked) > 0 && len(kinds) < maxTries {
		kinds = append(kinds, pr.queue.blocked[0])
		pr.queue.blocked[0].join(nil)
	}
	for _, t := range kinds {
		t.join(&pr.queue.blocked)
	}
	for _, t := range kinds {
		pr.searchFor(t)
	}
}

// searchFor makes searches due for the first lanes of a blocked kind.
func (pr *preemption) searchFor(t *kindQueue) {
	if !pr.policy.Enabled || t.kind.private || pr.tries >= maxTries {
		return
	}
	for _, l := range t.firstLanes(maxKindSearches) {
		if (pr.anyBelow(l.band.priority) || l.entitled && pr.anyBelow(maxPriority+1)) && len(pr.searches) < maxSearches {
			pr.searches = append(pr.searches, victimSearch{lane: l})
		}
	}
}

// nextSearch is the first session, in the order of the queue, for which a search is due, with the index of its lane in pr.searches.
func (pr *preemption) nextSearch() (w *waiting, i int) {
	for n := range pr.searches {
		x := &pr.searches[n]
		if x.done >= min(x.lane.list.n, maxLaneSearches) {
			continue
		}
		if s := x.lane.at(pr.queue, x.done); w == nil || pr.queue.before(s, w) < 0 {
			w, i = s, n
		}
	}
	return w, i
}

// searchNext looks for victims for the session that nextSearch named, and adds a decision if it finds some.
func (pr *preemption) searchNext(i int, decisions []Decision) []Decision {
	x := &pr.searches[i]
	w := x.lane.at(pr.queue, x.done)
	x.done++
	if pr.reservations.claimOf(w) != nil {
		return decisions
	}
	if o := x.lane.band.owner.over(x.lane.kind); o != nil {
		pr.reservations.notReserved(w)
		if x.lane.standing == mayStart { // a place that was to be kept for the lane's first session may have found it out
			pr.queue.limit(x.lane, o.scope)
		}
		x.done = maxLaneSearches
		return decisions
	}
	if pr.tries >= maxTries {
		pr.searches = pr.searches[:0]
		return decisions
	}
	pr.tries++
	c := pr.findVictims(w)
	if c == nil {
		x.done = maxLaneSearches // the others of its lane would find none either
		return decisions
	}
	pr.reservations.claims = append(pr.reservations.claims, c)
	d := Decision{Session: w.id}
	for _, r := range c.victims {
		r.victimOf = c
		d.Preempt = append(d.Preempt, r.id)
	}
	d.Hold = claimed(c)
	return append(decisions, d)
}

// anyBelow reports whether something preemptible of lower priority runs.
func (pr *preemption) anyBelow(priority int) bool {
	for p := range priority {
		if pr.preemptible[p] > 0 {
			return true
		}
	}
	return false
}

// mayEnd reports whether a session may be a victim of w. For one that is only too young, pr.nextRipe is moved to the time when it is
// old enough.
func (pr *preemption) mayEnd(r *running, w *waiting) bool {
	owner := w.lane.band.owner.Owner
	if !r.preemptible || r.private || r.victimOf != nil || r.group.preemption != pr ||
		r.priority >= w.lane.band.priority && !(w.lane.entitled && pr.borrows(r)) {
		return false
	}
	mine := true
	switch pr.policy.VictimScope {
	case "", "user":
		mine = sameUser(r.account.owner, owner)
	case "project":
		mine = r.account.owner.Project == owner.Project
	case "domain":
		mine = r.account.owner.Domain == owner.Domain
	}
	if !mine {
		return false
	}
	if ripe := r.started + int64(pr.policy.MinRuntime); ripe > pr.queue.now {
		if pr.nextRipe == 0 || ripe < pr.nextRipe {
			pr.nextRipe = ripe
		}
		return false
	}
	return true
}

// borrows reports whether a live session stands beyond the guarantees of its levels.
func (pr *preemption) borrows(r *running) bool {
	if pr.borrowed == nil || pr.borrowedAt != pr.queue.events {
		pr.borrowed, pr.borrowedAt = r.group.cluster.borrowed(), pr.queue.events
	}
	return pr.borrowed[r]
}

// ripeAt is when a session that is too young now may become a victim; 0: never.
func (pr *preemption) ripeAt() int64 {
	if !pr.policy.Enabled || len(pr.queue.blocked) == 0 {
		return 0
	}
	return pr.nextRipe
}

// sizeOf is the size of a session: the sum over slots of the part of the group's capacity that it holds.
func (pr *preemption) sizeOf(r *running) float64 {
	size := 0.0
	for _, w := range r.sum {
		if c := pr.fairness.capacityOf(w.slot); c > 0 {
			size += float64(w.amount) / float64(c)
		}
	}
	return size
}

// first orders candidates for victims: lower priority first, then by the policy's order.
func (pr *preemption) first(a, b *running) int {
	c := 0
	switch pr.policy.Order {
	case "oldest":
		c = cmp.Compare(a.started, b.started)
	case "fewest-sessions":
		c = cmp.Compare(pr.sizeOf(b), pr.sizeOf(a))
	case "smallest-resources":
		c = cmp.Compare(pr.sizeOf(a), pr.sizeOf(b))
	default:
		c = cmp.Compare(b.started, a.started)
	}
	return cmp.Or(cmp.Compare(a.priority, b.priority), c, cmp.Compare(a.id, b.id))
}

// endTrial is what would be free if victims ended and earlier units of a session were placed.
type endTrial struct {
	victims []*running
	then    map[*agent]*freeVector
}

// freeOn is the free vector of an agent in the trial.
func (t *endTrial) freeOn(a *agent) *freeVector {
	v := t.then[a]
	if v == nil {
		v = &freeVector{}
		a.copyTo(v)
		for _, r := range t.victims {
			giveBack(a, v, r, 1)
		}
		t.then[a] = v
	}
	return v
}

// giveBack gives what a session holds on an agent to a free vector; sign -1 takes it from there again.
func giveBack(a *agent, v *freeVector, r *running, sign cluster.Amount) {
	for _, h := range r.holds {
		if h.agent == a {
			a.give(v, h.takes, sign)
		}
	}
}

// end adds victims.
func (t *endTrial) end(victims []*running) {
	t.victims = append(t.victims, victims...)
	for a, v := range t.then {
		for _, r := range victims {
			giveBack(a, v, r, 1)
		}
	}
}

// findVictims finds sessions to end so that w can start, and the place that they leave to it; nil when there are none. Units are looked
// at one after the other: each takes the agent whose further victims are cheapest.
func (pr *preemption) findVictims(w *waiting) *claim {
	k := w.lane.kind
	trial := &endTrial{then: map[*agent]*freeVector{}}
	out := &claim{reservation: reservation{w: w, end: forever}}
	for i := range k.units {
		sh := k.units[i].shape
		var best *agent
		var bestVictims []*running
		for _, a := range pr.search.agents {
			if a.eligible(k, sh) != "" || pr.search.preference(k, a) < 0 || pr.reservations.takenBefore(a, w) || !pr.search.fits(a, a.empty(), sh) {
				continue
			}
			pr.search.steps++
			victims, ok := pr.victimsOn(trial, a, w, sh)
			if ok && (best == nil || pr.cheaper(victims, bestVictims)) {
				best, bestVictims = a, victims
				if len(victims) == 0 {
					break
				}
			}
		}
		if best == nil {
			return nil
		}
		trial.end(bestVictims)
		v := trial.freeOn(best)
		all := pr.search.devices(best, *v, sh)
		if all == nil {
			return nil
		}
		p := part{agent: best, sum: sh.sum}
		for _, takes := range all {
			best.give(v, takes, -1)
			p.takes = addTakes(p.takes, pr.reservations.accelerators(best, takes))
		}
		out.merge(p)
	}
	if len(trial.victims) == 0 {
		return nil // there is room: it waits for another reason than running sessions
	}
	out.victims = trial.victims
	return out
}

// victimsOn finds further victims on one agent, so that a shape fits it. None of them could be spared, and their highest priority is as
// low as can be.
func (pr *preemption) victimsOn(trial *endTrial, a *agent, w *waiting, sh *shape) (victims []*running, ok bool) {
	v := a.now()
	if len(trial.victims) > 0 || trial.then[a] != nil {
		v = *trial.freeOn(a)
	}
	if pr.search.fits(a, v, sh) {
		return nil, true
	}
	var candidates []*running
	for _, h := range a.holds {
		if !slices.Contains(candidates, h.run) && !slices.Contains(trial.victims, h.run) && pr.mayEnd(h.run, w) {
			candidates = append(candidates, h.run)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	slices.SortFunc(candidates, pr.first)
	pr.cleared.free = append(pr.cleared.free[:0], v.free...)
	pr.cleared.room = append(pr.cleared.room[:0], v.room...)
	for _, r := range candidates {
		victims = append(victims, r)
		if giveBack(a, &pr.cleared, r, 1); pr.search.fits(a, pr.cleared, sh) {
			ok = true
			break
		}
	}
	if !ok {
		return nil, false
	}
	// The last one made the room. Of those before it, spare those that need not end, the last in order first.
	for i := len(victims) - 2; i >= 0; i-- {
		r := victims[i]
		if giveBack(a, &pr.cleared, r, -1); pr.search.fits(a, pr.cleared, sh) {
			victims = slices.Delete(victims, i, i+1)
			continue
		}
		giveBack(a, &pr.cleared, r, 1)
	}
	return victims, true
}

// cheaper reports whether the first of two sets of victims costs less: a lower highest priority, then fewer sessions, or less size where
// the policy orders victims by size.
func (pr *preemption) cheaper(a, b []*running) bool {
	top := func(list []*running) (priority int, size float64) {
		for _, r := range list {
			priority = max(priority, r.priority)
			size += pr.sizeOf(r)
		}
		return priority, size
	}
	if len(a) == 0 || len(b) == 0 {
		return len(a) < len(b)
	}
	pa, sa := top(a)
	pb, sb := top(b)
	if pr.policy.Order == "smallest-resources" {
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(sa, sb), cmp.Compare(len(a), len(b))) < 0
	}
	return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(len(a), len(b)), pr.first(a[0], b[0])) < 0
}

// countPreemptible counts a live session if it is preemptible.
func (pr *preemption) countPreemptible(r *running, n int) {
	if r.preemptible && !r.private {
		pr.preemptible[r.priority] += n
	}
}
