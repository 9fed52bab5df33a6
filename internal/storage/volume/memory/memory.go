// Package memory is a volume that lies in memory, for tests and for trying out a proxy: the whole contract with
// quotas, trash, uploads, locks between replicas and journals, and faults on demand. Nothing survives the process.
package memory

import (
	"context"
	"encoding/base64"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// Options makes a volume.
type Options struct {
	Name          string
	CapacityBytes int64 // 1 TiB when 0
	UID, GID      int
	Now           func() time.Time // time.Now when nil
	// Before, when not nil, is called without any lock before each operation, "append" to an upload for example,
	// and may wait or fail it. what names the object in words. It holds for all replicas.
	Before func(ctx context.Context, op, what string) error
}

// Volume is one proxy's handle of the volume; see Replica. Safe for concurrent use.
type Volume struct {
	*disk
	dead chan struct{} // closed by Close and Crash
	once sync.Once

	mu     sync.Mutex
	hung   chan struct{} // closed when the volume answers again; nil while it does
	broken error
}

var _ volume.Volume = (*Volume)(nil)

// disk is what replicas share; mu guards everything in it but opt.
type disk struct {
	opt Options

	mu        sync.Mutex
	used      int64
	fullAfter int64 // bytes until the disk is full; negative means by its capacity only
	scopes    map[string]*scope
	trash     []trashed
	clones    map[string]*clone // by dst
	docs      map[string][]byte
	claims    map[string]*claim
	changed   chan struct{} // closed and replaced when a lock ends
}

type scope struct {
	limit   int64
	used    int64
	folders map[cluster.FolderID]*inode
	uploads map[string]*upload
}

type trashed struct {
	scope *scope
	node  *inode
}

// clone is a copy that is not complete, or the memory of one that is.
type clone struct {
	src  string
	done bool
	top  *inode
}

// New makes an empty volume.
func New(o Options) *Volume {
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 40
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return handle(&disk{opt: o, fullAfter: -1, scopes: map[string]*scope{}, clones: map[string]*clone{},
		docs: map[string][]byte{}, claims: map[string]*claim{}, changed: make(chan struct{})})
}

func handle(d *disk) *Volume { return &Volume{disk: d, dead: make(chan struct{})} }

// Replica is the same volume as another proxy sees it: with locks, claims and faults of its own.
func (v *Volume) Replica() *Volume { return handle(v.disk) }

// Hang lets every operation of this handle wait until resume is called; one with a context that ends is
// Unavailable then.
func (v *Volume) Hang() (resume func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	hung := make(chan struct{})
	v.hung = hung
	return sync.OnceFunc(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.hung == hung {
			v.hung = nil
		}
		close(hung)
	})
}

// Break fails every operation of this handle with err until it is mended with nil.
func (v *Volume) Break(err error) {
	v.mu.Lock()
	v.broken = err
	v.mu.Unlock()
}

// FullAfter makes the disk full once that many bytes more are written, for all replicas; negative lifts it.
func (v *Volume) FullAfter(bytes int64) {
	v.disk.mu.Lock()
	v.fullAfter = bytes
	v.disk.mu.Unlock()
}

// Crash ends the proxy of this handle: its locks and claims end, everything it has open is Unavailable. With
// power loss its uploads fall back to what was synced.
func (v *Volume) Crash(powerLoss bool) {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	for _, sc := range v.scopes {
		for _, u := range sc.uploads {
			for s := range u.open {
				if powerLoss && s.v == v {
					v.cut(sc, u.node, u.synced)
				}
			}
		}
	}
	v.end()
}

// Close implements volume.Volume.
func (v *Volume) Close() error {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.end()
	return nil
}

// end releases what this handle holds; the disk's mu is held.
func (v *Volume) end() {
	v.once.Do(func() { close(v.dead) })
	for id, c := range v.claims {
		if c.v == v {
			delete(v.claims, id)
		}
	}
	for _, sc := range v.scopes {
		for _, u := range sc.uploads {
			for s := range u.open {
				if s.v == v {
					s.release()
				}
			}
		}
	}
	v.wake()
}

