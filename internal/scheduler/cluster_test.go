package scheduler_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// world is a cluster beside the plain facts that it was told, so that every pass can be compared
// with a plan made from scratch.
type world struct {
	t       *rapid.T
	c       *scheduler.Cluster
	s       scheduler.Snapshot
	agents  map[cluster.AgentID]scheduler.Agent
	pending map[cluster.SessionID]scheduler.Session
	running map[cluster.SessionID]scheduler.Running
	next    int
}

func newWorld(t *rapid.T, g scheduler.Group) *world {
	w := &world{
		t: t, c: scheduler.NewCluster(), agents: map[cluster.AgentID]scheduler.Agent{}, pending: map[cluster.SessionID]scheduler.Session{},
		running: map[cluster.SessionID]scheduler.Running{},
	}
	w.s = scheduler.Snapshot{Now: now, Group: g, Quotas: map[scheduler.Scope]scheduler.Quota{}, Shares: map[scheduler.Scope]float64{}}
	require.NoError(t, w.c.SetGroup(g))
	return w
}

func (w *world) snapshot() scheduler.Snapshot {
	s := w.s
	for _, id := range slices.Sorted(maps.Keys(w.agents)) {
		s.Agents = append(s.Agents, w.agents[id])
	}
	for _, id := range slices.Sorted(maps.Keys(w.pending)) {
		s.Pending = append(s.Pending, w.pending[id])
	}
	for _, id := range slices.Sorted(maps.Keys(w.running)) {
		s.Running = append(s.Running, w.running[id])
	}
	return s
}

func (w *world) setAgent(id cluster.AgentID) {
	a := scheduler.Agent{
		ID: id, Architecture: rapid.SampledFrom([]string{"x86_64", "x86_64", "aarch64"}).Draw(w.t, "arch"),
		Alive: rapid.IntRange(0, 7).Draw(w.t, "alive") > 0, Schedulable: rapid.IntRange(0, 7).Draw(w.t, "schedulable") > 0,
		Images: map[string]bool{"python": rapid.Bool().Draw(w.t, "python")},
	}
	for i := range rapid.IntRange(1, 6).Draw(w.t, "cores") {
		a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), NUMA: i % 2, Capacity: 1000, Healthy: true})
	}
	a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotMem, ID: "root", NUMA: -1, Capacity: cluster.Whole(8 << 30), Healthy: true})
	model := rapid.SampledFrom([]string{"", "A100", "H100"}).Draw(w.t, "model")
	for i := range rapid.IntRange(0, 3).Draw(w.t, "gpus") {
		a.Devices = append(a.Devices, alloc.Device{
			Slot: "cuda.shares", ID: fmt.Sprintf("g%d", i), NUMA: i % 2, Model: model, Capacity: 1000,
			Healthy: rapid.IntRange(0, 9).Draw(w.t, "healthy") > 0,
		})
	}
	if rapid.IntRange(0, 3).Draw(w.t, "hangs") == 0 {
		a.Hung = []string{"local:v1"}
	}
	w.agents[id] = a
	w.c.SetAgent(w.s.Group.Name, a)
}

func (w *world) draw() scheduler.Session {
	t := w.t
	user := rapid.SampledFrom([]string{"ada", "bob", "cyd"}).Draw(t, "user")
	s := scheduler.Session{
		ID: cluster.SessionID(fmt.Sprintf("s%03d", w.next)), Name: fmt.Sprintf("n%d", w.next),
		Owner: scheduler.Owner{
			AccessKey: cluster.AccessKey(user),
			User:      cluster.UserID(user),
			Project:   cluster.ProjectID("p" + user[:1]),
			Domain:    "d",
		},
		Priority:   rapid.IntRange(0, 2).Draw(t, "priority") * 10,
		EnqueuedAt: w.s.Now.Add(-time.Duration(rapid.IntRange(0, 50).Draw(t, "age")) * time.Minute),
		Lifetime:   time.Duration(rapid.SampledFrom([]int{0, 0, 5, 30, 90}).Draw(t, "life")) * time.Minute,
		SingleNode: rapid.Bool().Draw(t, "single"), Private: rapid.IntRange(0, 9).Draw(t, "private") == 0,
		Preemptible: rapid.Bool().Draw(t, "preemptible"),
	}
	w.next++
	for i := range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "kernels") {
		k := scheduler.Kernel{
			ID:    cluster.KernelID(fmt.Sprintf("%s-%d", s.ID, i)),
			Slots: ask(rapid.Int64Range(1, 4).Draw(t, "cpu"), rapid.Int64Range(0, 4).Draw(t, "mem")),
		}
		k.Architecture = rapid.SampledFrom([]string{"", "x86_64", "aarch64"}).Draw(t, "kernel-arch")
		k.Image = rapid.SampledFrom([]string{"", "python"}).Draw(t, "image")
		k.Local = k.Image != "" && rapid.IntRange(0, 3).Draw(t, "local") == 0
		if g := rapid.SampledFrom([]int64{0, 0, 300, 500, 1000, 2000}).Draw(t, "shares"); g > 0 {
			k.Slots["cuda.shares"] = cluster.Amount(g)
			if rapid.IntRange(0, 3).Draw(t, "choosy") == 0 {
				k.Models = []string{"A100"}
			}
		}
		s.Kernels = append(s.Kernels, k)
	}
	s.Volumes = rapid.SampledFrom([][]string{nil, nil, {"local:v1"}, {"local:v0", "local:v1"}, {"local:v2"}}).Draw(t, "volumes")
	switch rapid.IntRange(0, 11).Draw(t, "wish") {
	case 0:
		s.StartsAt = w.s.Now.Add(time.Duration(rapid.IntRange(-5, 20).Draw(t, "start")) * time.Minute)
	case 1:
		s.Waiting = "it waits for session train"
	case 2:
		s.Designated = []cluster.AgentID{"a1", "a2"}
	case 3:
		s.Failed = []cluster.AgentID{"a0"}
	case 4:
		s.Companions = scheduler.Companions{Name: "c", Apart: rapid.Bool().Draw(t, "apart"), Strict: rapid.Bool().Draw(t, "strict")}
	}
	return s
}

