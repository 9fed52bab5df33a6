package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// TestOwnUserNumbersNeedMapping: a session with a number of its own gets a folder whose files appear as its own, or none.
func TestOwnUserNumbersNeedMapping(t *testing.T) {
	own := host.Owner{UID: 2_000_123, GID: owner, Own: true}
	attach := func(t *testing.T, m *mount.Mounts, o host.Owner, f cluster.FolderMount) error {
		_, err := m.Prepare(t.Context(), kernelA, o, []cluster.FolderMount{f})
		return err
	}
	t.Run("mapped", func(t *testing.T) {
		needMounts(t)
		w := newWorld(t)
		m := w.open()
		require.NoError(t, os.Chmod(w.path(), 0o755))
		b, err := m.Prepare(t.Context(), kernelA, own, []cluster.FolderMount{w.folder})
		if fault.ReasonOf(err) == host.ReasonShared {
			t.Skipf("ids cannot be mapped on this file system: %v", err)
		}
		require.NoError(t, err)
		require.Equal(t, "2000123:9001", owned(t, filepath.Join(b[0].Source, "sub")))
		fi, err := os.Stat(w.path())
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), fi.Mode().Perm(), "other users of the host are shut out at the first touch")
		require.NoError(t, m.Release(kernelA))
	})
	t.Run("files of root", func(t *testing.T) {
		needMounts(t)
		w := newWorld(t)
		m := w.open()
		w.folder.OwnerUID = 0
		err := attach(t, m, own, w.folder)
		require.Equal(t, host.ReasonShared, fault.ReasonOf(err), "%v", err)
		require.NoError(t, attach(t, m, host.Owner{UID: owner, GID: owner}, w.folder), "as the user that sessions share")
		require.NoError(t, m.Release(kernelA))
	})
	t.Run("no mounts", func(t *testing.T) {
		w := newWorld(t)
		m := w.open(func(o *mount.Options) { o.Plain = true })
		require.Equal(t, host.ReasonShared, fault.ReasonOf(attach(t, m, own, w.folder)))
		require.NoError(t, attach(t, m, host.Owner{UID: owner, GID: owner}, w.folder))
	})
}
