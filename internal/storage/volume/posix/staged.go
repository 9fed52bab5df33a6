package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// An upload is <folder>.<id> in the scope's uploads, with <folder>.<id>.meta beside it; ids hold no dots.
// Files that WriteFile is at are tmpPrefix and a unique name.
const (
	metaSuffix = ".meta"
	tmpPrefix  = "w."
	maxMeta    = 64 << 10
	ioBytes    = 1 << 20
)

var buffers = sync.Pool{New: func() any { b := make([]byte, ioBytes); return &b }}

// staged implements volume.Staged.
type staged struct {
	v       *vol
	ref     cluster.FolderRef
	name    string
	id      string
	f       *os.File
	uploads *directory
	writer  chan struct{} // holds one; the kernel does not lock an open file against itself
}

// Stage implements volume.Volume.
func (v *vol) Stage(_ context.Context, f cluster.FolderRef, id string, create bool) (volume.Staged, error) {
	if err := volume.CheckID(id); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("upload %s of %s", id, v.folder(f))
	if create {
		d, err := v.root.dir(f.Dir(), noLinks)
		if err != nil {
			return nil, explain(err, "begin", what)
		}
		d.Close()
	}
	uploads, err := v.root.dir(path.Join(f.Scope.Dir(), uploadsDir), noLinks)
	if err != nil {
		return nil, explain(err, "open", what)
	}
	s := &staged{v: v, ref: f, name: f.Folder.Hex() + "." + id, id: id, uploads: uploads, writer: make(chan struct{}, 1)}
	s.writer <- struct{}{}
	if err := s.open(create); err != nil {
		uploads.Close()
		return nil, explain(err, "open", what)
	}
	return s, nil
}

// open opens the file and says so to those who clean up.
func (s *staged) open(create bool) error {
	flags := unix.O_RDWR | unix.O_NOFOLLOW
	if create {
		flags |= unix.O_CREAT
	}
	for {
		f, err := s.uploads.open(s.name, flags, 0o600, noLinks)
		if err != nil {
			return err
		}
		// Whoever removes old uploads holds this for a moment only.
		ctx, cancel := context.WithTimeout(s.v.life, 10*time.Second)
		ok, err := waitLock(ctx, f, openRange, 1, false)
		cancel()
		if err == nil && !ok {
			err = unix.EAGAIN
		}
		if err == nil && s.uploads.holds(s.name, f) {
			if create {
				err = s.v.owner.give(f, 0o644)
			}
			if err == nil {
				s.f = f
				return nil
			}
		}
		f.Close()
		if err != nil {
			return err
		}
	}
}

func (s *staged) what() string { return fmt.Sprintf("upload %s of %s", s.id, s.v.folder(s.ref)) }

func (s *staged) Lock(ctx context.Context) (func(), error) {
	busy := fault.Conflictf("%s is being written by another request", s.what()).WithReason("upload-locked").
		WithNext("wait until it ends and ask for the offset again")
	select {
	case <-s.writer:
	default:
		select {
		case <-s.writer:
		case <-ctx.Done():
			return nil, busy
		}
	}
	ok, err := waitLock(ctx, s.f, writerRange, 1, true)
	if err == nil && ok && !s.uploads.holds(s.name, s.f) {
		unlock(s.f, writerRange, 1)
		err = fault.NotFoundf("%s was completed or removed meanwhile", s.what())
	}
	if err != nil || !ok {
		s.writer <- struct{}{}
		if err == nil {
			return nil, busy
		}
		return nil, explain(err, "lock", s.what())
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			unlock(s.f, writerRange, 1)
			s.writer <- struct{}{}
		})
	}, nil
}

func (s *staged) Size() (int64, error) {
	fi, err := s.f.Stat()
	if err != nil {
		return 0, explain(err, "look at", s.what())
	}
	return fi.Size(), nil
}

// Meta is empty where nothing was stored.
func (s *staged) Meta() ([]byte, error) {
	doc, err := s.uploads.get(s.name + metaSuffix)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return doc, explain(err, "read", s.what())
}

func (s *staged) SetMeta(meta []byte) error {
	if len(meta) > maxMeta {
		return fault.Invalidf("the description of %s is larger than %d bytes", s.what(), maxMeta)
	}
	return explain(s.uploads.put(s.name+metaSuffix, meta, s.v.owner), "describe", s.what())
}

