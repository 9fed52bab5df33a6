package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// Small tables on the rules of docs/scheduling.md.

// preemptible is a running session of bob that may end for others.
func preemptible(id cluster.SessionID, on cluster.AgentID, priority, from, n int) scheduler.Running {
	held := cores(from + n)
	for i := range from {
		delete(held[cluster.SlotCPU], string(rune('0'+i)))
	}
	x := holding(on, held)
	x.ID, x.Priority, x.Preemptible, x.Owner = id, priority, true, job(0, 0, 0).Owner
	return x
}

func TestTheCheapestVictimsAreTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order   string
		running []scheduler.Running
		want    []cluster.SessionID
	}{
		"lowest highest priority before fewest": {"", []scheduler.Running{
			preemptible("a1", "a", 20, 0, 4), preemptible("b1", "b", 10, 0, 2), preemptible("b2", "b", 10, 2, 2),
		}, []cluster.SessionID{"b1", "b2"}},
		"the highest of several counts": {"", []scheduler.Running{
			preemptible("a1", "a", 0, 0, 2), preemptible("a2", "a", 20, 2, 2), preemptible("b1", "b", 10, 0, 4),
		}, []cluster.SessionID{"b1"}},
		"fewest": {"", []scheduler.Running{
			preemptible("a1", "a", 10, 0, 2), preemptible("a2", "a", 10, 2, 2), preemptible("b1", "b", 10, 0, 4),
		}, []cluster.SessionID{"b1"}},
		"smallest in sum": {"smallest-resources", []scheduler.Running{
			preemptible("a1", "a", 10, 0, 4), preemptible("b1", "b", 10, 0, 1), preemptible("b2", "b", 10, 1, 1),
		}, []cluster.SessionID{"b1", "b2"}},
		"priority before size": {"smallest-resources", []scheduler.Running{
			preemptible("a1", "a", 20, 0, 2), preemptible("b1", "b", 10, 0, 4),
		}, []cluster.SessionID{"b1"}},
		"the first by id of equal ones": {"", []scheduler.Running{
			preemptible("b1", "b", 10, 0, 4), preemptible("a1", "a", 10, 0, 4),
		}, []cluster.SessionID{"a1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c2 := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true, Order: c.order}}, "a", "b")
			for _, x := range c.running {
				c2.Run("g", x)
			}
			asked := job(1, 50, 0, ask(4, 0))
			got := pass(t, c2, now.Add(time.Hour))
			require.Empty(t, got)
			c2.Enqueue("g", asked)
			got = pass(t, c2, now.Add(time.Hour))
			require.Len(t, got, 1)
			require.ElementsMatch(t, c.want, got[0].Preempt)
			text := map[int]string{
				1: "a running session of lower priority ends to make room for it, on agent ",
				2: "2 running sessions of lower priority end to make room for it, on agent ",
			}[len(c.want)]
			require.Equal(t, text+string(c.want[0][:1]), got[0].Hold.Text)
		})
	}
}

// TestAClaimLetsNobodyIn: beside victims that still run, free room of a claim is used by nobody, however many claims there are.
func TestAClaimLetsNobodyIn(t *testing.T) {
	t.Parallel()
	g := scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}, Backfill: scheduler.Backfill{PassedOver: time.Hour}}
	c := filled(t, g, "a", "b")
	c.Run("g", preemptible("a1", "a", 0, 0, 2))
	c.Run("g", preemptible("b1", "b", 0, 0, 2))
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	require.Len(t, pass(t, c, now), 2)
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForVictims: 2}, c.Queue("g").Reasons)
	c.Enqueue("g", job(3, 10, time.Minute, ask(1, 1)))
	c.Enqueue("g", job(4, 10, 0, ask(1, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s03")
	require.Equal(t, scheduler.WaitsBehind, e.Reason)
	require.Equal(t, map[string]int{"reserved": 2}, e.Rejected)
	c.Enqueue("g", job(5, 60, time.Minute, ask(1, 1)))
	require.Equal(t, []string{"s05"}, started(pass(t, c, now)), "whoever comes before them may")
	c.Remove("s05")
	c.Remove("a1")
	require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
	c.Remove("b1")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}

// TestALaneThatComesBackFollowsShares: a kind that an owner left and came back to is ordered by the owner's share again.
func TestALaneThatComesBackFollowsShares(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Order: "drf"}, "a")
	c.Enqueue("g", owned(1, "ada", ask(1, 1)))
	c.Enqueue("g", owned(0, "ada", ask(2, 1)))
	c.Enqueue("g", owned(3, "bob", ask(1, 1)))
	c.Remove("s01")
	c.Enqueue("g", owned(2, "ada", ask(1, 1)))
	require.Equal(t, []string{"s00", "s03", "s02"}, started(pass(t, c, now.Add(time.Hour))))
}

