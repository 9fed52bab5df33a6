package scratch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

const kernel = cluster.KernelID("00000000-0000-4000-8000-000000000001")

func content(generation int64, files ...host.File) host.Content {
	return host.Content{UID: os.Getuid(), GID: os.Getgid(), Generation: generation, Work: files,
		Runner: run.Config{Version: 1, Token: "0123456789abcdef"}}
}

func TestHomeOfTheUserLeadsNowhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	root, err := scratch.Open(filepath.Join(dir, "kernels"), 0)
	require.NoError(t, err)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	// The user replaces a directory by a link before the restart.
	require.NoError(t, os.Symlink(outside, filepath.Join(l.Work, ".ssh")))
	_, err = root.Prepare(kernel, content(2, host.File{Path: ".ssh/authorized_keys", Mode: 0o600, Data: []byte("key"), Replace: true}))
	refused(t, err)
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// refused: it is the session's own fault, on this host as on every other.
func refused(t *testing.T, err error) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Equal(t, host.ReasonHome, fault.ReasonOf(err))
	require.NotEmpty(t, fault.NextOf(err))
}

// TestHostileHomes: what a user leaves in the home, or writes as dotfiles, neither holds up the agent nor counts as its failure.
func TestHostileHomes(t *testing.T) {
	t.Parallel()
	dotfile := func(path string) host.File {
		return host.File{Path: path, Mode: 0o640, Data: []byte("new"), Replace: true}
	}
	for name, c := range map[string]struct {
		spoil   func(home string) error
		files   []host.File
		refused bool
	}{
		"a pipe in place of a file": {spoil: func(home string) error { return unix.Mkfifo(filepath.Join(home, "bootstrap.sh"), 0o666) },
			files: []host.File{dotfile("bootstrap.sh")}},
		"a link in place of a file": {spoil: func(home string) error { return os.Symlink("/etc/passwd", filepath.Join(home, "bootstrap.sh")) },
			files: []host.File{dotfile("bootstrap.sh")}},
		"a directory in place of a file": {spoil: func(home string) error { return os.MkdirAll(filepath.Join(home, "bootstrap.sh", "x"), 0o755) },
			files: []host.File{dotfile("bootstrap.sh")}, refused: true},
		"a pipe in place of a directory": {spoil: func(home string) error { return unix.Mkfifo(filepath.Join(home, ".ssh"), 0o666) },
			files: []host.File{dotfile(".ssh/authorized_keys")}, refused: true},
		"a dotfile inside another": {files: []host.File{dotfile(".bashrc"), dotfile(".bashrc/x")}, refused: true},
		"a long name":              {files: []host.File{dotfile(strings.Repeat("x", 300))}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, err := scratch.Open(t.TempDir(), 0)
			require.NoError(t, err)
			l, err := root.Prepare(kernel, content(1))
			require.NoError(t, err)
			if c.spoil != nil {
				require.NoError(t, c.spoil(l.Work))
			}
			await.Return(t, func() { _, err = root.Prepare(kernel, content(2, c.files...)) })
			if c.refused {
				refused(t, err)
				return
			}
			require.NoError(t, err)
			fi, err := os.Lstat(filepath.Join(l.Work, c.files[0].Path))
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o640), fi.Mode())
		})
	}
}

// TestDeepTrees: directories inside one another, as deep as a user makes them, need few open files.
func TestDeepTrees(t *testing.T) {
	const few = 128
	if os.Getenv("BERTH_TEST_DEEP_TREE") == "" {
		again := exec.Command("/proc/self/exe", "-test.run=^TestDeepTrees$")
		again.Env = append(os.Environ(), "BERTH_TEST_DEEP_TREE=yes")
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	root, err := scratch.Open(t.TempDir(), 0)
	require.NoError(t, err)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	at, err := unix.Open(l.Work, unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	for range 4 * few {
		require.NoError(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
	}
	require.NoError(t, unix.Close(at))
	require.NoError(t, root.Release(kernel))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}))
	require.NoError(t, root.Reap(t.Context()))
	require.Zero(t, root.Gone())
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	root, err := scratch.Open(t.TempDir(), 1<<62)
	require.NoError(t, err)
	_, err = root.Prepare(kernel, content(1))
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.Equal(t, "scratch-full", fault.ReasonOf(err))
	ids, _, err := root.List()
	require.NoError(t, err)
	require.Empty(t, ids, "nothing is left behind")
}

