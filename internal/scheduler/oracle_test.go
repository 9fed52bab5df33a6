package scheduler_test

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// The oracle decides about one resource group the slow way. It follows the section "The rules of a pass" of docs/scheduling.md,
// shares no code with the scheduler, and keeps no index, cache or heap: every question is answered from the lists of agents,
// running and waiting sessions. Of package alloc it uses Fit alone, which agents confirm allocations with.
//
// Exact, decision by decision: the order of the queue, who starts, on which agents and devices (so gangs are whole), who is over a
// limit, who is held back by a reservation or claim, which sessions have a reservation, where and from when, and who preempts
// whom. Only the policies pack, spread and round-robin are modelled; least-fragmentation scores by random series.
//
// Checked as a property, see checkVictims: that victims suffice, that none of them could be spared, and that no other set on an
// agent spares a higher priority. So the oracle's own search for victims is not trusted either.
type oracle struct {
	now     time.Time
	group   scheduler.Group
	agents  []scheduler.Agent   // by id
	waiting []scheduler.Session // in no order
	running []scheduler.Running
	quotas  map[scheduler.Scope]scheduler.Quota
	shares  map[scheduler.Scope]float64

	// What one pass leaves to the next.
	claims []*keptPlace
	last   cluster.AgentID // the agent chosen last

	// Of one pass.
	reserved  []*keptPlace
	refused   map[string]verdict // by kind of session
	hopeless  map[string]bool    // kinds, owners and priorities for which no victims were found
	decisions []scheduler.Decision
}

type verdict string

const (
	noRoom   verdict = "no room"  // waits for running sessions to end
	noAgent  verdict = "no agent" // no agent takes it, whatever ends
	heldBack verdict = "held back"
)

// keptPlace is a reservation, or a claim when it has or had victims.
type keptPlace struct {
	session scheduler.Session
	from    time.Time // zero: unknown
	parts   []*keptPart
	victims []cluster.SessionID // that still run
}

// keptPart is what is kept on one agent.
type keptPart struct {
	agent *scheduler.Agent
	slots cluster.Slots    // cores and memory
	takes alloc.Allocation // accelerators
}

func (p *keptPlace) on(a *scheduler.Agent) *keptPart {
	for _, part := range p.parts {
		if part.agent.ID == a.ID {
			return part
		}
	}
	return nil
}

func (p *keptPlace) add(a *scheduler.Agent, kernels []scheduler.Kernel, takes alloc.Allocation) {
	part := p.on(a)
	if part == nil {
		part = &keptPart{agent: a, slots: cluster.Slots{}, takes: alloc.Allocation{}}
		p.parts = append(p.parts, part)
	}
	part.slots = part.slots.Add(sumOf(kernels))
	accelerators := alloc.Allocation{}
	for slot, devices := range takes {
		if accelerator(slot) {
			accelerators[slot] = devices
		}
	}
	part.takes = part.takes.Add(accelerators)
}

func accelerator(slot cluster.SlotName) bool {
	return slot != cluster.SlotCPU && slot != cluster.SlotMem
}

func sumOf(kernels []scheduler.Kernel) cluster.Slots {
	out := cluster.Slots{}
	for _, k := range kernels {
		out = out.Add(k.Slots)
	}
	return out
}

// kindOf is equal for sessions that differ in name, owner, priority and age only.
func kindOf(s *scheduler.Session) string {
	text := make([]byte, 0, 128)
	add := func(words ...string) {
		for _, w := range words {
			text = append(append(text, w...), '|')
		}
		text = append(text, ';')
	}
	add(strconv.FormatBool(s.SingleNode), strconv.FormatBool(s.Private), strconv.FormatBool(s.Preemptible), s.Lifetime.String())
	add(s.Companions.Name, strconv.FormatBool(s.Companions.Apart), strconv.FormatBool(s.Companions.Strict))
	for _, list := range [][]cluster.AgentID{s.Designated, s.Failed} {
		for _, id := range list {
			add(string(id))
		}
		add()
	}
	add(s.Volumes...)
	for _, k := range s.Kernels {
		add(k.Architecture, k.Image)
		add(k.Models...)
		for _, slot := range k.Slots.Names() {
			if v := k.Slots[slot]; v != 0 {
				add(string(slot), strconv.FormatInt(int64(v), 10))
			}
		}
	}
	return string(text)
}

// units are the kernels that go to one agent together, as indices: each by itself, or all of a single-node session. Those that ask
// for more accelerators come first, then more memory, then more cores.
func units(s *scheduler.Session) [][]int {
	var order []int
	for i := range s.Kernels {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(i, j int) int {
		var gpus [2]cluster.Amount
		for n, k := range []int{i, j} {
			for slot, v := range s.Kernels[k].Slots {
				if accelerator(slot) {
					gpus[n] += v
				}
			}
		}
		a, b := s.Kernels[i].Slots, s.Kernels[j].Slots
		return cmp.Or(cmp.Compare(gpus[1], gpus[0]), cmp.Compare(b[cluster.SlotMem], a[cluster.SlotMem]), cmp.Compare(b[cluster.SlotCPU], a[cluster.SlotCPU]))
	})
	if s.SingleNode {
		return [][]int{order}
	}
	var out [][]int
	for _, i := range order {
		out = append(out, []int{i})
	}
	return out
}

