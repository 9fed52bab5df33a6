package alloc

import (
	"cmp"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// Topology is the devices of one agent, prepared for many choices: devices are numbered, slot
// by slot in the order in which slots choose (accelerators, their network adapters, cores, memory). It does not change.
type Topology struct {
	devices  []Device
	sections []section
	groups   []int32 // per device: the core or card that it is a part of, numbered in its section
	members  []int32 // per device: how many parts that core or card has
	whole    []cluster.Amount
	// faces are, per device, the other devices that are the same card under other slots; nil where no card has several.
	faces [][]int32
}

// section is the devices of one slot.
type section struct {
	slot     cluster.SlotName
	rule     Rule
	from, to int
	largest  cluster.Amount // capacity of the largest healthy device
	// distance holds the class between each two devices, row by row; nil when no links are
	// known but those inside a core or card.
	distance []uint8
}

// maxLinked bounds the devices of one slot whose links are looked at.
const maxLinked = 16

// Prepare makes a topology. The rules override DefaultRule per slot.
func Prepare(devices []Device, rules map[cluster.SlotName]Rule) *Topology {
	t := &Topology{devices: slices.Clone(devices), groups: make([]int32, len(devices)), members: make([]int32, len(devices))}
	slices.SortStableFunc(t.devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(rank(a.Slot), rank(b.Slot)), strings.Compare(string(a.Slot), string(b.Slot)),
			strings.Compare(a.PCI, b.PCI), natural(a.ID, b.ID))
	})
	policy := Policy{Rules: rules}
	for i := range t.devices {
		slot := t.devices[i].Slot
		if n := len(t.sections); n == 0 || t.sections[n-1].slot != slot {
			t.sections = append(t.sections, section{slot: slot, rule: policy.rule(slot), from: i})
		}
		s := &t.sections[len(t.sections)-1]
		s.to = i + 1
		if t.devices[i].Healthy {
			s.largest = max(s.largest, t.devices[i].Capacity)
		}
	}
	for i := range t.sections {
		t.link(&t.sections[i])
	}
	t.findFaces()
	t.whole = make([]cluster.Amount, len(t.devices))
	for i, d := range t.devices {
		if d.Healthy {
			t.whole[i] = d.Capacity
		}
	}
	return t
}

// hardware names the card behind a device: devices of one family of slots (the part of the name before the dot) with one id are
// one card. Cores and memory have none.
type hardware struct{ family, id string }

func hardwareOf(d *Device) (hardware, bool) {
	family, _, _ := strings.Cut(string(d.Slot), ".")
	return hardware{family, d.ID}, rank(d.Slot) == 0
}

// findFaces finds the cards that fill several slots.
func (t *Topology) findFaces() {
	accelerators := 0
	for i := range t.sections {
		if rank(t.sections[i].slot) == 0 {
			accelerators++
		}
	}
	if accelerators < 2 {
		return
	}
	cards := map[hardware][]int32{}
	for i := range t.devices {
		if h, ok := hardwareOf(&t.devices[i]); ok {
			cards[h] = append(cards[h], int32(i))
		}
	}
	for _, same := range cards {
		if len(same) < 2 {
			continue
		}
		if t.faces == nil {
			t.faces = make([][]int32, len(t.devices))
		}
		for _, d := range same {
			for _, other := range same {
				if other != d {
					t.faces[d] = append(t.faces[d], other)
				}
			}
		}
	}
}

// Faces are the other devices that are the same card as this one, under other slots. A card is given out under one slot at a
// time, because what it is cut into cannot be added up: half of its shares and the whole card are not one and a half.
func (t *Topology) Faces(device int) []int32 {
	if t.faces == nil {
		return nil
	}
	return t.faces[device]
}

// Exclusive reports whether there are cards that fill several slots.
func (t *Topology) Exclusive() bool { return t.faces != nil }

// Left is what can be taken of a device where free is what each device has left by itself: nothing while its card is given out
// under another slot.
func (t *Topology) Left(free []cluster.Amount, device int) cluster.Amount {
	if t.faces != nil {
		for _, other := range t.faces[device] {
			if free[other] < t.whole[other] {
				return 0
			}
		}
	}
	return free[device]
}

// Whole is what each device has when nothing is taken: nothing where it is not healthy. The list must not be changed.
func (t *Topology) Whole() []cluster.Amount { return t.whole }

// rank puts accelerators first, then network adapters, cores and memory: each follows the NUMA nodes of the
// ones before, and the scarcest chooses first.
func rank(s cluster.SlotName) int {
	switch {
	case s == cluster.SlotCPU:
		return 2
	case s == cluster.SlotMem:
		return 3
	case adapter(s):
		return 1
	}
	return 0
}

