package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/packing"
)

// TestWhoMayBeAVictim: preemptible, not private, of lower priority, of the scope, and old enough.
func TestWhoMayBeAVictim(t *testing.T) {
	t.Parallel()
	owner := func(user, project, domain string) scheduler.Owner {
		return scheduler.Owner{
			AccessKey: cluster.AccessKey("key-" + user), User: cluster.UserID(user), Project: cluster.ProjectID(project), Domain: domain,
		}
	}
	keyOnly := scheduler.Owner{AccessKey: "key", Project: "x", Domain: "y"}
	mine := owner("bob", "p", "d")
	for name, c := range map[string]struct {
		scope  string
		asks   scheduler.Owner
		change func(r *scheduler.Running)
		want   bool
	}{
		"own":                       {"", mine, nil, true},
		"own, by name of the scope": {"user", mine, nil, true},
		"of another user":           {"user", mine, func(r *scheduler.Running) { r.Owner = owner("ada", "p", "d") }, false},
		"own in another project":    {"user", mine, func(r *scheduler.Running) { r.Owner = owner("bob", "q", "e") }, true},
		"of the project":            {"project", mine, func(r *scheduler.Running) { r.Owner = owner("ada", "p", "e") }, true},
		"of another project":        {"project", mine, func(r *scheduler.Running) { r.Owner = owner("bob", "q", "d") }, false},
		"of the domain":             {"domain", mine, func(r *scheduler.Running) { r.Owner = owner("ada", "q", "d") }, true},
		"of another domain":         {"domain", mine, func(r *scheduler.Running) { r.Owner = owner("bob", "p", "e") }, false},
		"of anybody":                {"resource-group", mine, func(r *scheduler.Running) { r.Owner = owner("ada", "q", "e") }, true},
		"of the same keypair":       {"user", keyOnly, func(r *scheduler.Running) { r.Owner = keyOnly }, true},
		"of another keypair": {"user", keyOnly, func(r *scheduler.Running) {
			r.Owner = scheduler.Owner{AccessKey: "other", Project: "x", Domain: "y"}
		}, false},
		"not preemptible":          {"", mine, func(r *scheduler.Running) { r.Preemptible = false }, false},
		"private":                  {"", mine, func(r *scheduler.Running) { r.Private = true }, false},
		"just lower":               {"", mine, func(r *scheduler.Running) { r.Priority = 49 }, true},
		"of the same priority":     {"", mine, func(r *scheduler.Running) { r.Priority = 50 }, false},
		"just old enough":          {"", mine, func(r *scheduler.Running) { r.StartedAt = now.Add(-time.Minute) }, true},
		"a moment too young":       {"", mine, func(r *scheduler.Running) { r.StartedAt = now.Add(-time.Minute + 1) }, false},
		"started at no known time": {"", mine, func(r *scheduler.Running) { r.StartedAt = time.Time{} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, preempting(c.scope), "a")
			r := preemptible("r", "a", 10, 0, 4)
			r.StartedAt, r.Owner = now.Add(-time.Hour), mine
			if c.change != nil {
				c.change(&r)
			}
			x.Run("g", r)
			s := job(1, 50, 0, ask(4, 1))
			s.Owner, s.EnqueuedAt = c.asks, now
			x.Enqueue("g", s)
			got, err := x.Pass("g", now, scheduler.Work{})
			require.NoError(t, err)
			require.Equal(t, c.want, len(got.Decisions) == 1)
			if c.want {
				require.Equal(t, []cluster.SessionID{"r"}, got.Decisions[0].Preempt)
				require.Zero(t, got.Wake)
			}
			if name == "a moment too young" {
				require.Equal(t, now.Add(1), got.Wake, "when it is old enough")
				require.Len(t, pass(t, x, got.Wake), 1)
			}
		})
	}
}

// TestOrdersOfVictims: which of several victims on one agent ends first.
func TestOrdersOfVictims(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]cluster.SessionID{
		"": "young", "newest": "young", "oldest": "old", "fewest-sessions": "large", "smallest-resources": "small",
	} {
		for _, scarce := range []bool{false, true} {
			c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true, Order: order}})
			c.SetAgent("g", agent("a", 9, 8))
			from := 0
			for id, n := range map[cluster.SessionID]int{"old": 2, "large": 4, "small": 1, "young": 2} {
				x := preemptible(id, "a", 10, from, n)
				x.StartedAt = now.Add(map[cluster.SessionID]time.Duration{"old": -3 * time.Hour, "young": time.Minute}[id] - time.Hour)
				if scarce && id == want {
					x.Priority = 20 // a higher priority keeps it, whatever the order
				}
				from += n
				c.Run("g", x)
			}
			c.Enqueue("g", job(1, 50, 0, ask(1, 1)))
			got := pass(t, c, now)
			require.Len(t, got, 1)
			require.Equal(t, scarce, got[0].Preempt[0] != want, "%s: %v", order, got[0].Preempt)
			require.Len(t, got[0].Preempt, 1)
		}
	}
}

