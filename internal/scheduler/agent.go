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

// hold is what one kernel of a running session holds on an agent.
type hold struct {
	run        *running
	agent      *agent
	kernel     cluster.KernelID
	allocation alloc.Allocation
	takes      []alloc.Take
}

// agent is one agent with its free vector, which is kept up to date as sessions start and end. While sessions hold something on an
// agent that is not known any more, its record stays, without a group.
//
// Invariants: used is the sum of the takes of holds; free is the capacity less used, and 0 for devices that are not healthy; room
// follows from free; version grows with every change of them.
type agent struct {
	id      cluster.AgentID
	group   *group // nil while the agent is unknown
	index   int    // in search.agents
	version uint64
	arch    int32
	model   int32 // number of the model of the first accelerator
	kinds   int   // slots with capacity

	// By number of the slot: room sums free over its devices, each rounded down to units that can be handed out; section is the
	// slot's section of topo, -1 where the agent has no such slot. By section: units is the smallest amount that is handed out.
	room    []cluster.Amount
	section []int32
	units   []cluster.Amount
	topo    *alloc.Topology
	facts   Agent
	// probed: this pass has placed a session here, and the agent gets only one (Agent.Probe).
	probed bool

	// By device: used is held, free is left of it, whole is left when nothing runs.
	used, free, whole []cluster.Amount
	total             []cluster.Amount // room when nothing runs
	slot              []int32          // number of the slot of each section of topo
	image             []int32          // sorted
	holds             []*hold

	fingerprintAt uint64 // version for which fingerprintIs was computed
	fingerprintIs uint64
}

// unitOf is the smallest amount of a slot that is handed out.
func unitOf(r alloc.Rule) cluster.Amount {
	switch r {
	case alloc.Fraction:
		return alloc.Quantum
	case alloc.Divisible:
		return 1
	}
	return cluster.Milli
}

// describe sets the facts of an agent and computes everything that follows from them and from what sessions hold there.
func (c *Cluster) describe(a *agent, facts Agent, rules map[cluster.SlotName]alloc.Rule) {
	a.facts = facts
	a.arch = c.archs.of(facts.Architecture)
	c.imagesOf(a)
	a.topo = c.topology(facts.Devices, rules, a.group)
	a.slot, a.units = make([]int32, a.topo.Slots()), make([]cluster.Amount, a.topo.Slots())
	for i := range a.slot {
		name, rule, _, _ := a.topo.Slot(i)
		a.slot[i], a.units[i] = c.slots.of(name), unitOf(rule)
	}
	a.model = -1
	if slot, from := a.gpus(); slot >= 0 {
		a.model = c.models.of(a.topo.Device(from).Model)
	}
	for _, h := range a.holds {
		h.takes = a.takesOf(h.allocation)
	}
	a.recount(len(c.slots.name))
}

// maxTopologies bounds the topologies that agents may share.
const maxTopologies = 256

// sameDevices stands for devices that are one slice, which never changes, under the rules of one group.
type sameDevices struct {
	first *alloc.Device
	count int
	group *group
}

// topology prepares devices. Agents of a group whose devices are the same slice share it: many machines are of one kind.
func (c *Cluster) topology(devices []alloc.Device, rules map[cluster.SlotName]alloc.Rule, g *group) *alloc.Topology {
	if len(devices) == 0 || g == nil {
		return alloc.Prepare(devices, rules)
	}
	key := sameDevices{&devices[0], len(devices), g}
	if shared := c.topologies[key]; shared != nil {
		return shared
	}
	if c.topologies == nil || len(c.topologies) >= maxTopologies {
		c.topologies = map[sameDevices]*alloc.Topology{}
	}
	t := alloc.Prepare(devices, rules)
	c.topologies[key] = t
	return t
}

func (c *Cluster) imagesOf(a *agent) {
	a.image = a.image[:0]
	for ref, present := range a.facts.Images {
		if present {
			a.image = append(a.image, c.images.of(ref))
		}
	}
	slices.Sort(a.image)
}

// recount computes all sums from the facts and the holds.
func (a *agent) recount(slots int) {
	a.used, a.free, a.whole = nil, a.topo.Whole(), a.topo.Whole()
	if len(a.holds) > 0 {
		a.own()
	}
	a.room, a.total, a.section = make([]cluster.Amount, slots), make([]cluster.Amount, slots), make([]int32, slots)
	for i := range a.section {
		a.section[i] = -1
	}
	a.kinds = 0
	for _, h := range a.holds {
		for _, x := range h.takes {
			a.used[x.Device] += x.Amount
		}
	}
	if a.used != nil {
		for d := range a.free {
			if dev := a.topo.Device(d); dev.Healthy {
				a.free[d] = max(0, dev.Capacity-a.used[d])
			}
		}
	}
	for i, slot := range a.slot {
		a.section[slot] = int32(i)
		_, _, from, to := a.topo.Slot(i)
		for d := from; d < to; d++ {
			dev := a.topo.Device(d)
			if !dev.Healthy {
				continue
			}
			left := a.topo.Left(a.free, d)
			a.room[slot] += left - left%a.units[i]
			a.total[slot] += dev.Capacity - dev.Capacity%a.units[i]
		}
		if a.total[slot] > 0 {
			a.kinds++
		}
	}
	a.version++
}

