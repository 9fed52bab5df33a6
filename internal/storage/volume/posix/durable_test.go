package posix_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume/posix"
)

// fragile is a disk that keeps, over a crash of its host, only the names that were in a directory when it was synced.
type fragile struct {
	t    *testing.T
	root string

	mu    sync.Mutex
	kept  map[string]map[string]bool // names by directory
	fails bool
}

var errDisk = errors.New("the disk does not answer")

func (d *fragile) sync(dir *os.File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails {
		return errDisk
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	require.NoError(d.t, err)
	entries, err := os.ReadDir(at)
	require.NoError(d.t, err)
	d.kept[at] = map[string]bool{}
	for _, e := range entries {
		d.kept[at][e.Name()] = true
	}
	return dir.Sync()
}

// survives reports whether a path below the volume is there after a crash.
func (d *fragile) survives(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.root
	for name := range strings.SplitSeq(path, "/") {
		if !d.kept[at][name] {
			return false
		}
		at = filepath.Join(at, name)
	}
	return true
}

func (d *fragile) fail(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = on
}

// TestDirectoriesAreDurableWhenAcknowledged: what was answered with success is there after a crash of the host, whoever made it; what could
// not be made durable is not acknowledged, and neither is its repetition.
func TestDirectoriesAreDurableWhenAcknowledged(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	disk := &fragile{t: t, root: root, kept: map[string]map[string]bool{}}
	v, err := posix.Open(posix.Options{Name: "volume1", Path: root, UID: -1, GID: -1, Sync: disk.sync})
	require.NoError(t, err)
	defer v.Close()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "6a3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b11"},
		Folder: "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"}
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	require.True(t, disk.survives(ref.Dir()))
	tree, err := v.OpenFolder(t.Context(), ref)
	require.NoError(t, err)
	defer tree.Close()
	survives := func(p string) bool { return disk.survives(ref.Dir() + "/" + p) }

	require.NoError(t, tree.Mkdir("one", false, false))
	require.True(t, survives("one"))
	require.NoError(t, tree.Mkdir("a/b/c", true, false))
	require.True(t, survives("a/b/c"))
	for _, p := range []string{"one/two", "a/b/d/e"} {
		parents := p != "one/two"
		disk.fail(true)
		require.Error(t, tree.Mkdir(p, parents, false), p)
		require.Error(t, tree.Mkdir(p, parents, true), "%s: it is there and may be lost", p)
		disk.fail(false)
		require.NoError(t, tree.Mkdir(p, parents, true), p)
		require.True(t, survives(p), p)
	}

	// Another proxy, or a session, has made it and nobody has synced it.
	require.NoError(t, os.MkdirAll(filepath.Join(root, ref.Dir(), "x/y/z"), 0o755))
	require.False(t, survives("x/y/z"))
	require.NoError(t, tree.Mkdir("x/y/z", true, true))
	require.True(t, survives("x/y/z"))
	require.NoError(t, tree.WriteFile(t.Context(), "p/q/file", strings.NewReader("text"), 0o644))
	require.True(t, survives("p/q/file"))

	// A folder whose proxy was killed before it could make it durable.
	other := ref
	other.Folder = "8b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"
	disk.fail(true)
	require.Error(t, v.CreateFolder(t.Context(), other, 0o755))
	disk.fail(false)
	require.NoError(t, os.MkdirAll(filepath.Join(root, other.Dir()), 0o755))
	require.False(t, disk.survives(other.Dir()))
	require.NoError(t, v.CreateFolder(t.Context(), other, 0o755))
	require.True(t, disk.survives(other.Dir()))
	require.True(t, fault.Is(tree.Mkdir("one", false, false), fault.Conflict), "what is there is refused as before")
}
