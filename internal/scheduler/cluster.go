package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Cluster is the scheduler's memory of all resource groups: agents, running and waiting
// sessions, quotas. It is updated in place by what changed, and a pass costs what changed
// since the one before. It is not safe for concurrent use, and it is pure: the same calls in
// the same order give the same decisions. Maps in its arguments must not change afterwards.
type Cluster struct {
	groups   map[string]*group
	machines map[cluster.AgentID]*machine
	sessions map[cluster.SessionID]entry
	scopes   map[Scope]*scope
	accounts map[Owner]*account
	kinds    map[string]*kind
	shapes   map[string]*shape
	shaped   uint64 // shapes made so far
	idle     []*shape
	loosened []*scope

	slots    names[cluster.SlotName]
	archs    names[string]
	images   names[string]
	models   names[string]
	cpu, mem int32 // numbers of these slots

	key   keyText // scratch
	wants []want
}

// entry is a session that waits or runs.
type entry struct {
	waiting *waiting
	running *running
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

// group is one resource group.
type group struct {
	cluster    *Cluster
	policy     Group
	order      Order
	youngest   bool
	ageing     time.Duration
	strategy   Strategy
	machines   []*machine // by id
	unsorted   bool
	uncounted  bool
	capacity   []cluster.Amount // of all machines, by slot number
	shares     map[Scope]float64
	parties    map[*account]*party
	usages     map[Scope]*usage
	lanes      map[laneKey]*lane
	kinds      map[*kind]*turn
	ready      turns
	blocked    turns
	refusals   []*kind // whose turn is refused
	pending    int
	dependent  int // of them, those with an open dependency
	future     []*waiting
	at         int64 // the instant of the pass
	passes     uint64
	more       bool  // the bound on work ended the last pass
	aged       int64 // the same in steps, for ageing
	byShare    bool  // the order looks at dominant shares
	reshared   bool  // shares changed since the last pass
	bands      [maxPriority + 1][]*band
	live       map[cluster.SessionID]*running
	companions map[string]map[*machine]int

	boards    map[*shape]*board
	changes   []int32
	forgotten int // changes dropped from the front
	clock     uint64
	facts     uint64     // counts changes of the set of machines and their facts
	grown     []*machine // that have more room than at the last pass
	stirred   bool       // facts or policies changed: try everything again
	steps     int
	cursor    cluster.AgentID // last agent of a policy that takes turns

	reserved   []*reservation // of the last pass
	former     []*reservation // of the one before
	parked     []*turn        // blocked kinds with a reservation, out of their heap
	heedless   bool           // place does not heed reservations
	unreserved bool           // a reservation went away between passes
	barred     []bool         // machines that nothing may start on, where backfill is off
	claims     []*claim
	moves      uint64 // counts changes of what runs
	tried      uint64 // moves when victims were last looked for
	tries      int    // searches for victims in this pass
	searches   []search
	ripe       int64 // when a session that was too young becomes a possible victim; 0: none was
	// preemptible counts live sessions that may become victims, by priority.
	preemptible [maxPriority + 1]int

	view      View // scratch
	chooser   alloc.Chooser
	asked     []alloc.Want
	takes     []alloc.Take
	scratch   state
	masked    state
	later     state
	cleared   state
	ends      []*hold
	skip      []int32
	sequenced []int
	freed     []int
	left      []cluster.Amount
}

// Work bounds one pass, so that it stays short and others are heard in between.
type Work struct {
	// Placements is the most sessions one pass starts; 0: no bound.
	Placements int
	// Steps bounds the looks at agents, in units of one request compared with one agent; 0: no bound.
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
		groups: map[string]*group{}, machines: map[cluster.AgentID]*machine{}, sessions: map[cluster.SessionID]entry{},
		scopes: map[Scope]*scope{}, accounts: map[Owner]*account{}, kinds: map[string]*kind{}, shapes: map[string]*shape{},
	}
	c.cpu, c.mem = c.slots.of(cluster.SlotCPU), c.slots.of(cluster.SlotMem)
	return c
}

