//go:build runner

package runnerbin_test

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runnerbin"
)

// TestUnpackIsWholeForEverybody unpacks from many sides at once.
func TestUnpackIsWholeForEverybody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], err = runnerbin.Unpack(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, p := range paths {
		require.Equal(t, paths[0], p)
	}
	info, err := os.Stat(paths[0])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}
