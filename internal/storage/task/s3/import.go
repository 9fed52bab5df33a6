package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

const (
	// workers copy objects at the same time; each holds up to window parts in memory.
	workers  = 6
	partSize = 4 << 20
	window   = 3
	// partPatience bounds one part: less than 35 KB/s is a store that hangs.
	partPatience = 2 * time.Minute
	// syncEvery is how much of a large object is lost at most by a crash.
	syncEvery = 64 << 20
	// countUpTo bounds the listing that only finds out how much there is.
	countUpTo = 100_000
	// maxObjects bounds one import: a listing without an end is no bucket.
	maxObjects = 50_000_000
)

// Import copies the object whose key is the prefix, or all objects below it, into the folder. Called again with what
// it told last it goes on: complete objects are not read again, large ones go on where they were durable.
func (b *Bucket) Import(ctx context.Context, t Transfer, r Resume) (Count, error) {
	l := newLedger(r, t.Tell)
	one, err := b.single(ctx, t.Prefix)
	if err != nil {
		return l.count(), err
	}
	if one != nil {
		return b.importOne(ctx, t, l, *one)
	}
	if err := b.measure(ctx, t, l); err != nil {
		return l.count(), err
	}
	prefix, seen := directory(t.Prefix), 0
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for o := range b.core.ListObjectsIter(gctx, b.name,
		minio.ListObjectsOptions{Prefix: prefix, Recursive: true, StartAfter: l.resume.After}) {
		if o.Err != nil {
			err = b.failed(ctx, "list bucket "+b.name, o.Err)
			break
		}
		if gctx.Err() != nil {
			break
		}
		if seen++; seen > maxObjects {
			err = fault.Exhaustedf("bucket %s has more than %d objects here", b.name, maxObjects).WithNext("import parts of it, by longer prefixes")
			break
		}
		known, berr := l.begin(gctx, o.Key, o.ETag)
		if berr != nil {
			break
		}
		if known {
			continue
		}
		rest, below := strings.CutPrefix(o.Key, prefix)
		to, isDir, ok := target(t.Path, rest)
		switch {
		case below && rest == "": // the directory's own marker
			l.end(o.Key, o.ETag, func(*Count) {})
		case !below || !ok || isDir && o.Size > 0:
			l.end(o.Key, o.ETag, l.refuse(o.Key))
		case isDir:
			switch err = makeDir(ctx, t, to); {
			case err == nil:
				l.end(o.Key, o.ETag, func(*Count) {})
			case fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict):
				// Such as a file of this name: the rest is not worse for it.
				l.end(o.Key, o.ETag, l.refuse(o.Key))
				err = nil
			}
		default:
			g.Go(func() error { return b.download(gctx, t, l, o, to) })
		}
		if err != nil {
			break
		}
	}
	if werr := g.Wait(); werr != nil {
		err = werr // the cause: the listing only saw that it was called off
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && seen == 0 && l.resume.After == "" && t.Prefix != "" {
		err = fault.NotFoundf("bucket %s has no object below %q", b.name, fault.Clip(t.Prefix, maxEcho)).WithNext("check the prefix")
	}
	return l.count(), err
}

// single finds the object whose key is exactly the prefix; nil when there is none.
func (b *Bucket) single(ctx context.Context, key string) (*minio.ObjectInfo, error) {
	if key == "" || strings.HasSuffix(key, "/") {
		return nil, nil
	}
	o, err := b.core.StatObject(ctx, b.name, key, minio.StatObjectOptions{})
	if err == nil {
		return &o, nil
	}
	if minio.ToErrorResponse(err).StatusCode == 404 {
		return nil, nil
	}
	return nil, b.failed(ctx, fmt.Sprintf("look for object %q", fault.Clip(key, maxEcho)), err)
}

// importOne copies one object to the path itself, or into it when it is a directory.
func (b *Bucket) importOne(ctx context.Context, t Transfer, l *ledger, o minio.ObjectInfo) (Count, error) {
	to := t.Path
	tree, err := t.Volume.OpenFolder(ctx, t.Folder)
	if err != nil {
		return l.count(), err
	}
	e, err := tree.Stat(to)
	if cerr := tree.Close(); err == nil {
		err = cerr
	}
	if to == "." || err == nil && e.Kind == volume.KindDirectory {
		var ok bool
		if to, _, ok = target(to, path.Base(o.Key)); !ok {
			return l.count(), fault.Invalidf("the key %q is no file name", fault.Clip(o.Key, maxEcho)).WithNext("name a path for the file")
		}
	} else if err != nil && !fault.Is(err, fault.NotFound) {
		return l.count(), err
	}
	l.expect(o.Size)
	known, err := l.begin(ctx, o.Key, o.ETag)
	if err == nil && !known && l.resume.After != o.Key {
		err = b.download(ctx, t, l, o, to)
	}
	return l.count(), err
}

