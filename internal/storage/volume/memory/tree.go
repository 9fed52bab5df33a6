package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// folderTree implements volume.Tree.
type folderTree struct {
	v      *Volume
	ref    cluster.FolderRef
	scope  *scope
	top    *inode
	closed atomic.Bool
}

func (t *folderTree) what(p string) string { return fmt.Sprintf("%q of %s", p, folderName(t.ref)) }

// on cleans p, lets faults happen and calls fn with the disk locked.
func (t *folderTree) on(ctx context.Context, op, p string, fn func(p string) error) error {
	p, err := volume.CleanPath(p)
	if err != nil {
		return err
	}
	if err := t.v.ready(ctx, op, t.what(p)); err != nil {
		return err
	}
	if t.closed.Load() {
		return fault.Unavailablef("cannot %s %s: the folder is closed", op, t.what(p))
	}
	t.v.disk.mu.Lock()
	defer t.v.disk.mu.Unlock()
	return fn(t.v.existing(t.top, p))
}

func (t *folderTree) Stat(p string) (e volume.Entry, err error) {
	err = t.on(context.Background(), "look at", p, func(p string) error {
		n, err := t.v.find(t.top, p, lookup{})
		if err == nil {
			e = n.entry(path.Base(p))
		}
		return err
	})
	return e, err
}

func (t *folderTree) Open(p string) (f volume.File, err error) {
	err = t.on(context.Background(), "open", p, func(p string) error {
		n, err := t.v.find(t.top, p, lookup{last: true})
		if err != nil {
			return err
		}
		if n.kind != volume.KindFile {
			return fault.Invalidf("cannot open %s: it is no regular file", t.what(p))
		}
		f = &file{v: t.v, node: n, Reader: bytes.NewReader(n.data), name: path.Base(p)}
		return nil
	})
	return f, err
}

