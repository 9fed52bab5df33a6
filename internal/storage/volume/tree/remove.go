package tree

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

// maxDepth is how many directories Remove holds open. What lies deeper is moved up first.
const maxDepth = 48

// Remove deletes at most limit entries of the tree name in parent, whatever name is, and reports how many went
// and whether nothing of it is left. A tree that is not there is done. It follows no links, enters no other
// file system, needs a bounded number of open files at any depth, and can be called again after a crash. An
// entry that cannot be removed is passed over; its error comes at the end. Nobody may be meant to use the tree
// any more: directories that forbid it are made writable, and deep ones are moved up inside the tree.
func Remove(ctx context.Context, parent *os.Root, name string, limit int) (removed int, done bool, err error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return 0, false, fault.Invalidf("remove %q: it is not the name of one entry", name)
	}
	top, err := openRoot(parent)
	if err != nil {
		return 0, false, err
	}
	defer top.Close()
	r := &remover{ctx: ctx, left: limit}
	defer r.closeAll()
	done, err = r.remove(int(top.Fd()), name)
	if err == nil {
		err = r.failed
	}
	if err == nil && !done && r.left > 0 {
		err = ctx.Err()
	}
	return limit - r.left, done, Fault("remove", name, err)
}

// level is one open directory of the way down.
type level struct {
	fd      int
	name    string // in the level above
	reader  *reader
	gone    bool // something was removed since the directory was last read from its start
	skipped bool // something in it cannot be removed
	opened  bool // its mode was already widened
}

type remover struct {
	ctx    context.Context
	left   int
	levels []*level
	spare  []*reader
	failed error // the first entry that was passed over
	moves  int
}

func (r *remover) closeAll() {
	for _, l := range r.levels {
		unix.Close(l.fd)
	}
}

// remove works on name in the open directory parent until it is gone, the limit is reached or ctx ends.
func (r *remover) remove(parent int, name string) (done bool, err error) {
	if r.left <= 0 || r.ctx.Err() != nil {
		return false, nil
	}
	switch err := r.enter(parent, name); err {
	case nil:
	case unix.ENOENT:
		return true, nil
	case unix.ENOTDIR, unix.ELOOP:
		if err := unlink(parent, name, 0); err != nil {
			return false, err
		}
		r.left--
		return true, nil
	default:
		return false, err
	}
	for len(r.levels) > 0 {
		if r.left <= 0 || r.ctx.Err() != nil {
			return false, nil
		}
		l := r.levels[len(r.levels)-1]
		entry, ok := l.reader.entry()
		if ok {
			if err := r.entry(l, entry); err != nil {
				r.skip(l, string(entry.name), err)
			}
			continue
		}
		more, err := l.reader.fill(l.fd)
		switch {
		case err != nil:
			r.skip(l, l.name, err)
			r.leave()
		case !more:
			above := parent
			if len(r.levels) > 1 {
				above = r.levels[len(r.levels)-2].fd
			}
			r.finish(above, l)
		}
	}
	return r.failed == nil, nil
}

// entry removes one entry of a directory, or goes down into it.
func (r *remover) entry(l *level, e dirent) error {
	name := string(e.name)
	if e.kind != unix.DT_DIR {
		err := r.widened(l, func() error { return unlink(l.fd, name, 0) })
		if err == nil {
			r.left--
			l.gone = true
		}
		// Of unlink, EISDIR means a directory that the file system had not told; POSIX lets it be EPERM.
		if err != unix.EISDIR && (err != unix.EPERM || e.kind != unix.DT_UNKNOWN) {
			return ignoreMissing(err)
		}
	}
	if len(r.levels) < maxDepth {
		return ignoreMissing(r.enter(l.fd, name))
	}
	err := r.widened(l, func() error { return r.moveUp(l.fd, name, e.ino) })
	l.gone = l.gone || err == nil
	return ignoreMissing(err)
}

