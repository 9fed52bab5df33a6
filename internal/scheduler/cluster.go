package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler/quota"
)

// Cluster is the scheduler's memory of all resource groups: agents, running and waiting sessions, quotas. The caller tells it what
// changed, and a pass costs what changed since the one before. It is pure: the same calls in the same order give the same decisions.
// It is not safe for concurrent use. Maps in its arguments must not change afterwards.
type Cluster struct {
	groups   map[string]*group
	agents   map[cluster.AgentID]*agent
	sessions map[cluster.SessionID]entry
	scopes   map[Scope]*scope
	accounts map[Owner]*account
	tree     *quota.Tree  // of quotas; nil: none
	levels   []*treeLevel // by quota.Node.Index
	kinds    map[string]*kind
	shapes   map[string]*shape
	shaped   uint64   // shapes made so far
	idle     []*shape // that nobody asks for now
	loosened []*scope // whose lanes are to be looked at

	slots    names[cluster.SlotName]
	archs    names[string]
	images   names[string]
	models   names[string]
	cpu, mem int32 // numbers of these slots

	// topologies are those that agents may share.
	topologies map[sameDevices]*alloc.Topology

	key   keyText // scratch
	wants []want
}

// entry is a session that waits or runs.
type entry struct {
	waiting *waiting
	running *running
}

// Work bounds one pass, so that it stays short.
type Work struct {
	// Placements is the most sessions one pass starts; 0: no bound.
	Placements int
	// Steps bounds the comparisons of one request with one agent; 0: no bound.
	Steps int
}

// Result is what one pass over a group decided.
type Result struct {
	// Decisions are the sessions that start or preempt, in queue order.
	Decisions []Decision
	// More is set when the bound on work ended the pass: call again at once.
	More bool
	// Wake is when time alone changes something: a start time, the end of a reservation. Zero: never.
	Wake time.Time
}

// Depth describes a group's queue.
type Depth struct {
	Pending int
	Reasons map[Reason]int
}

// NewCluster returns an empty cluster.
func NewCluster() *Cluster {
	c := &Cluster{
		groups: map[string]*group{}, agents: map[cluster.AgentID]*agent{}, sessions: map[cluster.SessionID]entry{},
		scopes: map[Scope]*scope{}, accounts: map[Owner]*account{}, kinds: map[string]*kind{}, shapes: map[string]*shape{},
	}
	c.cpu, c.mem = c.slots.of(cluster.SlotCPU), c.slots.of(cluster.SlotMem)
	return c
}

// SetGroup adds a resource group or changes its policy at once; its queue and agents stay.
// The error is Invalid for a policy that is not registered or an option that it does not have.
func (c *Cluster) SetGroup(policy Group) error {
	order, aging, err := newOrder(policy.Order, policy.OrderOptions)
	if err != nil {
		return err
	}
	old := c.groups[policy.Name]
	var strategy strategy
	if old != nil && old.policy.Placement == policy.Placement && sameOptions(old.policy.PlacementOptions, policy.PlacementOptions) {
		strategy = old.search.strategy // with what it learnt
	}
	if strategy == nil {
		if strategy, err = newPlacement(policy.Placement, policy.PlacementOptions); err != nil {
			return err
		}
	}
	if err := policy.Preemption.check(); err != nil {
		return err
	}
	g := c.group(policy.Name)
	rules, inactive := !maps.Equal(g.policy.Rules, policy.Rules), g.policy.Inactive
	g.policy, g.reservations.policy, g.preemption.policy = policy, policy.Backfill, policy.Preemption
	g.queue.order, g.queue.youngest, g.queue.aging = order, order.Youngest(), aging
	g.search.strategy, g.search.wholeDevices = strategy, policy.WholeDevices
	g.noteFacts()
	if rules {
		clear(c.topologies)
		for _, a := range g.search.agents {
			c.describe(a, a.facts, policy.Rules)
		}
		g.uncounted = true
	}
	if old != nil && inactive != policy.Inactive {
		c.rebuildLevels() // what waits in a group that starts nothing keeps nothing from others
	}
	g.queue.agedTo = g.queue.agingStep(g.queue.now)
	g.queue.byShare = order.Compare(&ownerShares{}, &ownerShares{Dominant: 1}) != 0
	g.queue.reorder()
	return nil
}

