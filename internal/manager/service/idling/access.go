package idling

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// Accesses remembers when sessions were used through this manager, so that a use costs no write of its own. Streams
// count for as long as they are open. What is gathered when the process dies is lost: some seconds of an inactivity of minutes.
type Accesses struct {
	mu   sync.Mutex
	last map[cluster.SessionID]time.Time
	open map[cluster.SessionID]int
}

// accessesEvery is how often gathered accesses are written.
const accessesEvery = 10 * time.Second

// Touch notes that a session was used.
func (a *Accesses) Touch(id cluster.SessionID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[cluster.SessionID]time.Time{}
	}
	if now.After(a.last[id]) {
		a.last[id] = now
	}
}

// Hold counts a session as used until release; clock tells when that was.
func (a *Accesses) Hold(id cluster.SessionID, clock func() time.Time) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[cluster.SessionID]int{}
	}
	a.open[id]++
	return sync.OnceFunc(func() {
		a.Touch(id, clock())
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[id]--; a.open[id] <= 0 {
			delete(a.open, id)
		}
	})
}

// Flush writes what was gathered; when that fails it is kept for the next time.
func (a *Accesses) Flush(ctx context.Context, s *store.Store, now time.Time) error {
	a.mu.Lock()
	last := a.last
	a.last = nil
	if last == nil {
		last = map[cluster.SessionID]time.Time{}
	}
	for id := range a.open {
		last[id] = now
	}
	a.mu.Unlock()
	ids := make([]string, 0, len(last))
	for id := range last {
		ids = append(ids, string(id))
	}
	slices.Sort(ids)
	for len(ids) > 0 {
		n := min(len(ids), 1000)
		times := make([]time.Time, n)
		for i, id := range ids[:n] {
			times[i] = last[cluster.SessionID(id)]
		}
		if err := s.TouchSessions(ctx, times, ids[:n]); err != nil {
			for id, at := range last {
				a.Touch(id, at)
			}
			return fmt.Errorf("store accesses of sessions: %w", err)
		}
		ids = ids[n:]
	}
	return nil
}

// Run writes what is gathered every some seconds until ctx ends, and then once more.
func (a *Accesses) Run(ctx context.Context, s *store.Store, clock func() time.Time, log *slog.Logger) {
	tick := time.NewTicker(accessesEvery)
	defer tick.Stop()
	flush := func(ctx context.Context) {
		if err := a.Flush(ctx, s, clock()); err != nil {
			log.Warn("could not store accesses of sessions", "error", err)
		}
	}
	for {
		select {
		case <-tick.C:
			flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			flush(last)
			return
		}
	}
}

// Stream counts as use until it is closed.
type Stream struct {
	io.ReadWriteCloser
	Release func()
}

// Close ends the use and the stream.
func (h *Stream) Close() error {
	h.Release()
	return h.ReadWriteCloser.Close()
}

// Body is that of a reply that counts as use until it is closed.
type Body struct {
	io.ReadCloser
	Release func()
}

// Close ends the use and the body.
func (h *Body) Close() error {
	h.Release()
	return h.ReadCloser.Close()
}
