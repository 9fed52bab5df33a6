package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"berth.dev/berth/api"
)

// Placement says what is copied to where.
type Placement struct {
	// Local is a path on this machine.
	Local string
	// Remote is the place in a folder.
	Remote api.FolderPath
	// Label begins the paths in events; "" leaves it out.
	Label string
}

// UploadTree puts files, and directories with all they hold, to the places given, as many at once as
// Options.Parallel says. Directories are merged with what is there. Files are left alone that seem to be
// there already: of the same size and not older than the local ones, or by their SHA-256 with Options.Verify.
// Interrupted, it goes on where it was when it is called again. Paths that fail do not keep others from being
// copied: the error is an *IncompleteError then.
func UploadTree(ctx context.Context, client *api.Client, from []Placement, o Options) (Report, error) {
	c := mover{client}
	t := newTree(o)
	return t.run(ctx, func(ctx context.Context, add func(treeJob) error) error {
		for _, p := range from {
			w := &uploadWalk{c: c, t: t, p: p, add: add}
			if err := w.start(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// uploadWalk finds the files of one placement.
type uploadWalk struct {
	c   mover
	t   *tree
	p   Placement
	add func(treeJob) error
	// empty directories are made in batches; others come with their files.
	empty []string
}

func (w *uploadWalk) start(ctx context.Context) error {
	info, err := os.Stat(w.p.Local)
	if err != nil {
		w.t.fail(w.label("."), err)
		return nil
	}
	if !info.IsDir() {
		return w.file(ctx, ".", info, nil, false)
	}
	if err := w.dir(ctx, ".", []fs.FileInfo{info}, false); err != nil {
		return err
	}
	return w.makeEmpty(ctx, 1)
}

func (w *uploadWalk) label(rel string) string {
	if rel == "." && w.p.Label == "" {
		return w.p.Local
	}
	return path.Join(w.p.Label, rel)
}

// dir walks a directory. ancestors are it and those above, so that links cannot lead around in circles; absent
// says that the folder has no such directory.
func (w *uploadWalk) dir(ctx context.Context, rel string, ancestors []fs.FileInfo, absent bool) error {
	entries, err := os.ReadDir(filepath.Join(w.p.Local, filepath.FromSlash(rel)))
	if err != nil {
		w.t.fail(w.label(rel), err)
		return nil
	}
	at := w.p.Remote.Join(rel)
	var remote map[string]api.FolderEntry
	if !absent {
		var there bool
		if remote, there, err = w.c.entriesOf(ctx, at, w.t.o); err != nil {
			return fmt.Errorf("list %s: %w", at, err)
		}
		absent = !there
	}
	stored := 0
	names := make(map[string]string, len(entries)) // by spelling
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name, spelled := path.Join(rel, e.Name()), w.t.o.spell(e.Name())
		if other, taken := names[spelled]; taken {
			w.t.fail(w.label(name), fmt.Errorf("in the folder its name is that of %q, too", other))
			continue
		}
		names[spelled] = e.Name()
		there, known := remote[spelled]
		ok, err := w.entry(ctx, name, ancestors, there, known)
		if err != nil {
			return err
		}
		if ok {
			stored++
		}
	}
	if stored == 0 && absent && !at.IsRoot() {
		w.empty = append(w.empty, at.Path)
		return w.makeEmpty(ctx, api.MaxMkdir)
	}
	return nil
}

// entry handles one name; it reports whether something of it will be in the folder.
func (w *uploadWalk) entry(ctx context.Context, rel string, ancestors []fs.FileInfo, there api.FolderEntry, known bool) (bool, error) {
	if err := api.CheckFolderPath(w.p.Remote.Join(rel).Path); err != nil {
		w.t.fail(w.label(rel), err)
		return false, nil
	}
	if name := path.Base(rel); isPart(name) {
		w.t.leaveOut(w.label(rel), "an unfinished download")
		return false, nil
	}
	full := filepath.Join(w.p.Local, filepath.FromSlash(rel))
	info, err := os.Lstat(full)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if !w.t.o.FollowLinks {
			w.t.leaveOut(w.label(rel), "a symbolic link")
			return false, nil
		}
		info, err = os.Stat(full)
	}
	switch {
	case err != nil:
		w.t.fail(w.label(rel), err)
		return false, nil
	case info.IsDir():
		for _, a := range ancestors {
			if os.SameFile(a, info) {
				w.t.leaveOut(w.label(rel), "a link to a directory above it")
				return false, nil
			}
		}
		if known && there.Type == api.EntryFile {
			w.t.fail(w.label(rel), errors.New("the folder has a file of that name"))
			return false, nil
		}
		return true, w.dir(ctx, rel, append(ancestors[:len(ancestors):len(ancestors)], info), !known)
	}
	return true, w.file(ctx, rel, info, &there, known)
}

// isPart recognises names of unfinished downloads.
func isPart(name string) bool {
	return strings.HasPrefix(name, ".berth-") && strings.HasSuffix(name, ".part") && len(name) == len(".berth-.part")+16
}

// file hands a file to the workers. there is what the folder has of that name; nil is to be asked for.
func (w *uploadWalk) file(_ context.Context, rel string, info fs.FileInfo, there *api.FolderEntry, known bool) error {
	if !info.Mode().IsRegular() {
		w.t.leaveOut(w.label(rel), kindOf(info.Mode()))
		return nil
	}
	label := w.label(rel)
	to := w.p.Remote.Join(rel)
	if known && there.Type == api.EntryDirectory {
		w.t.fail(label, errors.New("the folder has a directory of that name"))
		return nil
	}
	full := filepath.Join(w.p.Local, filepath.FromSlash(rel))
	return w.add(treeJob{label, info.Size(), func(ctx context.Context, o Options) (int64, bool, error) {
		f, err := os.Open(full)
		if err != nil {
			return 0, false, local(err)
		}
		defer f.Close()
		src, err := FileContent(f)
		if err != nil {
			return 0, false, err
		}
		if !o.Overwrite {
			e, have := api.FolderEntry{}, known
			if there != nil {
				e = *there
			} else {
				e, have = w.c.entryAt(ctx, to)
			}
			if have && e.Type == api.EntryFile && e.Size == src.Size {
				same, err := w.c.uploaded(ctx, src, info, to, e, o)
				if same || err != nil {
					return src.Size, same, err
				}
			}
		}
		return src.Size, false, w.c.uploadAs(ctx, label, to, src, o)
	}})
}

// kindOf words what is no regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "not a regular file"
}

// entryAt describes one file of a folder; ok is false when there is none, or that cannot be told.
func (c mover) entryAt(ctx context.Context, at api.FolderPath) (e api.FolderEntry, ok bool) {
	v, err := c.headFile(ctx, at)
	if err != nil {
		return e, false
	}
	return api.FolderEntry{Name: path.Base(at.Path), Type: api.EntryFile, Size: v.Size, Modified: v.modTime().Format(timeLayout)}, true
}

// uploaded reports whether a file of the right size is the local one.
func (c mover) uploaded(ctx context.Context, src Content, info fs.FileInfo, to api.FolderPath, e api.FolderEntry, o Options) (bool, error) {
	if !o.Verify {
		at := e.ModTime()
		return !at.IsZero() && at.Unix() >= info.ModTime().Unix(), nil
	}
	return c.sameContent(ctx, src, to, o)
}

// sameContent compares by SHA-256.
func (c mover) sameContent(ctx context.Context, src Content, at api.FolderPath, o Options) (bool, error) {
	here, err := src.sum(ctx)
	if err != nil {
		return false, err
	}
	there, size, err := c.sumFile(ctx, at, o)
	return err == nil && size == src.Size && bytes.Equal(here, there), err
}

// makeEmpty makes the empty directories once there are that many.
func (w *uploadWalk) makeEmpty(ctx context.Context, least int) error {
	if len(w.empty) < least {
		return nil
	}
	r := retrier{o: w.t.o}
	err := r.try(ctx, func() error { return w.c.MakeDirs(ctx, w.p.Remote.Folder, w.empty, true, true) })
	if err != nil && (concernsAll(err) || ctx.Err() != nil) {
		return err
	}
	if err != nil {
		w.t.fail(w.label("."), err)
	}
	w.empty = w.empty[:0]
	return nil
}
