package scheduler_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

// TestPositionsInALongQueue: sessions of one kind join and leave a long queue in any order; their positions are those of a sorted list.
func TestPositionsInALongQueue(t *testing.T) {
	t.Parallel()
	for _, g := range []scheduler.Group{
		{Order: "fifo"}, {Order: "lifo"}, {Order: "fifo", OrderOptions: map[string]any{"ageing_seconds": 600.0}},
	} {
		r := rand.New(rand.NewPCG(3, 4))
		c := filled(t, g, "a")
		var queue []scheduler.Session
		check := func(at time.Time) {
			require.Empty(t, pass(t, c, at))
			rank := func(s *scheduler.Session) int {
				if g.OrderOptions == nil {
					return s.Priority
				}
				step := at.UnixNano() - at.UnixNano()%int64(75*time.Second)
				return min(100, s.Priority+int(max(0, step-s.EnqueuedAt.UnixNano())/int64(10*time.Minute)))
			}
			slices.SortFunc(queue, func(a, b scheduler.Session) int {
				age := cmp.Or(a.EnqueuedAt.Compare(b.EnqueuedAt), cmp.Compare(a.ID, b.ID))
				if g.Order == "lifo" {
					age = -age
				}
				return cmp.Or(cmp.Compare(rank(&b), rank(&a)), age)
			})
			for i := 0; i < len(queue); i += 1 + r.IntN(40) {
				e, ok := c.Explain(queue[i].ID)
				require.True(t, ok)
				require.Equal(t, i+1, e.Position, queue[i].ID)
			}
		}
		for _, n := range r.Perm(2200) {
			s := job(n, 10, 0, ask(9, 1))
			s.ID, s.EnqueuedAt = cluster.SessionID(fmt.Sprintf("s%04d", n)), now.Add(time.Duration(n/3)*time.Second)
			if n%50 == 0 {
				s.Priority = 11
			}
			queue = append(queue, s)
			c.Enqueue("g", s)
		}
		check(now.Add(15 * time.Minute))
		for range 1500 {
			i := r.IntN(len(queue))
			c.Remove(queue[i].ID)
			queue = slices.Delete(queue, i, i+1)
		}
		check(now.Add(17 * time.Minute))
		require.Equal(t, len(queue), c.Queue("g").Pending)
		require.Equal(t, map[scheduler.Reason]int{scheduler.TooBig: len(queue)}, c.Queue("g").Reasons)
	}
}

func TestOptionsAreRead(t *testing.T) {
	t.Parallel()
	parse := func(order string, opts map[string]any) (scheduler.Group, error) {
		return scheduler.ParseGroup("g", order, opts)
	}
	g, err := parse("", map[string]any{
		"allowed_session_types": []string{"batch", "inference"}, "pending_timeout": nil, "config": nil, "preemption": nil,
		"agent_selection_strategy": nil, "allow_fractional_resource_fragmentation": nil, "route_cleanup_target_statuses": []any{"x"},
		"enforce_spreading_endpoint_replica": true,
		"backfill":                           map[string]any{"enabled": false, "reservations": 16, "passed_over_seconds": int64(2)},
	})
	require.NoError(t, err)
	require.Equal(t, scheduler.Group{
		Name: "g", Types: []cluster.SessionType{"batch", "inference"},
		Backfill:   scheduler.Backfill{Disabled: true, Reservations: 16, PassedOver: 2 * time.Second},
		Preemption: scheduler.Preemption{VictimScope: "user", Order: "newest"},
	}, g)
	for name, want := range map[string]string{
		"legacy": "spread", "dispersed": "spread", "spread": "spread", "concentrated": "pack", "roundrobin": "round-robin",
		"round-robin": "round-robin", "least-fragmentation": "least-fragmentation",
	} {
		g, err := parse("fifo", map[string]any{"agent_selection_strategy": name})
		require.NoError(t, err)
		require.Equal(t, want, g.Placement)
	}
	for i, bad := range []map[string]any{
		{"allowed_session_types": "batch"}, {"allowed_session_types": []any{"batch", 1}}, {"config": []any{}}, {"preemption": 1.0},
		{"backfill": "on"}, {"backfill": map[string]any{"enabled": "yes"}}, {"backfill": map[string]any{"reservations": 17.0}},
		{"backfill": map[string]any{"passed_over_seconds": -1.0}}, {"agent_selection_strategy": 1.0}, {"pending_timeout": 1e9 + 1},
		{"preemption": map[string]any{"mode": "pause"}}, {"preemption": map[string]any{"order": 1.0}},
		{"preemption": map[string]any{"preemptible_priority": 101.0}}, {"preemption": map[string]any{"enabled": nil, "other": 1.0}},
		{"config": map[string]any{"ageing_seconds": "soon"}}, {"agent_selector_config": map[string]any{"memory": 1.0}},
	} {
		_, err := parse("fifo", bad)
		require.True(t, fault.Is(err, fault.Invalid), "%d %v: %v", i, bad, err)
	}
	_, err = parse("fifo", map[string]any{"backfill": map[string]any{"reservations": "many"}})
	require.ErrorContains(t, err, "scheduler_opts.backfill: option reservations must be a number from 0 to 16")
	_, err = parse("fifo", map[string]any{"other": 1.0})
	require.ErrorContains(t, err, `scheduler_opts has no option "other"`)
	require.Equal(t, []string{"fifo", "lifo", "drf", "fair-share"}, scheduler.Orders())
	require.Equal(t, []string{"pack", "spread", "round-robin", "least-fragmentation"}, scheduler.Placements())
	for _, p := range []scheduler.Preemption{{VictimScope: "world"}, {Order: "shoe-size"}} {
		require.True(t, fault.Is(scheduler.NewCluster().SetGroup(scheduler.Group{Name: "g", Preemption: p}), fault.Invalid))
	}
	require.True(t, fault.Is(scheduler.NewCluster().SetGroup(scheduler.Group{Name: "g", Placement: "dice"}), fault.Invalid))
	require.True(t, fault.Is(scheduler.NewCluster().Learn("nowhere", nil), fault.Invalid))
}

