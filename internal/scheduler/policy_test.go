package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

// owned is a session of a user with one kernel.
func owned(n int, user string, slots cluster.Slots) scheduler.Session {
	s := session(n, slots)
	s.Owner = scheduler.Owner{AccessKey: cluster.AccessKey(user), User: cluster.UserID(user), Project: "p", Domain: "d"}
	return s
}

// filled is a cluster of one group with agents of 4 cores.
func filled(t require.TestingT, g scheduler.Group, agents ...string) *scheduler.Cluster {
	c := scheduler.NewCluster()
	g.Name = "g"
	require.NoError(t, c.SetGroup(g))
	for _, id := range agents {
		c.SetAgent("g", agent(id, 4, 8))
	}
	return c
}

func pass(t require.TestingT, c *scheduler.Cluster, at time.Time) []scheduler.Decision {
	r, err := c.Pass("g", at, scheduler.Work{})
	require.NoError(t, err)
	return r.Decisions
}

func started(decisions []scheduler.Decision) []string {
	var out []string
	for _, d := range decisions {
		if d.Hold == nil {
			out = append(out, string(d.Session))
		}
	}
	return out
}

func TestDominantShareIsUpdatedWhilePlacing(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Order: "drf"}, "a")
	for i := range 4 {
		c.Enqueue("g", owned(i, "ada", ask(1, 1)))
	}
	c.Enqueue("g", owned(8, "bob", ask(1, 1)))
	c.Enqueue("g", owned(9, "bob", ask(1, 1)))
	require.Equal(t, []string{"s00", "s08", "s01", "s09"}, started(pass(t, c, now.Add(time.Hour))))
}

func TestFairShareAndAgeing(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Order: "fair-share", OrderOptions: map[string]any{"half_life_days": 7.0}}, "a")
	c.SetShare("g", scheduler.Scope{Kind: scheduler.ScopeUser, ID: "ada"}, 0.5)
	c.Enqueue("g", owned(0, "ada", ask(4, 1)))
	c.Enqueue("g", owned(1, "bob", ask(4, 1)))
	require.Equal(t, []string{"s01"}, started(pass(t, c, now.Add(time.Hour))), "who never used anything goes first")

	c = filled(t, scheduler.Group{OrderOptions: map[string]any{"ageing_seconds": 60.0}}, "a")
	old, urgent := owned(0, "ada", ask(4, 1)), owned(1, "bob", ask(4, 1))
	old.Priority, urgent.Priority = 10, 20
	urgent.EnqueuedAt = now.Add(30 * time.Minute)
	c.Enqueue("g", old)
	c.Enqueue("g", urgent)
	require.Equal(t, []string{"s00"}, started(pass(t, c, now.Add(31*time.Minute))), "waiting raises")
}

func TestParseGroup(t *testing.T) {
	t.Parallel()
	g, err := scheduler.ParseGroup("g", "drf", map[string]any{
		"agent_selection_strategy": "dispersed", "pending_timeout": 60.0, "allow_fractional_resource_fragmentation": false,
		"allowed_session_types": []any{"batch"}, "config": map[string]any{"ageing_seconds": 5.0},
		"preemption": map[string]any{"enabled": true, "mode": "reschedule", "preemption_min_runtime": 30.0, "victim_scope": "domain"},
		"backfill":   map[string]any{"passed_over_seconds": 9.0},
	})
	require.NoError(t, err)
	require.Equal(t, "spread", g.Placement)
	require.True(t, g.WholeDevices && g.Preemption.Enabled && g.Preemption.Reschedule)
	require.Equal(
		t,
		[]time.Duration{time.Minute, 30 * time.Second, 9 * time.Second},
		[]time.Duration{g.PendingTimeout, g.Preemption.MinRuntime, g.Backfill.PassedOver},
	)
	for name, opts := range map[string]map[string]any{
		"coin":  nil,
		"fifo":  {"config": map[string]any{"half_life": 7.0}},
		"lifo":  {"config": map[string]any{"ageing_seconds": 7.0}},
		"drf":   {"agent_selection_strategy": "dice"},
		"":      {"unknown": 1.0},
		"fifo ": nil,
	} {
		_, err := scheduler.ParseGroup("g", name, opts)
		require.True(t, fault.Is(err, fault.Invalid), "%s %v: %v", name, opts, err)
	}
	// Options of other orders stay where clients leave them, and mean nothing.
	g, err = scheduler.ParseGroup("g", "fifo", map[string]any{"config": map[string]any{"half_life_days": 7.0, "num_retries_to_skip": 0.0}})
	require.NoError(t, err)
	require.Empty(t, g.OrderOptions)
	_, err = scheduler.ParseGroup("g", "fifo", scheduler.DefaultOptions())
	require.NoError(t, err, "what is answered is taken again")
	for _, bad := range []map[string]any{
		{"preemption": map[string]any{"order": "shoe-size"}}, {"pending_timeout": -1.0}, {"pending_timeout": "soon"},
		{"agent_selector_config": map[string]any{"x": 1.0}}, {"backfill": map[string]any{"reservations": 99.0}},
	} {
		_, err := scheduler.ParseGroup("g", "fifo", bad)
		require.True(t, fault.Is(err, fault.Invalid), "%v", bad)
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Placement: "round-robin"}, "a", "b", "c")
	for i := range 5 {
		c.Enqueue("g", owned(i, "ada", ask(1, 1)))
	}
	var got []cluster.AgentID
	for _, d := range pass(t, c, now.Add(time.Hour)) {
		got = append(got, d.Placements[0].Agent)
	}
	require.Equal(t, []cluster.AgentID{"a", "b", "c", "a", "b"}, got)
}

