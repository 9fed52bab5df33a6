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

// The oracle found these; each is kept here as small as it can be.

// withGPUs adds accelerators of a slot to an agent.
func withGPUs(a scheduler.Agent, slot cluster.SlotName, n int) scheduler.Agent {
	for i := range n {
		a.Devices = append(a.Devices, alloc.Device{Slot: slot, ID: fmt.Sprintf("g%d", i), Capacity: 1000, Healthy: true})
	}
	return a
}

// job is a session of bob with a priority, and with a lifetime unless that is 0.
func job(n, priority int, life time.Duration, requests ...cluster.Slots) scheduler.Session {
	s := session(n, requests...)
	s.Priority, s.Lifetime, s.EnqueuedAt = priority, life, now.Add(time.Duration(n)*time.Second)
	s.Owner = scheduler.Owner{AccessKey: "bob", User: "bob", Project: "p", Domain: "d"}
	return s
}

func TestPositionCountsSessionsYoungerThanAStepOfAging(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{OrderOptions: map[string]any{"ageing_seconds": 3600.0}}, "a")
	at := now.Add(10 * time.Minute) // steps are 7.5 minutes long
	for n := range 3 {
		s := job(n, 10, 0, ask(9, 1))
		s.EnqueuedAt = now.Add(8*time.Minute + time.Duration(n)*time.Second)
		c.Enqueue("g", s)
	}
	require.Empty(t, pass(t, c, at))
	for n := range 3 {
		e, _ := c.Explain(cluster.SessionID(fmt.Sprintf("s%02d", n)))
		require.Equal(t, n+1, e.Position)
	}
}

func TestRoundRobinIgnoresImages(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Placement: "round-robin"}, "a")
	b := agent("b", 4, 8)
	b.Images = map[string]bool{"python": true}
	c.SetAgent("g", b)
	s := job(0, 10, 0, ask(1, 1))
	s.Kernels[0].Image, s.Failed = "python", []cluster.AgentID{"elsewhere"}
	c.Enqueue("g", s)
	require.Equal(t, cluster.AgentID("a"), pass(t, c, now)[0].Placements[0].Agent)
}

func TestReservationKeepsAllSharesOfOneDevice(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	c.SetAgent("g", withGPUs(agent("a", 3, 8), "cuda.shares", 1))
	c.Enqueue("g", job(0, 10, time.Hour, ask(2, 1)))
	pass(t, c, now)
	part := func(milli cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.shares"] = milli
		return s
	}
	c.Enqueue("g", job(1, 10, 0, part(500), part(300)))
	c.Enqueue("g", job(2, 10, 0, part(500)))
	c.Enqueue("g", job(3, 10, 0, part(200)))
	require.Equal(t, []string{"s03"}, started(pass(t, c, now)), "the gang needs 0.8 of the device, so 0.2 are left")
}

func TestReservationWithoutEndKeepsOneDeviceForEachKernel(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	c.SetAgent("g", withGPUs(agent("a", 8, 16), "cuda.device", 3))
	gpu := func() cluster.Slots {
		s := ask(1, 1)
		s["cuda.device"] = 1000
		return s
	}
	for n := range 3 {
		c.Enqueue("g", job(n, 10, 0, gpu()))
	}
	require.Len(t, pass(t, c, now), 3)
	head := job(3, 10, 0, gpu(), gpu(), gpu())
	head.SingleNode = true
	c.Enqueue("g", head)
	c.Remove("s00")
	c.Remove("s01")
	c.Enqueue("g", job(4, 10, 0, gpu()))
	require.Empty(t, pass(t, c, now), "both free devices are kept")
	c.Remove("s02")
	require.Equal(t, []string{"s03"}, started(pass(t, c, now)))
}