func kernelsOf(s *scheduler.Session, unit []int) []scheduler.Kernel {
	var out []scheduler.Kernel
	for _, i := range unit {
		out = append(out, s.Kernels[i])
	}
	return out
}

// --- Room.

// space is what an agent could hand out: devices less what is used of each, and at most so much of cores and memory.
type space struct {
	used alloc.Allocation
	most cluster.Slots // absent: no other bound than the devices
}

// spaceOf is the space of an agent without the sessions that gone names.
func (o *oracle) spaceOf(a *scheduler.Agent, gone func(*scheduler.Running) bool) space {
	s := space{used: alloc.Allocation{}}
	for i := range o.running {
		if r := &o.running[i]; gone == nil || !gone(r) {
			for _, p := range r.Placements {
				if p.Agent == a.ID {
					s.used = s.used.Add(p.Allocation)
				}
			}
		}
	}
	return s
}

func free(d *alloc.Device, used alloc.Allocation) cluster.Amount {
	if !d.Healthy {
		return 0
	}
	return max(0, d.Capacity-used[d.Slot][d.ID])
}

// room is how much of a slot can be handed out, in whole units.
func (s space) room(a *scheduler.Agent, slot cluster.SlotName) cluster.Amount {
	unit, sum := cluster.Amount(1000), cluster.Amount(0)
	if alloc.DefaultRule(slot) == alloc.Fraction {
		unit = 10
	}
	for i := range a.Devices {
		if d := &a.Devices[i]; d.Slot == slot {
			sum += free(d, s.used) / unit * unit
		}
	}
	if most, bound := s.most[slot]; bound {
		return min(sum, most)
	}
	return sum
}

// fit finds devices for kernels together in a space, by kernel.
func (o *oracle) fit(a *scheduler.Agent, s space, kernels []scheduler.Kernel) ([]alloc.Allocation, bool) {
	for slot, v := range sumOf(kernels) {
		if v > 0 && s.room(a, slot) < v {
			return nil, false
		}
	}
	used, out := s.used, []alloc.Allocation(nil)
	for _, k := range kernels {
		takes, err := alloc.Fit(a.Devices, used, k.Slots, alloc.Policy{NoFragment: o.group.WholeDevices, Models: k.Models})
		if err != nil {
			return nil, false
		}
		used, out = used.Add(takes), append(out, takes)
	}
	return out, true
}

// serves reports whether an agent may run kernels at all, whatever it has free.
func serves(a *scheduler.Agent, kernels []scheduler.Kernel) bool {
	for _, k := range kernels {
		if k.Architecture != "" && k.Architecture != a.Architecture {
			return false
		}
	}
	return a.Alive && a.Schedulable
}

// allows reports whether a session may run on an agent: it is a designated one, and all volumes of the session answer there.
func allows(s *scheduler.Session, a *scheduler.Agent) bool {
	return (len(s.Designated) == 0 || slices.Contains(s.Designated, a.ID)) && !hangs(*a, *s)
}

// suits is how well an agent meets the wishes of a session, smaller first; false where it is ruled out.
func (o *oracle) suits(s *scheduler.Session, a *scheduler.Agent) (int, bool) {
	if !allows(s, a) {
		return 0, false
	}
	grade := 0
	if s.Companions.Name != "" {
		anywhere, here := false, false
		for _, r := range o.running {
			if r.Companions.Name == s.Companions.Name {
				for _, p := range r.Placements {
					anywhere, here = true, here || p.Agent == a.ID
				}
			}
		}
		if anywhere && here == s.Companions.Apart {
			if s.Companions.Strict {
				return 0, false
			}
			grade += 2
		}
	}
	if slices.Contains(s.Failed, a.ID) {
		grade++
	}
	return grade, true
}

// score orders agents under the placement policy, smaller first.
func (o *oracle) score(a *scheduler.Agent, s space, kernels []scheduler.Kernel) []int64 {
	if o.group.Placement == "round-robin" {
		return nil
	}
	var unused, gpus, cpu, mem int64
	seen := map[cluster.SlotName]bool{}
	asked := sumOf(kernels)
	for _, d := range a.Devices {
		if seen[d.Slot] {
			continue
		}
		seen[d.Slot] = true
		if (space{}).room(a, d.Slot) > 0 && asked[d.Slot] == 0 {
			unused++
		}
		left := int64(s.room(a, d.Slot) - asked[d.Slot])
		switch d.Slot {
		case cluster.SlotCPU:
			cpu = left
		case cluster.SlotMem:
			mem = left
		default:
			gpus += left
		}
	}
	image := int64(0)
	for _, k := range kernels {
		if k.Image != "" {
			if !a.Images[k.Image] {
				image = 1
			}
			break
		}
	}
	if o.group.Placement == "spread" {
		return []int64{unused, -gpus, -cpu, -mem, image}
	}
	return []int64{unused, gpus, cpu, mem, image}
}