// TestFactsOfAgentsAreTakenOver: every fact of an agent that decides is looked at again when it changes.
func TestFactsOfAgentsAreTakenOver(t *testing.T) {
	t.Parallel()
	gpu := func(a scheduler.Agent) scheduler.Agent {
		a.Devices = append(a.Devices, alloc.Device{Slot: "cuda.device", ID: "0", Model: "T4", Capacity: 1000, Healthy: true})
		return a
	}
	asks := ask(1, 1)
	asks["cuda.device"] = 1000
	for name, change := range map[string]func(a *scheduler.Agent, last *alloc.Device){
		"slot":         func(_ *scheduler.Agent, d *alloc.Device) { d.Slot = "rocm.device" },
		"model":        func(_ *scheduler.Agent, d *alloc.Device) { d.Model = "A100" },
		"capacity":     func(_ *scheduler.Agent, d *alloc.Device) { d.Capacity = 0 },
		"health":       func(_ *scheduler.Agent, d *alloc.Device) { d.Healthy = false },
		"devices":      func(a *scheduler.Agent, _ *alloc.Device) { a.Devices = a.Devices[:2] },
		"architecture": func(a *scheduler.Agent, _ *alloc.Device) { a.Architecture = "aarch64" },
		"schedulable":  func(a *scheduler.Agent, _ *alloc.Device) { a.Schedulable = false },
		"alive":        func(a *scheduler.Agent, _ *alloc.Device) { a.Alive = false },
		"volumes":      func(a *scheduler.Agent, _ *alloc.Device) { a.Hung = []string{"v"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := filled(t, scheduler.Group{})
			bad := gpu(agent("a", 4, 8))
			change(&bad, &bad.Devices[len(bad.Devices)-1])
			s := job(0, 10, 0, asks)
			s.Kernels[0].Models, s.Volumes = []string{"T4"}, []string{"v"}
			c.SetAgent("g", gpu(agent("a", 4, 8)))
			c.SetAgent("g", bad)
			c.Enqueue("g", s)
			require.Empty(t, pass(t, c, now))
			c.SetAgent("g", gpu(agent("a", 4, 8)))
			require.Len(t, pass(t, c, now), 1)
		})
	}
}

func TestDevicesKeepTheirNamesWhenFactsChange(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	a := agent("a", 4, 8)
	a.Devices[0].ID = "renamed"
	c.SetAgent("g", a)
	c.Enqueue("g", job(0, 10, 0, ask(4, 1)))
	require.Contains(t, pass(t, c, now)[0].Placements[0].Allocation[cluster.SlotCPU], "renamed")
}

