// Package files gives access to the user's home directory and nothing else: listing, upload and
// download. Every path goes through os.Root, so neither ".." nor a symbolic link leads out, and
// every call runs with the permissions of the session's user, so what it may not read or
// write is refused by the kernel and what it writes belongs to it.
//
// It speaks no HTTP; runner calls it.
package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
)

// Tree is one home directory.
type Tree struct {
	Home     string // absolute
	User     *proc.Credential
	MaxBytes int64
	MaxFiles int
}

// as runs fn with the root opened as the user.
func (t Tree) as(fn func(root *os.Root) error) error {
	return proc.AsUser(t.User, func() error {
		root, err := os.OpenRoot(t.Home)
		if err != nil {
			return fault.Unavailablef("the home directory %s cannot be opened", t.Home).WithCause(err)
		}
		defer root.Close()
		return fn(root)
	})
}

// Clean turns a path as users write it (relative to home, or absolute below it) into one relative to home.
func (t Tree) Clean(p string) (string, error) {
	if strings.ContainsRune(p, 0) {
		return "", fault.Invalidf("path %q holds a zero byte", p)
	}
	if path.IsAbs(p) {
		rel, err := filepath.Rel(t.Home, path.Clean(p))
		if err != nil {
			return "", outside(p, t.Home)
		}
		p = rel
	}
	p = path.Clean(p)
	if !filepath.IsLocal(p) {
		return "", outside(p, t.Home)
	}
	return p, nil
}

func outside(p, home string) error {
	return fault.Invalidf("path %q leads out of %s", p, home).WithReason("path-escape").WithNext("use a path below %s", home)
}

// explain gives an error of the file system its kind.
func explain(err error, verb, p string) error {
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*fault.Error)):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFoundf("%s %q: there is no such file", verb, p).WithReason("file-not-found")
	case errors.Is(err, fs.ErrPermission):
		return fault.Deniedf("%s %q: the session's user may not", verb, p)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.Exhaustedf("%s %q: no space is left", verb, p).WithReason("disk-full").WithNext("delete files in the session and try again")
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP),
		strings.Contains(err.Error(), "escapes from parent"):
		return fault.Invalidf("%s %q", verb, p).WithCause(err)
	}
	return fmt.Errorf("%s %q: %w", verb, p, err)
}

// List lists a directory, or one file.
func (t Tree) List(p string) (run.Listing, error) {
	rel, err := t.Clean(p)
	if err != nil {
		return run.Listing{}, err
	}
	out := run.Listing{Abspath: path.Join(t.Home, rel), Entries: []run.Entry{}}
	err = t.as(func(root *os.Root) error {
		f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		if !fi.IsDir() {
			out.Entries = append(out.Entries, entry(fi, path.Base(rel)))
			return nil
		}
		names, err := f.ReadDir(run.MaxListing + 1)
		if err != nil && err != io.EOF {
			return err
		}
		if len(names) > run.MaxListing {
			names, out.Truncated = names[:run.MaxListing], true
		}
		for _, d := range names {
			fi, err := root.Lstat(path.Join(rel, d.Name()))
			if err != nil {
				continue // it went away meanwhile
			}
			out.Entries = append(out.Entries, entry(fi, d.Name()))
		}
		slices.SortFunc(out.Entries, func(a, b run.Entry) int { return strings.Compare(a.Filename, b.Filename) })
		return nil
	})
	return out, explain(err, "list", p)
}

