package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// TestWhatMakesAKind: two sessions that differ in one wish are decided by their own wishes, though they ask for the same.
func TestWhatMakesAKind(t *testing.T) {
	t.Parallel()
	b := []cluster.AgentID{"b"}
	starts := func(s scheduler.Session) cluster.AgentID {
		c := filled(t, scheduler.Group{}, "a")
		x := agent("b", 4, 8)
		x.Hung = []string{"v"}
		c.SetAgent("g", x)
		c.SetAgent("g", agent("c", 4, 8))
		c.Run("g", holding("a", cores(3))) // the fullest one is preferred
		d := c.Probe("g", now, s)
		if d.Hold != nil {
			return ""
		}
		return d.Placements[0].Agent
	}
	same := func(first, second func(s *scheduler.Session)) {
		alone := make([]cluster.AgentID, 2)
		c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{PassedOver: time.Hour}}, "a")
		x := agent("b", 4, 8)
		x.Hung = []string{"v"}
		c.SetAgent("g", x)
		c.SetAgent("g", agent("c", 4, 8))
		c.Run("g", holding("a", cores(3)))
		for i, change := range []func(s *scheduler.Session){first, second} {
			s := job(i, 10, 0, ask(1, 1))
			change(&s)
			alone[i] = starts(s)
			got := c.Probe("g", now, s)
			require.Equal(t, alone[i] == "", got.Hold != nil)
			if alone[i] != "" {
				require.Equal(t, alone[i], got.Placements[0].Agent)
			}
			s.StartsAt = now.Add(time.Hour) // its kind stays known
			c.Enqueue("g", s)
		}
		require.NotEqual(t, alone[0], alone[1])
	}
	plain := func(*scheduler.Session) {}
	designated := func(s *scheduler.Session) { s.Designated = b }
	failed := func(s *scheduler.Session) { s.Failed = []cluster.AgentID{"a"} }
	same(plain, designated)
	same(designated, func(s *scheduler.Session) { s.Failed = b })
	same(plain, failed)
	same(func(s *scheduler.Session) { s.Designated = b }, func(s *scheduler.Session) { s.Designated, s.Volumes = b, []string{"v"} })
	same(plain, func(s *scheduler.Session) { s.Kernels[0].Architecture = "aarch64" })
	same(plain, func(s *scheduler.Session) { s.Kernels[0].Slots = ask(2, 1) })
	same(plain, func(s *scheduler.Session) { s.Kernels = append(s.Kernels, s.Kernels[0]); s.SingleNode = true })
	same(func(s *scheduler.Session) { s.Kernels = append(s.Kernels, s.Kernels[0]) },
		func(s *scheduler.Session) { s.Kernels = append(s.Kernels, s.Kernels[0]); s.SingleNode = true })
}