// place finds an agent and devices for every kernel of a session, or for none. With ignore, what is kept for others is not heeded.
func (o *oracle) place(s *scheduler.Session, ignore bool) []scheduler.Placement {
	if len(s.Kernels) == 0 {
		return nil
	}
	list := units(s)
	if slices.ContainsFunc(list, func(u []int) bool { return shapeOf(s, u) != shapeOf(s, list[0]) }) {
		choices := func(u []int) (n int) {
			kernels := kernelsOf(s, u)
			for i := range o.agents {
				if a := &o.agents[i]; serves(a, kernels) {
					if _, ok := o.fit(a, o.spaceOf(a, nil), kernels); ok {
						n++
					}
				}
			}
			return n
		}
		count := map[int]int{}
		for _, u := range list {
			count[u[0]] = choices(u)
		}
		slices.SortStableFunc(list, func(u, v []int) int { return count[u[0]] - count[v[0]] })
	}
	before, last := len(o.running), o.last
	placements := make([]scheduler.Placement, len(s.Kernels))
	for _, u := range list {
		a, takes := o.seat(s, kernelsOf(s, u), ignore)
		if a == nil {
			o.running, o.last = o.running[:before], last
			return nil
		}
		trial := scheduler.Running{} // holds the devices while the others are placed, and is no companion
		for n, i := range u {
			placements[i] = scheduler.Placement{Kernel: s.Kernels[i].ID, Agent: a.ID, Allocation: takes[n]}
			trial.Placements = append(trial.Placements, placements[i])
		}
		o.running, o.last = append(o.running, trial), a.ID
	}
	o.running = o.running[:before]
	if ignore {
		o.last = last
	}
	return placements
}

func shapeOf(s *scheduler.Session, u []int) string {
	return kindOf(&scheduler.Session{Kernels: kernelsOf(s, u)})
}

// seat finds the best agent for kernels that go together.
func (o *oracle) seat(s *scheduler.Session, kernels []scheduler.Kernel, ignore bool) (best *scheduler.Agent, takes []alloc.Allocation) {
	order := o.agents
	if o.group.Placement == "round-robin" { // those after the last one come first
		n := 0
		for n < len(order) && order[n].ID <= o.last {
			n++
		}
		order = append(slices.Clone(order[n:]), order[:n]...)
	}
	var bestScore []int64
	for i := range order {
		a := &order[i]
		grade, ok := o.suits(s, a)
		if !ok || !serves(a, kernels) || !ignore && o.closed(s, a) {
			continue
		}
		now := o.spaceOf(a, nil)
		score := append([]int64{int64(grade)}, o.score(a, now, kernels)...)
		left := now
		if !ignore {
			left = o.leftFor(s, a)
		}
		if got, ok := o.fit(a, left, kernels); ok && (best == nil || slices.Compare(score, bestScore) < 0) {
			best, bestScore, takes = a, score, got
		}
	}
	if best != nil {
		best = o.agent(best.ID)
	}
	return best, takes
}

func (o *oracle) agent(id cluster.AgentID) *scheduler.Agent {
	return &o.agents[slices.IndexFunc(o.agents, func(a scheduler.Agent) bool { return a.ID == id })]
}

// closed reports whether an agent is closed for a session because backfill is off.
func (o *oracle) closed(s *scheduler.Session, a *scheduler.Agent) bool {
	if !o.group.Backfill.Disabled || len(o.reserved) == 0 || !o.comesBefore(&o.reserved[0].session, s) {
		return false
	}
	for _, r := range o.reserved {
		for _, u := range units(&r.session) {
			if kernels := kernelsOf(&r.session, u); o.canEver(&r.session, a, kernels) {
				return true
			}
		}
	}
	return false
}

// canEver reports whether kernels of a session could run on an agent where nothing else runs.
func (o *oracle) canEver(s *scheduler.Session, a *scheduler.Agent, kernels []scheduler.Kernel) bool {
	_, ok := o.fit(a, space{}, kernels)
	return ok && serves(a, kernels) && allows(s, a)
}

// --- Reservations.

// leftFor is what a session may use of an agent: what is free less what is kept for sessions before it.
func (o *oracle) leftFor(s *scheduler.Session, a *scheduler.Agent) space {
	out := o.spaceOf(a, nil)
	keep := func(p *keptPlace) {
		part := p.on(a)
		if part == nil || p.session.ID == s.ID || !o.comesBefore(&p.session, s) {
			return
		}
		later := o.spaceOf(a, func(r *scheduler.Running) bool { return !p.from.IsZero() && o.endsBy(r, p.from) })
		if out.most == nil {
			out.most = cluster.Slots{}
		}
		for slot, v := range part.slots {
			if v > 0 && !accelerator(slot) {
				out.most[slot] = max(0, min(out.room(a, slot), later.room(a, slot)-v))
			}
		}
		for i := range a.Devices {
			if d := &a.Devices[i]; part.takes[d.Slot][d.ID] > 0 && d.Healthy {
				left := max(0, min(free(d, out.used), free(d, later.used)-part.takes[d.Slot][d.ID]))
				out.used = out.used.Add(alloc.Allocation{d.Slot: {d.ID: free(d, out.used) - left}})
			}
		}
	}
	for _, r := range o.reserved {
		if !o.inTime(r, s) {
			keep(r)
		}
	}
	for _, c := range o.claims {
		keep(&keptPlace{session: c.session, parts: c.parts})
	}
	return out
}

