package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Plan decides about every pending session of the snapshot: each gets exactly one
// Decision, in queue order, with either placements for all its kernels or a Hold. The
// result depends only on the snapshot's values. Placements never take more than an agent
// has, counting the earlier ones of the same plan.
//
// A session that waits for capacity reserves the agents it would run on: later sessions
// may use those only as far as they leave it the slots it needs, so that a large session
// is not overtaken for ever and everything else still fills up.
//
// The error is Invalid for a policy name that is not registered.
func Plan(s Snapshot) ([]Decision, error) {
	before, err := orderOf(s.Group.Order)
	if err != nil {
		return nil, err
	}
	queue := slices.Clone(s.Pending)
	slices.SortStableFunc(queue, before)
	board := newBoard(s.Agents)
	decisions := make([]Decision, 0, len(queue))
	waiting := 0
	for i := range queue {
		session := &queue[i]
		d := Decision{Session: session.ID}
		if hold := holdBack(&s, session); hold != nil {
			d.Hold = hold
		} else {
			d.Placements, d.Hold = board.decide(session)
		}
		if d.Hold != nil {
			waiting++
			d.Hold.Position = waiting
			if d.Hold.Reason == WaitsForCapacity || d.Hold.Reason == WaitsForDevices {
				board.reserve(session)
			}
		}
		decisions = append(decisions, d)
	}
	return decisions, nil
}

// holdBack explains why a session may not start whatever is free; nil when it may.
func holdBack(s *Snapshot, session *Session) *Explanation {
	switch {
	case len(session.Kernels) == 0:
		return &Explanation{Reason: TooBig, Text: "it has no kernels"}
	case session.StartsAt.After(s.Now):
		return &Explanation{Reason: WaitsForStartTime, Text: "it starts at " + session.StartsAt.UTC().Format("2006-01-02 15:04:05 MST")}
	case session.Waiting != "":
		return &Explanation{Reason: WaitsForDependency, Text: session.Waiting}
	}
	return nil
}

// orderOf finds a registered queue order. Every order puts higher priorities first and
// breaks ties by id.
func orderOf(name string) (func(a, b Session) int, error) {
	byAge := func(a, b Session) int { return a.EnqueuedAt.Compare(b.EnqueuedAt) }
	switch name {
	case "", "fifo":
	case "lifo":
		byAge = func(a, b Session) int { return b.EnqueuedAt.Compare(a.EnqueuedAt) }
	default:
		return nil, fault.Invalidf("the scheduler %q does not exist", name).WithNext("use one of %s", strings.Join(Orders(), ", "))
	}
	return func(a, b Session) int {
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		if c := byAge(a, b); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	}, nil
}

// Orders lists the registered queue orders, the default first.
func Orders() []string { return []string{"fifo", "lifo"} }

// describe renders slots for people: "2 cpu, 512 MiB mem".
func describe(slots cluster.Slots) string {
	var parts []string
	for _, slot := range slots.Names() {
		if v := slots[slot]; v != 0 {
			parts = append(parts, amountText(slot, v))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func amountText(slot cluster.SlotName, v cluster.Amount) string {
	if slot != cluster.SlotMem {
		return v.String() + " " + string(slot)
	}
	n := v.Units()
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.size)), ".0") + " " + u.name + " " + string(slot)
		}
	}
	return fmt.Sprintf("%d bytes %s", n, slot)
}
