package scheduling_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
)

// TestEncryptedNetworksAreGiven: a session of a group with encrypted networks waits for agents that encrypt and gets such a network, which
// stays so whatever its group becomes. Sessions that ran before keep theirs.
func TestEncryptedNetworksAreGiven(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	planner, _ := b.measured(func(*scheduling.Config) {})
	encrypted := func(id cluster.SessionID) (is bool) {
		t.Helper()
		require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT encrypted FROM session_networks WHERE session_id = $1`,
			string(id)).Scan(&is))
		return is
	}
	const wide = "cluster_mode = 'multi-node'"
	first := b.session(wide, 1, 1)
	b.becomes(first, "SCHEDULED", "")
	b.exec(`UPDATE resource_groups SET encrypted_networks = true`)
	b.store.Wake(store.TopicSchedule)
	second, alone, near := b.session(wide, 1, 1), b.session("", 1), b.session("cluster_mode = 'single-node'", 1, 1)
	b.becomes(alone, "SCHEDULED", "")
	b.becomes(near, "SCHEDULED", "")
	b.becomes(second, "PENDING", "no-agent")
	e, err := planner.Explain(t.Context(), second)
	require.NoError(t, err)
	require.Contains(t, e.Text, "agent a1 encrypts none: its version encrypts no networks of sessions")

	b.exec(`UPDATE agents SET tunnel_problem = 'it has no tun'`)
	b.store.Wake(store.TopicSchedule)
	require.Eventually(t, func() bool {
		e, err := planner.Explain(t.Context(), second)
		return err == nil && e.Text == "no agent can take it: of 1 agents, 1 that cannot encrypt its network, "+
			"agent a1 encrypts none: it has no tun"
	}, patience, 5*time.Millisecond)
	b.exec(`UPDATE agents SET tunnel_problem = '', tunnel_key = 'a key', tunnel_port = 4798`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(second, "SCHEDULED", "")
	require.True(t, encrypted(second))
	require.False(t, encrypted(first), "what runs stays as it is")

	// Its kernels come back to the queue, the group is not encrypted any more, and the agent cannot: it waits all the same.
	b.exec(`UPDATE resource_groups SET encrypted_networks = false`)
	b.exec(`UPDATE agents SET tunnel_problem = 'it has no tun'`)
	b.exec(`UPDATE kernels SET status = 'PENDING', agent_id = NULL, allocation = '{}', generation = generation + 1 WHERE session_id = $1`,
		string(second))
	b.exec(`UPDATE sessions SET status = 'PENDING', status_info = '' WHERE id = $1`, string(second))
	b.store.Wake(store.TopicSchedule)
	b.becomes(second, "PENDING", "no-agent")
}