// SetGroup adds a resource group or changes its policy at once; its queue and agents stay.
// The error is Invalid for a policy that is not registered or an option that it does not have.
func (c *Cluster) SetGroup(policy Group) error {
	order, ageing, err := newOrder(policy.Order, policy.OrderOptions)
	if err != nil {
		return err
	}
	old := c.groups[policy.Name]
	var strategy Strategy
	if old != nil && old.policy.Placement == policy.Placement && sameOptions(old.policy.PlacementOptions, policy.PlacementOptions) {
		strategy = old.strategy // with what it learnt
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
	rules := !maps.Equal(g.policy.Rules, policy.Rules)
	g.policy, g.order, g.youngest, g.ageing, g.strategy = policy, order, order.Youngest(), ageing, strategy
	g.stir()
	if rules {
		for _, m := range g.machines {
			c.describe(m, m.facts, policy.Rules)
		}
		g.uncounted = true
	}
	g.aged = g.ageAt(g.at)
	g.byShare = order.Compare(&Party{}, &Party{Dominant: 1}) != 0
	g.again()
	return nil
}

// ageAt is an instant in eighths of a step of ageing: the order of the queue changes that often.
func (g *group) ageAt(at int64) int64 {
	if step := int64(g.ageing) / 8; step > 0 {
		return at - at%step
	}
	return at
}

func (c *Cluster) group(name string) *group {
	g := c.groups[name]
	if g == nil {
		g = &group{
			cluster: c, policy: Group{Name: name}, order: byAge{}, strategy: pack{},
			shares: map[Scope]float64{}, parties: map[*account]*party{}, usages: map[Scope]*usage{}, lanes: map[laneKey]*lane{},
			kinds: map[*kind]*turn{}, live: map[cluster.SessionID]*running{}, companions: map[string]map[*machine]int{},
			boards: map[*shape]*board{},
		}
		c.groups[name] = g
	}
	return g
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
	for _, m := range slices.Clone(g.machines) {
		c.RemoveAgent(m.id)
	}
	delete(c.groups, name)
}

// SetAgent adds an agent to a group or replaces its facts. What it runs stays.
func (c *Cluster) SetAgent(group string, a Agent) {
	g := c.group(group)
	m := c.machine(a.ID)
	if m.group == g && sameMachine(&m.facts, &a) {
		if !maps.Equal(m.facts.Images, a.Images) {
			m.facts = a
			c.imagesOf(m)
			m.version++
			g.changed(m)
		}
		m.facts = a
		return
	}
	if m.group != nil && m.group != g {
		c.RemoveAgent(a.ID)
		m = c.machine(a.ID)
	}
	if m.group == nil {
		m.group = g
		g.machines = append(g.machines, m)
		g.unsorted = true
	}
	c.describe(m, a, g.policy.Rules)
	g.uncounted = true
	g.stir()
}

// sameMachine reports whether an agent is what it was, apart from what runs and lies there.
func sameMachine(a, b *Agent) bool {
	return a.Architecture == b.Architecture && a.Schedulable == b.Schedulable && a.Alive == b.Alive &&
		slices.Equal(a.Hung, b.Hung) && slices.EqualFunc(a.Devices, b.Devices, sameDevice)
}

func sameDevice(a, b alloc.Device) bool {
	return a.Slot == b.Slot && a.ID == b.ID && a.NUMA == b.NUMA && a.PCI == b.PCI && a.Model == b.Model &&
		a.Capacity == b.Capacity && a.Healthy == b.Healthy && maps.Equal(a.Links, b.Links)
}

// machine finds an agent or makes a shadow for what is held on one that is not known.
func (c *Cluster) machine(id cluster.AgentID) *machine {
	m := c.machines[id]
	if m == nil {
		m = &machine{id: id}
		c.describe(m, Agent{ID: id}, nil)
		c.machines[id] = m
	}
	return m
}

// RemoveAgent forgets an agent; sessions that run there stay known and count against quotas.
func (c *Cluster) RemoveAgent(id cluster.AgentID) {
	m := c.machines[id]
	if m == nil || m.group == nil {
		return
	}
	g := m.group
	g.machines = slices.DeleteFunc(g.machines, func(x *machine) bool { return x == m })
	g.unsorted = true
	m.group = nil
	c.describe(m, Agent{ID: id}, nil)
	c.forgetShadow(m)
	g.uncounted = true
	g.stir()
}

func (c *Cluster) forgetShadow(m *machine) {
	if m.group == nil && len(m.holds) == 0 {
		delete(c.machines, m.id)
	}
}

// SetQuota limits an owner; nil lifts the limit.
func (c *Cluster) SetQuota(key Scope, q *Quota) {
	s := c.scopeOf(key)
	if s.quota = nil; q != nil {
		copied := *q
		s.quota = &copied
		s.limits = s.limits[:0]
		for _, slot := range q.Slots.Names() {
			s.limits = append(s.limits, want{c.slots.of(slot), q.Slots[slot]})
		}
	}
	c.loosen(s)
}

// SetShare records an owner's decayed use in a group for fair-share, as a part of what the
// group could give, divided by the owner's weight; smaller goes first.
func (c *Cluster) SetShare(group string, key Scope, share float64) {
	g := c.group(group)
	if old, ok := g.shares[key]; ok && old == share {
		return
	}
	g.shares[key] = share
	g.reshared = true
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
		g.learn(k, true)
		c.drop(k)
	}
	return nil
}

