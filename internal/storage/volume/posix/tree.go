package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/text/unicode/norm"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// folderTree implements volume.Tree.
type folderTree struct {
	v    *vol
	ref  cluster.FolderRef
	root *directory
}

func (t *folderTree) what(p string) string {
	if p == "." {
		return t.v.folder(t.ref)
	}
	return fmt.Sprintf("%q of %s", p, t.v.folder(t.ref))
}

// on cleans p and calls fn with it; existing paths are found in either normal form.
func (t *folderTree) on(verb, p string, fn func(p string) error) error {
	p, err := volume.CleanPath(p)
	if err != nil {
		return err
	}
	return explain(fn(t.root.existing(p)), verb, t.what(p))
}

// scope opens the folder's quota scope.
func (t *folderTree) scope() (*directory, error) { return t.v.root.dir(t.ref.Scope.Dir(), noLinks) }

func (t *folderTree) Stat(p string) (e volume.Entry, err error) {
	err = t.on("look at", p, func(p string) error {
		if p == "." {
			e, err = t.root.entry("")
			e.Name = "."
			return err
		}
		up, name, err := t.root.parent(p, insideOnly)
		if err != nil {
			return err
		}
		defer up.Close()
		e, err = up.entry(name)
		return err
	})
	return e, err
}

func (t *folderTree) Open(p string) (f volume.File, err error) {
	err = t.on("open", p, func(p string) error {
		file, err := t.root.regular(p)
		if err == nil {
			f = file
		}
		return err
	})
	return f, err
}

func (t *folderTree) List(ctx context.Context, p, after string, limit int) (page []volume.Entry, next string, err error) {
	err = t.on("list", p, func(p string) error {
		d, err := t.root.readable(p, insideOnly)
		if err != nil {
			return err
		}
		defer d.Close()
		page, next, err = list(ctx, d, after, limit, false)
		return err
	})
	return page, next, err
}

