package scratch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
	"berth.dev/berth/internal/wire/run"
)

// Pool gives kernels disks of bounded size; *loopdisk.Pool satisfies it.
type Pool interface {
	// Give puts a disk at dir, which does not exist.
	Give(ctx context.Context, dir string) error
}

// Limit gives kernels that are prepared from now on disks of a pool.
func (r *Root) Limit(p Pool) { r.pool = p }

// PoolDir is where the disks of a scratch directory wait that were made ahead.
func PoolDir(dir string) string { return filepath.Join(dir, waiting) }

// place moves what the user writes to a disk.
func (l *Layout) place(disk string) {
	m := loopdisk.Mount(disk)
	l.Disk, l.Work, l.Temporary = disk, filepath.Join(m, partWork), nil
	for _, t := range []Temporary{{"tmp", "/tmp"}, {"vartmp", "/var/tmp"}, {"lock", "/run/lock"}, {"user", userDir}} {
		l.Temporary = append(l.Temporary, Temporary{filepath.Join(m, t.Path), t.Target})
	}
}

// userDir is the part of the runner's directory that belongs to the session's user.
const userDir = host.PrivateDir + "/" + run.UserDirName

// Temporary is a directory where the session's user may write outside of its home. Path is where it is on the host.
type Temporary struct{ Path, Target string }

// Homes are the directories that a kernel without a disk of its own fills on the agent's: its home, and the part of the runner's directory
// that belongs to its user.
func (r *Root) Homes(kernel cluster.KernelID) []string {
	l := r.Layout(kernel)
	return []string{l.Work, filepath.Join(l.Private, run.UserDirName)}
}

// full reports whether the kernel's own disk is what is full.
func (l *Layout) full() bool {
	if l.Disk == "" {
		return false
	}
	u, ok := loopdisk.Usage(l.Disk)
	return ok && (u.Free < u.Total/100 || u.OutOfInodes())
}

// disk gives a kernel its disk, or finds that it has to do without: where the host cannot have disks, and for a kernel whose home
// began as a directory. The temporary directories begin empty with each generation, as those of a container do.
func (r *Root) disk(l *Layout, fresh bool) error {
	if l.Disk == "" {
		if _, err := os.Lstat(l.Work); r.pool == nil || err == nil {
			return nil
		}
		dir := filepath.Join(l.Dir, partDisk)
		if err := r.pool.Give(context.Background(), dir); err != nil { // Give has a deadline of its own
			if diskspace.Full(err) {
				return err
			}
			r.note(err.Error())
			return nil
		}
		r.note("")
		l.place(dir)
	}
	if err := loopdisk.Attach(l.Disk); err != nil {
		return err
	}
	for _, t := range l.Temporary {
		if fresh {
			if err := removeTree(context.Background(), filepath.Dir(t.Path), filepath.Base(t.Path)); err != nil {
				return fmt.Errorf("empty %s: %w", t.Target, err)
			}
		}
		if err := mkdir(t.Path, fs.ModeSticky|0o777); err != nil {
			return err
		}
	}
	return nil
}

func (r *Root) note(problem string) { r.trouble.Store(&problem) }

// Unlimited says why the last kernel got no disk of its own; "" when it got one.
func (r *Root) Unlimited() string {
	if p := r.trouble.Load(); p != nil {
		return *p
	}
	return ""
}

// Usage is how full a kernel's disk is; ok is false for a kernel without one.
func (r *Root) Usage(kernel cluster.KernelID) (u diskspace.Usage, ok bool) {
	disk := r.Layout(kernel).Disk
	if disk == "" {
		return u, false
	}
	return loopdisk.Usage(disk)
}

// DetachAll unmounts the disks of all kernels of a scratch directory and removes those that wait, for an agent that does not run and
// whose containers are gone. The kernels' directories stay for the agent's next start. An absent directory is no error.
func DetachAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach disks of kernels: %w", err)
	}
	errs := []error{loopdisk.RemoveWaiting(PoolDir(dir))}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			errs = append(errs, loopdisk.Detach(filepath.Join(dir, e.Name(), partDisk)))
		}
	}
	return errors.Join(errs...)
}
