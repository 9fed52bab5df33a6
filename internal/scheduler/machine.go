package scheduler

import (
	"math"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// names numbers strings, so that hot paths compare and index integers.
type names[T ~string] struct {
	number map[T]int32
	name   []T
}

func (n *names[T]) of(name T) int32 {
	i, ok := n.number[name]
	if !ok {
		if n.number == nil {
			n.number = map[T]int32{}
		}
		i = int32(len(n.name))
		n.number[name] = i
		n.name = append(n.name, name)
	}
	return i
}

// want is an amount of a slot, by the slot's number.
type want struct {
	slot   int32
	amount cluster.Amount
}

// hold is what one kernel of a running session holds on a machine.
type hold struct {
	run        *running
	machine    *machine
	kernel     cluster.KernelID
	allocation alloc.Allocation
	takes      []alloc.Take
}

// machine is an agent with what it has left, kept up to date as sessions come and go. It outlives
// the agent's facts while sessions hold something there.
type machine struct {
	id    cluster.AgentID
	group *group // nil while the agent is unknown
	index int    // in group.machines, which is sorted by id
	facts Agent
	arch  int32
	image []int32 // sorted
	topo  *alloc.Topology
	// used is what is held of each device, free what healthy ones have left.
	used, free []cluster.Amount
	whole      []cluster.Amount // capacity of healthy devices
	// room sums what is free of each slot, rounded down per device to what can be handed out;
	// total is the same of healthy devices when nothing runs. Indexed by the slot's number.
	room, total []cluster.Amount
	slot        []int32 // number of the slot of each section of topo
	section     []int32 // and back; -1 where the agent has no such slot
	units       []cluster.Amount
	kinds       int // of slots with capacity
	holds       []*hold
	version     uint64
	model       int32 // of the first accelerator
	alikeAt     uint64
	alikeIs     uint64
}

func unitOf(r alloc.Rule) cluster.Amount {
	switch r {
	case alloc.Fraction:
		return alloc.Quantum
	case alloc.Divisible:
		return 1
	}
	return cluster.Milli
}

// describe takes facts over and recomputes everything that follows from them and the holds.
func (c *Cluster) describe(m *machine, a Agent, rules map[cluster.SlotName]alloc.Rule) {
	m.facts = a
	m.arch = c.archs.of(a.Architecture)
	c.imagesOf(m)
	m.topo = alloc.Prepare(a.Devices, rules)
	m.slot, m.units = make([]int32, m.topo.Slots()), make([]cluster.Amount, m.topo.Slots())
	for i := range m.slot {
		name, rule, _, _ := m.topo.Slot(i)
		m.slot[i], m.units[i] = c.slots.of(name), unitOf(rule)
	}
	m.model = -1
	if slot, from := m.gpus(); slot >= 0 {
		m.model = c.models.of(m.topo.Device(from).Model)
	}
	for _, h := range m.holds {
		h.takes = m.takesOf(h.allocation)
	}
	m.recount(len(c.slots.name))
}

func (c *Cluster) imagesOf(m *machine) {
	m.image = m.image[:0]
	for ref, present := range m.facts.Images {
		if present {
			m.image = append(m.image, c.images.of(ref))
		}
	}
	slices.Sort(m.image)
}

// recount derives all sums from the facts and the holds.
func (m *machine) recount(slots int) {
	n := m.topo.Len()
	m.used, m.free, m.whole = make([]cluster.Amount, n), make([]cluster.Amount, n), make([]cluster.Amount, n)
	m.room, m.total, m.section = make([]cluster.Amount, slots), make([]cluster.Amount, slots), make([]int32, slots)
	for i := range m.section {
		m.section[i] = -1
	}
	m.kinds = 0
	for _, h := range m.holds {
		for _, x := range h.takes {
			m.used[x.Device] += x.Amount
		}
	}
	for i, slot := range m.slot {
		m.section[slot] = int32(i)
		_, _, from, to := m.topo.Slot(i)
		for d := from; d < to; d++ {
			dev := m.topo.Device(d)
			if !dev.Healthy {
				continue
			}
			m.free[d], m.whole[d] = max(0, dev.Capacity-m.used[d]), dev.Capacity
			m.room[slot] += m.free[d] - m.free[d]%m.units[i]
			m.total[slot] += dev.Capacity - dev.Capacity%m.units[i]
		}
		if m.total[slot] > 0 {
			m.kinds++
		}
	}
	m.version++
}

// takesOf numbers the devices of an allocation; devices that the agent does not have are left out.
func (m *machine) takesOf(a alloc.Allocation) []alloc.Take {
	var out []alloc.Take
	for slot, devices := range a {
		for id, v := range devices {
			if i := m.topo.Index(slot, id); i >= 0 {
				out = append(out, alloc.Take{Device: int32(i), Amount: v})
			}
		}
	}
	slices.SortFunc(out, func(a, b alloc.Take) int { return int(a.Device - b.Device) })
	return out
}

func (m *machine) roomOf(slot int32) cluster.Amount {
	if int(slot) < len(m.room) {
		return m.room[slot]
	}
	return 0
}

func (m *machine) totalOf(slot int32) cluster.Amount {
	if int(slot) < len(m.total) {
		return m.total[slot]
	}
	return 0
}

func (m *machine) sectionOf(slot int32) int {
	if int(slot) < len(m.section) {
		return int(m.section[slot])
	}
	return -1
}

// take books takes, with sign -1 gives them back.
func (m *machine) take(takes []alloc.Take, sign cluster.Amount) {
	for _, x := range takes {
		dev := m.topo.Device(int(x.Device))
		m.used[x.Device] += sign * x.Amount
		if !dev.Healthy {
			continue
		}
		slot := m.slotOfDevice(int(x.Device))
		unit := m.units[slot]
		before := m.free[x.Device]
		after := max(0, dev.Capacity-m.used[x.Device])
		m.free[x.Device] = after
		m.room[m.slot[slot]] += (after - after%unit) - (before - before%unit)
	}
	m.version++
}

func (m *machine) slotOfDevice(d int) int {
	for i := range m.slot {
		if _, _, _, to := m.topo.Slot(i); d < to {
			return i
		}
	}
	return -1
}

func (m *machine) has(image int32) bool {
	_, ok := slices.BinarySearch(m.image, image)
	return ok
}

// state is what a machine has left at some instant: now, at a later one, or when empty.
type freeVector struct {
	free []cluster.Amount
	room []cluster.Amount
}

func (m *machine) now() freeVector { return freeVector{m.free, m.room} }

// copyTo copies the present state into space that the caller keeps.
func (m *machine) copyTo(s *freeVector) {
	s.free = append(s.free[:0], m.free...)
	s.room = append(s.room[:0], m.room...)
}

// give changes a copied state by takes, with sign -1 for taking them.
func (m *machine) give(s *freeVector, takes []alloc.Take, sign cluster.Amount) {
	for _, x := range takes {
		dev := m.topo.Device(int(x.Device))
		if !dev.Healthy {
			continue
		}
		slot := m.slotOfDevice(int(x.Device))
		unit := m.units[slot]
		before := s.free[x.Device]
		after := min(max(0, before+sign*x.Amount), dev.Capacity)
		s.free[x.Device] = after
		s.room[m.slot[slot]] += (after - after%unit) - (before - before%unit)
	}
}

// empty is the state when nothing at all runs.
func (m *machine) empty() freeVector { return freeVector{m.whole, m.total} }

// forever is the instant of what never ends by itself.
const forever = int64(math.MaxInt64)
