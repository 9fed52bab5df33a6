package cluster_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

// TestEndsAreTheSameInTheConsole: the bell of the console and notices by e-mail and webhook decide by the same reasons.
func TestEndsAreTheSameInTheConsole(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../web/src/session/ends.ts")
	require.NoError(t, err)
	for name, want := range map[string][]cluster.Reason{"ownEnds": cluster.OwnEnds(), "failing": cluster.Failing()} {
		list := regexp.MustCompile(`(?s)export const ` + name + ` = \[(.*?)\]`).FindSubmatch(raw)
		require.Len(t, list, 2, name)
		var got []cluster.Reason
		for _, m := range regexp.MustCompile(`'([^']+)'`).FindAllSubmatch(list[1], -1) {
			got = append(got, cluster.Reason(m[1]))
		}
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(t, want, got, name)
	}
}

func TestWhichEndsAreFailures(t *testing.T) {
	t.Parallel()
	for _, r := range cluster.OwnEnds() {
		require.True(t, cluster.OwnEnd(r), r)
		require.False(t, cluster.FailedEnd(cluster.Terminated, cluster.ResultUndefined, r), r)
	}
	for _, r := range cluster.Failing() {
		require.False(t, cluster.OwnEnd(r), r)
		require.True(t, cluster.FailedEnd(cluster.Terminated, cluster.ResultUndefined, r), r)
	}
	require.False(t, cluster.OwnEnd(cluster.ReasonAdministrator))
	require.False(t, cluster.FailedEnd(cluster.Terminated, cluster.ResultSuccess, cluster.ReasonAdministrator))
	require.True(t, cluster.FailedEnd(cluster.Error, cluster.ResultUndefined, "strange"))
	require.True(t, cluster.FailedEnd(cluster.Terminated, cluster.ResultFailure, cluster.ReasonTaskFinished))
}
