package scheduler

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/option"
)

// Group is the policy of one resource group. The zero policy is fifo, pack, backfill on and
// preemption off.
type Group struct {
	Name string
	// Inactive groups start nothing.
	Inactive bool
	// EncryptedNetworks has connected sessions run only on agents that encrypt.
	EncryptedNetworks bool
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
	// Reservations is how many blocked sessions, from the head on, have their place kept; 0: one.
	Reservations int
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
//
// Of scheduler_opts it reads allowed_session_types, pending_timeout (seconds), config (the
// order's options), agent_selection_strategy (a placement policy or its older name: concentrated,
// dispersed, roundrobin, legacy), agent_selector_config (its options),
// allow_fractional_resource_fragmentation, preemption, and backfill {enabled, passed_over_seconds,
// reservations}; it takes and ignores enforce_spreading_endpoint_replica,
// route_cleanup_target_statuses, and the options of other orders in config, which clients leave there
// when they change the order.
func ParseGroup(name, order string, opts map[string]any) (Group, error) {
	g := Group{Name: name, Order: order}
	o := &option.Reader{Of: "scheduler_opts", Values: opts}
	seconds := func(o *option.Reader, name string) time.Duration {
		return time.Duration(o.Number(name, 0, 0, 1e9) * float64(time.Second))
	}
	g.PendingTimeout = seconds(o, "pending_timeout")
	g.WholeDevices = !o.Flag("allow_fractional_resource_fragmentation", true)
	o.Flag("enforce_spreading_endpoint_replica", false)
	o.Ignore("route_cleanup_target_statuses")
	for _, t := range o.List("allowed_session_types") {
		g.Types = append(g.Types, cluster.SessionType(t))
	}
	g.OrderOptions, g.PlacementOptions = o.Table("config"), o.Table("agent_selector_config")
	strategy := o.Plain("agent_selection_strategy")
	for _, k := range placements {
		if strategy == k.wire || strategy == k.name || strategy == "legacy" && k.name == "spread" {
			g.Placement = k.name
		}
	}
	if strategy != "" && g.Placement == "" {
		o.Fail("agent_selection_strategy", "is %q, which does not exist; use one of %s", strategy, strings.Join(Placements(), ", "))
	}
	p := &option.Reader{Of: "scheduler_opts.preemption", Values: o.Table("preemption")}
	g.Preemption = Preemption{
		Enabled: p.Flag("enabled", false), MinRuntime: seconds(p, "preemption_min_runtime"),
		VictimScope: p.Text("victim_scope", victimScopes...), Order: p.Text("order", victimOrders...),
		Reschedule: p.Text("mode", "terminate", "reschedule") == "reschedule",
	}
	p.Number("preemptible_priority", 0, 0, maxPriority)
	b := &option.Reader{Of: "scheduler_opts.backfill", Values: o.Table("backfill")}
	g.Backfill = Backfill{
		Disabled: !b.Flag("enabled", true), PassedOver: seconds(b, "passed_over_seconds"), Reservations: int(b.Number("reservations", 0, 0, 16)),
	}
	for _, x := range []*option.Reader{o, p, b} {
		if err := x.Done(); err != nil {
			return Group{}, err
		}
	}
	g.OrderOptions = withoutForeign(order, g.OrderOptions)
	if _, _, err := newOrder(order, g.OrderOptions); err != nil {
		return Group{}, err
	}
	if _, err := newPlacement(g.Placement, g.PlacementOptions); err != nil {
		return Group{}, err
	}
	return g, nil
}

// foreignOptions are options of orders of other managers that no order here has.
var foreignOptions = []string{"num_retries_to_skip"}

// withoutForeign leaves out options that belong to other orders than the named one. Options that nobody knows stay, to be refused.
func withoutForeign(order string, options map[string]any) map[string]any {
	foreign := slices.Clone(foreignOptions)
	var own []string
	for _, k := range orders {
		o := &option.Reader{}
		k.make(o)
		if k.name == order {
			own = o.Read
		}
		foreign = append(foreign, o.Read...)
	}
	out := maps.Clone(options)
	for _, name := range foreign {
		if !slices.Contains(own, name) {
			delete(out, name)
		}
	}
	return out
}

// DefaultOptions are the scheduler_opts of a group that says nothing, under the wire's names.
func DefaultOptions() map[string]any {
	return map[string]any{
		"allowed_session_types": []any{string(cluster.Interactive), string(cluster.Batch), string(cluster.Inference)},
		"pending_timeout":       0, "config": map[string]any{},
		"agent_selection_strategy": placements[0].wire, "agent_selector_config": map[string]any{},
		"enforce_spreading_endpoint_replica": false, "allow_fractional_resource_fragmentation": true,
		"route_cleanup_target_statuses": []any{"unhealthy"},
	}
}

// sameOptions compares decoded options.
func sameOptions(a, b map[string]any) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