// TestWhatRunsIsReplaced: facts of a running session that change what it holds, or for whom, are used.
func TestWhatRunsIsReplaced(t *testing.T) {
	t.Parallel()
	bob := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	build := func() (*scheduler.Cluster, scheduler.Running) {
		c := filled(t, scheduler.Group{}, "a", "b")
		c.SetQuota(bob, &scheduler.Quota{Sessions: 1, Private: 1})
		r := holding("a", cores(2))
		r.ID, r.Owner = "r", job(0, 0, 0).Owner
		second := scheduler.Placement{Kernel: "second", Agent: "a", Allocation: alloc.Allocation{cluster.SlotCPU: {"2": 1000, "3": 1000}}}
		r.Placements = append(r.Placements, second)
		c.Run("g", r)
		return c, r
	}
	ofBob := func(s *scheduler.Session) {}
	ofAda := func(s *scheduler.Session) { s.Owner = owned(0, "ada", nil).Owner }
	onA := func(s *scheduler.Session) { ofAda(s); s.Designated = []cluster.AgentID{"a"} }
	for name, c := range map[string]struct {
		change func(r *scheduler.Running)
		probe  func(s *scheduler.Session)
	}{
		"a kernel ended":    {func(r *scheduler.Running) { r.Placements = r.Placements[:1] }, onA},
		"it moved":          {func(r *scheduler.Running) { r.Placements[0].Agent = "b" }, onA},
		"it moved wholly":   {func(r *scheduler.Running) { r.Placements[0].Agent, r.Placements[1].Agent = "b", "b" }, onA},
		"it holds less":     {func(r *scheduler.Running) { r.Placements[1].Allocation = alloc.Allocation{} }, onA},
		"of another owner":  {func(r *scheduler.Running) { r.Owner = owned(0, "ada", nil).Owner }, ofBob},
		"private":           {func(r *scheduler.Running) { r.Private = true }, ofBob},
		"it has companions": {func(r *scheduler.Running) { r.Companions.Name = "c" }, nil},
	} {
		x, r := build()
		s := job(1, 10, 0, ask(1, 1))
		if c.probe == nil { // companions want to be near
			s.Companions = scheduler.Companions{Name: "c", Strict: true}
			ofAda(&s)
			require.NotNil(t, x.Probe("g", now, s).Placements, name)
		} else {
			c.probe(&s)
			require.NotNil(t, x.Probe("g", now, s).Hold, name)
		}
		r.Placements = append([]scheduler.Placement(nil), r.Placements...)
		c.change(&r)
		x.Run("g", r)
		require.Equal(t, c.probe == nil, x.Probe("g", now, s).Hold != nil, name)
	}
}

// TestALaneWaitsForItsTime: a session that waits for its start time is no part of a lane that empties.
func TestALaneWaitsForItsTime(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	later := job(2, 10, 0, ask(1, 1))
	later.StartsAt = now.Add(10 * time.Minute)
	c.Enqueue("g", later)
	c.Enqueue("g", job(1, 10, 0, ask(1, 1)))
	c.Remove("s01")
	r, err := c.Pass("g", now, scheduler.Work{})
	require.NoError(t, err)
	require.Empty(t, r.Decisions)
	require.Equal(t, later.StartsAt, r.Wake)
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForStartTime: 1}, c.Queue("g").Reasons)
	require.Equal(t, []string{"s02"}, started(pass(t, c, now.Add(10*time.Minute))))
	require.Empty(t, pass(t, c, now.Add(20*time.Minute)))
}

// TestAFailedGangTakesNoTurn: with round-robin, who comes after a gang that did not fit goes to the agent that is next.
func TestAFailedGangTakesNoTurn(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Placement: "round-robin", Backfill: scheduler.Backfill{PassedOver: time.Hour}}, "a", "b", "c")
	c.Run("g", holding("b", cores(4)))
	c.Run("g", holding("c", cores(4)))
	gang := job(1, 10, 0, ask(3, 1), ask(3, 1))
	c.Enqueue("g", gang)
	require.Empty(t, pass(t, c, now))
	c.Remove("on-b")
	c.Run("g", holding("b", cores(2)))
	c.Enqueue("g", job(2, 10, 0, ask(1, 1)))
	got := pass(t, c, now)
	require.Len(t, got, 1)
	require.Equal(t, cluster.AgentID("a"), got[0].Placements[0].Agent)
	d := c.Probe("g", now, job(3, 10, 0, ask(1, 1)))
	require.Equal(t, cluster.AgentID("b"), d.Placements[0].Agent)
	require.Equal(t, d, c.Probe("g", now, job(3, 10, 0, ask(1, 1))), "a probe takes no turn")
}

// TestVictimsThatAreNotNeededAreSpared: victims are taken in order, and those that need not end stay.
func TestVictimsThatAreNotNeededAreSpared(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "a")
	small, large := preemptible("small", "a", 0, 0, 1), preemptible("large", "a", 0, 1, 3)
	small.StartedAt = now.Add(time.Minute) // the newest goes first
	c.Run("g", small)
	c.Run("g", large)
	c.Enqueue("g", job(1, 50, 0, ask(3, 1)))
	got := pass(t, c, now.Add(time.Hour))
	require.Len(t, got, 1)
	require.Equal(t, []cluster.SessionID{"large"}, got[0].Preempt)
}

