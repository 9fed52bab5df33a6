package tree

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// node is a directory below a root, as a chain of names: no descriptor is held while it waits for its turn.
type node struct {
	parent *node // nil for the root itself
	name   string
}

// path is the node's path below its root, "." for the root.
func (n *node) path() string {
	if n.parent == nil {
		return "."
	}
	size := 0
	for at := n; at.parent != nil; at = at.parent {
		size += len(at.name) + 1
	}
	text := make([]byte, size-1)
	for at, end := n, size-1; at.parent != nil; at = at.parent {
		start := end - len(at.name)
		copy(text[start:], at.name)
		if start > 0 {
			text[start-1] = '/'
		}
		end = start - 1
	}
	return string(text)
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// longPath is less than PATH_MAX: a longer path is opened piece by piece.
const longPath = 4000

// openNode opens a directory below the open directory root without following a link or leaving its file system.
func openNode(root int, n *node) (int, error) {
	p := n.path()
	if len(p) <= longPath {
		fd, err := openBeneath(root, p, openDirFlags)
		if err != unix.ENOSYS && err != unix.EAGAIN && err != unix.EPERM {
			return fd, err
		}
	}
	// By single names, with two descriptors: for long paths, for kernels and sandboxes without openat2, and
	// when renames kept openat2 from telling whether it stayed inside.
	fd, err := unix.Openat(root, ".", openDirFlags, 0)
	for name := range strings.SplitSeq(p, "/") {
		if err != nil {
			return -1, err
		}
		next, failed := unix.Openat(fd, name, openDirFlags, 0)
		unix.Close(fd)
		fd, err = next, failed
	}
	return fd, err
}

func openBeneath(root int, p string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(root, p, &how)
		if err == unix.EINTR || err == unix.EAGAIN && try < 8 {
			continue
		}
		return fd, err
	}
}

// vanished reports errors of a directory or file that was there when its parent was listed and is now gone,
// was replaced by something else, or has another file system mounted over it: it is not part of the tree.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}

func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// openRoot gives a descriptor of the root for raw calls; the file keeps it open.
func openRoot(root *os.Root) (*os.File, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, Fault("open", root.Name(), err)
	}
	return f, nil
}

// dirBuffer is how much of a directory one call reads: about two thousand names.
const dirBuffer = 64 << 10

// dirent is one entry. Its name lies in the reader's buffer, is followed by a NUL byte there, and is valid until
// the next read.
type dirent struct {
	ino  uint64
	next int64 // the position after this entry
	kind byte  // DT_UNKNOWN on some file systems
	name []byte
}

// reader reads directories without allocating.
type reader struct {
	buffer []byte
	left   []byte
}

func newReader(size int) *reader { return &reader{buffer: make([]byte, size)} }

// fill reads the next part of a directory; false at its end.
func (r *reader) fill(fd int) (bool, error) {
	for {
		n, err := unix.Getdents(fd, r.buffer)
		if err == unix.EINTR {
			continue
		}
		// The directory was removed while it was open.
		if err == unix.ENOENT {
			n, err = 0, nil
		}
		r.left = r.buffer[:max(n, 0)]
		return n > 0, err
	}
}

// entry takes the next entry of the part, without "." and "..".
func (r *reader) entry() (dirent, bool) {
	const header = 19
	for len(r.left) > header {
		record := r.left
		size := int(binary.NativeEndian.Uint16(record[16:]))
		if size <= header || size > len(record) {
			break
		}
		r.left = record[size:]
		end := header
		for end < size-1 && record[end] != 0 {
			end++
		}
		name := record[header:end]
		if len(name) == 0 || name[0] == '.' && (len(name) == 1 || len(name) == 2 && name[1] == '.') {
			continue
		}
		return dirent{
			ino: binary.NativeEndian.Uint64(record), next: int64(binary.NativeEndian.Uint64(record[8:])),
			kind: record[18], name: name,
		}, true
	}
	return dirent{}, false
}

const attributes = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT

// statxEntry is statx without copying the name, which a NUL byte must follow.
func statxEntry(fd int, name []byte, flags, mask int, st *unix.Statx_t) error {
	_, _, code := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&name[0])),
		uintptr(flags), uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
	if code != 0 {
		return code
	}
	return nil
}

func kindOfMode(mode uint16) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return unix.DT_REG
	case unix.S_IFDIR:
		return unix.DT_DIR
	case unix.S_IFLNK:
		return unix.DT_LNK
	}
	return unix.DT_BLK // stands for all that is neither
}
