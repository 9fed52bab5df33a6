package posix

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/tree"
)

// unique is a name that nobody else has.
func unique() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// CreateFolder implements volume.Volume.
func (v *vol) CreateFolder(ctx context.Context, f cluster.FolderRef, mode fs.FileMode) error {
	what := v.folder(f)
	err := v.placeFolder(ctx, f, func(parent *directory, name string) error {
		mode := v.owner.rootMode(mode)
		made, err := parent.makeDir(name, mode, v.owner)
		if err == nil && !made {
			err = v.adopt(parent, name, mode)
		}
		return err
	})
	if err == nil { // also where a proxy that was killed had made it and no more
		err = v.root.syncWay(f.Dir(), noLinks)
	}
	return explain(err, "make", what)
}

// adopt gives a folder's directory to its owner, where a proxy that was killed had made it and no more.
func (v *vol) adopt(parent *directory, name string, mode fs.FileMode) error {
	st, err := parent.stat(name)
	if err != nil || v.owner.uid <= 0 || int(st.Uid) != os.Geteuid() {
		return err
	}
	f, err := parent.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, noLinks)
	if err != nil {
		return err
	}
	defer f.Close()
	return v.owner.give(f, mode)
}

// closeRoot makes the root of a folder the owner's alone. It finds roots that were made by an older proxy, copied, or opened to others by a
// session, which owns them. A root that cannot be changed now is tried again at the next touch.
func (v *vol) closeRoot(root *directory) {
	if v.owner.uid < 0 {
		return
	}
	st, err := root.stat("")
	mode := fs.FileMode(st.Mode) & fs.ModePerm
	if err != nil || v.owner.rootMode(mode) == mode {
		return
	}
	if err := root.f.Chmod(v.owner.rootMode(mode)); err != nil {
		v.log.Debug("the root of a folder stays open to other users of the host", "volume", v.opt.Name, "error", err)
	}
}

// maxTries bounds how often a step is begun again because others removed an empty directory under it.
const maxTries = 1000

// placeFolder calls put with the directory that the folder's directory belongs into, which it makes with the
// scope, and with the folder's name there. The scope cannot go meanwhile.
func (v *vol) placeFolder(ctx context.Context, f cluster.FolderRef, put func(parent *directory, name string) error) error {
	for tries := 1; ; tries++ {
		lock, err := v.lockScope(ctx, f.Scope, false)
		if err == nil {
			// A scope is made once its record is there.
			if _, e := v.readScope(f.Scope); fault.Is(e, fault.NotFound) {
				lock.Close()
				err = unix.ENOENT
			}
		}
		if errors.Is(err, unix.ENOENT) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := v.setScope(ctx, f.Scope, volume.NoLimit, true); err != nil || tries >= maxTries {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		err = v.placeLocked(f, put)
		lock.Close()
		// The empty parents are removed by those who delete the last folder in them.
		if errors.Is(err, unix.ENOENT) && ctx.Err() == nil && tries < maxTries {
			continue
		}
		return err
	}
}

func (v *vol) placeLocked(f cluster.FolderRef, put func(*directory, string) error) error {
	scope, err := v.root.dir(f.Scope.Dir(), noLinks)
	if err != nil {
		return err
	}
	defer scope.Close()
	rel := strings.TrimPrefix(f.Dir(), f.Scope.Dir()+"/")
	parent, err := scope.made(path.Dir(rel), v.owner, noLinks)
	if err != nil {
		return err
	}
	defer parent.Close()
	return put(parent, path.Base(rel))
}

// OpenFolder implements volume.Volume.
func (v *vol) OpenFolder(_ context.Context, f cluster.FolderRef) (volume.Tree, error) {
	return v.openTree(f)
}

func (v *vol) openTree(f cluster.FolderRef) (*folderTree, error) {
	root, err := v.root.readable(f.Dir(), noLinks)
	if err != nil {
		return nil, explain(err, "open", v.folder(f))
	}
	v.closeRoot(root)
	return &folderTree{v: v, ref: f, root: root}, nil
}

// TrashFolder implements volume.Volume.
func (v *vol) TrashFolder(_ context.Context, f cluster.FolderRef) error {
	what := v.folder(f)
	scope, err := v.root.dir(f.Scope.Dir(), noLinks)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return explain(err, "delete", what)
	}
	defer scope.Close()
	// What a clone left for this folder goes with it.
	for _, p := range []string{path.Join(clonesDir, f.Folder.Hex()), strings.TrimPrefix(f.Dir(), f.Scope.Dir()+"/")} {
		if err := v.toTrash(scope, p); err != nil {
			return explain(err, "delete", what)
		}
	}
	v.forgetClone(scope, f)
	fan := path.Dir(strings.TrimPrefix(f.Dir(), f.Scope.Dir()+"/"))
	for _, p := range []string{fan, path.Dir(fan)} {
		if up, name, err := scope.parent(p, noLinks); err == nil {
			_ = up.rmdir(name) // fails while there are other folders
			up.Close()
		}
	}
	return nil
}