func (t *folderTree) List(ctx context.Context, p, after string, limit int) (page []volume.Entry, next string, err error) {
	if limit <= 0 {
		limit = 1000
	}
	limit = min(limit, 10_000)
	from, err := nameOf(after)
	if err != nil {
		return nil, "", err
	}
	err = t.on(ctx, "list", p, func(p string) error {
		n, err := t.v.dir(t.top, p, lookup{})
		if err != nil {
			return err
		}
		for _, name := range n.names() {
			if name <= from {
				continue
			}
			if len(page) == limit {
				next = cursorOf(page[limit-1].Name)
				break
			}
			page = append(page, n.children[name].entry(name))
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, "", err
	}
	return page, next, nil
}

func (t *folderTree) Walk(ctx context.Context, p string, visit func(string, volume.Entry) error) error {
	var top *inode
	err := t.on(ctx, "walk", p, func(clean string) (err error) {
		top, err = t.v.dir(t.top, clean, lookup{})
		p = clean
		return err
	})
	if err != nil {
		return err
	}
	var down func(at string, n *inode) error
	down = func(at string, n *inode) error {
		t.v.disk.mu.Lock()
		names := n.names()
		t.v.disk.mu.Unlock()
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			t.v.disk.mu.Lock()
			child := n.children[name]
			var e volume.Entry
			if child != nil {
				e = child.entry(name)
			}
			t.v.disk.mu.Unlock()
			if child == nil {
				continue
			}
			err := visit(path.Join(at, name), e)
			if errors.Is(err, fs.SkipDir) {
				continue
			}
			if err == nil {
				err = down(path.Join(at, name), child)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return down(p, top)
}

func (t *folderTree) Mkdir(p string, parents, existOK bool) error {
	return t.on(context.Background(), "make directory", p, func(p string) error {
		if p == "." {
			if existOK {
				return nil
			}
			return exists("make directory", t.what(p))
		}
		dir, name, err := t.v.parent(t.top, p, lookup{make: parents})
		if err != nil {
			return err
		}
		if old := dir.children[name]; old != nil {
			if existOK && old.kind == volume.KindDirectory {
				return nil
			}
			return exists("make directory", t.what(p))
		}
		dir.children[name] = t.v.newDir(0o755)
		dir.modified = t.v.opt.Now()
		return nil
	})
}

func (t *folderTree) Rename(from, to string) error {
	to, err := volume.CleanPath(to)
	if err != nil {
		return err
	}
	return t.on(context.Background(), "move", from, func(from string) error {
		to := t.v.existing(t.top, to)
		switch {
		case from == ".":
			return fault.Invalidf("%s itself cannot be moved", folderName(t.ref))
		case to == ".", to == from:
			return exists("move to", t.what(to))
		case strings.HasPrefix(to, from+"/"):
			return fault.Invalidf("cannot move %q into itself", from)
		}
		up, name, err := t.v.parent(t.top, from, lookup{})
		if err != nil {
			return err
		}
		n := up.children[name]
		if n == nil {
			return missing("move", t.what(from))
		}
		into, newName, err := t.v.parent(t.top, to, lookup{make: true})
		if err != nil {
			return err
		}
		if into.children[newName] != nil {
			return exists("move to", t.what(to))
		}
		if into == n || n.holds(into) { // through a link
			return fault.Invalidf("cannot move %q into itself", from)
		}
		delete(up.children, name)
		into.children[newName] = n
		up.modified, into.modified = t.v.opt.Now(), t.v.opt.Now()
		return nil
	})
}

func (n *inode) holds(other *inode) bool {
	for _, c := range n.children {
		if c == other || c.holds(other) {
			return true
		}
	}
	return false
}

func (t *folderTree) Remove(p string, recursive bool) error {
	return t.on(context.Background(), "remove", p, func(p string) error {
		if p == "." {
			return fault.Invalidf("%s itself is no file", folderName(t.ref)).WithNext("delete the folder")
		}
		dir, name, err := t.v.parent(t.top, p, lookup{})
		if err != nil {
			return err
		}
		n := dir.children[name]
		switch {
		case n == nil:
			return missing("remove", t.what(p))
		case n.kind != volume.KindDirectory:
			t.v.give(t.scope, n.size())
		case recursive:
			t.v.trash = append(t.v.trash, trashed{t.scope, n})
		case len(n.children) > 0:
			return fault.Conflictf("cannot remove %s: the directory is not empty", t.what(p)).WithNext("remove it recursively")
		}
		delete(dir.children, name)
		dir.modified = t.v.opt.Now()
		return nil
	})
}

func (t *folderTree) WriteFile(ctx context.Context, p string, r io.Reader, mode fs.FileMode) error {
	if err := t.on(ctx, "write", p, func(string) error { return nil }); err != nil {
		return err
	}
	n := t.v.newFile(mode)
	_, err := t.v.fill(ctx, t.ref.Scope, t.scope, n, r, -1, func() error { return nil })
	if err == nil {
		err = t.on(ctx, "write", p, func(p string) error { return t.v.place(t.scope, t.top, p, n, lookup{}) })
	}
	if err != nil {
		t.v.disk.mu.Lock()
		t.v.cut(t.scope, n, 0)
		t.v.disk.mu.Unlock()
	}
	return err
}

// fill copies at most n bytes (all when negative) from r to the end of a file that no folder shows yet, within
// the quota. may is asked with the disk locked before each write.
func (v *Volume) fill(ctx context.Context, s cluster.QuotaScope, sc *scope, to *inode, r io.Reader, n int64,
	may func() error) (written int64, err error) {
	buffer := make([]byte, 256<<10)
	for empty := 0; n < 0 || written < n; {
		if err := ctx.Err(); err != nil {
			return written, fmt.Errorf("read what is to be written: %w", err)
		}
		part := buffer
		if n >= 0 {
			part = buffer[:min(int64(len(buffer)), n-written)]
		}
		k, rerr := r.Read(part)
		if k == 0 && rerr == nil {
			if empty++; empty > 100 {
				rerr = io.ErrNoProgress
			}
		} else {
			empty = 0
		}
		select {
		case <-v.dead:
			return written, fault.Unavailablef("cannot write: volume %q is closed", v.opt.Name)
		default:
		}
		v.disk.mu.Lock()
		got, werr := int64(0), may()
		if werr == nil {
			got, werr = v.take(s, sc, int64(k))
			to.data = append(to.data, part[:got]...)
			to.modified = v.opt.Now()
		}
		v.disk.mu.Unlock()
		written += got
		switch {
		case werr != nil:
			return written, werr
		case errors.Is(rerr, io.EOF):
			return written, nil
		case rerr != nil:
			return written, fmt.Errorf("read what is to be written: %w", rerr)
		}
	}
	return written, nil
}

// cut shortens a file; mu is held.
func (d *disk) cut(sc *scope, n *inode, size int64) {
	if old := n.size(); size < old {
		n.data = n.data[:size:size]
		d.give(sc, old-size)
	}
}

func (t *folderTree) Close() error {
	t.closed.Store(true)
	return nil
}

// file implements volume.File. It reads what the file held when it was opened.
type file struct {
	*bytes.Reader
	v    *Volume
	node *inode
	name string
}

func (f *file) Close() error { return nil }

func (f *file) Stat() (fs.FileInfo, error) {
	f.v.disk.mu.Lock()
	defer f.v.disk.mu.Unlock()
	return info{name: f.name, size: f.Size(), mode: f.node.mode, modified: f.node.modified}, nil
}

type info struct {
	name     string
	size     int64
	mode     fs.FileMode
	modified time.Time
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.modified }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