func TestReleaseIsQuickAndReapFinal(t *testing.T) {
	t.Parallel()
	root, err := scratch.Open(t.TempDir(), 0)
	require.NoError(t, err)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(l.Work, "x"), []byte("y"), 0o644))
	require.NoError(t, root.Release(kernel))
	require.NoError(t, root.Release(kernel))
	require.NoDirExists(t, l.Dir)
	require.Equal(t, 1, root.Gone())
	require.NoError(t, root.Reap(t.Context()))
	require.Zero(t, root.Gone())
}

func TestDialRunner(t *testing.T) {
	t.Parallel()
	// Longer than any socket path may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	root, err := scratch.Open(dir, 0)
	require.NoError(t, err)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	_, err = root.DialRunner(t.Context(), kernel)
	require.ErrorIs(t, err, fs.ErrNotExist)

	private, err := os.Open(l.Private)
	require.NoError(t, err)
	defer private.Close()
	short := fmt.Sprintf("/proc/self/fd/%d/run.sock", private.Fd())
	server, err := net.Listen("unix", short)
	require.NoError(t, err)
	defer server.Close()
	go func() { // ends with the listener
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	c, err := root.DialRunner(context.Background(), kernel)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	// A container that puts a link to a socket of the host in its place gets no connection to it.
	elsewhere := filepath.Join(t.TempDir(), "s")
	other, err := net.Listen("unix", elsewhere)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, os.Remove(filepath.Join(l.Private, "run.sock")))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(l.Private, "run.sock")))
	_, err = root.DialRunner(t.Context(), kernel)
	require.ErrorContains(t, err, "not a socket")
}

func TestResultOfAHostileContainer(t *testing.T) {
	t.Parallel()
	root, err := scratch.Open(t.TempDir(), 0)
	require.NoError(t, err)
	res, err := root.Result(kernel)
	require.NoError(t, err)
	require.Nil(t, res)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	file := filepath.Join(l.Private, "result.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"exit_code":3}`), 0o644))
	res, err = root.Result(kernel)
	require.NoError(t, err)
	require.Equal(t, 3, res.ExitCode)
	require.NoError(t, os.Truncate(file, 1<<30))
	_, err = root.Result(kernel)
	require.Error(t, err)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink("/etc/passwd", file))
	_, err = root.Result(kernel)
	require.Error(t, err)
}

// disks makes a disk whenever one is asked for, or refuses.
type disks struct{ refuse error }

func (d disks) Give(ctx context.Context, dir string) error {
	if d.refuse != nil {
		return d.refuse
	}
	return loopdisk.Make(ctx, dir, loopdisk.MinSize)
}

// limited is a scratch directory whose kernels have disks; the test is skipped where they cannot.
func limited(t *testing.T) *scratch.Root {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Geteuid() != 0 {
		t.Skip("only root may mount file systems, and the kernel needs loop devices")
	}
	dir := t.TempDir()
	root, err := scratch.Open(dir, 0)
	require.NoError(t, err)
	root.Limit(disks{})
	t.Cleanup(func() { require.NoError(t, scratch.DetachAll(dir)) })
	return root
}

