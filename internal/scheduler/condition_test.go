package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// TestAnAgentWithAProblemGetsNothing: the others take the sessions, and where there are none the words of the problem are told.
func TestAnAgentWithAProblemGetsNothing(t *testing.T) {
	t.Parallel()
	sick, well := agent("a", 4, 8), agent("b", 4, 8)
	sick.Problem = "disk: it has less than 4 GiB free"
	s := session(1, ask(1, 1))
	got := plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{sick, well}, Pending: []scheduler.Session{s}})[s.ID]
	require.Len(t, got.Placements, 1)
	require.Equal(t, well.ID, got.Placements[0].Agent)
	hold := plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{sick}, Pending: []scheduler.Session{s}})[s.ID].Hold
	require.Equal(t, scheduler.WaitsForAgent, hold.Reason)
	require.Equal(t, map[string]int{"condition": 1}, hold.Rejected)
	require.Contains(t, hold.Text, "agent a takes none: disk: it has less than 4 GiB free")
	require.Contains(t, hold.Remedies, "ask an administrator to repair agent a: berth agent list")
	large := session(2, ask(4, 1))
	hold = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{sick, agent("c", 2, 8)}, Pending: []scheduler.Session{large}})[large.ID].Hold
	require.Equal(t, scheduler.WaitsForAgent, hold.Reason)
	require.Contains(t, hold.Text, "or have a problem")
}

// TestAProbeIsOneSession: an agent that is tried gets one session of a pass, and another one in the next pass unless its facts say else.
func TestAProbeIsOneSession(t *testing.T) {
	t.Parallel()
	c := scheduler.NewCluster()
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "default"}))
	tried := agent("a", 8, 8)
	tried.Probe = cluster.ProbeByAny
	c.SetAgent("default", tried)
	for i := range 5 {
		c.Enqueue("default", session(i, ask(1, 1)))
	}
	pass := func(n int) int {
		r, err := c.Pass("default", now.Add(time.Hour+time.Duration(n)*time.Second), scheduler.Work{})
		require.NoError(t, err)
		placed := 0
		for _, d := range r.Decisions {
			if len(d.Placements) > 0 {
				placed++
			}
		}
		return placed
	}
	require.Equal(t, 1, pass(1))
	e, waits := c.Explain(cluster.SessionID("s01"))
	require.True(t, waits)
	require.Equal(t, scheduler.WaitsForAgent, e.Reason)
	require.Equal(t, 1, pass(2), "the caller did not say that it has sent the first one")
	tried.Probe, tried.Problem = cluster.NoProbe, "quarantine: it is being tried with one session now"
	c.SetAgent("default", tried)
	require.Zero(t, pass(3))
	tried.Problem = ""
	c.SetAgent("default", tried)
	require.Equal(t, 3, pass(4), "all start when the probe has")
}

// TestOthersTryAnAgentFirst: a session that failed on an agent in quarantine does not use up its probes while others wait.
func TestOthersTryAnAgentFirst(t *testing.T) {
	t.Parallel()
	tried := agent("a", 1, 8)
	tried.Probe = cluster.ProbeByOthers
	failed, other := session(1, ask(1, 1)), session(2, ask(1, 1))
	failed.Failed = []cluster.AgentID{"a"}
	got := plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{tried}, Pending: []scheduler.Session{failed, other}})
	require.Empty(t, got[failed.ID].Placements)
	require.Len(t, got[other.ID].Placements, 1)
	require.Contains(t, got[failed.ID].Hold.Text, "agent a takes none: sessions failed there, and it is tried with one other first")
	got = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{tried}, Pending: []scheduler.Session{failed}})
	require.Contains(t, got[failed.ID].Hold.Text, "agent a does not take it: sessions failed there, this one too")
	tried.Probe = cluster.ProbeByAny
	got = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{tried}, Pending: []scheduler.Session{failed, other}})
	require.Len(t, got[failed.ID].Placements, 1)
}

// TestTheNewestProblemIsTold: an agent whose problem becomes another one.
func TestTheNewestProblemIsTold(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	a := agent("a", 4, 8)
	for _, problem := range []string{"disk: it is nearly full", "disk: it is full"} {
		a.Problem = problem
		c.SetAgent("g", a)
		require.Contains(t, c.Probe("g", now, job(1, 10, 0, ask(1, 1))).Hold.Text, "agent a takes none: "+problem)
	}
}
