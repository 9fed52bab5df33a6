package mount_test

import (
	"berth.dev/berth/internal/agent/host"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const private = "BERTH_TEST_MOUNT_NAMESPACE"

// TestMain runs the tests again in a mount namespace of their own where that is possible: what they mount
// is gone with them.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(private) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), private+"=yes")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := again.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		os.Exit(m.Run()) // no namespaces here: the tests say so
	}
	os.Exit(0)
}

func needMounts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if os.Getenv(private) == "" {
		t.Skip("a private mount namespace cannot be had here")
	}
}

const (
	kernelA = cluster.KernelID("00000000-0000-4000-8000-00000000000a")
	kernelB = cluster.KernelID("00000000-0000-4000-8000-00000000000b")
	owner   = 9001
)

// world is a volume with one folder, and an agent's directory of mounts.
type world struct {
	*testing.T
	volume, dir string
	folder      cluster.FolderMount
}

func newWorld(t *testing.T) *world {
	t.Helper()
	base, err := os.MkdirTemp("", "mount")
	require.NoError(t, err)
	w := &world{T: t, volume: filepath.Join(base, "volume"), dir: filepath.Join(base, "mounts")}
	t.Cleanup(func() { // what is still mounted would be deleted through
		points, err := mount.Attached(base)
		require.NoError(t, err)
		for _, p := range points {
			_ = unix.Unmount(p, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(base)
	})
	require.NoError(t, os.Chmod(base, 0o755)) // other users work in it
	w.folder = cluster.FolderMount{
		Folder: "0b5e4a3c-0000-4000-8000-000000000001", Name: "data", Host: "local:volume1", Scope: "user:0b5e4a3c-0000-4000-8000-000000000002",
		Perm: cluster.ReadWrite, Subpath: ".", Target: "/home/work/data", VolumePath: w.volume, OwnerUID: owner, OwnerGID: owner,
	}
	w.write("sub/inner/file", "inside")
	return w
}

func (w *world) path(elem ...string) string {
	ref, err := w.folder.Ref()
	require.NoError(w, err)
	return filepath.Join(append([]string{w.volume, ref.Dir()}, elem...)...)
}

// write makes a file of the folder, all of it the owner's.
func (w *world) write(name, text string) {
	w.Helper()
	p := w.path(name)
	require.NoError(w, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(w, os.WriteFile(p, []byte(text), 0o644))
	if os.Geteuid() == 0 {
		require.NoError(w, filepath.WalkDir(w.path(), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, owner, owner))
		}))
	}
}

func (w *world) open(change ...func(*mount.Options)) *mount.Mounts {
	w.Helper()
	o := mount.Options{Dir: w.dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Patience: 20 * time.Second}
	for _, c := range change {
		c(&o)
	}
	m, err := mount.Open(o)
	require.NoError(w, err)
	w.Cleanup(m.Close)
	return m
}

func (w *world) prepare(m *mount.Mounts, uid int, folders ...cluster.FolderMount) []runtime.Mount {
	w.Helper()
	b, err := m.Prepare(w.Context(), kernelA, host.Owner{UID: uid, GID: uid}, folders)
	require.NoError(w, err)
	return b
}

// as runs a command as another user and returns what it printed.
func as(t *testing.T, uid int, script string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: false}}
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func owned(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// TestFilesBelongToBoth: whatever number the session's user has, files are its own inside and the owner's on the volume.
func TestFilesBelongToBoth(t *testing.T) {
	needMounts(t)
	for _, uid := range []int{owner, 1000, 54321} {
		t.Run(strconv.Itoa(uid), func(t *testing.T) {
			w := newWorld(t)
			m := w.open()
			src := w.prepare(m, uid, w.folder)[0].Source
			if w := m.Warnings(); len(w) > 0 {
				t.Skipf("ids cannot be mapped on this file system: %v", w)
			}
			require.Equal(t, fmt.Sprintf("%d:%d", uid, uid), owned(t, filepath.Join(src, "sub")), "seen by the session")
			out, err := as(t, uid, fmt.Sprintf("umask 022; echo new > %[1]s/new && mkdir %[1]s/sub/made && cat %[1]s/sub/inner/file", src))
			require.NoError(t, err, out)
			require.Equal(t, "inside", out)
			require.Equal(t, "9001:9001", owned(t, w.path("new")), "on the volume")
			require.Equal(t, "9001:9001", owned(t, w.path("sub", "made")))
			require.Equal(t, fmt.Sprintf("%d:%d", uid, uid), owned(t, filepath.Join(src, "new")))
			_, err = as(t, uid+1, "echo > "+src+"/sub/other")
			require.Error(t, err, "another user may not write")
			require.NoError(t, m.Release(kernelA))
			require.NoDirExists(t, filepath.Dir(src))
			require.FileExists(t, w.path("new"), "the folder is untouched")
		})
	}
}

func TestReadOnlyHoldsBelow(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	m := w.open()
	w.folder.Perm = cluster.ReadOnly
	b := w.prepare(m, owner, w.folder)[0]
	require.True(t, b.ReadOnly)
	require.Equal(t, "/home/work/data", b.Target)
	for _, name := range []string{"new", "sub/new", "sub/inner/file"} {
		require.ErrorIs(t, os.WriteFile(filepath.Join(b.Source, name), nil, 0o644), unix.EROFS, name)
	}
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(b.Source, &st))
	require.NotZero(t, st.Flags&unix.ST_NOSUID)
	require.NotZero(t, st.Flags&unix.ST_NODEV)
	require.NoError(t, os.WriteFile(w.path("sub", "later"), nil, 0o644), "the volume itself is not read-only")
}

