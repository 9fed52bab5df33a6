package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// agent makes an agent of n cores and gib GiB of memory on one NUMA node.
func agent(id string, n int, gib int64) scheduler.Agent {
	a := scheduler.Agent{ID: cluster.AgentID(id), Architecture: "x86_64", Schedulable: true, Alive: true}
	for i := range n {
		a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), Capacity: cluster.Whole(1), Healthy: true})
	}
	a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotMem, ID: "root", NUMA: -1, Capacity: cluster.Whole(gib << 30), Healthy: true})
	return a
}

func ask(cpu, gib int64) cluster.Slots {
	return cluster.Slots{cluster.SlotCPU: cluster.Whole(cpu), cluster.SlotMem: cluster.Whole(gib << 30)}
}

// holding is a running session that holds devices of an agent and declares no lifetime.
func holding(id cluster.AgentID, held alloc.Allocation) scheduler.Running {
	return scheduler.Running{
		Session: scheduler.Session{ID: cluster.SessionID("on-" + id)}, StartedAt: now,
		Placements: []scheduler.Placement{{Kernel: cluster.KernelID("on-" + id), Agent: id, Allocation: held}},
	}
}

// session makes a session enqueued at minute n with one kernel per request.
func session(n int, requests ...cluster.Slots) scheduler.Session {
	s := scheduler.Session{ID: cluster.SessionID(fmt.Sprintf("s%02d", n)), Priority: 10, EnqueuedAt: now.Add(time.Duration(n) * time.Minute)}
	for i, r := range requests {
		s.Kernels = append(s.Kernels, scheduler.Kernel{ID: cluster.KernelID(fmt.Sprintf("s%02d-k%d", n, i)), Slots: r, Architecture: "x86_64"})
	}
	return s
}

func plan(t require.TestingT, s scheduler.Snapshot) map[cluster.SessionID]scheduler.Decision {
	s.Now = now.Add(24 * time.Hour)
	list, err := scheduler.Plan(s)
	require.NoError(t, err)
	out := map[cluster.SessionID]scheduler.Decision{}
	for _, d := range list {
		out[d.Session] = d
	}
	return out
}