func (t *folderTree) Walk(ctx context.Context, p string, visit func(string, volume.Entry) error) error {
	var stop error // of the visitor, whose errors are its own
	err := t.on("walk", p, func(p string) error {
		d, err := t.root.readable(p, insideOnly)
		if err != nil {
			return err
		}
		defer d.Close()
		return walk(ctx, d, p, 0, func(at string, e volume.Entry) error {
			err := visit(at, e)
			if err != nil && !errors.Is(err, fs.SkipDir) {
				stop = err
			}
			return err
		})
	})
	if stop != nil {
		return stop
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (t *folderTree) Mkdir(p string, parents, existOK bool) error {
	return t.on("make directory", p, func(p string) error {
		if p == "." {
			if existOK {
				return nil
			}
			return unix.EEXIST
		}
		up, err := t.parentFor(p, parents)
		if err != nil {
			return err
		}
		defer up.Close()
		name := up.existing(path.Base(p))
		made, err := up.makeDir(name, 0o755, t.v.owner)
		if err != nil {
			return err
		}
		if !made {
			st, err := up.stat(name)
			if err != nil {
				return err
			}
			if !existOK || !isDir(&st) {
				return unix.EEXIST
			}
		}
		// Whoever is told of it finds it again after a crash of the host, also where somebody else has just made it.
		if parents {
			return t.root.syncWay(p, insideOnly)
		}
		return up.sync()
	})
}

// parentFor names the directory that p goes into, made where asked.
func (t *folderTree) parentFor(p string, parents bool) (*directory, error) {
	if parents {
		return t.root.made(path.Dir(p), t.v.owner, insideOnly)
	}
	return t.root.dir(path.Dir(p), insideOnly)
}

func (t *folderTree) Rename(from, to string) error {
	to, err := volume.CleanPath(to)
	if err != nil {
		return err
	}
	return t.on("move", from, func(from string) error {
		switch {
		case from == ".":
			return fault.Invalidf("%s itself cannot be moved", t.v.folder(t.ref))
		case to == ".":
			return unix.EEXIST
		case to == from:
			return unix.EEXIST
		case strings.HasPrefix(to, from+"/"):
			return fault.Invalidf("cannot move %q into itself", from)
		}
		up, name, err := t.root.parent(from, insideOnly)
		if err != nil {
			return err
		}
		defer up.Close()
		if _, err := up.stat(name); err != nil {
			return err // before directories are made for nothing
		}
		into, err := t.root.made(path.Dir(t.root.existing(to)), t.v.owner, insideOnly)
		if err != nil {
			return explain(err, "make the directory of", t.what(to))
		}
		defer into.Close()
		return explain2(up.renameNew(name, into, norm.NFC.String(path.Base(to))), "move to", t.what(to))
	})
}

// explain2 is explain for the errors that speak of the second of two objects.
func explain2(err error, verb, what string) error {
	if errors.Is(err, unix.EEXIST) {
		return explain(err, verb, what)
	}
	return err
}

func (t *folderTree) Remove(p string, recursive bool) error {
	return t.on("remove", p, func(p string) error {
		if p == "." {
			return fault.Invalidf("%s itself is no file", t.v.folder(t.ref)).WithNext("delete the folder")
		}
		up, name, err := t.root.parent(p, insideOnly)
		if err != nil {
			return err
		}
		defer up.Close()
		st, err := up.stat(name)
		if err != nil {
			return err
		}
		if !isDir(&st) {
			if err := up.unlink(name); err != nil {
				return err
			}
			if st.Nlink == 1 {
				t.v.freed(t.ref.Scope, int64(st.Size))
			}
			return nil
		}
		if !recursive {
			return up.rmdir(name)
		}
		scope, err := t.scope()
		if err != nil {
			return err
		}
		defer scope.Close()
		return t.v.discard(scope, up, name)
	})
}

// freed notes bytes that went from a scope, where this proxy counts.
func (v *vol) freed(s cluster.QuotaScope, n int64) {
	v.mu.Lock()
	m := v.meters[s.Dir()]
	v.mu.Unlock()
	if m != nil {
		m.add(-n)
	}
}

func (t *folderTree) WriteFile(ctx context.Context, p string, r io.Reader, mode fs.FileMode) error {
	return t.on("write", p, func(p string) error {
		if p == "." {
			return unix.EISDIR
		}
		scope, err := t.scope()
		if err != nil {
			return err
		}
		defer scope.Close()
		uploads, err := scope.dir(uploadsDir, noLinks)
		if err != nil {
			return err
		}
		defer uploads.Close()
		tmp := tmpPrefix + unique()
		f, err := uploads.open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, noLinks)
		if err != nil {
			return err
		}
		defer f.Close()
		// Whoever cleans up after a crash sees that this one is alive.
		_, err = tryLock(f, openRange, 1, false)
		var n int64
		if err == nil {
			n, err = t.v.fill(ctx, t.ref.Scope, f, 0, r, -1)
		}
		if err == nil {
			err = t.v.owner.give(f, mode)
		}
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = t.v.place(t.ref.Scope, uploads, tmp, t.root, p, insideOnly)
		}
		if err != nil {
			_ = uploads.unlink(tmp)
			t.v.freed(t.ref.Scope, n)
		}
		return err
	})
}

// place moves a finished file to p below root. It replaces a regular file and nothing else.
func (v *vol) place(s cluster.QuotaScope, from *directory, name string, root *directory, p string, resolve uint64) error {
	up, err := root.made(path.Dir(p), v.owner, resolve)
	if err != nil {
		return err
	}
	defer up.Close()
	target := up.existing(path.Base(p))
	old, err := up.stat(target)
	switch {
	case errors.Is(err, unix.ENOENT):
		err = from.rename(name, up, target)
	case err != nil:
		return err
	case isDir(&old):
		return unix.EISDIR
	case old.Mode&unix.S_IFMT != unix.S_IFREG:
		return fault.Conflictf("cannot write %q: something that is no regular file is there", p).WithNext("remove it first")
	default:
		if err = from.rename(name, up, target); err == nil && old.Nlink == 1 {
			v.freed(s, int64(old.Size))
		}
	}
	if err != nil {
		return err
	}
	return up.sync()
}

func (t *folderTree) Close() error { return t.root.Close() }
