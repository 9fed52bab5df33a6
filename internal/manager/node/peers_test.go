package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
)

// TestKernelsThatWaitedInVainSayForWhom: the end of a kernel whose peers did not come has a reason of its own, names those that do not run,
// and is the session's failure.
func TestKernelsThatWaitedInVainSayForWhom(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Agent("a2", 8, 16*managertest.GiB)
	c := w.Create("trio", two)
	w.Place(c.ID, "a1", "a2")
	w.Report(c.ID, "a1", cluster.PhaseRunning)
	w.Report(c.ID, "a1", cluster.PhaseEnded, managertest.Ended(76, ""), func(o *cluster.KernelObservation) {
		o.Reason, o.Detail = cluster.ReasonPeersMissing, "it waited"
	})
	v := w.Session(c.ID)
	require.Equal(t, cluster.Terminated, v.Kernels[0].Status)
	require.Equal(t, string(cluster.ReasonPeersMissing), v.Kernels[0].StatusInfo)
	var detail string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT detail FROM session_events WHERE kernel_id = $1 AND reason = $2
		ORDER BY seq LIMIT 1`, string(v.Kernels[0].ID), string(cluster.ReasonPeersMissing)).Scan(&detail))
	require.Equal(t, "it waited; sub1 is SCHEDULED", detail)
}
