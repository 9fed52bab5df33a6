package s3

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

const (
	// modifiedKey is the metadata by which an object is known to be this version of the file.
	modifiedKey = "Berth-Modified"
	// uploadPart is the least size of a part of a multipart upload, maxParts how many an object may have,
	// uploadThreads how many of one object go at once.
	uploadPart    = 16 << 20
	maxParts      = 10_000
	uploadThreads = 2
	// uploadPatience is how long a store may take nothing, also while it puts the parts of a large object together.
	uploadPatience = 10 * time.Minute
)

// Export copies a file, or all files below a directory, to keys below the prefix. Objects that hold this version of
// their file already are skipped, so a repeated export goes on. Links and special files are left out.
func (b *Bucket) Export(ctx context.Context, t Transfer, r Resume) (Count, error) {
	l := newLedger(r, t.Tell)
	// What an earlier run left open would be paid for and never be seen. Only keys that this task began are ours.
	for _, key := range r.Open {
		if err := b.core.RemoveIncompleteUpload(ctx, b.name, key); err != nil && minio.ToErrorResponse(err).StatusCode != 404 {
			return l.count(), b.failed(ctx, "end an upload that was cut", err)
		}
	}
	// Counted anew, because every file is looked at again.
	l.resume, l.now = Resume{Done: map[string]string{}}, 0
	tree, err := t.Volume.OpenFolder(ctx, t.Folder)
	if err != nil {
		return l.count(), err
	}
	err = b.export(ctx, t, l, tree)
	return l.count(), errors.Join(err, tree.Close())
}

func (b *Bucket) export(ctx context.Context, t Transfer, l *ledger, tree volume.Tree) error {
	e, err := tree.Stat(t.Path)
	if err != nil {
		return err
	}
	if e.Kind == volume.KindFile {
		key := t.Prefix
		if key == "" || strings.HasSuffix(key, "/") {
			key += path.Base(t.Path)
		}
		if key, ok := keyFor("", key); ok {
			l.expect(e.Size)
			return b.upload(ctx, l, tree, t.Path, e, key)
		}
		return fault.Invalidf("%q cannot be a key of an object", fault.Clip(key, maxEcho))
	}
	if e.Kind != volume.KindDirectory {
		return fault.Invalidf("%q is neither a file nor a directory", fault.Clip(t.Path, maxEcho)).
			WithNext("name a file or a directory of the folder")
	}
	n, total := 0, int64(0)
	errEnough := errors.New("counted enough")
	err = tree.Walk(ctx, t.Path, func(_ string, e volume.Entry) error {
		if e.Kind == volume.KindFile {
			total += e.Size
		}
		if n++; n > countUpTo {
			return errEnough
		}
		if n%1000 == 0 {
			l.alive()
		}
		return nil
	})
	if err == nil {
		l.expect(total)
	} else if !errors.Is(err, errEnough) {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	err = tree.Walk(gctx, t.Path, func(name string, e volume.Entry) error {
		if gctx.Err() != nil {
			return context.Cause(gctx)
		}
		if e.Kind == volume.KindDirectory {
			l.alive()
			return nil
		}
		rel := name
		if t.Path != "." {
			rel = strings.TrimPrefix(name, t.Path+"/")
		}
		key, ok := keyFor(t.Prefix, rel)
		if e.Kind != volume.KindFile || !ok {
			l.close(key, l.refuse(name))
			return nil
		}
		g.Go(func() error { return b.upload(gctx, l, tree, name, e, key) })
		return nil
	})
	if werr := g.Wait(); werr != nil {
		return werr
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// stall ends an upload of which nothing moves.
type stall struct {
	l     *ledger
	timer *time.Timer
	sum   atomic.Int64
}

// Read is called with the bytes that went out.
func (s *stall) Read(p []byte) (int, error) {
	s.timer.Reset(uploadPatience)
	s.sum.Add(int64(len(p)))
	s.l.moved(int64(len(p)))
	return len(p), nil
}

// partFor is the size of parts with which a file of that size fits into one object.
func partFor(size int64) uint64 {
	const most = maxParts * uploadPart // in parts of the least size
	return uint64((max(size, 1)-1)/most+1) * uploadPart
}

func (b *Bucket) upload(ctx context.Context, l *ledger, tree volume.Tree, name string, e volume.Entry, key string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("export %q: %w", fault.Clip(name, maxEcho), err)
		}
	}()
	version := func() string { return e.Modified.UTC().Format(time.RFC3339Nano) }
	there, err := b.core.StatObject(ctx, b.name, key, minio.StatObjectOptions{})
	switch {
	case err == nil && there.Size == e.Size && there.UserMetadata[modifiedKey] == version():
		l.moved(e.Size)
		l.close(key, func(c *Count) { c.Skipped++ })
		return nil
	case err != nil && minio.ToErrorResponse(err).StatusCode != 404:
		return b.failed(ctx, "look at the object", err)
	}
	f, err := tree.Open(name)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil // deleted meanwhile
	case fault.Is(err, fault.Invalid):
		l.close(key, l.refuse(name)) // replaced by something that is no file
		return nil
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// It may have been written since it was listed.
	now, err := f.Stat()
	if err != nil {
		return err
	}
	e.Size, e.Modified = now.Size(), now.ModTime()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := &stall{l: l, timer: time.AfterFunc(uploadPatience, func() {
		cancel(away("the object store took nothing for %s", uploadPatience))
	})}
	defer watch.timer.Stop()
	if e.Size > uploadPart {
		l.open(key)
	}
	_, err = b.core.Client.PutObject(ctx, b.name, key, f, e.Size, minio.PutObjectOptions{
		UserMetadata: map[string]string{modifiedKey: version()}, ContentType: "application/octet-stream",
		PartSize: partFor(e.Size), NumThreads: uploadThreads, Progress: watch,
	})
	l.moved(-watch.sum.Load())
	if err != nil {
		if now, serr := f.Stat(); serr == nil && now.Size() < e.Size && ctx.Err() == nil {
			l.close(key, l.refuse(name)) // somebody makes it shorter while we read; that is not the store's fault
			return nil
		}
		return b.failed(ctx, "write the object", err)
	}
	l.moved(e.Size)
	l.close(key, func(c *Count) { c.Objects++; c.Bytes += e.Size })
	return nil
}
