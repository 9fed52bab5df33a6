package data

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// TestPeersOfOtherUsersAreRefused connects as another user; that is one thread's business.
func TestPeersOfOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: becoming another user needs root")
	}
	dir, err := os.MkdirTemp("", "peer")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(path, 0o666))
	peer := func(uid uintptr) net.Conn {
		dialed := make(chan error)
		ended := make(chan net.Conn)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			var err error
			if _, _, no := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); no != 0 {
				err = no
			}
			var c net.Conn
			if err == nil {
				c, err = net.Dial("unix", path)
			}
			dialed <- err
			ended <- c
		}()
		require.NoError(t, <-dialed)
		c := <-ended
		t.Cleanup(func() { _ = c.Close() })
		s, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	require.NoError(t, samePeer(peer(0), 1234), "root")
	require.NoError(t, samePeer(peer(1234), 1234), "the agent's own user")
	require.True(t, fault.Is(samePeer(peer(1235), 1234), fault.Denied))
	require.True(t, fault.Is(samePeer(peer(1234), 0), fault.Denied))
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	require.True(t, fault.Is(samePeer(near, 0), fault.Denied))
}
