package posix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// scopeFile is .berth/scope.json. The limit is the last one that was set; where the file system has quotas of
// its own, those say what holds.
type scopeFile struct {
	Kind       cluster.ScopeKind `json:"kind"`
	LimitBytes int64             `json:"limit_bytes"`
}

const maxDoc = 1 << 20

// SetScope implements volume.Volume.
func (v *vol) SetScope(ctx context.Context, s cluster.QuotaScope, limit int64) error {
	return v.setScope(ctx, s, max(limit, volume.NoLimit), false)
}

// setScope makes the scope and sets its limit, with onlyNew where it was not made before.
func (v *vol) setScope(ctx context.Context, s cluster.QuotaScope, limit int64, onlyNew bool) error {
	what := "quota scope " + s.String()
	for tries := 1; ; tries++ {
		err := v.makeScope(s)
		if err == nil {
			err = v.limitScope(ctx, s, limit, onlyNew)
		}
		if errors.Is(err, unix.ENOENT) && ctx.Err() == nil && tries < maxTries {
			continue // another proxy removed the empty scope just now
		}
		return explain(err, "set", what)
	}
}

// makeScope makes the scope's directories.
func (v *vol) makeScope(s cluster.QuotaScope) error {
	if _, err := v.root.makeDir(s.Dir(), 0o755, v.owner); err != nil {
		return err
	}
	d, err := v.root.dir(s.Dir(), noLinks)
	if err != nil {
		return err
	}
	defer d.Close()
	for _, p := range []string{trashDir, uploadsDir, clonesDir} {
		if err := v.makePrivate(d, p); err != nil {
			return err
		}
	}
	return v.root.sync()
}

func (v *vol) limitScope(ctx context.Context, s cluster.QuotaScope, limit int64, onlyNew bool) (err error) {
	lock, err := v.lockScope(ctx, s, true)
	if err != nil {
		return err
	}
	defer lock.Close()
	d, err := v.root.readable(s.Dir(), noLinks)
	if err != nil {
		return err
	}
	defer d.Close()
	in, err := d.dir(private, noLinks)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = in.stat(scopeFileName)
	made := err == nil
	if made && onlyNew {
		return nil
	}
	switch q := v.opt.Quota; {
	case q == nil:
	case made:
		// What is full has no room for another record, which only accounting needs.
		if err := q.Limit(ctx, s, d.f, limit); err != nil || !v.opt.counts() {
			return err
		}
	default:
		// The record lies inside the scope, so a limit comes after it.
		if err := q.Limit(ctx, s, d.f, volume.NoLimit); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = q.Limit(ctx, s, d.f, limit)
			}
		}()
	}
	doc, err := json.Marshal(scopeFile{Kind: s.Kind, LimitBytes: limit})
	if err != nil {
		return err
	}
	if err := in.put(scopeFileName, doc, v.owner); err != nil {
		return err
	}
	v.mu.Lock()
	m := v.meters[s.Dir()]
	v.mu.Unlock()
	if m != nil {
		m.setLimit(limit)
	}
	return nil
}

// put writes a small document by rename and makes it durable.
func (d *directory) put(name string, doc []byte, o owner) error {
	tmp := "." + name + "." + unique()
	f, err := d.open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, noLinks)
	if err != nil {
		return err
	}
	_, err = f.Write(doc)
	if err == nil {
		err = o.give(f, 0o600)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = d.rename(tmp, d, name)
	}
	if err != nil {
		_ = d.unlink(tmp)
		return err
	}
	return d.sync()
}

// get reads a small document.
func (d *directory) get(p string) ([]byte, error) {
	f, err := d.open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0, noLinks)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxDoc+1))
	if err == nil && len(doc) > maxDoc {
		err = fmt.Errorf("%s is larger than %d bytes", path.Base(p), maxDoc)
	}
	return doc, err
}

// readScope is NotFound where nobody made the scope.
func (v *vol) readScope(s cluster.QuotaScope) (scopeFile, error) {
	doc, err := v.root.get(path.Join(s.Dir(), private, scopeFileName))
	if err != nil {
		return scopeFile{}, explain(err, "read", "quota scope "+s.String())
	}
	file := scopeFile{LimitBytes: volume.NoLimit}
	if err := json.Unmarshal(doc, &file); err != nil {
		return file, fault.New(fault.Internal, "the record of quota scope %s is damaged", s).
			WithNext("set the quota again").WithCause(err)
	}
	return file, nil
}

// Scope implements volume.Volume.
func (v *vol) Scope(ctx context.Context, s cluster.QuotaScope) (volume.ScopeUsage, error) {
	if v.opt.Quota != nil {
		if _, err := v.readScope(s); err != nil {
			return volume.ScopeUsage{}, err
		}
		return v.readQuota(ctx, s)
	}
	m, err := v.meterOf(s)
	if err != nil {
		return volume.ScopeUsage{}, err
	}
	used, complete := v.usage(ctx, s, m)
	m.mu.Lock()
	defer m.mu.Unlock()
	return volume.ScopeUsage{LimitBytes: m.limit, UsedBytes: used, Complete: complete}, nil
}

