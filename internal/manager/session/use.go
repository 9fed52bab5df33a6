package session

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

// Uses remembers when sessions were used through this manager, so that a use costs no write of its own. Streams
// count for as long as they are open. What is gathered when the process dies is lost: some seconds of an inactivity of minutes.
type Uses struct {
	mu   sync.Mutex
	last map[cluster.SessionID]time.Time
	open map[cluster.SessionID]int
	// worked are kernels that did something by themselves, noted when they were last written.
	worked map[cluster.KernelID]work
}

// work is when a kernel worked, and when that was written last.
type work struct{ at, written time.Time }

const (
	// workEvery is the least time between two writes that a kernel works: work goes on for long.
	workEvery = 20 * time.Second
	// workForgotten is how long a kernel that does not work any more is remembered.
	workForgotten = time.Minute
)

// usesEvery is how often gathered uses are written.
const usesEvery = 10 * time.Second

// Touch notes that a session was used.
func (u *Uses) Touch(id cluster.SessionID, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[cluster.SessionID]time.Time{}
	}
	if now.After(u.last[id]) {
		u.last[id] = now
	}
}

// Worked notes that a kernel did something by itself, which is use of its session.
func (u *Uses) Worked(id cluster.KernelID, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.worked == nil {
		u.worked = map[cluster.KernelID]work{}
	}
	w := u.worked[id]
	w.at = now
	u.worked[id] = w
}

// dueWork are the kernels whose work is to be written now.
func (u *Uses) dueWork(now time.Time) (ids []string, times []time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, w := range u.worked {
		switch {
		case w.at.After(w.written) && now.Sub(w.written) >= workEvery:
			ids, times = append(ids, string(id)), append(times, w.at)
			w.written = w.at
			u.worked[id] = w
		case now.Sub(w.at) > workForgotten:
			delete(u.worked, id)
		}
	}
	return ids, times
}

// flushWork writes which kernels worked. What could not be written is written with the work that follows.
func (u *Uses) flushWork(ctx context.Context, s *store.Store, now time.Time) error {
	ids, times := u.dueWork(now)
	for len(ids) > 0 {
		n := min(len(ids), 1000)
		if err := s.TouchWorking(ctx, ids[:n], times[:n]); err != nil {
			return fmt.Errorf("store the work of kernels: %w", err)
		}
		ids, times = ids[n:], times[n:]
	}
	return nil
}

// Hold counts a session as used until release; clock tells when that was.
func (u *Uses) Hold(id cluster.SessionID, clock func() time.Time) (release func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open == nil {
		u.open = map[cluster.SessionID]int{}
	}
	u.open[id]++
	return sync.OnceFunc(func() {
		u.Touch(id, clock())
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.open[id]--; u.open[id] <= 0 {
			delete(u.open, id)
		}
	})
}

// Flush writes what was gathered; when that fails it is kept for the next time.
func (u *Uses) Flush(ctx context.Context, s *store.Store, now time.Time) error {
	u.mu.Lock()
	last := u.last
	u.last = nil
	if last == nil {
		last = map[cluster.SessionID]time.Time{}
	}
	for id := range u.open {
		last[id] = now
	}
	u.mu.Unlock()
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
				u.Touch(id, at)
			}
			return fmt.Errorf("store uses of sessions: %w", err)
		}
		ids = ids[n:]
	}
	return u.flushWork(ctx, s, now)
}

// run writes what is gathered every some seconds until ctx ends, and then once more.
func (u *Uses) run(ctx context.Context, s *store.Store, clock func() time.Time, log *slog.Logger) {
	tick := time.NewTicker(usesEvery)
	defer tick.Stop()
	flush := func(ctx context.Context) {
		if err := u.Flush(ctx, s, clock()); err != nil {
			log.Warn("could not store uses of sessions", "error", err)
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

// usedStream counts as use until it is closed.
type usedStream struct {
	io.ReadWriteCloser
	release func()
}

// Close ends the use and the stream.
func (h *usedStream) Close() error {
	h.release()
	return h.ReadWriteCloser.Close()
}

// usedBody is that of a reply that counts as use until it is closed.
type usedBody struct {
	io.ReadCloser
	release func()
}

// Close ends the use and the body.
func (h *usedBody) Close() error {
	h.release()
	return h.ReadCloser.Close()
}
