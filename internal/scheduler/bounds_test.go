package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/fairshare"
)

// cores is an allocation of the first n cores of an agent.
func cores(n int) alloc.Allocation {
	out := alloc.Allocation{cluster.SlotCPU: {}}
	for i := range n {
		out[cluster.SlotCPU][fmt.Sprint(i)] = 1000
	}
	return out
}

// TestMoreShapesThanAreRemembered: a queue of more different requests than the scheduler remembers candidates for is decided in order.
func TestMoreShapesThanAreRemembered(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{Reservations: 1}}, "a", "b")
	for _, id := range []cluster.AgentID{"a", "b"} {
		c.Run("g", holding(id, cores(4)))
	}
	for n := range 1200 {
		s := job(n, 10, 0, cluster.Slots{cluster.SlotCPU: 1000, cluster.SlotMem: cluster.Whole(int64(n + 1))})
		s.ID = cluster.SessionID(fmt.Sprintf("s%04d", n))
		c.Enqueue("g", s)
	}
	require.Empty(t, pass(t, c, now))
	c.Remove("on-a")
	require.Equal(t, []string{"s0000", "s0001", "s0002", "s0003"}, started(pass(t, c, now)))
	c.Remove("s0001")
	require.Equal(t, []string{"s0004"}, started(pass(t, c, now)))
	c.Remove("on-b")
	require.Equal(t, []string{"s0005", "s0006", "s0007", "s0008"}, started(pass(t, c, now)))
	c.Remove("s0008")
	got := pass(t, c, now)
	require.Equal(t, []string{"s0009"}, started(got))
	require.Equal(t, cluster.AgentID("b"), got[0].Placements[0].Agent)
}

// TestChangesThatWereForgotten: a request that was not looked at for very many changes of agents sees how they are now.
func TestChangesThatWereForgotten(t *testing.T) {
	t.Parallel()
	for _, pause := range []int{1, 90, 333, 700} {
		r := rand.New(rand.NewPCG(uint64(pause), 1))
		g := scheduler.Group{Name: "g"}
		c := filled(t, g, "a", "b", "c")
		agents := []scheduler.Agent{agent("a", 4, 8), agent("b", 4, 8), agent("c", 4, 8)}
		running := map[cluster.SessionID]scheduler.Running{}
		asked := job(99, 10, 0, ask(3, 1))
		check := func() {
			s := scheduler.Snapshot{Now: now, Group: g, Agents: agents, Pending: []scheduler.Session{asked}}
			for _, x := range running {
				s.Running = append(s.Running, x)
			}
			want, err := scheduler.Plan(s)
			require.NoError(t, err)
			require.Equal(t, want[0].Placements, c.Probe("g", now, asked).Placements)
		}
		for n := range 1500 {
			if n%pause == 0 {
				check()
			}
			x := holding([]cluster.AgentID{"a", "b", "c"}[r.IntN(3)], cores(r.IntN(5)))
			if _, ok := running[x.ID]; ok {
				delete(running, x.ID)
				c.Remove(x.ID)
				continue
			}
			running[x.ID] = x
			c.Run("g", x)
		}
		check()
	}
}

// TestStepsBoundTheLookAtFreedAgents: agents that became free are looked at one after the other, and a pass that is cut short there goes
// on in the next one.
func TestStepsBoundTheLookAtFreedAgents(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "b", "c"}
	build := func() *scheduler.Cluster {
		c := filled(t, scheduler.Group{}, ids...)
		for _, id := range ids {
			c.Run("g", holding(cluster.AgentID(id), cores(4)))
		}
		for n := range 3 {
			c.Enqueue("g", job(n, 10, 0, cluster.Slots{cluster.SlotCPU: cluster.Whole(int64(n + 2))}))
		}
		require.Empty(t, pass(t, c, now))
		for _, id := range ids {
			c.Remove(cluster.SessionID("on-" + id))
		}
		return c
	}
	want := pass(t, build(), now)
	require.Equal(t, []string{"s00", "s01", "s02"}, started(want))

	c := build()
	run := func(w scheduler.Work) scheduler.Result {
		r, err := c.Pass("g", now, w)
		require.NoError(t, err)
		return r
	}
	finish := func() (passes int, got []string) {
		for r := (scheduler.Result{More: true}); r.More; passes++ {
			require.Less(t, passes, 100, "passes make progress")
			r = run(scheduler.Work{Steps: 1})
			got = append(got, started(r.Decisions)...)
		}
		return passes, got
	}
	passes, got := finish()
	require.Equal(t, started(want), got)
	require.Greater(t, passes, 3)

	c = build()
	r := run(scheduler.Work{Steps: 1})
	require.Empty(t, r.Decisions)
	require.True(t, r.More)
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "other"}))
	c.SetAgent("other", agent("b", 4, 8)) // a freed agent that has left is passed over
	_, got = finish()
	require.Equal(t, []string{"s00", "s01"}, got, "two agents are left")
}