func TestAgentsAndGroupsComeAndGo(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "h"}))
	c.Enqueue("g", job(0, 10, 0, ask(4, 1)))
	require.Len(t, pass(t, c, now), 1)
	c.SetAgent("h", agent("a", 4, 8)) // what runs there still holds it
	c.Enqueue("h", job(1, 10, 0, ask(1, 1)))
	inH := func() []string {
		r, err := c.Pass("h", now, scheduler.Work{})
		require.NoError(t, err)
		return started(r.Decisions)
	}
	require.Empty(t, inH())
	c.Enqueue("g", job(2, 10, 0, ask(1, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s02")
	require.Equal(t, "no agent can take it: its resource group has no agents", e.Text)
	c.Remove("s00")
	require.Equal(t, []string{"s01"}, inH())
	c.RemoveAgent("a")
	c.RemoveAgent("a")
	c.Enqueue("h", job(3, 10, 0, ask(1, 1)))
	require.Empty(t, inH())
	c.SetAgent("h", agent("a", 1, 8))
	require.Empty(t, inH(), "s01 still holds the only core")
	c.RemoveGroup("h")
	c.RemoveGroup("h")
	require.True(t, fault.Is(c.Learn("h", nil), fault.Invalid), "the group has gone")
	_, ok := c.Explain("s03")
	require.False(t, ok)
	require.Zero(t, c.Queue("h").Pending)
	r, err := c.Pass("h", now, scheduler.Work{})
	require.NoError(t, err)
	require.Equal(t, scheduler.Result{}, r)
	c.SetAgent("g", agent("a", 1, 8))
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)), "s01 went with its group")
}

func TestChangedRulesOfSlotsAreUsed(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	s := job(0, 10, 0, cluster.Slots{cluster.SlotCPU: 1500})
	c.Enqueue("g", s)
	require.Empty(t, pass(t, c, now), "cores are handed out whole")
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "g", Rules: map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}}))
	require.Len(t, pass(t, c, now), 1)
}

func TestExplanationsInWords(t *testing.T) {
	t.Parallel()
	only := job(1, 10, 0, ask(1, 1))
	only.Designated = []cluster.AgentID{"z"}
	arm := agent("arm", 4, 8)
	arm.Architecture = "aarch64"
	onArm := job(1, 10, 0, ask(1, 1))
	onArm.Kernels[0].Architecture = "riscv"
	hung := agent("h", 4, 8)
	hung.Hung = []string{"v"}
	foldered := job(1, 10, 0, ask(1, 1))
	foldered.Volumes = []string{"v"}
	models := job(1, 10, 0, cluster.Slots{"cuda.device": 2000})
	models.Kernels[0].Models = []string{"A100"}
	mixed := agent("m", 4, 8)
	for i, model := range []string{"A100", "T4"} {
		mixed.Devices = append(mixed.Devices, alloc.Device{
			Slot: "cuda.device", ID: fmt.Sprint(i), Model: model, Capacity: 1000, Healthy: true,
		})
	}
	together := job(1, 10, 0, ask(3, 1), ask(3, 1))
	small := ask(1, 1)
	small[cluster.SlotMem] = cluster.Whole(1536 << 20)
	for name, c := range map[string]struct {
		agents   []scheduler.Agent
		session  scheduler.Session
		reason   scheduler.Reason
		text     string
		remedies []string
	}{
		"designated": {[]scheduler.Agent{agent("a", 4, 8)}, only, scheduler.WaitsForAgent,
			"no agent can take it: of 1 agents, 1 not among the designated ones", []string{"leave the choice of the agent open"}},
		"architecture": {[]scheduler.Agent{agent("a", 4, 8), arm}, onArm, scheduler.WaitsForAgent,
			"no agent can take it: of 2 agents, 2 of another architecture than riscv", []string{"choose an image for aarch64 or x86_64"}},
		"volume": {[]scheduler.Agent{hung}, foldered, scheduler.WaitsForAgent,
			"no agent can take it: of 1 agents, 1 where v does not answer",
			[]string{"wait until its folders' volume answers on one of 1 agents, or start it without folders"}},
		"models": {[]scheduler.Agent{mixed}, models, scheduler.TooBig,
			"it asks for 2 cuda.device, more than any agent has: the devices of no agent can be combined to it", nil},
		"no kernels": {nil, job(1, 10, 0), scheduler.TooBig, "it has no kernels", nil},
		"the largest": {[]scheduler.Agent{agent("a", 2, 8), agent("b", 4, 8)}, job(1, 10, 0, ask(6, 1)), scheduler.TooBig,
			"it asks for 6 cpu, 1 GiB mem, more than any agent has: the largest, b, is short of 2 cpu", []string{"ask for 4 cpu at most"}},
		"gang": {[]scheduler.Agent{agent("a", 4, 8)}, together, scheduler.TooBig,
			"each of its 2 kernels must be placed, one asks for 3 cpu, 1 GiB mem, " +
				"more than any agent has: all agents together cannot hold its kernels",
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{Agents: c.agents, Pending: []scheduler.Session{c.session}})[c.session.ID]
			require.Equal(t, c.reason, d.Hold.Reason)
			require.Equal(t, c.text, d.Hold.Text)
			require.Equal(t, c.remedies, d.Hold.Remedies)
			require.Empty(t, d.Hold.Elsewhere)
		})
	}
}

