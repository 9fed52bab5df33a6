package transfer

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
)

// limiter bounds what goes on at one time, together and for each of the keys that it is about.
type limiter struct {
	all     int
	mu      sync.Mutex
	total   int
	byKey   map[string]int
	waiting int
	freed   chan struct{} // closed when a place gets free
}

// share is what may go on at one time about one thing.
type share struct {
	key  string
	most int
}

func newLimiter(all int) *limiter {
	return &limiter{all: all, byKey: map[string]int{}, freed: make(chan struct{})}
}

// full tells whether nothing more fits; l.mu is held.
func (l *limiter) full(shares []share) bool {
	for _, s := range shares {
		if l.byKey[s.key] >= s.most {
			return true
		}
	}
	return l.total >= l.all
}

// enter waits for a place, for a while; as many may wait as may be inside.
func (l *limiter) enter(ctx context.Context, wait time.Duration, shares ...share) (leave func(), err error) {
	busy := fault.Unavailablef("this storage proxy has as many transfers at one time as it can have, %d in all", l.all).
		WithReason(reasonBusy).WithNext("try again in some seconds")
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= l.all {
		return nil, busy
	}
	l.waiting++
	defer func() { l.waiting-- }()
	for l.full(shares) {
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return nil, busy
		}
	}
	l.total++
	for _, s := range shares {
		l.byKey[s.key]++
	}
	return sync.OnceFunc(func() { l.leave(shares) }), nil
}

func (l *limiter) leave(shares []share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	for _, s := range shares {
		if l.byKey[s.key]--; l.byKey[s.key] == 0 {
			delete(l.byKey, s.key)
		}
	}
	close(l.freed)
	l.freed = make(chan struct{})
}

// shares are what a transfer counts against: its folder; its quota scope, so that no owner of many folders takes all
// places; and its volume, so that one that hangs leaves places to the others.
func (s *Server) shares(g grant, all int) []share {
	volume := all
	if len(s.o.VolumeNames()) > 1 {
		volume = max(all*3/4, 1)
	}
	return []share{
		{g.volume, volume},
		{g.volume + "/" + g.folder.Scope.String(), max(all/2, 1)},
		{g.volume + "/" + g.folder.String(), s.o.MaxPerFolder},
	}
}

// empty waits until nobody is inside.
func (l *limiter) empty(ctx context.Context) error {
	for {
		l.mu.Lock()
		total, freed := l.total, l.freed
		l.mu.Unlock()
		if total == 0 {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
