package posix_test

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestUploadsLeaveAReserve: an upload is refused, with words, before the file system is full, and so is a clone.
func TestUploadsLeaveAReserve(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount a small file system")
	}
	dir := t.TempDir()
	const size = 64 << 20
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skip("a small file system cannot be mounted: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	v, err := posix.Open(posix.Options{Name: "volume1", Path: dir, UID: 9001, GID: 9001, Reserve: 1 << 40})
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "6a3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b11"},
		Folder: "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"}
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	s, err := v.Stage(t.Context(), ref, "u", true)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	n, err := s.Append(t.Context(), 0, io.LimitReader(zeros{}, 2*size), 2*size)
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.Equal(t, "volume-full", fault.ReasonOf(err))
	require.Contains(t, fault.NextOf(err), "delete files")
	require.Less(t, n, int64(size))
	space, err := v.Space(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, space.FreeBytes, int64(size/100*5-1<<20), "a twentieth is left, but for the last buffer")
	require.NotZero(t, space.FreeBytes)

	other := ref
	other.Folder = "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b13"
	err = v.CloneFolder(t.Context(), ref, other, func(volume.Progress) {})
	require.Equal(t, "volume-full", fault.ReasonOf(err), "%v", err)

	require.NoError(t, s.Discard())
	again, err := v.Stage(t.Context(), ref, "w", true)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	_, err = again.Append(t.Context(), 0, io.LimitReader(zeros{}, 1<<20), 1<<20)
	require.NoError(t, err, "there is room again")
}