// toTrash moves what lies at p in a scope into its trash; what is not there is done.
func (v *vol) toTrash(scope *directory, p string) error {
	up, name, err := scope.parent(p, noLinks)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer up.Close()
	err = v.discard(scope, up, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// discard moves name, which is in from, into the scope's trash. A full quota may have no room for one more entry
// there, and a directory may belong to another project: then the volume's own trash takes it, and where no rename
// can, it is removed at once.
func (v *vol) discard(scope, from *directory, name string) error {
	var err error
	for _, in := range []*directory{scope, v.root} {
		var trash *directory
		if trash, err = v.trashOf(in); err == nil {
			err = from.rename(name, trash, unique())
			trash.Close()
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.EXDEV) {
			return err
		}
	}
	root, err := from.asRoot()
	if err != nil {
		return err
	}
	defer root.Close()
	for done := false; !done; {
		if _, done, err = tree.Remove(v.life, root, name, 10_000); err != nil {
			return err
		}
	}
	return nil
}

// trashOf names the trash of a scope or of the volume. Directories that the proxy did not make may have none, and
// without it what is to be deleted would look as if it were gone.
func (v *vol) trashOf(in *directory) (*directory, error) {
	trash, err := in.dir(trashDir, noLinks)
	if errors.Is(err, unix.ENOENT) {
		if err = v.makePrivate(in, trashDir); err == nil {
			trash, err = in.dir(trashDir, noLinks)
		}
	}
	return trash, err
}

// Usage implements volume.Volume.
func (v *vol) Usage(ctx context.Context, f cluster.FolderRef) (volume.Usage, error) {
	what := v.folder(f)
	d, err := v.root.readable(f.Dir(), noLinks)
	if err != nil {
		return volume.Usage{}, explain(err, "count", what)
	}
	defer d.Close()
	if v.opt.FolderUsage != nil {
		if u, ok, err := v.opt.FolderUsage(ctx, d.f); err != nil {
			return volume.Usage{}, explain(err, "count", what)
		} else if ok {
			return u, nil
		}
	}
	root, err := d.asRoot()
	if err != nil {
		return volume.Usage{}, explain(err, "count", what)
	}
	defer root.Close()
	select {
	case v.folderCounts <- struct{}{}:
		defer func() { <-v.folderCounts }()
	case <-ctx.Done():
		return volume.Usage{At: v.now()}, nil // a lower bound, as any other
	}
	u, err := v.scanner.Usage(ctx, f.Dir(), root)
	return u, explain(err, "count", what)
}

// countScope counts everything below a scope: folders, trash and uploads.
func (v *vol) countScope(ctx context.Context, s cluster.QuotaScope) (volume.Usage, error) {
	if v.opt.Quota != nil {
		u, err := v.readQuota(ctx, s)
		return volume.Usage{Bytes: u.UsedBytes, Complete: u.Complete}, err
	}
	d, err := v.root.readable(s.Dir(), noLinks)
	if err != nil {
		return volume.Usage{}, err
	}
	defer d.Close()
	root, err := d.asRoot()
	if err != nil {
		return volume.Usage{}, err
	}
	defer root.Close()
	return tree.Usage(ctx, root, 0)
}

// Reap implements volume.Volume. Calls share one round over the scopes, so that each gets its turn.
func (v *vol) Reap(ctx context.Context, limit int) (removed int, err error) {
	whole := false // this call looks at everything
	var failed error
	for removed < limit {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		dir, ok := v.nextSweep()
		if !ok {
			if removed > 0 {
				return removed, nil
			}
			if whole { // what is left, if anything, cannot be removed
				return 0, explain(failed, "empty the trash of", v.what())
			}
			whole = true
			if err := v.beginSweep(); err != nil {
				return removed, explain(err, "reap", v.what())
			}
			continue
		}
		n, err := v.reapDir(ctx, dir, limit-removed)
		removed += n
		if n > 0 && dir != "." {
			v.mu.Lock()
			m := v.meters[dir]
			v.mu.Unlock()
			if m != nil {
				m.outdate()
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return removed, ctx.Err()
			}
			// One scope that cannot be reaped does not stop the others, and is told once nothing else is left.
			v.log.Debug("emptying a trash failed", "volume", v.opt.Name, "scope", dir, "error", err)
			if failed == nil {
				failed = err
			}
		}
		if removed >= limit {
			v.mu.Lock()
			v.sweep = slices.Insert(v.sweep, 0, dir) // there may be more, after the others had their turn
			v.mu.Unlock()
		}
	}
	return removed, nil
}

func (v *vol) nextSweep() (string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.sweep) == 0 {
		return "", false
	}
	dir := v.sweep[len(v.sweep)-1]
	v.sweep = v.sweep[:len(v.sweep)-1]
	return dir, true
}

func (v *vol) beginSweep() error {
	scopes, err := v.scopes()
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.sweep = append(scopes, ".")
	v.mu.Unlock()
	return nil
}

// scopes are the directories of all scopes.
func (v *vol) scopes() ([]string, error) {
	root, err := v.root.readable(".", noLinks)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := root.names()
	if err != nil {
		return nil, err
	}
	scopes := names[:0]
	for _, n := range names {
		if _, err := hex.DecodeString(n); err == nil && len(n) == 32 {
			scopes = append(scopes, n)
		}
	}
	return scopes, nil
}

// reapDir removes entries from the trash of one scope; "." is the volume's own, which holds deleted scopes.
func (v *vol) reapDir(ctx context.Context, dir string, limit int) (removed int, err error) {
	d, err := v.root.readable(path.Join(dir, trashDir), noLinks)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer d.Close()
	r := newDirentReader(d, make([]byte, direntBytes))
	var root *os.Root
	var failed error
	for removed < limit {
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return removed, err
		}
		if root == nil {
			if root, err = d.asRoot(); err != nil {
				return removed, err
			}
			defer root.Close()
		}
		n, _, err := tree.Remove(ctx, root, e.name, limit-removed)
		removed += n
		if ctx.Err() != nil {
			return removed, err
		}
		if err != nil && failed == nil {
			failed = err
		}
	}
	return removed, failed
}

