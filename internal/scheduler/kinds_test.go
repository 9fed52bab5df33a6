package scheduler_test

import (
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
	for name, c := range map[string]struct {
		a, b         scheduler.Agent
		pack, spread cluster.AgentID
	}{
		"accelerators before cores":  {node("a", 1010, 8000, 16), node("b", 1000, 4000000, 16), "b", "a"},
		"accelerators before memory": {node("a", 1010, 8000, 16), node("b", 1000, 8000, 8000), "b", "a"},
		"cores before memory":        {node("a", 1000, 9000, 16), node("b", 1000, 8000, 8000), "b", "a"},
		"memory":                     {node("a", 1000, 8000, 17), node("b", 1000, 8000, 16), "b", "a"},
		"equal":                      {node("a", 1000, 8000, 16), node("b", 1000, 8000, 16), "a", "a"},
		"unused slots":               {node("a", 10, 8000, 16), node("b", 0, 4000000, 8000), "b", "b"},
	} {
		for placement, want := range map[string]cluster.AgentID{"pack": c.pack, "spread": c.spread, "round-robin": "a"} {
			x := filled(t, scheduler.Group{Placement: placement})
			x.SetAgent("g", c.b)
			x.SetAgent("g", c.a)
			d := x.Probe("g", now, job(1, 10, 0, cluster.Slots{cluster.SlotMem: cluster.Whole(1 << 30)}))
			require.Equal(t, want, d.Placements[0].Agent, "%s: %s", placement, name)
		}
	}
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