// Enqueue adds a waiting session or replaces what is known of it, also when it ran before.
func (c *Cluster) Enqueue(group string, s Session) {
	c.Remove(s.ID)
	g := c.group(group)
	k := c.kindOf(&s)
	b := g.bandOf(g.partyOf(c.accountOf(s.Owner)), min(max(s.Priority, 0), maxPriority))
	l := g.laneOf(b, k)
	l.refs++
	w := &waiting{
		id: s.ID, name: s.Name, enqueued: nanos(s.EnqueuedAt), starts: nanos(s.StartsAt), waits: s.Waiting, lane: l,
	}
	if len(s.Kernels) > 0 {
		w.kernel = s.Kernels[0].ID
	}
	for i := 1; i < len(s.Kernels); i++ {
		w.more = append(w.more, s.Kernels[i].ID)
	}
	c.sessions[s.ID] = entry{waiting: w}
	b.all.add(w)
	g.pending++
	switch {
	case w.waits != "":
		g.dependent++
	case w.starts > g.at:
		g.pushFuture(w)
	default:
		g.enqueue(w)
	}
	g.learn(k, false)
}

func (g *group) bandOf(p *party, priority int) *band {
	for _, b := range p.bands {
		if b.priority == priority {
			return b
		}
	}
	b := &band{party: p, group: g, priority: priority}
	p.bands = append(p.bands, b)
	g.bands[priority] = append(g.bands[priority], b)
	return b
}

func (g *group) laneOf(b *band, k *kind) *lane {
	key := laneKey{b, k}
	l := g.lanes[key]
	if l == nil {
		l = &lane{band: b, kind: k, aside: absent, nth: len(b.party.lanes)}
		g.lanes[key] = l
		b.party.lanes = append(b.party.lanes, l)
		if g.kinds[k] == nil {
			g.kinds[k] = &turn{group: g, kind: k, queue: &g.ready, pos: -1, nth: -1}
		}
	}
	return l
}

