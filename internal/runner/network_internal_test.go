package runner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaultRoute(t *testing.T) {
	t.Parallel()
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	const near = "eth0\t0000DE0A\t00000000\t0001\t0\t0\t0\t00FCFFFF\t0\t0\t0\n"
	const all = "eth0\t00000000\t0100DE0A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
	require.False(t, defaultRoute(strings.NewReader("")))
	require.False(t, defaultRoute(strings.NewReader(head)))
	require.False(t, defaultRoute(strings.NewReader(head+near)))
	require.False(t, defaultRoute(strings.NewReader(head+strings.ReplaceAll(all, "eth0", "lo"))))
	require.True(t, defaultRoute(strings.NewReader(head+near+all)))
	require.False(t, connected("/nowhere"))
}