func TestAmountsInWords(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]string{
		1000: "1000 bytes mem", 1 << 10: "1 KiB mem", 1536 << 10: "1.5 MiB mem", 1 << 30: "1 GiB mem", 5 << 40: "5 TiB mem",
	} {
		d := plan(t, scheduler.Snapshot{
			Agents:  []scheduler.Agent{agent("a", 1, 0)},
			Pending: []scheduler.Session{job(1, 10, 0, cluster.Slots{cluster.SlotMem: cluster.Whole(bytes)})},
		})["s01"]
		require.Contains(t, d.Hold.Text, "it asks for "+want+",")
	}
}

func TestLimitsInWords(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	c.SetQuota(user, &scheduler.Quota{Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(3)}, Sessions: -1, Private: -1})
	c.Enqueue("g", job(0, 10, 0, ask(2, 1)))
	c.Enqueue("g", job(1, 10, 0, ask(2, 1)))
	c.Enqueue("g", job(2, 10, 0, ask(4, 1)))
	c.Enqueue("g", job(3, 10, 0, ask(1, 1), ask(1, 1)))
	require.Equal(t, []string{"s00"}, started(pass(t, c, now)))
	e, _ := c.Explain("s01")
	require.Equal(t, "user bob uses 2 cpu of its quota of 3 cpu, and it asks for 2 cpu", e.Text)
	require.Equal(t, cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, e.Shortfall)
	require.Equal(
		t,
		[]string{"ask for 1 cpu at most", "end sessions of user bob that use 1 cpu", "ask for a larger quota of user bob"},
		e.Remedies,
	)
	e, _ = c.Explain("s02")
	require.Equal(t, "user bob uses 2 cpu of its quota of 3 cpu, and it asks for 4 cpu, more than the whole quota", e.Text)
	require.Equal(t, []string{"ask for 1 cpu at most", "ask for a larger quota of user bob"}, e.Remedies)
	e, _ = c.Explain("s03")
	require.Equal(t, []string{"end sessions of user bob that use 1 cpu", "ask for a larger quota of user bob"}, e.Remedies)
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForQuota: 3}, c.Queue("g").Reasons)
	c.SetQuota(user, &scheduler.Quota{Sessions: 1, Private: -1})
	require.Empty(t, pass(t, c, now))
	e, _ = c.Explain("s01")
	require.Equal(t, "user bob has 1 live sessions, the limit is 1", e.Text)
	require.Equal(t, []string{"end a session of user bob", "ask for a higher limit of sessions for user bob"}, e.Remedies)
}