// inTime reports whether a session may use what a reservation keeps.
func (o *oracle) inTime(r *keptPlace, s *scheduler.Session) bool {
	if s.Lifetime <= 0 {
		since := r.session.EnqueuedAt
		if r.session.StartsAt.After(since) {
			since = r.session.StartsAt
		}
		window := o.group.Backfill.PassedOver
		return window > 0 && o.now.Before(since.Add(window))
	}
	return !r.from.IsZero() && !o.now.Add(s.Lifetime).After(r.from)
}

// endOf is when a session ends at the latest; false when it did not declare that.
func endOf(r *scheduler.Running) (time.Time, bool) {
	return r.StartedAt.Add(r.Lifetime), r.Lifetime > 0 && !r.StartedAt.IsZero()
}

func (o *oracle) endsBy(r *scheduler.Running, at time.Time) bool {
	end, ok := endOf(r)
	return ok && !end.After(at)
}

// instants are the declared ends of what runs on agents, now instead of those that have passed.
func (o *oracle) instants(agents []*scheduler.Agent) []time.Time {
	var out []time.Time
	for i := range o.running {
		end, ok := endOf(&o.running[i])
		here := func(p scheduler.Placement) bool {
			return slices.ContainsFunc(agents, func(a *scheduler.Agent) bool { return a.ID == p.Agent })
		}
		if !ok || !slices.ContainsFunc(o.running[i].Placements, here) {
			continue
		}
		if end.Before(o.now) {
			end = o.now
		}
		out = append(out, end)
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// taken reports whether something is kept on an agent for another session.
func (o *oracle) taken(s *scheduler.Session, a *scheduler.Agent) bool {
	other := func(p *keptPlace) bool { return p.session.ID != s.ID && p.on(a) != nil }
	return slices.ContainsFunc(o.reserved, other) || slices.ContainsFunc(o.claims, other)
}

// reserve finds the place that is kept for a session that waits for room.
func (o *oracle) reserve(s *scheduler.Session) *keptPlace {
	if c := o.claimOf(s.ID); c != nil {
		return c
	}
	var open []*scheduler.Agent
	for i := range o.agents {
		a := &o.agents[i]
		if _, ok := o.suits(s, a); ok && !o.taken(s, a) {
			open = append(open, a)
		}
	}
	list := units(s)
	if len(list) == 1 {
		return o.reserveOne(s, kernelsOf(s, list[0]), open)
	}
	open = slices.DeleteFunc(open, func(a *scheduler.Agent) bool {
		return !slices.ContainsFunc(list, func(u []int) bool { return o.canEver(s, a, kernelsOf(s, u)) })
	})
	ends := slices.CompactFunc(o.instants(open), time.Time.Equal)
	var found *keptPlace
	sort.Search(len(ends), func(i int) bool { // by halves, as the rules say
		p := o.gangAt(s, open, ends[i])
		if p != nil {
			found = p
		}
		return p != nil
	})
	if found == nil {
		return o.gangSomeDay(s, open)
	}
	return found
}

// reserveOne keeps room on one agent: where it fits first, else where least is missing.
func (o *oracle) reserveOne(s *scheduler.Session, kernels []scheduler.Kernel, open []*scheduler.Agent) *keptPlace {
	p := &keptPlace{session: *s}
	var best *scheduler.Agent
	var takes []alloc.Allocation
	bestGrade := 0
	for _, a := range open {
		if !o.canEver(s, a, kernels) {
			continue
		}
		at, got, ok := o.firstFit(a, kernels)
		if !ok {
			continue
		}
		grade, _ := o.suits(s, a)
		if best == nil || at.Before(p.from) || at.Equal(p.from) && grade < bestGrade {
			best, bestGrade, p.from, takes = a, grade, at, got
		}
	}
	if best != nil {
		p.add(best, kernels, join(takes))
		return p
	}
	least := 0.0
	for _, a := range open {
		if o.canEver(s, a, kernels) {
			if lack, _ := o.lack(a, o.spaceOf(a, nil), kernels); best == nil || lack < least {
				best, least = a, lack
			}
		}
	}
	if best != nil {
		_, takes := o.lack(best, o.spaceOf(best, nil), kernels)
		p.add(best, kernels, takes)
	}
	return p
}

// firstFit is the first instant at which declared ends have left room for kernels on an agent.
func (o *oracle) firstFit(a *scheduler.Agent, kernels []scheduler.Kernel) (time.Time, []alloc.Allocation, bool) {
	for _, at := range append([]time.Time{{}}, o.instants([]*scheduler.Agent{a})...) {
		got, ok := o.fit(a, o.spaceOf(a, func(r *scheduler.Running) bool { return o.endsBy(r, at) }), kernels)
		if ok && at.IsZero() { // it fits now
			at = o.now
			got, ok = o.fit(a, o.spaceOf(a, func(r *scheduler.Running) bool { return o.endsBy(r, at) }), kernels)
		}
		if ok {
			return at, got, true
		}
	}
	return time.Time{}, nil, false
}

func join(list []alloc.Allocation) alloc.Allocation {
	out := alloc.Allocation{}
	for _, a := range list {
		out = out.Add(a)
	}
	return out
}

// lack sums the missing parts of what is asked, and names the accelerators that kernels would use: those with most free.
func (o *oracle) lack(a *scheduler.Agent, s space, kernels []scheduler.Kernel) (float64, alloc.Allocation) {
	lack, takes := 0.0, alloc.Allocation{}
	left := func(d *alloc.Device) cluster.Amount { return d.Capacity - s.used[d.Slot][d.ID] - takes[d.Slot][d.ID] }
	// That is below zero where more was promised.
	sum := sumOf(kernels)
	for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
		if asked, have := sum[slot], s.room(a, slot); have < asked {
			lack += float64(asked-have) / float64(asked)
		}
	}
	for _, k := range kernels {
		for _, slot := range k.Slots.Names() {
			var devices []*alloc.Device
			for i := range a.Devices {
				if d := &a.Devices[i]; d.Slot == slot && accelerator(slot) && d.Healthy && (len(k.Models) == 0 || slices.Contains(k.Models, d.Model)) {
					devices = append(devices, d)
				}
			}
			slices.SortStableFunc(devices, func(x, y *alloc.Device) int { return cmp.Compare(left(y), left(x)) })
			want := k.Slots[slot]
			for _, d := range devices {
				portion := min(want, d.Capacity)
				if portion <= 0 {
					break
				}
				if have := left(d); have < portion {
					lack += float64(portion-have) / float64(k.Slots[slot])
				}
				takes = takes.Add(alloc.Allocation{slot: {d.ID: portion}})
				want -= portion
			}
		}
	}
	return lack, takes
}

// gangAt places the units of a session one after the other, each on the first agent with room at an instant.
func (o *oracle) gangAt(s *scheduler.Session, open []*scheduler.Agent, at time.Time) *keptPlace {
	p := &keptPlace{session: *s, from: at}
	spaces := map[cluster.AgentID]space{}
	for _, a := range open {
		spaces[a.ID] = o.spaceOf(a, func(r *scheduler.Running) bool { return o.endsBy(r, at) })
	}
	for _, u := range units(s) {
		kernels, found := kernelsOf(s, u), false
		for _, a := range open {
			if !serves(a, kernels) {
				continue
			}
			if got, ok := o.fit(a, spaces[a.ID], kernels); ok {
				spaces[a.ID] = space{used: spaces[a.ID].used.Add(join(got))}
				p.add(a, kernels, join(got))
				found = true
				break
			}
		}
		if !found {
			return nil
		}
	}
	return p
}

// gangSomeDay keeps for each unit the agent that lacks least, where nobody knows when all of them will fit.
func (o *oracle) gangSomeDay(s *scheduler.Session, open []*scheduler.Agent) *keptPlace {
	p := &keptPlace{session: *s}
	bare := map[cluster.AgentID]space{}     // of an agent with nothing but earlier units
	promised := map[cluster.AgentID]space{} // now, less what earlier units wait for
	for _, a := range open {
		bare[a.ID], promised[a.ID] = space{used: alloc.Allocation{}}, o.spaceOf(a, nil)
	}
	for _, u := range units(s) {
		kernels := kernelsOf(s, u)
		var best *scheduler.Agent
		least := 0.0
		for _, a := range open {
			if _, ok := o.fit(a, bare[a.ID], kernels); !ok || !serves(a, kernels) {
				continue
			}
			if lack, _ := o.lack(a, promised[a.ID], kernels); best == nil || lack < least {
				best, least = a, lack
			}
		}
		if best == nil {
			return &keptPlace{session: *s}
		}
		_, takes := o.lack(best, promised[best.ID], kernels)
		p.add(best, kernels, takes)
		got, _ := o.fit(best, bare[best.ID], kernels)
		bare[best.ID] = space{used: bare[best.ID].used.Add(join(got))}
		after := promised[best.ID]
		after.used = after.used.Add(takes)
		if after.most == nil {
			after.most = cluster.Slots{}
		}
		for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
			most, bound := after.most[slot]
			if !bound {
				most = after.room(best, slot)
			}
			after.most = after.most.Clone()
			after.most[slot] = most - sumOf(kernels)[slot]
		}
		promised[best.ID] = after
	}
	return p
}

