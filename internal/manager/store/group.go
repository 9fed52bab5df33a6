package store

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
)

// Group lets requests that come at the same time share their work, above all one commit. The first runs at once; those
// that come while it runs are the next batch, which one of them runs for all. Nobody returns before the batch
// with its request is done, and there is always one batch at a time.
type Group[T any] struct {
	// Rest says how long the next batch waits after one that took so long, so that in a rush batches are fewer and larger. Nil
	// means not at all.
	Rest func(batch []T, took time.Duration) time.Duration

	max   int
	run   func(ctx context.Context, batch []T)
	mu    sync.Mutex
	wait  []*turn[T]
	busy  bool
	after time.Time // no batch begins before
}

// turn is a request that waits: for its answer, or to be told to run the next batch.
type turn[T any] struct {
	item T
	lead chan struct{}
	done chan struct{} // closed after its batch
	err  error         // valid once done is closed
}

const (
	// maxWaiting bounds the requests of one group; more are refused.
	maxWaiting = 8192
	// batchTimeout bounds one batch. It has a time of its own, because no request may end the others'.
	batchTimeout = 30 * time.Second
)

// NewGroup makes a group whose batches have at most limit items. run leaves each item's answer in the item (T is a
// pointer), and must not let one item's failure reach the others.
func NewGroup[T any](limit int, run func(ctx context.Context, batch []T)) *Group[T] {
	return &Group[T]{max: limit, run: run}
}

// Do returns after a batch with the item has run. An error means that ctx ended first (the batch may still run) or
// that too many wait; the item's own answer is in the item.
func (g *Group[T]) Do(ctx context.Context, item T) error {
	t := &turn[T]{item: item, lead: make(chan struct{}, 1), done: make(chan struct{})}
	g.mu.Lock()
	if len(g.wait) >= maxWaiting {
		g.mu.Unlock()
		return fault.Unavailablef("%d requests of this kind are waiting already", maxWaiting).WithNext("try again in a moment")
	}
	g.wait = append(g.wait, t)
	if !g.busy {
		g.busy = true
		t.lead <- struct{}{}
	}
	g.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-t.lead:
		return g.leadWith(ctx, t)
	case <-ctx.Done():
		if !g.leave(t) {
			return fmt.Errorf("wait for a shared commit: %w", context.Cause(ctx))
		}
		return fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
	}
}

// leave takes a request that gave up out of the queue; false: a batch has it. The lead goes to somebody else.
func (g *Group[T]) leave(t *turn[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := false
	for i, w := range g.wait {
		if w == t {
			g.wait = append(g.wait[:i:i], g.wait[i+1:]...)
			found = true
			break
		}
	}
	select {
	case <-t.lead:
		g.next()
	default:
	}
	return found
}

// leadWith runs the next batch, which has the leader's own request, and gives the lead on.
func (g *Group[T]) leadWith(ctx context.Context, t *turn[T]) error {
	g.mu.Lock()
	pause := time.Until(g.after)
	g.mu.Unlock()
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			t.lead <- struct{}{}
			g.leave(t)
			return fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
		}
	}
	runtime.Gosched() // those who came in the same instant join
	g.mu.Lock()
	n := min(len(g.wait), g.max)
	batch := g.wait[:n:n]
	g.wait = append([]*turn[T](nil), g.wait[n:]...)
	g.mu.Unlock()
	items := make([]T, n)
	for i, w := range batch {
		items[i] = w.item
		w.err = fault.New(fault.Internal, "a shared commit broke off") // unless it comes to its end
	}
	began := time.Now()
	defer func() {
		for _, w := range batch {
			close(w.done)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.Rest != nil {
			now := time.Now()
			g.after = now.Add(g.Rest(items, now.Sub(began)))
		}
		g.next()
	}()
	// A batch belongs to nobody: neither the end of a request nor its transaction reaches it.
	bctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	g.run(bctx, items)
	for _, w := range batch {
		w.err = nil
	}
	return nil
}

// next tells the first who waits to run a batch; mu is held.
func (g *Group[T]) next() {
	if len(g.wait) == 0 {
		g.busy = false
		return
	}
	g.wait[0].lead <- struct{}{}
}

// Waiting is how many requests wait for a batch to begin.
func (g *Group[T]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.wait)
}
