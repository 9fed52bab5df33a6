package posix_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/conformance"
	"berth.dev/berth/internal/storage/volume/posix"
)

func open(t *testing.T, path string) volume.Volume {
	t.Helper()
	v, err := posix.Open(posix.Options{Name: "volume1", Path: path, UID: 9001, GID: 9001})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) volume.Volume { return open(t, t.TempDir()) })
}

func TestConformanceOnDisk(t *testing.T) {
	conformance.RunOnDisk(t, func(t *testing.T) string { return t.TempDir() }, open)
}

// tmpfs promises nothing about positions in directories, so listings go by name there.
func TestConformanceOnTmpfs(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is no tmpfs on this machine")
	}
	fresh := func(t *testing.T) string {
		dir, err := os.MkdirTemp("/dev/shm", "volume")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		return dir
	}
	conformance.Run(t, func(t *testing.T) volume.Volume { return open(t, fresh(t)) })
	conformance.RunOnDisk(t, fresh, open)
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, path := range []string{"", "relative", file, filepath.Join(t.TempDir(), "none"), "/proc"} {
		_, err := posix.Open(posix.Options{Name: "volume1", Path: path})
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", path, err)
		require.NotEmpty(t, fault.NextOf(err))
	}
}