// wake tells those who wait for locks; mu is held.
func (d *disk) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// ready lets the faults that tests ask for happen before an operation.
func (v *Volume) ready(ctx context.Context, op, what string) error {
	gone := func() error {
		return fault.Unavailablef("cannot %s %s: volume %q is closed", op, what, v.opt.Name)
	}
	for {
		v.mu.Lock()
		hung, broken := v.hung, v.broken
		v.mu.Unlock()
		select {
		case <-v.dead:
			return gone()
		default:
		}
		if hung == nil && broken != nil {
			return broken
		}
		if hung == nil {
			break
		}
		select {
		case <-hung:
		case <-v.dead:
			return gone()
		case <-ctx.Done():
			return fault.Unavailablef("cannot %s %s: volume %q does not answer", op, what, v.opt.Name).
				WithNext("try again; if it lasts, ask the administrator to look at this volume").WithCause(ctx.Err())
		}
	}
	if v.opt.Before != nil {
		return v.opt.Before(ctx, op, what)
	}
	return nil
}

// Info implements volume.Volume.
func (v *Volume) Info() volume.Info {
	return volume.Info{Name: v.opt.Name, Backend: "memory", Path: "/memory/" + v.opt.Name,
		Capabilities: []volume.Capability{volume.CanFastFSSize, volume.CanFastScan, volume.CanFastSize, volume.CanQuota, volume.CanFolder},
		OwnerUID:     v.opt.UID, OwnerGID: v.opt.GID}
}

