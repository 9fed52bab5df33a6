package transfer

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
)

// limiter bounds transfers at one time, together and for each folder.
type limiter struct {
	all, each int
	mu        sync.Mutex
	total     int
	byKey     map[string]int
	waiting   int
	freed     chan struct{} // closed when a place gets free
}

func newLimiter(all, each int) *limiter {
	return &limiter{all: all, each: each, byKey: map[string]int{}, freed: make(chan struct{})}
}

// enter waits for a place, for a while; as many may wait as may be inside.
func (l *limiter) enter(ctx context.Context, key string, wait time.Duration) (leave func(), err error) {
	busy := fault.Unavailablef("this storage proxy has %d transfers at one time, %d in one folder", l.all, l.each).
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
	for l.total >= l.all || l.byKey[key] >= l.each {
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
	l.byKey[key]++
	return sync.OnceFunc(func() { l.leave(key) }), nil
}

func (l *limiter) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byKey[key]--; l.byKey[key] == 0 {
		delete(l.byKey, key)
	}
	close(l.freed)
	l.freed = make(chan struct{})
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