func TestRoomElsewhere(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	for _, name := range []string{"full", "small", "off", "two", "reserved"} {
		require.NoError(t, c.SetGroup(scheduler.Group{Name: name, Inactive: name == "off"}))
	}
	c.SetAgent("full", agent("f", 4, 8))
	c.SetAgent("small", agent("s", 2, 8))
	c.SetAgent("off", agent("o", 8, 8))
	c.SetAgent("two", agent("t1", 3, 8))
	c.SetAgent("two", agent("t2", 3, 8))
	c.SetAgent("reserved", agent("r", 8, 8))
	for group, n := range map[string]int{"g": 0, "full": 1} {
		c.Enqueue(group, job(n, 10, 0, ask(4, 1)))
	}
	c.Enqueue("reserved", job(2, 10, 0, ask(1, 1)))
	for _, group := range []string{"g", "full", "reserved"} {
		_, err := c.Pass(group, now, scheduler.Work{})
		require.NoError(t, err)
	}
	c.Enqueue("reserved", job(3, 10, 0, ask(8, 1)))
	_, err := c.Pass("reserved", now, scheduler.Work{})
	require.NoError(t, err)
	c.Enqueue("g", job(4, 10, 0, ask(3, 1)))
	c.Enqueue("g", job(5, 10, 0, ask(3, 1), ask(3, 1)))
	c.Enqueue("g", job(6, 10, 0, ask(2, 1), ask(2, 1), ask(2, 1)))
	require.Empty(t, pass(t, c, now))
	for id, want := range map[cluster.SessionID][]string{"s04": {"two"}, "s05": {"two"}, "s06": nil} {
		e, _ := c.Explain(id)
		require.Equal(t, want, e.Elsewhere, id)
	}
}

func TestWorkBoundsAPass(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a", "b", "c", "d")
	for n := range 12 {
		c.Enqueue("g", job(n, 10, 0, ask(int64(1+n%3), 1)))
	}
	run := func(w scheduler.Work) scheduler.Result {
		r, err := c.Pass("g", now, w)
		require.NoError(t, err)
		return r
	}
	r := run(scheduler.Work{Placements: 2})
	require.Len(t, r.Decisions, 2)
	require.True(t, r.More)
	r = run(scheduler.Work{Steps: 1})
	require.Len(t, r.Decisions, 1, "a pass does something")
	require.True(t, r.More)
	r = run(scheduler.Work{Placements: 100, Steps: 1000})
	require.False(t, r.More)
	require.Empty(t, run(scheduler.Work{}).Decisions)
}

func TestReasonsOfTheQueue(t *testing.T) {
	t.Parallel()
	lost := agent("big", 64, 256)
	lost.Alive = false
	shares := func(milli cluster.Amount) cluster.Slots { return cluster.Slots{"cuda.shares": milli} }
	for want, s := range map[scheduler.Reason]scheduler.Session{
		scheduler.WaitsForAgent: job(1, 10, 0, ask(8, 1)), scheduler.TooBig: job(1, 10, 0),
		scheduler.WaitsForDevices: job(1, 10, 0, shares(900)), scheduler.WaitsForCapacity: job(1, 10, 0, shares(1500)),
	} {
		c := filled(t, scheduler.Group{WholeDevices: true})
		c.SetAgent("g", withGPUs(agent("a", 4, 8), "cuda.shares", 2))
		c.SetAgent("g", lost)
		for n := range 2 {
			c.Run("g", scheduler.Running{Session: job(10+n, 10, 0), StartedAt: now, Placements: []scheduler.Placement{{
				Kernel: cluster.KernelID(fmt.Sprint(n)), Agent: "a",
				Allocation: alloc.Allocation{"cuda.shares": {fmt.Sprintf("g%d", n): 500}},
			}}})
		}
		c.Enqueue("g", s)
		require.Empty(t, pass(t, c, now))
		require.Equal(t, map[scheduler.Reason]int{want: 1}, c.Queue("g").Reasons)
	}
}

// TestReasonsWithoutAnAgent: a session waits for an agent while none is usable, even if those that are not would be too small.
func TestReasonsWithoutAnAgent(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	lost := agent("a", 4, 8)
	lost.Alive = false
	c.SetAgent("g", lost)
	c.Enqueue("g", job(1, 10, 0, ask(64, 1)))
	require.Empty(t, pass(t, c, now))
	require.Equal(t, map[scheduler.Reason]int{scheduler.WaitsForAgent: 1}, c.Queue("g").Reasons)
}