// RemoveGroup forgets a group with its agents and sessions.
func (c *Cluster) RemoveGroup(name string) {
	g := c.groups[name]
	if g == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.sessions)) {
		if e := c.sessions[id]; e.running != nil && e.running.group == g || e.waiting != nil && e.waiting.lane.band.group == g {
			c.Remove(id)
		}
	}
	for _, a := range slices.Clone(g.search.agents) {
		c.RemoveAgent(a.id)
	}
	delete(c.groups, name)
}

// SetAgent adds an agent to facts group or replaces its facts. What it runs stays.
func (c *Cluster) SetAgent(group string, facts Agent) {
	g := c.group(group)
	a := c.agent(facts.ID)
	if a.group == g && sameFacts(&a.facts, &facts) {
		if !maps.Equal(a.facts.Images, facts.Images) {
			a.facts = facts
			c.imagesOf(a)
			a.version++
			g.search.changed(a)
			g.noteFacts() // sessions may have waited for an image
		}
		a.facts = facts
		return
	}
	if a.group != nil && a.group != g {
		c.RemoveAgent(facts.ID)
		a = c.agent(facts.ID)
	}
	if a.group == nil {
		a.group = g
		g.search.agents = append(g.search.agents, a)
		g.search.unsorted = true
	}
	c.describe(a, facts, g.policy.Rules)
	g.uncounted = true
	g.noteFacts()
}

// sameFacts reports whether an agent is what it was, apart from what runs and lies there.
func sameFacts(a, b *Agent) bool {
	return a.Architecture == b.Architecture && a.Schedulable == b.Schedulable && a.Alive == b.Alive &&
		(a.Problem == "") == (b.Problem == "") && a.Probe == b.Probe &&
		(a.Unencrypted == "") == (b.Unencrypted == "") && slices.Equal(a.Hung, b.Hung) && slices.EqualFunc(a.Devices, b.Devices, sameDevice)
}

func sameDevice(a, b alloc.Device) bool {
	return a.Slot == b.Slot && a.ID == b.ID && a.NUMA == b.NUMA && a.PCI == b.PCI && a.Model == b.Model &&
		a.Capacity == b.Capacity && a.Healthy == b.Healthy && maps.Equal(a.Links, b.Links)
}

// agent finds an agent, or makes a record of what is held on one that is not known.
func (c *Cluster) agent(id cluster.AgentID) *agent {
	a := c.agents[id]
	if a == nil {
		a = &agent{id: id}
		c.describe(a, Agent{ID: id}, nil)
		c.agents[id] = a
	}
	return a
}

// RemoveAgent forgets an agent; sessions that run there stay known and count against quotas.
func (c *Cluster) RemoveAgent(id cluster.AgentID) {
	a := c.agents[id]
	if a == nil || a.group == nil {
		return
	}
	g := a.group
	g.search.agents = slices.DeleteFunc(g.search.agents, func(x *agent) bool { return x == a })
	g.search.unsorted = true
	a.group = nil
	c.describe(a, Agent{ID: id}, nil)
	c.forgetShadow(a)
	g.uncounted = true
	g.noteFacts()
}

// forgetShadow drops the record of an agent that is not known when nothing is held there any more.
func (c *Cluster) forgetShadow(a *agent) {
	if a.group == nil && len(a.holds) == 0 {
		delete(c.agents, a.id)
	}
}

// SetQuota limits an owner; nil lifts the limit.
func (c *Cluster) SetQuota(key Scope, q *Quota) {
	s := c.scopeOf(key)
	was := s.closed()
	if s.quota = nil; q != nil {
		copied := *q
		s.quota = &copied
		s.limits = s.limits[:0]
		for _, slot := range q.Slots.Names() {
			s.limits = append(s.limits, want{c.slots.of(slot), q.Slots[slot]})
		}
	}
	if s.closed() != was { // what waits of a closed owner wants nothing of what others may borrow
		c.rebuildLevels()
	}
	c.loosen(s)
}

// SetShare records an owner's decayed use in a group for fair-share, as a part of what the
// group could give, divided by the owner's weight; smaller goes first.
func (c *Cluster) SetShare(group string, key Scope, share float64) {
	g := c.group(group)
	if old, ok := g.fairness.decayed[key]; ok && old == share {
		return
	}
	g.fairness.decayed[key] = share
	g.fairness.changed = true
}

