package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
)

// group is one resource group: its policy, what is live in it, and the parts that decide about it.
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
	live    map[cluster.SessionID]*running

	queue        *queue
	search       *search
	reservations *reservations
	preemption   *preemption
	fairness     *fairness

	// What happened since the last pass.
	factsChanged bool       // agents or policies are others: every session is tried again
	uncounted    bool       // the set of agents changed: the capacity is counted again
	freed        []*machine // agents that have more room
	unfinished   bool       // the bound on work ended the last pass
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
		q := &queue{order: byAge{}, lanes: map[laneKey]*lane{}, kinds: map[*kind]*turn{}}
		s := &search{cluster: c, strategy: pack{}, companions: map[string]map[*machine]int{}, boards: map[*shape]*board{}}
		f := &fairness{decayed: map[Scope]float64{}, parties: map[*account]*party{}, usages: map[Scope]*usage{}}
		rs := &reservations{queue: q, search: s}
		g = &group{
			cluster: c, policy: Group{Name: name}, live: map[cluster.SessionID]*running{}, queue: q, search: s, fairness: f, reservations: rs,
			preemption: &preemption{queue: q, search: s, fairness: f, reservations: rs},
		}
		c.groups[name] = g
	}
	return g
}

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
		if h.kernel != p.Kernel || h.machine.id != p.Agent ||
			!maps.EqualFunc(h.allocation, p.Allocation, func(x, y map[string]cluster.Amount) bool { return maps.Equal(x, y) }) {
			return false
		}
	}
	return true
}

// start books a running session, whose devices are booked, everywhere else.
func (g *group) start(r *running) {
	g.cluster.sessions[r.id] = entry{running: r}
	g.live[r.id] = r
	for _, h := range r.holds {
		h.machine.holds = append(h.machine.holds, h)
		g.accompany(r, h.machine, 1)
	}
	g.queue.events++
	g.preemption.expose(r, 1)
	g.charge(r, 1)
}

// stop takes a running session off.
func (g *group) stop(r *running) {
	delete(g.live, r.id)
	for _, h := range r.holds {
		m := h.machine
		if i := slices.Index(m.holds, h); i >= 0 {
			m.holds = slices.Delete(m.holds, i, i+1)
		}
		m.take(h.takes, -1)
		if m.group != nil {
			m.group.search.changed(m)
			m.group.freed = append(m.group.freed, m)
		}
		g.accompany(r, m, -1)
		g.cluster.forgetShadow(m)
	}
	g.queue.events++
	g.preemption.expose(r, -1)
	g.charge(r, -1)
	g.reservations.unclaim(r)
}

// accompany counts where companions run.
func (g *group) accompany(r *running, m *machine, n int) {
	name := r.companions.Name
	if name == "" {
		return
	}
	at := g.search.companions[name]
	if at == nil {
		at = map[*machine]int{}
		g.search.companions[name] = at
	}
	if at[m] += n; at[m] == 0 {
		delete(at, m)
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

// touch notes that something about a running session changed that does not move room.
func (g *group) touch(r *running) {
	g.queue.events++
	for _, h := range r.holds {
		h.machine.version++
		if h.machine.group != nil {
			h.machine.group.search.changed(h.machine)
		}
	}
}

// withdraw takes a waiting session out of the queue.
func (g *group) withdraw(w *waiting) {
	l := w.lane
	if w.waits != "" {
		g.queue.dependent--
	}
	if w.queued {
		g.queue.dequeue(w)
	} else if w.waits == "" {
		g.queue.dropFuture(w)
	}
	l.band.all.remove(w)
	g.queue.pending--
	if l.refs--; l.refs == 0 {
		delete(g.queue.lanes, laneKey{l.band, l.kind})
		p := l.band.party
		last := p.lanes[len(p.lanes)-1]
		p.lanes[l.nth], last.nth = last, l.nth
		p.lanes = p.lanes[:len(p.lanes)-1]
	}
	if b := l.band; b.all.n == 0 {
		b.party.bands = slices.DeleteFunc(b.party.bands, func(x *band) bool { return x == b })
		g.queue.bands[b.priority] = slices.DeleteFunc(g.queue.bands[b.priority], func(x *band) bool { return x == b })
	}
	g.cluster.drop(l.kind)
}

// sync brings what follows from the set of machines up to date.
func (g *group) sync() {
	if g.search.unsorted {
		slices.SortFunc(g.search.machines, func(a, b *machine) int { return cmp.Compare(a.id, b.id) })
		for i, m := range g.search.machines {
			m.index = i
		}
		g.search.unsorted = false
	}
	if g.uncounted {
		g.count()
		g.uncounted = false
	}
}

// count sums the capacity of the group's machines.
func (g *group) count() {
	clear(g.fairness.capacity)
	for len(g.fairness.capacity) < len(g.cluster.slots.name) {
		g.fairness.capacity = append(g.fairness.capacity, 0)
	}
	for _, m := range g.search.machines {
		for slot, v := range m.total {
			g.fairness.capacity[slot] += v
		}
	}
	for _, u := range g.fairness.usages {
		share := g.fairness.dominant(u)
		for _, p := range u.parties {
			p.Dominant = share
		}
	}
	g.queue.again()
}

// stir has everything tried again: a change of facts or policies can help any session.
func (g *group) stir() {
	g.search.facts++
	g.factsChanged = true
}

// charge books a live session to its owners; sign -1 gives back.
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
	u := g.fairness.usageOf(r.account.owner)
	u.used = addTo(u.used, r.sum, cluster.Amount(sign))
	share := g.fairness.dominant(u)
	if len(u.parties) == 0 || u.parties[0].Dominant == share {
		return
	}
	// Lanes leave the heaps by their old order and return by the new one.
	var moved []*lane
	for _, p := range u.parties {
		for _, l := range p.lanes {
			if g.queue.byShare && l.aside == inTurn {
				g.queue.kinds[l.kind].leave(l)
				moved = append(moved, l)
			}
		}
	}
	for _, p := range u.parties {
		p.Dominant = share
	}
	for _, l := range moved {
		g.queue.kinds[l.kind].enter(l)
	}
}
