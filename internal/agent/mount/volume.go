package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

// maxStuck bounds the calls that may be under way, and so be stuck, on one volume beside its probe.
const maxStuck = 4

// volume is one volume as this node reaches it.
type volume struct {
	host, path string
	calls      chan struct{} // of maxStuck

	mu      sync.Mutex
	hung    time.Time // zero while it answers
	probing bool
}

func newVolume(host, path string) *volume {
	return &volume{host: host, path: filepath.Clean(path), calls: make(chan struct{}, maxStuck)}
}

func (v *volume) hungSince() (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.hung, !v.hung.IsZero()
}

// answered records that a call returned, gaveUp that one did not return in time. Both report whether the state changed.
func (v *volume) answered() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := !v.hung.IsZero()
	v.hung = time.Time{}
	return was
}

func (v *volume) gaveUp(began time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hung.IsZero() {
		return false
	}
	v.hung = began
	return true
}

func (v *volume) errHung() error {
	return fault.Unavailablef("the file system of volume %s does not answer on this node", v.host).WithReason(ReasonHung).
		WithNext("wait until %s answers again, or ask an administrator to look at it", v.path)
}

// do carries out a call that may never return. It waits for it as long as patience and ctx allow; after that
// the call goes on alone and discard gets its result. A volume that hangs gets no further calls.
func do[T any](ctx context.Context, v *volume, patience time.Duration, changed func(), call func() (T, error), discard func(T)) (T, error) {
	var none T
	if _, hung := v.hungSince(); hung {
		return none, v.errHung()
	}
	began := time.Now()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case v.calls <- struct{}{}:
	case <-limit.C:
		return none, v.errHung() // those before us are the ones that tell
	case <-ctx.Done():
		return none, ctx.Err()
	}
	type outcome struct {
		value T
		err   error
	}
	done, abandoned := make(chan outcome), make(chan struct{})
	go func() {
		value, err := call()
		<-v.calls
		if v.answered() {
			changed()
		}
		select {
		case done <- outcome{value, err}:
		case <-abandoned:
			if err == nil {
				discard(value)
			}
		}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-limit.C:
		close(abandoned)
		if v.gaveUp(began) {
			changed()
		}
		return none, v.errHung()
	case <-ctx.Done():
		close(abandoned)
		return none, ctx.Err()
	}
}

// probe asks the file system something that no cache answers. It reports whether what is known
// of the volume changed.
func (v *volume) probe(ctx context.Context, patience time.Duration) (changed bool) {
	v.mu.Lock()
	busy := v.probing
	v.probing = true
	v.mu.Unlock()
	if busy {
		return false
	}
	began := time.Now()
	done := make(chan bool, 1)
	go func() {
		ask(v.path)
		v.mu.Lock()
		v.probing = false
		v.mu.Unlock()
		done <- v.answered()
	}()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case changed = <-done:
		return changed
	case <-limit.C:
		return v.gaveUp(began)
	case <-ctx.Done():
		return false
	}
}

// ask makes one call that only the file system itself can answer. The answer does not matter.
func ask(path string) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var sx unix.Statx_t
	_ = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &sx)
	var st unix.Statfs_t
	_ = unix.Fstatfs(fd, &st)
}

// retry repeats a call that a signal interrupted, or whose path was renamed under it.
func retry(call func() (int, error)) (int, error) {
	for n := 0; ; n++ {
		fd, err := call()
		if !errors.Is(err, unix.EINTR) && (!errors.Is(err, unix.EAGAIN) || n >= 100) {
			return fd, err
		}
	}
}

func syscallError(name string, err error) error { return os.NewSyscallError(name, err) }
