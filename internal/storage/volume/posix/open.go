package posix

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/tree"
)

// The names below the root of a volume and of a scope.
const (
	private    = ".berth"
	trashDir   = ".berth/trash"
	uploadsDir = ".berth/uploads"
	clonesDir  = ".berth/clones"
	tasksDir   = ".berth/tasks"

	// In .berth of a scope.
	scopeFileName = "scope.json"
	scopeLock     = "lock"
)

// vol is safe for concurrent use.
type vol struct {
	opt   Options
	root  *directory
	owner owner
	log   *slog.Logger
	tasks *journal

	scanner *tree.Scanner                // of folders
	ask     func() (volume.Space, error) // the file system; may never return
	// count counts a scope, firstWait is how long callers wait for it at first.
	count     func(ctx context.Context, s cluster.QuotaScope) (volume.Usage, error)
	firstWait time.Duration
	// A place in these for each count that runs.
	scopeCounts, folderCounts chan struct{}

	life  context.Context // ends with Close
	stop  context.CancelFunc
	works sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	meters map[string]*meter // by scope directory
	asking *spaceCall        // the running question for space
	sweep  []string          // scopes that the running round of Reap has yet to see
}

func open(o Options) (volume.Volume, error) {
	if o.Backend == "" {
		o.Backend = "posix"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sync == nil {
		o.Sync = (*os.File).Sync
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	bad := func(err error) error {
		return fault.Invalidf("volume %q cannot be opened at %q", o.Name, o.Path).
			WithNext("mount the file system there and let the storage proxy write to it").WithCause(err)
	}
	if !filepath.IsAbs(o.Path) {
		return nil, bad(fmt.Errorf("the path is not absolute"))
	}
	f, err := os.OpenFile(o.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, bad(err)
	}
	root, err := newDirectory(f, false, o.Sync)
	if err != nil {
		return nil, bad(err)
	}
	v := &vol{opt: o, root: root, owner: ownerOf(o.UID, o.GID), log: o.Log, meters: map[string]*meter{}}
	v.life, v.stop = context.WithCancel(context.Background())
	for _, d := range []string{tasksDir, trashDir} {
		if err := v.makePrivate(root, d); err != nil {
			v.stop()
			root.Close()
			return nil, bad(err)
		}
	}
	v.tasks, v.ask, v.count, v.firstWait = &journal{v: v}, v.space, v.countScope, firstWait
	v.scopeCounts, v.folderCounts = make(chan struct{}, countsAtOnce), make(chan struct{}, countsAtOnce)
	v.scanner = tree.NewScanner(o.Now, 0, 0)
	return v, nil
}

// makePrivate makes .berth and a directory in it, which only the proxy enters.
func (v *vol) makePrivate(d *directory, p string) error {
	if _, err := d.makeDir(private, 0o700, v.owner); err != nil {
		return err
	}
	in, err := d.dir(private, noLinks)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = in.makeDir(filepath.Base(p), 0o700, v.owner)
	return err
}

func (v *vol) now() time.Time { return v.opt.Now() }

// Info implements volume.Volume.
func (v *vol) Info() volume.Info {
	caps := append([]volume.Capability{volume.CanFolder, volume.CanFastFSSize}, v.opt.Capabilities...)
	slices.Sort(caps)
	uid, gid := v.opt.UID, v.opt.GID
	if v.owner.uid < 0 {
		uid = os.Geteuid()
	}
	if v.owner.gid < 0 {
		gid = os.Getegid()
	}
	return volume.Info{Name: v.opt.Name, Backend: v.opt.Backend, Path: v.opt.Path, Capabilities: slices.Compact(caps),
		OwnerUID: uid, OwnerGID: gid}
}

// background begins work that Close ends and waits for; ctx is nil once the volume is closed.
func (v *vol) background() (ctx context.Context, done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, nil
	}
	v.works.Add(1)
	return v.life, v.works.Done
}

// spaceCall is one question to the file system that any number of callers wait for.
type spaceCall struct {
	done  chan struct{}
	space volume.Space
	err   error
}

// Space implements volume.Volume. A file system that hangs holds one goroutine, not its callers.
func (v *vol) Space(ctx context.Context) (volume.Space, error) {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return volume.Space{}, explain(os.ErrClosed, "ask", v.what())
	}
	c := v.asking
	if c == nil {
		c = &spaceCall{done: make(chan struct{})}
		v.asking = c
		go func() {
			c.space, c.err = v.ask()
			v.mu.Lock()
			v.asking = nil
			v.mu.Unlock()
			close(c.done)
		}()
	}
	v.mu.Unlock()
	select {
	case <-c.done:
		return c.space, c.err
	case <-ctx.Done():
		return volume.Space{}, fault.Unavailablef("%s does not answer", v.what()).
			WithNext("ask the administrator to look at this volume").WithCause(ctx.Err())
	}
}

func (v *vol) space() (volume.Space, error) {
	var st unix.Statfs_t
	if err := v.root.do(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return volume.Space{}, explain(err, "ask", v.what())
	}
	unit := st.Frsize
	if unit <= 0 {
		unit = st.Bsize
	}
	return volume.Space{CapacityBytes: int64(st.Blocks) * unit, UsedBytes: int64(st.Blocks-st.Bfree) * unit,
		FreeBytes: int64(st.Bavail) * unit}, nil
}

func (v *vol) what() string { return fmt.Sprintf("volume %q", v.opt.Name) }

func (v *vol) folder(f cluster.FolderRef) string { return "folder " + f.String() }

// Tasks implements volume.Volume.
func (v *vol) Tasks() volume.Journal { return v.tasks }

// Close implements volume.Volume. Trees and uploads that are open stay usable for reading until they are closed.
func (v *vol) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return nil
	}
	v.closed = true
	v.mu.Unlock()
	v.stop()
	v.works.Wait()
	return v.root.Close()
}
