package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

func TestFolderMoves(t *testing.T) {
	t.Parallel()
	seen := map[[2]cluster.FolderStatus]bool{}
	for _, m := range cluster.FolderMoves {
		key := [2]cluster.FolderStatus{m.From, m.To}
		require.False(t, seen[key], "%v twice", key)
		seen[key] = true
		require.NotEmpty(t, m.Why)
		require.Contains(t, cluster.FolderSources(m.To), string(m.From))
		require.True(t, cluster.FolderMayMove(m.From, m.To))
		require.False(t, m.From == cluster.FolderDeleteComplete, "what is removed does not come back")
		require.False(t, m.To == cluster.FolderMounted, "mounts are rows of live sessions, no status")
	}
	require.False(t, cluster.FolderMayMove(cluster.FolderReady, cluster.FolderDeleteOngoing), "the trash bin comes first")
	for _, s := range []cluster.FolderStatus{cluster.FolderReady, cluster.FolderMounted} {
		require.True(t, s.Readable() && s.Updatable() && s.Mountable() && !s.Deleting() && !s.Dead())
	}
	for _, s := range []cluster.FolderStatus{cluster.FolderDeleteOngoing, cluster.FolderDeleteComplete, cluster.FolderDeleteError} {
		require.True(t, s.Dead() && s.Deleting() && !s.Readable() && !s.Updatable() && !s.Mountable())
	}
	require.True(t, cluster.FolderDeletePending.Readable() && cluster.FolderDeletePending.Deleting() && !cluster.FolderDeletePending.Dead())
}
