package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
)

// TestTheNetworkOfHostsIsAllowed: a session runs there only where its resource group allows it, for whomever asks.
func TestTheNetworkOfHostsIsAllowed(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 8*managertest.GiB)
	asked := func(name, network string, roles ...request.Role) request.Session {
		return request.Session{Name: name, Image: "python", Resources: map[string]string{"cpu": "1"}, Roles: roles, ClusterMode: "multi-node",
			ResourceOpts: map[string]string{"network": network}}
	}
	_, err := w.Sessions.Create(t.Context(), w.Admin, asked("refused", "host"))
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.ErrorContains(t, err, "does not let sessions run in the network of their hosts")
	_, err = w.Sessions.Create(t.Context(), w.Admin, asked("refused", "bridge"))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	w.Exec(`UPDATE resource_groups SET use_host_network = true, egress = 'none'`)
	_, err = w.Sessions.Create(t.Context(), w.Admin, asked("refused", "host"))
	require.True(t, fault.Is(err, fault.Denied), "no policy is kept there: %v", err)

	w.Exec(`UPDATE resource_groups SET egress = 'open'`)
	w.Exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 4`)
	_, err = w.Sessions.Create(t.Context(), w.Admin, asked("refused", "host",
		request.Role{Name: "worker", Count: 1, ResourceOpts: map[string]string{"network": ""}}))
	require.ErrorContains(t, err, "another network than the session")
	made, err := w.Sessions.Create(t.Context(), w.Admin, asked("allowed", "host"))
	require.NoError(t, err)
	var network string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT resource_opts->>'network' FROM sessions WHERE id = $1`,
		string(made.ID)).Scan(&network))
	require.Equal(t, "host", network)
}
