package loopdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
)

// Options are what a Pool needs.
type Options struct {
	// Dir holds the disks that wait. It must lie on the file system of the directories that get them; only the agent writes to it.
	Dir string
	// Size is that of every disk.
	Size int64
	// Ahead is how many disks wait.
	Ahead int
	// Unseen says why the container engine would not find a mount at a path, "" when it would. Nil means that it would.
	Unseen func(ctx context.Context, path string) string
	Log    *slog.Logger
	Clock  chassis.Clock
}

// Pool makes disks ahead. All methods may be called concurrently.
type Pool struct {
	o Options

	mu      sync.Mutex
	ready   []string // names in Dir
	serial  int
	problem string // why disks cannot be made, or are of no use; "" when all is well
	seen    bool   // the engine was found to see the mounts
	closed  bool
	wake    chan struct{}
}

const (
	makePatience = 30 * time.Second
	// quiet is how long nobody must have taken a disk before the next are made: that must not slow down the session that took one.
	quiet = 2 * time.Second
	// maxWaits is how many more disks may be taken before they are made all the same.
	maxWaits = 32
	// retryEvery is the time between two attempts after one failed.
	retryEvery = 10 * time.Second
)

// OpenPool takes over the disks that an earlier process made ahead, and makes one where there is none: its error says why this host
// cannot have disks.
func OpenPool(ctx context.Context, o Options) (*Pool, error) {
	p := &Pool{o: o, wake: make(chan struct{}, 1)}
	if os.Geteuid() != 0 {
		return nil, errors.New("only root may mount file systems")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the disks made ahead: %w", err)
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the disks made ahead: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(o.Dir, e.Name())
		if size, _, ok := strings.Cut(e.Name(), "-"); ok && size == strconv.FormatInt(o.Size, 10) && Exists(dir) && Attach(dir) == nil {
			p.ready = append(p.ready, e.Name())
			continue
		}
		if err := Remove(dir); err != nil {
			o.Log.Warn("an old disk cannot be removed", "dir", dir, "err", err)
		}
	}
	if len(p.ready) == 0 {
		if err := p.add(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add makes one more disk.
func (p *Pool) add(ctx context.Context) error {
	name, err := p.next()
	if err != nil {
		return err
	}
	if err := p.make(ctx, name, filepath.Join(p.o.Dir, name)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, name)
	return nil
}

// make makes a disk and puts it at dir when it is complete: an agent that is killed meanwhile leaves no half of one there.
func (p *Pool) make(ctx context.Context, name, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, makePatience)
	defer cancel()
	fresh := filepath.Join(p.o.Dir, "new-"+name)
	if err := Make(ctx, fresh, p.o.Size); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return errors.Join(fmt.Errorf("make a disk: %w", err), Remove(fresh))
	}
	return nil
}

// next is a name that no disk has.
func (p *Pool) next() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.serial++
		name := fmt.Sprintf("%d-%d", p.o.Size, p.serial)
		_, err := os.Lstat(filepath.Join(p.o.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
		if err != nil {
			return "", fmt.Errorf("make a disk: %w", err)
		}
	}
}

// Give puts a disk at dir, which must not exist: one that waits, else one that is made now.
func (p *Pool) Give(ctx context.Context, dir string) error {
	for {
		p.mu.Lock()
		name := ""
		if n := len(p.ready); n > 0 {
			name, p.ready = p.ready[n-1], p.ready[:n-1]
		}
		p.mu.Unlock()
		p.refill()
		if name == "" {
			fresh, err := p.next()
			if err == nil {
				err = p.make(ctx, fresh, dir)
			}
			if err != nil {
				return err
			}
			break
		}
		waiting := filepath.Join(p.o.Dir, name)
		if err := usable(waiting); err != nil {
			p.o.Log.Warn("a disk that was made ahead is of no use", "dir", waiting, "err", err)
			if err := Remove(waiting); err != nil {
				p.o.Log.Warn("a disk that is of no use cannot be removed", "dir", waiting, "err", err)
			}
			continue
		}
		if err := os.Rename(waiting, dir); err != nil {
			return fmt.Errorf("give a disk: %w", err)
		}
		break
	}
	if why := p.unseen(ctx, Mount(dir)); why != "" {
		return errors.Join(fmt.Errorf("the engine does not see this agent's mounts: %s", why), Remove(dir))
	}
	return nil
}

// unseen asks once whether the engine sees mounts: it is the same for all.
func (p *Pool) unseen(ctx context.Context, path string) string {
	p.mu.Lock()
	seen := p.seen || p.o.Unseen == nil
	p.mu.Unlock()
	if seen {
		return ""
	}
	why := p.o.Unseen(ctx, path)
	p.mu.Lock()
	p.seen = why == ""
	p.mu.Unlock()
	return why
}

func (p *Pool) refill() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run makes disks ahead until ctx ends. It begins when the agent has come up: the first session finds the disk of OpenPool.
func (p *Pool) Run(ctx context.Context) error {
	p.calm(ctx)
	for ctx.Err() == nil {
		err := p.fill(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.mu.Lock()
		before := p.problem
		p.problem = ""
		if err != nil {
			p.problem = err.Error()
		}
		now := p.problem
		p.mu.Unlock()
		if now != before {
			p.o.Log.Warn("disks for kernels are made ahead", "working", err == nil, "err", err)
		}
		retry := p.o.Clock.NewTimer(retryEvery)
		taken := false
		select {
		case <-ctx.Done():
		case <-p.wake:
			taken = true
		case <-retry.C():
		}
		retry.Stop()
		if taken {
			p.calm(ctx)
		}
	}
	return ctx.Err()
}

// calm waits until nobody has taken a disk for a while, and not for ever.
func (p *Pool) calm(ctx context.Context) {
	for range maxWaits {
		t := p.o.Clock.NewTimer(quiet)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-p.wake:
			t.Stop()
		case <-t.C():
			return
		}
	}
}

func (p *Pool) fill(ctx context.Context) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		enough := len(p.ready) >= p.o.Ahead || p.closed
		p.mu.Unlock()
		if enough {
			return nil
		}
		if err := p.add(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Problem says why disks cannot be made now; "" when they can.
func (p *Pool) Problem() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// Size is that of every disk.
func (p *Pool) Size() int64 { return p.o.Size }

// Close removes the disks that wait. Those of kernels stay.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.ready, p.closed = nil, true
	p.mu.Unlock()
	return RemoveWaiting(p.o.Dir)
}

// RemoveWaiting removes the disks in the directory of a pool that nobody uses; an absent directory is no error.
func RemoveWaiting(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the disks made ahead: %w", err)
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}