// TestALimitedSessionThatLeaves: when a limit is lifted, only those are tried that still wait for it.
func TestALimitedSessionThatLeaves(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	c.SetQuota(user, &scheduler.Quota{Sessions: 0, Private: -1})
	for n := range 3 {
		c.Enqueue("g", job(n, 10, 0, ask(1, int64(n+1))))
	}
	require.Empty(t, pass(t, c, now))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForConcurrency: 3}, c.Queue("g").Reasons)
	c.Remove("s00")
	c.Remove("s02")
	c.SetQuota(user, nil)
	require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
	require.Empty(t, c.Queue("g").Reasons)
}

// TestTheQueueSaysWhoWasNotConsidered: a pass that is cut short leaves sessions that were not looked at since something changed.
func TestTheQueueSaysWhoWasNotConsidered(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.Run("g", holding("a", cores(4)))
	c.Enqueue("g", job(1, 10, 0, ask(1, 1)))
	c.Enqueue("g", job(2, 10, 0, ask(2, 1)))
	require.Empty(t, pass(t, c, now))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForCapacity: 2}, c.Queue("g").Reasons)
	c.SetAgent("g", agent("b", 4, 8))
	r, err := c.Pass("g", now, scheduler.Work{Placements: 1})
	require.NoError(t, err)
	require.True(t, r.More)
	require.Equal(t, []string{"s01"}, started(r.Decisions))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForPass: 1}, c.Queue("g").Reasons)
	e, _ := c.Explain("s02")
	require.Equal(t, scheduler.WaitsForPass, e.Reason)
	require.Equal(t, "the scheduler has not come to it yet", e.Text)
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}

// TestWhereAPlaceIsKept: without declared ends a place is kept on the agent that lacks least, the sum of the missing parts.
func TestWhereAPlaceIsKept(t *testing.T) {
	t.Parallel()
	gpus := func(n cluster.Amount, cpu int64) cluster.Slots {
		s := ask(cpu, 1)
		s["cuda.device"] = n * 1000
		return s
	}
	used := func(id cluster.AgentID, cpu int, names ...string) scheduler.Running {
		held := cores(cpu)
		held["cuda.device"] = map[string]cluster.Amount{}
		for _, name := range names {
			held["cuda.device"][name] = 1000
		}
		return holding(id, held)
	}
	for name, c := range map[string]struct {
		running []scheduler.Running
		session scheduler.Session
		want    string
	}{
		"fewest accelerators": {[]scheduler.Running{used("a", 0, "g0", "g1"), used("b", 0, "g1"), used("c", 0, "g0", "g1")},
			job(1, 10, 0, gpus(2, 1)), "b"},
		"accelerators and cores": {[]scheduler.Running{used("a", 3, "g0"), used("b", 4, "g0"), used("c", 1, "g0", "g1")},
			job(1, 10, 0, gpus(2, 2)), "a"},
		"parts": {[]scheduler.Running{used("a", 4), used("b", 0, "g0"), used("c", 4, "g0")}, job(1, 10, 0, gpus(2, 4)), "b"},
		"gang":  {[]scheduler.Running{used("a", 4), used("b", 2), used("c", 4)}, job(1, 10, 0, gpus(0, 3), gpus(0, 3)), "b"},
		"a core is no accelerator": {[]scheduler.Running{used("a", 0, "g0", "g1"), used("b", 3), used("c", 4, "g0", "g1")},
			job(1, 10, 0, gpus(1, 4)), "b"},
		"the first of equal ones": {[]scheduler.Running{used("a", 0, "g0"), used("b", 0, "g1"), used("c", 0, "g0")},
			job(1, 10, 0, gpus(2, 1)), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{})
			for _, id := range []string{"a", "b", "c"} {
				x.SetAgent("g", withGPUs(agent(id, 4, 8), "cuda.device", 2))
			}
			for _, r := range c.running {
				x.Run("g", r)
			}
			x.Enqueue("g", c.session)
			require.Empty(t, pass(t, x, now))
			e, _ := x.Explain("s01")
			require.Contains(t, e.Remedies, "wait for sessions on agent "+c.want+" to end")
		})
	}
}