// Run records that a session is live and what its kernels hold, also when it waited before.
// Call it again when one of its kernels ends.
func (c *Cluster) Run(group string, r Running) {
	g := c.group(group)
	if old := c.sessions[r.ID].running; old != nil && old.group == g && old.same(&r) {
		old.account = c.accountOf(r.Owner)
		priority := min(max(r.Priority, 0), maxPriority)
		if old.priority != priority || old.preemptible != r.Preemptible {
			g.moves++ // it may be a victim now
		}
		g.expose(old, -1)
		old.name, old.priority, old.preemptible = r.Name, priority, r.Preemptible
		g.expose(old, 1)
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
		m := c.machine(p.Agent)
		run.holds = append(run.holds, &hold{run: run, machine: m, kernel: p.Kernel, allocation: p.Allocation, takes: m.takesOf(p.Allocation)})
		for slot, v := range p.Allocation.Totals() {
			total[slot] += v
		}
	}
	run.sum = c.wantsOf(nil, total)
	for _, h := range run.holds {
		h.machine.take(h.takes, 1)
		if h.machine.group != nil {
			h.machine.group.changed(h.machine)
		}
	}
	g.start(run)
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
	g.moves++
	g.expose(r, 1)
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
			m.group.changed(m)
			m.group.grown = append(m.group.grown, m)
		}
		g.accompany(r, m, -1)
		g.cluster.forgetShadow(m)
	}
	g.moves++
	g.expose(r, -1)
	g.charge(r, -1)
	g.unclaim(r)
}

// expose counts a session among the possible victims.
func (g *group) expose(r *running, n int) {
	if r.preemptible && !r.private {
		g.preemptible[r.priority] += n
	}
}

// accompany counts where companions run.
func (g *group) accompany(r *running, m *machine, n int) {
	name := r.companions.Name
	if name == "" {
		return
	}
	at := g.companions[name]
	if at == nil {
		at = map[*machine]int{}
		g.companions[name] = at
	}
	if at[m] += n; at[m] == 0 {
		delete(at, m)
	}
	if len(at) == 0 {
		delete(g.companions, name)
	}
	for _, k := range slices.Clone(g.refusals) {
		if k.session.Companions.Name == name {
			g.tryAgain(k)
		}
	}
}

// touch notes that something about a running session changed that does not move room.
func (g *group) touch(r *running) {
	g.moves++
	for _, h := range r.holds {
		h.machine.version++
		if h.machine.group != nil {
			h.machine.group.changed(h.machine)
		}
	}
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
	g.forget(id)
}

// withdraw takes a waiting session out of the queue.
func (g *group) withdraw(w *waiting) {
	l := w.lane
	if w.waits != "" {
		g.dependent--
	}
	if w.queued {
		g.dequeue(w)
	} else if w.waits == "" {
		g.dropFuture(w)
	}
	l.band.all.remove(w)
	g.pending--
	if l.refs--; l.refs == 0 {
		delete(g.lanes, laneKey{l.band, l.kind})
		p := l.band.party
		last := p.lanes[len(p.lanes)-1]
		p.lanes[l.nth], last.nth = last, l.nth
		p.lanes = p.lanes[:len(p.lanes)-1]
	}
	if b := l.band; b.all.n == 0 {
		b.party.bands = slices.DeleteFunc(b.party.bands, func(x *band) bool { return x == b })
		g.bands[b.priority] = slices.DeleteFunc(g.bands[b.priority], func(x *band) bool { return x == b })
	}
	g.cluster.drop(l.kind)
}

// sync brings what follows from the set of machines up to date.
func (g *group) sync() {
	if g.unsorted {
		slices.SortFunc(g.machines, func(a, b *machine) int { return cmp.Compare(a.id, b.id) })
		for i, m := range g.machines {
			m.index = i
		}
		g.unsorted = false
	}
	if g.uncounted {
		g.count()
		g.uncounted = false
	}
}

// count sums the capacity of the group's machines.
func (g *group) count() {
	clear(g.capacity)
	for len(g.capacity) < len(g.cluster.slots.name) {
		g.capacity = append(g.capacity, 0)
	}
	for _, m := range g.machines {
		for slot, v := range m.total {
			g.capacity[slot] += v
		}
	}
	for _, u := range g.usages {
		share := g.dominant(u)
		for _, p := range u.parties {
			p.Dominant = share
		}
	}
	g.again()
}

// stir has everything tried again: a change of facts or policies can help any session.
func (g *group) stir() {
	g.facts++
	g.stirred = true
}

func byLane(a, b *lane) int {
	return cmp.Or(cmp.Compare(b.band.priority, a.band.priority), older(a.list.oldest(), b.list.oldest()))
}
