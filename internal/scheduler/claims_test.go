package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

func TestClaimEndsWhenItsSessionStarts(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	victim := job(0, 0, 0, ask(4, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	pass(t, c, now)
	at := now.Add(time.Hour)
	c.Enqueue("g", job(1, 50, 0, ask(2, 1)))
	require.Len(t, pass(t, c, at)[0].Preempt, 1)
	c.Enqueue("g", job(2, 10, 0, ask(2, 2)))
	c.Remove("s00")
	require.Equal(t, []string{"s01", "s02"}, started(pass(t, c, at)), "what s01 does not need is free")
}

func TestVictimsGoToTheFirstInTheQueue(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	victim := job(0, 0, 0, ask(4, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	pass(t, c, now)
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 60, 0, ask(4, 2)))
	require.Empty(t, pass(t, c, now), "s00 is too young")
	got := pass(t, c, now.Add(time.Hour))
	require.Len(t, got, 1)
	require.Equal(t, cluster.SessionID("s02"), got[0].Session)
}

func TestReservationKeepsDevicesThatEndThen(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	c.SetAgent("g", withGPUs(agent("a", 8, 16), "cuda.device", 2))
	gpus := func(n cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.device"] = n * 1000
		return s
	}
	c.Enqueue("g", job(0, 10, time.Hour, gpus(1)))
	pass(t, c, now)
	c.Enqueue("g", job(1, 10, 0, gpus(2)))
	c.Enqueue("g", job(2, 10, time.Hour+time.Second, gpus(1)))
	require.Empty(t, pass(t, c, now), "s02 would end a second too late")
	c.Enqueue("g", job(3, 10, time.Hour, gpus(1)))
	require.Equal(t, []string{"s03"}, started(pass(t, c, now)), "s03 ends just in time")
}

// TestAClaimOfAnotherKindStays: who starts beside all claims gives up the own claim, and not one that came before.
func TestAClaimOfAnotherKindStays(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "b", "c")
	c.SetAgent("g", agent("a", 8, 8))
	c.Run("g", preemptible("on-a", "a", 0, 0, 8))
	c.Run("g", preemptible("on-b", "b", 0, 0, 4))
	c.Run("g", holding("c", cores(4)))
	c.Enqueue("g", job(1, 60, 0, ask(8, 1)))
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	require.Len(t, pass(t, c, now), 2)
	c.Remove("on-c")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
	e, _ := c.Explain("s01")
	require.Equal(t, "a running session of lower priority ends to make room for it, on agent a", e.Text)
}

// companion makes a session a companion of those that the group of companions "c" has.
func companion(s scheduler.Session, strict bool) scheduler.Session {
	s.Companions = scheduler.Companions{Name: "c", Strict: strict}
	return s
}

// TestWhoCanStartNowEndsNobody: a blocked session that can start since a companion started does so before victims are looked for.
func TestWhoCanStartNowEndsNobody(t *testing.T) {
	t.Parallel()
	mem := func(gib int64) cluster.Slots { return cluster.Slots{cluster.SlotMem: cluster.Whole(gib << 30)} }
	cpu := func(n int64) cluster.Slots { return cluster.Slots{cluster.SlotCPU: cluster.Whole(n)} }
	c := filled(t, preempting(""), "a", "b")
	old := holding("a", cores(2))
	old.Companions.Name = "c"
	old.Placements[0].Allocation[cluster.SlotMem] = map[string]cluster.Amount{"root": cluster.Whole(3 << 30)}
	c.Run("g", old)
	c.Run("g", preemptible("low", "a", 0, 2, 2))
	c.Run("g", holding("b", alloc.Allocation{cluster.SlotMem: {"root": cluster.Whole(2 << 30)}}))
	c.Enqueue("g", job(1, 60, 0, mem(7))) // its place is kept on b
	near := companion(job(2, 40, 0, cpu(2)), true)
	c.Enqueue("g", near)
	require.Empty(t, pass(t, c, now), "low is too young to be a victim")
	c.Enqueue("g", companion(job(3, 50, 0, cpu(1)), false))
	got := pass(t, c, now.Add(time.Hour))
	require.Equal(t, []string{"s03", "s02"}, started(got))
	require.Len(t, got, 2, "nobody has to end")
}

// TestAStartEndsTheReservation: a session that starts although a place is kept for it elsewhere leaves that place to others.
func TestAStartEndsTheReservation(t *testing.T) {
	t.Parallel()
	cpu := func(n int64) cluster.Slots { return cluster.Slots{cluster.SlotCPU: cluster.Whole(n)} }
	c := filled(t, scheduler.Group{}, "a", "b")
	old := holding("a", cores(3))
	old.Companions.Name = "c"
	c.Run("g", old)
	c.Enqueue("g", companion(job(1, 40, 0, cpu(2)), true)) // only a suits it, until a companion runs on b
	c.Enqueue("g", companion(job(2, 30, 0, cpu(1)), false))
	last := job(3, 20, 0, cpu(1))
	last.Designated = []cluster.AgentID{"a"}
	c.Enqueue("g", last)
	require.Equal(t, []string{"s02", "s01", "s03"}, started(pass(t, c, now)))
}

// TestALostReservationFreesItsPlace: when the session goes for which a place was kept, who was held back starts.
func TestALostReservationFreesItsPlace(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.Run("g", holding("a", cores(2)))
	c.Enqueue("g", job(1, 10, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 10, 0, ask(1, 1)))
	require.Empty(t, pass(t, c, now))
	c.Remove("s01")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}

// TestAGangFitsWithLessRoom: units are placed one after the other. With less room on an agent a unit goes elsewhere, and the gang fits.
func TestAGangFitsWithLessRoom(t *testing.T) {
	t.Parallel()
	unit := func(slot cluster.SlotName, gib int64) cluster.Slots {
		s := ask(3, gib)
		s[slot] = 1000
		return s
	}
	two := job(1, 10, 0, unit("cuda.device", 1), unit("rocm.device", 3))
	two.Designated = []cluster.AgentID{"a", "c"}
	// The kernel with most memory is placed first and takes a; then only a would do for the first kernel.
	for _, s := range []scheduler.Session{two, job(1, 10, 0, unit("cuda.device", 1), unit("rocm.device", 3), unit("tpu.device", 2))} {
		c := filled(t, scheduler.Group{})
		for id, slots := range map[string][2]cluster.SlotName{
			"a": {"cuda.device", "rocm.device"}, "b": {"cuda.device", "tpu.device"}, "c": {"rocm.device", "tpu.device"},
		} {
			c.SetAgent("g", withGPUs(withGPUs(agent(id, 4, 8), slots[0], 1), slots[1], 1))
		}
		c.Enqueue("g", s)
		require.Empty(t, pass(t, c, now))
		c.Run("g", holding("a", alloc.Allocation{"rocm.device": {"g0": 1000}}))
		require.Equal(t, []string{"s01"}, started(pass(t, c, now)))
	}
}

// TestClaimsOfOneLaneChangePlaces: who starts in the room that was kept for a later session of its lane leaves it its own place.
func TestClaimsOfOneLaneChangePlaces(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "a", "b", "c")
	for i, id := range []cluster.AgentID{"a", "b", "c"} {
		c.Run("g", preemptible("on-"+cluster.SessionID(id), id, 0, 0, 4))
		c.Enqueue("g", job(i+1, 50, 0, ask(4, 1)))
	}
	require.Len(t, pass(t, c, now), 3)
	c.Remove("on-c")
	got := pass(t, c, now)
	require.Equal(t, []string{"s01"}, started(got))
	require.Len(t, got, 1, "nobody is asked again to end")
	for id, on := range map[cluster.SessionID]string{"s02": "b", "s03": "a"} {
		e, _ := c.Explain(id)
		require.Equal(t, "a running session of lower priority ends to make room for it, on agent "+on, e.Text)
	}
	c.Remove("on-b")
	c.Remove("on-a")
	require.Equal(t, []string{"s02", "s03"}, started(pass(t, c, now)))
}

