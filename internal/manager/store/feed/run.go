package feed

import (
	"context"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/store"
)

// Run looks until ctx ends: at the beginning, for every hint and with every tick.
func (f *Follower) Run(ctx context.Context, st *store.Store, s Source, c Consumer) {
	wakes := st.Wakes(f.cfg.Topics)
	defer wakes.Close()
	f.run(ctx, wakes.C, wakes.Take, s, c)
}

func (f *Follower) run(ctx context.Context, hints <-chan struct{}, take func() []string, s Source, c Consumer) {
	tick := f.cfg.Clock.NewTicker(f.cfg.Tick)
	defer tick.Stop()
	var pause chassis.Timer // runs after a failure
	var over <-chan time.Time
	defer func() {
		if pause != nil {
			pause.Stop()
		}
	}()
	all := []string{store.TopicAll}
	want := f.hint(all)
	for {
		if want && over == nil {
			if _, err := f.Look(ctx, s, c); err == nil {
				want = false
			} else if ctx.Err() == nil {
				pause = f.cfg.Clock.NewTimer(f.cfg.Retry)
				over = pause.C()
			}
		}
		// Hints are heard while the database fails: they are not only about rows.
		select {
		case <-hints:
			if topics := take(); len(topics) > 0 {
				want = f.hint(topics) || want
			}
		case <-tick.C():
			want = f.hint(all) || want
		case <-over:
			over = nil
		case <-ctx.Done():
			return
		}
	}
}

func (f *Follower) hint(topics []string) bool { return f.cfg.Hint == nil || f.cfg.Hint(topics) }

// ClockOf is the machine's clock with another present: its timers and tickers run in real time.
func ClockOf(now func() time.Time) chassis.Clock {
	return clockOf{chassis.RealClock(), now}
}

type clockOf struct {
	chassis.Clock
	now func() time.Time
}

func (c clockOf) Now() time.Time { return c.now() }