// TestAGangKeepsTheSlotsOfAllItsUnits: units that ask for different slots of one agent are kept together.
func TestAGangKeepsTheSlotsOfAllItsUnits(t *testing.T) {
	t.Parallel()
	memory := func(gib int64) cluster.Slots { return cluster.Slots{cluster.SlotMem: cluster.Whole(gib << 30)} }
	for _, life := range []time.Duration{0, time.Hour} {
		c := filled(t, scheduler.Group{}, "a")
		c.Enqueue("g", job(0, 10, life, cluster.Slots{cluster.SlotCPU: 1000}))
		require.Len(t, pass(t, c, now), 1)
		c.Enqueue("g", job(1, 10, 0, cluster.Slots{cluster.SlotCPU: 4000}, memory(5), memory(1)))
		c.Enqueue("g", job(2, 10, 0, memory(3)))
		c.Enqueue("g", job(3, 10, 0, memory(2)))
		c.Enqueue("g", job(4, 10, 0, cluster.Slots{cluster.SlotCPU: 1000}))
		require.Equal(t, []string{"s03"}, started(pass(t, c, now)), "6 of 8 GiB and all cores are kept")
		c.Remove("s00")
		require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
	}
}

// TestWhatRunsChangesItsWorth: a new priority of what runs, and whether it may end, is seen in the next pass.
func TestWhatRunsChangesItsWorth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(r *scheduler.Running)
		want   int
	}{
		"lower priority": {func(r *scheduler.Running) { r.Priority = 10 }, 1},
		"same":           {func(*scheduler.Running) {}, 0},
		"below zero":     {func(r *scheduler.Running) { r.Priority = -5 }, 1},
		"not preemptible": {func(r *scheduler.Running) {
			r.Priority, r.Preemptible = 10, false
		}, 0},
	} {
		x := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "a")
		r := preemptible("r", "a", 50, 0, 4)
		x.Run("g", r)
		x.Enqueue("g", job(1, 50, 0, ask(4, 1)))
		require.Empty(t, pass(t, x, now))
		c.change(&r)
		x.Run("g", r)
		got := pass(t, x, now)
		require.Len(t, got, c.want, name)
		require.Equal(t, c.want == 0, len(got) == 0 || len(got[0].Preempt) == 0, name)
	}
}

// TestWithoutBackfillSessionsWaitBehind: where backfill is off, who could start waits behind the first session, and is told so.
func TestWithoutBackfillSessionsWaitBehind(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{Disabled: true}}, "a")
	c.Run("g", holding("a", cores(2)))
	c.Enqueue("g", job(1, 10, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 10, 0, ask(1, 1)))
	require.Empty(t, pass(t, c, now))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForCapacity: 1, scheduler.WaitsBehind: 1}, c.Queue("g").Reasons)
}