// TestSpentClaimsGoInOrder: of several claims whose sessions do not start, the first in the queue goes before later sessions are tried.
func TestSpentClaimsGoInOrder(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true}}, "a", "b")
	c.Run("g", preemptible("on-a", "a", 0, 0, 4))
	c.Run("g", preemptible("on-b", "b", 0, 0, 4))
	for _, n := range []int{3, 1} { // the younger one comes first
		s := job(n, 50, 0, ask(4, int64(n)))
		s.Designated = []cluster.AgentID{map[int]cluster.AgentID{1: "a", 3: "b"}[n]}
		c.Enqueue("g", s)
		require.Len(t, pass(t, c, now), 1)
	}
	c.Remove("on-a")
	c.Remove("on-b")
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}, &scheduler.Quota{Sessions: 0, Private: -1})
	other := owned(2, "ada", ask(1, 1))
	other.Priority, other.EnqueuedAt, other.Designated = 50, now.Add(2*time.Second), []cluster.AgentID{"a"}
	c.Enqueue("g", other)
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}

// TestNobodyEndsForALimitedSession: a session that is over a limit by now waits for the limit, and nobody ends for it.
func TestNobodyEndsForALimitedSession(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	c.Run("g", preemptible("low", "a", 0, 0, 4))
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	require.Empty(t, pass(t, c, now), "low is too young to be a victim")
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	c.SetQuota(user, &scheduler.Quota{Sessions: 1, Private: -1})
	require.Empty(t, pass(t, c, now.Add(time.Hour)))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForConcurrency: 1}, c.Queue("g").Reasons)
	c.SetQuota(user, nil)
	got := pass(t, c, now.Add(time.Hour))
	require.Len(t, got, 1)
	require.Equal(t, []cluster.SessionID{"low"}, got[0].Preempt)
}

// TestALimitIsNotedOnce: the lane of two sessions, of which the first has a claim, reaches a limit. The place of the first finds that out,
// and so does the search for victims for the second, in the same pass. (Seed 508280 of the oracle, which ended the process.)
func TestALimitIsNotedOnce(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a", "b")
	old := preemptible("old", "a", 0, 0, 4)
	old.StartedAt = now.Add(-time.Hour)
	c.Run("g", old)
	c.Run("g", preemptible("young", "b", 0, 0, 4))
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 50, 0, ask(4, 1)))
	require.Len(t, pass(t, c, now), 1, "one of the two is old enough to be a victim")
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}, &scheduler.Quota{Sessions: 0, Private: -1})
	require.Empty(t, pass(t, c, now.Add(time.Hour)))
	require.Equal(t, 2, c.Queue("g").Reasons[scheduler.WaitsForConcurrency])
}