// hangs reports whether a volume of the session does not answer on the agent.
func hangs(a scheduler.Agent, s scheduler.Session) bool {
	return slices.ContainsFunc(s.Volumes, func(v string) bool { return slices.Contains(a.Hung, v) })
}

func pick[V any](w *world, m map[cluster.SessionID]V) (cluster.SessionID, bool) {
	if len(m) == 0 {
		return "", false
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(w.t, "which"), true
}

// change does one random thing to the cluster and to the facts.
func (w *world) change() {
	switch rapid.IntRange(0, 14).Draw(w.t, "change") {
	case 0, 1:
		w.setAgent(cluster.AgentID(fmt.Sprintf("a%d", rapid.IntRange(0, 4).Draw(w.t, "agent"))))
	case 2:
		if rapid.IntRange(0, 3).Draw(w.t, "really") == 0 {
			id := cluster.AgentID(fmt.Sprintf("a%d", rapid.IntRange(0, 4).Draw(w.t, "agent")))
			delete(w.agents, id)
			w.c.RemoveAgent(id)
		}
	case 14:
		if len(w.agents) > 0 { // another image is present
			id := slices.Min(slices.Collect(maps.Keys(w.agents)))
			a := w.agents[id]
			a.Images = map[string]bool{"python": rapid.Bool().Draw(w.t, "python")}
			w.agents[id] = a
			w.c.SetAgent(w.s.Group.Name, a)
		}
	case 3, 4, 5, 6, 7:
		s := w.draw()
		w.pending[s.ID] = s
		w.c.Enqueue(w.s.Group.Name, s)
	case 8:
		if id, ok := pick(w, w.pending); ok {
			delete(w.pending, id)
			w.c.Remove(id)
		}
	case 9, 10:
		if id, ok := pick(w, w.running); ok {
			delete(w.running, id)
			w.c.Remove(id)
		}
	case 11:
		scope := scheduler.Scope{Kind: scheduler.ScopeUser, ID: rapid.SampledFrom([]string{"ada", "bob"}).Draw(w.t, "owner")}
		if rapid.Bool().Draw(w.t, "lift") {
			delete(w.s.Quotas, scope)
			w.c.SetQuota(scope, nil)
			return
		}
		q := scheduler.Quota{Sessions: rapid.IntRange(-1, 4).Draw(w.t, "sessions"), Private: 1}
		if rapid.Bool().Draw(w.t, "limited") {
			q.Slots = cluster.Slots{cluster.SlotCPU: cluster.Whole(rapid.Int64Range(0, 8).Draw(w.t, "quota"))}
		}
		w.s.Quotas[scope] = q
		w.c.SetQuota(scope, &q)
	case 12:
		scope := scheduler.Scope{Kind: scheduler.ScopeUser, ID: rapid.SampledFrom([]string{"ada", "bob"}).Draw(w.t, "owner")}
		w.s.Shares[scope] = float64(rapid.IntRange(0, 3).Draw(w.t, "share"))
		w.c.SetShare(w.s.Group.Name, scope, w.s.Shares[scope])
	case 13:
		w.s.Now = w.s.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(w.t, "minutes")) * time.Minute)
	}
}

// start moves what a pass started from waiting to running.
func (w *world) start(decisions []scheduler.Decision) {
	for _, d := range decisions {
		if d.Hold != nil {
			continue
		}
		for _, p := range d.Placements {
			require.False(w.t, hangs(w.agents[p.Agent], w.pending[d.Session]), "%s starts where a volume of it hangs", d.Session)
		}
		w.running[d.Session] = scheduler.Running{Session: w.pending[d.Session], StartedAt: w.s.Now, Placements: d.Placements}
		delete(w.pending, d.Session)
	}
}

