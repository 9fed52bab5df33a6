package tree

import (
	"context"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// Bounds of one copy.
const (
	maxJobs   = 1024     // batches and directories that wait; see count for what happens above it
	batchSize = 32       // files that one worker makes durable together
	groupSize = 64 << 20 // bytes after which it does so earlier
	tellEvery = 500 * time.Millisecond
)

// tempPrefix begins the names of files that are not complete. A name that the source has too is never taken
// for one.
const tempPrefix = ".berth-copy-"

// Copy makes dst hold what src holds: files, directories, symbolic links that are relative and stay inside,
// modes (without set-user-id), times and, as root, owners; sparse files stay sparse. Devices, sockets, pipes
// and other links are left out and counted in the message; several links to a file become several files;
// extended attributes are not copied. What dst holds besides stays.
//
// No file is visible in dst under its name before it is complete and durable. Called again after a crash it
// goes on: a file of equal size and modification time is not copied again, and what an earlier run left half
// done is removed. Only one Copy may run into dst at a time. When ctx ends its error is returned soon. tell,
// when not nil, is called by one goroutine at a time with bytes done and bytes in all, 0 while unknown.
func Copy(ctx context.Context, src, dst *os.Root, tell func(volume.Progress)) error {
	from, err := openRoot(src)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openRoot(dst)
	if err != nil {
		return err
	}
	defer to.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &copier{ctx: ctx, src: int(from.Fd()), dst: int(to.Fd()), root: os.Geteuid() == 0}
	top := &copyDir{}
	top.pending.Store(1)
	c.crew = newCrew(job{dir: top})
	release := context.AfterFunc(ctx, c.crew.stop)
	defer release()

	var background sync.WaitGroup
	over, counted := make(chan struct{}), make(chan struct{})
	if tell != nil {
		background.Go(func() {
			defer close(counted)
			if u, err := Usage(ctx, src, 2); err == nil && u.Complete {
				c.total.Store(u.Bytes)
			}
		})
		background.Go(func() {
			tick := time.NewTicker(tellEvery)
			defer tick.Stop()
			for counted := counted; ; {
				select {
				case <-over:
					return
				case <-counted: // tell at once whether it can fit
					counted = nil
					tell(c.progress())
				case <-tick.C:
					tell(c.progress())
				}
			}
		})
	}
	c.crew.run(max(4, min(2*runtime.GOMAXPROCS(0), 16)), func(worker int) func(job) {
		w := &copyWorker{copier: c, number: worker, reader: newReader(dirBuffer / 2)}
		return w.do
	})
	failed, ended := c.failure(), ctx.Err()
	cancel() // the count of all files
	close(over)
	background.Wait()
	switch {
	case ended != nil:
		return ended
	case failed != nil:
		return failed
	}
	// Contents are durable already; this is for the names.
	if err := unix.Syncfs(c.dst); err != nil {
		return Fault("write", dst.Name(), err)
	}
	if tell != nil {
		p := c.progress()
		p.Total = p.Current
		tell(p)
	}
	return nil
}

// copier is one run of Copy.
type copier struct {
	ctx      context.Context
	src, dst int
	root     bool
	crew     *crew[job]

	noClone, noRanges                      atomic.Bool // the file system cannot
	bytes, total, files, links, odd, again atomic.Int64

	mu  sync.Mutex
	err error
}

// job is a directory to read on from a position, or some of its files to copy.
type job struct {
	dir    *copyDir
	offset int64
	names  []string
}

// copyDir is a directory with a count of the jobs that still belong to it: reading it, its batches of files and
// its subdirectories. At zero it gets its mode and times, which must come after its contents.
type copyDir struct {
	node    node
	parent  *copyDir
	pending atomic.Int32
	began   bool
	stat    unix.Stat_t
}

func (c *copier) progress() volume.Progress {
	// Files with several links, or new since the count, may lead beyond what was counted.
	p := volume.Progress{Current: c.bytes.Load(), Total: c.total.Load()}
	if p.Total > 0 {
		p.Total = max(p.Total, p.Current)
	}
	p.Message = fmt.Sprintf("%d files", c.files.Load())
	if n := c.again.Load(); n > 0 {
		p.Message += fmt.Sprintf(", %d of them were there already", n)
	}
	if n := c.links.Load(); n > 0 {
		p.Message += fmt.Sprintf(", %d links to places outside left out", n)
	}
	if n := c.odd.Load(); n > 0 {
		p.Message += fmt.Sprintf(", %d devices, sockets or pipes left out", n)
	}
	return p
}

func (c *copier) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *copier) fail(op string, dir *copyDir, name string, err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = Fault(op, path.Join(dir.node.path(), name), err)
	}
	c.mu.Unlock()
	c.crew.stop()
}

