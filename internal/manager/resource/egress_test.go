package resource_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/store"
)

// TestEgressReachesAgents: a changed policy is wanted of the agents at once, also of kernels whose specification they have.
func TestEgressReachesAgents(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 16*managertest.GiB)
	w.Running("busy", "a1")
	wakes := w.Store.Wakes(func(topic string) bool { return topic == store.AgentTopic("a1") })
	defer wakes.Close()
	wakes.Take()

	wanted := func(told map[cluster.KernelID]int64) cluster.DesiredKernel {
		t.Helper()
		list, err := w.Reports.Desired(t.Context(), "a1", told)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0]
	}
	first := wanted(nil)
	require.Equal(t, "open", first.Egress.String())
	for _, egress := range []string{"none", "proxy:10.0.0.5:3128", "open"} {
		require.NoError(t, w.Resources.ModifyGroup(t.Context(), w.Admin, "default", resource.GroupProps{Egress: &egress}))
		require.True(t, slices.Contains(wakes.Take(), store.AgentTopic("a1")), "its agent is told")
		d := wanted(map[cluster.KernelID]int64{first.Kernel: first.Generation})
		require.Equal(t, egress, d.Egress.String())
		require.Nil(t, d.Spec)
		g, err := w.Resources.GetGroup(t.Context(), w.Admin, "default")
		require.NoError(t, err)
		require.Equal(t, egress, g.Egress)
	}
	same, bad := "open", "proxy:squid:3128"
	require.NoError(t, w.Resources.ModifyGroup(t.Context(), w.Admin, "default", resource.GroupProps{Egress: &same}))
	require.NotContains(t, wakes.Take(), store.AgentTopic("a1"), "nothing changed")
	err := w.Resources.ModifyGroup(t.Context(), w.Admin, "default", resource.GroupProps{Egress: &bad})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	err = w.Resources.ModifyGroup(t.Context(), w.Stranger("mallory"), "default", resource.GroupProps{Egress: &same})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
}

// TestEncryptedNetworksOfGroups: administrators alone say so, and not for a group whose sessions may run in the network of their hosts.
func TestEncryptedNetworksOfGroups(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	on, off := true, false
	set := func(p resource.GroupProps) error { return w.Resources.ModifyGroup(t.Context(), w.Admin, "default", p) }
	require.NoError(t, set(resource.GroupProps{EncryptedNetworks: &on}))
	g, err := w.Resources.GetGroup(t.Context(), w.Admin, "default")
	require.NoError(t, err)
	require.True(t, g.EncryptedNetworks)
	require.True(t, fault.Is(set(resource.GroupProps{UseHostNetwork: &on}), fault.Invalid))
	require.NoError(t, set(resource.GroupProps{EncryptedNetworks: &off, UseHostNetwork: &on}))
	require.True(t, fault.Is(set(resource.GroupProps{EncryptedNetworks: &on}), fault.Invalid))
	err = w.Resources.ModifyGroup(t.Context(), w.Stranger("mallory"), "default", resource.GroupProps{EncryptedNetworks: &on})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
}
