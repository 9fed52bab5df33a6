// Package mount puts folders where the engine can bind them into containers.
//
// A folder is reached beneath its volume's root without following a link out of it, the mount it
// lies on is cloned, given the session's ids, permissions and flags, and attached below the agent's own
// directory: that path is what the engine binds. Nobody can exchange it for another directory
// between the check and the bind, read-only also holds for whatever the folder holds, and files
// belong to the session's user inside and to the volume's owner outside.
//
// Mounts are attached while a container is made, which then has its own.
// The directory of attached mounts is apart from the kernels' scratch directories and nothing in
// it is ever deleted recursively, so that a mount that was forgotten there never costs a user's files.
//
// A file system may hang. Everything that touches one runs in a goroutine that is given up after a
// while, a few for each volume; they alone outlive the caller, because nothing can end them.
// Package mount decides nothing about kernels: package keeper says when.
package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// The reasons that faults of this package carry.
const (
	// ReasonHung: the volume's file system does not answer (Unavailable): wait or go elsewhere.
	ReasonHung = "volume-hung"
	// ReasonVolume: this node does not have the volume (NotFound).
	ReasonVolume = "volume-missing"
	// ReasonFolder: the folder's directory is not there (NotFound), or the directory in it (Invalid).
	ReasonFolder = "folder-missing"
	// ReasonPath: the path leads out of the folder or to something else than a directory (Invalid).
	ReasonPath = "folder-path-refused"
)

// Options are what a Mounts needs.
type Options struct {
	// Dir is the agent's own directory for attached mounts; nobody else may write to it.
	Dir string
	// Volumes are the paths of volumes on this node by host ("proxy:volume"). A volume that is not
	// named lies where its proxy announced it.
	Volumes map[string]string
	// Engine returns a process in the engine's mount namespace, 0 when it is unknown. Nil means
	// that the engine shares the agent's.
	Engine func(ctx context.Context) (pid int, err error)
	// Patience is how long a file system may take; 0 means 5 seconds.
	Patience time.Duration
	// Pause waits between two tries to take a folder away, until the context ends at the latest; nil means that time passes.
	Pause func(ctx context.Context, d time.Duration)
	// Plain binds checked paths and makes no mounts, as an agent that is not root must.
	Plain bool
	Log   *slog.Logger
}

// Mounts keeps the mounts of one agent. All methods may be called concurrently.
type Mounts struct {
	o   Options
	ids idmaps

	mu       sync.Mutex
	volumes  map[string]*volume // by host
	warnings map[string]string  // by what they are about
	changed  chan struct{}
}

// Open makes the directory when it is absent.
func Open(o Options) (*Mounts, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of mounts: %w", err)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("open the directory of mounts: %w", err)
	}
	if o.Dir, err = filepath.EvalSymlinks(dir); err != nil { // as mountinfo names it
		return nil, fmt.Errorf("open the directory of mounts: %w", err)
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Pause == nil {
		o.Pause = pause
	}
	if os.Geteuid() != 0 {
		o.Plain = true
	}
	m := &Mounts{o: o, volumes: map[string]*volume{}, warnings: map[string]string{}, changed: make(chan struct{}, 1)}
	for host, path := range o.Volumes {
		m.volumes[host] = newVolume(host, path)
	}
	return m, nil
}

// Close lets go of what is kept between mounts. Attached mounts stay.
func (m *Mounts) Close() { m.ids.close() }

// Changed signals that Hung or Warnings may have changed.
func (m *Mounts) Changed() <-chan struct{} { return m.changed }

func (m *Mounts) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// warn keeps a warning until it is taken back by an empty text.
func (m *Mounts) warn(about, text string) {
	m.mu.Lock()
	old := m.warnings[about]
	if text == "" {
		delete(m.warnings, about)
	} else if len(m.warnings) < 64 {
		m.warnings[about] = text
	}
	m.mu.Unlock()
	if old == text {
		return
	}
	if text != "" {
		m.o.Log.Warn(text)
	}
	m.notify()
}

// Warnings describe, in words and in order, what does not work with mounts on this node.
func (m *Mounts) Warnings() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, w := range m.warnings {
		out = append(out, w)
	}
	for _, v := range m.volumes {
		if since, hung := v.hungSince(); hung {
			out = append(out, fmt.Sprintf("the file system of volume %s (%s) does not answer since %s", v.host, v.path,
				since.UTC().Format(time.TimeOnly+"Z")))
		}
	}
	slices.Sort(out)
	return out
}

// Hung are the hosts of volumes that do not answer, in order.
func (m *Mounts) Hung() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for host, v := range m.volumes {
		if _, hung := v.hungSince(); hung {
			out = append(out, host)
		}
	}
	slices.Sort(out)
	return out
}

// Probe asks every volume that was ever used whether its file system answers; it returns after the
// patience at the latest. A volume whose last probe still waits is not asked again.
func (m *Mounts) Probe(ctx context.Context) {
	m.mu.Lock()
	all := make([]*volume, 0, len(m.volumes))
	for _, v := range m.volumes {
		all = append(all, v)
	}
	m.mu.Unlock()
	var group sync.WaitGroup
	for _, v := range all {
		group.Go(func() {
			if v.probe(ctx, m.o.Patience) {
				m.notify()
			}
		})
	}
	group.Wait()
}