// TestReasonsOfSessionsWithFolders: folders are a wish about agents only while a volume hangs somewhere.
func TestReasonsOfSessionsWithFolders(t *testing.T) {
	t.Parallel()
	for want, hung := range map[scheduler.Reason][]string{scheduler.WaitsForDevices: nil, scheduler.WaitsForCapacity: {"other"}} {
		c := filled(t, scheduler.Group{WholeDevices: true})
		a := withGPUs(agent("a", 4, 8), "cuda.shares", 2)
		a.Hung = hung
		c.SetAgent("g", a)
		for n := range 2 {
			c.Run("g", scheduler.Running{Session: job(10+n, 10, 0), StartedAt: now, Placements: []scheduler.Placement{{
				Kernel: cluster.KernelID(fmt.Sprint(n)), Agent: "a",
				Allocation: alloc.Allocation{"cuda.shares": {fmt.Sprintf("g%d", n): 500}},
			}}})
		}
		s := job(1, 10, 0, cluster.Slots{"cuda.shares": 900})
		s.Volumes = []string{"v"}
		c.Enqueue("g", s)
		require.Empty(t, pass(t, c, now))
		require.Equal(t, map[scheduler.Reason]int{want: 1}, c.Queue("g").Reasons, hung)
	}
}

func TestEqualSessionsAreExplainedAlike(t *testing.T) {
	t.Parallel()
	var pending []scheduler.Session
	for n := range 6 {
		pending = append(pending, job(n, 10, 0, ask(3, 1)))
	}
	got := plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 4, 8)}, Pending: pending})
	for n := 1; n < 6; n++ {
		hold := got[cluster.SessionID(fmt.Sprintf("s%02d", n))].Hold
		require.NotNil(t, hold)
		require.Equal(t, scheduler.WaitsForCapacity, hold.Reason)
		require.Equal(t, cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}, hold.Shortfall)
		require.Equal(t, n, hold.Position)
	}
}

// TestExplanationsAreIndependent: whoever changes one explanation of a plan changes no other, though equal sessions share their findings.
func TestExplanationsAreIndependent(t *testing.T) {
	t.Parallel()
	s := scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 4, 8)}, Running: []scheduler.Running{holding("a", cores(2))}}
	for n := range 6 {
		s.Pending = append(s.Pending, job(n, 10, 0, ask(3, 1)))
	}
	got, untouched := plan(t, s), plan(t, s)
	for n := range 6 {
		id := cluster.SessionID(fmt.Sprintf("s%02d", n))
		e := got[id].Hold
		require.Equal(t, untouched[id].Hold, e)
		require.NotEmpty(t, e.Remedies)
		e.Rejected["cpu"], e.Shortfall[cluster.SlotCPU], e.Remedies[0] = 99, 99, "changed"
	}
}

// TestEqualSessionsOfOthersAreExplainedApart: near the front of the queue an explanation names sessions of the owner, so it is not shared.
func TestEqualSessionsOfOthersAreExplainedApart(t *testing.T) {
	t.Parallel()
	s := scheduler.Snapshot{
		Group: scheduler.Group{Backfill: scheduler.Backfill{Reservations: 2}},
		Pending: []scheduler.Session{
			job(1, 10, 0, ask(4, 1)), owned(2, "ada", ask(4, 1)), job(3, 10, 0, ask(4, 1)), job(4, 10, 0, ask(4, 2)),
			job(5, 10, 0, ask(4, 1)),
		},
	}
	s.Pending[1].EnqueuedAt = now.Add(2 * time.Second)
	for i, id := range []string{"a", "b", "c"} {
		s.Agents = append(s.Agents, agent(id, 4, 8))
		r := holding(cluster.AgentID(id), cores(4))
		r.Owner, r.Name, r.Lifetime = job(0, 0, 0).Owner, "train-"+id, time.Duration(25+i)*time.Hour
		s.Running = append(s.Running, r)
	}
	got := plan(t, s)
	require.Contains(t, got["s02"].Hold.Remedies, "wait for a session on agent c to end, by 2026-11-22 15:00:00 UTC")
	require.Contains(t, got["s03"].Hold.Remedies, "wait for session train-c on agent c to end, by 2026-11-22 15:00:00 UTC")
	require.Zero(t, got["s05"].Hold.Estimate, "too far behind for an estimate")
}