// natural orders ids so that core 2 comes before core 10.
func natural(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// link finds the cores or cards of a section and the distances between its devices.
func (t *Topology) link(s *section) {
	devices := t.devices[s.from:s.to]
	at := make(map[string]int, len(devices))
	linked := false
	for i, d := range devices {
		at[d.ID] = i
		t.groups[s.from+i] = -1
		for _, class := range d.Links {
			linked = linked || class > DistanceSibling
		}
	}
	groups := int32(0)
	for i, d := range devices {
		if t.groups[s.from+i] >= 0 {
			continue
		}
		size := int32(1)
		t.groups[s.from+i] = groups
		for id, class := range d.Links {
			if class > DistanceSibling {
				continue
			}
			size++
			if j, ok := at[id]; ok && t.groups[s.from+j] < 0 {
				t.groups[s.from+j] = groups
			}
		}
		for j := range devices {
			if t.groups[s.from+j] == groups {
				t.members[s.from+j] = size
			}
		}
		groups++
	}
	if n := len(devices); linked && n <= maxLinked && s.slot != cluster.SlotCPU && s.slot != cluster.SlotMem {
		s.distance = make([]uint8, n*n)
		for i, d := range devices {
			for j, e := range devices {
				class, known := d.Links[e.ID]
				if other, ok := e.Links[d.ID]; ok && (!known || other < class) {
					class, known = other, true
				}
				switch {
				case !known && d.NUMA >= 0 && d.NUMA == e.NUMA:
					class = DistanceNode
				case !known:
					class = DistanceFar
				}
				s.distance[i*n+j] = uint8(min(max(class, 0), 255))
			}
		}
	}
}

// Len is the number of devices.
func (t *Topology) Len() int { return len(t.devices) }

// Device is the device of a number.
func (t *Topology) Device(i int) *Device { return &t.devices[i] }

// Slots is the number of slots.
func (t *Topology) Slots() int { return len(t.sections) }

// Slot tells a slot's name, its rule and its devices, numbers from to to-1.
func (t *Topology) Slot(i int) (name cluster.SlotName, rule Rule, from, to int) {
	s := &t.sections[i]
	return s.slot, s.rule, s.from, s.to
}

// Section finds a slot by name, -1 when the agent has none.
func (t *Topology) Section(slot cluster.SlotName) int {
	for i := range t.sections {
		if t.sections[i].slot == slot {
			return i
		}
	}
	return -1
}

// Index finds a device, -1 when the agent does not have it.
func (t *Topology) Index(slot cluster.SlotName, id string) int {
	s := t.Section(slot)
	if s < 0 {
		return -1
	}
	for i := t.sections[s].from; i < t.sections[s].to; i++ {
		if t.devices[i].ID == id {
			return i
		}
	}
	return -1
}

// Free tells what healthy devices have left, by number.
func (t *Topology) Free(used Allocation) []cluster.Amount {
	free := make([]cluster.Amount, len(t.devices))
	for i := range t.devices {
		if d := &t.devices[i]; d.Healthy {
			free[i] = max(0, d.Capacity-used[d.Slot][d.ID])
		}
	}
	return free
}

// Take is an amount of one device, by number.
type Take struct {
	Device int32
	Amount cluster.Amount
}

// Allocation names the devices of takes.
func (t *Topology) Allocation(takes []Take) Allocation {
	out := make(Allocation, len(t.sections))
	for s := range t.sections {
		n := 0
		from, to := int32(t.sections[s].from), int32(t.sections[s].to)
		for _, x := range takes {
			if x.Device >= from && x.Device < to {
				n++
			}
		}
		if n == 0 {
			continue
		}
		devices := make(map[string]cluster.Amount, n)
		for _, x := range takes {
			if x.Device >= from && x.Device < to {
				devices[t.devices[x.Device].ID] += x.Amount
			}
		}
		out[t.sections[s].slot] = devices
	}
	return out
}

// Want is what one kernel asks of one slot, by the slot's number.
type Want struct {
	Slot   int
	Amount cluster.Amount // above zero
	// On restricts the choice to one device, 1 + its number; 0 leaves it open.
	On int32
}

// usable reports whether a device may serve a request: models and isolation restrict accelerators alone.
func usable(d *Device, p *Policy) bool {
	if len(p.Models) == 0 && p.Isolation == "" || rank(d.Slot) != 0 {
		return true
	}
	return (len(p.Models) == 0 || slices.Contains(p.Models, d.Model)) && d.isolation().AtLeast(p.Isolation)
}

// isolation is what is told of the device, else what follows from how it is given out: whoever has all of a device shares it with
// nobody, and of fractions nothing is promised.
func (d *Device) isolation() cluster.Isolation {
	switch {
	case d.Isolation != "":
		return d.Isolation
	case DefaultRule(d.Slot) == Fraction:
		return cluster.IsolationNone
	}
	return cluster.IsolationHard
}

// Usable reports whether a device may serve a request under a policy.
func (t *Topology) Usable(device int, p *Policy) bool { return usable(&t.devices[device], p) }

// Holds reports whether Choose would find devices for a want, without choosing.
func (t *Topology) Holds(free []cluster.Amount, w Want, p *Policy) bool {
	s := &t.sections[w.Slot]
	unit := s.rule.unit()
	if w.Amount%unit != 0 || s.rule == Unique && w.Amount != cluster.Milli {
		return false
	}
	var sum cluster.Amount
	for i := s.from; i < s.to; i++ {
		if left := t.Left(free, i); left >= unit && usable(&t.devices[i], p) {
			sum += left - left%unit
		}
	}
	if sum < w.Amount {
		return false
	}
	if s.rule != Fraction || !p.NoFragment || w.Amount <= Quantum {
		return true
	}
	// As few devices as a fresh agent would need, in equal parts.
	count := cluster.Amount(1)
	if s.largest > 0 {
		count = (w.Amount + s.largest - 1) / s.largest
	}
	part := (w.Amount/count + Quantum - 1) / Quantum * Quantum
	for i := s.from; i < s.to && count > 0; i++ {
		if t.Left(free, i) >= part && usable(&t.devices[i], p) {
			count--
		}
	}
	return count == 0
}
