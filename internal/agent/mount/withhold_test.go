package mount_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// box is a process with name spaces of its own, as a container's first one, that mounts the folder at "at" below a directory.
type box struct {
	w    *world
	home string
	cmd  *exec.Cmd
	in   *bufio.Reader
	m    *mount.Mounts
}

// contain starts a container of the poor: a shell as first process, which binds the folder and then runs the script. The test goes on when
// the script has said "ready".
func (w *world) contain(script string) *box {
	w.Helper()
	needMounts(w.T)
	b := &box{w: w, home: filepath.Join(filepath.Dir(w.dir), "work"), m: w.open()}
	require.NoError(w, os.MkdirAll(filepath.Join(b.home, "data"), 0o755))
	b.cmd = exec.Command("/bin/sh", "-c", `mount -t proc proc /proc && mount --bind "$0" data || exit 9
`+script, w.path())
	b.cmd.Dir = b.home
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	out, err := b.cmd.StdoutPipe()
	require.NoError(w, err)
	require.NoError(w, b.cmd.Start())
	w.Cleanup(func() { _ = b.cmd.Process.Kill(); _ = b.cmd.Wait() })
	require.NoError(w, out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)))
	b.in = bufio.NewReader(out)
	require.Equal(w, "ready", b.line())
	return b
}

func (b *box) line() string {
	b.w.Helper()
	text, err := b.in.ReadString('\n')
	require.NoError(b.w, err)
	return strings.TrimSpace(text)
}

func (b *box) withhold(readOnly bool) error {
	scope := b.w.folder.Scope
	return b.m.Withhold(b.w.Context(), b.cmd.Process.Pid, []cluster.Withheld{
		{Folder: b.w.folder.Folder, Name: "data", Scope: scope, ReadOnly: readOnly}})
}

// mounts are the lines of the box's mounts that show the folder.
func (b *box) mounts() (out []string) {
	b.w.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(b.cmd.Process.Pid) + "/mountinfo")
	require.NoError(b.w, err)
	ref, err := b.w.folder.Ref()
	require.NoError(b.w, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, ref.Dir()) && !strings.Contains(line, filepath.Base(b.w.dir)) {
			out = append(out, line)
		}
	}
	return out
}

// attempts are programs that hold a folder in some way, in the background of a script that says ready when they do.
var attempts = map[string]string{
	"nothing":                  `echo ready; exec sleep 60`,
	"an open file":             `( exec 3>data/held; echo ready; while echo x >&3; do sleep 0.01; done ) & wait; sleep 60`,
	"a working directory":      `( cd data/sub; echo ready; exec sleep 60 ) & wait; sleep 60`,
	"a directory's descriptor": `( exec 3<data; cd /; echo ready; exec sleep 60 ) & wait; sleep 60`,
	"a program":                `cp /bin/sleep data/prog; ( exec data/prog 60 ) & sleep 0.1; echo ready; wait; sleep 60`,
	"a renamed way":            `mkdir way; mkdir way/in; mount --move data way/in; mv way other; echo ready; exec sleep 60`,
	"a child that forks":       `( cd data; ( echo ready; while :; do sleep 0.01; done ) & wait ) & wait; sleep 60`,
}

// TestAttackWithheldFolders: however the programs of a container hold a folder, afterwards nobody has it.
func TestAttackWithheldFolders(t *testing.T) {
	t.Parallel()
	for name, script := range attempts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := w.contain(script)
			require.Len(t, b.mounts(), 1)
			require.NoError(t, b.withhold(false))
			require.Empty(t, b.mounts())
			require.NoError(t, b.withhold(false), "again")
			require.NoError(t, b.cmd.Process.Signal(syscall.Signal(0)), "the first process lives")
			text, err := os.ReadFile("/proc/" + strconv.Itoa(b.cmd.Process.Pid) + "/mountinfo")
			require.NoError(t, err)
			require.Regexp(t, b.home+`/\S+ ro,nosuid,nodev,noexec,relatime - tmpfs `, string(text), "programs that go on to write there hear of it")
			require.FileExists(t, w.path("sub", "inner", "file"), "no file is lost")
		})
	}
}

// TestAHolderThatDiesSlowly: on a busy machine a process that was killed keeps its files until it has a turn. Here a debugger keeps it on
// the way out, for more tries than count.
func TestAHolderThatDiesSlowly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.contain(`( cd data; echo ready; exec sleep 60 ) & wait; exec sleep 60`)
	first := strconv.Itoa(b.cmd.Process.Pid)
	text, err := os.ReadFile("/proc/" + first + "/task/" + first + "/children")
	if err != nil {
		t.Skip("this kernel does not list the children of a process")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	traced, release := make(chan error), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free) // before the container is ended, which waits for all of its processes
	go func() {
		runtime.LockOSThread() // the thread is the debugger
		defer runtime.UnlockOSThread()
		var status unix.WaitStatus
		err := unix.PtraceAttach(pid)
		if err == nil {
			_, err = unix.Wait4(pid, &status, unix.WALL, nil)
		}
		if err == nil {
			err = errors.Join(unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT), unix.PtraceCont(pid, 0))
		}
		traced <- err
		if err == nil {
			for {
				_, err := unix.Wait4(pid, &status, unix.WALL, nil)
				if err != nil || !status.Stopped() || status.TrapCause() == unix.PTRACE_EVENT_EXIT {
					break // it is on its way out
				}
				_ = unix.PtraceCont(pid, 0) // it became sleep only now
			}
			<-release
			_ = unix.PtraceDetach(pid)
		}
	}()
	require.NoError(t, <-traced)
	pauses := 0
	b.m = w.open(func(o *mount.Options) {
		o.Pause = func(ctx context.Context, d time.Duration) {
			if pauses++; pauses == 30 {
				free()
			}
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
	})
	require.NoError(t, b.withhold(false))
	require.Empty(t, b.mounts())
}

func TestFoldersBecomeReadOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.contain(`( exec 3>data/held; echo ready; while echo x >&3; do sleep 0.01; done )
while [ ! -e go ]; do sleep 0.01; done
if echo more >data/more; then echo written; else echo refused; fi; cat data/sub/inner/file; echo; exec sleep 60`)
	require.NoError(t, b.withhold(true))
	require.NoError(t, os.WriteFile(filepath.Join(b.home, "go"), nil, 0o644))
	require.Equal(t, "refused", b.line(), "whoever wrote was ended, and writes no more")
	require.Equal(t, "inside", b.line(), "it can be read")
	require.Len(t, b.mounts(), 1)
	require.NoError(t, b.withhold(true), "again")
	require.NoError(t, b.withhold(false), "and then taken away")
	require.Empty(t, b.mounts())
}

// TestAnAgentThatStoodStillTakesFolders: the time that it did not run is not the time that it tried, and a try that works counts, also the
// last one.
func TestAnAgentThatStoodStillTakesFolders(t *testing.T) {
	t.Parallel()
	for _, holds := range []string{"nothing", "an open file"} {
		w := newWorld(t)
		b := w.contain(attempts[holds])
		require.NoError(t, b.m.WithholdLate(t.Context(), b.cmd.Process.Pid, []cluster.Withheld{
			{Folder: w.folder.Folder, Name: "data", Scope: w.folder.Scope}}), holds)
		require.Empty(t, b.mounts(), holds)
	}
}

// TestWhoGivesUpTakingAFolderDoesNotKnow: a caller that leaves has no proof that programs keep the folder, for which their session would
// end. What the only try took is gone.
func TestWhoGivesUpTakingAFolderDoesNotKnow(t *testing.T) {
	t.Parallel()
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, holds := range []string{"nothing", "an open file"} {
		w := newWorld(t)
		b := w.contain(attempts[holds])
		err := b.m.WithholdLate(left, b.cmd.Process.Pid, []cluster.Withheld{{Folder: w.folder.Folder, Name: "data", Scope: w.folder.Scope}})
		if holds == "nothing" {
			require.NoError(t, err)
			require.Empty(t, b.mounts())
			continue
		}
		require.ErrorIs(t, err, context.Canceled)
		require.NotEqual(t, host.ReasonHeld, fault.ReasonOf(err))
		require.Len(t, b.mounts(), 1)
	}
}

// TestFoldersThatAreHeld: what the first process holds, or nobody that can be seen, is told. The mount stays, so that
// another attempt tells it again.
func TestFoldersThatAreHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.contain(`exec 3<data; echo ready; while :; do sleep 1; done`)
	err := b.withhold(false)
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Equal(t, host.ReasonHeld, fault.ReasonOf(err))
	require.Len(t, b.mounts(), 1)
	require.Equal(t, host.ReasonHeld, fault.ReasonOf(b.withhold(false)), "also to an agent that was restarted in between")
	require.NoError(t, b.cmd.Process.Signal(syscall.Signal(0)), "ending it is the caller's")
}

// TestWithholdingFromTheDead: a container that has ended has nothing.
func TestWithholdingFromTheDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.contain(`echo ready; exec sleep 60`)
	require.NoError(t, b.cmd.Process.Kill())
	_ = b.cmd.Wait()
	require.NoError(t, b.withhold(false))
}

// TestWithholdingWithoutRights: an agent that may not is told from a failure that passes.
func TestWithholdingWithoutRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.open(func(o *mount.Options) { o.Plain = true })
	err := m.Withhold(t.Context(), os.Getpid(), []cluster.Withheld{{Folder: w.folder.Folder, Name: "data", Scope: w.folder.Scope}})
	require.Equal(t, host.ReasonCannot, fault.ReasonOf(err))
}

func TestOtherFoldersStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.contain(`echo ready; exec sleep 60`)
	require.NoError(t, b.m.Withhold(t.Context(), b.cmd.Process.Pid, []cluster.Withheld{
		{Folder: "0b5e4a3c-0000-4000-8000-00000000000f", Name: "other", Scope: w.folder.Scope}}))
	require.Len(t, b.mounts(), 1)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(w.path(), &st))
}
