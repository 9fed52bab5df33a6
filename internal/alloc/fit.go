package alloc

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Short is the detail of a refused request: why one slot does not fit. It is the Data
// of the fault that Fit returns.
type Short struct {
	Slot cluster.SlotName `json:"slot"`
	Want cluster.Amount   `json:"want"`
	// Free is what healthy devices have left, Total what they have when nothing runs.
	Free  cluster.Amount `json:"free"`
	Total cluster.Amount `json:"total"`
	// Fragmented: the sums suffice, no admissible set of devices does.
	Fragmented bool `json:"fragmented,omitempty"`
}

// Missing is how much more would have to be free.
func (s Short) Missing() cluster.Amount { return max(0, s.Want-s.Free) }

// ShortOf finds the Short in the chain of an error of Fit or Check.
func ShortOf(err error) (Short, bool) {
	var f *fault.Error
	if errors.As(err, &f) {
		s, ok := f.Data.(Short)
		return s, ok
	}
	return Short{}, false
}

// part is a device with what is left of it.
type part struct {
	Device
	free cluster.Amount
}

// Fit chooses devices for a request on an agent whose devices are partly used. Slots asked
// for with zero are ignored. The same arguments always give the same choice; nothing is ever
// taken that is used or unhealthy. An error is a fault whose Data is a Short: Exhausted
// when the request fits an empty agent, Invalid when it never does.
func Fit(devices []Device, used Allocation, request cluster.Slots, policy Policy) (Allocation, error) {
	free := partition(devices, used)
	out := Allocation{}
	near := map[int]bool{} // NUMA nodes chosen so far
	for _, slot := range order(request) {
		want := request[slot]
		if want == 0 {
			continue
		}
		if want < 0 {
			return nil, fault.Invalidf("slot %s: %s is below zero", slot, want)
		}
		parts, known := free[slot]
		if !known {
			return nil, short(fault.Invalid, Short{Slot: slot, Want: want})
		}
		chosen, err := choose(slot, parts, want, near, policy)
		if err != nil {
			return nil, err
		}
		out[slot] = chosen
		for _, p := range parts {
			if chosen[p.ID] > 0 && p.NUMA >= 0 {
				near[p.NUMA] = true
			}
		}
	}
	return out, nil
}

// order puts accelerators first, then cores, then memory: each follows the NUMA nodes of
// the ones before, and the scarcest chooses first.
func order(request cluster.Slots) []cluster.SlotName {
	rank := func(s cluster.SlotName) int {
		switch s {
		case cluster.SlotCPU:
			return 1
		case cluster.SlotMem:
			return 2
		}
		return 0
	}
	names := request.Names()
	slices.SortStableFunc(names, func(a, b cluster.SlotName) int { return cmp.Compare(rank(a), rank(b)) })
	return names
}

// partition groups devices by slot with what is left of them, in stable order. Unhealthy
// devices count for nothing but keep their slot known.
func partition(devices []Device, used Allocation) map[cluster.SlotName][]part {
	out := map[cluster.SlotName][]part{}
	for _, d := range devices {
		p := part{Device: d, free: max(0, d.Capacity-used[d.Slot][d.ID])}
		if !d.Healthy {
			p.free, p.Capacity = 0, 0
		}
		out[d.Slot] = append(out[d.Slot], p)
	}
	for _, parts := range out {
		slices.SortFunc(parts, func(a, b part) int {
			return cmp.Or(cmp.Compare(a.PCI, b.PCI), natural(a.ID, b.ID))
		})
	}
	return out
}

