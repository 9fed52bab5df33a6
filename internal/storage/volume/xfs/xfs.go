// Package xfs is a posix volume whose quota scopes are projects of XFS, so that the kernel stops every writer,
// sessions included. Nothing is kept outside of the file system: a scope's directory itself says which project
// it is. The kernel lets the owner of a file change its project unless it is in a user namespace of its own;
// whoever runs sessions has to keep them from that call.
package xfs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
)

// Options opens a volume.
type Options struct {
	Name string
	Path string // absolute; must exist, on XFS mounted with pquota
	// UID and GID own what the proxy makes.
	UID, GID int
	// Reserve is how many bytes of the file system files in folders leave free; see posix.Options.
	Reserve int64

	Now func() time.Time // time.Now when nil
	Log *slog.Logger     // discards when nil
}

const magic = 0x58465342

// Open opens the volume at o.Path. It is Invalid where that is no XFS that enforces project quotas.
func Open(o Options) (volume.Volume, error) {
	root, err := os.Open(o.Path)
	if err != nil {
		return nil, fault.Invalidf("volume %q cannot be opened at %q", o.Name, o.Path).
			WithNext("mount the file system there and let the storage proxy write to it").WithCause(err)
	}
	q := &projects{name: o.Name, root: root, first: derive}
	if err = q.check(o.Path); err == nil {
		v, e := posix.Open(posix.Options{Name: o.Name, Path: o.Path, UID: o.UID, GID: o.GID, Now: o.Now, Log: o.Log,
			Reserve: o.Reserve,
			Backend: "xfs", Capabilities: []volume.Capability{volume.CanQuota}, Quota: q})
		if err = e; err == nil {
			return &closing{Volume: v, root: root}, nil
		}
	}
	root.Close()
	return nil, err
}

// closing closes the driver's own descriptor with the volume.
type closing struct {
	volume.Volume
	root *os.File
}

func (c *closing) Close() error {
	err := c.Volume.Close()
	if e := c.root.Close(); err == nil && !errors.Is(e, fs.ErrClosed) {
		err = e
	}
	return err
}

// projects implements posix.Quota.
type projects struct {
	name  string
	root  *os.File
	block uint64                           // bytes; limits are multiples of it
	first func(dir string, try int) uint32 // which project a scope takes
}

func (p *projects) check(path string) error {
	var st unix.Statfs_t
	if err := control(p.root, func(fd uintptr) error { return unix.Fstatfs(int(fd), &st) }); err != nil {
		return fault.Unavailablef("volume %q does not answer", p.name).WithCause(err)
	}
	if uint32(st.Type) != magic {
		return fault.Invalidf("volume %q: %s is not on XFS", p.name, path).WithNext(`use the backend "posix"`)
	}
	p.block = uint64(st.Bsize)
	on, err := enforces(p.root)
	if err != nil {
		return fault.Unavailablef("volume %q: cannot ask for the state of quotas", p.name).WithCause(err)
	}
	if !on {
		return fault.Invalidf("volume %q: %s does not enforce project quotas", p.name, path).
			WithNext("mount the file system with the option pquota (a remount does not do it), or use the backend \"posix\"")
	}
	return nil
}

// denied tells an operator what the kernel's EPERM means here.
func (p *projects) denied(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fault.Unavailablef("volume %q: the storage proxy may not set quotas", p.name).
			WithNext("run it as root, or give it CAP_SYS_ADMIN and CAP_FOWNER").WithCause(err)
	}
	return err
}

// Limit implements posix.Quota. It rounds down to whole blocks, but not to none.
func (p *projects) Limit(ctx context.Context, s cluster.QuotaScope, dir *os.File, limit int64) error {
	project, err := p.assign(ctx, s, dir)
	if err != nil {
		return p.denied(err)
	}
	var blocks uint64
	if limit != volume.NoLimit {
		// The kernel would round up to whole blocks, and 0 would lift it.
		blocks = max(uint64(limit)/p.block, 1) * (p.block / basicBlock)
	}
	return p.denied(limitProject(p.root, project, blocks))
}