// Space implements volume.Volume.
func (v *Volume) Space(ctx context.Context) (volume.Space, error) {
	if err := v.ready(ctx, "ask", "the volume"); err != nil {
		return volume.Space{}, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	return volume.Space{CapacityBytes: v.opt.CapacityBytes, UsedBytes: v.used, FreeBytes: v.free()}, nil
}

// free is what can still be written; mu is held.
func (d *disk) free() int64 {
	free := max(d.opt.CapacityBytes-d.used, 0)
	if d.fullAfter >= 0 {
		free = min(free, d.fullAfter)
	}
	return free
}

// take reserves up to n bytes of a scope and says why it got fewer; mu is held.
func (d *disk) take(s cluster.QuotaScope, sc *scope, n int64) (got int64, err error) {
	got = n
	if free := d.free(); got > free {
		got = free
		err = fault.Exhaustedf("volume %q is full", d.opt.Name).WithReason("volume-full").
			WithNext("delete files, or ask the administrator for more storage")
	}
	if sc.limit != volume.NoLimit && got > sc.limit-sc.used {
		got = max(sc.limit-sc.used, 0)
		err = over(s, sc.limit)
	}
	d.used += got
	sc.used += got
	if d.fullAfter >= 0 {
		d.fullAfter -= got
	}
	return got, err
}

// give returns bytes of a scope; mu is held.
func (d *disk) give(sc *scope, n int64) {
	d.used -= n
	sc.used -= n
}

func over(s cluster.QuotaScope, limit int64) error {
	return fault.Exhaustedf("the quota of %s (%d bytes) is used up", s, limit).WithReason("quota-exceeded").
		WithNext("delete files and empty the trash, or ask for a higher quota")
}

// SetScope implements volume.Volume.
func (v *Volume) SetScope(ctx context.Context, s cluster.QuotaScope, limitBytes int64) error {
	if err := v.ready(ctx, "limit", "quota scope "+s.String()); err != nil {
		return err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	v.scope(s).limit = max(limitBytes, volume.NoLimit)
	return nil
}

// scope makes it where it is missing; mu is held.
func (d *disk) scope(s cluster.QuotaScope) *scope {
	sc := d.scopes[s.Dir()]
	if sc == nil {
		sc = &scope{limit: volume.NoLimit, folders: map[cluster.FolderID]*inode{}, uploads: map[string]*upload{}}
		d.scopes[s.Dir()] = sc
	}
	return sc
}

// Scope implements volume.Volume.
func (v *Volume) Scope(ctx context.Context, s cluster.QuotaScope) (volume.ScopeUsage, error) {
	if err := v.ready(ctx, "read", "quota scope "+s.String()); err != nil {
		return volume.ScopeUsage{}, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	sc := v.scopes[s.Dir()]
	if sc == nil {
		return volume.ScopeUsage{}, missing("read", "quota scope "+s.String())
	}
	return volume.ScopeUsage{LimitBytes: sc.limit, UsedBytes: sc.used, Complete: true}, nil
}

// DeleteScope implements volume.Volume. A missing scope is already deleted.
func (v *Volume) DeleteScope(ctx context.Context, s cluster.QuotaScope) error {
	if err := v.ready(ctx, "delete", "quota scope "+s.String()); err != nil {
		return err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	sc := v.scopes[s.Dir()]
	if sc == nil {
		return nil
	}
	if len(sc.folders) > 0 {
		return fault.Conflictf("quota scope %s holds folders", s).WithNext("delete its folders first")
	}
	for _, u := range sc.uploads {
		v.drop(sc, u)
	}
	delete(v.scopes, s.Dir())
	return nil
}

// Charge implements volume.Volume.
func (v *Volume) Charge(ctx context.Context, s cluster.QuotaScope, bytes int64) error {
	if err := v.ready(ctx, "charge", "quota scope "+s.String()); err != nil {
		return err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	bytes = max(bytes, 0)
	if sc := v.scopes[s.Dir()]; sc != nil && sc.limit != volume.NoLimit && bytes > sc.limit-sc.used {
		return over(s, sc.limit)
	}
	if bytes > v.free() {
		return fault.Exhaustedf("volume %q has %d bytes left and %d are needed", v.opt.Name, v.free(), bytes).
			WithReason("volume-full").WithNext("delete files, or ask the administrator for more storage")
	}
	return nil
}

func folderName(f cluster.FolderRef) string { return "folder " + f.String() }

// CreateFolder implements volume.Volume.
func (v *Volume) CreateFolder(ctx context.Context, f cluster.FolderRef, mode fs.FileMode) error {
	if err := v.ready(ctx, "make", folderName(f)); err != nil {
		return err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	if sc := v.scope(f.Scope); sc.folders[f.Folder] == nil {
		sc.folders[f.Folder] = v.newDir(mode)
	}
	return nil
}

// folder is the folder's scope and top; mu is held.
func (d *disk) folder(verb string, f cluster.FolderRef) (*scope, *inode, error) {
	sc := d.scopes[f.Scope.Dir()]
	if sc == nil || sc.folders[f.Folder] == nil {
		return nil, nil, missing(verb, folderName(f))
	}
	return sc, sc.folders[f.Folder], nil
}

// OpenFolder implements volume.Volume.
func (v *Volume) OpenFolder(ctx context.Context, f cluster.FolderRef) (volume.Tree, error) {
	if err := v.ready(ctx, "open", folderName(f)); err != nil {
		return nil, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	sc, top, err := v.folder("open", f)
	if err != nil {
		return nil, err
	}
	return &folderTree{v: v, ref: f, scope: sc, top: top}, nil
}

// TrashFolder implements volume.Volume.
func (v *Volume) TrashFolder(ctx context.Context, f cluster.FolderRef) error {
	if err := v.ready(ctx, "delete", folderName(f)); err != nil {
		return err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	sc := v.scopes[f.Scope.Dir()]
	if c := v.clones[f.String()]; c != nil {
		if !c.done {
			v.trash = append(v.trash, trashed{sc, c.top})
		}
		delete(v.clones, f.String())
	}
	if sc == nil || sc.folders[f.Folder] == nil {
		return nil
	}
	v.trash = append(v.trash, trashed{sc, sc.folders[f.Folder]})
	delete(sc.folders, f.Folder)
	return nil
}

// Usage implements volume.Volume.
func (v *Volume) Usage(ctx context.Context, f cluster.FolderRef) (volume.Usage, error) {
	if err := v.ready(ctx, "count", folderName(f)); err != nil {
		return volume.Usage{}, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	_, top, err := v.folder("count", f)
	if err != nil {
		return volume.Usage{}, err
	}
	u := volume.Usage{At: v.opt.Now(), Complete: true}
	if ctx.Err() != nil {
		u.Complete = false
		return u, nil
	}
	top.each(func(_ string, n *inode) {
		if n.kind == volume.KindFile || n.kind == volume.KindSymlink {
			u.Files++
			u.Bytes += n.size()
		}
	})
	return u, nil
}

// Reap implements volume.Volume.
func (v *Volume) Reap(ctx context.Context, limit int) (removed int, err error) {
	if err := v.ready(ctx, "reap", "the trash"); err != nil {
		return 0, err
	}
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	for removed < limit && len(v.trash) > 0 {
		if ctx.Err() != nil {
			return removed, ctx.Err()
		}
		last := len(v.trash) - 1
		n, done := v.remove(v.trash[last].scope, v.trash[last].node, limit-removed)
		removed += n
		if done {
			v.trash = v.trash[:last]
		}
	}
	return removed, nil
}

// remove takes at most limit entries of a tree, leaves first; mu is held.
func (d *disk) remove(sc *scope, n *inode, limit int) (removed int, done bool) {
	for name, child := range n.children {
		k, done := d.remove(sc, child, limit-removed)
		removed += k
		if !done {
			return removed, false
		}
		delete(n.children, name)
	}
	if removed >= limit {
		return removed, false
	}
	d.give(sc, n.size())
	return removed + 1, true
}

// CloneFolder implements volume.Volume.
func (v *Volume) CloneFolder(ctx context.Context, src, dst cluster.FolderRef, tell func(volume.Progress)) error {
	what := folderName(src) + " to " + string(dst.Folder)
	if err := v.ready(ctx, "clone", what); err != nil {
		return err
	}
	if src == dst {
		return fault.Invalidf("folder %s cannot be cloned onto itself", src)
	}
	v.disk.mu.Lock()
	_, from, err := v.folder("clone", src)
	if err != nil {
		v.disk.mu.Unlock()
		return err
	}
	sc := v.scope(dst.Scope)
	c := v.clones[dst.String()]
	there := sc.folders[dst.Folder]
	switch {
	case there != nil && c != nil && c.done && c.src == src.String():
		v.disk.mu.Unlock()
		return nil
	case there != nil && len(there.children) > 0:
		v.disk.mu.Unlock()
		return fault.Conflictf("folder %s exists and is not empty", dst).WithNext("choose another name for the clone")
	}
	if c == nil || c.done {
		c = &clone{src: src.String(), top: v.newDir(from.mode)}
		v.clones[dst.String()] = c
	}
	type step struct {
		path string
		from *inode
	}
	var steps []step
	p := volume.Progress{}
	from.each(func(path string, n *inode) {
		steps = append(steps, step{path, n})
		p.Total += n.size()
	})
	v.disk.mu.Unlock()
	report := func() {
		if tell != nil {
			tell(p)
		}
	}
	report()
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := v.ready(ctx, "copy", what); err != nil {
			return err
		}
		v.disk.mu.Lock()
		err := v.copyNode(dst.Scope, sc, c.top, s.path, s.from)
		v.disk.mu.Unlock()
		if err != nil {
			return err
		}
		if n := s.from.size(); n > 0 {
			p.Current += n
			report()
		}
	}
	v.disk.mu.Lock()
	c.done = true
	sc.folders[dst.Folder] = c.top
	v.disk.mu.Unlock()
	p.Total = p.Current
	report()
	return nil
}

// copyNode copies one entry to a path below top, where its parent is; contents never change once they are in a
// folder and are shared. mu is held.
func (d *disk) copyNode(s cluster.QuotaScope, sc *scope, top *inode, p string, from *inode) error {
	dir := top
	names := strings.Split(p, "/")
	for _, name := range names[:len(names)-1] {
		dir = dir.children[name]
	}
	last := names[len(names)-1]
	if dir.children[last] != nil || from.kind == volume.KindOther {
		return nil
	}
	if from.kind == volume.KindDirectory {
		dir.children[last] = d.newDir(from.mode)
		return nil
	}
	got, err := d.take(s, sc, from.size())
	if err != nil {
		d.give(sc, got)
		return err
	}
	twin := *from
	dir.children[last] = &twin
	return nil
}

// Symlink puts a symbolic link into a folder, as a session can; parents are not made.
func (v *Volume) Symlink(f cluster.FolderRef, path, target string) error {
	return v.plant(f, path, &inode{kind: volume.KindSymlink, mode: 0o777, target: target})
}

// Special puts something into a folder that is neither file, directory nor link.
func (v *Volume) Special(f cluster.FolderRef, path string) error {
	return v.plant(f, path, &inode{kind: volume.KindOther, mode: 0o600})
}

func (v *Volume) plant(f cluster.FolderRef, path string, n *inode) error {
	v.disk.mu.Lock()
	defer v.disk.mu.Unlock()
	sc, top, err := v.folder("open", f)
	if err != nil {
		return err
	}
	dir, name, err := v.parent(top, path, lookup{})
	if err != nil {
		return err
	}
	n.modified, n.created = v.opt.Now(), v.opt.Now()
	if _, err := v.take(f.Scope, sc, n.size()); err != nil {
		return err
	}
	dir.children[name] = n
	return nil
}

// cursorOf names the place after an entry in a listing by name.
func cursorOf(name string) string { return "n" + base64.RawURLEncoding.EncodeToString([]byte(name)) }

func nameOf(cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	coded, ok := strings.CutPrefix(cursor, "n")
	name, err := base64.RawURLEncoding.DecodeString(coded)
	if !ok || err != nil || len(name) == 0 {
		return "", fault.Invalidf("this cursor is of no listing").WithReason("invalid-api-params").WithNext("list from the start")
	}
	return string(name), nil
}

// Tasks implements volume.Volume.
func (v *Volume) Tasks() volume.Journal { return (*journal)(v) }

// journal implements volume.Journal.
type journal Volume

type claim struct{ v *Volume }

const maxDoc = 1 << 20

func (j *journal) ready(op, id string) error {
	if err := volume.CheckID(id); err != nil {
		return err
	}
	return (*Volume)(j).ready(context.Background(), op, "the journal of task "+id)
}

func (j *journal) Put(id string, doc []byte) error {
	if err := j.ready("write", id); err != nil {
		return err
	}
	if len(doc) > maxDoc {
		return fault.Invalidf("the journal of task %s is larger than %d bytes", id, maxDoc)
	}
	j.disk.mu.Lock()
	defer j.disk.mu.Unlock()
	j.docs[id] = slices.Clone(doc)
	return nil
}

func (j *journal) Get(id string) ([]byte, error) {
	if err := j.ready("read", id); err != nil {
		return nil, err
	}
	j.disk.mu.Lock()
	defer j.disk.mu.Unlock()
	doc, ok := j.docs[id]
	if !ok {
		return nil, missing("read", "the journal of task "+id)
	}
	return slices.Clone(doc), nil
}

func (j *journal) Delete(id string) error {
	if err := j.ready("delete", id); err != nil {
		return err
	}
	j.disk.mu.Lock()
	defer j.disk.mu.Unlock()
	delete(j.docs, id)
	return nil
}

func (j *journal) List() ([]string, error) {
	if err := j.ready("list", "all"); err != nil {
		return nil, err
	}
	j.disk.mu.Lock()
	defer j.disk.mu.Unlock()
	ids := make([]string, 0, len(j.docs))
	for id := range j.docs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (j *journal) Claim(id string) (release func(), ok bool, err error) {
	if err := j.ready("claim", id); err != nil {
		return nil, false, err
	}
	j.disk.mu.Lock()
	defer j.disk.mu.Unlock()
	if j.claims[id] != nil {
		return nil, false, nil
	}
	c := &claim{(*Volume)(j)}
	j.claims[id] = c
	return func() {
		j.disk.mu.Lock()
		defer j.disk.mu.Unlock()
		if j.claims[id] == c {
			delete(j.claims, id)
		}
	}, true, nil
}
