package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestEgressIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, mode := range map[string]cluster.EgressMode{
		"open": cluster.EgressOpen, "none": cluster.EgressNone, "proxy:10.0.0.5:3128": cluster.EgressProxy,
	} {
		e, err := cluster.ParseEgress(text)
		require.NoError(t, err)
		require.Equal(t, mode, e.Mode)
		require.Equal(t, text, e.String())
		require.Equal(t, mode == cluster.EgressOpen, e.Open())
	}
	e, err := cluster.ParseEgress("")
	require.NoError(t, err)
	require.Equal(t, "open", e.String())
	require.True(t, cluster.Egress{}.Open())
	for _, bad := range []string{"closed", "proxy", "proxy:", "proxy:squid:3128", "proxy:10.0.0.5", "proxy:10.0.0.5:0", "proxy:[fd00::1]:3128",
		"proxy:0.0.0.0:3128", "proxy:127.0.0.1:3128", "proxy:224.0.0.1:1", "Open", "open ", "none:1"} {
		_, err := cluster.ParseEgress(bad)
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
}
