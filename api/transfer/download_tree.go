package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"berth.dev/berth/api"
)

const timeLayout = time.RFC3339

// DownloadTree writes files and directories of folders to the places given. Nothing is written outside of these
// places, whatever the server sends. Directories are merged with what is there; links and special files are left
// out; files of the same size and time are left alone, or, with Options.Verify, of the same SHA-256.
// Interrupted, it goes on where it was when it is called again. Errors are as with UploadTree.
func DownloadTree(ctx context.Context, client *api.Client, to []Placement, o Options) (Report, error) {
	c := mover{client}
	t := newTree(o)
	var roots []*os.Root
	defer func() {
		for _, r := range roots {
			_ = r.Close()
		}
	}()
	return t.run(ctx, func(ctx context.Context, add func(treeJob) error) error {
		for _, p := range to {
			e, err := Stat(ctx, client, p.Remote, t.o)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Remote, err)
			}
			dir, name := p.Local, "."
			if e.Type == api.EntryFile {
				dir, name = filepath.Dir(p.Local), filepath.Base(p.Local)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return local(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				return local(err)
			}
			roots = append(roots, root)
			place, err := filepath.Abs(dir)
			if err != nil {
				place = ""
			}
			w := &downloadWalk{c: c, t: t, p: p, root: root, place: place, add: add}
			if e.Type == api.EntryFile {
				err = w.file(p.Remote, name, cmp.Or(p.Label, name), e)
			} else {
				err = w.walk(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// downloadWalk finds the files of one placement.
type downloadWalk struct {
	c     mover
	t     *tree
	p     Placement
	root  *os.Root
	place string
	add   func(treeJob) error
}

func (w *downloadWalk) walk(ctx context.Context) error {
	return w.c.walkFolder(ctx, w.t, w.p.Remote, w.p.Label, func(_ context.Context, rel string) (bool, error) {
		if err := w.root.MkdirAll(rel, 0o755); err != nil {
			w.t.fail(path.Join(w.p.Label, rel), err)
			return false, nil
		}
		return true, nil
	}, func(rel, label string, e api.FolderEntry) error {
		return w.file(w.p.Remote.Join(rel), rel, label, e)
	})
}

func (w *downloadWalk) file(from api.FolderPath, name, label string, e api.FolderEntry) error {
	return w.add(treeJob{label, e.Size, func(ctx context.Context, o Options) (int64, bool, error) {
		info, err := w.root.Lstat(name)
		if err == nil && info.Mode().IsRegular() && info.Size() == e.Size && !o.Overwrite {
			same := !e.ModTime().IsZero() && info.ModTime().Unix() == e.ModTime().Unix()
			if o.Verify {
				if same, err = w.identical(ctx, from, name, o); err != nil {
					return 0, false, err
				}
			}
			if same {
				return e.Size, true, nil
			}
		}
		size, err := w.c.downloadAs(
			ctx, label, from, Target{Root: w.root, Name: name, Place: w.place, Mode: modeOf(e), Modified: e.ModTime()}, o,
		)
		return size, false, err
	}})
}

func (w *downloadWalk) identical(ctx context.Context, from api.FolderPath, name string, o Options) (bool, error) {
	f, err := w.root.Open(name)
	if err != nil {
		return false, local(err)
	}
	defer f.Close()
	return w.c.identical(ctx, from, f, o)
}

// modeOf keeps of a file's mode whether it can be executed.
func modeOf(e api.FolderEntry) fs.FileMode {
	bits, err := strconv.ParseUint(e.Mode, 8, 32)
	if err != nil {
		return 0o644
	}
	return 0o644 | fs.FileMode(bits)&0o111
}

// walkFolder visits everything below a place of a folder, directories before what they hold. enter says whether a
// directory is to be walked.
func (c mover) walkFolder(ctx context.Context, t *tree, from api.FolderPath, label string,
	enter func(ctx context.Context, rel string) (bool, error), file func(rel, label string, e api.FolderEntry) error,
) error {
	stack := []string{"."}
	for len(stack) > 0 {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if ok, err := enter(ctx, dir); err != nil {
			return err
		} else if !ok {
			continue
		}
		at := from.Join(dir)
		for e, err := range c.FolderEntries(ctx, at) {
			if err != nil {
				if !errors.Is(err, api.ErrTruncated) && !noDirectory(err) || dir == "." {
					return fmt.Errorf("list %s: %w", at, err)
				}
				t.fail(path.Join(label, dir), err)
				break
			}
			if err := api.CheckEntryName(e.Name); err != nil {
				t.fail(path.Join(label, dir), err)
				continue
			}
			rel := path.Join(dir, e.Name)
			name := path.Join(label, rel)
			switch e.Type {
			case api.EntryDirectory:
				stack = append(stack, rel)
			case api.EntryFile:
				err = file(rel, name, e)
			case api.EntrySymlink:
				t.leaveOut(name, "a symbolic link")
			default:
				t.leaveOut(name, "not a regular file")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// RemotePlacement says what is copied to where among folders.
type RemotePlacement struct {
	From, To api.FolderPath
	Label    string
}

// CopyTree copies files and directories from folder to folder, through this machine. Files are left alone that
// seem to be there already, as with UploadTree.
func CopyTree(ctx context.Context, client *api.Client, all []RemotePlacement, o Options) (Report, error) {
	c := mover{client}
	t := newTree(o)
	return t.run(ctx, func(ctx context.Context, add func(treeJob) error) error {
		for _, p := range all {
			e, err := Stat(ctx, client, p.From, t.o)
			if err != nil {
				return fmt.Errorf("%s: %w", p.From, err)
			}
			if e.Type == api.EntryFile {
				there, known := c.entryAt(ctx, p.To)
				if err := add(c.copyJob(p.From, p.To, cmp.Or(p.Label, e.Name), e, there, known)); err != nil {
					return err
				}
				continue
			}
			var remote map[string]api.FolderEntry
			err = c.walkFolder(ctx, t, p.From, p.Label, func(ctx context.Context, rel string) (bool, error) {
				at := p.To.Join(rel)
				entries, there, err := c.entriesOf(ctx, at, t.o)
				if err == nil && !there {
					err = c.MakeDirs(ctx, at.Folder, []string{at.Path}, true, true)
				}
				remote = entries
				return err == nil, err
			}, func(rel, label string, e api.FolderEntry) error {
				there, known := remote[e.Name]
				return add(c.copyJob(p.From.Join(rel), p.To.Join(rel), label, e, there, known))
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (c mover) copyJob(from, to api.FolderPath, label string, e, there api.FolderEntry, known bool) treeJob {
	return treeJob{label, e.Size, func(ctx context.Context, o Options) (int64, bool, error) {
		src, err := RemoteContent(ctx, c.Client, from, o)
		if err != nil {
			return 0, false, err
		}
		if known && there.Type == api.EntryFile && there.Size == src.Size && !o.Overwrite {
			at := there.ModTime()
			same := !at.IsZero() && at.Unix() >= e.ModTime().Unix()
			if o.Verify {
				if same, err = c.sameContent(ctx, src, to, o); err != nil {
					return 0, false, err
				}
			}
			if same {
				return src.Size, true, nil
			}
		}
		return src.Size, false, c.uploadAs(ctx, label, to, src, o)
	}}
}