func (c *copier) stopped() bool { return c.ctx.Err() != nil || c.failure() != nil }

// copyWorker is one worker of a copy.
type copyWorker struct {
	*copier
	number int
	reader *reader
	buffer []byte
	group  []fresh
	weight int64
}

// fresh is a complete file under its temporary name.
type fresh struct {
	fd         int
	temp, name string
	size       int64
}

func (w *copyWorker) do(j job) {
	if j.names == nil {
		if more := w.readDir(j); more {
			return // the directory went back to the stack with its claim on itself
		}
	} else {
		w.copyBatch(j)
	}
	for d := j.dir; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if !w.stopped() {
			w.finishDir(d)
		}
	}
}

// readDir makes a directory and hands out what it holds; more says that the rest of it waits on the stack.
func (w *copyWorker) readDir(j job) (more bool) {
	from, err := openNode(w.src, &j.dir.node)
	if err != nil {
		if !vanished(err) {
			w.fail("read", j.dir, "", err)
		}
		return false
	}
	defer unix.Close(from)
	if !j.dir.began {
		if err := unix.Fstat(from, &j.dir.stat); err != nil {
			w.fail("read", j.dir, "", err)
			return false
		}
		if err := w.makeDir(from, j.dir); err != nil {
			w.fail("make", j.dir, "", err)
			return false
		}
		j.dir.began = true
	}
	if j.offset != 0 {
		if _, err := unix.Seek(from, j.offset, unix.SEEK_SET); err != nil {
			w.fail("read", j.dir, "", err)
			return false
		}
	}
	for !w.stopped() {
		some, err := w.reader.fill(from)
		if err != nil {
			w.fail("read", j.dir, "", err)
		}
		if err != nil || !some {
			return false
		}
		var jobs, batches []job
		for e, ok := w.reader.entry(); ok; e, ok = w.reader.entry() {
			j.offset = e.next
			switch w.kind(from, e) {
			case unix.DT_DIR:
				sub := &copyDir{parent: j.dir, node: node{parent: &j.dir.node, name: string(e.name)}}
				sub.pending.Store(1)
				jobs = append(jobs, job{dir: sub})
			case unix.DT_REG, unix.DT_LNK:
				if n := len(batches); n == 0 || len(batches[n-1].names) >= batchSize {
					batches = append(batches, job{dir: j.dir, names: make([]string, 0, batchSize)})
				}
				last := &batches[len(batches)-1]
				last.names = append(last.names, string(e.name))
			case unix.DT_UNKNOWN: // gone
			default:
				w.odd.Add(1)
			}
		}
		jobs = append(jobs, batches...)
		if len(jobs) == 0 {
			continue
		}
		j.dir.pending.Add(int32(len(jobs)))
		if w.crew.height() >= maxJobs {
			w.crew.add(j)
			w.crew.add(jobs...)
			return true
		}
		w.crew.add(jobs...)
	}
	return false
}

func (w *copyWorker) kind(from int, e dirent) byte {
	if e.kind != unix.DT_UNKNOWN {
		return e.kind
	}
	var st unix.Statx_t
	if statxEntry(from, e.name, attributes, unix.STATX_TYPE, &st) != nil {
		return unix.DT_UNKNOWN
	}
	return kindOfMode(st.Mode)
}

