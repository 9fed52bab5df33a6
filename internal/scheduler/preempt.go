package scheduler

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// claim is the room that victims are to leave to a session. It is kept until the session starts
// or leaves the queue, or until it does not fit although all victims have gone.
type claim struct {
	reservation
	victims []*running // that have not gone yet
}

// maxTries bounds the searches for victims of one pass.
const maxTries = 64

// The scopes and orders of Preemption, the default first.
var (
	victimScopes = []string{"user", "project", "domain", "resource-group"}
	victimOrders = []string{"newest", "oldest", "fewest-sessions", "smallest-resources"}
)

func (p Preemption) check() error {
	if p.VictimScope != "" && !slices.Contains(victimScopes, p.VictimScope) {
		return fault.Invalidf("preemption: the victim scope %q does not exist", p.VictimScope).WithNext("use one of %q", victimScopes)
	}
	if p.Order != "" && !slices.Contains(victimOrders, p.Order) {
		return fault.Invalidf("preemption: the order %q does not exist", p.Order).WithNext("use one of %q", victimOrders)
	}
	return nil
}

func (g *group) claimOf(w *waiting) *claim {
	for _, c := range g.claims {
		if c.w == w {
			return c
		}
	}
	return nil
}

// unclaim notes that a victim has gone.
func (g *group) unclaim(r *running) {
	if c := r.victimOf; c != nil {
		c.victims = slices.DeleteFunc(c.victims, func(x *running) bool { return x == r })
		r.victimOf = nil
	}
}

// unclaimFor drops a claim; its victims may be asked for again.
func (g *group) unclaimFor(c *claim) {
	for _, r := range c.victims {
		r.victimOf = nil
	}
	g.claims = slices.DeleteFunc(g.claims, func(x *claim) bool { return x == c })
	g.unreserved = true
	g.moves++ // its place and its victims are there for others
}

// fulfil settles claims when a session starts: its own is done, unless it took the room that
// was cleared for a later one like it, which then waits for the room of this one.
func (g *group) fulfil(w *waiting, r *running) {
	if len(g.claims) == 0 {
		return
	}
	own := g.claimOf(w)
	for _, c := range slices.Clone(g.claims) {
		if c == own || c.w.lane != w.lane || !slices.ContainsFunc(r.holds, func(h *hold) bool { return c.on(h.machine) != nil }) {
			continue
		}
		if own != nil && !slices.ContainsFunc(r.holds, func(h *hold) bool { return own.on(h.machine) != nil }) {
			own.w, c.w = c.w, own.w
			own = c
		}
		break
	}
	if own != nil {
		g.unclaimFor(own)
	}
}

// search is a lane whose sessions look for victims in this pass, and how many of them did.
type search struct {
	lane *lane
	done int
}

// Bounds of the searches for victims of one pass: lanes that are looked at, of one kind and altogether, and sessions of one lane.
const (
	maxSearches     = 256
	maxKindSearches = 16
	maxLaneSearches = 16
)

// searchBlocked notes the kinds that are blocked since an earlier pass for a search, if one could find more than the last did.
func (g *group) searchBlocked() {
	g.tries, g.searches = 0, g.searches[:0]
	if !g.policy.Preemption.Enabled || len(g.blocked) == 0 || g.tried == g.moves && (g.ripe == 0 || g.at < g.ripe) {
		return
	}
	g.ripe = 0
	var kinds []*turn
	for len(g.blocked) > 0 && len(kinds) < maxTries {
		kinds = append(kinds, g.blocked[0])
		g.blocked[0].join(nil)
	}
	for _, t := range kinds {
		t.join(&g.blocked)
	}
	for _, t := range kinds {
		g.searchFor(t)
	}
}

// searchFor notes the first lanes of a blocked kind for a search.
func (g *group) searchFor(t *turn) {
	if !g.policy.Preemption.Enabled || t.kind.private || g.tries >= maxTries {
		return
	}
	for _, l := range t.firsts(maxKindSearches) {
		if g.below(l.band.priority) && len(g.searches) < maxSearches {
			g.searches = append(g.searches, search{lane: l})
		}
	}
}

// nextSearch is the first session in the order of the queue that is to look for victims, with its number in g.searches.
func (g *group) nextSearch() (w *waiting, i int) {
	for n := range g.searches {
		x := &g.searches[n]
		if x.done >= min(x.lane.list.n, maxLaneSearches) {
			continue
		}
		if s := x.lane.at(g, x.done); w == nil || g.before(s, w) < 0 {
			w, i = s, n
		}
	}
	return w, i
}

