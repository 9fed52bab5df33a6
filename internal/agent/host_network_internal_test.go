package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/cluster"
)

func TestPortsThatOthersMayTake(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	require.NoError(t, c.Validate())
	require.Empty(t, overlap(c.hostPorts(), "32768\t60999\n"))
	require.Contains(t, overlap(cluster.PortRange{First: 32000, Last: 33000}, "32768\t60999\n"), "32768-60999")
	require.Empty(t, overlap(cluster.PortRange{}, "32768\t60999\n"))
	require.Empty(t, overlap(c.hostPorts(), "what is this"))
	for _, text := range []string{"30000", "80-90", "30000-65536", "31000-30000", "a-b", "30000-31000-32000"} {
		c.HostPorts = text
		require.ErrorContains(t, c.Validate(), "agent.host_ports", text)
	}
	c.HostPorts = ""
	require.NoError(t, c.Validate())
}

// TestLeasesThatNobodyHolds: a kernel that lives, one whose container is still there and one that has just ended hold theirs.
func TestLeasesThatNobodyHolds(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	ended := func(ago time.Duration) *ledger.Record {
		return &ledger.Record{HostPorts: []int{30000, 30001}, Final: &cluster.KernelObservation{}, EndsAt: now.Add(-ago)}
	}
	found := leaseFindings(map[cluster.KernelID]*ledger.Record{"lives": {HostPorts: []int{30002}}, "removed": ended(time.Hour),
		"late": ended(time.Hour), "fresh": ended(time.Second)}, map[cluster.KernelID]bool{"late": true}, now)
	require.Len(t, found, 1)
	require.Equal(t, cluster.KernelID("removed"), found[0].Kernel)
	require.Equal(t, "30000,30001", found[0].Object)
}
