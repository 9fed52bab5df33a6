package xfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/conformance"
	"berth.dev/berth/internal/storage/volume/posix"
)

// mount makes an XFS in a file and mounts it for the test.
func mount(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting an XFS image takes root")
	}
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		t.Skip("mkfs.xfs is missing; scripts/install-deps.sh test installs xfsprogs")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("/dev/loop-control is missing: this machine has no loop devices")
	}
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	require.NoError(t, os.Mkdir(point, 0o755))
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<30))
	require.NoError(t, f.Close())
	out, err := exec.Command(mkfs, "-q", image).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command("mount", "-o", "loop,"+options, image, point).CombinedOutput()
	if err != nil && exec.Command("mount", "-o", "loop", image, point).Run() == nil {
		_ = exec.Command("umount", point).Run()
		t.Skip("this kernel has no quotas for XFS (CONFIG_XFS_QUOTA)")
	}
	if err != nil && (bytes.Contains(out, []byte("unknown filesystem")) || bytes.Contains(out, []byte("loop device"))) {
		t.Skipf("this machine mounts no XFS images: %s", out)
	}
	require.NoError(t, err, string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("umount", point).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
			_ = unix.Unmount(point, unix.MNT_DETACH)
		}
	})
	return point
}

func open(t *testing.T, path string) volume.Volume {
	t.Helper()
	v, err := Open(Options{Name: "volume1", Path: path, UID: 9001, GID: 9001})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

// below makes a new directory for each test of one mount.
func below(point string) func(t *testing.T) string {
	return func(t *testing.T) string {
		dir, err := os.MkdirTemp(point, "volume")
		require.NoError(t, err)
		return dir
	}
}

func TestConformance(t *testing.T) {
	fresh := below(mount(t, "pquota"))
	conformance.Run(t, func(t *testing.T) volume.Volume { return open(t, fresh(t)) })
}

func TestConformanceOnDisk(t *testing.T) {
	fresh := below(mount(t, "pquota"))
	conformance.RunOnDisk(t, fresh, open)
}

// The posix backend counts by itself on XFS too.
func TestPosixOnXFS(t *testing.T) {
	fresh := below(mount(t, "noquota"))
	conformance.Run(t, func(t *testing.T) volume.Volume {
		v, err := posix.Open(posix.Options{Name: "volume1", Path: fresh(t), UID: 9001, GID: 9001})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return v
	})
}

func newRef(s cluster.QuotaScope) cluster.FolderRef {
	return cluster.FolderRef{Scope: s, Folder: cluster.FolderID(uuid.NewString())}
}

func newScope() cluster.QuotaScope {
	return cluster.QuotaScope{Kind: cluster.ProjectScope, ID: uuid.NewString()}
}

// A limit stops whoever writes: a process in the folder itself, an upload, a copy.
func TestLimitStopsWriters(t *testing.T) {
	path := mount(t, "pquota")
	v := open(t, path)
	ctx := t.Context()
	ref := newRef(newScope())
	const limit = 16 << 20
	require.NoError(t, v.SetScope(ctx, ref.Scope, limit))
	require.NoError(t, v.CreateFolder(ctx, ref, 0o755))
	dir := filepath.Join(path, ref.Dir())

	// What a session does: another process, as another user, in the folder's directory.
	dd := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(dir, "big"), "bs=1M", "count=64", "conv=fsync")
	dd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 9001, Gid: 9001}}
	// The parents of a test's directory are closed to others.
	for p := path; p != "/"; p = filepath.Dir(p) {
		fi, err := os.Stat(p)
		require.NoError(t, err)
		if fi.Mode().Perm()&1 == 0 {
			require.NoError(t, os.Chmod(p, fi.Mode().Perm()|0o11))
		}
	}
	out, err := dd.CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "No space left on device|Disk quota exceeded", string(out))
	fi, err := os.Stat(filepath.Join(dir, "big"))
	require.NoError(t, err)
	require.LessOrEqual(t, fi.Size(), int64(limit))
	require.Greater(t, fi.Size(), int64(limit)*3/4)
	u, err := v.Scope(ctx, ref.Scope)
	require.NoError(t, err)
	require.True(t, u.Complete)
	require.EqualValues(t, limit, u.LimitBytes)
	require.GreaterOrEqual(t, u.UsedBytes, fi.Size())
	require.LessOrEqual(t, u.UsedBytes, int64(limit))

	// Root is stopped as well.
	err = os.WriteFile(filepath.Join(dir, "root"), make([]byte, 8<<20), 0o644)
	require.True(t, errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT), "%v", err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "root")))

	require.NoError(t, os.Truncate(filepath.Join(dir, "big"), 8<<20))
	s, err := v.Stage(ctx, ref, "up", true)
	require.NoError(t, err)
	defer s.Close()
	data := make([]byte, 32<<20)
	n, err := s.Append(ctx, 0, bytes.NewReader(data), int64(len(data)))
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "%v", err)
	require.Contains(t, err.Error(), "quota of "+ref.Scope.String())
	require.LessOrEqual(t, n, int64(8<<20))
	size, err := s.Size()
	require.NoError(t, err)
	require.Equal(t, n, size)
	require.NoError(t, s.Sync(), "what was acknowledged is durable")

	// A higher limit lets the upload go on, another scope was never concerned.
	require.NoError(t, v.SetScope(ctx, ref.Scope, 64<<20))
	_, err = s.Append(ctx, n, bytes.NewReader(data[n:]), int64(len(data)))
	require.NoError(t, err)
	require.NoError(t, s.Commit("uploaded"))
	require.NoError(t, v.SetScope(ctx, ref.Scope, volume.NoLimit))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "free"), make([]byte, 80<<20), 0o644))

	// A disk that is full is not called a quota.
	err = v.Charge(ctx, ref.Scope, 2<<30)
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	require.Equal(t, "volume-full", fault.ReasonOf(err))
	s2, err := v.Stage(ctx, ref, "full", true)
	require.NoError(t, err)
	defer s2.Close()
	_, err = s2.Append(ctx, 0, endless{}, 2<<30)
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "%v", err)
	require.NotContains(t, err.Error(), "quota of")
	require.NoError(t, s2.Discard())
}

