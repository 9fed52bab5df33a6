package cuda

import (
	"slices"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// The slots; those of MIG are named after their profiles.
const (
	SlotDevice cluster.SlotName = "cuda.device"
	SlotShares cluster.SlotName = "cuda.shares"
)

// SlotMIG is the slot of a MIG profile: "cuda.1g.10gb-mig".
func SlotMIG(profile string) cluster.SlotName { return cluster.SlotName("cuda." + profile + "-mig") }

// Fills reports whether a slot is one that this driver may fill.
func Fills(slot cluster.SlotName) bool {
	return slot == SlotDevice || slot == SlotShares || strings.HasPrefix(string(slot), "cuda.") && strings.HasSuffix(string(slot), "-mig")
}

func kindsOf(c Config, profiles []string) map[cluster.SlotName]cluster.SlotKind {
	out := map[cluster.SlotName]cluster.SlotKind{SlotDevice: cluster.SlotCount}
	if c.Fractions {
		out[SlotShares] = cluster.SlotCount
	}
	for _, p := range profiles {
		out[SlotMIG(p)] = cluster.SlotUnique
	}
	return out
}

// profilesOf are the MIG profiles of a host.
func profilesOf(f nvmlwire.Facts) []string {
	var out []string
	for _, g := range f.GPUs {
		for _, i := range g.Instances {
			if validProfile.MatchString(i.Profile) {
				out = append(out, i.Profile)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// machine is a host's GPUs, checked. It is never changed in place.
type machine struct {
	driver    string
	order     []string // of the cards that are given out
	cards     map[string]card
	instances map[string]instance
	// offered are the instances that are given out, in order.
	offered []string
	shares  bool
	reserve int64
}

// card is a GPU. All cards are known, also those that are not given out, for the specification that engines read.
type card struct {
	nvmlwire.GPU
	index int // its place on the host
}

type instance struct {
	nvmlwire.Instance
	card string
}

// machineOf checks what the source tells. A source is a program of ours, but what it tells becomes names of files and variables.
func machineOf(c Config, f nvmlwire.Facts) (machine, error) {
	m := machine{driver: f.Driver, cards: map[string]card{}, instances: map[string]instance{}, shares: c.Fractions,
		reserve: int64(c.Reserve)}
	if len(f.GPUs) > nvmlwire.MaxGPUs {
		return machine{}, fault.Invalidf("%d NVIDIA GPUs were found, at most %d can be used", len(f.GPUs), nvmlwire.MaxGPUs)
	}
	if strings.Trim(f.Driver, "0123456789.") != "" {
		return machine{}, fault.Invalidf("the NVIDIA driver's version %q cannot be read", f.Driver)
	}
	masked := func(id string) bool { return slices.Contains(c.Mask, id) }
	for i, g := range f.GPUs {
		if !validUUID.MatchString(g.UUID) || m.cards[g.UUID].UUID != "" {
			return machine{}, fault.Invalidf("the UUID %q of an NVIDIA GPU cannot be used, or is there twice", g.UUID)
		}
		if g.Memory < 0 {
			return machine{}, fault.Invalidf("GPU %s has %d bytes of memory", g.UUID, g.Memory)
		}
		if g.Minor < 0 && g.Problem == "" {
			g.Problem = "the driver does not tell its device file"
		}
		m.cards[g.UUID] = card{g, i}
		if !g.MIG {
			if !masked(g.UUID) {
				m.order = append(m.order, g.UUID)
			}
			continue
		}
		for _, x := range g.Instances {
			if !validUUID.MatchString(x.UUID) || m.instances[x.UUID].UUID != "" || !validProfile.MatchString(x.Profile) || x.Memory < 0 {
				return machine{}, fault.Invalidf("instance %q of GPU %s cannot be used: its profile is %q", x.UUID, g.UUID, x.Profile)
			}
			m.instances[x.UUID] = instance{x, g.UUID}
			if !masked(g.UUID) && !masked(x.UUID) {
				m.offered = append(m.offered, x.UUID)
			}
		}
	}
	return m, nil
}

// devices lists what is given out, ordered by slot. problems are those of cards beside what the source tells; withheld says why shares
// are not given out, "" when they are, and rung is their isolation.
func (m machine) devices(problems map[string]string, rung cluster.Isolation, withheld string) []device.Device {
	var out []device.Device
	add := func(slot cluster.SlotName, id string, g card, memory int64, links map[string]int, more string) {
		problem := g.Problem
		for _, other := range []string{problems[g.UUID], more} {
			if problem == "" {
				problem = other
			}
		}
		out = append(out, device.Device{
			Device: alloc.Device{Slot: slot, ID: id, NUMA: max(g.NUMA, -1), PCI: g.PCI, Model: g.Model, Capacity: cluster.Whole(1),
				Healthy: problem == "", Links: links},
			Memory: memory, Problem: problem,
		})
	}
	for _, id := range m.order {
		add(SlotDevice, id, m.cards[id], m.cards[id].Memory, m.links(id), "")
	}
	if m.shares {
		for _, id := range m.order {
			more := withheld
			if g := m.cards[id]; more == "" && g.Memory-m.reserve < minShare*100 {
				more = "it has too little memory for shares"
			}
			add(SlotShares, id, m.cards[id], m.cards[id].Memory, m.links(id), more)
			out[len(out)-1].Isolation = rung
		}
	}
	for _, id := range m.offered {
		i := m.instances[id]
		siblings := map[string]int{}
		for _, other := range m.offered {
			if other != id && m.instances[other].card == i.card {
				siblings[other] = alloc.DistanceSibling
			}
		}
		add(SlotMIG(i.Profile), id, m.cards[i.card], i.Memory, siblings, "")
	}
	slices.SortStableFunc(out, func(a, b device.Device) int { return strings.Compare(string(a.Slot), string(b.Slot)) })
	return out
}

// minShare is the least memory of the smallest share, a hundredth of a card.
const minShare = 16 << 20

// links are the distances of one card to the others that are given out, the same both ways.
func (m machine) links(id string) map[string]int {
	out := map[string]int{}
	for _, other := range m.order {
		there, back := m.cards[id].Links[other], m.cards[other].Links[id]
		if there <= 0 {
			there = back
		}
		if back > 0 {
			there = min(there, back)
		}
		if other != id && there > 0 {
			out[other] = there
		}
	}
	return out
}