func TestSubpath(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	m := w.open()
	f := w.folder
	f.Subpath, f.Target = "sub/inner", "/home/work/inner"
	b := w.prepare(m, owner, f, w.folder)
	require.Len(t, b, 2)
	require.FileExists(t, filepath.Join(b[0].Source, "file"))
	require.FileExists(t, filepath.Join(b[1].Source, "sub", "inner", "file"))
	// A directory that is exchanged for a link after the check changes nothing.
	require.NoError(t, os.Rename(w.path("sub"), w.path("elsewhere")))
	require.NoError(t, os.Symlink("/etc", w.path("sub")))
	require.FileExists(t, filepath.Join(b[0].Source, "file"))
	// A link that stays in the folder may be followed.
	require.NoError(t, os.Symlink("elsewhere", w.path("inwards")))
	f.Subpath = "inwards/inner"
	require.FileExists(t, filepath.Join(w.prepare(m, owner, f)[0].Source, "file"))
}

// TestRefusals names what cannot be mounted. None of it needs a mount.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(filepath.Dir(w.volume), "outside")
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "deep"), 0o755))
	require.NoError(t, os.Symlink(outside, w.path("out")))
	require.NoError(t, os.Symlink("../../../../../outside", w.path("up")))
	require.NoError(t, os.Symlink("/proc/self/root", w.path("magic")))
	require.NoError(t, unix.Mkfifo(w.path("pipe"), 0o644))
	with := func(change func(f *cluster.FolderMount)) cluster.FolderMount {
		f := w.folder
		change(&f)
		return f
	}
	sub := func(path string) cluster.FolderMount {
		return with(func(f *cluster.FolderMount) { f.Subpath = path })
	}
	for name, c := range map[string]struct {
		folder cluster.FolderMount
		kind   fault.Kind
		reason string
	}{
		"folder gone": {with(func(f *cluster.FolderMount) { f.Folder = "0b5e4a3c-0000-4000-8000-0000000000ff" }), fault.NotFound,
			mount.ReasonFolder},
		"volume gone":      {with(func(f *cluster.FolderMount) { f.VolumePath += "-not" }), fault.NotFound, mount.ReasonVolume},
		"no path":          {with(func(f *cluster.FolderMount) { f.VolumePath = "" }), fault.NotFound, mount.ReasonVolume},
		"relative volume":  {with(func(f *cluster.FolderMount) { f.VolumePath = "volume" }), fault.NotFound, mount.ReasonVolume},
		"scope":            {with(func(f *cluster.FolderMount) { f.Scope = "user:../../.." }), fault.Invalid, ""},
		"link out":         {sub("out"), fault.Invalid, mount.ReasonPath},
		"below a link out": {sub("out/deep"), fault.Invalid, mount.ReasonPath},
		"relative link":    {sub("up"), fault.Invalid, mount.ReasonPath},
		"magic link":       {sub("magic"), fault.Invalid, mount.ReasonPath},
		"dots":             {sub("../x"), fault.Invalid, mount.ReasonPath},
		"dots inside":      {sub("sub/../../x"), fault.Invalid, mount.ReasonPath},
		"absolute":         {sub("/etc"), fault.Invalid, mount.ReasonPath},
		"nul":              {sub("a\x00b"), fault.Invalid, mount.ReasonPath},
		"a file":           {sub("sub/inner/file"), fault.Invalid, mount.ReasonPath},
		"a pipe":           {sub("pipe"), fault.Invalid, mount.ReasonPath},
		"a long name":      {sub(strings.Repeat("x", 300)), fault.Invalid, mount.ReasonPath},
		"absent":           {sub("nothing"), fault.Invalid, mount.ReasonFolder},
	} {
		t.Run(name, func(t *testing.T) {
			m := w.open()
			_, err := m.Prepare(t.Context(), kernelA, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{c.folder})
			require.Error(t, err)
			require.Equal(t, c.kind, fault.KindOf(err), "%v", err)
			require.Equal(t, c.reason, fault.ReasonOf(err), "%v", err)
			require.NotEmpty(t, fault.NextOf(err))
			require.NoError(t, m.Release(kernelA))
		})
	}
	t.Run("folder is a link", func(t *testing.T) {
		require.NoError(t, os.Rename(w.path(), w.path()+"-real"))
		require.NoError(t, os.Symlink(filepath.Base(w.path())+"-real", w.path()))
		_, err := w.open().Prepare(t.Context(), kernelA, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{w.folder})
		require.Equal(t, mount.ReasonPath, fault.ReasonOf(err), "%v", err)
	})
}

