package testkit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestRolesArePlacedTogether: kernels of different roles start whole or not at all, each with its own slots, and a dry run says beforehand
// where. A quota counts what they hold together.
func TestRolesArePlacedTogether(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 3, Cores: 8})
	r := request.Session{Name: "mixed", Image: testkit.Image, Type: cluster.Interactive, ClusterMode: "multi-node",
		Resources: map[string]string{"cpu": "2", "mem": "128m"},
		Roles:     []request.Role{{Name: "worker", Count: 3, Resources: map[string]string{"cpu": "6", "mem": "256m"}}}}
	admin := c.Admin()
	plan, err := c.Nouns().Sessions.DryRun(t.Context(), admin, r)
	require.NoError(t, err)
	require.Empty(t, plan.Reason, plan.Text)
	agents := map[cluster.AgentID]int{}
	require.Len(t, plan.Placements, 4)
	for _, p := range plan.Placements[1:] {
		agents[p.Agent]++
	}
	require.Len(t, agents, 3, "two workers do not fit one agent")

	id := c.Create(r)
	v := c.Running(id)
	require.Len(t, v.Kernels, 4)
	for i, k := range v.Kernels {
		var cores int
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM kernels k, jsonb_object_keys(k.allocation->'cpu')
			WHERE k.id = $1`, string(k.ID)).Scan(&cores))
		require.Equal(t, map[bool]int{true: 2, false: 6}[i == 0], cores, k.ClusterHostname)
	}
	require.Equal(t, "worker", v.Kernels[3].ClusterRole)

	// The same again finds room for the main kernel and for no worker: nothing of it starts.
	r.Name = "again"
	plan, err = c.Nouns().Sessions.DryRun(t.Context(), admin, r)
	require.NoError(t, err)
	require.NotEmpty(t, plan.Reason)
	second := c.Create(r)
	waits := c.Session(second)
	for _, k := range waits.Kernels {
		require.Equal(t, cluster.Pending, k.Status)
		require.Empty(t, k.Agent)
	}
	c.Destroy(id, false)
	c.Running(second)
	c.Destroy(second, false)
	c.Ended(second)
}
