package session_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
)

// What one agent says about slots does not keep others' requests from being read, whatever its place in the list.
func TestAnAgentCannotChangeHowAmountsAreRead(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	for _, id := range []cluster.AgentID{"a1", "m1", "z1"} {
		w.Agent(id, 4, 8*managertest.GiB)
	}
	ask := func(name string) {
		w.Create(name, func(r *request.Session) { r.Resources = map[string]string{"cpu": "1", "mem": "2g"} })
	}
	for i, liar := range []cluster.AgentID{"a1", "z1"} {
		require.NoError(t, w.Reports.UpdateFacts(t.Context(), liar, w.Epoch(liar), cluster.NodeFacts{Revision: 2, Architecture: "x86_64",
			EngineOK: true, Capacity: cluster.Slots{cluster.SlotCPU: cluster.Whole(4), cluster.SlotMem: cluster.Whole(8)},
			SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotUnique, cluster.SlotMem: cluster.SlotCount}}))
		ask([]string{"first", "second"}[i])
	}
}

// Whoever has a name next can register, whatever the one before said of its epoch.
func TestAnAgentCannotUseUpItsEpochs(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	for _, claim := range []int64{math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, 0} {
		epoch, err := w.Reports.Register(t.Context(), cluster.NodeHello{Agent: "a1", HighestEpoch: claim})
		require.NoError(t, err)
		require.Positive(t, epoch)
		require.Positive(t, epoch<<32, "revisions are counted above it")
	}
}