// searchNext looks for victims for the session that nextSearch named.
func (g *group) searchNext(i int, decisions []Decision) []Decision {
	x := &g.searches[i]
	w := x.lane.at(g, x.done)
	x.done++
	if g.claimOf(w) != nil {
		return decisions
	}
	if o := g.over(x.lane.band.party.account, x.lane.kind); o != nil {
		g.lost(w)
		g.limit(x.lane, o.scope)
		x.done = maxLaneSearches
		return decisions
	}
	if g.tries >= maxTries {
		g.searches = g.searches[:0]
		return decisions
	}
	g.tries++
	c := g.findVictims(w)
	if c == nil {
		x.done = maxLaneSearches // nor would those after it
		return decisions
	}
	g.claims = append(g.claims, c)
	d := Decision{Session: w.id}
	for _, r := range c.victims {
		r.victimOf = c
		d.Preempt = append(d.Preempt, r.id)
	}
	d.Hold = g.claimed(c)
	return append(decisions, d)
}

// nextStale is the first claim whose victims have gone, in the order of the queue, nil when there is none.
func (g *group) nextStale() *claim {
	var first *claim
	for _, c := range g.claims {
		if len(c.victims) == 0 && (first == nil || g.before(c.w, first.w) < 0) {
			first = c
		}
	}
	return first
}

// keepPlaces does what is due for the sessions before w that did not start at their turn, in their order: a claim that did not
// help is dropped, victims are looked for, and a place is reserved. nil stands for the end of the queue.
func (g *group) keepPlaces(w *waiting, decisions []Decision) []Decision {
	for {
		var next *waiting
		consider := func(s *waiting) bool {
			if s == nil || next != nil && g.before(s, next) >= 0 {
				return false
			}
			next = s
			return true
		}
		do := 0
		stale := g.nextStale()
		if stale != nil && consider(stale.w) {
			do = 1
		}
		s, i := g.nextSearch()
		if consider(s) {
			do = 2
		}
		if l := g.nextReserved(); l != nil && consider(l.head(g)) {
			do = 3
		}
		if next == nil || w != nil && g.before(next, w) >= 0 {
			return decisions
		}
		switch do {
		case 1:
			g.unclaimFor(stale) // something else came between
			g.wakeBehind()
		case 2:
			decisions = g.searchNext(i, decisions)
		case 3:
			g.reserveFor(g.blocked.first())
		}
	}
}

// below reports whether something preemptible of lower priority runs.
func (g *group) below(priority int) bool {
	for p := range priority {
		if g.preemptible[p] > 0 {
			return true
		}
	}
	return false
}

// victim reports whether a session may be ended for w. Sessions that are too young make g.ripe
// the time when they no longer are.
func (g *group) victim(r *running, w *waiting) bool {
	owner := w.lane.band.party.Owner
	if !r.preemptible || r.private || r.victimOf != nil || r.group != g || r.priority >= w.lane.band.priority {
		return false
	}
	mine := true
	switch g.policy.Preemption.VictimScope {
	case "", "user":
		mine = g.sameUser(r.account.owner, owner)
	case "project":
		mine = r.account.owner.Project == owner.Project
	case "domain":
		mine = r.account.owner.Domain == owner.Domain
	}
	if !mine {
		return false
	}
	if ripe := r.started + int64(g.policy.Preemption.MinRuntime); ripe > g.at {
		if g.ripe == 0 || ripe < g.ripe {
			g.ripe = ripe
		}
		return false
	}
	return true
}

// preemptTime is when a session that is too young now may become a victim; 0: never.
func (g *group) preemptTime() int64 {
	if !g.policy.Preemption.Enabled || len(g.blocked) == 0 {
		return 0
	}
	return g.ripe
}

// size weighs what a session holds, as parts of the group's capacity.
func (g *group) size(r *running) float64 {
	size := 0.0
	for _, w := range r.sum {
		if c := g.capacity[w.slot]; c > 0 {
			size += float64(w.amount) / float64(c)
		}
	}
	return size
}

// first orders victims: lower priority always goes before the policy's order.
func (g *group) first(a, b *running) int {
	c := 0
	switch g.policy.Preemption.Order {
	case "oldest":
		c = cmp.Compare(a.started, b.started)
	case "fewest-sessions":
		c = cmp.Compare(g.size(b), g.size(a))
	case "smallest-resources":
		c = cmp.Compare(g.size(a), g.size(b))
	default:
		c = cmp.Compare(b.started, a.started)
	}
	return cmp.Or(cmp.Compare(a.priority, b.priority), c, cmp.Compare(a.id, b.id))
}

// clearing is a trial of ending sessions.
type clearing struct {
	states  map[*machine]*state
	victims []*running
}