// Learn gives placement policies that value agents by what typical requests could still use a
// list to learn from; without it they learn from what is enqueued. The error is Invalid for a
// group that does not exist.
func (c *Cluster) Learn(group string, typical []Session) error {
	g := c.groups[group]
	if g == nil {
		return fault.Invalidf("resource group %s does not exist", group).WithNext("set the group first")
	}
	for i := range typical {
		k := c.kindOf(&typical[i])
		g.search.learn(k, true)
		c.drop(k)
	}
	return nil
}

// Enqueue adds a waiting session or replaces what is known of it, also when it ran before.
func (c *Cluster) Enqueue(group string, s Session) {
	c.Remove(s.ID)
	g := c.group(group)
	k := c.kindOf(&s)
	b := g.queue.bandOf(g, g.fairness.ownerOf(c.accountOf(s.Owner)), min(max(s.Priority, 0), maxPriority))
	l := g.queue.laneOf(b, k)
	l.refs++
	w := &waiting{
		id: s.ID, name: s.Name, enqueued: nanos(s.EnqueuedAt), starts: nanos(s.StartsAt), dependency: s.Waiting, lane: l,
	}
	if len(s.Kernels) > 0 {
		w.kernel = s.Kernels[0].ID
	}
	for i := 1; i < len(s.Kernels); i++ {
		w.others = append(w.others, s.Kernels[i].ID)
	}
	c.sessions[s.ID] = entry{waiting: w}
	b.all.add(w)
	g.queue.pending++
	switch {
	case w.dependency != "":
		g.queue.dependent++
	case w.starts > g.queue.now:
		g.queue.pushFuture(w)
	default:
		g.queue.enqueue(w)
	}
	g.search.learn(k, false)
}

// Run records that a session is live and what its kernels hold, also when it waited before.
// Call it again when one of its kernels ends.
func (c *Cluster) Run(group string, r Running) {
	g := c.group(group)
	if old := c.sessions[r.ID].running; old != nil && old.group == g && old.same(&r) {
		old.account = c.accountOf(r.Owner)
		priority := min(max(r.Priority, 0), maxPriority)
		if old.priority != priority || old.preemptible != r.Preemptible {
			g.queue.events++ // it may be a victim now
		}
		g.preemption.countPreemptible(old, -1)
		old.name, old.priority, old.preemptible = r.Name, priority, r.Preemptible
		g.preemption.countPreemptible(old, 1)
		started, end := nanos(r.StartedAt), endOf(r.StartedAt, r.Lifetime)
		if old.started != started || old.end != end {
			old.started, old.end = started, end
			g.touch(old)
		}
		return
	}
	c.Remove(r.ID)
	run := &running{
		id: r.ID, name: r.Name, group: g, account: c.accountOf(r.Owner), started: nanos(r.StartedAt), end: endOf(r.StartedAt, r.Lifetime),
		priority: min(max(r.Priority, 0), maxPriority), private: r.Private, preemptible: r.Preemptible, companions: r.Companions,
	}
	total := cluster.Slots{}
	for _, p := range r.Placements {
		a := c.agent(p.Agent)
		run.holds = append(run.holds, &hold{run: run, agent: a, kernel: p.Kernel, allocation: p.Allocation, takes: a.takesOf(p.Allocation)})
		for slot, v := range p.Allocation.Totals() {
			total[slot] += v
		}
	}
	run.sum = c.wantsOf(nil, total)
	for _, h := range run.holds {
		h.agent.take(h.takes, 1)
		if h.agent.group != nil {
			h.agent.group.search.changed(h.agent)
		}
	}
	g.start(run)
}

// Remove forgets a session that ended or was withdrawn.
func (c *Cluster) Remove(id cluster.SessionID) {
	e, ok := c.sessions[id]
	if !ok {
		return
	}
	delete(c.sessions, id)
	if e.running != nil {
		e.running.group.stop(e.running)
		return
	}
	g := e.waiting.lane.band.group
	g.withdraw(e.waiting)
	g.reservations.forget(id)
}

func byLane(a, b *lane) int {
	return cmp.Or(cmp.Compare(b.band.priority, a.band.priority), older(a.list.oldest(), b.list.oldest()))
}