// The kernel counts in blocks and rounds up; nobody gets more than was set, and what holds is told.
func TestLimitsAreWholeBlocks(t *testing.T) {
	path := mount(t, "pquota")
	v := open(t, path)
	ctx := t.Context()
	ref := newRef(newScope())
	require.NoError(t, v.CreateFolder(ctx, ref, 0o755))
	const block = 4096
	for asked, want := range map[int64]int64{0: block, 1: block, block: block, 2*block - 1: block,
		1_000_000_000: 1_000_000_000 / block * block, 64 << 20: 64 << 20} {
		require.NoError(t, v.SetScope(ctx, ref.Scope, asked))
		u, err := v.Scope(ctx, ref.Scope)
		require.NoError(t, err)
		require.Equal(t, want, u.LimitBytes, "asked for %d", asked)
	}
}

// endless gives bytes for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func projectAt(t *testing.T, path string) uint32 {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	x, err := readAttr(f)
	require.NoError(t, err)
	return x.projid
}

func TestProjectsAreStableAndApart(t *testing.T) {
	path := mount(t, "pquota")
	v := open(t, path)
	ctx := t.Context()
	ref := newRef(newScope())
	require.NoError(t, v.CreateFolder(ctx, ref, 0o755))
	at := filepath.Join(path, ref.Scope.Dir())
	id := projectAt(t, at)
	require.Equal(t, derive(ref.Scope.Dir(), 0), id)
	require.NoError(t, v.SetScope(ctx, ref.Scope, 1<<30))
	require.NoError(t, v.Close())
	v = open(t, path)
	require.NoError(t, v.SetScope(ctx, ref.Scope, 2<<30))
	require.Equal(t, id, projectAt(t, at))
	for _, p := range []string{".berth", ".berth/trash", ".berth/uploads", ".berth/clones"} {
		require.Equal(t, id, projectAt(t, filepath.Join(at, p)), p)
	}
	require.Equal(t, id, projectAt(t, filepath.Join(path, ref.Dir())))
	u, err := v.Scope(ctx, ref.Scope)
	require.NoError(t, err)
	require.EqualValues(t, 2<<30, u.LimitBytes)

	// Scopes that would take one project get several, also at once; so do those whose project somebody uses.
	root, err := os.Open(path)
	require.NoError(t, err)
	defer root.Close()
	stranger := filepath.Join(path, "stranger")
	require.NoError(t, os.Mkdir(stranger, 0o755))
	f, err := os.Open(stranger)
	require.NoError(t, err)
	require.NoError(t, tag(f, lowest+7, true))
	f.Close()
	q := &projects{name: "volume1", root: root, block: 4096, first: func(_ string, try int) uint32 { return lowest + 7 + uint32(try) }}
	var mu sync.Mutex
	got := map[uint32]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := newScope()
			dir := filepath.Join(path, s.Dir())
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Error(err)
				return
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if err := q.Limit(ctx, s, f, 1<<20); err != nil {
				t.Error(err)
				return
			}
			p, err := q.projectOf(f)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			got[p] = true
			mu.Unlock()
		})
	}
	wg.Wait()
	require.Len(t, got, 8)
	require.NotContains(t, got, uint32(lowest+7))

	// A scope made again while its trash is not reaped does not pay for it.
	require.NoError(t, os.WriteFile(filepath.Join(path, ref.Dir(), "f"), make([]byte, 4<<20), 0o644))
	require.NoError(t, v.TrashFolder(ctx, ref))
	require.NoError(t, v.DeleteScope(ctx, ref.Scope))
	require.NoError(t, v.SetScope(ctx, ref.Scope, 1<<20))
	require.NotEqual(t, id, projectAt(t, at))
	u, err = v.Scope(ctx, ref.Scope)
	require.NoError(t, err)
	require.Less(t, u.UsedBytes, int64(1<<20))
}

