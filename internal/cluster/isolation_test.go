package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

func TestIsolation(t *testing.T) {
	t.Parallel()
	order := []cluster.Isolation{cluster.IsolationNone, cluster.IsolationCooperative, cluster.IsolationDriver, cluster.IsolationHard}
	for i, offered := range order {
		for j, demanded := range order {
			require.Equal(t, i >= j, offered.AtLeast(demanded), "%s for %s", offered, demanded)
		}
		require.True(t, offered.AtLeast(""))
		got, err := cluster.ParseIsolation(string(offered))
		require.NoError(t, err)
		require.Equal(t, offered, got)
	}
	require.True(t, cluster.Isolation("").AtLeast(""))
	require.True(t, cluster.Isolation("").AtLeast(cluster.IsolationNone), "to demand nothing is no demand")
	require.False(t, cluster.Isolation("").AtLeast(cluster.IsolationCooperative))
	_, err := cluster.ParseIsolation("perfect")
	require.ErrorContains(t, err, `"perfect" is no level of isolation`)
}
