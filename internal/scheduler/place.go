package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// board follows what every agent has left while a plan grows.
type board struct {
	agents []*seat // by id
	// version counts changes of the seats. refused remembers, per kind of request, which version
	// had no place for it: a long queue of equal requests is then looked at once.
	version int
	refused map[string]refusal
}

type refusal struct {
	version int
	hold    Explanation
}

// seat is one agent on the board.
type seat struct {
	*Agent
	capacity   cluster.Slots // of healthy devices
	used       alloc.Allocation
	free       cluster.Slots
	containers int
	// reserved is what a session ahead in the queue needs here; nil when none waits for this agent.
	reserved cluster.Slots
}

func newBoard(agents []Agent) *board {
	b := &board{refused: map[string]refusal{}}
	for i := range agents {
		a := &agents[i]
		s := &seat{Agent: a, used: a.Used, capacity: cluster.Slots{}, containers: a.Containers}
		for _, d := range a.Devices {
			if d.Healthy {
				s.capacity[d.Slot] += d.Capacity
			}
		}
		s.refresh()
		b.agents = append(b.agents, s)
	}
	slices.SortFunc(b.agents, func(x, y *seat) int { return cmp.Compare(x.ID, y.ID) })
	return b
}

// refresh recomputes free per slot. What unhealthy devices still hold counts for nothing.
func (s *seat) refresh() {
	s.free = cluster.Slots{}
	for _, d := range s.Devices {
		if d.Healthy {
			s.free[d.Slot] += max(0, d.Capacity-s.used[d.Slot][d.ID])
		}
	}
}

func (s *seat) take(a alloc.Allocation) {
	s.used = s.used.Add(a)
	s.containers++
	s.refresh()
}

// rejection is why one agent does not take one kernel: the filter's name and what is missing.
type rejection struct {
	filter string
	short  cluster.Slots
	// fragmented: the sums suffice, the devices do not.
	fragmented bool
}

// The filters' names; short slots add their own.
const (
	filterLost           = "lost"
	filterNotSchedulable = "not-schedulable"
	filterArchitecture   = "architecture"
	filterDesignated     = "designated"
	filterContainers     = "containers"
	filterDevices        = "devices"
	filterReserved       = "reserved"
)

// eligible applies the filters that do not depend on what is free; "" passes.
func (s *seat) eligible(session *Session, k *Kernel) string {
	switch {
	case k.Architecture != "" && s.Architecture != k.Architecture:
		return filterArchitecture
	case len(session.Designated) > 0 && !slices.Contains(session.Designated, s.ID):
		return filterDesignated
	case !s.Alive:
		return filterLost
	case !s.Schedulable:
		return filterNotSchedulable
	}
	return ""
}

// fit tries one kernel on one agent in its present state.
func (s *seat) fit(session *Session, k *Kernel) (alloc.Allocation, *rejection) {
	if f := s.eligible(session, k); f != "" {
		return nil, &rejection{filter: f}
	}
	if s.ContainerLimit > 0 && s.containers >= s.ContainerLimit {
		return nil, &rejection{filter: filterContainers}
	}
	if short := s.free.Shortfall(k.Slots); len(short) > 0 {
		return nil, &rejection{filter: string(short.Names()[0]), short: short}
	}
	a, err := alloc.Fit(s.Devices, s.used, k.Slots, alloc.Policy{})
	if err != nil {
		return nil, &rejection{filter: filterDevices, fragmented: true}
	}
	if s.reserved != nil {
		for slot, want := range k.Slots {
			if want > 0 && s.free[slot]-want < s.reserved[slot] {
				return nil, &rejection{filter: filterReserved}
			}
		}
	}
	return a, nil
}