// TestStepsBoundComparisonsWithAgents: looking at a new request costs as many steps as there are agents, and repeating it few.
func TestStepsBoundComparisonsWithAgents(t *testing.T) {
	t.Parallel()
	build := func(alike bool) *scheduler.Cluster {
		c := filled(t, scheduler.Group{})
		for i := range 100 {
			c.SetAgent("g", agent(fmt.Sprintf("a%02d", i), 4, 8))
		}
		for n := range 40 {
			asks := ask(1, 1)
			if !alike {
				asks[cluster.SlotMem] += cluster.Whole(int64(n))
			}
			c.Enqueue("g", job(n, 10, 0, asks))
		}
		return c
	}
	run := func(c *scheduler.Cluster, steps int) int {
		r, err := c.Pass("g", now, scheduler.Work{Steps: steps})
		require.NoError(t, err)
		require.Equal(t, len(r.Decisions) < 40, r.More)
		return len(r.Decisions)
	}
	require.Equal(t, 1, run(build(false), 100))
	require.InDelta(t, 5, run(build(false), 500), 1)
	require.InDelta(t, 10, run(build(false), 1000), 1)
	require.Greater(t, run(build(true), 200), 10)
	require.Less(t, run(build(true), 150), 40)
	c := build(false)
	for range 2 { // each pass has its own steps
		require.InDelta(t, 5, run(c, 500), 1)
	}
}

// TestCapacityFollowsTheRulesOfSlots: a changed rule changes what agents can hand out, and with it dominant shares.
func TestCapacityFollowsTheRulesOfSlots(t *testing.T) {
	t.Parallel()
	rules := map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}
	for _, changed := range []bool{false, true} {
		c := filled(t, scheduler.Group{Order: "drf"})
		a := agent("a", 1, 8)
		a.Devices[0].Capacity = 1500
		c.SetAgent("g", a)
		hold := func(id cluster.SessionID, user string, held alloc.Allocation) {
			x := holding("a", held)
			x.ID, x.Owner = id, owned(0, user, nil).Owner
			c.Run("g", x)
		}
		hold("r1", "ada", alloc.Allocation{cluster.SlotCPU: {"0": 1000}})
		hold("r2", "bob", alloc.Allocation{cluster.SlotMem: {"root": cluster.Whole(7 << 30)}})
		require.Empty(t, pass(t, c, now))
		if changed {
			require.NoError(t, c.SetGroup(scheduler.Group{Name: "g", Order: "drf", Rules: rules}))
		}
		memory := cluster.Slots{cluster.SlotMem: cluster.Whole(1 << 30)}
		c.Enqueue("g", owned(1, "ada", memory))
		c.Enqueue("g", owned(2, "bob", memory))
		want := "s02" // ada holds the only core that is handed out, bob seven eighths of the memory
		if changed {
			want = "s01" // ada holds two thirds of the cores
		}
		require.Equal(t, []string{want}, started(pass(t, c, now)), "rules changed: %v", changed)
	}
}