func TestQuotasHoldAndNameTheOwner(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "ada"}
	c.SetQuota(
		user,
		&scheduler.Quota{Name: "ada@example.org", Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}, Sessions: 2, Private: 0},
	)
	c.Enqueue("g", owned(0, "ada", ask(1, 1)))
	c.Enqueue("g", owned(1, "ada", ask(2, 1)))
	c.Enqueue("g", owned(2, "bob", ask(1, 1)))
	private := owned(3, "ada", ask(1, 1))
	private.Private = true
	c.Enqueue("g", private)
	require.Equal(t, []string{"s00", "s02"}, started(pass(t, c, now.Add(time.Hour))), "who is over a quota does not block others")
	e, _ := c.Explain("s01")
	require.Equal(t, scheduler.WaitsForQuota, e.Reason)
	require.Equal(t, "user ada@example.org uses 1 cpu of its quota of 2 cpu, and it asks for 2 cpu", e.Text)
	require.Equal(t, "ask for 1 cpu at most", e.Remedies[0])
	e, _ = c.Explain("s03")
	require.Equal(t, scheduler.WaitsForConcurrency, e.Reason)
	require.Contains(t, e.Text, "0 live private sessions, the limit is 0")

	c.SetQuota(user, &scheduler.Quota{Sessions: 1, Private: 1})
	require.Equal(t, []string{"s03"}, started(pass(t, c, now.Add(time.Hour))), "private sessions count apart")
	e, _ = c.Explain("s01")
	require.Equal(t, scheduler.WaitsForConcurrency, e.Reason)
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForConcurrency: 1}, c.Queue("g").Reasons)
	c.Remove("s00")
	require.Empty(t, started(pass(t, c, now.Add(time.Hour)))[1:], "its place is free again")
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "other"}))
	c.SetAgent("other", agent("b", 4, 8))
	c.Enqueue("other", owned(4, "ada", ask(1, 1)))
	r, err := c.Pass("other", now.Add(time.Hour), scheduler.Work{})
	require.NoError(t, err)
	require.Empty(t, r.Decisions, "what is used in other groups counts")
}

func TestExplainTellsWhatWouldHelp(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "rg-b"}))
	c.SetAgent("rg-b", agent("b", 8, 8))
	long := owned(0, "ada", ask(3, 1))
	long.Name, long.Lifetime = "train", time.Hour
	c.Enqueue("g", long)
	pass(t, c, now)
	c.Enqueue("g", owned(1, "ada", ask(4, 1)))
	c.Enqueue("g", owned(2, "bob", ask(9, 1)))
	pass(t, c, now.Add(time.Minute))
	e, ok := c.Explain("s01")
	require.True(t, ok)
	require.Equal(t, scheduler.WaitsForCapacity, e.Reason)
	require.Equal(t, now.Add(time.Hour), e.Estimate)
	require.Equal(t, []string{"ask for 1 cpu at most", "wait for session train on agent a to end, by 2026-11-21 13:00:00 UTC"}, e.Remedies)
	require.Equal(t, []string{"rg-b"}, e.Elsewhere)
	e, _ = c.Explain("s02")
	require.Equal(t, scheduler.TooBig, e.Reason)
	require.Equal(t, 2, e.Position)

	off := agent("a", 4, 8)
	off.Schedulable = false
	c.SetAgent("g", off)
	pass(t, c, now.Add(time.Minute))
	e, _ = c.Explain("s01")
	require.Equal(t, scheduler.WaitsForAgent, e.Reason)
	require.Equal(t, "no agent can take it: of 1 agents, 1 excluded from scheduling", e.Text)
	require.Contains(t, e.Remedies, "ask an administrator to allow scheduling on one of 1 excluded agents")

	d := c.Probe("rg-b", now, owned(7, "ada", ask(2, 1)))
	require.Nil(t, d.Hold)
	require.Equal(t, cluster.AgentID("b"), d.Placements[0].Agent)
	require.Equal(t, d, c.Probe("rg-b", now, owned(7, "ada", ask(2, 1))), "a probe changes nothing")
	require.NotNil(t, c.Probe("rg-b", now, owned(7, "ada", ask(20, 1))).Hold)
	require.Zero(t, c.Queue("rg-b").Pending)
}

