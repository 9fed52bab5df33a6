package scheduler_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
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
	tree    quota.Facts

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
		add(k.Architecture, k.Image, strconv.FormatBool(k.Local))
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
		return cmp.Or(
			cmp.Compare(gpus[1], gpus[0]),
			cmp.Compare(b[cluster.SlotMem], a[cluster.SlotMem]),
			cmp.Compare(b[cluster.SlotCPU], a[cluster.SlotCPU]),
		)
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
	if x, y := o.isEntitled(a), o.isEntitled(b); x != y {
		return x
	}
	switch o.group.Order {
	case "drf":
		c = cmp.Or(c, cmp.Compare(o.dominantShare(a.Owner), o.dominantShare(b.Owner)))
	case "fair-share":
		share := func(s *scheduler.Session, kind scheduler.ScopeKind, id string) float64 {
			return o.shares[scheduler.Scope{Kind: kind, ID: id}]
		}
		c = cmp.Or(c, cmp.Compare(share(a, scheduler.ScopeDomain, a.Owner.Domain), share(b, scheduler.ScopeDomain, b.Owner.Domain)),
			slices.Compare(o.shareLine(a.Owner), o.shareLine(b.Owner)))
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
	if !s.Private && o.overTree(s) {
		return scheduler.WaitsForQuota
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