// volumeOf finds the volume of a folder on this node.
func (m *Mounts) volumeOf(f cluster.FolderMount) (*volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, configured := m.volumes[f.Host], m.o.Volumes[f.Host] != ""
	path := f.VolumePath
	if configured {
		path = m.o.Volumes[f.Host]
	}
	if !filepath.IsAbs(path) {
		return nil, fault.NotFoundf("volume %s has no path on this node", f.Host).WithReason(ReasonVolume).
			WithNext("set agent.volumes.%q in the agent's configuration", f.Host)
	}
	if v == nil || v.path != filepath.Clean(path) {
		v = newVolume(f.Host, path)
		m.volumes[f.Host] = v
	}
	return v, nil
}

// Prepare attaches a kernel's folders for a session's user and returns what the engine is to bind, in the order given. What an earlier
// call attached is replaced: containers keep what they have. After an error the caller releases the kernel, or prepares it again.
func (m *Mounts) Prepare(
	ctx context.Context, kernel cluster.KernelID, o host.Owner, folders []cluster.FolderMount,
) ([]runtime.Mount, error) {
	if len(folders) == 0 {
		return nil, nil
	}
	dir, err := m.dirOf(kernel)
	if err != nil {
		return nil, err
	}
	if err := m.Release(kernel); err != nil {
		return nil, err
	}
	if err := cluster.CheckTargets(folders); err != nil { // whatever the manager checked
		return nil, err
	}
	var out []runtime.Mount
	for i, f := range folders {
		b, err := m.attach(ctx, dir, i, o, f)
		if err != nil {
			return nil, fmt.Errorf("mount folder %s: %w", f.Name, err)
		}
		out = append(out, b)
	}
	return out, nil
}

func (m *Mounts) dirOf(kernel cluster.KernelID) (string, error) {
	if _, ok := cluster.CanonicalUUID(string(kernel)); !ok {
		return "", fault.Invalidf("kernel id %q is not a UUID", kernel)
	}
	return filepath.Join(m.o.Dir, string(kernel)), nil
}

func (m *Mounts) attach(ctx context.Context, dir string, i int, o host.Owner, f cluster.FolderMount) (runtime.Mount, error) {
	b := runtime.Mount{Target: f.Target, ReadOnly: !f.Perm.CanWrite()}
	v, err := m.volumeOf(f)
	if err != nil {
		return b, err
	}
	r := reach{volume: v, folder: f, clone: !m.o.Plain}
	p, err := do(ctx, v, m.o.Patience, m.notify, r.open, place.close)
	if err != nil {
		return b, err
	}
	defer p.close()
	if p.refused != nil {
		m.warn("clone "+f.Host, fmt.Sprintf("folders of volume %s are bound as they are, because their mount cannot be cloned: %v", f.Host,
			p.refused))
	}
	if p.tree < 0 {
		return m.plain(b, p, f, o)
	}
	m.warn("clone "+f.Host, "")
	if err := m.mapIDs(p, f, o); err != nil {
		return b, err
	}
	if err := m.closeRoot(ctx, v, p, f); err != nil {
		return b, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if b.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(p.tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return b, fmt.Errorf("set the flags of its mount: %w", os.NewSyscallError("mount_setattr", err))
	}
	b.Source = filepath.Join(dir, strconv.Itoa(i))
	if err := os.MkdirAll(b.Source, 0o711); err != nil {
		return b, fmt.Errorf("make its mount point: %w", err)
	}
	if err := unix.MoveMount(p.tree, "", unix.AT_FDCWD, b.Source, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return b, fmt.Errorf("attach its mount: %w", os.NewSyscallError("move_mount", err))
	}
	if why := m.unseen(ctx, b.Source); why != "" {
		m.warn("engine", "the engine does not see this agent's mounts ("+why+"): folders are bound as they are")
		return m.plain(b, p, f, o)
	}
	m.warn("engine", "")
	return b, nil
}

// mapIDs makes files of the volume's owner appear as the session's user. Where that is refused
// the mount stays as it is and a warning says so.
func (m *Mounts) mapIDs(p place, f cluster.FolderMount, o host.Owner) error {
	if o.UID == f.OwnerUID && o.GID == f.OwnerGID {
		return nil
	}
	err := errOwnerRoot
	if f.OwnerUID > 0 && f.OwnerGID > 0 {
		var ns int
		var done func()
		if ns, done, err = m.ids.namespace(f.OwnerUID, o.UID, f.OwnerGID, o.GID); err == nil {
			err = os.NewSyscallError("mount_setattr", unix.MountSetattr(p.tree, "", unix.AT_EMPTY_PATH,
				&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}))
			done()
		}
	}
	return m.tellIDs(f, o, err)
}

// errOwnerRoot: files of root are not mapped, because a session's user must never act as root on a volume.
var errOwnerRoot = errors.New("they belong to root")

