package mount_test

import (
	"berth.dev/berth/internal/agent/host"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// home makes a home with directories for mount points.
func (w *world) home(points ...string) string {
	dir := filepath.Join(filepath.Dir(w.dir), "work")
	for _, p := range points {
		require.NoError(w, os.MkdirAll(filepath.Join(dir, p), 0o755))
	}
	return dir
}

func TestFoldersAreGraftedOntoTheHome(t *testing.T) {
	t.Parallel()
	needMounts(t)
	w := newWorld(t)
	m := w.open()
	work := w.home("a/data")
	require.NoError(t, os.WriteFile(filepath.Join(work, "own"), []byte("mine"), 0o644))
	inner, outer := w.folder, w.folder
	inner.Target, inner.Perm, outer.Target = "/home/work/a/data", cluster.ReadOnly, "/mnt/data"
	folders := w.prepare(m, owner, inner, outer)
	for range 2 { // an attempt may be repeated
		home, rest, err := m.Home(kernelA, work, folders)
		require.NoError(t, err)
		require.Equal(t, folders[1:], rest)
		require.Equal(t, filepath.Join(w.dir, string(kernelA), "home"), home)
		text, err := os.ReadFile(filepath.Join(home, "a", "data", "sub", "inner", "file"))
		require.NoError(t, err)
		require.Equal(t, "inside", string(text))
		require.Error(t, os.WriteFile(filepath.Join(home, "a", "data", "new"), nil, 0o644), "it is read-only there, too")
		text, err = os.ReadFile(filepath.Join(home, "own"))
		require.NoError(t, err)
		require.Equal(t, "mine", string(text))
		entries, err := os.ReadDir(filepath.Join(work, "a", "data"))
		require.NoError(t, err)
		require.Empty(t, entries, "the home itself has no mounts")
	}
	require.NoError(t, m.Release(kernelA))
	points, err := mount.Attached(w.dir)
	require.NoError(t, err)
	require.Empty(t, points)
	require.FileExists(t, w.path("sub", "inner", "file"))
}

// TestGraftsFollowNoLinks: whatever the user puts in the place of a mount point, also after the check of the home, no folder is
// mounted through it.
func TestGraftsFollowNoLinks(t *testing.T) {
	t.Parallel()
	needMounts(t)
	for name, link := range map[string]string{"root": "/", "inside": "b", "magic": "/proc/self/root", "up": "../.."} {
		for _, at := range []string{"a", "a/data"} {
			t.Run(name+" at "+filepath.Base(at), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				m := w.open()
				work := w.home("b/data", filepath.Dir(at))
				w.folder.Target = "/home/work/a/data"
				folders := w.prepare(m, owner, w.folder)
				require.NoError(t, os.Symlink(link, filepath.Join(work, at)))
				_, _, err := m.Home(kernelA, work, folders)
				require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
				require.Equal(t, cluster.ReasonTarget, fault.ReasonOf(err))
				require.NoError(t, m.Release(kernelA))
			})
		}
	}
}

// TestHomesThatTheEngineMounts: where the engine does not see the agent's mounts, it gets what the agent got.
func TestHomesThatTheEngineMounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.open(func(o *mount.Options) { o.Plain = true })
	work := w.home("data")
	folders := w.prepare(m, owner, w.folder)
	home, rest, err := m.Home(kernelA, work, folders)
	require.NoError(t, err)
	require.Equal(t, work, home)
	require.Equal(t, folders, rest)
	home, rest, err = m.Home(kernelA, work, []runtime.Mount{})
	require.NoError(t, err)
	require.Equal(t, work, home)
	require.Empty(t, rest)
}

func TestTargetsAreCheckedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.open(func(o *mount.Options) { o.Plain = true })
	other := w.folder
	other.Target = "/home/work/data/inner"
	for name, folders := range map[string][]cluster.FolderMount{
		"nested":     {w.folder, other},
		"the runner": {func() cluster.FolderMount { f := w.folder; f.Target = "/.berth"; return f }()},
		"escapes":    {func() cluster.FolderMount { f := w.folder; f.Target = "/home/work/../../.berth"; return f }()},
	} {
		_, err := m.Prepare(t.Context(), kernelA, host.Owner{UID: owner, GID: owner}, folders)
		require.Equal(t, cluster.ReasonTarget, fault.ReasonOf(err), "%s: %v", name, err)
	}
}