// makeDir makes the directory in the copy, or cleans up in the one that an earlier run made.
func (w *copyWorker) makeDir(from int, d *copyDir) error {
	if d.parent != nil {
		above, err := openNode(w.dst, &d.parent.node)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(above, d.node.name, 0o700)
		unix.Close(above)
		if err == nil {
			return nil
		}
		if err != unix.EEXIST {
			return err
		}
	}
	to, err := openNode(w.dst, &d.node)
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return fault.Conflictf("copy %q: the destination holds a file of this name", d.node.path()).WithCause(err).
			WithNext("remove the file from the destination, or copy into an empty folder")
	}
	if err != nil {
		return err
	}
	defer unix.Close(to)
	var st unix.Stat_t
	if err := unix.Fstat(to, &st); err != nil {
		return err
	}
	if st.Mode&0o700 != 0o700 {
		if err := unix.Fchmod(to, st.Mode&0o7777|0o700); err != nil {
			return err
		}
	}
	for {
		more, err := w.reader.fill(to)
		if err != nil || !more {
			return err
		}
		for e, ok := w.reader.entry(); ok; e, ok = w.reader.entry() {
			name := string(e.name)
			if strings.HasPrefix(name, tempPrefix) && unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
				_ = unlink(to, name, 0) // a directory was not made by us and stays
			}
		}
	}
}

func (w *copyWorker) finishDir(d *copyDir) {
	if !d.began {
		return
	}
	to, err := openNode(w.dst, &d.node)
	if err != nil {
		w.fail("write", d, "", err)
		return
	}
	defer unix.Close(to)
	if err = w.own(to, &d.stat); err == nil {
		err = unix.Fchmod(to, d.stat.Mode&0o3777)
	}
	if err == nil {
		err = setTimes(to, ".", &d.stat)
	}
	if err != nil {
		w.fail("write", d, "", err)
	}
}

// own gives a copy the owner of its source, where that is allowed.
func (w *copyWorker) own(fd int, st *unix.Stat_t) error {
	if !w.root {
		return nil
	}
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil && err != unix.EPERM && err != unix.EINVAL {
		return err
	}
	return nil
}

func setTimes(dir int, name string, st *unix.Stat_t) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func (w *copyWorker) copyBatch(j job) {
	from, err := openNode(w.src, &j.dir.node)
	if err != nil {
		if !vanished(err) {
			w.fail("read", j.dir, "", err)
		}
		return
	}
	defer unix.Close(from)
	to, err := openNode(w.dst, &j.dir.node)
	if err != nil {
		w.fail("write", j.dir, "", err)
		return
	}
	defer unix.Close(to)
	defer w.abandon(to)
	for _, name := range j.names {
		if w.stopped() {
			return
		}
		if err := w.copyEntry(from, to, j.dir, name); err != nil {
			w.fail("copy", j.dir, name, err)
			return
		}
		if w.weight >= groupSize {
			if name, err := w.publish(to); err != nil {
				w.fail("write", j.dir, name, err)
				return
			}
		}
	}
	if name, err := w.publish(to); err != nil {
		w.fail("write", j.dir, name, err)
	}
}

// publish makes the group durable, together because that costs the journal little more than one file, and then
// visible. It returns the name that failed.
func (w *copyWorker) publish(to int) (string, error) {
	if w.stopped() {
		return "", nil // left to abandon
	}
	for _, f := range w.group {
		if err := syncData(f.fd); err != nil {
			return f.name, err
		}
	}
	for len(w.group) > 0 {
		f := w.group[0]
		if err := unix.Renameat(to, f.temp, to, f.name); err != nil {
			return f.name, err
		}
		unix.Close(f.fd)
		w.group = w.group[1:]
		w.files.Add(1)
	}
	w.group, w.weight = nil, 0
	return "", nil
}

func syncData(fd int) error {
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return err
		}
	}
}

