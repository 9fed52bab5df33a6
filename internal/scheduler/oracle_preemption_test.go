package scheduler_test

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

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
	case !r.Preemptible || r.Private || level(&r.Session) >= level(s) && !(o.isEntitled(s) && o.borrows(r)) ||
		slices.ContainsFunc(o.claims, named):
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
func (o *oracle) victimsOn(
	a *scheduler.Agent,
	s *scheduler.Session,
	chosen []*scheduler.Running,
	fits func([]*scheduler.Running) bool,
) []*scheduler.Running {
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
