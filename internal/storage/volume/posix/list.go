package posix

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

const (
	defaultPage = 1000
	maxPage     = 10_000
	direntBytes = 64 << 10 // what one getdents64 may fill
	maxDepth    = 1000     // of Walk: each level holds a descriptor
)

// dirent is a name and where the directory stood before and after it.
type dirent struct {
	name          string
	before, after int64
}

// direntSource is a directory that can be read from a position.
type direntSource interface {
	seek(pos int64) error
	next() (dirent, error)
}

// direntReader reads a directory with its positions. The file belongs to one reader.
type direntReader struct {
	d    *directory
	buf  []byte
	rest []byte
	pos  int64
	end  bool
}

func newDirentReader(d *directory, buf []byte) *direntReader { return &direntReader{d: d, buf: buf} }

func (r *direntReader) seek(pos int64) error {
	r.pos, r.rest, r.end = pos, nil, false
	return r.d.do(func(fd int) error { _, err := unix.Seek(fd, pos, io.SeekStart); return err })
}

// next is io.EOF at the end. "." and ".." are left out.
func (r *direntReader) next() (dirent, error) {
	for {
		if len(r.rest) == 0 {
			if r.end {
				return dirent{}, io.EOF
			}
			n := 0
			if err := r.d.do(func(fd int) (e error) { n, e = unix.Getdents(fd, r.buf); return e }); err != nil {
				return dirent{}, err
			}
			if n <= 0 {
				r.end = true
				return dirent{}, io.EOF
			}
			r.rest = r.buf[:n]
		}
		// struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name until NUL.
		size := int(binary.NativeEndian.Uint16(r.rest[16:18]))
		e := dirent{before: r.pos, after: int64(binary.NativeEndian.Uint64(r.rest[8:16]))}
		name := r.rest[19:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		r.rest, r.pos = r.rest[size:], e.after
		if string(name) == "." || string(name) == ".." {
			continue
		}
		e.name = string(name)
		return e, nil
	}
}

// Positions of directory entries that stay right while other entries come and go: these file systems derive them
// from a hash of the name or from a place that an entry keeps. NFS pages by the server's positions itself, between
// requests that know nothing of each other. Elsewhere listings go by name, which reads all names for each page.
const (
	magicExt4  = 0xef53
	magicXFS   = 0x58465342
	magicBtrfs = 0x9123683e
	magicNFS   = 0x6969
)

func stablePositions(d *directory) bool {
	var st unix.Statfs_t
	if err := d.do(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false
	}
	switch uint32(st.Type) {
	case magicExt4, magicXFS, magicBtrfs, magicNFS:
		return true
	}
	return false
}

// cursor says where a listing goes on: at a position of the directory with this inode, or after a name.
type cursor struct {
	byName bool
	inode  uint64
	pos    int64
	name   string
}

func (c cursor) String() string {
	if c.byName {
		return "n" + base64.RawURLEncoding.EncodeToString([]byte(c.name))
	}
	return "p" + strconv.FormatUint(c.inode, 36) + "." + strconv.FormatInt(c.pos, 36)
}

func parseCursor(s string) (c cursor, err error) {
	bad := fault.Invalidf("this cursor is of no listing").WithReason("invalid-api-params").WithNext("list from the start")
	switch {
	case s == "":
		return cursor{}, nil
	case len(s) > 512:
		return c, bad
	case s[0] == 'n':
		name, e := base64.RawURLEncoding.DecodeString(s[1:])
		if e != nil || len(name) == 0 {
			return c, bad
		}
		return cursor{byName: true, name: string(name)}, nil
	case s[0] == 'p':
		ino, pos, _ := strings.Cut(s[1:], ".")
		i, e1 := strconv.ParseUint(ino, 36, 64)
		p, e2 := strconv.ParseInt(pos, 36, 64)
		if e1 != nil || e2 != nil || p <= 0 {
			return c, bad
		}
		return cursor{inode: i, pos: p}, nil
	}
	return c, bad
}

// list reads one page of d. byName forces the order by name.
func list(ctx context.Context, d *directory, after string, limit int, byName bool) ([]volume.Entry, string, error) {
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, maxPage)
	from, err := parseCursor(after)
	if err != nil {
		return nil, "", err
	}
	if after == "" {
		from.byName = byName || !stablePositions(d)
	}
	r := newDirentReader(d, make([]byte, direntBytes))
	var names []string
	var next cursor
	more := false
	if from.byName {
		names, more, err = pageByName(ctx, r, from.name, limit)
		if more {
			next = cursor{byName: true, name: names[len(names)-1]}
		}
	} else {
		var st unix.Statx_t
		if st, err = d.stat(""); err != nil {
			return nil, "", err
		}
		if after != "" && from.inode != st.Ino {
			return nil, "", fault.Conflictf("the directory was replaced while it was listed").WithNext("list from the start")
		}
		names, next.pos, more, err = pageByPosition(ctx, r, from.pos, limit)
		next.inode = st.Ino
		if !more && after == "" {
			slices.Sort(names) // a directory that fits one page is shown in order
		}
	}
	if err != nil {
		return nil, "", err
	}
	page := make([]volume.Entry, 0, len(names))
	for i, name := range names {
		if i%256 == 255 && ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		e, err := d.entry(name)
		if errors.Is(err, unix.ENOENT) {
			continue // went away since it was read
		}
		if err != nil {
			return nil, "", err
		}
		page = append(page, e)
	}
	if more {
		return page, next.String(), nil
	}
	return page, "", nil
}