func entry(fi fs.FileInfo, name string) run.Entry {
	e := run.Entry{Mode: ModeString(fi.Mode()), Size: fi.Size(), Mtime: seconds(fi.ModTime()), Filename: name}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		e.Ctime, e.Atime = seconds(time.Unix(st.Ctim.Unix())), seconds(time.Unix(st.Atim.Unix()))
	}
	return e
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// ModeString writes a mode as ls does.
func ModeString(m fs.FileMode) string {
	b := []byte("-" + m.Perm().String()[1:])
	switch {
	case m.IsDir():
		b[0] = 'd'
	case m&fs.ModeSymlink != 0:
		b[0] = 'l'
	case m&fs.ModeNamedPipe != 0:
		b[0] = 'p'
	case m&fs.ModeSocket != 0:
		b[0] = 's'
	case m&fs.ModeCharDevice != 0:
		b[0] = 'c'
	case m&fs.ModeDevice != 0:
		b[0] = 'b'
	}
	for _, s := range []struct {
		bit fs.FileMode
		at  int
		set byte
	}{{fs.ModeSetuid, 3, 's'}, {fs.ModeSetgid, 6, 's'}, {fs.ModeSticky, 9, 't'}} {
		if m&s.bit != 0 {
			if b[s.at] == '-' {
				s.set -= 'a' - 'A'
			}
			b[s.at] = s.set
		}
	}
	return string(b)
}

// Upload writes a tar stream or a multipart form below home and returns the relative paths.
func (t Tree) Upload(ctx context.Context, contentType string, body io.Reader) (run.UploadResult, []string, error) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return run.UploadResult{}, nil, fault.Invalidf("upload: content type %q", contentType).WithCause(err)
	}
	u := &upload{tree: t, ctx: ctx}
	err = t.as(func(root *os.Root) error {
		u.root = root
		switch media {
		case run.ContentTar, "application/tar":
			return u.tar(body)
		case "multipart/form-data", "multipart/mixed":
			return u.multipart(multipart.NewReader(body, params["boundary"]))
		}
		return fault.Invalidf("upload: content type %q is neither a tar stream nor a multipart form", media)
	})
	return u.result, u.names, err
}

type upload struct {
	tree   Tree
	ctx    context.Context
	root   *os.Root
	result run.UploadResult
	names  []string
}

func (u *upload) tar(body io.Reader) error {
	tr := tar.NewReader(body)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.Invalidf("upload: the tar stream is broken").WithCause(err)
		}
		rel, err := u.tree.Clean(h.Name)
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = explain(u.root.MkdirAll(rel, 0o755), "make directory", h.Name)
		case tar.TypeReg:
			err = u.file(rel, h.Name, fs.FileMode(h.Mode)&0o777, tr)
		case tar.TypeSymlink:
			err = u.symlink(rel, h)
		case tar.TypeXGlobalHeader:
		default:
			err = fault.Invalidf("upload: %q is neither a file, a directory nor a symbolic link", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func (u *upload) symlink(rel string, h *tar.Header) error {
	if path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(rel), h.Linkname)) {
		return outside(h.Linkname, u.tree.Home)
	}
	if err := u.count(); err != nil {
		return err
	}
	if err := u.root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return explain(err, "make directory", path.Dir(h.Name))
	}
	if err := u.root.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(err, "replace", h.Name)
	}
	return explain(u.root.Symlink(h.Linkname, rel), "make link", h.Name)
}

func (u *upload) multipart(r *multipart.Reader) error {
	for {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.Invalidf("upload: the form is broken").WithCause(err)
		}
		// Part.FileName cuts directories off; here they are wanted.
		_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
		if err != nil || params["filename"] == "" {
			return fault.Invalidf("upload: a part of the form has no file name")
		}
		name := params["filename"]
		rel, err := u.tree.Clean(name)
		if err != nil {
			return err
		}
		if err := u.file(rel, name, 0o644, p); err != nil {
			return err
		}
	}
}

func (u *upload) count() error {
	if u.result.Files++; u.result.Files > u.tree.MaxFiles {
		return fault.Exhaustedf("upload: more than %d files", u.tree.MaxFiles).WithNext("upload an archive and unpack it in the session")
	}
	return nil
}