// TestLeastFragmentationFallsBackToPack: a request or an agent that package packing knows nothing of is scored as pack does, after all
// that it knows.
func TestLeastFragmentationFallsBackToPack(t *testing.T) {
	t.Parallel()
	shares := func(milli cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.shares"] = milli
		return s
	}
	both := shares(1000)
	both["rocm.device"] = 1000
	with := func(id string, cuda, rocm int) scheduler.Agent {
		a := withGPUs(agent(id, 8, 16), "cuda.shares", cuda)
		return withGPUs(a, "rocm.device", rocm)
	}
	many := with("a", packing.MaxGPUs+1, 0)
	busy := holding("a", alloc.Allocation{"cuda.shares": {}})
	for i := range packing.MaxGPUs {
		busy.Placements[0].Allocation["cuda.shares"][fmt.Sprintf("g%d", i)] = 1000
	}
	for name, c := range map[string]struct {
		agents  []scheduler.Agent
		running []scheduler.Running
		asks    cluster.Slots
		want    cluster.AgentID
	}{
		"two kinds of accelerators": {[]scheduler.Agent{with("a", 3, 1), with("b", 1, 1), with("c", 2, 1)}, nil, both, "b"},
		"mostly of the second kind": {[]scheduler.Agent{with("a", 1, 3), with("b", 1, 1), with("c", 1, 2)}, nil, both, "b"},
		"more than a node of packing": {
			[]scheduler.Agent{with("a", packing.MaxGPUs+8, 0), with("b", packing.MaxGPUs+4, 0)}, nil, shares(33000), "b"},
		"an agent with too many":    {[]scheduler.Agent{many, with("b", 4, 0)}, []scheduler.Running{busy}, shares(1000), "b"},
		"only such an agent":        {[]scheduler.Agent{many}, []scheduler.Running{busy}, shares(1000), "a"},
		"other accelerators mostly": {[]scheduler.Agent{with("a", 1, 3), with("b", 4, 0)}, nil, shares(1000), "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{Placement: "least-fragmentation"})
			for _, a := range c.agents {
				x.SetAgent("g", a)
			}
			for _, r := range c.running {
				x.Run("g", r)
			}
			var typical []scheduler.Session
			for n := range 20 {
				typical = append(typical, job(n, 10, 0, shares(500)))
			}
			require.NoError(t, x.Learn("g", typical))
			require.Empty(t, pass(t, x, now))
			d := x.Probe("g", now, job(30, 10, 0, c.asks))
			require.Nil(t, d.Hold)
			require.Equal(t, c.want, d.Placements[0].Agent)
		})
	}
}

// TestSearchesForVictimsAreBounded: of each kind 16 owners and priorities search in a pass, 16 sessions of each, and 64 in all.
func TestSearchesForVictimsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owners, kinds, each int // sessions of each owner and kind
		want                int
	}{
		"sessions of one owner": {1, 1, 20, 16},
		"just as many":          {1, 1, 16, 16},
		"owners":                {20, 1, 1, 16},
		"all":                   {1, 6, 14, 64},
		"many owners":           {10, 1, 10, 64},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true, VictimScope: "resource-group"}})
			n := c.owners * c.kinds * c.each
			for i := range n {
				id := fmt.Sprintf("a%03d", i)
				x.SetAgent("g", agent(id, 4, 8))
				x.Run("g", preemptible(cluster.SessionID("r"+id), cluster.AgentID(id), 0, 0, 4))
			}
			for i := range n {
				s := owned(i, fmt.Sprint("u", i%c.owners), ask(4, int64(1+i/c.owners%c.kinds)))
				s.ID, s.Priority, s.EnqueuedAt = cluster.SessionID(fmt.Sprintf("s%03d", i)), 50, now
				x.Enqueue("g", s)
			}
			got := pass(t, x, now)
			require.Len(t, got, c.want)
			for _, d := range got {
				require.Len(t, d.Preempt, 1)
			}
		})
	}
}

// TestImagesOfAgentsAreTakenOver: where an image lies is used as it is now.
func TestImagesOfAgentsAreTakenOver(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a", "b")
	s := job(1, 10, 0, ask(1, 1))
	s.Kernels[0].Image = "python"
	for _, want := range []cluster.AgentID{"b", "a", "b"} {
		for _, id := range []cluster.AgentID{"a", "b"} {
			a := agent(string(id), 4, 8)
			a.Images = map[string]bool{"python": id == want}
			c.SetAgent("g", a)
		}
		require.Equal(t, want, c.Probe("g", now, s).Placements[0].Agent)
	}
}

// TestThePassWakesForTheFirstPossibleVictim: of sessions that are too young to end, the oldest one says when to look again.
func TestThePassWakesForTheFirstPossibleVictim(t *testing.T) {
	t.Parallel()
	for _, seconds := range [][3]time.Duration{{20, 10, 15}, {10, 20, 15}, {15, 10, 20}} {
		x := filled(t, preempting(""), "a")
		for i, n := range seconds {
			r := preemptible(cluster.SessionID(fmt.Sprint("r", i)), "a", 10, i, 1)
			r.StartedAt = now.Add(-n * time.Second)
			x.Run("g", r)
		}
		x.Enqueue("g", job(1, 50, 0, ask(4, 1)))
		got, err := x.Pass("g", now.Add(time.Second), scheduler.Work{})
		require.NoError(t, err)
		require.Empty(t, got.Decisions)
		require.Equal(t, now.Add(40*time.Second), got.Wake)
	}
}

// TestVictimsForTheYoungestFirst: where the youngest session goes first, it also looks for victims first, and then the next one.
func TestVictimsForTheYoungestFirst(t *testing.T) {
	t.Parallel()
	x := filled(t, scheduler.Group{Order: "lifo", Preemption: scheduler.Preemption{Enabled: true}}, "a", "b")
	x.Run("g", preemptible("on-a", "a", 10, 0, 4))
	x.Run("g", preemptible("on-b", "b", 10, 0, 4))
	for n := range 3 {
		x.Enqueue("g", job(n, 50, 0, ask(4, 1)))
	}
	got := pass(t, x, now)
	require.Len(t, got, 2)
	require.Equal(t, cluster.SessionID("s02"), got[0].Session)
	require.Equal(t, []cluster.SessionID{"on-a"}, got[0].Preempt)
	require.Equal(t, cluster.SessionID("s01"), got[1].Session)
	require.Equal(t, []cluster.SessionID{"on-b"}, got[1].Preempt)
}