func TestPlanExplains(t *testing.T) {
	t.Parallel()
	busy := agent("a", 4, 8)
	lost := agent("big", 64, 256)
	lost.Alive = false
	off := agent("off", 4, 8)
	off.Schedulable = false
	arm := agent("arm", 4, 8)
	arm.Architecture = "aarch64"
	gpu := agent("gpu", 4, 8)
	gpu.Devices = append(
		gpu.Devices,
		alloc.Device{Slot: "cuda.shares", ID: "g0", Capacity: 1000, Healthy: true},
		alloc.Device{Slot: "cuda.shares", ID: "g1", Capacity: 1000, Healthy: true},
	)

	running := []scheduler.Running{
		holding("a", alloc.Allocation{cluster.SlotCPU: {"0": 1000, "1": 1000, "2": 1000}}),
		holding("gpu", alloc.Allocation{"cuda.shares": {"g0": 500, "g1": 500}}),
	}

	later := session(1, ask(1, 1))
	later.StartsAt = now.Add(48 * time.Hour)
	dependent := session(1, ask(1, 1))
	dependent.Waiting = "it waits for session train"
	designated := session(1, ask(1, 1))
	designated.Designated = []cluster.AgentID{"elsewhere"}
	hung := agent("hung", 4, 8)
	hung.Hung = []string{"local:v1"}
	foldered := session(1, ask(1, 1))
	foldered.Volumes = []string{"local:v1"}
	together := session(1, ask(3, 1), ask(3, 1))
	together.SingleNode = true

	for _, c := range []struct {
		name     string
		agents   []scheduler.Agent
		session  scheduler.Session
		reason   scheduler.Reason
		rejected map[string]int
		short    cluster.Slots
		text     string
	}{
		{"start time", []scheduler.Agent{busy}, later, scheduler.WaitsForStartTime, nil, nil, "2026-11-23 12:00:00 UTC"},
		{"dependency", []scheduler.Agent{busy}, dependent, scheduler.WaitsForDependency, nil, nil, "train"},
		{"no agents", nil, session(1, ask(1, 1)), scheduler.WaitsForAgent, map[string]int{}, nil, "has no agents"},
		{"none usable", []scheduler.Agent{lost, off, arm}, session(1, ask(1, 1)), scheduler.WaitsForAgent,
			map[string]int{"lost": 1, "not-schedulable": 1, "architecture": 1}, nil, "1 lost"},
		{"designated", []scheduler.Agent{busy}, designated, scheduler.WaitsForAgent, map[string]int{"designated": 1}, nil, "designated"},
		{"volume hangs", []scheduler.Agent{hung, lost}, foldered, scheduler.WaitsForAgent,
			map[string]int{"hung-volume": 1, "lost": 1}, nil, "1 where local:v1 does not answer"},
		{"too big", []scheduler.Agent{busy}, session(1, ask(6, 1)), scheduler.TooBig, map[string]int{"cpu": 1},
			cluster.Slots{cluster.SlotCPU: cluster.Whole(5)}, "short of 2 cpu"},
		{"too big together", []scheduler.Agent{busy}, together, scheduler.TooBig, map[string]int{"cpu": 1},
			cluster.Slots{cluster.SlotCPU: cluster.Whole(5)}, "together on one agent"},
		{"large enough is lost", []scheduler.Agent{busy, lost}, session(1, ask(6, 1)), scheduler.WaitsForAgent,
			map[string]int{"cpu": 1, "lost": 1}, cluster.Slots{cluster.SlotCPU: cluster.Whole(5)}, "lost or not schedulable"},
		{"capacity", []scheduler.Agent{busy}, session(1, ask(2, 1)), scheduler.WaitsForCapacity, map[string]int{"cpu": 1},
			cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, "lacks 1 cpu"},
		{"devices", []scheduler.Agent{gpu}, session(1, cluster.Slots{"cuda.shares": 1000}), scheduler.WaitsForDevices,
			map[string]int{"devices": 1},
			cluster.Slots{}, "not in devices that fit together"},
		{"gang", []scheduler.Agent{agent("b", 4, 8), busy}, session(1, ask(4, 1), ask(4, 1)), scheduler.WaitsForCapacity,
			map[string]int{"cpu": 2}, cluster.Slots{cluster.SlotCPU: cluster.Whole(3)}, "each of its 2 kernels"},
		{"unknown slot", []scheduler.Agent{busy}, session(1, cluster.Slots{"tpu.device": 1000}), scheduler.TooBig,
			map[string]int{"tpu.device": 1}, cluster.Slots{"tpu.device": 1000}, "1 tpu.device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{
				Group: scheduler.Group{WholeDevices: true}, Agents: c.agents, Running: running, Pending: []scheduler.Session{c.session},
			})[c.session.ID]
			require.NotNil(t, d.Hold)
			require.Empty(t, d.Placements)
			require.Equal(t, c.reason, d.Hold.Reason, d.Hold.Text)
			require.Equal(t, c.rejected, d.Hold.Rejected)
			require.Equal(t, c.short, d.Hold.Shortfall)
			require.Contains(t, d.Hold.Text, c.text)
			require.Equal(t, 1, d.Hold.Position)
		})
	}
}

