package node_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// TestAgentsAreAnsweredTogether: what several agents are told by one statement is what each of them is told alone, and nothing of one
// session gets into another.
func TestAgentsAreAnsweredTogether(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	for _, id := range []cluster.AgentID{"a1", "a2", "a3"} {
		w.Agent(id, 64, 64*managertest.GiB)
	}
	key := string(w.Admin.AccessKey)
	w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy, ssh_public_key)
		SELECT 'AKIAOTHER', secret_sealed, user_id, resource_policy, 'ssh-ed25519 of-the-other' FROM keypairs WHERE access_key = $1`, key)
	network, host, other, pending, ended := w.Create("network", two).ID, w.Create("host", two).ID, w.Create("other").ID,
		w.Create("pending").ID, w.Running("ended", "a1")
	w.Report(ended, "a1", cluster.PhaseEnded, managertest.Ended(0, ""))
	w.Exec(`INSERT INTO session_networks (number, subnet, session_id) VALUES (1, '10.223.0.0/26', $1)`, string(network))
	w.Exec(`UPDATE sessions SET resource_opts = resource_opts || '{"network":"host"}' WHERE id = $1`, string(host))
	w.Exec(`UPDATE kernels SET host_endpoint = '192.0.2.' || (local_rank + 1) || ':5000' WHERE session_id = $1`, string(host))
	w.Exec(`UPDATE sessions SET access_key = 'AKIAOTHER' WHERE id = $1`, string(other))
	w.Place(network, "a1", "a2")
	w.Place(host, "a2", "a1")
	w.Place(other, "a1")

	together, err := w.Store.DesiredKernels(t.Context(), []string{"a1", "a2", "a3"})
	require.NoError(t, err)
	var apart []dbgen.DesiredKernelsRow
	for _, id := range []string{"a1", "a2", "a3"} {
		rows, err := w.Store.DesiredKernels(t.Context(), []string{id})
		require.NoError(t, err)
		apart = append(apart, rows...)
	}
	require.Len(t, together, 5, "neither what waits for a place nor what has ended")
	require.ElementsMatch(t, apart, together)
	var ids []string
	for _, r := range together {
		require.NotContains(t, []string{string(pending), string(ended)}, r.SessionID)
		ids = append(ids, r.ID)
	}
	specs, err := w.Store.KernelSpecs(t.Context(), ids)
	require.NoError(t, err)
	var specsApart []dbgen.KernelSpecsRow
	for _, id := range ids {
		rows, err := w.Store.KernelSpecs(t.Context(), []string{id})
		require.NoError(t, err)
		specsApart = append(specsApart, rows...)
	}
	require.Len(t, specs, 5)
	require.ElementsMatch(t, specsApart, specs)

	for agent, name := range map[cluster.AgentID]string{"a1": "main1", "a2": "sub1"} {
		d := desired(t, w, w.Set, agent, network)
		require.Len(t, d, 1)
		require.Len(t, d[0].Network.Members, 2)
		require.Equal(t, name, d[0].Spec.Hostname)
		require.Empty(t, d[0].HostPeers)
		require.Empty(t, d[0].AuthorizedKeys)
		require.Equal(t, "main:1,sub:1", d[0].Spec.Env["BACKENDAI_CLUSTER_REPLICAS"])

		d = desired(t, w, w.Set, agent, host)
		require.Len(t, d, 1)
		require.Nil(t, d[0].Network)
		require.Equal(t, []cluster.HostPeer{{Name: "main1", Endpoint: netip.MustParseAddrPort("192.0.2.1:5000")},
			{Name: "sub1", Endpoint: netip.MustParseAddrPort("192.0.2.2:5000")}}, d[0].HostPeers)
		require.True(t, d[0].Spec.HostNetwork)
	}
	d := desired(t, w, w.Set, "a1", other)
	require.Len(t, d, 1)
	require.Nil(t, d[0].Network)
	require.Empty(t, d[0].HostPeers)
	require.Contains(t, d[0].AuthorizedKeys, "ssh-ed25519 of-the-other")
	require.Equal(t, "main:1", d[0].Spec.Env["BACKENDAI_CLUSTER_REPLICAS"])
}
