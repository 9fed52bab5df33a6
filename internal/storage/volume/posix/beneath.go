package posix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/text/unicode/norm"

	"berth.dev/berth/internal/storage/volume"
)

// directory is an open directory. Everything is reached from one by openat2 with RESOLVE_BENEATH, so neither
// a path nor a symbolic link that is swapped meanwhile leads out of it. A name handed to the *at calls is one
// component and never "..".
type directory struct {
	f    *os.File
	conn syscall.RawConn
	// opath says that the descriptor only names the directory: it cannot be read or synced.
	opath bool
	// flush makes a file durable; it is Options.Sync.
	flush func(*os.File) error
}

const (
	insideOnly = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
	noLinks    = insideOnly | unix.RESOLVE_NO_SYMLINKS
)

func newDirectory(f *os.File, opath bool, flush func(*os.File) error) (*directory, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &directory{f: f, conn: conn, opath: opath, flush: flush}, nil
}

func (d *directory) Close() error { return d.f.Close() }

// do calls fn with the descriptor, which cannot be closed, and so given to another file, meanwhile.
func (d *directory) do(fn func(fd int) error) error {
	var err error
	if e := d.conn.Control(func(fd uintptr) {
		for {
			if err = fn(int(fd)); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}); e != nil {
		return fs.ErrClosed // the only way in which it fails
	}
	return err
}

// open opens a path beneath d. The kernel asks for another try where a rename crossed the walk of "..".
func (d *directory) open(p string, flags int, mode uint32, resolve uint64) (f *os.File, err error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for range 1000 {
		err = d.do(func(fd int) error {
			n, e := unix.Openat2(fd, p, &how)
			if e == nil {
				f = os.NewFile(uintptr(n), p)
			}
			return e
		})
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
		runtime.Gosched()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// dir names the directory at p; the result serves as a starting point only.
func (d *directory) dir(p string, resolve uint64) (*directory, error) {
	f, err := d.open(p, unix.O_PATH|unix.O_DIRECTORY, 0, resolve)
	if err != nil {
		return nil, err
	}
	return newDirectory(f, true, d.flush)
}

// readable opens the directory at p for listing and syncing.
func (d *directory) readable(p string, resolve uint64) (*directory, error) {
	f, err := d.open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0, resolve)
	if err != nil {
		return nil, err
	}
	return newDirectory(f, false, d.flush)
}

// parent names the directory that holds the last component of p, which is not ".".
func (d *directory) parent(p string, resolve uint64) (*directory, string, error) {
	dir, err := d.dir(path.Dir(p), resolve)
	return dir, path.Base(p), err
}

// regular opens a regular file and nothing else: the file is named first and looked at, so that no device or
// pipe is ever opened, and the very same file is opened then.
func (d *directory) regular(p string) (*os.File, error) {
	named, err := d.open(p, unix.O_PATH, 0, insideOnly)
	if err != nil {
		return nil, err
	}
	defer named.Close()
	fi, err := named.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return os.Open(self(named))
}

// self is a path to an open file itself, whatever its name is now.
func self(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// asRoot is d for the code that works on os.Root.
func (d *directory) asRoot() (*os.Root, error) { return os.OpenRoot(self(d.f)) }

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// stat looks at a name in d, "" for d itself, and follows no link.
func (d *directory) stat(name string) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err = d.do(func(fd int) error { return unix.Statx(fd, name, flags, statMask, &st) })
	return st, err
}

func (d *directory) entry(name string) (volume.Entry, error) {
	st, err := d.stat(name)
	if err != nil {
		return volume.Entry{}, err
	}
	e := entryOf(name, &st)
	if e.Kind == volume.KindSymlink {
		e.Target, _ = d.readlink(name)
	}
	return e, nil
}

func (d *directory) readlink(name string) (string, error) {
	buf := make([]byte, 4096)
	n := 0
	err := d.do(func(fd int) (e error) { n, e = unix.Readlinkat(fd, name, buf); return e })
	return string(buf[:max(n, 0)]), err
}

func entryOf(name string, st *unix.Statx_t) volume.Entry {
	e := volume.Entry{Name: name, Kind: volume.KindOther, Mode: fs.FileMode(st.Mode) & fs.ModePerm, Size: int64(st.Size),
		Modified: timeOf(st.Mtime), Created: timeOf(st.Ctime)}
	if st.Mask&unix.STATX_BTIME != 0 && st.Btime.Sec != 0 {
		e.Created = timeOf(st.Btime)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind = volume.KindFile
	case unix.S_IFDIR:
		e.Kind = volume.KindDirectory
	case unix.S_IFLNK:
		e.Kind = volume.KindSymlink
	}
	return e
}

// The times that JSON, HTTP and archives can say. Whoever owns a file may give it any other.
const (
	firstSecond = -62_135_510_400 // the second day of year 1
	lastSecond  = 253_402_214_400 // the last day of year 9999
)

func timeOf(t unix.StatxTimestamp) time.Time {
	return time.Unix(min(max(t.Sec, firstSecond), lastSecond), int64(t.Nsec))
}

func isDir(st *unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// same tells whether two looks saw one file.
func same(a, b *unix.Statx_t) bool {
	return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor
}

func (d *directory) mkdir(name string, mode uint32) error {
	return d.do(func(fd int) error { return unix.Mkdirat(fd, name, mode) })
}

func (d *directory) unlink(name string) error {
	return d.do(func(fd int) error { return unix.Unlinkat(fd, name, 0) })
}

func (d *directory) rmdir(name string) error {
	return d.do(func(fd int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
}

// rename moves a name of d to a name of to, replacing what may be there.
func (d *directory) rename(name string, to *directory, newName string) error {
	return d.do(func(from int) error {
		return to.do(func(into int) error { return unix.Renameat(from, name, into, newName) })
	})
}

// renameNew is rename that fails with EEXIST where newName exists.
func (d *directory) renameNew(name string, to *directory, newName string) error {
	err := d.do(func(from int) error {
		return to.do(func(into int) error {
			return unix.Renameat2(from, name, into, newName, unix.RENAME_NOREPLACE)
		})
	})
	// File systems that do not know the flag say EINVAL, and so does a directory that would move into itself:
	// the second call tells them apart. Between the look and the move another may make the name; that is what
	// such a file system can do.
	if errors.Is(err, unix.EINVAL) {
		if _, e := to.stat(newName); e == nil {
			return unix.EEXIST
		} else if !errors.Is(e, unix.ENOENT) {
			return e
		}
		return d.rename(name, to, newName)
	}
	return err
}

// sync makes the names in d durable.
func (d *directory) sync() error {
	f := d.f
	if d.opath {
		r, err := d.readable(".", insideOnly)
		if err != nil {
			return err
		}
		defer r.Close()
		f = r.f
	}
	// Some file systems have nothing to sync for directories.
	if err := d.flush(f); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

// syncWay makes the names on the way from d to p durable, also those that others have made and perhaps not synced yet. Who removes some of
// them meanwhile is none of its business.
func (d *directory) syncWay(p string, resolve uint64) error {
	for p = d.existing(p); p != "."; {
		p = path.Dir(p)
		up, err := d.dir(p, resolve)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		err = up.sync()
		up.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// owner gives what the proxy makes to the user of the files.
type owner struct{ uid, gid int }

func ownerOf(uid, gid int) owner {
	if os.Geteuid() != 0 {
		return owner{-1, -1}
	}
	return owner{uid, gid}
}

// rootMode is the mode of a folder's root: users of the host that are not the platform's must not reach what lies below, whatever the
// modes there. A proxy that cannot give files away makes them as its own user, which sessions may not run as: it leaves the mode.
func (o owner) rootMode(mode fs.FileMode) fs.FileMode {
	if o.uid < 0 {
		return mode
	}
	return mode & 0o700
}

func (o owner) give(f *os.File, mode fs.FileMode) error {
	if o.uid >= 0 || o.gid >= 0 {
		if err := f.Chown(o.uid, o.gid); err != nil {
			return err
		}
	}
	return f.Chmod(mode.Perm()) // the umask of the process says nothing about folders
}

// makeDir makes a directory in d and owns it; made is false where one was there.
func (d *directory) makeDir(name string, mode fs.FileMode, o owner) (made bool, err error) {
	switch err = d.mkdir(name, uint32(mode.Perm())); {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case err != nil:
		return false, err
	}
	f, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, noLinks)
	if err != nil {
		return true, err
	}
	defer f.Close()
	return true, o.give(f, mode)
}

// existing is p as it is written on disk: as given where that exists, else in the normal form that new names get.
// Clients on some systems decompose names, and write and read must meet.
func (d *directory) existing(p string) string {
	if norm.NFC.IsNormalString(p) {
		return p
	}
	f, err := d.open(p, unix.O_PATH|unix.O_NOFOLLOW, 0, insideOnly)
	if err == nil {
		f.Close()
		return p
	}
	return norm.NFC.String(p)
}

// made names the directory at p, making what is missing on the way.
func (d *directory) made(p string, o owner, resolve uint64) (*directory, error) {
	dir, err := d.dir(p, resolve)
	if !errors.Is(err, unix.ENOENT) {
		return dir, err
	}
	if p == "." {
		return nil, err // the folder itself is gone
	}
	up, err := d.made(path.Dir(p), o, resolve)
	if err != nil {
		return nil, err
	}
	defer up.Close()
	name := norm.NFC.String(path.Base(p))
	made, err := up.makeDir(name, 0o755, o)
	if err != nil {
		return nil, err
	}
	if made {
		if err := up.sync(); err != nil {
			return nil, err
		}
		return up.dir(name, noLinks)
	}
	// A link is resolved from the folder, for it may lead to anywhere inside; one that leads nowhere is no place.
	dir, err = d.dir(path.Join(path.Dir(p), name), resolve)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %s is a link to nothing", unix.ENOTDIR, name)
	}
	return dir, err
}