// TestThePassWakesForTheFirstStartTime: of sessions that wait for a time, the earliest says when to look again, whatever their ids.
func TestThePassWakesForTheFirstStartTime(t *testing.T) {
	t.Parallel()
	for _, hours := range [][3]int{{3, 2, 1}, {1, 2, 3}, {2, 3, 1}} {
		c := filled(t, scheduler.Group{}, "a")
		require.Empty(t, pass(t, c, now))
		for n := 2; n >= 0; n-- {
			s := job(n, 10, 0, ask(1, 1))
			s.StartsAt = now.Add(time.Duration(hours[n]) * time.Hour)
			c.Enqueue("g", s)
		}
		for hour := 1; hour <= 3; hour++ {
			r, err := c.Pass("g", now.Add(time.Duration(hour)*time.Hour-1), scheduler.Work{})
			require.NoError(t, err)
			require.Len(t, r.Decisions, min(hour-1, 1))
			require.Equal(t, now.Add(time.Duration(hour)*time.Hour), r.Wake)
		}
	}
}

// TestAGangsPlaceIsKeptWhereItMayRun: agents that a gang does not want keep no place for it.
func TestAGangsPlaceIsKeptWhereItMayRun(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a", "b")
	c.Run("g", holding("a", cores(1)))
	c.Run("g", holding("b", cores(4)))
	gang := job(1, 10, 0, ask(2, 1), ask(2, 2))
	gang.Designated = []cluster.AgentID{"b"}
	c.Enqueue("g", gang)
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s01")
	require.Equal(t, []string{"wait for sessions on agent b to end"}, e.Remedies)
}

// TestMoreIsHeldThanThereIs: a device that became smaller than what is held of it has nothing left; what others have left is there.
func TestMoreIsHeldThanThereIs(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Rules: map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}})
	a := agent("a", 2, 8)
	a.Devices[0].Capacity = 500
	c.SetAgent("g", a)
	c.Run("g", holding("a", cores(1)))
	c.Enqueue("g", job(1, 10, 0, cluster.Slots{cluster.SlotCPU: 1000}))
	require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
}

// TestAnImageThatArrivesIsNoticed: a session that waits for an image that no registry has starts when an agent has it.
func TestAnImageThatArrivesIsNoticed(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	s := job(1, 10, 0, ask(1, 1))
	s.Kernels[0].Image, s.Kernels[0].Local = "local/mine:1", true
	c.Enqueue("g", s)
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s01")
	require.Equal(t, map[string]int{"image": 1}, e.Rejected)
	a := agent("a", 4, 8)
	a.Images = map[string]bool{"local/mine:1": true}
	c.SetAgent("g", a)
	require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
}

// TestDevicesThatDoNotFitAreCounted: agents are counted by what refuses them: devices that are of other models, devices that
// are in use in parts, and what is missing altogether.
func TestDevicesThatDoNotFitAreCounted(t *testing.T) {
	t.Parallel()
	with := func(id string, shares ...cluster.Amount) scheduler.Agent {
		a := agent(id, 4, 8)
		for i, v := range shares {
			a.Devices = append(a.Devices, alloc.Device{Slot: "cuda.shares", ID: string(rune('0' + i)), Model: "T4", Capacity: v, Healthy: true})
		}
		return a
	}
	held := func(amounts ...cluster.Amount) scheduler.Running {
		parts := map[string]cluster.Amount{}
		for i, v := range amounts {
			parts[string(rune('0'+i))] = v
		}
		return holding("a", alloc.Allocation{"cuda.shares": parts})
	}
	for name, c := range map[string]struct {
		agent   scheduler.Agent
		running []scheduler.Running
		shares  cluster.Amount
		models  []string
		want    string
	}{
		"another model":            {with("a", 1000, 1000), nil, 1000, []string{"A100"}, "models"},
		"one of two models":        {with("a", 1000, 1000), []scheduler.Running{held(1000, 1000)}, 1000, []string{"A100", "T4"}, "cuda.shares"},
		"parts of the right model": {with("a", 1000, 1000), []scheduler.Running{held(400, 400)}, 1000, []string{"T4"}, "devices"},
		"parts":                    {with("a", 1000, 1000), []scheduler.Running{held(400, 400)}, 1000, nil, "devices"},
		"nothing left":             {with("a", 1000), []scheduler.Running{held(1000)}, 500, nil, "cuda.shares"},
		"none":                     {with("a"), nil, 500, nil, "cuda.shares"},
	} {
		x := filled(t, scheduler.Group{WholeDevices: true})
		x.SetAgent("g", c.agent)
		for _, r := range c.running {
			x.Run("g", r)
		}
		s := job(1, 10, 0, cluster.Slots{"cuda.shares": c.shares})
		s.Kernels[0].Models = c.models
		e := x.Probe("g", now, s).Hold
		require.NotNil(t, e, name)
		require.Equal(t, map[string]int{c.want: 1}, e.Rejected, name)
	}
}

