package chassis

import (
	"context"
	"time"
)

// Clock is the time as a service sees it. Tests hand in one that they advance by hand.
type Clock interface {
	Now() time.Time
	NewTimer(d time.Duration) Timer
	NewTicker(d time.Duration) Ticker
	// AfterFunc runs f in its own goroutine once d has passed; the timer's C is nil.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is one pending point in time.
type Timer interface {
	C() <-chan time.Time
	// Stop reports whether it kept the timer from firing.
	Stop() bool
	Reset(d time.Duration) bool
}

// Ticker fires again and again; ticks nobody takes are dropped.
type Ticker interface {
	C() <-chan time.Time
	Stop()
	Reset(d time.Duration)
}

// RealClock returns the machine's clock.
func RealClock() Clock { return realClock{} }

type realClock struct{}

func (realClock) Now() time.Time                   { return time.Now() }
func (realClock) NewTimer(d time.Duration) Timer   { return realTimer{time.NewTimer(d)} }
func (realClock) NewTicker(d time.Duration) Ticker { return realTicker{time.NewTicker(d)} }
func (realClock) AfterFunc(d time.Duration, f func()) Timer {
	return realTimer{time.AfterFunc(d, f)}
}

type realTimer struct{ t *time.Timer }

func (t realTimer) C() <-chan time.Time        { return t.t.C }
func (t realTimer) Stop() bool                 { return t.t.Stop() }
func (t realTimer) Reset(d time.Duration) bool { return t.t.Reset(d) }

type realTicker struct{ t *time.Ticker }

func (t realTicker) C() <-chan time.Time   { return t.t.C }
func (t realTicker) Stop()                 { t.t.Stop() }
func (t realTicker) Reset(d time.Duration) { t.t.Reset(d) }

// Wait returns nil once d has passed on the clock, or the context's error before that.
func Wait(ctx context.Context, clock Clock, d time.Duration) error {
	t := clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff yields growing waits between attempts. The zero value is not usable: set Min and
// Max. It holds no randomness; callers that need jitter add their own.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next returns the wait before the next attempt and doubles the one after it, up to Max.
func (b *Backoff) Next() time.Duration {
	d := max(b.next, b.Min)
	b.next = min(2*d, b.Max)
	return min(d, b.Max)
}

// Reset begins again at Min, after a success.
func (b *Backoff) Reset() { b.next = 0 }
