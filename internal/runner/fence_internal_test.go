package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testkit/await"
)

// TestFence asks the kernel for what is fenced, and for some of what is not, in a process of its own.
func TestFence(t *testing.T) {
	const env = "BERTH_TEST_FENCED"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFence$", "-test.v")
		cmd.Env = append(os.Environ(), env+"="+filepath.Join(t.TempDir(), "file"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	f, err := os.Create(os.Getenv(env))
	require.NoError(t, err)
	defer f.Close()
	var buf [64]byte
	call := func(command uintptr) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), command, uintptr(unsafe.Pointer(&buf)))
		if errno != 0 {
			return errno
		}
		return nil
	}
	all := func(check func(t *testing.T)) { // on a thread that was there before the fence, and on this one
		ask, answered := make(chan struct{}), make(chan struct{})
		go func() {
			runtime.LockOSThread()
			defer close(answered)
			<-ask
			check(t)
		}()
		require.NoError(t, fence())
		close(ask)
		await.Value(t, answered)
		check(t)
	}
	all(func(t *testing.T) {
		for _, c := range fenced {
			if err := call(uintptr(c)); err != unix.EPERM {
				t.Errorf("%#x: %v", c, err)
			}
			if err := call(uintptr(c) | 1<<32); err != unix.EPERM {
				t.Errorf("%#x with a bit that the kernel does not see: %v", c, err)
			}
		}
		if _, _, errno := unix.Syscall6(fileSetattr, 0, 0, 0, 0, 0, 0); errno != unix.EPERM {
			t.Errorf("file_setattr: %v", errno)
		}
		if _, _, errno := unix.Syscall6(ofX32|fileSetattr, 0, 0, 0, 0, 0, 0); runtime.GOARCH == "amd64" && errno != unix.EPERM {
			t.Errorf("file_setattr of x32: %v", errno)
		}
		if err := call(0x801c581f); err == unix.EPERM { // FS_IOC_FSGETXATTR
			t.Errorf("reading the project: %v", err)
		}
		if err := call(unix.TCGETS); err != unix.ENOTTY {
			t.Errorf("TCGETS: %v", err)
		}
	})
	out, err := exec.Command("sh", "-c", "grep Seccomp_filters /proc/self/status; echo works").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "works")
}