// TestCompanionsWeighMoreThanFailures: an agent that just failed the session, but has its companions, is better than one without them; of
// two with them, or two without, the one that failed nothing.
func TestCompanionsWeighMoreThanFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failed []cluster.AgentID
		near   []cluster.AgentID
		apart  bool
		want   cluster.AgentID
	}{
		"near":          {[]cluster.AgentID{"a"}, []cluster.AgentID{"a"}, false, "a"},
		"apart":         {[]cluster.AgentID{"a"}, []cluster.AgentID{"b"}, true, "a"},
		"both near":     {[]cluster.AgentID{"b"}, []cluster.AgentID{"a", "b"}, false, "a"},
		"all are apart": {[]cluster.AgentID{"b"}, nil, true, "a"},
		"none failed":   {nil, []cluster.AgentID{"a", "b"}, false, "b"},
	} {
		x := filled(t, scheduler.Group{Placement: "pack"}, "a", "b")
		x.Run("g", holding("b", cores(2))) // b is the better one otherwise
		for _, id := range c.near {
			r := holding(id, nil)
			r.ID, r.Companions.Name = "companion-"+cluster.SessionID(id), "c"
			x.Run("g", r)
		}
		s := job(1, 10, 0, ask(1, 1))
		s.Failed, s.Companions = c.failed, scheduler.Companions{Name: "c", Apart: c.apart}
		require.Equal(t, c.want, x.Probe("g", now, s).Placements[0].Agent, name)
	}
}

// TestUnitsOfAGangAreExplainedBesideEachOther: what the first kernel would take is not free for the second one.
func TestUnitsOfAGangAreExplainedBesideEachOther(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a", "b")
	c.Run("g", holding("b", cores(4)))
	c.Enqueue("g", job(1, 10, 0, ask(3, 1), ask(3, 1)))
	require.Empty(t, pass(t, c, now))
	for range 2 { // looking changes nothing
		e, _ := c.Explain("s01")
		require.Equal(t, scheduler.WaitsForCapacity, e.Reason, e.Text)
		require.Equal(t, cpus(2), e.Shortfall)
	}
}

// TestOnlyAgentsInTroubleAreToBeRepaired: an agent that is full is not named beside one that has a problem.
func TestOnlyAgentsInTroubleAreToBeRepaired(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "b")
	a := agent("a", 4, 8)
	a.Problem = "its disk is full"
	c.SetAgent("g", a)
	c.Run("g", holding("b", cores(4)))
	c.Enqueue("g", job(1, 10, 0, ask(3, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s01")
	require.Contains(t, e.Remedies, "ask an administrator to repair agent a: berth agent list")
}

// TestKeypairsWithoutAUserAreApart: what one of them holds is not charged to another.
func TestKeypairsWithoutAUserAreApart(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Order: "drf"}, "a")
	r := holding("a", cores(2))
	r.Owner = scheduler.Owner{AccessKey: "one", Project: "p", Domain: "d"}
	c.Run("g", r)
	for n, key := range []cluster.AccessKey{"one", "two"} {
		s := session(n, ask(2, 1))
		s.Owner = scheduler.Owner{AccessKey: key, Project: "p", Domain: "d"}
		c.Enqueue("g", s)
	}
	require.Equal(t, []string{"s01"}, started(pass(t, c, now.Add(time.Hour))))
}