func TestPlanOrder(t *testing.T) {
	t.Parallel()
	first, second, urgent := session(1, ask(4, 1)), session(2, ask(4, 1)), session(3, ask(4, 1))
	urgent.Priority = 50
	s := scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 4, 8)}, Pending: []scheduler.Session{second, urgent, first}}
	got := plan(t, s)
	require.NotEmpty(t, got["s03"].Placements, "the highest priority goes first")
	require.Equal(t, 1, got["s01"].Hold.Position)
	require.Equal(t, 2, got["s02"].Hold.Position)

	urgent.Priority = 10
	s.Pending = []scheduler.Session{second, urgent, first}
	require.NotEmpty(t, plan(t, s)["s01"].Placements, "then the oldest")
	s.Group.Order = "lifo"
	require.NotEmpty(t, plan(t, s)["s03"].Placements, "or the youngest")
	s.Group.Order = "coin"
	_, err := scheduler.Plan(s)
	require.True(t, fault.Is(err, fault.Invalid))
}

func TestPlanReservesForTheHead(t *testing.T) {
	t.Parallel()
	gpu := agent("a", 4, 64)
	gpu.Devices = append(gpu.Devices, alloc.Device{Slot: "cuda.device", ID: "g0", Capacity: 1000, Healthy: true})
	running := []scheduler.Running{holding("a", alloc.Allocation{"cuda.device": {"g0": 1000}, cluster.SlotCPU: {"0": 1000}})}
	head := session(1, cluster.Slots{"cuda.device": 1000, cluster.SlotCPU: 2000})
	got := plan(t, scheduler.Snapshot{
		Agents: []scheduler.Agent{gpu}, Running: running, Pending: []scheduler.Session{head, session(2, ask(1, 1)), session(3, ask(1, 1))},
	})
	require.Equal(t, scheduler.WaitsForCapacity, got["s01"].Hold.Reason)
	require.NotEmpty(t, got["s02"].Placements, "one core is beyond what the head needs")
	require.Equal(t, scheduler.WaitsBehind, got["s03"].Hold.Reason, "the last two cores are kept")

	// Another agent that the head does not wait for is not held back.
	got = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{gpu, agent("b", 4, 8)}, Running: running,
		Pending: []scheduler.Session{head, session(2, ask(4, 1)), session(3, ask(1, 1))}})
	require.Equal(t, cluster.AgentID("b"), got["s02"].Placements[0].Agent)
}

func TestPlanPrefers(t *testing.T) {
	t.Parallel()
	a, b, c := agent("a", 4, 8), agent("b", 4, 8), agent("c", 4, 8)
	b.Images = map[string]bool{"python": true}
	c.Images = map[string]bool{"python": true}
	s := session(1, ask(1, 1))
	s.Kernels[0].Image = "python"
	one := func(s scheduler.Session, agents ...scheduler.Agent) cluster.AgentID {
		return plan(t, scheduler.Snapshot{Agents: agents, Pending: []scheduler.Session{s}})[s.ID].Placements[0].Agent
	}
	require.Equal(t, cluster.AgentID("b"), one(s, c, a, b), "the first that has the image")
	s.Failed = []cluster.AgentID{"b", "c"}
	require.Equal(t, cluster.AgentID("a"), one(s, a, b, c), "agents that failed it come last")
	require.Equal(t, cluster.AgentID("b"), one(s, b), "but they are better than none")
	s.Designated = []cluster.AgentID{"c"}
	require.Equal(t, cluster.AgentID("c"), one(s, a, b, c))
}

