package node_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
)

// TestMembersOfEncryptedNetworks: agents are told the keys and tunnels of the members of such a network and not where they are in clear,
// and no agent has the key of another.
func TestMembersOfEncryptedNetworks(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	for _, id := range []cluster.AgentID{"a1", "a2", "a3"} {
		w.Agent(id, 8, 16*managertest.GiB)
	}
	facts := func(id cluster.AgentID, revision int64, key string) {
		t.Helper()
		require.NoError(t, w.Reports.UpdateFacts(t.Context(), id, w.Epoch(id), cluster.NodeFacts{Revision: 1 + revision, EngineOK: true,
			Architecture: "x86_64", Images: []cluster.NodeImage{managertest.PythonImage()},
			NetworkAddress: "192.0.2." + string(id[1:]), TunnelKey: key, TunnelPort: 4798}))
	}
	facts("a1", 1, "key of a1")
	facts("a2", 1, "key of a2")
	facts("a3", 1, "key of a1")
	var key, problem string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT tunnel_key, tunnel_problem FROM agents
		WHERE id = 'a3'`).Scan(&key, &problem))
	require.Empty(t, key)
	require.Contains(t, problem, "another agent has its key")

	c := w.Create("pair", two)
	w.Place(c.ID, "a1", "a2")
	w.Exec(`INSERT INTO session_networks (number, subnet, session_id) VALUES (1, '10.223.0.0/26', '` + string(c.ID) + `')`)
	network := func() *cluster.SessionNetwork {
		t.Helper()
		list, err := w.Reports.Desired(t.Context(), "a1", nil)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0].Network
	}
	n := network()
	require.False(t, n.Encrypted)
	require.Equal(t, netip.MustParseAddr("192.0.2.2"), n.Members[1].Host)
	require.Zero(t, n.Members[1].Tunnel)
	w.Exec(`UPDATE session_networks SET encrypted = true`)
	n = network()
	require.True(t, n.Encrypted)
	for i, want := range []cluster.Tunnel{{Key: "key of a1", Endpoint: netip.MustParseAddrPort("192.0.2.1:4798")},
		{Key: "key of a2", Endpoint: netip.MustParseAddrPort("192.0.2.2:4798")}} {
		require.False(t, n.Members[i].Host.IsValid(), "nobody is told where it is in clear")
		require.Equal(t, want, n.Members[i].Tunnel)
	}
	facts("a2", 2, "") // it was installed anew without a key
	require.Zero(t, network().Members[1].Tunnel)
	facts("a2", 3, "another key of a2")
	require.Equal(t, "another key of a2", network().Members[1].Tunnel.Key)
}