func TestTheUsersFilesHaveADiskOfTheirOwn(t *testing.T) {
	t.Parallel()
	root := limited(t)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	require.Empty(t, root.Unlimited())
	require.DirExists(t, l.Work)
	require.Len(t, l.Temporary, 4)
	require.Equal(t, "/.berth/user", l.Temporary[3].Target, "the part of the runner's directory that is the user's")
	tmp := l.Temporary[0].Path
	require.Equal(t, "/tmp", l.Temporary[0].Target)
	st, err := os.Stat(tmp)
	require.NoError(t, err)
	require.Equal(t, fs.ModeDir|fs.ModeSticky|0o777, st.Mode())

	// The user fills it. What the agent and the runner write is elsewhere, and the agent can still write dotfiles.
	fillAs(t, 9001, tmp)
	require.NoError(t, os.WriteFile(filepath.Join(l.Private, "result.json"), []byte(`{"exit_code":3}`), 0o644))
	u, ok := root.Usage(kernel)
	require.True(t, ok)
	require.Less(t, u.Free, int64(1<<20))
	require.NoError(t, os.WriteFile(filepath.Join(l.Work, "kept"), []byte("x"), 0o644))

	// A restart keeps the home and begins with empty temporary directories.
	again, err := root.Prepare(kernel, content(2, host.File{Path: ".ssh/authorized_keys", Mode: 0o600, Data: []byte("key"), Replace: true}))
	require.NoError(t, err)
	require.Equal(t, l, again)
	require.FileExists(t, filepath.Join(l.Work, "kept"))
	require.NoFileExists(t, filepath.Join(tmp, "big"))
	u, _ = root.Usage(kernel)
	require.Greater(t, u.Free, int64(loopdisk.MinSize/2))

	require.NoError(t, root.Release(kernel))
	_, ok = root.Usage(kernel)
	require.False(t, ok)
	require.NoError(t, root.Reap(t.Context()))
	require.Zero(t, root.Gone())
}

// fillAs writes a file of a user without privileges until there is no more room.
func fillAs(t *testing.T, uid int, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "big"))
	require.NoError(t, err)
	defer f.Close()
	cmd := exec.Command("dd", "if=/dev/zero", "bs=64k")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	cmd.Dir, cmd.Stdout = "/", f
	var out strings.Builder
	cmd.Stderr = &out
	require.Error(t, cmd.Run())
	require.Contains(t, out.String(), "No space left on device")
}

func TestAKernelWithoutADisk(t *testing.T) {
	t.Parallel()
	root, err := scratch.Open(t.TempDir(), 0)
	require.NoError(t, err)
	root.Limit(disks{refuse: errors.New("no loop devices here")})
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	require.Empty(t, l.Disk)
	require.Empty(t, l.Temporary, "its temporary directories are the container's")
	require.Equal(t, "no loop devices here", root.Unlimited())

	root.Limit(disks{refuse: unix.ENOSPC})
	_, err = root.Prepare("00000000-0000-4000-8000-000000000002", content(1))
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
}

func TestAHomeThatBeganAsADirectoryStaysOne(t *testing.T) {
	t.Parallel()
	root := limited(t)
	root.Limit(nil)
	l, err := root.Prepare(kernel, content(1))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(l.Work, "kept"), nil, 0o644))
	root.Limit(disks{})
	l, err = root.Prepare(kernel, content(2))
	require.NoError(t, err)
	require.Empty(t, l.Disk)
	require.FileExists(t, filepath.Join(l.Work, "kept"))
}

// TestAHomeFollowsItsUser: when the user of a kernel has another number in the next generation, the files of the home are its own still.
// Links are changed themselves and lead nowhere, and files of others stay theirs.
func TestAHomeFollowsItsUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	root, err := scratch.Open(filepath.Join(dir, "kernels"), 0)
	require.NoError(t, err)
	prepare := func(generation int64, uid int) scratch.Layout {
		c := content(generation)
		c.UID, c.GID = uid, 9001
		l, err := root.Prepare(kernel, c)
		require.NoError(t, err)
		return l
	}
	l := prepare(1, 50_001)
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	inside := func(name string) string { return filepath.Join(l.Work, name) }
	require.NoError(t, os.Mkdir(inside("d"), 0o700))
	require.NoError(t, os.WriteFile(inside("d/file"), nil, 0o600))
	require.NoError(t, os.WriteFile(inside("of-root"), nil, 0o600))
	require.NoError(t, os.Symlink(outside, inside("link")))
	for _, name := range []string{"d", "d/file", "link"} {
		require.NoError(t, os.Lchown(inside(name), 50_001, 9001))
	}
	prepare(2, 9001)
	for name, want := range map[string]uint32{".": 9001, "d": 9001, "d/file": 9001, "link": 9001, "of-root": 0} {
		fi, err := os.Lstat(inside(name))
		require.NoError(t, err)
		require.Equal(t, want, fi.Sys().(*syscall.Stat_t).Uid, name)
	}
	fi, err := os.Lstat(outside)
	require.NoError(t, err)
	require.Zero(t, fi.Sys().(*syscall.Stat_t).Uid)
}
