package scheduling_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
)

// TestSessionsOfSeveralKernelsTakeTurnsForNetworks: a session that finds no network waits and says so; it starts when one is free, and none
// is before every agent has let go of its kernels.
func TestSessionsOfSeveralKernelsTakeTurnsForNetworks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	planner, _ := b.measured(func(c *scheduling.Config) { c.Networks = scheduling.NetworkConfig{Pool: "10.223.0.0/25", Bits: 26} })
	network := func(id cluster.SessionID) (number int, subnet string) {
		t.Helper()
		row := b.store.Pool().QueryRow(t.Context(), `SELECT number, subnet::text FROM session_networks WHERE session_id = $1`, string(id))
		require.NoError(t, row.Scan(&number, &subnet))
		return number, subnet
	}
	alone, first, second := b.session("", 1), b.session("", 1, 1), b.session("", 1, 1)
	b.becomes(alone, "SCHEDULED", "")
	b.becomes(first, "SCHEDULED", "")
	b.becomes(second, "SCHEDULED", "")
	n1, s1 := network(first)
	n2, s2 := network(second)
	require.ElementsMatch(t, []int{0, 1}, []int{n1, n2})
	require.ElementsMatch(t, []string{"10.223.0.0/26", "10.223.0.64/26"}, []string{s1, s2})

	third := b.session("", 1, 1)
	b.becomes(third, "PENDING", string(scheduling.WaitsForNetwork))
	e, err := planner.Explain(t.Context(), third)
	require.NoError(t, err)
	require.Equal(t, "all 2 networks of sessions in 10.223.0.0/25 are in use", e.Text)
	other := b.session("", 1)
	b.becomes(other, "SCHEDULED", "") // whoever needs none does not wait with it

	b.exec(`INSERT INTO kernel_removals (kernel_id, generation, agent_id, session_id, reason)
		SELECT id, generation, agent_id, session_id, 'agent-lost' FROM kernels WHERE session_id = $1`, string(first))
	b.exec(`UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1`, string(first))
	b.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE id = $1`, string(first))
	b.store.Wake(store.TopicSchedule)
	last := b.session("", 1)
	b.becomes(last, "SCHEDULED", "")
	b.becomes(third, "PENDING", string(scheduling.WaitsForNetwork)) // the agent may still have its containers
	b.exec(`DELETE FROM kernel_removals`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(third, "SCHEDULED", "")
	n3, s3 := network(third)
	require.Equal(t, n1, n3)
	require.Equal(t, s1, s3)
}

// TestSessionsThatNoNetworkHolds say so for as long as they wait.
func TestSessionsThatNoNetworkHolds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	planner, _ := b.measured(func(c *scheduling.Config) { c.Networks = scheduling.NetworkConfig{Pool: "10.223.0.0/24", Bits: 30} })
	big := b.session("", 1, 1, 1)
	b.becomes(big, "PENDING", string(scheduling.WaitsForNetwork))
	e, err := planner.Explain(t.Context(), big)
	require.NoError(t, err)
	require.Equal(t, "its network would need 3 addresses, and networks of sessions have 2", e.Text)
	require.NotEmpty(t, e.Remedies)
}
