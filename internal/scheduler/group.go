package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
)

// group is one resource group: its policy and the parts that decide about it.
//
//	queue         who waits, of which kinds, in which order
//	search        where a session fits, and which of these agents is best
//	reservations  which places are kept for whom
//	preemption    which live sessions end for whom
//	fairness      what owners hold and held, for the order of the queue
//
// queue, search and fairness do not know of the others. reservations asks queue and search, preemption asks all. What concerns
// several of them at once (a session starts, ends, is refused) is a method of group.
type group struct {
	cluster *Cluster
	policy  Group

	queue        *queue
	search       *search
	reservations *reservations
	preemption   *preemption
	fairness     *fairness

	// What happened since the last pass.
	factsChanged bool // agents or policies are others: every session is tried again
	uncounted    bool // the set of agents changed: the capacity is counted again
	// probed are agents that this pass has closed because they get one session only.
	probed     []*agent
	freed      []*agent // agents that have more room
	unfinished bool     // the bound on work ended the last pass
}

// running is a live session.
type running struct {
	id          cluster.SessionID
	name        string
	group       *group
	account     *account
	sum         []want // what it holds
	holds       []*hold
	started     int64
	end         int64 // by its declared lifetime; forever when unknown
	priority    int
	private     bool
	preemptible bool
	companions  Companions
	victimOf    *claim
}

func (c *Cluster) group(name string) *group {
	g := c.groups[name]
	if g == nil {
		q := &queue{order: byAge{}, lanes: map[laneKey]*lane{}, kinds: map[*kind]*kindQueue{}}
		s := &search{cluster: c, strategy: pack{}, companions: map[string]map[*agent]int{}, cache: map[*shape]*candidates{}}
		f := &fairness{decayed: map[Scope]float64{}, owners: map[*account]*groupOwner{}, usages: map[Scope]*usage{}}
		rs := &reservations{queue: q, search: s}
		g = &group{
			cluster: c, policy: Group{Name: name}, queue: q, search: s, fairness: f, reservations: rs,
			preemption: &preemption{queue: q, search: s, fairness: f, reservations: rs},
		}
		f.group = g
		c.groups[name] = g
	}
	return g
}

// endOf is when a session ends at the latest, forever when that is not known.
func endOf(started time.Time, life time.Duration) int64 {
	if life <= 0 || started.IsZero() {
		return forever
	}
	return started.Add(life).UnixNano()
}

// same reports whether what a session holds is unchanged.
func (r *running) same(other *Running) bool {
	if len(r.holds) != len(other.Placements) || r.private != other.Private || r.companions != other.Companions ||
		r.account.owner != other.Owner {
		return false
	}
	for i, h := range r.holds {
		p := &other.Placements[i]
		if h.kernel != p.Kernel || h.agent.id != p.Agent ||
			!maps.EqualFunc(h.allocation, p.Allocation, func(x, y map[string]cluster.Amount) bool { return maps.Equal(x, y) }) {
			return false
		}
	}
	return true
}

// start adds a running session whose devices are booked.
func (g *group) start(r *running) {
	g.cluster.sessions[r.id] = entry{running: r}
	for _, h := range r.holds {
		h.agent.holds = append(h.agent.holds, h)
		g.countCompanions(r, h.agent, 1)
	}
	g.queue.events++
	g.preemption.countPreemptible(r, 1)
	g.charge(r, 1)
}

// stop removes a running session.
func (g *group) stop(r *running) {
	for _, h := range r.holds {
		a := h.agent
		if i := slices.Index(a.holds, h); i >= 0 {
			a.holds = slices.Delete(a.holds, i, i+1)
		}
		a.take(h.takes, -1)
		if a.group != nil {
			a.group.search.changed(a)
			a.group.freed = append(a.group.freed, a)
		}
		g.countCompanions(r, a, -1)
		g.cluster.forgetShadow(a)
	}
	g.queue.events++
	g.preemption.countPreemptible(r, -1)
	g.charge(r, -1)
	g.reservations.victimGone(r)
}

