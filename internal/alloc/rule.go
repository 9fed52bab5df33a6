package alloc

import (
	"strings"

	"berth.dev/berth/internal/cluster"
)

// Distance classes used in Device.Links. Smaller is nearer; an absent link is unknown.
const (
	DistanceSibling = 1  // hyper-threads of one physical core, parts of one card
	DistanceFast    = 2  // a direct link such as NVLink
	DistanceSwitch  = 4  // one PCIe switch
	DistanceNode    = 8  // one NUMA node
	DistanceFar     = 16 // across NUMA nodes
)

// Rule says how amounts of a slot are cut into devices.
type Rule int

// The rules.
const (
	// Whole hands out whole units: cores, whole accelerators.
	Whole Rule = iota
	// Bulk hands out any number of whole units from as few devices as possible: bytes.
	Bulk
	// Fraction hands out multiples of Quantum, on one device where one can hold them.
	Fraction
	// Unique hands out exactly one unit per kernel: partitions of an accelerator.
	Unique
	// Divisible hands out any amount, down to a thousandth, from as few devices as possible:
	// cores that are shared by weight.
	Divisible
)

// Quantum is the smallest part of a device under Fraction, 0.01 of a unit.
const Quantum cluster.Amount = 10

// Placement says which of several fitting devices is taken.
type Placement int

// The placements.
const (
	// Pack takes the fullest devices that still fit, which leaves large holes for others.
	Pack Placement = iota
	// Spread takes the emptiest ones.
	Spread
)

// Policy adjusts a choice; the zero value packs and follows DefaultRule.
type Policy struct {
	Placement Placement
	// NoFragment forbids cutting a fractional request of up to one device over several, and
	// unequal parts of larger ones.
	NoFragment bool
	// Models are the acceptable models of accelerators; empty means any.
	Models []string
	// Isolation is the least that accelerators must offer; empty means any.
	Isolation cluster.Isolation
	// Rules overrides DefaultRule per slot.
	Rules map[cluster.SlotName]Rule
}

// DefaultRule knows the rule of a slot by its name: "mem" is bytes, names ending in
// ".shares" are fractions, those ending in "-mig" are partitions, everything else is whole.
func DefaultRule(slot cluster.SlotName) Rule {
	switch {
	case slot == cluster.SlotMem || strings.HasSuffix(string(slot), ".mem"):
		return Bulk
	case strings.HasSuffix(string(slot), ".shares"):
		return Fraction
	case strings.HasSuffix(string(slot), "-mig"):
		return Unique
	}
	return Whole
}

// adapter reports whether the devices of a slot are network adapters, which are chosen beside accelerators: its name ends in ".hca".
func adapter(slot cluster.SlotName) bool { return strings.HasSuffix(string(slot), ".hca") }

func (p Policy) rule(slot cluster.SlotName) Rule {
	if r, ok := p.Rules[slot]; ok {
		return r
	}
	return DefaultRule(slot)
}

// unit is what amounts of the rule are multiples of.
func (r Rule) unit() cluster.Amount {
	switch r {
	case Fraction:
		return Quantum
	case Divisible:
		return 1
	}
	return cluster.Milli
}
