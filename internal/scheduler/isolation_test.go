package scheduler_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// TestIsolationDecidesWhere: a session goes where its shares are isolated as demanded, waits while they are taken, and hears when no
// agent ever offers that.
func TestIsolationDecidesWhere(t *testing.T) {
	t.Parallel()
	offering := func(id string, level cluster.Isolation) scheduler.Agent {
		a := withGPUs(agent(id, 8, 16), "cuda.shares", 1)
		for i := range a.Devices {
			if a.Devices[i].Slot == "cuda.shares" {
				a.Devices[i].Isolation = level
			}
		}
		return a
	}
	c := filled(t, scheduler.Group{})
	c.SetAgent("g", offering("a", ""))
	c.SetAgent("g", offering("b", cluster.IsolationDriver))
	demanding := func(n int, level cluster.Isolation) scheduler.Session {
		slots := ask(1, 1)
		slots["cuda.shares"] = 600
		s := job(n, 10, 0, slots)
		for i := range s.Kernels {
			s.Kernels[i].Isolation = level
		}
		return s
	}
	first := demanding(1, cluster.IsolationDriver)
	c.Enqueue("g", first)
	decisions := pass(t, c, now)
	require.Len(t, decisions, 1)
	require.Equal(t, cluster.AgentID("b"), decisions[0].Placements[0].Agent)
	c.Run("g", scheduler.Running{Session: first, Placements: decisions[0].Placements})

	d := c.Probe("g", now, demanding(2, cluster.IsolationCooperative))
	require.NotNil(t, d.Hold)
	require.Equal(t, scheduler.WaitsForDevices, d.Hold.Reason, "agent a has room, but offers nothing: %s", d.Hold.Text)
	require.Contains(t, d.Hold.Text, "but not with cooperative isolation at least")
	require.Equal(t, map[string]int{"isolation": 1, "cuda.shares": 1}, d.Hold.Rejected)

	d = c.Probe("g", now, demanding(3, cluster.IsolationHard))
	require.NotNil(t, d.Hold)
	require.Equal(t, scheduler.TooBig, d.Hold.Reason)
	require.Contains(t, d.Hold.Text, "with hard isolation at least, which the accelerators of no agent offer")

	d = c.Probe("g", now, demanding(4, ""))
	require.Nil(t, d.Hold)
	require.Equal(t, cluster.AgentID("a"), d.Placements[0].Agent)
}