// TestPlain is an agent that may not mount: the folder's own path is bound.
func TestPlain(t *testing.T) {
	w := newWorld(t)
	m := w.open(func(o *mount.Options) { o.Plain = true })
	b := w.prepare(m, owner, w.folder)[0]
	real, err := filepath.EvalSymlinks(w.path())
	require.NoError(t, err)
	require.Equal(t, real, b.Source)
	f := w.folder
	f.Subpath = "sub"
	_, err = m.Prepare(t.Context(), kernelA, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{f})
	require.Equal(t, mount.ReasonPath, fault.ReasonOf(err), "a directory in it could be exchanged: %v", err)
	require.NoError(t, m.Release(kernelA))
	require.DirExists(t, w.path())
}

// TestCloneRefused: where a mount cannot be cloned the folder itself is bound, and the warning goes when it can be again.
func TestCloneRefused(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	require.NoError(t, unix.Mount(w.volume, w.volume, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", w.volume, "", unix.MS_UNBINDABLE, ""))
	m := w.open()
	require.Equal(t, w.path(), w.prepare(m, owner, w.folder)[0].Source)
	require.Len(t, m.Warnings(), 1)
	require.Contains(t, m.Warnings()[0], "cannot be cloned")
	require.NoError(t, unix.Mount("", w.volume, "", unix.MS_PRIVATE, ""))
	require.NotEqual(t, w.path(), w.prepare(m, owner, w.folder)[0].Source)
	require.Empty(t, m.Warnings())
}

// TestEngineElsewhere: an engine that does not see the agent's mounts would bind empty directories.
func TestEngineElsewhere(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	other := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	for name, engine := range map[string]func(context.Context) (int, error){
		"elsewhere": func(context.Context) (int, error) { return other.Process.Pid, nil },
		"unknown":   func(context.Context) (int, error) { return 0, nil },
		"error":     func(context.Context) (int, error) { return 0, errors.New("no answer") },
	} {
		m := w.open(func(o *mount.Options) { o.Engine = engine })
		require.Equal(t, w.path(), w.prepare(m, owner, w.folder)[0].Source, name)
		require.Len(t, m.Warnings(), 1, name)
		require.Contains(t, m.Warnings()[0], "the engine does not see this agent's mounts")
		require.NoError(t, m.Release(kernelA))
	}
	m := w.open(func(o *mount.Options) { o.Engine = func(context.Context) (int, error) { return os.Getpid(), nil } })
	require.Equal(t, filepath.Join(w.dir, string(kernelA), "0"), w.prepare(m, owner, w.folder)[0].Source)
	require.Empty(t, m.Warnings())
}

// TestMountsPropagate: an engine with a mount namespace of its own sees what propagates to it, and it goes from there too.
func TestMountsPropagate(t *testing.T) {
	needMounts(t)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("needs unshare: %v", err)
	}
	w := newWorld(t)
	w.open() // makes the directory
	require.NoError(t, unix.Mount(w.dir, w.dir, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("", w.dir, "", unix.MS_SHARED, ""))
	other := exec.CommandContext(t.Context(), unshare, "--mount", "--propagation", "slave", "sh", "-c", "echo; exec sleep 1000")
	other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ready, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	_, err = ready.Read(make([]byte, 1))
	require.NoError(t, err)
	m := w.open(func(o *mount.Options) {
		o.Engine = func(context.Context) (int, error) { return other.Process.Pid, nil }
	})
	src := w.prepare(m, 1000, w.folder)[0].Source
	require.Equal(t, filepath.Join(w.dir, string(kernelA), "0"), src)
	require.Empty(t, m.Warnings())
	there := func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid))
		require.NoError(t, err)
		return string(b)
	}
	require.Contains(t, there(), src+" ")
	require.NoError(t, m.Release(kernelA))
	require.NotContains(t, there(), src+" ")
	require.FileExists(t, w.path("sub", "inner", "file"))
}

