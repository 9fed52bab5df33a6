package chassis

import (
	"context"
	"sync"
	"time"
)

const (
	// awakeBeat is how often a process notes that it runs. A longer time than awakeGap between two notes is a gap.
	awakeBeat = 500 * time.Millisecond
	awakeGap  = 3 * time.Second
)

// Awake measures the time in which this process ran. A process that was stopped (by a signal, by the host's hypervisor, by a host without
// any free core) finds its deadlines missed although nobody had the chance to meet them; deadlines by Awake do not count such gaps. A gap
// is noticed by whoever asks first after it.
type Awake struct {
	clock Clock

	mu   sync.Mutex
	last time.Time
	gaps time.Duration
}

// NewAwake returns a measure of a clock; Run must run for as long as it is used.
func NewAwake(clock Clock) *Awake { return &Awake{clock: clock, last: clock.Now()} }

// Run notes that the process runs, until ctx ends.
func (a *Awake) Run(ctx context.Context) {
	a.note()
	t := a.clock.NewTicker(awakeBeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C():
			a.note()
		}
	}
}

// note brings the measure up to date.
func (a *Awake) note() (now time.Time, gaps time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now = a.clock.Now()
	if d := now.Sub(a.last); d > awakeGap {
		a.gaps += d - awakeBeat
	}
	if now.After(a.last) {
		a.last = now
	}
	return now, a.gaps
}

// Now is the clock's time less all gaps: good for differences only.
func (a *Awake) Now() time.Time {
	now, gaps := a.note()
	return now.Add(-gaps)
}

// Gaps is the sum of all gaps so far.
func (a *Awake) Gaps() time.Duration {
	_, gaps := a.note()
	return gaps
}