// moveUp makes a deep directory an entry of the tree's top, whose number of passes is not bounded.
func (r *remover) moveUp(from int, name string, ino uint64) error {
	top := r.levels[0]
	for range 1000 {
		r.moves++
		to := ".berth-deep-" + strconv.FormatUint(ino, 16) + "-" + strconv.Itoa(r.moves)
		var st unix.Stat_t
		if unix.Fstatat(top.fd, to, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			continue
		}
		err := unix.Renameat(from, name, top.fd, to)
		if err == unix.EACCES { // moving a directory changes its ".."
			if widen(from, name) == nil {
				err = unix.Renameat(from, name, top.fd, to)
			}
		}
		if err == nil {
			top.gone = true
		}
		return err
	}
	return unix.EEXIST
}

// finish removes a directory that was read to its end, or reads it again when it is not empty yet.
func (r *remover) finish(above int, l *level) {
	remove := func() error { return unlink(above, l.name, unix.AT_REMOVEDIR) }
	err := error(nil)
	if len(r.levels) > 1 {
		err = r.widened(r.levels[len(r.levels)-2], remove)
	} else {
		err = remove()
	}
	switch {
	case err == nil:
		r.left--
		if len(r.levels) > 1 {
			r.levels[len(r.levels)-2].gone = true
		}
	case (err == unix.ENOTEMPTY || err == unix.EEXIST) && l.gone && (!l.skipped || len(r.levels) == 1):
		l.gone = false
		if _, err := unix.Seek(l.fd, 0, unix.SEEK_SET); err == nil {
			return
		}
	case err == unix.ENOENT:
	default:
		if !l.skipped {
			r.skip(l, l.name, err)
		}
		if len(r.levels) > 1 {
			r.levels[len(r.levels)-2].skipped = true
		}
	}
	r.leave()
}

func (r *remover) enter(parent int, name string) error {
	fd, err := openInside(parent, name)
	if err == unix.EACCES && widen(parent, name) == nil {
		fd, err = openInside(parent, name)
	}
	if err != nil {
		return err
	}
	l := &level{fd: fd, name: name}
	if n := len(r.spare); n > 0 {
		l.reader, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		l.reader = newReader(dirBuffer / 2)
	}
	r.levels = append(r.levels, l)
	return nil
}

func (r *remover) leave() {
	last := len(r.levels) - 1
	l := r.levels[last]
	unix.Close(l.fd)
	l.reader.left = nil
	r.spare = append(r.spare, l.reader)
	r.levels = r.levels[:last]
}

func (r *remover) skip(l *level, name string, err error) {
	l.skipped = true
	if r.failed == nil {
		r.failed = fmt.Errorf("entry %q: %w", name, err)
	}
}

// widened does what needs to write into a directory, a second time with a wider mode when that was forbidden.
func (r *remover) widened(l *level, do func() error) error {
	err := do()
	if err == unix.EACCES && !l.opened {
		l.opened = true
		if unix.Fchmod(l.fd, 0o700) == nil {
			err = do()
		}
	}
	return err
}

// openInside opens a directory by its single name, unless it is a link or another file system begins there.
func openInside(parent int, name string) (int, error) {
	fd, err := openBeneath(parent, name, openDirFlags)
	if err != unix.ENOSYS && err != unix.EPERM {
		return fd, err
	}
	// Without openat2: a different device is another file system. A bind mount of the same one is not seen.
	var above, st unix.Stat_t
	fd, err = unix.Openat(parent, name, openDirFlags, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Fstat(parent, &above); err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && above.Dev != st.Dev {
		err = unix.EXDEV
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// widen makes a directory accessible to its owner, following no link.
func widen(parent int, name string) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}

func unlink(parent int, name string, flags int) error {
	for {
		if err := unix.Unlinkat(parent, name, flags); err != unix.EINTR {
			return err
		}
	}
}

func ignoreMissing(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
