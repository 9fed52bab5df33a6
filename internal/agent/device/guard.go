package device

import (
	"context"

	"berth.dev/berth/internal/fault"
)

// Guard is for work that may hang in the host's kernel, as reading a file of a driver does whose hardware does not answer. It does one
// such work at a time. Make it with NewGuard.
type Guard struct{ busy chan struct{} }

// NewGuard returns a guard that does nothing yet.
func NewGuard() Guard { return Guard{make(chan struct{}, 1)} }

// Guarded does work and returns its result, or an error when ctx ends before. Work that hangs is then left behind, and nothing else is
// begun under the same guard before it has ended: at most one goroutine ever waits for hardware.
func Guarded[T any](ctx context.Context, g Guard, work func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case g.busy <- struct{}{}:
	case <-ctx.Done():
		return none, silent(ctx)
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() { // ends with the work
		value, err := work()
		<-g.busy
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, silent(ctx)
	}
}

func silent(ctx context.Context) error {
	return fault.Unavailablef("the host's kernel does not answer").WithCause(ctx.Err()).
		WithNext("look into the kernel's log for the device's driver")
}