// takesOf turns an allocation into takes of numbered devices, in no order. Devices that the agent does not have are left out.
func (a *agent) takesOf(held alloc.Allocation) []alloc.Take {
	var out []alloc.Take
	for slot, devices := range held {
		for id, v := range devices {
			if i := a.topo.Index(slot, id); i >= 0 {
				out = append(out, alloc.Take{Device: int32(i), Amount: v})
			}
		}
	}
	return out
}

func (a *agent) roomOf(slot int32) cluster.Amount {
	if int(slot) < len(a.room) {
		return a.room[slot]
	}
	return 0
}

func (a *agent) sectionOf(slot int32) int {
	if int(slot) < len(a.section) {
		return int(a.section[slot])
	}
	return -1
}

// own gives the agent sums of its own. While nothing was ever taken of it, it shares those of its topology: most agents of a large
// cluster that is idle are alike.
func (a *agent) own() {
	a.used, a.free = make([]cluster.Amount, a.topo.Len()), slices.Clone(a.free)
}

// take books takes; sign -1 gives them back.
func (a *agent) take(takes []alloc.Take, sign cluster.Amount) {
	if a.used == nil && len(takes) > 0 {
		a.own()
	}
	for _, x := range takes {
		dev := a.topo.Device(int(x.Device))
		a.used[x.Device] += sign * x.Amount
		if !dev.Healthy {
			continue
		}
		a.set(a.now(), int(x.Device), max(0, dev.Capacity-a.used[x.Device]))
	}
	a.version++
}

func (a *agent) slotOfDevice(d int) int {
	for i := range a.slot {
		if _, _, _, to := a.topo.Slot(i); d < to {
			return i
		}
	}
	return -1
}

func (a *agent) has(image int32) bool {
	_, ok := slices.BinarySearch(a.image, image)
	return ok
}

// freeVector is what an agent has left at an instant: now, when some sessions have ended, or when nothing runs.
type freeVector struct {
	free []cluster.Amount // by device
	room []cluster.Amount // by slot number, see agent
}

// now is the present free vector. It changes with the agent: copyTo makes a copy.

func (a *agent) now() freeVector { return freeVector{a.free, a.room} }

// copyTo copies the present free vector into space of the caller.
func (a *agent) copyTo(v *freeVector) {
	v.free = append(v.free[:0], a.free...)
	v.room = append(v.room[:0], a.room...)
}

// give gives takes to a copied free vector; sign -1 takes them from it.
func (a *agent) give(v *freeVector, takes []alloc.Take, sign cluster.Amount) {
	for _, x := range takes {
		dev := a.topo.Device(int(x.Device))
		if !dev.Healthy {
			continue
		}
		a.set(*v, int(x.Device), min(max(0, v.free[x.Device]+sign*x.Amount), dev.Capacity))
	}
}

// set changes what a healthy device has left in a free vector, and the room of its slot and of those that are the same card.
func (a *agent) set(v freeVector, device int, free cluster.Amount) {
	section := a.slotOfDevice(device)
	faces := a.topo.Faces(device)
	if len(faces) == 0 {
		unit, before := a.units[section], v.free[device]
		v.free[device] = free
		v.room[a.slot[section]] += (free - free%unit) - (before - before%unit)
		return
	}
	before := a.roomIn(v, device)
	for _, other := range faces {
		v.room[a.slot[a.slotOfDevice(int(other))]] -= a.roomIn(v, int(other))
	}
	v.free[device] = free
	v.room[a.slot[section]] += a.roomIn(v, device) - before
	for _, other := range faces {
		v.room[a.slot[a.slotOfDevice(int(other))]] += a.roomIn(v, int(other))
	}
}

// roomIn is what a device adds to the room of its slot.
func (a *agent) roomIn(v freeVector, device int) cluster.Amount {
	left := a.topo.Left(v.free, device)
	return left - left%a.units[a.slotOfDevice(device)]
}

// empty is the free vector when nothing runs.
func (a *agent) empty() freeVector { return freeVector{a.whole, a.total} }

// forever is the end of what declared none.
const forever = int64(math.MaxInt64)