// TestAClaimGoesWhenItsSessionStartsElsewhere: what was to end may be a victim of another session then.
func TestAClaimGoesWhenItsSessionStartsElsewhere(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "a", "b")
	c.Run("g", preemptible("low", "a", 0, 0, 4))
	c.Run("g", holding("b", cores(4)))
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	require.Equal(t, []cluster.SessionID{"low"}, pass(t, c, now)[0].Preempt)
	c.Remove("on-b")
	c.Enqueue("g", job(2, 50, 0, ask(4, 2)))
	got := pass(t, c, now)
	require.Equal(t, []string{"s01"}, started(got))
	require.Len(t, got, 2)
	require.Equal(t, cluster.SessionID("s02"), got[1].Session)
	require.Equal(t, []cluster.SessionID{"low"}, got[1].Preempt)
}

// TestCapacityFollowsTheAgents: dominant shares count the agents that are there.
func TestCapacityFollowsTheAgents(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		c := filled(t, scheduler.Group{Order: "drf"}, "a")
		c.SetAgent("g", agent("b", 16, 0))
		hold := func(id cluster.SessionID, user string, held alloc.Allocation) {
			x := holding("a", held)
			x.ID, x.Owner = id, owned(0, user, nil).Owner
			c.Run("g", x)
		}
		hold("r1", "ada", cores(3))
		hold("r2", "bob", alloc.Allocation{cluster.SlotMem: {"root": cluster.Whole(4 << 30)}})
		require.Empty(t, pass(t, c, now))
		want := "s01" // ada holds 3 of 20 cores, bob half of the memory
		if removed {
			c.RemoveAgent("b")
			want = "s02" // ada holds 3 of 4 cores
		}
		for n, user := range []string{"ada", "bob"} {
			c.Enqueue("g", owned(n+1, user, cluster.Slots{cluster.SlotMem: cluster.Whole(4 << 30)}))
		}
		require.Equal(t, []string{want}, started(pass(t, c, now)), "removed: %v", removed)
	}
}