// file writes one file: first under a temporary name, so that nobody sees half of it.
func (u *upload) file(rel, shown string, mode fs.FileMode, r io.Reader) error {
	if rel == "." {
		return fault.Invalidf("upload: %q names no file", shown)
	}
	if err := u.count(); err != nil {
		return err
	}
	if err := u.root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return explain(err, "make directory", path.Dir(shown))
	}
	tmp := path.Join(path.Dir(rel), fmt.Sprintf(".upload-%d-%d", time.Now().UnixNano(), u.result.Files))
	f, err := u.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return explain(err, "write", shown)
	}
	left := u.tree.MaxBytes - u.result.Bytes
	n, err := io.Copy(f, io.LimitReader(reader{u.ctx, r}, left+1))
	u.result.Bytes += n
	switch {
	case err != nil && u.ctx.Err() != nil:
		err = fault.Invalidf("upload: it broke off").WithCause(err)
	case err != nil && !errors.As(err, new(*fs.PathError)):
		err = fault.Invalidf("upload: the data of %q is broken", shown).WithCause(err)
	case err == nil && n > left:
		err = fault.Exhaustedf("upload: more than %d bytes", u.tree.MaxBytes).WithNext("use a folder for data of this size")
	case err == nil:
		err = f.Chmod(mode | 0o600)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = u.root.Rename(tmp, rel)
	}
	if err != nil {
		_ = u.root.Remove(tmp) // the first error is the one to tell
		return explain(err, "write", shown)
	}
	u.names = append(u.names, rel)
	return nil
}

// reader stops reading when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Download writes a tar stream of the paths; begin is called when everything asked for was
// found, before the first byte. An error after that means a broken stream.
func (t Tree) Download(ctx context.Context, paths []string, begin func() io.Writer) error {
	if len(paths) == 0 {
		return fault.Invalidf("download: no path was given")
	}
	return t.as(func(root *os.Root) error {
		var rels []string
		for _, p := range paths {
			rel, err := t.Clean(p)
			if err != nil {
				return err
			}
			f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				return explain(err, "download", p)
			}
			f.Close()
			rels = append(rels, rel)
		}
		tw := tar.NewWriter(begin())
		for _, rel := range rels {
			if err := t.pack(ctx, root, rel, tw); err != nil {
				return err
			}
		}
		return tw.Close()
	})
}

func (t Tree) pack(ctx context.Context, root *os.Root, top string, tw *tar.Writer) error {
	under := path.Base(top)
	if top == "." {
		under = path.Base(t.Home)
	}
	if fi, err := root.Lstat(top); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		// What was asked for by name is followed; os.Root keeps it inside.
		if fi, err = root.Stat(top); err == nil && fi.Mode().IsRegular() {
			return t.packOne(root, top, under, fi, tw)
		}
	}
	return fs.WalkDir(root.FS(), top, func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if p == top {
				return err
			}
			return nil // unreadable or gone: the rest is still worth having
		}
		fi, err := d.Info()
		if err != nil {
			return nil
		}
		name := under
		if p != top {
			name = path.Join(under, strings.TrimPrefix(strings.TrimPrefix(p, top), "/"))
			if top == "." {
				name = path.Join(under, p)
			}
		}
		return t.packOne(root, p, name, fi, tw)
	})
}

func (t Tree) packOne(root *os.Root, p, name string, fi fs.FileInfo, tw *tar.Writer) error {
	link := ""
	switch {
	case fi.IsDir(), fi.Mode().IsRegular():
	case fi.Mode()&fs.ModeSymlink != 0:
		var err error
		if link, err = root.Readlink(p); err != nil {
			return nil // gone
		}
	default:
		return nil // sockets, pipes and devices have no content
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return err
	}
	h.Name = name
	if fi.IsDir() {
		h.Name += "/"
	}
	h.Uname, h.Gname = "", ""
	if !fi.Mode().IsRegular() {
		return tw.WriteHeader(h)
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil // unreadable or gone
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil || !now.Mode().IsRegular() {
		return nil
	}
	h.Size = now.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(tw, f, h.Size)
	if err == io.EOF { // it shrank while being read; the header promised its old size
		_, err = io.CopyN(tw, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
