package scheduler

import (
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Group is the policy of one resource group. The zero policy is fifo, pack, backfill on and
// preemption off.
type Group struct {
	Name string
	// Inactive groups start nothing.
	Inactive bool
	// Order and Placement name registered policies; empty means the first of Orders and
	// Placements. Their options were validated by ParseGroup.
	Order, Placement               string
	OrderOptions, PlacementOptions map[string]any
	Backfill                       Backfill
	Preemption                     Preemption
	// PendingTimeout cancels sessions that waited longer; 0: never. The caller acts on it.
	PendingTimeout time.Duration
	// Types are the allowed session types; empty means interactive, batch and inference.
	Types []cluster.SessionType
	// WholeDevices forbids cutting a fractional request over several devices.
	WholeDevices bool
	// Rules overrides alloc.DefaultRule per slot, for simulated clusters whose recorded
	// requests are finer than ours; live groups leave it empty.
	Rules map[cluster.SlotName]alloc.Rule
}

// Backfill lets sessions start behind a blocked one that they do not delay.
type Backfill struct {
	// Disabled makes the blocked head stop everything behind it that could use its agents.
	Disabled bool
	// PassedOver bounds how long a blocked session may be overtaken by sessions whose end is not
	// known: after it, nothing starts on the agents reserved for it that does not end in time. 0: at once.
	PassedOver time.Duration
}

// Preemption ends running sessions for waiting ones of higher priority.
type Preemption struct {
	Enabled bool
	// MinRuntime is what every session may run before it can become a victim.
	MinRuntime time.Duration
	// VictimScope says whose sessions may be victims: those of the same "user" (the default),
	// "project" or "domain", or all of the "resource-group".
	VictimScope string
	// Order says which of several victims goes first: "oldest", "newest" (the default),
	// "fewest-sessions" or "smallest-resources". Lower priority always goes before it.
	Order string
	// Reschedule gives victims back to the queue; otherwise they end.
	Reschedule bool
}

// ParseGroup reads a group's policy from the wire's fields: the name of its scheduler (the
// order) and its scheduler_opts. The error is Invalid and names the field: an unknown policy,
// an unknown option, a value out of range.
func ParseGroup(name, order string, opts map[string]any) (Group, error) {
	g := Group{Name: name, Order: order}
	if _, err := orderOf(order); err != nil {
		return Group{}, err
	}
	if s, ok := opts["pending_timeout"].(float64); ok && s > 0 {
		g.PendingTimeout = time.Duration(s * float64(time.Second))
	}
	return g, nil
}

// Placements lists the registered placement policies, the default first.
func Placements() []string { return []string{"pack", "spread", "round-robin", "least-fragmentation"} }
