package posix

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Locks are open-file-description locks on ranges far behind the data: they belong to the open file, hold
// between processes and, on network file systems, between machines, and end with their holder.
const (
	writerRange = int64(1) << 61   // one writer
	openRange   = writerRange + 1  // shared by everybody who has the file open
	pollFirst   = time.Millisecond // waiting cannot be cancelled in the kernel, so it is asked again
	pollMost    = 100 * time.Millisecond
)

// tryLock takes a range of f; ok is false while another open file has it.
func tryLock(f *os.File, start, length int64, exclusive bool) (ok bool, err error) {
	kind := int16(unix.F_RDLCK)
	if exclusive {
		kind = unix.F_WRLCK
	}
	err = setLock(f, kind, start, length)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File, start, length int64) { _ = setLock(f, unix.F_UNLCK, start, length) }

func setLock(f *os.File, kind int16, start, length int64) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	e := conn.Control(func(fd uintptr) {
		lk := unix.Flock_t{Type: kind, Start: start, Len: length}
		for {
			if err = unix.FcntlFlock(fd, unix.F_OFD_SETLK, &lk); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	if e != nil {
		return e
	}
	return err
}

// waitLock takes a range of f or ends with ctx, then with ok false.
func waitLock(ctx context.Context, f *os.File, start, length int64, exclusive bool) (ok bool, err error) {
	for wait := pollFirst; ; wait = min(2*wait, pollMost) {
		if ok, err = tryLock(f, start, length, exclusive); ok || err != nil {
			return ok, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return false, nil
		case <-t.C:
		}
	}
}

// noWait is a context that has ended: what waits with it tries once.
func noWait() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// lockFile opens the lock file at name in d and takes it. Lock files may be removed by their holder, so one
// that lost its name is no lock. ok is false when ctx ends first; with noWait it is tried once.
func (d *directory) lockFile(ctx context.Context, name string, exclusive bool) (f *os.File, ok bool, err error) {
	for {
		f, err = d.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600, noLinks)
		if err != nil {
			return nil, false, err
		}
		ok, err = waitLock(ctx, f, writerRange, 1, exclusive)
		if err != nil || !ok {
			f.Close()
			return nil, false, err
		}
		if d.holds(name, f) {
			return f, true, nil
		}
		f.Close()
	}
}

// holds tells whether name in d is the open file f.
func (d *directory) holds(name string, f *os.File) bool {
	at, err := d.stat(name)
	if err != nil {
		return false
	}
	var have unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, statMask, &have)
	return err == nil && same(&at, &have)
}