// TestOptionsHaveRanges: every number is accepted at its bounds and refused beyond them.
func TestOptionsHaveRanges(t *testing.T) {
	t.Parallel()
	decay := func(name string, v any) error {
		_, err := fairshare.Parse(map[string]any{name: v})
		return err
	}
	order := func(name string, v any) error {
		return scheduler.NewCluster().SetGroup(scheduler.Group{Name: "g", Order: "fair-share", OrderOptions: map[string]any{name: v}})
	}
	packing := func(name string, v any) error {
		_, err := scheduler.ParseGroup("g", "", map[string]any{
			"agent_selection_strategy": "least-fragmentation", "agent_selector_config": map[string]any{name: v},
		})
		return err
	}
	group := func(table string) func(string, any) error {
		return func(name string, v any) error {
			opts := map[string]any{name: v}
			if table != "" {
				opts = map[string]any{table: opts}
			}
			_, err := scheduler.ParseGroup("g", "", opts)
			return err
		}
	}
	weight := func(name string, v any) error { return decay("resource_weights", map[string]any{name: v}) }
	for _, c := range []struct {
		parse     func(string, any) error
		name      string
		low, high float64
		step      float64
	}{
		{decay, "half_life_days", 0.001, 3650, 0.0005}, {decay, "lookback_days", 0.001, 3650, 0.0005},
		{decay, "decay_unit_days", 0.001, 365, 0.0005}, {decay, "default_weight", 0.001, 1e6, 0.0005},
		{decay, "ageing_seconds", 0, 1e9, 0.5}, {order, "ageing_seconds", 0, 1e9, 0.5}, {weight, "cpu", 0, 1e6, 0.5},
		{packing, "memory", 16, 1e9, 0.5}, {packing, "sequences", 1, 1024, 0.5}, {packing, "length", 1, 1024, 0.5},
		{group(""), "pending_timeout", 0, 1e9, 0.5}, {group("preemption"), "preemption_min_runtime", 0, 1e9, 0.5},
		{group("preemption"), "preemptible_priority", 0, 100, 0.5}, {group("backfill"), "passed_over_seconds", 0, 1e9, 0.5},
		{group("backfill"), "reservations", 0, 16, 0.5},
	} {
		for _, good := range []float64{c.low, c.high} {
			require.NoError(t, c.parse(c.name, good), "%s %v", c.name, good)
		}
		for _, bad := range []float64{c.low - c.step, c.high + c.step} {
			err := c.parse(c.name, bad)
			require.True(t, fault.Is(err, fault.Invalid), "%s %v: %v", c.name, bad, err)
		}
	}
}

// TestEveryFactOfADeviceIsTakenOver: the facts of an agent's only devices change one by one, and each is used.
func TestEveryFactOfADeviceIsTakenOver(t *testing.T) {
	t.Parallel()
	gpus := func(change func(i int, d *alloc.Device)) scheduler.Agent {
		a := scheduler.Agent{ID: "a", Architecture: "x86_64", Alive: true, Schedulable: true}
		for i := range 4 {
			d := alloc.Device{Slot: "cuda.device", ID: fmt.Sprintf("g%d", i), NUMA: i / 2, Model: "T4", Capacity: 1000, Healthy: true}
			if change != nil {
				change(i, &d)
			}
			a.Devices = append(a.Devices, d)
		}
		return a
	}
	s := job(1, 10, 0, cluster.Slots{"cuda.device": 2000})
	s.Kernels[0].Models = []string{"T4"}
	for name, c := range map[string]struct {
		change func(i int, d *alloc.Device)
		want   []string // devices; none: it does not start
	}{
		"nothing":  {nil, []string{"g0", "g1"}},
		"slot":     {func(_ int, d *alloc.Device) { d.Slot = "rocm.device" }, nil},
		"id":       {func(_ int, d *alloc.Device) { d.ID += "x" }, []string{"g0x", "g1x"}},
		"model":    {func(_ int, d *alloc.Device) { d.Model = "A100" }, nil},
		"capacity": {func(_ int, d *alloc.Device) { d.Capacity = 0 }, nil},
		"health":   {func(_ int, d *alloc.Device) { d.Healthy = false }, nil},
		"numa":     {func(i int, d *alloc.Device) { d.NUMA = 5 + i%2 }, []string{"g0", "g2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{})
			x.SetAgent("g", gpus(nil))
			require.Empty(t, pass(t, x, now))
			x.SetAgent("g", gpus(c.change))
			d := x.Probe("g", now, s)
			if c.want == nil {
				require.NotNil(t, d.Hold)
				return
			}
			held := d.Placements[0].Allocation["cuda.device"]
			require.Equal(t, c.want, slices.Sorted(maps.Keys(held)))
		})
	}
}

// TestGroupsKeepTheirPolicyWhenAnotherIsRefused: a policy with a mistake changes nothing.
func TestGroupsKeepTheirPolicyWhenAnotherIsRefused(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Order: "lifo"}, "a")
	for _, bad := range []scheduler.Group{
		{Name: "g", Order: "coin"}, {Name: "g", Placement: "dice"}, {Name: "g", Preemption: scheduler.Preemption{Order: "shoe-size"}},
		{Name: "g", OrderOptions: map[string]any{"x": 1.0}}, {Name: "g", PlacementOptions: map[string]any{"x": 1.0}},
	} {
		require.True(t, fault.Is(c.SetGroup(bad), fault.Invalid))
	}
	c.Enqueue("g", job(1, 10, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 10, 0, ask(4, 1)))
	require.Equal(t, []string{"s02"}, started(pass(t, c, now.Add(time.Minute))))
}