// measure finds out how many bytes there are, as far as that is cheap.
func (b *Bucket) measure(ctx context.Context, t Transfer, l *ledger) error {
	n, total := 0, int64(0)
	for o := range b.core.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: directory(t.Prefix), Recursive: true}) {
		if o.Err != nil {
			return b.failed(ctx, "list bucket "+b.name, o.Err)
		}
		if n++; n > countUpTo {
			return nil
		}
		if n%1000 == 0 {
			l.alive()
		}
		total += o.Size
	}
	l.expect(total)
	return nil
}

func makeDir(ctx context.Context, t Transfer, dir string) error {
	tree, err := t.Volume.OpenFolder(ctx, t.Folder)
	if err != nil {
		return err
	}
	return errors.Join(tree.Mkdir(dir, true, true), tree.Close())
}

// download copies one object into a staged file and renames it to its place.
func (b *Bucket) download(ctx context.Context, t Transfer, l *ledger, o minio.ObjectInfo, to string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("import %q: %w", fault.Clip(o.Key, maxEcho), err)
		}
	}()
	if err := t.Volume.Charge(ctx, t.Folder.Scope, o.Size); err != nil {
		return err
	}
	staged, err := t.Volume.Stage(ctx, t.Folder, stageID(t.Task, o.Key, o.ETag), true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, staged.Close()) }()
	unlock, err := staged.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	at, err := staged.Size()
	if err != nil {
		return err
	}
	if at > o.Size {
		at = 0
	}
	l.moved(at)
	if at, err = b.fill(ctx, l, o, staged, at); err != nil {
		l.moved(-at)
		return err
	}
	if err := staged.Sync(); err != nil {
		l.moved(-at)
		return err
	}
	if err := staged.Commit(to); err != nil {
		l.moved(-at)
		if fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict) {
			// Such as a file where this key needs a directory: the rest is not worse for it.
			l.end(o.Key, o.ETag, l.refuse(o.Key))
			return errors.Join(staged.Discard())
		}
		return err
	}
	l.end(o.Key, o.ETag, func(c *Count) { c.Objects++; c.Bytes += o.Size })
	return nil
}

// part is one range that is being read.
type part struct {
	text []byte
	err  error
}

// fill appends the object from at on, reading a few parts ahead. It returns how far the file is.
func (b *Bucket) fill(ctx context.Context, l *ledger, o minio.ObjectInfo, staged volume.Staged, at int64) (int64, error) {
	if o.Size == 0 {
		_, err := staged.Append(ctx, 0, bytes.NewReader(nil), 0)
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the parts that are read ahead
	ahead := make(chan chan part, window)
	go func() {
		defer close(ahead)
		for from := at; from < o.Size; from += partSize {
			n := min(partSize, o.Size-from)
			one := make(chan part, 1)
			select {
			case ahead <- one:
			case <-ctx.Done():
				return
			}
			go func() {
				text, err := b.read(ctx, o, from, n)
				one <- part{text, err}
			}()
		}
	}()
	unsynced := int64(0)
	for one := range ahead {
		var p part
		select {
		case p = <-one:
		case <-ctx.Done():
			return at, context.Cause(ctx)
		}
		if p.err != nil {
			return at, p.err
		}
		n, err := staged.Append(ctx, at, bytes.NewReader(p.text), int64(len(p.text)))
		at += n
		l.moved(n)
		if err != nil {
			return at, err
		}
		if unsynced += n; unsynced >= syncEvery {
			if err := staged.Sync(); err != nil {
				return at, err
			}
			unsynced = 0
		}
	}
	if at != o.Size {
		if ctx.Err() != nil {
			return at, context.Cause(ctx)
		}
		return at, away("only %d of %d bytes came", at, o.Size)
	}
	return at, nil
}

// read gets n bytes of exactly this version of the object.
func (b *Bucket) read(ctx context.Context, o minio.ObjectInfo, from, n int64) ([]byte, error) {
	var last error
	for range maxRetries {
		text, err := b.readOnce(ctx, o, from, n)
		if err == nil {
			return text, nil
		}
		last = b.failed(ctx, "read the object", err)
		if ctx.Err() != nil || !fault.Is(last, fault.Unavailable) {
			break
		}
	}
	return nil, last
}

func (b *Bucket) readOnce(ctx context.Context, o minio.ObjectInfo, from, n int64) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, partPatience,
		fault.New(fault.Timeout, "the object store sent too little in %s", partPatience))
	defer cancel()
	var opts minio.GetObjectOptions
	if err := opts.SetRange(from, from+n-1); err != nil {
		return nil, err
	}
	if o.ETag != "" {
		if err := opts.SetMatchETag(o.ETag); err != nil {
			return nil, err
		}
	}
	body, _, head, err := b.core.GetObject(ctx, b.name, o.Key, opts)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	// A store that knows no ranges sends the whole object, whose beginning is another part.
	if from > 0 && !strings.HasPrefix(head.Get("Content-Range"), fmt.Sprintf("bytes %d-", from)) {
		return nil, fault.Invalidf("the object store does not send parts of objects").WithNext("use a store that serves ranges")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(body, text); err != nil {
		return nil, err
	}
	return text, nil
}
