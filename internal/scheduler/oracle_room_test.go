package scheduler_test

import (
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

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

// own is what a device has left by itself.
func own(d *alloc.Device, used alloc.Allocation) cluster.Amount {
	if !d.Healthy {
		return 0
	}
	return max(0, d.Capacity-used[d.Slot][d.ID])
}

// elsewhere reports whether the card of a device is given out under another slot.
func elsewhere(d *alloc.Device, used alloc.Allocation) bool {
	for slot, devices := range used {
		if slot != d.Slot && accelerator(slot) && accelerator(d.Slot) && devices[d.ID] > 0 {
			return true
		}
	}
	return false
}

func free(d *alloc.Device, used alloc.Allocation) cluster.Amount {
	if elsewhere(d, used) {
		return 0
	}
	return own(d, used)
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
		takes, err := alloc.Fit(a.Devices, used, k.Slots, alloc.Policy{
			NoFragment: o.group.WholeDevices, Models: k.Models, Isolation: k.Isolation})
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
		if k.Architecture != "" && k.Architecture != a.Architecture || k.Local && !a.Images[k.Image] {
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