func TestCompanions(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a", "b")
	for i := range 3 {
		s := owned(i, "ada", ask(1, 1))
		s.Companions = scheduler.Companions{Name: "replicas", Apart: true, Strict: true}
		c.Enqueue("g", s)
	}
	got := pass(t, c, now.Add(time.Hour))
	require.Equal(t, []string{"s00", "s01"}, started(got))
	require.NotEqual(t, got[0].Placements[0].Agent, got[1].Placements[0].Agent)
	e, _ := c.Explain("s02")
	require.Contains(t, e.Text, "companions")
	c.Remove("s00")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now.Add(time.Hour))))
}

func TestModelsRestrictAccelerators(t *testing.T) {
	t.Parallel()
	c := scheduler.NewCluster()
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "g"}))
	for id, model := range map[string]string{"a": "T4", "b": "A100"} {
		a := agent(id, 4, 8)
		a.Devices = append(a.Devices, alloc.Device{Slot: "cuda.device", ID: "0", Model: model, Capacity: 1000, Healthy: true})
		c.SetAgent("g", a)
	}
	s := owned(0, "ada", cluster.Slots{"cuda.device": 1000})
	s.Kernels[0].Models = []string{"A100", "H100"}
	c.Enqueue("g", s)
	s = owned(1, "ada", cluster.Slots{"cuda.device": 1000})
	s.Kernels[0].Models = []string{"H100"}
	c.Enqueue("g", s)
	got := pass(t, c, now.Add(time.Hour))
	require.Len(t, got, 1)
	require.Equal(t, cluster.AgentID("b"), got[0].Placements[0].Agent)
	e, _ := c.Explain("s01")
	require.Equal(t, scheduler.TooBig, e.Reason)
}

func preempting(scope string) scheduler.Group {
	return scheduler.Group{Preemption: scheduler.Preemption{Enabled: true, VictimScope: scope, MinRuntime: time.Minute}}
}

func TestPreemption(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a", "b")
	for i := range 4 {
		s := owned(i, "ada", ask(2, 1))
		s.Preemptible, s.Priority = true, 1
		c.Enqueue("g", s)
	}
	require.Len(t, started(pass(t, c, now.Add(time.Hour))), 4)
	urgent := owned(9, "ada", ask(3, 1))
	urgent.Priority = 50
	c.Enqueue("g", urgent)
	r, err := c.Pass("g", now.Add(time.Hour), scheduler.Work{})
	require.NoError(t, err)
	require.Empty(t, r.Decisions, "all are too young")
	require.Equal(t, now.Add(time.Hour+time.Minute), r.Wake)

	later := now.Add(2 * time.Hour)
	got := pass(t, c, later)
	require.Len(t, got, 1)
	require.Len(t, got[0].Preempt, 2)
	require.Equal(t, scheduler.WaitsForVictims, got[0].Hold.Reason)
	require.Empty(t, pass(t, c, later), "no second set is asked for")
	e, _ := c.Explain("s09")
	require.Equal(t, scheduler.WaitsForVictims, e.Reason)

	c.Remove(got[0].Preempt[0])
	c.Enqueue("g", owned(5, "bob", ask(2, 1)))
	require.Empty(t, pass(t, c, later), "the place is kept")
	c.Remove(got[0].Preempt[1])
	require.Equal(t, []string{"s09"}, started(pass(t, c, later)))

	bob := owned(8, "bob", ask(3, 1))
	bob.Priority = 50
	c.Enqueue("g", bob)
	require.Empty(t, pass(t, c, later.Add(time.Hour)), "only sessions of the same user")
}