// --- Order and limits.

// level is the priority within its bounds.
func level(s *scheduler.Session) int { return min(max(s.Priority, 0), 100) }

// rank is the priority of a session, with what waiting has added.
func (o *oracle) rank(s *scheduler.Session) int64 {
	p := int64(level(s))
	seconds, _ := o.group.OrderOptions["ageing_seconds"].(float64)
	if seconds > 0 {
		ageing := int64(seconds * float64(time.Second))
		at := o.now.UnixNano()
		at -= at % (ageing / 8)
		if waited := at - s.EnqueuedAt.UnixNano(); waited > 0 {
			p = min(100, p+waited/ageing)
		}
	}
	return p
}

// comesBefore is the order of the queue.
func (o *oracle) comesBefore(a, b *scheduler.Session) bool {
	c := cmp.Compare(o.rank(b), o.rank(a))
	switch o.group.Order {
	case "drf":
		c = cmp.Or(c, cmp.Compare(o.dominantShare(a.Owner), o.dominantShare(b.Owner)))
	case "fair-share":
		share := func(s *scheduler.Session, kind scheduler.ScopeKind, id string) float64 {
			return o.shares[scheduler.Scope{Kind: kind, ID: id}]
		}
		c = cmp.Or(c, cmp.Compare(share(a, scheduler.ScopeDomain, a.Owner.Domain), share(b, scheduler.ScopeDomain, b.Owner.Domain)),
			cmp.Compare(share(a, scheduler.ScopeProject, string(a.Owner.Project)), share(b, scheduler.ScopeProject, string(b.Owner.Project))),
			cmp.Compare(share(a, scheduler.ScopeUser, string(a.Owner.User)), share(b, scheduler.ScopeUser, string(b.Owner.User))))
	}
	age := cmp.Or(a.EnqueuedAt.Compare(b.EnqueuedAt), cmp.Compare(a.ID, b.ID))
	if o.group.Order == "lifo" {
		age = -age
	}
	return cmp.Or(c, age) < 0
}