// A volume that was posix becomes xfs: what is there counts.
func TestAdoptsWhatIsThere(t *testing.T) {
	path := mount(t, "pquota")
	ctx := t.Context()
	p, err := posix.Open(posix.Options{Name: "volume1", Path: path, UID: 9001, GID: 9001})
	require.NoError(t, err)
	ref := newRef(newScope())
	require.NoError(t, p.CreateFolder(ctx, ref, 0o755))
	tr, err := p.OpenFolder(ctx, ref)
	require.NoError(t, err)
	data := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(data)
	for i := range 6 {
		require.NoError(t, tr.WriteFile(ctx, fmt.Sprintf("d%d/f", i), bytes.NewReader(data), 0o644))
	}
	dir := filepath.Join(path, ref.Dir())
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	require.NoError(t, tr.Close())
	require.NoError(t, p.Close())

	v := open(t, path)
	_, err = v.Scope(ctx, ref.Scope)
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "nobody knows yet what it uses")
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	require.Error(t, v.SetScope(stopped, ref.Scope, 8<<20))
	require.NoError(t, v.SetScope(ctx, ref.Scope, 8<<20))
	u, err := v.Scope(ctx, ref.Scope)
	require.NoError(t, err)
	require.GreaterOrEqual(t, u.UsedBytes, int64(6<<20))
	require.Error(t, os.WriteFile(filepath.Join(dir, "d3", "more"), make([]byte, 4<<20), 0o644))
}

func TestRefusesWhatDoesNotEnforce(t *testing.T) {
	path := mount(t, "noquota")
	_, err := Open(Options{Name: "volume1", Path: path})
	require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
	require.Contains(t, fault.NextOf(err), "pquota")
	_, err = Open(Options{Name: "volume1", Path: "/proc"})
	require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
	_, err = Open(Options{Name: "volume1", Path: filepath.Join(path, "none")})
	require.Equal(t, fault.Invalid, fault.KindOf(err), "%v", err)
}

// A clone shares its blocks with its source: it costs quota, and next to no disk.
func TestCloneSharesBlocks(t *testing.T) {
	path := mount(t, "pquota")
	v := open(t, path)
	ctx := t.Context()
	src, dst := newRef(newScope()), newRef(newScope())
	require.NoError(t, v.CreateFolder(ctx, src, 0o755))
	tr, err := v.OpenFolder(ctx, src)
	require.NoError(t, err)
	defer tr.Close()
	require.NoError(t, tr.WriteFile(ctx, "f", bytes.NewReader(make([]byte, 64<<20)), 0o644))
	before, err := v.Space(ctx)
	require.NoError(t, err)
	require.NoError(t, v.CloneFolder(ctx, src, dst, nil))
	after, err := v.Space(ctx)
	require.NoError(t, err)
	require.Less(t, after.UsedBytes-before.UsedBytes, int64(16<<20))
	u, err := v.Scope(ctx, dst.Scope)
	require.NoError(t, err)
	require.GreaterOrEqual(t, u.UsedBytes, int64(64<<20))
}
