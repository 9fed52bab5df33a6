// Package load asks a cluster all the time and counts what fails, for tests that kill parts of it meanwhile.
package load

import (
	"context"
	"sync"
	"testing"
	"time"
)

// patience bounds one request.
const patience = 2 * time.Minute

// asked is a request with its outcome.
type asked struct {
	what         string
	began, ended time.Time
	err          error
}

// Load is a number of clients that ask again and again.
type Load struct {
	t      testing.TB
	pace   time.Duration
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu   sync.Mutex
	done []asked
}

// Begin makes a load without clients, whose turns are that far apart; it ends with the test.
func Begin(t testing.TB, pace time.Duration) *Load {
	l := &Load{t: t, pace: pace}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	t.Cleanup(l.Stop)
	return l
}

// Stop ends the load and waits for its clients.
func (l *Load) Stop() {
	l.cancel()
	l.group.Wait()
}

// Ended is done when the load ends.
func (l *Load) Ended() context.Context { return l.ctx }

// Client adds a client, which takes its turns, from 0 on, until the load ends.
func (l *Load) Client(turn func(n int)) {
	l.group.Go(func() {
		for n := 0; l.Pause(); n++ {
			turn(n)
		}
	})
}

// Pause waits for the next turn; false when the load has ended.
func (l *Load) Pause() bool {
	select {
	case <-time.After(l.pace):
		return true
	case <-l.ctx.Done():
		return false
	}
}

// Do makes a request and notes what became of it. It reports whether it succeeded and there is more to ask.
func (l *Load) Do(what string, request func(ctx context.Context) error) bool {
	return l.On(what, time.Time{}, request)
}

// On is Do on a connection that was opened earlier: it is the connection that breaks, so a failure began when it was opened.
func (l *Load) On(what string, opened time.Time, request func(ctx context.Context) error) bool {
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	a := asked{what: what, began: time.Now()}
	a.err = request(ctx)
	if a.ended = time.Now(); l.ctx.Err() != nil {
		return false
	}
	if a.err != nil && !opened.IsZero() {
		a.began = opened
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, a)
	return a.err == nil
}

// First tells, by kind, how long it took from an instant to the first success of a request that began later.
func (l *Load) First(since time.Time) map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first(since)
}

func (l *Load) first(since time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, a := range l.done {
		if a.err != nil || a.began.Before(since) {
			continue
		}
		took := a.ended.Sub(since).Round(time.Millisecond)
		if best, there := out[a.what]; !there || took < best {
			out[a.what] = took
		}
	}
	return out
}

// Kill is when a part of the cluster was killed: at some instant between the two. The zero value is that nothing was.
type Kill struct{ Before, After time.Time }

// Judge asserts that nothing has failed since the last call but requests that were under way at the kill, and logs how many there were,
// with the times to the first successes since an instant.
func (l *Load) Judge(what string, k Kill, since time.Time) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	failed, all := map[string]int{}, map[string]int{}
	for _, a := range l.done {
		all[a.what]++
		switch {
		case a.err == nil:
		case a.began.After(k.After) || a.ended.Before(k.Before):
			l.t.Errorf("%s: %s failed that began %s after the kill and took %s: %v", what, a.what,
				a.began.Sub(k.After).Round(time.Millisecond), a.ended.Sub(a.began).Round(time.Millisecond), a.err)
		default:
			failed[a.what]++
		}
	}
	l.t.Logf("%s: asked %v; failed while under way %v; first successes after %v", what, all, failed, l.first(since))
	l.done = nil
}
