package platform_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/platform"
)

func TestStateDirIsLockedOnce(t *testing.T) {
	t.Parallel()
	dir := platform.StateDir(t.TempDir())
	_, running := dir.Owner()
	require.False(t, running)
	release, err := dir.Lock()
	require.NoError(t, err)
	pid, running := dir.Owner()
	require.True(t, running)
	require.Equal(t, os.Getpid(), pid)
	_, err = dir.Lock()
	require.ErrorContains(t, err, "already")
	release()
	_, running = dir.Owner()
	require.False(t, running)
}
