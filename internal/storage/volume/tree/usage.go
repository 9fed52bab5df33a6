package tree

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/storage/volume"
)

// Bounds of one count.
const (
	// Directories that wait for their turn. When more wait, directories are put back half read, behind what
	// they hold: the walk goes into the depth and stops growing.
	maxWaiting = 32 << 10
	// Files with several links that are remembered; further ones may count once per link.
	maxLinks = 1 << 20
)

// Usage counts the regular files and symbolic links below root and their apparent bytes, with that many
// workers; 0 takes a fitting number. Directories count nothing, a file with several links counts once, and
// other file systems mounted below are left out. When ctx ends, or a directory may not be read, the answer is
// a lower bound, which is no error. At is left zero.
func Usage(ctx context.Context, root *os.Root, workers int) (volume.Usage, error) {
	return newCount().proceed(ctx, root, workers)
}

// defaultWorkers is more than there are processors, because file servers answer late.
func defaultWorkers() int { return min(2*runtime.GOMAXPROCS(0), 32) }

// count is a walk that can pause: what is left to do is a stack of directories with positions inside them.
// Entries that are there during the whole count are counted exactly once, however often it paused.
type count struct {
	crew    *crew[place]
	stopped atomic.Bool
	partial atomic.Bool // something could not be read

	mu           sync.Mutex
	files, bytes int64
	err          error
	links        map[inode]uint32 // links of a counted file that are still to come
}

// place is a directory and a position in it as the file system gave it; 0 is the start.
type place struct {
	dir    *node
	offset int64
}

type inode struct {
	major, minor uint32
	number       uint64
}

func newCount() *count {
	return &count{crew: newCrew(place{dir: &node{}}), links: map[inode]uint32{}}
}

// proceed counts until nothing is left or ctx ends. One call at a time.
func (c *count) proceed(ctx context.Context, root *os.Root, workers int) (volume.Usage, error) {
	if workers <= 0 {
		workers = defaultWorkers()
	}
	top, err := openRoot(root)
	if err != nil {
		return volume.Usage{}, err
	}
	defer top.Close()
	fd := int(top.Fd())
	c.stopped.Store(false)
	c.crew.stopped = false
	if ctx.Err() == nil {
		release := context.AfterFunc(ctx, c.stop)
		c.crew.run(workers, func(int) func(place) {
			w := &counter{count: c, root: fd, reader: newReader(dirBuffer), pause: c.stopped.Load}
			return w.visit
		})
		release()
	}
	now, left := c.sofar()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return now, Fault("count the files of", root.Name(), c.err)
	}
	now.Complete = !left && !c.partial.Load()
	return now, nil
}

// sofar is a lower bound, and whether there is more to count.
func (c *count) sofar() (volume.Usage, bool) {
	c.crew.mu.Lock()
	left := len(c.crew.items) > 0 || c.crew.busy > 0
	c.crew.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return volume.Usage{Files: c.files, Bytes: c.bytes}, left
}

func (c *count) stop() {
	c.stopped.Store(true)
	c.crew.stop()
}

func (c *count) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.stop()
}

// counter is one worker of a count.
type counter struct {
	*count
	root         int
	reader       *reader
	pause        func() bool // asked before each entry
	found        []place
	stat         unix.Statx_t
	files, bytes int64
}

func (w *counter) visit(at place) {
	err := w.read(at)
	w.mu.Lock()
	w.count.files += w.files
	w.count.bytes = addBytes(w.count.bytes, w.bytes)
	w.mu.Unlock()
	w.files, w.bytes = 0, 0
	switch {
	case err == nil, vanished(err):
	case denied(err):
		w.partial.Store(true)
	default:
		w.fail(err)
	}
}

func (w *counter) read(at place) error {
	fd, err := openNode(w.root, at.dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if at.offset != 0 {
		if _, err := unix.Seek(fd, at.offset, unix.SEEK_SET); err != nil {
			return err
		}
	}
	for {
		more, err := w.reader.fill(fd)
		if err != nil || !more {
			return err
		}
		for entry, ok := w.reader.entry(); ok; entry, ok = w.reader.entry() {
			if w.pause() {
				w.put(at)
				return nil
			}
			if err := w.weigh(fd, at.dir, entry); err != nil {
				w.put(at)
				return err
			}
			at.offset = entry.next
		}
		if len(w.found) == 0 {
			continue
		}
		if w.crew.height() >= maxWaiting {
			w.put(at)
			return nil
		}
		w.crew.add(w.found...)
		w.found = w.found[:0]
	}
}

// put returns a directory to the stack, below what was found in it.
func (w *counter) put(at place) {
	w.crew.add(at)
	w.crew.add(w.found...)
	w.found = w.found[:0]
}

// weigh adds one entry.
func (w *counter) weigh(fd int, dir *node, e dirent) error {
	kind := e.kind
	if kind == unix.DT_REG || kind == unix.DT_LNK || kind == unix.DT_UNKNOWN {
		err := statxEntry(fd, e.name, attributes|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_SIZE|unix.STATX_NLINK, &w.stat)
		switch {
		case err == nil:
		case vanished(err):
			return nil
		case denied(err):
			w.partial.Store(true)
			return nil
		default:
			return err
		}
		kind = kindOfMode(w.stat.Mode)
	}
	switch kind {
	case unix.DT_DIR:
		w.found = append(w.found, place{dir: &node{parent: dir, name: string(e.name)}})
	case unix.DT_REG, unix.DT_LNK:
		if w.stat.Nlink > 1 && !w.first(inode{w.stat.Dev_major, w.stat.Dev_minor, e.ino}, w.stat.Nlink) {
			return nil
		}
		w.files++
		w.bytes = addBytes(w.bytes, int64(min(w.stat.Size, maxBytes)))
	}
	return nil
}

// maxBytes is the most that a count says. Files with holes can be of any size, and a sum that turned round would
// look like nothing.
const maxBytes = 1 << 60

func addBytes(a, b int64) int64 { return min(a+b, maxBytes) }

// first reports whether a file with several links is met for the first time.
func (c *count) first(id inode, links uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, known := c.links[id]
	switch {
	case !known && len(c.links) < maxLinks:
		c.links[id] = links - 1
	case known && left <= 1:
		delete(c.links, id)
	case known:
		c.links[id] = left - 1
	}
	return !known
}
