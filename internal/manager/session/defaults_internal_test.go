package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// The smallest agent that could run a session says how much memory it gets that names none; others do not count.
func TestSmallestAgentHasRoomForOthers(t *testing.T) {
	t.Parallel()
	agent := func(status cluster.AgentStatus, schedulable bool, architecture string, mem int64) dbgen.AgentShapesRow {
		return dbgen.AgentShapesRow{Status: status, Schedulable: schedulable, Architecture: architecture,
			Capacity: cluster.Slots{cluster.SlotCPU: cluster.Whole(8), cluster.SlotMem: cluster.Whole(mem)}}
	}
	const gib = 1 << 30
	agents := []dbgen.AgentShapesRow{
		agent(cluster.AgentAlive, true, "x86_64", 64*gib), agent(cluster.AgentAlive, true, "x86_64", 3*gib),
		agent(cluster.AgentLost, true, "x86_64", gib), agent(cluster.AgentAlive, false, "x86_64", gib),
		agent(cluster.AgentAlive, true, "aarch64", gib), agent(cluster.AgentAlive, true, "x86_64", 0),
	}
	var q lookups
	asked := request.Session{ClusterSize: 1}
	asked.Resources = map[string]string{"cpu": "1", "mem": "1g"} // so that no preset is read
	d, err := q.defaults(t.Context(), asked, nil, nil, dbgen.Project{}, "x86_64", agents)
	require.NoError(t, err)
	require.Equal(t, cluster.Slots{cluster.SlotMem: cluster.Whole(768 << 20)}, d.Part)
	require.Equal(t, cluster.Whole(3*gib), d.Most[cluster.SlotMem])

	three := request.Session{ClusterSize: 3, ClusterMode: "single-node", Resources: asked.Resources}
	d, err = q.defaults(t.Context(), three, nil, nil, dbgen.Project{}, "x86_64", agents[1:2])
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(gib), d.Most[cluster.SlotMem], "three kernels share one agent")
	require.Equal(t, cluster.Whole(768<<20), d.Part[cluster.SlotMem])
}