func (s *staged) Append(ctx context.Context, offset int64, r io.Reader, n int64) (int64, error) {
	size, err := s.Size()
	if err != nil {
		return 0, err
	}
	if offset < 0 || offset > size || n < 0 {
		return 0, fault.Conflictf("%s has %d bytes; it cannot go on at %d", s.what(), size, offset).
			WithReason("offset-mismatch").WithNext("ask for the offset and go on there")
	}
	if offset < size {
		if err := s.f.Truncate(offset); err != nil {
			return 0, explain(err, "cut", s.what())
		}
		s.v.freed(s.ref.Scope, size-offset)
	}
	written, err := s.v.fill(ctx, s.ref.Scope, s.f, offset, r, n)
	return written, explain(err, "write", s.what())
}

// sourceError is an error of the reader, which is the caller's business.
type sourceError struct{ err error }

func (e sourceError) Error() string { return "read what is to be written: " + e.err.Error() }
func (e sourceError) Unwrap() error { return e.err }

// fill copies at most n bytes (all when negative) from r to f at offset, within the quota of s.
func (v *vol) fill(ctx context.Context, s cluster.QuotaScope, f *os.File, offset int64, r io.Reader, n int64) (written int64, err error) {
	var m *meter
	if v.opt.counts() {
		if m, err = v.meterOf(s); err != nil {
			return 0, err
		}
		if m.limited() { // else nobody waits for a count
			v.usage(ctx, s, m)
		}
	}
	var have int64 // reserved and not used
	var room int64 // of the disk, before it is asked again
	defer func() {
		if m != nil {
			m.add(-have)
		}
	}()
	bp := buffers.Get().(*[]byte)
	defer buffers.Put(bp)
	buf := *bp
	for n < 0 || written < n {
		if err := ctx.Err(); err != nil {
			return written, sourceError{err}
		}
		part := buf
		if n >= 0 {
			part = buf[:min(int64(len(buf)), n-written)]
		}
		got, rerr := readFull(r, part)
		if m != nil && have < int64(got) {
			want := int64(got) - have
			if n >= 0 {
				want = max(want, min(reserve, n-written-have))
			}
			have += m.take(want)
		}
		put := got
		var werr error
		if m != nil && have < int64(got) {
			put = int(have)
			m.mu.Lock()
			werr = over(s, m.limit)
			m.mu.Unlock()
		}
		if put > 0 && room < int64(put) {
			var err error
			if room, err = v.room(); err != nil {
				return written, err
			}
		}
		if put > 0 {
			k, err := writeAt(f, part[:put], offset+written)
			written += int64(k)
			room -= int64(k)
			if m != nil {
				have -= int64(k)
			}
			if err != nil {
				werr = err
			}
		}
		switch {
		case werr != nil:
			return written, v.fullOf(ctx, s, werr)
		case errors.Is(rerr, io.EOF):
			return written, nil
		case rerr != nil:
			return written, sourceError{rerr}
		}
	}
	return written, nil
}

// readFull fills p as far as r goes. Unlike io.ReadFull it tells the end of r from an r that was cut short.
func readFull(r io.Reader, p []byte) (n int, err error) {
	for empty := 0; n < len(p); {
		k, err := r.Read(p[n:])
		n += k
		if err != nil {
			return n, err
		}
		if k > 0 {
			empty = 0
		} else if empty++; empty > 100 {
			return n, io.ErrNoProgress
		}
	}
	return n, nil
}

// writeAt is f.WriteAt that says how much was written also where a disk or quota ends in the middle.
func writeAt(f *os.File, p []byte, offset int64) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	e := conn.Control(func(fd uintptr) {
		for n < len(p) {
			var k int
			k, err = unix.Pwrite(int(fd), p[n:], offset+int64(n))
			n += max(k, 0)
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if err == nil && k == 0 {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return
			}
		}
	})
	if e != nil {
		err = os.ErrClosed
	}
	return n, err
}

// fullOf says which limit a writer hit: file systems answer a project's quota and a full disk alike.
func (v *vol) fullOf(ctx context.Context, s cluster.QuotaScope, err error) error {
	if v.opt.Quota == nil || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	u, e := v.readQuota(ctx, s)
	if e == nil && u.LimitBytes != volume.NoLimit && u.LimitBytes-u.UsedBytes < 4*ioBytes {
		return over(s, u.LimitBytes).WithCause(err)
	}
	return err
}

func (s *staged) Sync() error {
	conn, err := s.f.SyscallConn()
	if err != nil {
		return explain(err, "sync", s.what())
	}
	if e := conn.Control(func(fd uintptr) { err = unix.Fdatasync(int(fd)) }); e != nil {
		err = e
	}
	return explain(err, "sync", s.what())
}

func (s *staged) Open() (volume.File, error) {
	f, err := s.uploads.regular(s.name)
	if err != nil {
		return nil, explain(err, "read", s.what())
	}
	return f, nil
}