// held sums what a running session holds.
func held(r *scheduler.Running) cluster.Slots {
	out := cluster.Slots{}
	for _, p := range r.Placements {
		out = out.Add(p.Allocation.Totals())
	}
	return out
}

func (o *oracle) capacity() cluster.Slots {
	out := cluster.Slots{}
	for i := range o.agents {
		seen := map[cluster.SlotName]bool{}
		for _, d := range o.agents[i].Devices {
			if !seen[d.Slot] {
				seen[d.Slot] = true
				out[d.Slot] += space{}.room(&o.agents[i], d.Slot)
			}
		}
	}
	return out
}

// dominantShare is the largest part of the group's capacity of a slot that the owner's user holds. Private sessions do not count.
func (o *oracle) dominantShare(owner scheduler.Owner) float64 {
	sum, most := cluster.Slots{}, 0.0
	for i := range o.running {
		if r := &o.running[i]; !r.Private && sameUser(r.Owner, owner) {
			sum = sum.Add(held(r))
		}
	}
	for slot, v := range o.capacity() {
		if v > 0 {
			most = max(most, float64(sum[slot])/float64(v))
		}
	}
	return most
}

func sameUser(a, b scheduler.Owner) bool {
	return a.User == b.User && (a.User != "" || a.AccessKey == b.AccessKey)
}

// overLimit names the limit that keeps a session from starting, "" when there is none.
func (o *oracle) overLimit(s *scheduler.Session) scheduler.Reason {
	for _, scope := range s.Owner.Scopes() {
		q, limited := o.quotas[scope]
		if !limited || scope.ID == "" {
			continue
		}
		sum, count := cluster.Slots{}, map[bool]int{}
		for i := range o.running {
			if r := &o.running[i]; slices.Contains(slices.Collect(scopesOf(r.Owner)), scope) {
				if count[r.Private]++; !r.Private {
					sum = sum.Add(held(r))
				}
			}
		}
		if limit := map[bool]int{false: q.Sessions, true: q.Private}[s.Private]; limit >= 0 && count[s.Private]+1 > limit {
			return scheduler.WaitsForConcurrency
		}
		for slot, v := range sumOf(s.Kernels) {
			if limit, bound := q.Slots[slot]; bound && !s.Private && v > 0 && sum[slot]+v > limit {
				return scheduler.WaitsForQuota
			}
		}
	}
	return ""
}

func scopesOf(owner scheduler.Owner) func(func(scheduler.Scope) bool) {
	return func(yield func(scheduler.Scope) bool) {
		for _, s := range owner.Scopes() {
			if s.ID != "" && !yield(s) {
				return
			}
		}
	}
}

// --- The pass.

// queue lists the sessions that may be considered, in order.
func (o *oracle) queue() []scheduler.Session {
	var out []scheduler.Session
	for _, s := range o.waiting {
		if s.Waiting == "" && !s.StartsAt.After(o.now) {
			out = append(out, s)
		}
	}
	o.sort(out)
	return out
}

func (o *oracle) sort(list []scheduler.Session) {
	slices.SortFunc(list, func(a, b scheduler.Session) int {
		if o.comesBefore(&a, &b) {
			return -1
		}
		return 1
	})
}

// pass decides about everybody who waits.
func (o *oracle) pass() {
	o.reserved, o.decisions = nil, nil
	o.refused, o.hopeless = map[string]verdict{}, map[string]bool{}
	if o.group.Inactive {
		return
	}
	for more := true; more; {
		more = false
		for _, s := range o.queue() {
			if o.refused[kindOf(&s)] != "" || o.overLimit(&s) != "" {
				o.keepPlace(&s)
				continue
			}
			more = true
			if placements := o.place(&s, false); placements != nil {
				o.start(&s, placements)
			} else {
				o.refuse(&s)
			}
			break // the order may have changed
		}
	}
}

func (o *oracle) start(s *scheduler.Session, placements []scheduler.Placement) {
	o.decisions = append(o.decisions, scheduler.Decision{Session: s.ID, Placements: placements})
	o.passClaimOn(s, placements)
	o.waiting = slices.DeleteFunc(o.waiting, func(x scheduler.Session) bool { return x.ID == s.ID })
	o.running = append(o.running, scheduler.Running{Session: *s, StartedAt: o.now, Placements: placements})
	o.reserved = slices.DeleteFunc(o.reserved, func(r *keptPlace) bool { return r.session.ID == s.ID })
	for i := range o.waiting { // its companions are tried again: agents suit them better or worse than before
		if w := &o.waiting[i]; s.Companions.Name != "" && w.Companions.Name == s.Companions.Name {
			delete(o.refused, kindOf(w))
			delete(o.hopeless, alike(w))
		}
	}
}

