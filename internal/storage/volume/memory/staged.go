package memory

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// upload is an unfinished file; the disk's mu guards it.
type upload struct {
	key    string // in its scope
	node   *inode
	meta   []byte
	synced int64
	writer *staged              // who holds the lock
	open   map[*staged]struct{} // handles
	gone   bool                 // committed, discarded or expired
}

// staged implements volume.Staged. A handle is of one proxy.
type staged struct {
	v     *Volume
	ref   cluster.FolderRef
	id    string
	scope *scope
	up    *upload
}

const maxMeta = 64 << 10

// Stage implements volume.Volume.
func (v *Volume) Stage(ctx context.Context, f cluster.FolderRef, id string, create bool) (volume.Staged, error) {
	if err := volume.CheckID(id); err != nil {
		return nil, err
	}
	s := &staged{v: v, ref: f, id: id}
	if err := v.ready(ctx, "open", s.what()); err != nil {
		return nil, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	s.scope = v.scopes[f.Scope.Dir()]
	if s.scope == nil || create && s.scope.folders[f.Folder] == nil {
		return nil, missing("begin", s.what())
	}
	key := f.Folder.Hex() + "." + id
	s.up = s.scope.uploads[key]
	if s.up == nil {
		if !create {
			return nil, missing("open", s.what())
		}
		s.up = &upload{key: key, node: v.newFile(0o644), open: map[*staged]struct{}{}}
		s.scope.uploads[key] = s.up
	}
	s.up.open[s] = struct{}{}
	return s, nil
}

func (s *staged) what() string { return fmt.Sprintf("upload %s of %s", s.id, folderName(s.ref)) }

// on lets faults happen and calls fn with the disk locked.
func (s *staged) on(ctx context.Context, op string, fn func() error) error {
	if err := s.v.ready(ctx, op, s.what()); err != nil {
		return err
	}
	s.v.disk.mu.Lock()
	defer s.v.disk.mu.Unlock()
	if _, open := s.up.open[s]; !open {
		return fault.Unavailablef("cannot %s %s: it is closed", op, s.what())
	}
	return fn()
}

func (s *staged) finished() error {
	return fault.NotFoundf("%s was completed or removed meanwhile", s.what())
}

func (s *staged) Lock(ctx context.Context) (unlock func(), err error) {
	for {
		var wait <-chan struct{}
		// The context ends waiting for the lock, not the try.
		err := s.on(ctx, "lock", func() error {
			switch {
			case s.up.gone:
				return s.finished()
			case s.up.writer != nil:
				wait = s.v.changed
			default:
				s.up.writer = s
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if wait == nil {
			var once sync.Once
			return func() {
				once.Do(func() {
					s.v.disk.mu.Lock()
					defer s.v.disk.mu.Unlock()
					if s.up.writer == s {
						s.up.writer = nil
						s.v.wake()
					}
				})
			}, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fault.Conflictf("%s is being written by another request", s.what()).WithReason("upload-locked").
				WithNext("wait until it ends and ask for the offset again")
		}
	}
}

func (s *staged) Size() (size int64, err error) {
	err = s.on(context.Background(), "look at", func() error { size = s.up.node.size(); return nil })
	return size, err
}

func (s *staged) Meta() (meta []byte, err error) {
	err = s.on(context.Background(), "read", func() error { meta = slices.Clone(s.up.meta); return nil })
	return meta, err
}

func (s *staged) SetMeta(meta []byte) error {
	if len(meta) > maxMeta {
		return fault.Invalidf("the description of %s is larger than %d bytes", s.what(), maxMeta)
	}
	return s.on(context.Background(), "describe", func() error { s.up.meta = slices.Clone(meta); return nil })
}

// Append is stricter than file systems can be: it takes the lock's holder only.
func (s *staged) Append(ctx context.Context, offset int64, r io.Reader, n int64) (written int64, err error) {
	may := func() error {
		switch {
		case s.up.gone:
			return s.finished()
		case s.up.writer != s:
			return fault.New(fault.Internal, "%s is written without its lock", s.what())
		}
		return nil
	}
	err = s.on(ctx, "append", func() error {
		size := s.up.node.size()
		if err := may(); err != nil {
			return err
		}
		switch {
		case offset < 0 || offset > size || n < 0:
			return fault.Conflictf("%s has %d bytes; it cannot go on at %d", s.what(), size, offset).
				WithReason("offset-mismatch").WithNext("ask for the offset and go on there")
		}
		s.v.cut(s.scope, s.up.node, offset)
		s.up.synced = min(s.up.synced, offset)
		return nil
	})
	if err != nil {
		return 0, err
	}
	written, err = s.v.fill(ctx, s.ref.Scope, s.scope, s.up.node, r, n, may)
	return written, err
}

func (s *staged) Sync() error {
	return s.on(context.Background(), "sync", func() error { s.up.synced = s.up.node.size(); return nil })
}

func (s *staged) Open() (f volume.File, err error) {
	err = s.on(context.Background(), "read", func() error {
		if s.up.gone {
			return s.finished()
		}
		f = &file{v: s.v, node: s.up.node, Reader: bytes.NewReader(s.up.node.data), name: s.id}
		return nil
	})
	return f, err
}

func (s *staged) Commit(p string) error {
	p, err := volume.CleanPath(p)
	if err != nil {
		return err
	}
	return s.on(context.Background(), "commit", func() error {
		if s.up.gone {
			return s.finished()
		}
		top := s.scope.folders[s.ref.Folder]
		if top == nil {
			return missing("open", folderName(s.ref))
		}
		// Unlike reading, a write never goes through a link.
		if err := s.v.place(s.scope, top, p, s.up.node, lookup{noLinks: true}); err != nil {
			return err
		}
		s.up.gone = true
		delete(s.scope.uploads, s.up.key)
		s.v.wake()
		return nil
	})
}

func (s *staged) Discard() error {
	return s.on(context.Background(), "discard", func() error {
		if !s.up.gone {
			s.v.drop(s.scope, s.up)
		}
		return nil
	})
}

// drop removes an upload; mu is held.
func (d *disk) drop(sc *scope, u *upload) {
	d.cut(sc, u.node, 0)
	u.gone = true
	delete(sc.uploads, u.key)
	d.wake()
}

func (s *staged) Close() error {
	s.v.disk.mu.Lock()
	defer s.v.disk.mu.Unlock()
	s.release()
	s.v.wake()
	return nil
}

// release ends the handle and its lock; mu is held.
func (s *staged) release() {
	delete(s.up.open, s)
	if s.up.writer == s {
		s.up.writer = nil
	}
}

// ExpireStaged implements volume.Volume.
func (v *Volume) ExpireStaged(ctx context.Context, before time.Time) (removed int, err error) {
	if err := v.ready(ctx, "expire", "uploads"); err != nil {
		return 0, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	for _, sc := range v.scopes {
		for _, u := range sc.uploads {
			if len(u.open) == 0 && u.node.modified.Before(before) {
				v.drop(sc, u)
				removed++
			}
		}
	}
	return removed, nil
}