const cloneMark = ".done"

// CloneFolder implements volume.Volume. The copy grows in the scope's .berth, where no session sees it, and moves
// to its place when it is complete. A mark says that it was, so that a call repeated after that changes nothing.
func (v *vol) CloneFolder(ctx context.Context, src, dst cluster.FolderRef, tell func(volume.Progress)) error {
	if src == dst {
		return fault.Invalidf("folder %s cannot be cloned onto itself", src)
	}
	if err := v.cloneFolder(ctx, src, dst, tell); err != nil {
		return explain(err, "clone", v.folder(src)+" to "+string(dst.Folder))
	}
	return nil
}

func (v *vol) cloneFolder(ctx context.Context, src, dst cluster.FolderRef, tell func(volume.Progress)) error {
	from, err := v.root.readable(src.Dir(), noLinks)
	if err != nil {
		return err
	}
	defer from.Close()
	mode, err := from.stat("")
	if err != nil {
		return err
	}
	// This makes the scope.
	if err := v.placeFolder(ctx, dst, func(*directory, string) error { return nil }); err != nil {
		return err
	}
	scope, err := v.root.dir(dst.Scope.Dir(), noLinks)
	if err != nil {
		return err
	}
	defer scope.Close()
	clones, err := scope.readable(clonesDir, noLinks)
	if err != nil {
		return err
	}
	defer clones.Close()
	name := dst.Folder.Hex()
	lock, ok, err := clones.lockFile(noWait(), name+".lock", true)
	if err != nil {
		return err
	}
	if !ok {
		return fault.Conflictf("folder %s is being cloned already", src).WithNext("wait for the clone that runs")
	}
	defer lock.Close()
	defer func() { _ = clones.unlink(name + ".lock") }()

	mark, err := clones.get(name + cloneMark)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	// Marked and moved: an earlier call did all.
	_, err = clones.stat(name)
	moved := errors.Is(err, unix.ENOENT) && string(mark) == src.String()
	if done, err := v.cloned(dst, moved); done || err != nil {
		return err
	}
	if _, err := clones.makeDir(name, fs.FileMode(mode.Mode), v.owner); err != nil {
		return err
	}
	into, err := clones.readable(name, noLinks)
	if err != nil {
		return err
	}
	defer into.Close()
	if err := v.copyFolder(ctx, dst.Scope, from, into, tell); err != nil {
		return err
	}
	if err := clones.put(name+cloneMark, []byte(src.String()), v.owner); err != nil {
		return err
	}
	return v.placeFolder(ctx, dst, func(parent *directory, place string) error {
		// rename(2) replaces an empty directory and no other.
		if err := clones.rename(name, parent, place); err != nil {
			if _, e := clones.stat(name); errors.Is(e, unix.ENOENT) {
				_ = clones.unlink(name + cloneMark)
				return fault.Conflictf("folder %s was deleted while it was copied", dst).WithNext("clone it again")
			}
			return err
		}
		return parent.sync()
	})
}