// candidates orders the agents for a session's kernel: those that just failed it last, then
// those that have the image, then by id.
func (b *board) candidates(session *Session, k *Kernel) []*seat {
	if len(session.Failed) == 0 && k.Image == "" {
		return b.agents
	}
	out := slices.Clone(b.agents)
	slices.SortStableFunc(out, func(x, y *seat) int {
		return cmp.Or(
			compareBool(slices.Contains(session.Failed, x.ID), slices.Contains(session.Failed, y.ID)),
			compareBool(!x.Images[k.Image], !y.Images[k.Image]))
	})
	return out
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// decide is place with a memory for refusals.
func (b *board) decide(session *Session) ([]Placement, *Explanation) {
	kind := kindOf(session)
	if r, ok := b.refused[kind]; ok && r.version == b.version {
		hold := r.hold
		return nil, &hold
	}
	placed, hold := b.place(session)
	if hold == nil {
		b.version++
		return placed, nil
	}
	b.refused[kind] = refusal{b.version, *hold}
	return nil, hold
}

// kindOf is equal for sessions that place treats alike.
func kindOf(s *Session) string {
	out := fmt.Appendf(nil, "%t %q %q", s.SingleNode, s.Designated, s.Failed)
	for i := range s.Kernels {
		k := &s.Kernels[i]
		out = fmt.Appendf(out, "|%q %q", k.Architecture, k.Image)
		for _, slot := range k.Slots.Names() {
			out = fmt.Appendf(out, " %q%d", slot, k.Slots[slot])
		}
	}
	return string(out)
}

// place puts all kernels of a session on the board, or none and explains.
func (b *board) place(session *Session) ([]Placement, *Explanation) {
	if session.SingleNode && len(session.Kernels) > 1 {
		return b.placeTogether(session)
	}
	return b.placeApart(session)
}

// placeApart places kernel by kernel, the largest first.
func (b *board) placeApart(session *Session) ([]Placement, *Explanation) {
	saved := b.save()
	placed := make([]Placement, len(session.Kernels))
	for _, i := range bySize(session.Kernels) {
		k := &session.Kernels[i]
		var rejected []outcome
		for _, s := range b.candidates(session, k) {
			a, no := s.fit(session, k)
			if no != nil {
				rejected = append(rejected, outcome{s, no})
				continue
			}
			s.take(a)
			placed[i] = Placement{Kernel: k.ID, Agent: s.ID, Allocation: a}
			break
		}
		if placed[i].Agent == "" {
			hold := b.explain(session, k, rejected) // while the siblings are placed
			b.restore(saved)
			return nil, hold
		}
	}
	return placed, nil
}

// placeTogether places all kernels on one agent.
func (b *board) placeTogether(session *Session) ([]Placement, *Explanation) {
	var rejected []outcome
	for _, s := range b.candidates(session, &session.Kernels[0]) {
		saved := *s
		placed := make([]Placement, len(session.Kernels))
		no := s.fitAll(session, func(i int, a alloc.Allocation) {
			placed[i] = Placement{Kernel: session.Kernels[i].ID, Agent: s.ID, Allocation: a}
		})
		if no == nil {
			return placed, nil
		}
		*s = saved
		rejected = append(rejected, outcome{s, no})
	}
	return nil, b.explain(session, &session.Kernels[0], rejected)
}

// fitAll takes all kernels of a session on this agent; on a rejection the caller restores it.
func (s *seat) fitAll(session *Session, took func(i int, a alloc.Allocation)) *rejection {
	for _, i := range bySize(session.Kernels) {
		k := &session.Kernels[i]
		a, no := s.fit(session, k)
		if no != nil {
			return no
		}
		s.take(a)
		if took != nil {
			took(i, a)
		}
	}
	return nil
}

// reserve keeps the agents on which a waiting session would run once they are free enough
// from being filled by later ones. Agents that are reserved already stay with their session.
func (b *board) reserve(session *Session) {
	if !slices.ContainsFunc(b.agents, func(s *seat) bool { return s.reserved == nil }) {
		return
	}
	empty := b.emptied(func(s *seat) bool { return s.reserved == nil })
	placed, hold := empty.place(session)
	if hold != nil {
		return
	}
	need := map[cluster.AgentID]cluster.Slots{}
	for i, p := range placed {
		need[p.Agent] = need[p.Agent].Add(session.Kernels[i].Slots)
	}
	for _, s := range b.agents {
		if n, ok := need[s.ID]; ok {
			s.reserved = n
			b.version++
		}
	}
}

// emptied is the board as if nothing ran, with the agents that keep selects.
func (b *board) emptied(keep func(*seat) bool) *board {
	out := &board{}
	for _, s := range b.agents {
		if !keep(s) {
			continue
		}
		e := &seat{Agent: s.Agent, capacity: s.capacity, free: s.capacity.Clone(), used: alloc.Allocation{}}
		out.agents = append(out.agents, e)
	}
	return out
}

func (b *board) save() []seat {
	out := make([]seat, len(b.agents))
	for i, s := range b.agents {
		out[i] = *s // used and free are replaced, never changed in place
	}
	return out
}

func (b *board) restore(saved []seat) {
	for i := range saved {
		*b.agents[i] = saved[i]
	}
}

// bySize returns the kernels' indices, the largest first: most slots kinds beyond cpu and mem,
// then mem, then cpu, then their order.
func bySize(kernels []Kernel) []int {
	out := make([]int, len(kernels))
	for i := range out {
		out[i] = i
	}
	weight := func(k *Kernel) (devices, mem, cpu cluster.Amount) {
		for slot, v := range k.Slots {
			if slot != cluster.SlotCPU && slot != cluster.SlotMem {
				devices += v
			}
		}
		return devices, k.Slots[cluster.SlotMem], k.Slots[cluster.SlotCPU]
	}
	slices.SortStableFunc(out, func(a, b int) int {
		d1, m1, c1 := weight(&kernels[a])
		d2, m2, c2 := weight(&kernels[b])
		return cmp.Or(cmp.Compare(d2, d1), cmp.Compare(m2, m1), cmp.Compare(c2, c1))
	})
	return out
}

func sum(kernels []Kernel) cluster.Slots {
	out := cluster.Slots{}
	for i := range kernels {
		for slot, v := range kernels[i].Slots {
			out[slot] += v
		}
	}
	return out
}
