package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// fakeQueue is the part of the fake manager that schedules.
type fakeQueue struct {
	explanation api.Explanation
	plan        api.Explanation
	dry         []api.CreateSession
	// work are the sessions of agent i-worker1, one look after the other; the last stays.
	work     [][]api.AgentSession
	cordoned bool
	// uncordonAt is the look at which somebody else uncordons the agent; 0 is never.
	uncordonAt, looks int
	// away are the looks at which the manager is restarting.
	away    map[int]bool
	status  api.SchedulerStatus
	patches []map[string]any
}

func (f *fakeManager) queueRoutes(handle func(string, func(http.ResponseWriter, *http.Request))) {
	handle("GET /session/{s}/explain", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s := f.find(w, r.PathValue("s")); s != nil {
			e := f.queue.explanation
			e.Session, e.Name, e.Status = s.ID, s.Name, s.Status
			reply(w, 200, e)
		}
	})
	handle("GET /resource/agents/{a}", func(w http.ResponseWriter, r *http.Request) { f.agentWork(w, r) })
	handle("PATCH /resource/agents/{a}", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Schedulable *bool }
		if json.NewDecoder(r.Body).Decode(&body) != nil || body.Schedulable == nil {
			problem(w, 400, api.SlugInvalidParams, "schedulable is missing", "")
			return
		}
		f.mu.Lock()
		f.queue.cordoned = !*body.Schedulable
		f.mu.Unlock()
		f.agentWork(w, r)
	})
	handle("GET /manager/scheduler", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, f.queue.status) })
	handle("GET /scaling-groups/{sg}/scheduler", f.policy)
	handle("PATCH /scaling-groups/{sg}/scheduler", f.policy)
}

func (f *fakeManager) agentWork(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := &f.queue
	if r.PathValue("a") != "i-worker1" {
		problem(w, 404, api.SlugNotFound, "No such agent instance: "+r.PathValue("a"), "")
		return
	}
	if q.looks++; q.away[q.looks] {
		problem(w, 503, api.SlugUnavailable, "the manager is restarting", "")
		return
	}
	if q.looks == q.uncordonAt {
		q.cordoned = false
	}
	var now []api.AgentSession
	if len(q.work) > 0 {
		now = q.work[0]
		if len(q.work) > 1 {
			q.work = q.work[1:]
		}
	}
	out := api.AgentWork{
		ID: "i-worker1", Status: "ALIVE", Schedulable: !q.cordoned, ResourceGroup: "default", Sessions: []api.AgentSession{},
	}
	for _, s := range now {
		if fake := f.sessions[s.ID]; fake != nil && api.Ended(fake.Status) {
			continue
		}
		out.Sessions = append(out.Sessions, s)
	}
	out.SessionCount = len(out.Sessions)
	reply(w, 200, out)
}

func (f *fakeManager) policy(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.PathValue("sg") != "default" {
		problem(w, 404, api.SlugNotFound, "No such scaling group: "+r.PathValue("sg"), "")
		return
	}
	if r.Method == http.MethodPatch {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		f.queue.patches = append(f.queue.patches, body)
		if body["scheduler"] == "astrology" {
			problem(w, 400, api.SlugInvalidParams, `the scheduler "astrology" does not exist`, "use one of fifo, lifo, drf, fair-share")
			return
		}
	}
	reply(w, 200, api.SchedulerPolicy{ResourceGroup: "default", Active: true, Scheduler: "drf", Placement: "pack",
		Options: json.RawMessage(
			`{"agent_selection_strategy":"pack","preemption":{"enabled":true,"order":"newest"},"pending_timeout":600,` +
				`"allowed_session_types":["batch"]}`,
		)})
}

// pending adds a waiting session.
func (b *bench) pending(name string) {
	b.sessions["00000000-0000-4000-8000-0000000000aa"] = &fakeSession{SessionInfo: api.SessionInfo{
		ID: "00000000-0000-4000-8000-0000000000aa", Name: name, Status: api.StatusPending, Type: api.TypeInteractive,
		CreatedAt: "2026-11-20T08:00:00+00:00",
	}}
}

func waits() api.Explanation {
	by := "2026-11-20T08:15:00+00:00"
	return api.Explanation{
		Waits:         true,
		ResourceGroup: "default",
		Reason:        "capacity",
		Msg:           "it asks for 4 cpu, 2 GiB mem, the best agent i-worker2 lacks 1 cpu now",
		Rejected: map[string]int{
			"cpu": 2, "not-schedulable": 1, "mystery": 1,
		},
		Shortfall: map[string]string{"cpu": "1", "mem": "536870912"},
		Position:  2,
		Queue:     7,
		Estimate:  &by,
		Remedies:  []string{"ask for 3 cpu", "resource group rg-b has room"},
		AsOf:      "2026-11-20T08:05:00+00:00",
	}
}

func TestSessionWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pending("mylab")
	b.queue.explanation = waits()

	o := b.do(t, "", "session", "why", "mylab")

	require.Zero(t, o.code, o.err)
	require.Equal(t, `mylab waits: it asks for 4 cpu, 2 GiB mem, the best agent i-worker2 lacks 1 cpu now.

reason      capacity
short of    cpu 1, mem 512 MiB
agents      2 short of cpu, 1 short of mystery, 1 cordoned
place       2 of 7 in resource group default
starts by   2026-11-20 08:15:00 UTC (in 10m0s)
what helps  ask for 3 cpu
            resource group rg-b has room
`, o.out)

	o = b.do(t, "", "session", "why", "mylab", "--json")
	require.Zero(t, o.code)
	var e api.Explanation
	require.NoError(t, json.Unmarshal([]byte(o.out), &e))
	require.Equal(t, "capacity", e.Reason)
	require.Equal(t, 2, e.Rejected["cpu"])

	o = b.do(t, "", "session", "info", "mylab", "--explain")
	require.Zero(t, o.code)
	require.Contains(t, o.out, "what helps  ask for 3 cpu\n")
	o = b.do(t, "", "session", "info", "mylab")
	require.NotContains(t, o.out, "what helps")
	o = b.do(t, "", "session", "info", "mylab", "--explain", "--json")
	require.Contains(t, o.out, `"explanation": {`)

	o = b.do(t, "", "session", "list")
	require.Contains(t, o.out, "capacity", "the short reason")
}

func TestSessionWhyOfWhatDoesNotWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pending("mylab")
	b.sessions["00000000-0000-4000-8000-0000000000aa"].Status = api.StatusCancelled
	b.queue.explanation = api.Explanation{Msg: "it is CANCELLED (dependency-failed)"}

	require.Equal(
		t, "mylab does not wait: it is CANCELLED (dependency-failed).\n",
		b.do(t, "", "session", "why", "00000000-0000-4000-8000-0000000000aa").out,
	)

	o := b.do(t, "", "session", "why", "nobody")
	require.Equal(t, frame.ExitNotFound, o.code)
	require.Contains(t, o.err, "next: berth session list")
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queue.plan = api.Explanation{DryRun: true, Name: "train", ResourceGroup: "gpus", Msg: "it would start now",
		Placements: []api.PlannedKernel{
			{Agent: "i-worker1", Devices: map[string]map[string]string{"cpu": {"0": "1", "1": "1"}, "cuda.shares": {"GPU-1": "0.5"}}},
			{Agent: "i-worker2"},
		}}

	o := b.do(
		t, "", "session", "create", "python", "--name", "train", "--batch", "true", "--starts-at", "10m", "--batch-timeout", "2h",
		"--depends", "other", "--priority", "30", "--cluster-size", "2", "--cluster-mode", "multi-node", "--no-preempt", "--agent",
		"i-worker1", "--agent", "i-worker2", "--dry-run",
	)

	require.Zero(t, o.code, o.err)
	require.Equal(t, `train would start at once.

resource group  gpus
would run on    i-worker1: cpu 0=1 1=1, cuda.shares GPU-1=0.5
                i-worker2: 
`, o.out)
	require.Empty(t, b.creates)
	r := b.queue.dry[0]
	require.Equal(t, []string{"other"}, r.Dependencies)
	require.Equal(t, "10m", r.StartsAt)
	require.Equal(t, "2h", r.BatchTimeout)
	require.Equal(t, 30, *r.Priority)
	require.Equal(t, 2, r.ClusterSize)
	require.Equal(t, "multi-node", r.ClusterMode)
	require.False(t, *r.Preemptible)
	require.Equal(t, []string{"i-worker1", "i-worker2"}, r.Config.AgentList)
	require.Equal(t, api.TypeBatch, r.Type)

	b.queue.plan = waits()
	b.queue.plan.DryRun, b.queue.plan.Name = true, "run-1"
	o = b.do(t, "", "run", "python", "--dry-run", "-r", "cpu=4")
	require.Zero(t, o.code, o.err)
	require.True(t, strings.HasPrefix(o.out, "run-1 would wait: it asks for 4 cpu"), o.out)
	require.Empty(t, b.creates)
	require.Empty(t, b.destroys)

	o = b.do(t, "", "session", "create", "nope", "--dry-run")
	require.Equal(t, frame.ExitNotFound, o.code)
	require.Equal(t, frame.ExitUsage, b.do(t, "", "run", "python", "-c", "1", "--starts-at", "10m").code)
	require.Contains(t, b.do(t, "", "session", "create", "python", "--dry-run", "--json").out, `"reason": "capacity"`)
}