func (s *staged) Commit(p string) error {
	p, err := volume.CleanPath(p)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%q of %s", p, s.v.folder(s.ref))
	if p == "." {
		return explain(unix.EISDIR, "write", what)
	}
	if err := s.Sync(); err != nil {
		return err
	}
	root, err := s.v.root.dir(s.ref.Dir(), noLinks)
	if err != nil {
		return explain(err, "open", s.v.folder(s.ref))
	}
	defer root.Close()
	// The name may belong to a later upload by now; only the file that was written goes.
	if !s.uploads.holds(s.name, s.f) {
		return fault.NotFoundf("%s was completed or removed meanwhile", s.what())
	}
	// Unlike reading, a write never goes through a link.
	if err := s.v.place(s.ref.Scope, s.uploads, s.name, root, root.existing(p), noLinks); err != nil {
		return explain(err, "write", what)
	}
	_ = s.uploads.unlink(s.name + metaSuffix) // ExpireStaged finds it otherwise
	return nil
}

func (s *staged) Discard() error {
	size, _ := s.Size()
	if !s.uploads.holds(s.name, s.f) {
		return nil
	}
	if err := s.uploads.unlink(s.name); err != nil && !errors.Is(err, unix.ENOENT) {
		return explain(err, "discard", s.what())
	}
	_ = s.f.Truncate(0) // the bytes go now, not when the last one closes it
	s.v.freed(s.ref.Scope, size)
	_ = s.uploads.unlink(s.name + metaSuffix)
	return nil
}

func (s *staged) Close() error {
	err := s.f.Close()
	if e := s.uploads.Close(); err == nil {
		err = e
	}
	return err
}

// ExpireStaged implements volume.Volume.
func (v *vol) ExpireStaged(ctx context.Context, before time.Time) (removed int, err error) {
	scopes, err := v.scopes()
	if err != nil {
		return 0, explain(err, "list the uploads of", v.what())
	}
	var failed error // one scope that cannot be cleaned does not stop the others
	for _, s := range scopes {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		v.forgetOldClones(s)
		v.tidy(path.Join(s, private), before)
		v.tidy(path.Join(s, clonesDir), before)
		n, err := v.expireScope(ctx, s, before)
		removed += n
		if err != nil && !errors.Is(err, unix.ENOENT) && failed == nil {
			failed = err
		}
	}
	return removed, explain(failed, "expire the uploads of", v.what())
}

// tidy removes documents in a directory of the proxy's own that were being written when their writer died.
func (v *vol) tidy(p string, before time.Time) {
	d, err := v.root.readable(p, noLinks)
	if err != nil {
		return
	}
	defer d.Close()
	_ = d.each(func(name string) error { // the next round looks again
		if st, err := d.stat(name); strings.HasPrefix(name, ".") && err == nil && !isDir(&st) && timeOf(st.Mtime).Before(before) {
			_ = d.unlink(name)
		}
		return nil
	})
}

// expireScope looks at name after name: whoever uploads a million files leaves a million marks for a day.
func (v *vol) expireScope(ctx context.Context, scope string, before time.Time) (removed int, err error) {
	uploads, err := v.root.readable(path.Join(scope, uploadsDir), noLinks)
	if err != nil {
		return 0, err
	}
	defer uploads.Close()
	var failed error
	err = uploads.each(func(n string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		st, err := uploads.stat(n)
		if err != nil || !timeOf(st.Mtime).Before(before) {
			return nil
		}
		data, isMeta := strings.CutSuffix(n, metaSuffix)
		if isMeta {
			// It goes with its upload, or is left from one.
			if _, err := uploads.stat(data); errors.Is(err, unix.ENOENT) {
				_ = uploads.unlink(n)
			}
			return nil
		}
		gone, err := uploads.expire(n, before)
		if err != nil && failed == nil {
			failed = err
		}
		if gone && !strings.HasPrefix(n, ".") {
			removed++
			_ = uploads.unlink(n + metaSuffix)
			v.mu.Lock()
			m := v.meters[scope]
			v.mu.Unlock()
			if m != nil {
				m.add(-int64(st.Size))
			}
		}
		return nil
	})
	if err == nil {
		err = failed
	}
	return removed, err
}

// expire removes a file that nobody has open and that is still old.
func (d *directory) expire(name string, before time.Time) (gone bool, err error) {
	f, err := d.open(name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0, noLinks)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	ok, err := tryLock(f, writerRange, 2, true)
	if err != nil || !ok {
		return false, err
	}
	st, err := d.stat(name)
	if err != nil || !timeOf(st.Mtime).Before(before) || !d.holds(name, f) {
		return false, nil
	}
	if err := d.unlink(name); err != nil {
		return false, err
	}
	return true, nil
}