// TestWhatPlacementsPrefer: pack leaves least, by accelerators, then cores, then memory, after the fewest unused slots; spread leaves most.
// What an agent has left counts up to 524,287 accelerators and as many cores, up to 0.01 accelerators and 0.1 cores.
func TestWhatPlacementsPrefer(t *testing.T) {
	t.Parallel()
	node := func(id string, gpu, cpu cluster.Amount, gib int64) scheduler.Agent {
		a := scheduler.Agent{ID: cluster.AgentID(id), Architecture: "x86_64", Alive: true, Schedulable: true}
		for slot, v := range map[cluster.SlotName]cluster.Amount{
			cluster.SlotCPU: cpu, cluster.SlotMem: cluster.Whole(gib << 30), "cuda.shares": gpu,
		} {
			if v > 0 {
				a.Devices = append(a.Devices, alloc.Device{Slot: slot, ID: "0", NUMA: -1, Capacity: v, Healthy: true})
			}
		}
		return a
	}
	asks := func(gpu, cpu cluster.Amount) cluster.Slots {
		return cluster.Slots{"cuda.shares": gpu, cluster.SlotCPU: cpu, cluster.SlotMem: cluster.Whole(1 << 30)}
	}
	mem := asks(0, 0)
	for name, c := range map[string]struct {
		asks         cluster.Slots
		a, b         scheduler.Agent
		pack, spread cluster.AgentID
	}{
		"accelerators before cores":  {mem, node("a", 1010, 8000, 16), node("b", 1000, 4000000, 16), "b", "a"},
		"accelerators before memory": {mem, node("a", 1010, 8000, 16), node("b", 1000, 8000, 8000), "b", "a"},
		"cores before memory":        {mem, node("a", 1000, 9000, 16), node("b", 1000, 8000, 8000), "b", "a"},
		"memory":                     {mem, node("a", 1000, 8000, 17), node("b", 1000, 8000, 16), "b", "a"},
		"equal":                      {mem, node("a", 1000, 8000, 16), node("b", 1000, 8000, 16), "a", "a"},
		"unused slots":               {mem, node("a", 10, 8000, 16), node("b", 0, 4000000, 8000), "b", "b"},

		"tenths of a core":         {mem, node("a", 1000, 10200, 16), node("b", 1000, 10100, 17), "b", "a"},
		"hundredths":               {mem, node("a", 1110, 8000, 16), node("b", 1100, 9000, 16), "b", "a"},
		"unused before fullest":    {asks(10, 0), node("a", 5_000_000, 0, 16), node("b", 20, 8000, 16), "a", "a"},
		"unused before emptiest":   {asks(10, 0), node("a", 20, 0, 16), node("b", 5_000_000, 8000, 16), "a", "a"},
		"very many cores":          {mem, node("a", 1000, 52_428_700, 16), node("b", 1000, 52_428_600, 17), "b", "a"},
		"more than are counted":    {mem, node("a", 1000, 60_000_000, 17), node("b", 1000, 70_000_000, 16), "b", "a"},
		"cores stay cores":         {mem, node("a", 1010, 50, 16), node("b", 1000, 70_000_000, 17), "b", "a"},
		"memory stays memory":      {mem, node("a", 1000, 8100, 1), node("b", 1000, 8000, 99999), "b", "a"},
		"very many accelerators":   {mem, node("a", 5_242_870, 8000, 16), node("b", 5_242_860, 9000, 16), "b", "a"},
		"too many accelerators":    {mem, node("a", 6_000_000, 9000, 16), node("b", 7_000_000, 8000, 16), "b", "a"},
		"less what it takes":       {asks(1_000_000, 0), node("a", 6_242_870, 8000, 16), node("b", 6_242_860, 9000, 16), "b", "a"},
		"less the cores it takes":  {asks(0, 9_000_000), node("a", 0, 61_428_700, 16), node("b", 0, 61_428_600, 17), "b", "a"},
		"less the memory it takes": {asks(0, 1000), node("a", 0, 8000, 16385), node("b", 0, 8000, 16384), "b", "a"},
	} {
		for placement, want := range map[string]cluster.AgentID{"pack": c.pack, "spread": c.spread, "round-robin": "a"} {
			x := filled(t, scheduler.Group{
				Placement: placement, Rules: map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible},
			})
			x.SetAgent("g", c.b)
			x.SetAgent("g", c.a)
			d := x.Probe("g", now, job(1, 10, 0, c.asks))
			require.NotEmpty(t, d.Placements, name)
			require.Equal(t, want, d.Placements[0].Agent, "%s: %s", placement, name)
		}
	}
}

// TestUnusedSlotsCountUpToSeven: agents with seven unused slots and with more are told apart by what is left only.
func TestUnusedSlotsCountUpToSeven(t *testing.T) {
	t.Parallel()
	node := func(id string, slots, cpu int) scheduler.Agent {
		a := agent(id, cpu, 8)
		for i := range slots {
			n := 1
			if i == 0 {
				n = 9 - slots // nine accelerators in all
			}
			a = withGPUs(a, cluster.SlotName(fmt.Sprintf("x%d.device", i)), n)
		}
		return a
	}
	for _, c := range []struct {
		a, b         scheduler.Agent
		pack, spread cluster.AgentID
	}{
		{node("a", 8, 8), node("b", 7, 4), "b", "a"},
		{node("a", 7, 8), node("b", 8, 4), "b", "a"},
		{node("a", 7, 4), node("b", 6, 8), "b", "b"},
		{node("a", 6, 4), node("b", 7, 8), "a", "a"},
	} {
		for placement, want := range map[string]cluster.AgentID{"pack": c.pack, "spread": c.spread} {
			x := filled(t, scheduler.Group{Placement: placement})
			x.SetAgent("g", c.a)
			x.SetAgent("g", c.b)
			d := x.Probe("g", now, job(1, 10, 0, ask(1, 1)))
			require.Equal(t, want, d.Placements[0].Agent, "%s: %v", placement, c)
		}
	}
}