func TestCordon(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agents = 2
	b.queue.work = [][]api.AgentSession{{{ID: "s1", Name: "mylab", User: "ada@x", Status: api.StatusRunning}}}

	o := b.do(t, "", "agent", "cordon", "i-worker1")
	require.Equal(
		t, outcome{"i-worker1\n", "agent i-worker1 is cordoned and keeps 1 session; berth agent drain i-worker1 waits for them\n", 0}, o,
	)
	require.True(t, b.queue.cordoned)
	o = b.do(t, "", "agent", "cordon", "nobody", "i-worker1")
	require.Equal(t, frame.ExitNotFound, o.code)
	require.Equal(t, "i-worker1\n", o.out)
	require.Contains(t, o.err, "next: berth agent list")
	o = b.do(t, "", "agent", "uncordon", "i-worker1")
	require.Equal(t, outcome{"i-worker1\n", "agent i-worker1 takes sessions again\n", 0}, o)
	require.Contains(t, b.do(t, "", "agent", "list").out, "ALIVE, cordoned")
}

func TestDrain(t *testing.T) {
	t.Parallel()
	running := api.AgentSession{ID: "00000000-0000-4000-8000-0000000000aa", Name: "mylab", User: "ada@x", Status: api.StatusRunning}
	ending := api.AgentSession{ID: "s2", Name: "other", User: "bob@x", Status: api.StatusTerminating}
	begin := func(t *testing.T, work ...[]api.AgentSession) *bench {
		b := setup(t)
		b.pending("mylab")
		b.sessions[running.ID].Status = api.StatusRunning
		b.queue.work = work
		return b
	}

	t.Run("waits for the sessions", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running, ending}, []api.AgentSession{running}, nil)
		o := b.do(t, "", "agent", "drain", "i-worker1")
		require.Zero(t, o.code, o.err)
		require.Equal(t, "i-worker1\n", o.out)
		require.Equal(t, `i-worker1: 2 sessions left: mylab of ada@x, other of bob@x (terminating)
i-worker1: 1 session left: mylab of ada@x
agent i-worker1 is drained: it holds nothing and takes nothing new; berth agent uncordon i-worker1 takes it back
`, o.err)
		require.Empty(t, b.destroys)
		require.True(t, b.queue.cordoned)
	})
	t.Run("gives up after its timeout and says what is left", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running})
		o := b.do(t, "", "agent", "drain", "i-worker1", "--timeout", "20ms")
		require.Equal(t, frame.ExitUnavailable, o.code)
		require.Contains(t, o.err, "stays cordoned with 1 session left (mylab of ada@x)")
		require.Contains(t, o.err, "berth agent uncordon i-worker1")
		require.Empty(t, b.destroys)
	})
	t.Run("ends what is left with force", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running})
		o := b.do(t, "", "agent", "drain", "i-worker1", "--force", "--timeout", "5ms")
		require.Zero(t, o.code, o.err)
		require.Equal(t, []string{"mylab wait=0"}, b.destroys)
		o = begin(t, nil).do(t, "", "agent", "drain", "i-worker1", "--force")
		require.Zero(t, o.code, o.err)
	})
	t.Run("can be interrupted", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running})
		b.signals <- nil
		o := b.do(t, "", "agent", "drain", "i-worker1", "--force", "--timeout", "1h")
		require.Equal(t, frame.ExitInterrupted, o.code)
		require.Contains(t, o.err, "stays cordoned with 1 session left")
		require.Empty(t, b.destroys, "an interrupted drain ends nothing")
	})
	t.Run("stops when somebody takes the agent back", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running})
		b.queue.uncordonAt = 3
		o := b.do(t, "", "agent", "drain", "i-worker1")
		require.Equal(t, frame.ExitFailure, o.code)
		require.Contains(t, o.err, "somebody uncordoned agent i-worker1")
	})
	t.Run("outlives a restart of the manager", func(t *testing.T) {
		t.Parallel()
		b := begin(t, []api.AgentSession{running}, []api.AgentSession{running}, nil)
		b.queue.away = map[int]bool{2: true, 3: true}
		o := b.do(t, "", "agent", "drain", "i-worker1")
		require.Zero(t, o.code, o.err)
		require.Contains(t, o.err, "looking again")
	})
	t.Run("of an unknown agent", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, frame.ExitNotFound, begin(t).do(t, "", "agent", "drain", "nobody").code)
	})
}

func TestSchedulerStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queue.status = api.SchedulerStatus{
		Manager:  "m1",
		Leader:   true,
		LastPass: "2026-11-20T08:04:58+00:00",
		Drift:    1,
		Groups: []api.GroupStatus{
			{
				Name: "default", Active: true, Scheduler: "fifo", Placement: "pack", Pending: 5,
				Reasons: map[string]int{"quota": 1, "capacity": 4}, Running: 3, AgentsAlive: 2, AgentsCordoned: 1,
				Capacity: map[string]string{"cpu": "8", "mem": "2147483648"}, Occupied: map[string]string{"cpu": "3"},
			},
			{Name: "old", Scheduler: "fifo", AgentsLost: 2, Warning: "its options cannot be used"},
		},
	}

	o := b.do(t, "", "scheduler", "status")

	require.Zero(t, o.code, o.err)
	require.Equal(t, `GROUP           ORDER  PLACEMENT  WAITING                  RUNNING  AGENTS         USED
default         fifo   pack       5 (4 capacity, 1 quota)  3        2, 1 cordoned  cpu 3 of 8, mem 0 B of 2 GiB
old (inactive)  fifo              0                        0        0, 2 lost
`, o.out)
	require.Contains(t, o.err, "manager m1 decides; it last looked 2s ago\n")
	require.Contains(t, o.err, "corrected 1 difference")
	require.Contains(t, o.err, "resource group old: its options cannot be used")
	require.Contains(t, b.do(t, "", "scheduler", "status", "--json").out, `"scaling_groups"`)
}

func TestSchedulerPolicy(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(t, "", "scheduler", "policy", "default")
	require.Zero(t, o.code, o.err)
	require.Equal(t, `resource group         default
order                  drf
placement              pack
allowed_session_types  ["batch"]
pending_timeout        600
preemption.enabled     true
preemption.order       newest
`, o.out)
	require.Empty(t, b.queue.patches)

	o = b.do(
		t, "", "scheduler", "policy", "default", "--order", "fair-share", "--order-option", "half_life_days=3", "--placement", "spread",
		"--preemption", "on", "--min-runtime", "10m", "--victims", "project", "--pending-timeout", "0", "--option",
		"allowed_session_types=", "--option", "config.word=three words",
	)
	require.Zero(t, o.code, o.err)
	require.Equal(t, map[string]any{"scheduler": "fair-share", "scheduler_opts": map[string]any{
		"config": map[string]any{
			"half_life_days": 3.0, "word": "three words",
		}, "agent_selection_strategy": "spread", "pending_timeout": 0.0, "allowed_session_types": nil,
		"preemption": map[string]any{"enabled": true, "preemption_min_runtime": 600.0, "victim_scope": "project"},
	}}, b.queue.patches[0])

	o = b.do(t, "", "scheduler", "policy", "default", "--order", "astrology")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "next: use one of fifo, lifo, drf, fair-share")
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "scheduler", "policy", "nowhere").code)
	for _, wrong := range [][]string{{
		"--preemption", "maybe",
	}, {
		"--option", "noequals",
	}, {
		"--option", ".x=1",
	}, {
		"--option", "a=1", "--option", "a=2",
	}} {
		require.Equal(t, frame.ExitUsage, b.do(t, "", append([]string{"scheduler", "policy", "default"}, wrong...)...).code, wrong)
	}
	require.Len(t, b.queue.patches, 2)
}

func TestSchedulerPoliciesAreAskedOfTheManager(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, "orders      fifo, astrology\nplacements  pack, feng-shui\n", b.do(t, "", "scheduler", "policies").out)
	var p api.SchedulingPolicies
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "scheduler", "policies", "--json").out), &p))
	require.Equal(t, api.SchedulingPolicies{Orders: []string{"fifo", "astrology"}, Placements: []string{"pack", "feng-shui"}}, p)
	require.Contains(t, b.do(t, "", "__complete", "scheduler", "policy", "default", "--order", "as").out, "astrology\n")
	require.Contains(t, b.do(t, "", "__complete", "scheduler", "policy", "default", "--placement", "").out, "pack\nfeng-shui\n")
}
