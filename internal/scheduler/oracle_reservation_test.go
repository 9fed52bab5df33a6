package scheduler_test

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

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
				left := max(0, min(own(d, out.used), own(d, later.used)-part.takes[d.Slot][d.ID]))
				out.used = out.used.Add(alloc.Allocation{d.Slot: {d.ID: own(d, out.used) - left}})
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
	left := func(d *alloc.Device) cluster.Amount {
		if used := s.used.Add(takes); elsewhere(d, used) {
			return 0
		}
		return d.Capacity - s.used[d.Slot][d.ID] - takes[d.Slot][d.ID] // below zero where more was promised
	}
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
				if d := &a.Devices[i]; d.Slot == slot && accelerator(slot) && d.Healthy && suitable(d, k) {
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

// suitable reports whether a device may serve a kernel.
func suitable(d *alloc.Device, k scheduler.Kernel) bool {
	offered := d.Isolation
	if offered == "" {
		offered = cluster.IsolationHard
		if d.Slot == "cuda.shares" {
			offered = cluster.IsolationNone
		}
	}
	return (len(k.Models) == 0 || slices.Contains(k.Models, d.Model)) && (k.Isolation == "" || offered.AtLeast(k.Isolation))
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