// tellIDs keeps a warning where files cannot be mapped. A session with a user number of its own is refused then: it could not even
// read the folder.
func (m *Mounts) tellIDs(f cluster.FolderMount, o host.Owner, err error) error {
	switch {
	case err == nil:
		m.warn("ids "+f.Host, "")
	case o.Own:
		return fault.Invalidf("the files of volume %s keep their owner %d:%d inside sessions: %v", f.Host, f.OwnerUID, f.OwnerGID, err).
			WithReason(host.ReasonShared)
	case o.UID != f.OwnerUID || o.GID != f.OwnerGID:
		m.warn("ids "+f.Host, fmt.Sprintf("files of volume %s keep their owner %d:%d inside sessions, which may not be able to write them: %v",
			f.Host, f.OwnerUID, f.OwnerGID, err))
	}
	return nil
}

// closeRoot takes all rights on a folder's root from others than its owner, as its storage proxy does, for folders that no proxy has
// touched since it began to. Sessions see the owner's files as their own by now. What cannot be changed stays as it is.
func (m *Mounts) closeRoot(ctx context.Context, v *volume, p place, f cluster.FolderMount) error {
	if f.Subpath != "." && f.Subpath != "" || f.OwnerUID <= 0 {
		return nil
	}
	tree, err := unix.FcntlInt(uintptr(p.tree), unix.F_DUPFD_CLOEXEC, 0) // for a call that may never return
	if err != nil {
		return fmt.Errorf("copy a descriptor of its mount: %w", os.NewSyscallError("fcntl", err))
	}
	_, err = do(ctx, v, m.o.Patience, m.notify, func() (struct{}, error) {
		defer func() { _ = unix.Close(tree) }()
		root := "/proc/self/fd/" + strconv.Itoa(tree)
		var st unix.Stat_t
		if unix.Stat(root, &st) == nil && st.Mode&0o077 != 0 {
			_ = unix.Chmod(root, st.Mode&0o700)
		}
		return struct{}{}, nil
	}, func(struct{}) {})
	return err
}

// plain lets the engine bind the path itself. Users cannot replace the folder's own path. They can replace a directory inside
// the folder between the check and the engine's bind, so such a directory is refused.
func (m *Mounts) plain(b runtime.Mount, p place, f cluster.FolderMount, o host.Owner) (runtime.Mount, error) {
	if f.Subpath != "." && f.Subpath != "" {
		return b, fault.Invalidf("%s is a directory in a folder, which this agent cannot mount safely", f.Subpath).WithReason(ReasonPath).
			WithNext("mount the whole folder, or run the agent as root in the mount namespace of the engine")
	}
	if o.UID != f.OwnerUID && (o.Own || !m.o.Plain) {
		if err := m.tellIDs(f, o, errors.New("the mount is not the agent's own")); err != nil {
			return b, err
		}
	}
	b.Source = p.path
	return b, nil
}

// Release detaches a kernel's mounts and removes their mount points. An absent kernel is no error.
func (m *Mounts) Release(kernel cluster.KernelID) error {
	dir, err := m.dirOf(kernel)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release mounts: %w", err)
	}
	for _, e := range entries {
		if err := m.detach(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("release mounts: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release mounts: %w", err)
	}
	return nil
}

// left is where a mount point goes that holds files, which can only be if somebody unmounted a folder
// under a container. They are kept for people.
const left = ".left"

func (m *Mounts) detach(path string) error {
	for !m.o.Plain {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not, or no longer, a mount
		}
		if err != nil {
			return fmt.Errorf("detach %s: %w", path, os.NewSyscallError("umount", err))
		}
	}
	err := unix.Rmdir(path)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENOTDIR):
		to := filepath.Join(m.o.Dir, left, filepath.Base(filepath.Dir(path))+"-"+filepath.Base(path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		for n := 0; ; n++ { // what is there already is kept too
			next := to
			if n > 0 {
				next += "-" + strconv.Itoa(n)
			}
			if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, next, unix.RENAME_NOREPLACE); !errors.Is(err, unix.EEXIST) || n == 1000 {
				return syscallError("renameat2", err)
			}
		}
	}
	return os.NewSyscallError("rmdir", err)
}

// List returns the kernels that have mount points, and the names of what else is in the directory.
func (m *Mounts) List() (kernels []cluster.KernelID, strangers []string, err error) {
	return List(m.o.Dir)
}

// List is Mounts.List of a directory whose agent may not run; an absent directory is empty.
func List(dir string) (kernels []cluster.KernelID, strangers []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list mounts: %w", err)
	}
	for _, e := range entries {
		if id, ok := cluster.CanonicalUUID(e.Name()); ok && id == e.Name() {
			kernels = append(kernels, cluster.KernelID(id))
			continue
		}
		if e.Name() == left {
			kept, err := os.ReadDir(filepath.Join(dir, left))
			if err != nil {
				return nil, nil, fmt.Errorf("list mounts: %w", err)
			}
			for _, k := range kept {
				strangers = append(strangers, filepath.Join(left, k.Name()))
			}
			continue
		}
		strangers = append(strangers, e.Name())
	}
	return kernels, strangers, nil
}
