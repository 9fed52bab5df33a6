package local_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/host/conformance"
	"berth.dev/berth/internal/agent/host/local"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		dir := t.TempDir()
		folder := cluster.FolderMount{
			Folder: "0b5e4a3c-0000-4000-8000-000000000001", Name: "data", Host: "local:volume1", Subpath: ".", Usage: "general",
			Scope: "user:0b5e4a3c-0000-4000-8000-000000000002", VolumePath: filepath.Join(dir, "volume"), OwnerUID: 9001, OwnerGID: 9001,
		}
		ref, err := folder.Ref()
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(folder.VolumePath, ref.Dir()), 0o755))
		gone := folder
		gone.Folder = "0b5e4a3c-0000-4000-8000-0000000000ff"
		return conformance.Fixture{Folder: folder, Missing: gone, Open: func(t *testing.T, rt *fake.Runtime) host.Host {
			root, err := scratch.Open(filepath.Join(dir, "kernels"), 0)
			require.NoError(t, err)
			// Whether mounts can be made depends on the machine; package mount binds folders as they are where they cannot.
			mounts, err := mount.Open(mount.Options{Dir: filepath.Join(dir, "mounts"), Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			t.Cleanup(mounts.Close)
			pool := runners.New(rt.DialRunner)
			t.Cleanup(pool.Close)
			return &local.Host{Scratch: root, Mounts: mounts, Runners: pool, RunnerPath: "/nonexistent/runner"}
		}}
	})
}

func TestAHostWithoutMountsRefusesFolders(t *testing.T) {
	t.Parallel()
	root, err := scratch.Open(t.TempDir(), 0)
	require.NoError(t, err)
	h := &local.Host{Scratch: root}
	const id = cluster.KernelID("00000000-0000-4000-8000-000000000001")
	_, err = h.Attach(t.Context(), id, host.Owner{UID: 1, GID: 1}, []cluster.FolderMount{{Name: "data"}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.NoError(t, h.Detach(id))
	require.NoError(t, h.Release(id))
	list, err := h.List()
	require.NoError(t, err)
	require.Empty(t, list)
}