// TestPlanProperties walks random clusters: nothing is allocated twice or from what is
// not there, gangs and single nodes are whole, every session has one decision, and the
// order of the snapshot's lists does not matter.
func TestPlanProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var agents []scheduler.Agent
		var running []scheduler.Running
		used := map[cluster.AgentID]alloc.Allocation{}
		for i := range rapid.IntRange(0, 5).Draw(t, "agents") {
			a := agent(fmt.Sprintf("a%d", i), rapid.IntRange(1, 8).Draw(t, "cores"), rapid.Int64Range(1, 16).Draw(t, "gib"))
			a.Alive = rapid.IntRange(0, 5).Draw(t, "alive") > 0
			a.Schedulable = rapid.IntRange(0, 5).Draw(t, "schedulable") > 0
			if rapid.IntRange(0, 3).Draw(t, "arm") == 0 {
				a.Architecture = "aarch64"
			}
			used[a.ID] = alloc.Allocation{cluster.SlotCPU: {}}
			for j := range rapid.IntRange(0, len(a.Devices)-1).Draw(t, "used") {
				used[a.ID][cluster.SlotCPU][fmt.Sprint(j)] = 1000
			}
			running = append(running, holding(a.ID, used[a.ID]))
			for j := range a.Devices {
				a.Devices[j].Healthy = rapid.IntRange(0, 9).Draw(t, "healthy") > 0
			}
			agents = append(agents, a)
		}
		var pending []scheduler.Session
		for i := range rapid.IntRange(0, 8).Draw(t, "sessions") {
			var requests []cluster.Slots
			for range rapid.IntRange(1, 3).Draw(t, "kernels") {
				requests = append(requests, ask(rapid.Int64Range(0, 5).Draw(t, "cpu"), rapid.Int64Range(0, 8).Draw(t, "mem")))
			}
			s := session(i, requests...)
			s.Priority = rapid.IntRange(0, 2).Draw(t, "priority")
			s.SingleNode = rapid.Bool().Draw(t, "single")
			pending = append(pending, s)
		}
		snapshot := scheduler.Snapshot{Now: now, Agents: agents, Running: running, Pending: pending}
		got, err := scheduler.Plan(snapshot)
		require.NoError(t, err)
		require.Len(t, got, len(pending))

		byAgent := map[cluster.AgentID]alloc.Allocation{}
		for _, d := range got {
			s := pending[slices.IndexFunc(pending, func(s scheduler.Session) bool { return s.ID == d.Session })]
			if d.Hold != nil {
				require.Empty(t, d.Placements)
				require.NotEmpty(t, d.Hold.Text)
				require.NotEmpty(t, d.Hold.Reason)
				require.Positive(t, d.Hold.Position)
				continue
			}
			require.Len(t, d.Placements, len(s.Kernels), "all or nothing")
			for i, p := range d.Placements {
				k := s.Kernels[i]
				require.Equal(t, k.ID, p.Kernel)
				if s.SingleNode {
					require.Equal(t, d.Placements[0].Agent, p.Agent)
				}
				a := agents[slices.IndexFunc(agents, func(a scheduler.Agent) bool { return a.ID == p.Agent })]
				require.True(t, a.Alive && a.Schedulable && a.Architecture == k.Architecture)
				for slot, v := range k.Slots {
					require.Equal(t, v, p.Allocation.Totals()[slot])
				}
				byAgent[p.Agent] = byAgent[p.Agent].Add(p.Allocation)
			}
		}
		for _, a := range agents {
			taken := byAgent[a.ID]
			for _, d := range a.Devices {
				limit := d.Capacity - used[a.ID][d.Slot][d.ID]
				if !d.Healthy {
					limit = 0
				}
				require.LessOrEqual(t, taken[d.Slot][d.ID], limit, "%s of %s", d.ID, a.ID)
			}
		}

		shuffled := scheduler.Snapshot{Now: now, Agents: slices.Clone(agents), Running: slices.Clone(running), Pending: slices.Clone(pending)}
		slices.Reverse(shuffled.Agents)
		slices.Reverse(shuffled.Running)
		slices.Reverse(shuffled.Pending)
		again, err := scheduler.Plan(shuffled)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

func BenchmarkPlan(b *testing.B) {
	var s scheduler.Snapshot
	for i := range 50 {
		s.Agents = append(s.Agents, agent(fmt.Sprintf("a%02d", i), 32, 128))
	}
	for i := range 1000 {
		s.Pending = append(s.Pending, session(i, ask(int64(1+i%4), 1)))
	}
	for b.Loop() {
		if _, err := scheduler.Plan(s); err != nil {
			b.Fatal(err)
		}
	}
}