// Read implements posix.Quota. Used are allocated bytes, directories included.
func (p *projects) Read(_ context.Context, s cluster.QuotaScope, dir *os.File) (volume.ScopeUsage, error) {
	project, err := p.projectOf(dir)
	if err != nil {
		return volume.ScopeUsage{}, err
	}
	if project == 0 {
		return volume.ScopeUsage{}, fault.Unavailablef("quota scope %s belongs to no project", s).
			WithNext("set its quota again")
	}
	q, err := quotaOf(p.root, project)
	if err != nil {
		return volume.ScopeUsage{}, p.denied(err)
	}
	u := volume.ScopeUsage{LimitBytes: volume.NoLimit, UsedBytes: int64(q.bcount) * basicBlock, Complete: true}
	if q.blkHard > 0 {
		u.LimitBytes = int64(q.blkHard) * basicBlock
	}
	return u, nil
}

// Release implements posix.Quota. What is in the trash stays in the project until it is gone.
func (p *projects) Release(_ context.Context, _ cluster.QuotaScope, dir *os.File) error {
	project, err := p.projectOf(dir)
	if err != nil || project == 0 {
		return err
	}
	return p.denied(limitProject(p.root, project, 0))
}

// projectOf is a scope's project, 0 while it has none of its own: one that all of the volume is in is not its own.
func (p *projects) projectOf(dir *os.File) (uint32, error) {
	x, err := readAttr(dir)
	if err != nil || x.xflags&projInherit == 0 {
		return 0, err
	}
	all, err := readAttr(p.root)
	if err != nil || x.projid == all.projid {
		return 0, err
	}
	return x.projid, nil
}

// The projects of scopes are chosen here, away from the small numbers that people give.
const (
	lowest  = 1 << 20
	highest = 1<<31 - 1
	tries   = 1000
)

// derive is the project that a scope takes when it is free; the same on every machine.
func derive(dir string, try int) uint32 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", dir, try))
	return lowest + binary.BigEndian.Uint32(sum[:4])%(highest-lowest)
}

// assign gives a scope a project of its own, once.
func (p *projects) assign(ctx context.Context, s cluster.QuotaScope, dir *os.File) (uint32, error) {
	project, err := p.projectOf(dir)
	if project != 0 || err != nil {
		return project, err
	}
	// Two scopes that get their projects at once must not choose one.
	lock, err := os.OpenFile(filepath.Join(self(p.root), ".berth/projects.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if err := control(lock, func(fd uintptr) error { return unix.Flock(int(fd), unix.LOCK_EX) }); err != nil {
		return 0, err
	}
	taken, err := p.taken()
	if err != nil {
		return 0, err
	}
	for try := range tries {
		project = p.first(s.Dir(), try)
		if taken[project] {
			continue
		}
		q, err := quotaOf(p.root, project)
		if err != nil {
			return 0, err
		}
		// Whoever else uses it: another volume, an administrator, the trash of a scope that was deleted.
		if q.bcount > 0 || q.icount > 0 || q.blkHard > 0 || q.blkSoft > 0 || q.inoHard > 0 {
			continue
		}
		return project, p.adopt(ctx, dir, project)
	}
	return 0, fault.Exhaustedf("no free project was found for quota scope %s", s)
}

// taken are the projects of the scopes on this volume.
func (p *projects) taken() (map[uint32]bool, error) {
	d, err := os.Open(self(p.root))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	taken := map[uint32]bool{}
	for _, n := range names {
		if len(n) != 32 {
			continue
		}
		f, err := os.OpenFile(filepath.Join(self(p.root), n), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // not a scope, or gone
		}
		project, err := p.projectOf(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		taken[project] = true
	}
	return taken, nil
}

func self(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// adopt puts all that is in a scope into its project, its directory last: until then the scope has none, and a
// call that follows a crash begins again. Directories come before what they hold, so what is made meanwhile in one
// that was seen is in the project.
func (p *projects) adopt(ctx context.Context, dir *os.File, project uint32) error {
	root, err := os.OpenRoot(self(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case name == "." || !e.IsDir() && !e.Type().IsRegular():
			return nil // links, devices and pipes hold no blocks
		}
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			return nil // replaced since it was read
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return tag(f, project, e.IsDir())
	})
	if err != nil {
		return err
	}
	return tag(dir, project, true)
}