// alike is equal for sessions of one kind, owner and priority.
func alike(s *scheduler.Session) string { return kindOf(s) + fmt.Sprint(s.Owner, level(s)) }

// refuse finds out what a session that did not start waits for, which holds for all of its kind.
func (o *oracle) refuse(s *scheduler.Session) {
	why := noRoom
	switch {
	case o.place(s, true) != nil:
		why = heldBack
	case len(s.Kernels) == 0 || !o.everFits(s):
		why = noAgent
	}
	o.refused[kindOf(s)] = why
}

// everFits reports whether a session could start if nothing ran. Of a gang, each shape is looked at by itself and the sum of all:
// whether they fit together is a puzzle, so some that never will are said to wait for room.
func (o *oracle) everFits(s *scheduler.Session) bool {
	list := units(s)
	total := cluster.Slots{}
	for i := range o.agents {
		a := &o.agents[i]
		if slices.ContainsFunc(list, func(u []int) bool { return serves(a, kernelsOf(s, u)) && allows(s, a) }) {
			for slot := range o.capacity() {
				total[slot] += space{}.room(a, slot)
			}
		}
	}
	for slot, v := range sumOf(s.Kernels) {
		if len(list) > 1 && v != 0 && total[slot] < v {
			return false
		}
	}
	for _, u := range list {
		kernels, needed, copies := kernelsOf(s, u), 0, 0
		for _, v := range list {
			if shapeOf(s, v) == shapeOf(s, u) {
				needed++
			}
		}
		for i := range o.agents {
			if a := &o.agents[i]; o.canEver(s, a, kernels) {
				here := 1 << 30
				for slot, v := range sumOf(kernels) {
					if v > 0 {
						here = min(here, int(space{}.room(a, slot)/v))
					}
				}
				copies += here
			}
		}
		if copies < needed {
			return false
		}
	}
	return true
}

// keepPlace does what is due for a session that was not started at its turn: a claim that did not help is dropped, victims are
// looked for, and a place is reserved.
func (o *oracle) keepPlace(s *scheduler.Session) {
	if c := o.claimOf(s.ID); c != nil && len(c.victims) == 0 {
		o.dropClaim(c)
	}
	if o.refused[kindOf(s)] != noRoom || o.overLimit(s) != "" {
		return
	}
	if p := o.group.Preemption; p.Enabled && !s.Private && !o.hopeless[alike(s)] && o.claimOf(s.ID) == nil {
		if c := o.findVictims(s); c != nil {
			o.claims = append(o.claims, c)
			o.decisions = append(o.decisions, scheduler.Decision{Session: s.ID, Preempt: slices.Clone(c.victims)})
		} else {
			o.hopeless[alike(s)] = true
		}
	}
	same := func(p *keptPlace) bool { return kindOf(&p.session) == kindOf(s) }
	if len(o.reserved) < max(1, o.group.Backfill.Reservations) && !slices.ContainsFunc(o.reserved, same) {
		o.reserved = append(o.reserved, o.reserve(s))
	}
}

// --- Preemption.

func (o *oracle) claimOf(id cluster.SessionID) *keptPlace {
	for _, c := range o.claims {
		if c.session.ID == id {
			return c
		}
	}
	return nil
}

func (o *oracle) dropClaim(c *keptPlace) {
	o.claims = slices.DeleteFunc(o.claims, func(x *keptPlace) bool { return x == c })
}

// passClaimOn settles claims when a session starts: its own is done. If it started where room is cleared for a later session that
// is like it, the two change claims before.
func (o *oracle) passClaimOn(s *scheduler.Session, placements []scheduler.Placement) {
	within := func(c *keptPlace) bool {
		return slices.ContainsFunc(placements, func(p scheduler.Placement) bool { return c.on(o.agent(p.Agent)) != nil })
	}
	own := o.claimOf(s.ID)
	for _, c := range o.claims {
		if c == own || alike(&c.session) != alike(s) || !within(c) {
			continue
		}
		if own != nil && !within(own) {
			own.session, c.session = c.session, own.session
			own = c
		}
		break
	}
	if own != nil {
		o.dropClaim(own)
	}
}

// mayEnd reports whether a running session may be ended for a waiting one.
func (o *oracle) mayEnd(r *scheduler.Running, s *scheduler.Session) bool {
	p := o.group.Preemption
	named := func(c *keptPlace) bool { return slices.Contains(c.victims, r.ID) }
	switch {
	case !r.Preemptible || r.Private || level(&r.Session) >= level(s) || slices.ContainsFunc(o.claims, named):
		return false
	case p.VictimScope == "project" && r.Owner.Project != s.Owner.Project:
		return false
	case p.VictimScope == "domain" && r.Owner.Domain != s.Owner.Domain:
		return false
	case (p.VictimScope == "" || p.VictimScope == "user") && !sameUser(r.Owner, s.Owner):
		return false
	}
	return !r.StartedAt.Add(p.MinRuntime).After(o.now)
}