func policies(t *rapid.T) scheduler.Group {
	g := scheduler.Group{
		Name: "g", Order: rapid.SampledFrom([]string{"fifo", "lifo", "drf", "fair-share"}).Draw(t, "order"),
		Placement: rapid.SampledFrom([]string{"pack", "spread"}).Draw(t, "placement"), WholeDevices: rapid.Bool().Draw(t, "whole"),
	}
	g.Backfill.Disabled = rapid.IntRange(0, 4).Draw(t, "backfill") == 0
	g.Backfill.PassedOver = time.Duration(rapid.SampledFrom([]int{0, 0, 20}).Draw(t, "passed-over")) * time.Minute
	g.Backfill.Reservations = rapid.IntRange(0, 3).Draw(t, "reservations")
	if g.Order != "lifo" && rapid.IntRange(0, 3).Draw(t, "ageing") == 0 {
		g.OrderOptions = map[string]any{"ageing_seconds": 120.0}
	}
	return g
}

// TestClusterEqualsPlan walks a cluster through random changes: each of its passes, and what it
// tells about those that wait, is what a plan from scratch says.
func TestClusterEqualsPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, policies(t))
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				w.change()
			}
			s := w.snapshot()
			want, err := scheduler.Plan(s)
			require.NoError(t, err)
			got, err := w.c.Pass("g", w.s.Now, scheduler.Work{})
			require.NoError(t, err)
			require.False(t, got.More)
			var started []scheduler.Decision
			for _, d := range want {
				if d.Hold == nil {
					started = append(started, d)
				}
			}
			require.Equal(t, started, got.Decisions)
			for _, d := range want {
				if d.Hold != nil {
					e, ok := w.c.Explain(d.Session)
					require.True(t, ok)
					require.Equal(t, *d.Hold, e, "session %s", d.Session)
				}
			}
			require.Equal(t, len(s.Pending)-len(started), w.c.Queue("g").Pending)
			w.start(got.Decisions)
			checkRoom(t, w, got.Decisions)
		}
	})
}

// checkRoom verifies that what was just started holds healthy devices that nobody else holds.
func checkRoom(t require.TestingT, w *world, decisions []scheduler.Decision) {
	used := map[cluster.AgentID]alloc.Allocation{}
	for _, r := range w.running {
		for _, p := range r.Placements {
			used[p.Agent] = used[p.Agent].Add(p.Allocation)
		}
	}
	for _, d := range decisions {
		for _, p := range d.Placements {
			a := w.agents[p.Agent]
			require.True(t, a.Alive && a.Schedulable)
			for _, dev := range a.Devices {
				if p.Allocation[dev.Slot][dev.ID] > 0 {
					require.True(t, dev.Healthy)
					require.LessOrEqual(t, used[p.Agent][dev.Slot][dev.ID], dev.Capacity, "%s of %s", dev.ID, p.Agent)
				}
			}
		}
	}
}

// TestNobodyWaitsForRoomThatIsThere checks with the agents' own allocator that who is said to wait
// for room fits nowhere.
func TestNobodyWaitsForRoomThatIsThere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, policies(t))
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(1, 5).Draw(t, "changes") {
				w.change()
			}
			w.start(pass(t, w.c, w.s.Now))
			used := map[cluster.AgentID]alloc.Allocation{}
			for _, r := range w.running {
				for _, p := range r.Placements {
					used[p.Agent] = used[p.Agent].Add(p.Allocation)
				}
			}
			for id, s := range w.pending {
				e, ok := w.c.Explain(id)
				require.True(t, ok)
				require.NotEqual(t, scheduler.WaitsForPass, e.Reason)
				if len(s.Kernels) != 1 || s.Companions.Name != "" || !slices.Contains([]scheduler.Reason{
					scheduler.WaitsForCapacity, scheduler.WaitsForDevices, scheduler.WaitsForAgent, scheduler.TooBig}, e.Reason) {
					continue
				}
				k := s.Kernels[0]
				for _, a := range w.agents {
					if !a.Alive || !a.Schedulable || k.Architecture != "" && k.Architecture != a.Architecture ||
						len(s.Designated) > 0 && !slices.Contains(s.Designated, a.ID) || hangs(a, s) || k.Local && !a.Images[k.Image] {
						continue
					}
					got, err := alloc.Fit(a.Devices, used[a.ID], k.Slots, alloc.Policy{
						NoFragment: w.s.Group.WholeDevices, Models: k.Models, Isolation: k.Isolation})
					require.Error(t, err, "%s waits for %s and fits %s: %v", id, e.Reason, a.ID, got)
				}
			}
		}
	})
}
