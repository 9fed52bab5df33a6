package proc

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// AsUser runs fn with the file permissions of the given user, on an operating-system thread of its
// own that is thrown away afterwards: the kernel itself then refuses what that user may not
// read or write, and new files belong to it. A nil user, or a runner that is not root, runs fn as it is.
// Child processes must not be started inside fn.
func AsUser(c *Credential, fn func() error) error {
	if c == nil || os.Geteuid() != 0 || c.UID == 0 {
		return fn()
	}
	errc := make(chan error, 1)
	go func() {
		// Never unlocked: the thread's changed identity must not serve another goroutine.
		runtime.LockOSThread()
		errc <- func() error {
			if err := becomeFS(c); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-errc
}

// becomeFS changes the calling thread's groups and file-system ids. Raw calls act on one
// thread; the syscall package's own would change all of them.
func becomeFS(c *Credential) error {
	groups := make([]uint32, 0, len(c.Groups)+1)
	groups = append(groups, uint32(c.GID))
	for _, g := range c.Groups {
		groups = append(groups, uint32(g))
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return fmt.Errorf("take the groups of the session's user: %w", e)
	}
	// setfsgid and setfsuid report nothing; asking again with an impossible id returns what is set.
	for _, s := range []struct {
		call uintptr
		id   int
	}{{syscall.SYS_SETFSGID, c.GID}, {syscall.SYS_SETFSUID, c.UID}} {
		_, _, _ = syscall.RawSyscall(s.call, uintptr(s.id), 0, 0)
		if now, _, _ := syscall.RawSyscall(s.call, ^uintptr(0), 0, 0); int(now) != s.id {
			return fmt.Errorf("take the identity %d of the session's user: it stayed %d", s.id, now)
		}
	}
	return nil
}

// AsPeer is AsUser also in the eyes of peers: who connects to or listens on a unix socket inside fn is the user to the
// other side (SO_PEERCRED), not the runner. The real and saved ids stay, so that the user cannot signal the thread.
func AsPeer(c *Credential, fn func() error) error {
	return AsUser(c, func() error {
		if c == nil || os.Geteuid() != 0 || c.UID == 0 {
			return fn()
		}
		const keep = ^uintptr(0)
		for _, s := range []struct {
			call uintptr
			id   int
		}{{syscall.SYS_SETRESGID, c.GID}, {syscall.SYS_SETRESUID, c.UID}} {
			if _, _, e := syscall.RawSyscall(s.call, keep, uintptr(s.id), keep); e != 0 {
				return fmt.Errorf("become the session's user: %w", e)
			}
		}
		return fn()
	})
}
