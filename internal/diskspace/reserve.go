package diskspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
)

// Reserve is a file that occupies space for one purpose: to be given back when the file system is nearly full, so that those who
// keep the platform running can go on writing while others are made to stop. It is given back in parts, because whoever fills the
// disk takes what is there and usually ends at its first error. It is made again when there is room.
type Reserve struct {
	path  string
	size  int64
	share int // most percent of the file system
	log   *slog.Logger
	clock chassis.Clock
	of    func(path string) (Usage, error)

	held     int64
	released time.Time // when a part was last given back
	problem  string    // told last
}

const (
	// reserveEvery is the time between two looks. A look is one call of statfs.
	reserveEvery = 200 * time.Millisecond
	// reserveShare is the largest part of the file system that is held back, in percent.
	reserveShare = 5
	// parts is in how many parts the reserve is given back, partEvery the shortest time between two.
	parts     = 8
	partEvery = time.Second
	// roomFactor times the reserve must be free before it is made again, so that it does not come and go.
	roomFactor = 3
)

// NewReserve prepares a reserve of at most size bytes in the file path. A size of zero keeps none.
func NewReserve(path string, size int64, log *slog.Logger, clock chassis.Clock) *Reserve {
	return &Reserve{path: path, size: size, share: reserveShare, log: log, clock: clock, of: Of}
}

// Run holds the reserve until ctx ends; the file stays. Trouble is logged and never ends it.
func (r *Reserve) Run(ctx context.Context) error {
	tick := r.clock.NewTicker(reserveEvery)
	defer tick.Stop()
	for {
		r.Look()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
}

// Look looks once and makes the reserve, or gives it back. It reports how many bytes are held.
func (r *Reserve) Look() int64 {
	if err := r.look(); err != nil {
		r.tell(err.Error())
		return r.held
	}
	r.tell("")
	return r.held
}

func (r *Reserve) look() error {
	u, err := r.of(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	want := min(r.size, u.Total/100*int64(r.share))
	if r.held == 0 {
		if st, err := os.Lstat(r.path); err == nil && st.Mode().IsRegular() {
			r.held = st.Size() // an earlier process left it
		}
	}
	switch {
	case want <= 0, r.held > want:
		return r.release()
	case u.Free < want/parts*2:
		return r.giveBack(want / parts)
	case r.held < want && u.Free >= roomFactor*want:
		return r.hold(want)
	}
	return nil
}

// giveBack makes the file smaller by one part.
func (r *Reserve) giveBack(part int64) error {
	now := r.clock.Now()
	if r.held == 0 || now.Sub(r.released) < partEvery {
		return nil
	}
	r.log.Warn("the disk of the state directory is nearly full; a part of its reserve is given to the platform", "path", r.path,
		"reserve", r.held, "part", part)
	r.released = now
	if r.held <= part {
		return r.release()
	}
	if err := os.Truncate(r.path, r.held-part); err != nil {
		return fmt.Errorf("give back a part of the reserve of the disk: %w", err)
	}
	r.held -= part
	return nil
}

// release needs no space: the file is removed.
func (r *Reserve) release() error {
	err := os.Remove(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// A file system that is full to the last block may refuse to change a directory.
		if terr := os.Truncate(r.path, 0); terr != nil {
			return fmt.Errorf("give back the reserve of the disk: %w", errors.Join(err, terr))
		}
	}
	r.held = 0
	return nil
}

func (r *Reserve) hold(size int64) error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep a reserve of the disk: %w", err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			r.size = 0 // such a file system cannot be reserved; nothing is written in its place
		}
		return errors.Join(fmt.Errorf("keep a reserve of the disk: %w", os.NewSyscallError("fallocate", err)), r.release())
	}
	r.held = size
	return nil
}

// tell logs a problem once, and its end.
func (r *Reserve) tell(problem string) {
	if problem == r.problem {
		return
	}
	r.problem = problem
	if problem == "" {
		r.log.Info("the reserve of the disk is as it should be", "path", r.path)
		return
	}
	r.log.Warn("the reserve of the disk is not as it should be", "path", r.path, "err", problem)
}
