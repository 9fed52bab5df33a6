package proc

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// AsIdle makes the test binary do nothing: a process that was started and has not executed its file has the program of its parent.
const AsIdle = "do-nothing"

// TestAStartThatHangs: a new process that a signal stopped is killed soon, one that is slow has longer. Nothing happens to one that runs
// another program.
func TestAStartThatHangs(t *testing.T) {
	runtime.LockOSThread() // the children of a thread are looked at
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	require.NoError(t, err)
	start := func(file, argument string) int {
		pid, _, err := syscall.StartProcess(file, []string{file, argument}, &syscall.ProcAttr{})
		require.NoError(t, err)
		return pid
	}
	wait := func(pid int) syscall.WaitStatus {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		require.NoError(t, err)
		return ws
	}
	other := start("/bin/sleep", "600")

	pid := start(self, AsIdle)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	done := watchStart(nil, time.Millisecond, time.Hour)
	require.Equal(t, syscall.SIGKILL, wait(pid).Signal())
	done()

	const slowest = 50 * time.Millisecond
	began := time.Now()
	pid = start(self, AsIdle)
	done = watchStart(nil, time.Millisecond, slowest)
	require.Equal(t, syscall.SIGKILL, wait(pid).Signal())
	done()
	require.GreaterOrEqual(t, time.Since(began), slowest)

	list := "/proc/self/task/" + strconv.Itoa(syscall.Gettid()) + "/children"
	require.Empty(t, newChildren(list, nil))
	require.NoError(t, syscall.Kill(other, syscall.SIGTERM))
	require.Equal(t, syscall.SIGTERM, wait(other).Signal())
}
