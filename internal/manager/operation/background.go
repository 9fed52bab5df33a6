package operation

import (
	"context"
	"sync"

	"berth.dev/berth/internal/fault"
)

// maxBackground bounds how much background work runs at once.
const maxBackground = 8

// background owns the goroutines of work that outlives its request.
type background struct {
	ctx    context.Context
	cancel context.CancelFunc
	turn   chan struct{}

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

func newBackground(atOnce int) *background {
	ctx, cancel := context.WithCancel(context.Background())
	return &background{ctx: ctx, cancel: cancel, turn: make(chan struct{}, atOnce)}
}

// start runs fn until it returns or the service stops; it refuses when too much runs already.
func (b *background) start(fn func(ctx context.Context)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return fault.Unavailablef("the manager is stopping").WithNext("try again in a moment")
	}
	select {
	case b.turn <- struct{}{}:
	default:
		return fault.Unavailablef("the manager has %d background tasks running already", cap(b.turn)).WithNext("try again later")
	}
	b.running.Go(func() {
		defer func() { <-b.turn }()
		fn(b.ctx)
	})
	return nil
}

// stop cancels what runs and waits for it.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
}
