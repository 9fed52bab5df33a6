package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxTerminals is how many pseudo-terminals a container may have open. The kernel has one number for all containers of a host
// (kernel.pty.max, 4,096 less what it reserves for the host itself): without a bound of its own, one container takes them all, and
// nobody opens a terminal in any other.
const maxTerminals = 128

// boundTerminals bounds the pseudo-terminals of the container of which pid is the first process. The engine mounts a devpts of its own
// for each container but cannot be asked to bound it.
func (m *Maker) boundTerminals(pid int) error {
	proc := m.path(filepath.Join("proc", strconv.Itoa(pid)))
	root, err := unix.Open(filepath.Join(proc, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() { _ = unix.Close(root) }()
	dir, err := unix.Openat2(root, "dev/pts", &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer func() { _ = unix.Close(dir) }()
	var st, own unix.Stat_t
	var fsys unix.Statfs_t
	if err := errors.Join(unix.Fstat(dir, &st), unix.Fstatfs(dir, &fsys)); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := unix.Stat(m.path("dev/pts"), &own); fsys.Type != unix.DEVPTS_SUPER_MAGIC || err == nil && own.Dev == st.Dev {
		return fs.ErrNotExist // the process has the host's terminals, or none: the container has ended
	}
	options, err := optionsOf(filepath.Join(proc, "mountinfo"), st.Dev)
	if err != nil {
		return err
	}
	ctx, err := unix.Fspick(dir, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return os.NewSyscallError("fspick", err)
	}
	defer func() { _ = unix.Close(ctx) }()
	// Options that are not named get their defaults again.
	for _, o := range append(options, "max="+strconv.Itoa(maxTerminals)) {
		key, value, valued := strings.Cut(o, "=")
		if !valued || key == "max" && value != strconv.Itoa(maxTerminals) {
			continue // "rw" belongs to the mount
		}
		if err := unix.FsconfigSetString(ctx, key, value); err != nil {
			return fmt.Errorf("set option %s: %w", o, os.NewSyscallError("fsconfig", err))
		}
	}
	return os.NewSyscallError("fsconfig", unix.FsconfigReconfigure(ctx))
}

// optionsOf reads the options of a file system from a mountinfo file.
func optionsOf(info string, dev uint64) ([]string, error) {
	text, err := os.ReadFile(info)
	if err != nil {
		return nil, err
	}
	number := fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	for line := range strings.Lines(string(text)) {
		mount, fsys, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields, about := strings.Fields(mount), strings.Fields(fsys)
		if ok && len(fields) > 2 && fields[2] == number && len(about) > 2 {
			return strings.Split(about[len(about)-1], ","), nil
		}
	}
	return nil, fs.ErrNotExist
}

// terminalsWarning is what is wrong where terminals cannot be bounded.
func terminalsWarning(err error) string {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ""
	}
	return fmt.Sprintf("a session can open all pseudo-terminals of this host, so that none is left for others: %v", err)
}