func TestNobodyEndsForAPlaceThatAnEarlierSessionTakes(t *testing.T) {
	t.Parallel()
	g := preempting("")
	g.Preemption.MinRuntime = time.Hour
	c := filled(t, g, "a")
	victim := job(0, 0, 0, ask(2, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	require.Equal(t, []string{"s00"}, started(pass(t, c, now)))
	c.Enqueue("g", job(1, 10, 0, ask(4, 1)))
	require.Empty(t, pass(t, c, now), "s00 is too young to be a victim")
	c.Enqueue("g", job(2, 50, 0, ask(2, 1)))
	got := pass(t, c, now.Add(2*time.Hour))
	require.Equal(t, []string{"s02"}, started(got))
	require.Len(t, got, 1, "what is left is not enough for s01, whoever ends")
}

func TestVictimsAreLookedForAgain(t *testing.T) {
	t.Parallel()
	at := now.Add(time.Hour)
	blocked := func(preemptible bool) *scheduler.Cluster {
		c := filled(t, preempting("resource-group"), "a")
		v := job(0, 20, 0, ask(4, 1))
		v.Preemptible = preemptible
		c.Enqueue("g", v)
		require.Equal(t, []string{"s00"}, started(pass(t, c, now)))
		c.Enqueue("g", job(1, 10, 0, ask(4, 1)))
		require.Empty(t, pass(t, c, at))
		return c
	}
	preempts := func(c *scheduler.Cluster, want string) {
		got := pass(t, c, at)
		require.Len(t, got, 1)
		require.Equal(t, cluster.SessionID(want), got[0].Session)
		require.Equal(t, []cluster.SessionID{"s00"}, got[0].Preempt)
	}

	c := blocked(true)
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	preempts(c, "s02") // of a kind that is blocked already, with a higher priority
	c.Enqueue("g", job(3, 50, 0, ask(4, 1)))
	require.Empty(t, pass(t, c, at), "s00 ends for s02")
	c.Remove("s02")
	preempts(c, "s03") // the claim of s02 has gone

	c = blocked(false)
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	require.Empty(t, pass(t, c, at))
	running := scheduler.Running{Session: job(0, 20, 0, ask(4, 1)), StartedAt: now}
	running.Preemptible = true
	running.Placements = []scheduler.Placement{{Kernel: "s00-k0", Agent: "a", Allocation: alloc.Allocation{
		cluster.SlotCPU: {"0": 1000, "1": 1000, "2": 1000, "3": 1000}, cluster.SlotMem: {"root": cluster.Whole(1 << 30)},
	}}}
	c.Run("g", running)
	preempts(c, "s02") // s00 is preemptible now
}

func TestClaimEndsWithItsVictims(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	victim := job(0, 0, 0, ask(4, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	pass(t, c, now)
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	at := now.Add(time.Hour)
	require.Equal(t, []cluster.SessionID{"s00"}, pass(t, c, at)[0].Preempt)
	c.Remove("s00")
	c.Enqueue("g", job(2, 60, time.Hour, ask(2, 1)))
	c.Enqueue("g", job(3, 10, time.Minute, ask(2, 1)))
	require.Equal(t, []string{"s02", "s03"}, started(pass(t, c, at)), "s03 ends before s02 does, and then s01 can start")
	e, _ := c.Explain("s01")
	require.Equal(t, at.Add(time.Hour), e.Estimate)
}

func TestTryingAKindAgainTakesNoSecondReservation(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{Reservations: 2}}, "a", "b")
	c.Enqueue("g", job(0, 10, time.Hour, ask(3, 1)))
	c.Enqueue("g", job(1, 10, 2*time.Hour, ask(3, 1)))
	require.Len(t, pass(t, c, now), 2)
	head := job(2, 10, 0, ask(4, 1))
	head.Companions.Name = "c"
	companion := job(3, 10, time.Minute, ask(1, 1))
	companion.Companions.Name = "c"
	c.Enqueue("g", head)
	c.Enqueue("g", companion)
	c.Enqueue("g", job(4, 10, 0, ask(4, 2)))
	c.Enqueue("g", job(5, 10, 0, ask(1, 1)))
	require.Equal(t, []string{"s03"}, started(pass(t, c, now)), "s02 has a place on one agent and s04 on the other")
}

func TestVictimsMayHoldSlotsThatNoAgentHas(t *testing.T) {
	t.Parallel()
	g := preempting("")
	g.Preemption.Order = "smallest-resources"
	c := filled(t, g, "a")
	pass(t, c, now) // the capacity is counted
	for n := range 2 {
		victim := scheduler.Running{Session: job(n, 0, 0, ask(2, 1)), StartedAt: now}
		victim.Preemptible = true
		victim.Placements = []scheduler.Placement{{Kernel: victim.Kernels[0].ID, Agent: "a", Allocation: alloc.Allocation{
			cluster.SlotCPU: {fmt.Sprint(2 * n): 1000, fmt.Sprint(2*n + 1): 1000}, "odd.device": {"0": 1000},
		}}}
		c.Run("g", victim)
	}
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	require.Len(t, pass(t, c, now.Add(time.Hour))[0].Preempt, 2)
}