// abandon removes what is not published.
func (w *copyWorker) abandon(to int) {
	for _, f := range w.group {
		unix.Close(f.fd)
		_ = unlink(to, f.temp, 0)
	}
	w.group, w.weight = nil, 0
}

func (w *copyWorker) copyEntry(from, to int, dir *copyDir, name string) error {
	var st, old unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if vanished(err) {
			return nil
		}
		return err
	}
	there := unix.Fstatat(to, name, &old, unix.AT_SYMLINK_NOFOLLOW) == nil
	if there && old.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fault.Conflictf("copy %q: the destination holds a directory of this name", path.Join(dir.node.path(), name)).
			WithNext("remove the directory from the destination, or copy into an empty folder")
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return w.copyLink(from, to, dir, name, there)
	case unix.S_IFREG:
		if there && old.Mode&unix.S_IFMT == unix.S_IFREG && old.Size == st.Size && old.Mtim == st.Mtim {
			w.again.Add(1)
			w.files.Add(1)
			w.bytes.Add(st.Size)
			return nil
		}
		return w.copyFile(from, to, name)
	case unix.S_IFDIR: // was a file a moment ago
	default:
		w.odd.Add(1)
	}
	return nil
}

// staysInside reports whether a link in the directory dir, relative to the root, points below the root.
func staysInside(dir, target string) bool {
	if path.IsAbs(target) {
		return false
	}
	p := path.Join(dir, target)
	return p != ".." && !strings.HasPrefix(p, "../")
}

func (w *copyWorker) copyLink(from, to int, dir *copyDir, name string, there bool) error {
	target, err := readLink(from, name)
	if err == unix.EINVAL || err != nil && vanished(err) {
		return nil // replaced or gone
	}
	if err != nil {
		return err
	}
	if !staysInside(dir.node.path(), target) {
		w.links.Add(1)
		return nil
	}
	w.files.Add(1)
	w.bytes.Add(int64(len(target)))
	if there {
		if old, err := readLink(to, name); err == nil && old == target {
			w.again.Add(1)
			return nil
		}
		if err := ignoreMissing(unlink(to, name, 0)); err != nil {
			return err
		}
	}
	if err := unix.Symlinkat(target, to, name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil
	}
	if w.root {
		_ = unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	return setTimes(to, name, &st)
}

func readLink(dir int, name string) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

// copyFile copies one regular file to a temporary name and leaves it to publish.
func (w *copyWorker) copyFile(from, to int, name string) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if vanished(err) {
			return nil
		}
		return err
	}
	defer unix.Close(in)
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // replaced
	}
	out, temp, err := w.create(from, to)
	if err != nil {
		return err
	}
	// From here on abandon cleans up.
	w.group = append(w.group, fresh{fd: out, temp: temp, name: name, size: st.Size})
	w.weight += st.Size
	if err := w.copyData(in, out, &st); err != nil {
		return err
	}
	if err := w.own(out, &st); err != nil {
		return err
	}
	if err := unix.Fchmod(out, st.Mode&0o777); err != nil {
		return err
	}
	if err := setTimes(to, temp, &st); err != nil {
		return err
	}
	// A hint: the device writes this one while we copy the next.
	_ = unix.SyncFileRange(out, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	return nil
}

// create makes a temporary file whose name the source does not have.
func (w *copyWorker) create(from, to int) (fd int, temp string, err error) {
	var st unix.Stat_t
	for suffix := 0; suffix < 1000; suffix++ {
		temp = tempPrefix + strconv.Itoa(w.number) + "-" + strconv.Itoa(len(w.group)+suffix*batchSize)
		fd, err = unix.Openat(to, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil && err != unix.EEXIST {
			return -1, "", err
		}
		if err == nil {
			if unix.Fstatat(from, temp, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
				return fd, temp, nil
			}
			unix.Close(fd)
			_ = unlink(to, temp, 0)
		}
	}
	return -1, "", unix.EEXIST
}
