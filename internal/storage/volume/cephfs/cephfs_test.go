package cephfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/conformance"
	"berth.dev/berth/internal/storage/volume/posix"
)

// fake stands for the metadata servers: sizes are always right, and nothing is enforced.
type fake struct {
	mu     sync.Mutex
	values map[string]string // by inode and name
	refuse error             // of Set
}

func newFake() *fake { return &fake{values: map[string]string{}} }

func key(dir *os.File, name string) (string, error) {
	var st unix.Stat_t
	var failed error
	err := control(dir, func(fd int) error { failed = unix.Fstat(fd, &st); return nil })
	return strconv.FormatUint(st.Ino, 10) + " " + name, errors.Join(err, failed)
}

func (f *fake) Get(dir *os.File, name string) (string, error) {
	if name == attrBytes || name == attrFiles {
		files, bytes := 0, int64(0)
		err := control(dir, func(fd int) error {
			return filepath.WalkDir("/proc/self/fd/"+strconv.Itoa(fd)+"/.", func(_ string, d fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err != nil || d.IsDir() {
					return err
				}
				fi, err := d.Info()
				if err == nil {
					files++
					bytes += fi.Size()
				}
				return nil
			})
		})
		if name == attrFiles {
			return strconv.Itoa(files), err
		}
		return strconv.FormatInt(bytes, 10), err
	}
	k, err := key(dir, name)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := f.values[k]
	if !ok {
		return "", unix.ENODATA
	}
	return v, nil
}

func (f *fake) Set(dir *os.File, name, value string) error {
	k, err := key(dir, name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse == nil {
		f.values[k] = value
	}
	return f.refuse
}

func openFake(t *testing.T, path string, f *fake) volume.Volume {
	t.Helper()
	v, err := open(posix.Options{Name: "ceph", Path: path, UID: 9001, GID: 9001}, f)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) volume.Volume { return openFake(t, t.TempDir(), newFake()) })
}

func TestConformanceOnDisk(t *testing.T) {
	t.Parallel()
	f := newFake()
	conformance.RunOnDisk(t, func(t *testing.T) string { return t.TempDir() }, func(t *testing.T, path string) volume.Volume {
		return openFake(t, path, f)
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	f := newFake()
	v := openFake(t, t.TempDir(), f)
	s := cluster.QuotaScope{Kind: cluster.UserScope, ID: "7f3c1f3e-6a55-4f0b-9d0b-0a1b2c3d4e5f"}
	for _, limit := range []int64{volume.NoLimit, 0, 1 << 30, volume.NoLimit} {
		require.NoError(t, v.SetScope(t.Context(), s, limit))
		u, err := v.Scope(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, limit, u.LimitBytes)
	}
	require.Contains(t, v.Info().Capabilities, volume.CanFastSize)
	require.Equal(t, "cephfs", v.Info().Backend)

	f.mu.Lock()
	f.refuse = unix.EPERM
	f.mu.Unlock()
	err := v.SetScope(t.Context(), s, 5)
	require.True(t, fault.Is(err, fault.Unavailable), err)
	require.Contains(t, fault.NextOf(err), "p flag")
}

func TestAnotherFileSystemIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Open(posix.Options{Name: "ceph", Path: t.TempDir()})
	require.True(t, fault.Is(err, fault.Invalid), err)
}