func (v *vol) readQuota(ctx context.Context, s cluster.QuotaScope) (volume.ScopeUsage, error) {
	what := "quota scope " + s.String()
	d, err := v.root.readable(s.Dir(), noLinks)
	if err != nil {
		return volume.ScopeUsage{}, explain(err, "read", what)
	}
	defer d.Close()
	u, err := v.opt.Quota.Read(ctx, s, d.f)
	return u, explain(err, "read", what)
}

// Charge implements volume.Volume.
func (v *vol) Charge(ctx context.Context, s cluster.QuotaScope, bytes int64) error {
	bytes = max(bytes, 0)
	limit, ok, err := v.fits(ctx, s, bytes)
	switch {
	case fault.Is(err, fault.NotFound): // it will be made without a limit
	case err != nil:
		return err
	case !ok:
		return over(s, limit)
	}
	space, err := v.Space(ctx)
	if err != nil {
		return err
	}
	if bytes > space.FreeBytes {
		return fault.Exhaustedf("%s has %d bytes left and %d are needed", v.what(), space.FreeBytes, bytes).
			WithReason("volume-full").WithNext("delete files, or ask the administrator for more storage")
	}
	return nil
}

// fits tells whether bytes more stay below the scope's limit.
func (v *vol) fits(ctx context.Context, s cluster.QuotaScope, bytes int64) (limit int64, ok bool, err error) {
	if v.opt.Quota != nil {
		u, err := v.Scope(ctx, s)
		return u.LimitBytes, u.LimitBytes == volume.NoLimit || bytes <= u.LimitBytes-u.UsedBytes, err
	}
	m, err := v.meterOf(s)
	if err != nil {
		return 0, false, err
	}
	if m.limited() { // else nobody waits for a count
		v.usage(ctx, s, m)
	}
	limit, ok = m.fits(bytes)
	return limit, ok, nil
}

// lockScope keeps folders from being made while their scope goes. It makes nothing.
func (v *vol) lockScope(ctx context.Context, s cluster.QuotaScope, exclusive bool) (*os.File, error) {
	in, err := v.root.dir(path.Join(s.Dir(), private), noLinks)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	f, ok, err := in.lockFile(ctx, scopeLock, exclusive)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.Conflictf("quota scope %s is busy", s).WithNext("try again")
	}
	// The scope may have gone, with its lock file, while we waited; the name has to lead to the same file.
	again, err := v.root.dir(path.Join(s.Dir(), private), noLinks)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer again.Close()
	if !again.holds(scopeLock, f) {
		f.Close()
		return nil, unix.ENOENT
	}
	return f, nil
}

// DeleteScope implements volume.Volume. A missing scope is already deleted.
func (v *vol) DeleteScope(ctx context.Context, s cluster.QuotaScope) error {
	what := "quota scope " + s.String()
	lock, err := v.lockScope(ctx, s, true)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return explain(err, "delete", what)
	}
	defer lock.Close()
	d, err := v.root.readable(s.Dir(), noLinks)
	if err != nil {
		return explain(err, "delete", what)
	}
	defer d.Close()
	holds, err := holdsFolders(d, 2)
	if err != nil {
		return explain(err, "delete", what)
	}
	if holds {
		return fault.Conflictf("quota scope %s holds folders", s).WithNext("delete its folders first")
	}
	if v.opt.Quota != nil {
		if err := v.opt.Quota.Release(ctx, s, d.f); err != nil {
			return explain(err, "delete", what)
		}
	}
	trash, err := v.root.dir(trashDir, noLinks)
	if err != nil {
		return explain(err, "delete", what)
	}
	defer trash.Close()
	if err := v.root.rename(s.Dir(), trash, unique()); err != nil {
		return explain(err, "delete", what)
	}
	v.mu.Lock()
	delete(v.meters, s.Dir())
	v.mu.Unlock()
	return nil
}

// holdsFolders looks for a folder depth levels below d.
func holdsFolders(d *directory, depth int) (bool, error) {
	names, err := d.names()
	if errors.Is(err, unix.ENOENT) {
		return false, nil // an empty parent that was removed just now
	}
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if name == private && depth == 2 {
			continue
		}
		if depth == 0 {
			return true, nil
		}
		sub, err := d.readable(name, noLinks)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return true, nil // something that we did not put there
		}
		found, err := holdsFolders(sub, depth-1)
		sub.Close()
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// names reads a directory of the proxy's own, which is never large.
func (d *directory) names() (names []string, err error) {
	err = d.each(func(name string) error {
		names = append(names, name)
		return nil
	})
	return names, err
}

// each calls fn with every name in d, which fn may remove, and ends with fn's first error.
func (d *directory) each(fn func(name string) error) error {
	r := newDirentReader(d, make([]byte, direntBytes))
	if err := r.seek(0); err != nil {
		return err
	}
	for {
		e, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(e.name); err != nil {
			return err
		}
	}
}
