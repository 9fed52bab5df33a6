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

// Fit chooses devices for a request on an agent whose devices are partly used. Slots asked
// for with zero are ignored. The same arguments always give the same choice; nothing is ever
// taken that is used or unhealthy. An error is a fault whose Data is a Short: Exhausted
// when the request fits an empty agent, Invalid when it never does.
func Fit(devices []Device, used Allocation, request cluster.Slots, policy Policy) (Allocation, error) {
	t := Prepare(devices, policy.Rules)
	free := t.Free(used)
	var wants []Want
	for _, slot := range request.Names() {
		want := request[slot]
		if want == 0 {
			continue
		}
		if want < 0 {
			return nil, fault.Invalidf("slot %s: %s is below zero", slot, want)
		}
		s := t.Section(slot)
		if s < 0 {
			return nil, short(fault.Invalid, Short{Slot: slot, Want: want})
		}
		wants = append(wants, Want{Slot: s, Amount: want})
	}
	slices.SortFunc(wants, func(a, b Want) int { return cmp.Compare(a.Slot, b.Slot) })
	for _, w := range wants {
		if !t.Holds(free, w, &policy) {
			return nil, t.refuse(free, w, &policy)
		}
	}
	var c Chooser
	takes, ok := c.Choose(t, free, wants, &policy, nil)
	if !ok && t.faces != nil {
		return nil, t.refuseTogether(wants)
	}
	if !ok {
		return nil, fault.New(fault.Internal, "devices were counted but not found") // Holds and Choose agree
	}
	return t.Allocation(takes), nil
}

// refuse says why a want has no devices.
func (t *Topology) refuse(free []cluster.Amount, w Want, p *Policy) error {
	section := &t.sections[w.Slot]
	s := Short{Slot: section.slot, Want: w.Amount}
	for i := section.from; i < section.to; i++ {
		if d := &t.devices[i]; d.Healthy && usable(d, p) {
			s.Free += t.Left(free, i)
			s.Total += d.Capacity
		}
	}
	unit := section.rule.unit()
	switch {
	case w.Amount%unit != 0:
		return fault.Invalidf("slot %s: %s is not a multiple of %s", s.Slot, w.Amount, unit).
			WithNext("ask for a multiple of %s", unit).WithData(s)
	case section.rule == Unique && w.Amount != cluster.Milli:
		return fault.Invalidf("slot %s: %s asked for, exactly 1 is possible", s.Slot, w.Amount).
			WithNext("ask for 1 of %s", s.Slot).WithData(s)
	case s.Total < w.Amount:
		return short(fault.Invalid, s)
	}
	s.Fragmented = s.Free >= w.Amount
	return short(fault.Exhausted, s)
}

// refuseTogether says that the slots of a request have devices one by one, but not together: they are the same cards.
func (t *Topology) refuseTogether(wants []Want) error {
	var names []string
	var last Want
	for _, w := range wants {
		if s := &t.sections[w.Slot]; rank(s.slot) == 0 {
			names, last = append(names, string(s.slot)), w
		}
	}
	slot := t.sections[last.Slot].slot
	return fault.Exhaustedf("the slots %s are the same cards, and too few of them are free for one request of all",
		strings.Join(names, " and ")).
		WithReason("insufficient-" + string(slot)).WithData(Short{Slot: slot, Want: last.Amount, Fragmented: true}).
		WithNext("ask for one of the slots")
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
	under := map[hardware]cluster.SlotName{} // the slot that a card is given out under
	for _, d := range devices {
		if h, card := hardwareOf(&d); card && used[d.Slot][d.ID]+a[d.Slot][d.ID] > 0 {
			if other, shared := under[h]; shared && (a[d.Slot][d.ID] > 0 || a[other][d.ID] > 0) {
				return fault.Conflictf("device %q is given out as %s and as %s, one of them at a time is possible", d.ID, other, d.Slot).
					WithReason("device-conflict").WithData(Short{Slot: d.Slot, Want: a[d.Slot][d.ID]})
			}
			under[h] = d.Slot
		}
		if free[d.Slot] == nil {
			free[d.Slot] = map[string]cluster.Amount{}
		}
		free[d.Slot][d.ID] = 0
		if d.Healthy {
			free[d.Slot][d.ID] = max(0, d.Capacity-used[d.Slot][d.ID])
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
