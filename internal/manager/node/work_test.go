package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
)

// Who holds which device of an agent: what the kernels of a session have there, added up, and nothing of other agents.
func TestWorkTellsWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Agent("a2", 8, 16*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 5`)
	one := w.Running("first", "a1")
	two := w.Create("second", func(r *request.Session) { r.ClusterSize, r.ClusterMode = 3, "multi-node" })
	w.Place(two.ID, "a1", "a1", "a2")
	w.Create("waiting")
	_, sessions, total, err := w.Nodes.Work(t.Context(), w.Admin, "a1")
	require.NoError(t, err)
	require.Equal(t, 2, total)
	held := map[cluster.SessionID]cluster.Slots{}
	for _, s := range sessions {
		held[s.ID] = s.Devices.Totals()
	}
	core := cluster.Slots{cluster.SlotCPU: cluster.Whole(1)} // what managertest places
	require.Equal(t, map[cluster.SessionID]cluster.Slots{one: core, two.ID: core.Add(core)}, held)
	w.Exec(`UPDATE kernels SET allocation = '"no allocation"' WHERE session_id = $1`, string(one))
	_, _, _, err = w.Nodes.Work(t.Context(), w.Admin, "a1")
	require.ErrorContains(t, err, "read what session "+string(one)+" holds")
}