// TestPreemptionIsNeverPartial: victims are of lower priority, preemptible and old enough; when all
// have gone their session starts, and it would not if one had stayed.
func TestPreemptionIsNeverPartial(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := preempting("resource-group")
		g.Preemption.Order = rapid.SampledFrom([]string{"newest", "oldest", "fewest-sessions", "smallest-resources"}).Draw(t, "order")
		c := filled(t, g, "a", "b", "c")
		low := map[cluster.SessionID]scheduler.Session{}
		for i := range rapid.IntRange(3, 10).Draw(t, "running") {
			s := owned(i, "ada", ask(rapid.Int64Range(1, 3).Draw(t, "cpu"), 1))
			s.Priority, s.Preemptible = rapid.IntRange(0, 60).Draw(t, "priority"), rapid.IntRange(0, 3).Draw(t, "preemptible") > 0
			low[s.ID] = s
			c.Enqueue("g", s)
		}
		pass(t, c, now.Add(time.Hour))
		urgent := owned(50, "bob", ask(rapid.Int64Range(2, 4).Draw(t, "cpu"), 1))
		urgent.Priority = 50
		if rapid.Bool().Draw(t, "gang") {
			k := urgent.Kernels[0]
			k.ID = "second"
			urgent.Kernels = append(urgent.Kernels, k)
		}
		c.Enqueue("g", urgent)
		at := now.Add(3 * time.Hour)
		for _, d := range pass(t, c, at) {
			if d.Session != urgent.ID || d.Hold == nil {
				continue
			}
			require.NotEmpty(t, d.Preempt)
			for _, id := range d.Preempt {
				require.True(t, low[id].Preemptible && low[id].Priority < 50)
			}
			for i, id := range d.Preempt {
				require.NotContains(t, started(pass(t, c, at)), "s50", "one victim still runs (%d of %d)", i, len(d.Preempt))
				c.Remove(id)
			}
			require.Contains(t, started(pass(t, c, at)), "s50")
		}
	})
}

// TestNoStarvation: a session that asks for a whole agent is blocked, and small ones keep coming
// for ever. It starts when what ran at its arrival, and what could overtake it in the window, has ended.
func TestNoStarvation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		known := rapid.Bool().Draw(t, "known")
		window := time.Duration(rapid.IntRange(0, 20).Draw(t, "window")) * time.Minute
		c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{PassedOver: window}}, "a", "b")
		ends := map[cluster.SessionID]time.Time{}
		n, longest := 0, 30
		arrive := func() {
			s := owned(n, fmt.Sprintf("u%d", n%3), ask(rapid.Int64Range(1, 2).Draw(t, "cpu"), 1))
			s.ID, s.EnqueuedAt = cluster.SessionID(fmt.Sprintf("n%04d", n)), now.Add(time.Duration(n)*time.Second)
			if known {
				s.Lifetime = time.Duration(rapid.IntRange(1, longest).Draw(t, "life")) * time.Minute
			}
			n++
			c.Enqueue("g", s)
		}
		start := func(at time.Time) (big bool) {
			for _, d := range pass(t, c, at) {
				if d.Session == "s00" {
					return true
				}
				ends[d.Session] = at.Add(time.Duration(longest) * time.Minute)
			}
			return false
		}
		for range 8 {
			arrive()
		}
		start(now)
		whole := owned(0, "big", ask(4, 1))
		whole.EnqueuedAt = now
		c.Enqueue("g", whole)
		bound := window + time.Duration(longest)*time.Minute + 2*time.Minute
		for minute := time.Duration(0); minute <= bound; minute += time.Minute {
			at := now.Add(minute)
			for id, end := range ends {
				if !end.After(at) {
					c.Remove(id)
					delete(ends, id)
				}
			}
			arrive()
			if start(at) {
				return
			}
		}
		t.Fatalf("the large session did not start within %s", bound)
	})
}

// TestBoundedPasses: bounds on work cut a pass into several, and nothing is left over at the end.
func TestBoundedPasses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, policies(t))
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			w.change()
		}
		work := scheduler.Work{Placements: rapid.IntRange(1, 3).Draw(t, "placements"), Steps: rapid.IntRange(0, 20).Draw(t, "steps")}
		for i := 0; ; i++ {
			r, err := w.c.Pass("g", w.s.Now, work)
			require.NoError(t, err)
			require.LessOrEqual(t, len(r.Decisions), work.Placements)
			w.start(r.Decisions)
			checkRoom(t, w, r.Decisions)
			if !r.More {
				break
			}
			require.Less(t, i, 1000, "passes make progress")
		}
		require.Empty(t, pass(t, w.c, w.s.Now))
	})
}