// countCompanions counts where companions run. The preferences of those that wait change with it, so they are tried again.
func (g *group) countCompanions(r *running, a *agent, n int) {
	name := r.companions.Name
	if name == "" {
		return
	}
	at := g.search.companions[name]
	if at == nil {
		at = map[*agent]int{}
		g.search.companions[name] = at
	}
	if at[a] += n; at[a] == 0 {
		delete(at, a)
	}
	if len(at) == 0 {
		delete(g.search.companions, name)
	}
	for _, k := range slices.Clone(g.queue.refusals) {
		if k.session.Companions.Name == name {
			g.queue.tryAgain(k)
		}
	}
}

// touch notes that the times of a running session changed, which matters to reservations and victims.
func (g *group) touch(r *running) {
	g.queue.events++
	for _, h := range r.holds {
		h.agent.version++
		if h.agent.group != nil {
			h.agent.group.search.changed(h.agent)
		}
	}
}

// withdraw takes a waiting session out of the queue.
func (g *group) withdraw(w *waiting) {
	l := w.lane
	if w.dependency != "" {
		g.queue.dependent--
	}
	if w.queued {
		g.queue.dequeue(w)
	} else if w.dependency == "" {
		g.queue.dropFuture(w)
	}
	l.band.all.remove(w)
	g.queue.pending--
	if l.refs--; l.refs == 0 {
		delete(g.queue.lanes, laneKey{l.band, l.kind})
		l.unregister()
		p := l.band.owner
		last := p.lanes[len(p.lanes)-1]
		p.lanes[l.nth], last.nth = last, l.nth
		p.lanes = p.lanes[:len(p.lanes)-1]
	}
	if b := l.band; b.all.n == 0 {
		b.owner.bands = slices.DeleteFunc(b.owner.bands, func(x *band) bool { return x == b })
		g.queue.bands[b.priority] = slices.DeleteFunc(g.queue.bands[b.priority], func(x *band) bool { return x == b })
	}
	g.cluster.drop(l.kind)
}

// sync brings up to date what follows from the set of agents.
func (g *group) sync() {
	if g.search.unsorted {
		slices.SortFunc(g.search.agents, func(x, y *agent) int { return cmp.Compare(x.id, y.id) })
		for i, a := range g.search.agents {
			a.index = i
		}
		g.search.unsorted = false
	}
	if g.uncounted {
		g.count()
		g.uncounted = false
	}
}

// count sums the capacity of the group's agents.
func (g *group) count() {
	clear(g.fairness.capacity)
	for len(g.fairness.capacity) < len(g.cluster.slots.name) {
		g.fairness.capacity = append(g.fairness.capacity, 0)
	}
	for _, a := range g.search.agents {
		for slot, v := range a.total {
			g.fairness.capacity[slot] += v
		}
	}
	for _, u := range g.fairness.usages {
		share := g.fairness.dominant(u)
		for _, p := range u.owners {
			p.Dominant = share
		}
	}
	g.queue.reorder()
}

// noteFacts notes a change of agents or policies, which may help any session: all are tried again.
func (g *group) noteFacts() {
	g.search.facts++
	g.factsChanged = true
}

// charge adds what a live session holds to its owners' limits and shares; sign -1 takes it off.
func (g *group) charge(r *running, sign int) {
	for _, s := range r.account.scopes {
		if r.private {
			s.private += sign
		} else {
			s.sessions += sign
			s.used = addTo(s.used, r.sum, cluster.Amount(sign))
		}
		if sign < 0 {
			g.cluster.loosen(s)
		}
	}
	if r.private {
		return
	}
	g.chargeLevels(r, sign)
	u := g.fairness.usageOf(r.account.owner)
	u.used = addTo(u.used, r.sum, cluster.Amount(sign))
	share := g.fairness.dominant(u)
	if len(u.owners) == 0 || u.owners[0].Dominant == share {
		return
	}
	// Lanes leave the heaps by their old order and return by the new one.
	var moved []*lane
	for _, p := range u.owners {
		for _, l := range p.lanes {
			if g.queue.byShare && l.standing == mayStart {
				g.queue.kinds[l.kind].leave(l)
				moved = append(moved, l)
			}
		}
	}
	for _, p := range u.owners {
		p.Dominant = share
	}
	for _, l := range moved {
		g.queue.kinds[l.kind].enter(l)
	}
}