// natural orders ids so that core 2 comes before core 10.
func natural(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func choose(slot cluster.SlotName, parts []part, want cluster.Amount, near map[int]bool, policy Policy) (map[string]cluster.Amount, error) {
	s := Short{Slot: slot, Want: want}
	for _, p := range parts {
		s.Free += p.free
		s.Total += p.Capacity
	}
	refuse := func() error {
		if s.Total < want {
			return short(fault.Invalid, s)
		}
		s.Fragmented = s.Free >= want
		return short(fault.Exhausted, s)
	}
	rule := policy.rule(slot)
	unit := cluster.Amount(cluster.Milli)
	switch rule {
	case Fraction:
		unit = Quantum
	case Divisible:
		unit = 1
	}
	switch {
	case want%unit != 0:
		return nil, fault.Invalidf("slot %s: %s is not a multiple of %s", slot, want, unit).
			WithNext("ask for a multiple of %s", unit).WithData(s)
	case rule == Unique && want != cluster.Milli:
		return nil, fault.Invalidf("slot %s: %s asked for, exactly 1 is possible", slot, want).
			WithNext("ask for 1 of %s", slot).WithData(s)
	case s.Free < want:
		return nil, refuse()
	}
	var chosen map[string]cluster.Amount
	switch rule {
	case Whole, Unique:
		chosen = pickWhole(parts, want, near, policy.Placement)
	case Bulk, Divisible:
		chosen = pickBulk(parts, want, near, policy.Placement)
	case Fraction:
		chosen = pickFraction(parts, want, near, policy)
	}
	if chosen == nil {
		return nil, refuse()
	}
	return chosen, nil
}

func short(kind fault.Kind, s Short) error {
	f := fault.New(kind, "").WithReason("insufficient-" + string(s.Slot)).WithData(s)
	switch {
	case s.Total == 0:
		f.Msg = "slot " + string(s.Slot) + ": " + amount(s.Slot, s.Want) + " asked for, this agent has none"
		f.Next = "ask for a slot that an agent has; berth agent list shows them"
	case kind == fault.Invalid:
		f.Msg = "slot " + string(s.Slot) + ": " + amount(s.Slot, s.Want) + " asked for, the whole agent has " +
			amount(s.Slot, s.Total) + " (" + amount(s.Slot, s.Want-s.Total) + " too much)"
		f.Next = "ask for less " + string(s.Slot)
	case s.Fragmented:
		f.Msg = "slot " + string(s.Slot) + ": " + amount(s.Slot, s.Want) + " asked for, " + amount(s.Slot, s.Free) +
			" is free but spread over devices in parts that do not fit"
		f.Next = "wait for sessions to end or ask for less " + string(s.Slot)
	default:
		f.Msg = "slot " + string(s.Slot) + ": " + amount(s.Slot, s.Want) + " asked for, " + amount(s.Slot, s.Free) +
			" is free (" + amount(s.Slot, s.Missing()) + " missing)"
		f.Next = "wait for sessions to end or ask for less " + string(s.Slot)
	}
	return f
}

func amount(slot cluster.SlotName, a cluster.Amount) string {
	if DefaultRule(slot) == Bulk {
		return a.String() + " bytes"
	}
	return a.String()
}

// Check verifies a choice made elsewhere: that it gives exactly the request from devices
// that are there, healthy and free. An error is a Conflict that names the device, because the chooser
// looked at an older state.
func Check(devices []Device, used Allocation, request cluster.Slots, a Allocation) error {
	free := map[cluster.SlotName]map[string]cluster.Amount{}
	for slot, parts := range partition(devices, used) {
		free[slot] = make(map[string]cluster.Amount, len(parts))
		for _, p := range parts {
			free[slot][p.ID] = p.free
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(a)) {
		for _, id := range slices.Sorted(maps.Keys(a[slot])) {
			got, known := free[slot][id]
			if want := a[slot][id]; !known || want < 0 || want > got {
				why := "is not a device of this agent"
				if known {
					why = "has " + amount(slot, got) + " free, " + amount(slot, want) + " was chosen"
				}
				return fault.Conflictf("%s device %q %s", slot, id, why).WithReason("device-conflict").
					WithData(Short{Slot: slot, Want: want, Free: got})
			}
		}
	}
	totals := a.Totals()
	for _, slot := range totals.Add(request).Names() {
		if totals[slot] != request[slot] {
			return fault.Conflictf("slot %s: %s chosen, %s asked for", slot, totals[slot], request[slot]).WithReason("device-conflict")
		}
	}
	return nil
}

// Add returns used with a taken as well.
func (a Allocation) Add(b Allocation) Allocation { return combine(a, b, 1) }

// Sub returns used with b given back; entries that reach zero disappear.
func (a Allocation) Sub(b Allocation) Allocation { return combine(a, b, -1) }

func combine(a, b Allocation, sign cluster.Amount) Allocation {
	out := Allocation{}
	for slot, devices := range a {
		out[slot] = maps.Clone(devices)
	}
	for slot, devices := range b {
		if out[slot] == nil {
			out[slot] = map[string]cluster.Amount{}
		}
		for id, v := range devices {
			if out[slot][id] += sign * v; out[slot][id] == 0 {
				delete(out[slot], id)
			}
		}
		if len(out[slot]) == 0 {
			delete(out, slot)
		}
	}
	return out
}