func (c *clearing) state(m *machine) *state {
	s := c.states[m]
	if s == nil {
		s = &state{}
		m.copyTo(s)
		for _, r := range c.victims {
			c.free(m, s, r, 1)
		}
		c.states[m] = s
	}
	return s
}

// free gives what a session holds on a machine to a state; sign -1 takes it back.
func (c *clearing) free(m *machine, s *state, r *running, sign cluster.Amount) {
	for _, h := range r.holds {
		if h.machine == m {
			m.give(s, h.takes, sign)
		}
	}
}

func (c *clearing) end(victims []*running) {
	c.victims = append(c.victims, victims...)
	for m, s := range c.states {
		for _, r := range victims {
			c.free(m, s, r, 1)
		}
	}
}

// findVictims finds the sessions that must end for w to start, and where, nil when no set does.
func (g *group) findVictims(w *waiting) *claim {
	k := w.lane.kind
	trial := &clearing{states: map[*machine]*state{}}
	out := &claim{reservation: reservation{w: w, end: forever}}
	for i := range k.units {
		sh := k.units[i].shape
		var best *machine
		var bestVictims []*running
		for _, m := range g.machines {
			if m.eligible(k, sh) != "" || g.tier(k, m) < 0 || g.takenBefore(m, w) || !g.fits(m, m.empty(), sh) {
				continue
			}
			g.steps++
			victims, ok := g.clear(trial, m, w, sh)
			if ok && (best == nil || g.cheaper(victims, bestVictims)) {
				best, bestVictims = m, victims
				if len(victims) == 0 {
					break
				}
			}
		}
		if best == nil {
			return nil
		}
		trial.end(bestVictims)
		s := trial.state(best)
		all := g.devices(best, *s, sh)
		if all == nil {
			return nil
		}
		p := part{m: best, sum: sh.sum}
		for _, takes := range all {
			best.give(s, takes, -1)
			p.takes = addTakes(p.takes, g.accelerators(best, takes))
		}
		out.merge(p)
	}
	if len(trial.victims) == 0 {
		return nil // it fits as it is: what keeps it waiting is not for victims to clear
	}
	out.victims = trial.victims
	return out
}

// takenBefore reports whether a machine is kept for a session that comes before w.
func (g *group) takenBefore(m *machine, w *waiting) bool {
	return slices.ContainsFunc(g.claims, func(c *claim) bool { return c.w != w && c.on(m) != nil }) ||
		slices.ContainsFunc(g.reserved, func(r *reservation) bool { return g.keeps(r, w) && r.on(m) != nil })
}

// clear finds a minimal set of further victims on one machine for a shape.
func (g *group) clear(trial *clearing, m *machine, w *waiting, sh *shape) (victims []*running, ok bool) {
	s := m.now()
	if len(trial.victims) > 0 || trial.states[m] != nil {
		s = *trial.state(m)
	}
	if g.fits(m, s, sh) {
		return nil, true
	}
	var candidates []*running
	for _, h := range m.holds {
		if !slices.Contains(candidates, h.run) && !slices.Contains(trial.victims, h.run) && g.victim(h.run, w) {
			candidates = append(candidates, h.run)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	slices.SortFunc(candidates, g.first)
	g.cleared.free = append(g.cleared.free[:0], s.free...)
	g.cleared.room = append(g.cleared.room[:0], s.room...)
	for _, r := range candidates {
		victims = append(victims, r)
		if trial.free(m, &g.cleared, r, 1); g.fits(m, g.cleared, sh) {
			ok = true
			break
		}
	}
	if !ok {
		return nil, false
	}
	// Spare those that need not go, the last in order first.
	for i := len(victims) - 1; i >= 0 && len(victims) > 1; i-- {
		r := victims[i]
		if trial.free(m, &g.cleared, r, -1); g.fits(m, g.cleared, sh) {
			victims = slices.Delete(victims, i, i+1)
			continue
		}
		trial.free(m, &g.cleared, r, 1)
	}
	return victims, true
}

// cheaper compares two sets of victims.
func (g *group) cheaper(a, b []*running) bool {
	top := func(list []*running) (priority int, size float64) {
		for _, r := range list {
			priority = max(priority, r.priority)
			size += g.size(r)
		}
		return priority, size
	}
	if len(a) == 0 || len(b) == 0 {
		return len(a) < len(b)
	}
	pa, sa := top(a)
	pb, sb := top(b)
	if g.policy.Preemption.Order == "smallest-resources" {
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(sa, sb), cmp.Compare(len(a), len(b))) < 0
	}
	return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(len(a), len(b)), g.first(a[0], b[0])) < 0
}