// TestElsewhereIsBounded: of all resource groups, the first 64 by name are looked at for room.
func TestElsewhereIsBounded(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	for n := range 70 {
		name := fmt.Sprintf("g%02d", n)
		require.NoError(t, c.SetGroup(scheduler.Group{Name: name}))
		c.SetAgent(name, agent("of-"+name, 4, 8))
	}
	c.Run("g", holding("a", cores(4)))
	c.Enqueue("g", job(1, 10, 0, ask(1, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s01")
	require.Len(t, e.Elsewhere, 63, "and its own group")
	require.Equal(t, "g62", e.Elsewhere[62])
}

// TestLessThanNothingFitsNowhere: a request for less than nothing is refused for ever, however little it is.
func TestLessThanNothingFitsNowhere(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{Rules: map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}}, "a")
	c.Enqueue("g", job(1, 10, 0, cluster.Slots{cluster.SlotCPU: -1}))
	require.Empty(t, pass(t, c, now))
	require.Equal(t, map[scheduler.Reason]int{scheduler.TooBig: 1}, c.Queue("g").Reasons)
}

// TestPrivateSessionsAreCounted: the limit of private sessions counts those that run, and only those.
func TestPrivateSessionsAreCounted(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}, &scheduler.Quota{Sessions: 1, Private: 2})
	for n := range 4 {
		s := job(n, 10, 0, ask(1, 1))
		s.Private = true
		c.Enqueue("g", s)
	}
	require.Equal(t, []string{"s00", "s01"}, started(pass(t, c, now)))
	e, _ := c.Explain("s02")
	require.Equal(t, "user bob has 2 live private sessions, the limit is 2", e.Text)
	c.Remove("s00")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
	c.Enqueue("g", job(5, 10, 0, ask(1, 1)))
	require.Equal(t, []string{"s05"}, started(pass(t, c, now)), "they take no place of other sessions")
}

// TestASessionBetweenTheLastTwo: the session before the last finds its place wherever the list is cut.
func TestASessionBetweenTheLastTwo(t *testing.T) {
	t.Parallel()
	for _, n := range []int{511, 512, 513, 514} {
		c := filled(t, scheduler.Group{}, "a")
		add := func(second int) {
			s := job(second, 10, 0, ask(9, 1))
			s.ID = cluster.SessionID(fmt.Sprintf("s%04d", second))
			c.Enqueue("g", s)
		}
		for i := range n {
			add(2 * i)
		}
		add(2*n - 3)
		for second, want := range map[int]int{2*n - 4: n - 1, 2*n - 3: n, 2*n - 2: n + 1} {
			e, _ := c.Explain(cluster.SessionID(fmt.Sprintf("s%04d", second)))
			require.Equal(t, want, e.Position, "%d of %d", second, n)
		}
	}
}

func TestProbeSaysWhyNot(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	pass(t, c, now)
	probe := func(change func(s *scheduler.Session)) *scheduler.Explanation {
		s := job(1, 10, 0, ask(1, 1), ask(1, 1))
		change(&s)
		d := c.Probe("g", now.Add(time.Hour), s)
		if d.Hold == nil {
			require.Len(t, d.Placements, 2)
			require.Equal(t, cluster.KernelID("s01-k1"), d.Placements[1].Kernel)
		}
		return d.Hold
	}
	require.Nil(t, probe(func(*scheduler.Session) {}))
	require.Nil(t, probe(func(s *scheduler.Session) { s.StartsAt = now.Add(time.Hour) }))
	require.Equal(t, scheduler.WaitsForStartTime, probe(func(s *scheduler.Session) { s.StartsAt = now.Add(2 * time.Hour) }).Reason)
	require.Equal(t, scheduler.WaitsForDependency, probe(func(s *scheduler.Session) { s.Waiting = "it waits" }).Reason)
	later := job(2, 10, 0, ask(1, 1))
	later.StartsAt = now.Add(30 * time.Minute)
	c.Enqueue("g", later)
	e, _ := c.Explain("s02")
	require.Equal(t, scheduler.WaitsForStartTime, e.Reason, "a probe does not move the clock")
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	c.SetQuota(user, &scheduler.Quota{Sessions: 0, Private: 1})
	require.Equal(t, scheduler.WaitsForConcurrency, probe(func(*scheduler.Session) {}).Reason)
	require.Nil(t, probe(func(s *scheduler.Session) { s.Private = true }))
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeProject, ID: "p"}, &scheduler.Quota{Sessions: 5, Private: 0})
	require.Equal(t, scheduler.WaitsForConcurrency, probe(func(s *scheduler.Session) { s.Private = true }).Reason)
	c.SetQuota(user, nil)
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "g", Inactive: true}))
	require.Equal(t, "its resource group g is not active", probe(func(*scheduler.Session) {}).Text)
}