// TestOddNamesMakeNoOtherKind: whatever the names of models and images are, they are not taken for what another session asks for.
func TestOddNamesMakeNoOtherKind(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Rules: map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}}, "a")
	of := func(first, second scheduler.Kernel) scheduler.Session {
		s := job(1, 10, 0)
		first.ID, second.ID = "k0", "k1"
		s.Kernels = []scheduler.Kernel{first, second}
		return s
	}
	later := of(scheduler.Kernel{Slots: cluster.Slots{cluster.SlotCPU: 128}}, scheduler.Kernel{Image: "\x00\x00"})
	later.StartsAt = now.Add(time.Hour)
	c.Enqueue("g", later)
	odd := of(scheduler.Kernel{Slots: cluster.Slots{cluster.SlotCPU: 1}, Models: []string{"\x00\x80"}}, scheduler.Kernel{})
	odd.ID = "odd"
	d := c.Probe("g", now, odd)
	require.Len(t, d.Placements, 2)
	require.Equal(t, cluster.Amount(1), d.Placements[0].Allocation.Totals()[cluster.SlotCPU])
}

// TestPropertiesAreToldApart: two sessions that differ in which of two properties they have are of two kinds.
func TestPropertiesAreToldApart(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}, &scheduler.Quota{Sessions: -1, Private: 0})
	for n, set := range []func(s *scheduler.Session){
		func(s *scheduler.Session) { s.SingleNode = true }, func(s *scheduler.Session) { s.Preemptible = true },
		func(s *scheduler.Session) { s.Private = true },
	} {
		s := job(n, 10, 0, ask(1, 1))
		set(&s)
		require.Equal(t, s.Private, c.Probe("g", now, s).Hold != nil, n)
		s.StartsAt = now.Add(time.Hour) // its kind stays known
		c.Enqueue("g", s)
	}
}

// TestTheNewHeadOfALaneIsSeen: an older session that joins its owner's lane goes before the others of its kind.
func TestTheNewHeadOfALaneIsSeen(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	require.Empty(t, pass(t, c, now))
	c.Enqueue("g", owned(5, "ada", ask(1, 1)))
	c.Enqueue("g", owned(3, "bob", ask(1, 1)))
	c.Enqueue("g", owned(1, "ada", ask(1, 1)))
	require.Equal(t, []string{"s01", "s03", "s05"}, started(pass(t, c, now.Add(time.Hour))))
}

// TestWhyCompanionsWait: a session that no agent suits because of its companions is told so.
func TestWhyCompanionsWait(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	for n := range 2 {
		s := job(n, 10, 0, cluster.Slots{})
		s.Companions = scheduler.Companions{Name: "c", Apart: true, Strict: true}
		c.Enqueue("g", s)
	}
	require.Equal(t, []string{"s00"}, started(pass(t, c, now)))
	e, _ := c.Explain("s01")
	require.Equal(t, scheduler.WaitsForCapacity, e.Reason)
	require.Equal(t, "it asks for nothing, and no agent is left that suits its companions", e.Text)
	require.Equal(t, map[string]int{"companions": 1}, e.Rejected)
}

// TestTheOnlyKernelHoldsLess: what its only kernel does not hold any more is there for others.
func TestTheOnlyKernelHoldsLess(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.Run("g", holding("a", cores(4)))
	c.Enqueue("g", job(1, 10, 0, ask(2, 1)))
	require.Empty(t, pass(t, c, now))
	c.Run("g", holding("a", cores(2)))
	require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
}