// pageByPosition reads names from pos on. A page never ends between entries that share a position (their hashes
// collide), because going on there would give the first ones again.
func pageByPosition(ctx context.Context, r direntSource, pos int64, limit int) (names []string, next int64, more bool, err error) {
	if err := r.seek(pos); err != nil {
		return nil, 0, false, err
	}
	cut, cutAt := 0, int64(0) // the last place where the page may end
	last := int64(-1)         // where the entry before began
	for n := 0; ; n++ {
		if n%4096 == 4095 && ctx.Err() != nil {
			return nil, 0, false, ctx.Err()
		}
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			return names, 0, false, nil
		}
		if err != nil {
			return nil, 0, false, err
		}
		if len(names) > 0 && e.before != last {
			cut, cutAt = len(names), e.before
		}
		last = e.before
		if len(names) >= limit && cut > 0 {
			return names[:cut], cutAt, true, nil
		}
		names = append(names, e.name)
	}
}

// nameHeap has the greatest name on top.
type nameHeap []string

func (h nameHeap) Len() int           { return len(h) }
func (h nameHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h nameHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nameHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *nameHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// pageByName reads the whole directory and keeps the least names after the given one.
func pageByName(ctx context.Context, r direntSource, after string, limit int) (names []string, more bool, err error) {
	if err := r.seek(0); err != nil {
		return nil, false, err
	}
	var h nameHeap
	for n := 0; ; n++ {
		if n%4096 == 4095 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		switch {
		case e.name <= after:
		case len(h) < limit:
			heap.Push(&h, e.name)
		default:
			more = true
			if e.name < h[0] {
				h[0] = e.name
				heap.Fix(&h, 0)
			}
		}
	}
	names = h
	slices.Sort(names)
	return slices.Compact(names), more, nil
}

// walk visits what is below d, which it reads; at is d's path in the folder.
func walk(ctx context.Context, d *directory, at string, depth int, visit func(string, volume.Entry) error) error {
	if depth > maxDepth {
		return fault.Invalidf("directory %q is nested deeper than %d", at, maxDepth)
	}
	r := newDirentReader(d, make([]byte, direntBytes/4))
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		de, err := r.next()
		if errors.Is(err, io.EOF) || depth > 0 && errors.Is(err, unix.ENOENT) {
			return nil // read, or removed since
		}
		if err != nil {
			return err
		}
		e, err := d.entry(de.name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		p := path.Join(at, e.Name)
		if err := visit(p, e); errors.Is(err, fs.SkipDir) {
			continue
		} else if err != nil {
			return err
		}
		if e.Kind != volume.KindDirectory {
			continue
		}
		sub, err := d.readable(e.Name, noLinks)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // replaced since it was looked at
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", p, err)
		}
		err = walk(ctx, sub, p, depth+1, visit)
		sub.Close()
		if err != nil {
			return err
		}
	}
}