// cloned tells whether dst needs nothing more. A folder that somebody made empty is filled.
func (v *vol) cloned(dst cluster.FolderRef, moved bool) (bool, error) {
	d, err := v.root.readable(dst.Dir(), noLinks)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer d.Close()
	if moved {
		return true, nil
	}
	if _, err := newDirentReader(d, make([]byte, 4096)).next(); errors.Is(err, io.EOF) {
		return false, nil
	}
	return false, fault.Conflictf("folder %s exists and is not empty", dst).WithNext("choose another name for the clone")
}

// copyFolder copies and keeps the quota of scope while it does, where the file system does not.
func (v *vol) copyFolder(ctx context.Context, s cluster.QuotaScope, from, into *directory, tell func(volume.Progress)) error {
	a, err := from.asRoot()
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := into.asRoot()
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	full := func(err error) error {
		if cause := context.Cause(ctx); fault.Is(cause, fault.Exhausted) {
			return cause
		}
		return err
	}
	if v.stopWithoutRoom(cancel); ctx.Err() != nil {
		return full(ctx.Err())
	}
	if !v.opt.counts() {
		return full(tree.Copy(ctx, a, b, func(p volume.Progress) {
			v.stopWithoutRoom(cancel)
			if tell != nil {
				tell(p)
			}
		}))
	}
	m, err := v.meterOf(s)
	if err != nil {
		return err
	}
	if m.limited() { // else nobody waits for a count
		v.usage(ctx, s, m)
	}
	had, err := tree.Usage(ctx, b, 0)
	if err != nil {
		return err
	}
	last := had.Bytes // what an earlier call copied is counted already
	return full(tree.Copy(ctx, a, b, func(p volume.Progress) {
		v.stopWithoutRoom(cancel)
		if n := p.Current - last; n > 0 {
			last = p.Current
			m.add(n)
		}
		// Better at once, when it is known that the rest does not fit.
		if limit, ok := m.fits(p.Total - p.Current); !ok {
			cancel(over(s, limit))
		}
		if tell != nil {
			tell(p)
		}
	}))
}

// forgetClone removes the mark of a clone.
func (v *vol) forgetClone(scope *directory, f cluster.FolderRef) {
	if clones, err := scope.dir(clonesDir, noLinks); err == nil {
		_ = clones.unlink(f.Folder.Hex() + cloneMark)
		clones.Close()
	}
}

// cloneMarkLife is how long a finished clone is remembered for callers that ask again.
const cloneMarkLife = 7 * 24 * time.Hour

// forgetOldClones removes the marks in one scope that nobody will ask for any more.
func (v *vol) forgetOldClones(scope string) {
	clones, err := v.root.readable(path.Join(scope, clonesDir), noLinks)
	if err != nil {
		return
	}
	defer clones.Close()
	names, err := clones.names()
	if err != nil {
		return
	}
	for _, n := range names {
		if !strings.HasSuffix(n, cloneMark) {
			continue
		}
		if st, err := clones.stat(n); err == nil && v.now().Sub(timeOf(st.Mtime)) > cloneMarkLife {
			_ = clones.unlink(n)
		}
	}
}