// TestConfiguredPath: an agent may know a volume under another path than its proxy.
func TestConfiguredPath(t *testing.T) {
	w := newWorld(t)
	f := w.folder
	f.VolumePath = "/somewhere/else"
	m := w.open(func(o *mount.Options) { o.Volumes, o.Plain = map[string]string{"local:volume1": w.volume}, true })
	require.Equal(t, w.path(), w.prepare(m, owner, f)[0].Source)
}

func TestReleaseKeepsFiles(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	m := w.open()
	src := w.prepare(m, owner, w.folder)[0].Source
	w.prepare(m, owner, w.folder) // again: nothing is stacked
	points, err := mount.Attached(w.dir)
	require.NoError(t, err)
	require.Equal(t, []string{src}, points)
	kernels, strangers, err := m.List()
	require.NoError(t, err)
	require.Equal(t, []cluster.KernelID{kernelA}, kernels)
	require.Empty(t, strangers)
	require.NoError(t, m.Release(kernelB), "nothing is no error")

	// Another agent's process finds and releases it.
	require.NoError(t, w.open().Release(kernelA))
	require.NoError(t, m.Release(kernelA))
	require.FileExists(t, w.path("sub", "inner", "file"))

	// Files beside a mount, which only a mistake can put there, are kept for people.
	src = w.prepare(m, owner, w.folder)[0].Source
	require.NoError(t, unix.Unmount(src, unix.MNT_DETACH))
	require.NoError(t, os.WriteFile(filepath.Join(src, "lost"), []byte("x"), 0o644))
	require.NoError(t, m.Release(kernelA))
	kernels, strangers, err = m.List()
	require.NoError(t, err)
	require.Empty(t, kernels)
	require.Equal(t, []string{".left/" + string(kernelA) + "-0"}, strangers)
	require.FileExists(t, filepath.Join(w.dir, strangers[0], "lost"))
}

// hang mounts a file system over a directory that never answers, until the returned function is called.
func hang(t *testing.T, dir string) (answer func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("a file system that hangs cannot be made here: %v", err)
	}
	if err := unix.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		_ = unix.Close(fd)
		t.Skipf("a file system that hangs cannot be mounted here: %v", err)
	}
	open := true
	answer = func() {
		if open {
			open = false
			_ = unix.Close(fd) // whoever waits gets an error
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	t.Cleanup(answer)
	return answer
}

// TestHungVolume: a file system that does not answer holds nobody for longer than the patience, is told, and is used
// again when it answers. Others are not touched by it.
func TestHungVolume(t *testing.T) {
	needMounts(t)
	w, healthy := newWorld(t), newWorld(t)
	healthy.folder.Host = "local:volume2"
	m := w.open(func(o *mount.Options) { o.Patience = 2 * time.Second })
	// On a busy machine also one that is well may be slow.
	prepared := func(f cluster.FolderMount) {
		t.Helper()
		require.Eventually(t, func() bool {
			m.Probe(t.Context())
			_, err := m.Prepare(t.Context(), kernelA, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{f})
			return err == nil
		}, time.Minute, 10*time.Millisecond)
	}
	prepared(w.folder)
	require.Empty(t, m.Hung())
	answer := hang(t, w.volume)
	for range 20 {
		_, err := m.Prepare(t.Context(), kernelB, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{w.folder})
		require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
		require.Equal(t, mount.ReasonHung, fault.ReasonOf(err), "%v", err)
		require.Contains(t, err.Error(), "local:volume1 does not answer")
		m.Probe(t.Context())
	}
	require.Equal(t, []string{"local:volume1"}, m.Hung())
	require.Len(t, m.Warnings(), 1)
	require.Contains(t, m.Warnings()[0], "does not answer since")
	prepared(healthy.folder)
	require.NoError(t, m.Release(kernelA), "what was mounted before can be let go")
	answer()
	deadline := time.Now().Add(time.Minute)
	for len(m.Hung()) > 0 {
		require.True(t, time.Now().Before(deadline), "it answers again")
		select {
		case <-m.Changed():
		case <-time.After(10 * time.Millisecond):
		}
	}
	prepared(w.folder)
	require.Empty(t, m.Warnings())
}

// TestCancelled: a caller that leaves does not wait for the file system.
func TestCancelled(t *testing.T) {
	needMounts(t)
	w := newWorld(t)
	m := w.open(func(o *mount.Options) { o.Patience = time.Hour })
	hang(t, w.volume)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.Prepare(ctx, kernelA, host.Owner{UID: owner, GID: owner}, []cluster.FolderMount{w.folder})
	require.ErrorIs(t, err, context.Canceled)
}
