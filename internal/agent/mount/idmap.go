package mount

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxIDMaps bounds the user namespaces that are kept for the next mount.
const maxIDMaps = 64

// maxID is one above the highest user and group number; the number itself means "none".
const maxID = 1<<32 - 1

// idmaps keeps user namespaces, which serve only as descriptions of id mappings.
type idmaps struct {
	mu   sync.Mutex
	kept map[[4]int]*os.File
}

// namespace returns the descriptor of a user namespace in which the two users and the two groups are
// exchanged and all other numbers are themselves. done lets go of it.
func (m *idmaps) namespace(diskUID, uid, diskGID, gid int) (fd int, done func(), err error) {
	key := [4]int{diskUID, uid, diskGID, gid}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.kept[key]
	if f == nil {
		if f, err = userNamespace(exchange(diskUID, uid), exchange(diskGID, gid)); err != nil {
			return -1, nil, fmt.Errorf("make a user namespace: %w", err)
		}
		for old, kept := range m.kept { // any other: most are of sessions that have ended
			if len(m.kept) < maxIDMaps {
				break
			}
			_ = kept.Close()
			delete(m.kept, old)
		}
		if m.kept == nil {
			m.kept = map[[4]int]*os.File{}
		}
		m.kept[key] = f
	}
	// The caller's descriptor is its own, so that the kept one can be closed meanwhile.
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("copy the descriptor of a user namespace: %w", os.NewSyscallError("fcntl", err))
	}
	return fd, func() { _ = unix.Close(fd) }, nil
}

func (m *idmaps) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.kept {
		_ = f.Close()
		delete(m.kept, key)
	}
}

// exchange is the mapping that swaps two numbers.
func exchange(a, b int) []syscall.SysProcIDMap {
	low, high := min(a, b), max(a, b)
	var out []syscall.SysProcIDMap
	add := func(from, to, size int) {
		if size > 0 {
			out = append(out, syscall.SysProcIDMap{ContainerID: from, HostID: to, Size: size})
		}
	}
	if low == high {
		add(0, 0, maxID)
		return out
	}
	add(0, 0, low)
	add(low, high, 1)
	add(low+1, low+1, high-low-1)
	add(high, low, 1)
	add(high+1, high+1, maxID-high-1)
	return out
}

// userNamespace makes a user namespace with these mappings. It lives in a child that is traced, so that it
// stops before it runs its first instruction, and is killed once the namespace is held open.
func userNamespace(uids, gids []syscall.SysProcIDMap) (*os.File, error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"berth-user-namespace"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: uids, GidMappings: gids, GidMappingsEnableSetgroups: true,
			Ptrace: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
	_ = p.Kill()
	_, _ = p.Wait() // however it ended
	return f, err
}