// weight is the size of a session as parts of the group's capacity.
func (o *oracle) weight(r *scheduler.Running) float64 {
	sum, capacity, size := held(r), o.capacity(), 0.0
	for _, slot := range append([]cluster.SlotName{cluster.SlotCPU, cluster.SlotMem}, accelerators...) {
		if capacity[slot] > 0 {
			size += float64(sum[slot]) / float64(capacity[slot])
		}
	}
	return size
}

// endsFirst orders possible victims.
func (o *oracle) endsFirst(a, b *scheduler.Running) int {
	c := 0
	switch o.group.Preemption.Order {
	case "oldest":
		c = a.StartedAt.Compare(b.StartedAt)
	case "fewest-sessions":
		c = cmp.Compare(o.weight(b), o.weight(a))
	case "smallest-resources":
		c = cmp.Compare(o.weight(a), o.weight(b))
	default:
		c = b.StartedAt.Compare(a.StartedAt)
	}
	return cmp.Or(cmp.Compare(level(&a.Session), level(&b.Session)), c, cmp.Compare(a.ID, b.ID))
}

// cheaper compares two sets of victims that are not empty.
func (o *oracle) cheaper(a, b []*scheduler.Running) bool {
	top := func(list []*scheduler.Running) (priority int, size float64) {
		for _, r := range list {
			priority, size = max(priority, level(&r.Session)), size+o.weight(r)
		}
		return priority, size
	}
	pa, sa := top(a)
	pb, sb := top(b)
	if o.group.Preemption.Order == "smallest-resources" {
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(sa, sb), cmp.Compare(len(a), len(b))) < 0
	}
	return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(len(a), len(b)), o.endsFirst(a[0], b[0])) < 0
}

// findVictims finds sessions to end, and the place that they leave to s.
func (o *oracle) findVictims(s *scheduler.Session) *keptPlace {
	p := &keptPlace{session: *s}
	var victims []*scheduler.Running
	earlier := map[cluster.AgentID]alloc.Allocation{} // what earlier units of s take
	spaceWithout := func(a *scheduler.Agent, more []*scheduler.Running) space {
		sp := o.spaceOf(a, func(r *scheduler.Running) bool { return slices.Contains(victims, r) || slices.Contains(more, r) })
		sp.used = sp.used.Add(earlier[a.ID])
		return sp
	}
	for _, u := range units(s) {
		kernels := kernelsOf(s, u)
		var best *scheduler.Agent
		var bestVictims []*scheduler.Running
		for i := range o.agents {
			a := &o.agents[i]
			if _, ok := o.suits(s, a); !ok || !o.canEver(s, a, kernels) || o.promised(s, a) {
				continue
			}
			fits := func(more []*scheduler.Running) bool {
				_, ok := o.fit(a, spaceWithout(a, more), kernels)
				return ok
			}
			if fits(nil) {
				best, bestVictims = a, nil
				break
			}
			if more := o.victimsOn(a, s, victims, fits); more != nil && (best == nil || o.cheaper(more, bestVictims)) {
				best, bestVictims = a, more
			}
		}
		if best == nil {
			return nil
		}
		victims = append(victims, bestVictims...)
		got, _ := o.fit(best, spaceWithout(best, nil), kernels)
		earlier[best.ID] = earlier[best.ID].Add(join(got))
		p.add(best, kernels, join(got))
	}
	for _, r := range victims {
		p.victims = append(p.victims, r.ID)
	}
	if len(victims) == 0 {
		return nil // it fits as it is: what keeps it waiting is not for victims to clear
	}
	return p
}

// promised reports whether an agent is kept for somebody whose victims are ending, or for somebody before s.
func (o *oracle) promised(s *scheduler.Session, a *scheduler.Agent) bool {
	return slices.ContainsFunc(o.claims, func(c *keptPlace) bool { return c.session.ID != s.ID && c.on(a) != nil }) ||
		slices.ContainsFunc(o.reserved, func(r *keptPlace) bool {
			return r.session.ID != s.ID && r.on(a) != nil && o.comesBefore(&r.session, s)
		})
}

// victimsOn takes victims on an agent in order until enough is free, and spares those that need not go, the last first.
func (o *oracle) victimsOn(a *scheduler.Agent, s *scheduler.Session, chosen []*scheduler.Running, fits func([]*scheduler.Running) bool) []*scheduler.Running {
	var candidates []*scheduler.Running
	for i := range o.running {
		r := &o.running[i]
		here := slices.ContainsFunc(r.Placements, func(p scheduler.Placement) bool { return p.Agent == a.ID })
		if here && !slices.Contains(chosen, r) && o.mayEnd(r, s) {
			candidates = append(candidates, r)
		}
	}
	slices.SortFunc(candidates, o.endsFirst)
	for n := range candidates {
		victims := slices.Clone(candidates[:n+1])
		if !fits(victims) {
			continue
		}
		for i := len(victims) - 1; i >= 0; i-- {
			if fewer := slices.Delete(slices.Clone(victims), i, i+1); fits(fewer) {
				victims = fewer
			}
		}
		return victims
	}
	return nil
}
