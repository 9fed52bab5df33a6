package posix_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
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

// A proxy that is killed holds nothing any more, and what it synced is there.
func TestLocksEndWithAKilledProcess(t *testing.T) {
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "6a3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b11"},
		Folder: "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"}
	const data = "durable"
	if path := os.Getenv("BERTH_TEST_HOLDER"); path != "" {
		v := open(t, path)
		s, err := v.Stage(t.Context(), ref, "u", true)
		require.NoError(t, err)
		_, err = s.Lock(t.Context())
		require.NoError(t, err)
		_, err = s.Append(t.Context(), 0, strings.NewReader(data), 100)
		require.NoError(t, err)
		require.NoError(t, s.Sync())
		_, ok, err := v.Tasks().Claim("task")
		require.NoError(t, err)
		require.True(t, ok)
		fmt.Println("holding")
		select {}
	}
	path := t.TempDir()
	v := open(t, path)
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	holder := exec.Command(os.Args[0], "-test.run=^TestLocksEndWithAKilledProcess$")
	holder.Env = append(os.Environ(), "BERTH_TEST_HOLDER="+path)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	require.NoError(t, out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)))
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "holding" {
	}
	s, err := v.Stage(t.Context(), ref, "u", false)
	require.NoError(t, err)
	defer s.Close()
	none, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Lock(none)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, ok, err := v.Tasks().Claim("task")
	require.NoError(t, err)
	require.False(t, ok)
	n, err := v.ExpireStaged(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, n)

	require.NoError(t, holder.Process.Kill())
	_ = holder.Wait()
	unlock, err := s.Lock(t.Context())
	require.NoError(t, err)
	defer unlock()
	size, err := s.Size()
	require.NoError(t, err)
	require.EqualValues(t, len(data), size)
	release, ok, err := v.Tasks().Claim("task")
	require.NoError(t, err)
	require.True(t, ok, "the lock file that was left is no lock")
	release()
}

// TestRootsAreTheOwnersAlone: a user of the host who is not the platform's cannot reach the files of a folder, whatever their modes. Roots
// of an older proxy are closed when they are touched, and so are those that a session has opened.
func TestRootsAreTheOwnersAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only a proxy that is root gives folders to a user of the platform")
	}
	v := open(t, t.TempDir())
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "6a3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b11"},
		Folder: "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"}
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	root := filepath.Join(v.Info().Path, ref.Dir())
	mode := func() os.FileMode {
		fi, err := os.Stat(root)
		require.NoError(t, err)
		return fi.Mode().Perm()
	}
	require.Equal(t, os.FileMode(0o700), mode(), "a new one")
	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.NoError(t, os.Chmod(root, 0o755))
	tree, err := v.OpenFolder(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, tree.Close())
	require.Equal(t, os.FileMode(0o700), mode(), "one that was there")
	fi, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), fi.Mode().Perm(), "what lies below is left as it is")
}
