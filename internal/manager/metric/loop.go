package metric

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// Config says how much history is kept.
type Config struct {
	// Retention is how long it is kept, in hours; 0 keeps none and records nothing.
	Retention time.Duration
	// Minutes is how long single minutes are kept. Older ones are summed up to hours.
	Minutes time.Duration
	// MaxRows bounds the minutes of kernels, roughly; the oldest days go first. About 150 bytes each.
	MaxRows int
	// Export tells a Prometheus what kernels and agents use, at /metrics of the admin port.
	Export bool
	// Prometheus stands in for our tables where it is named.
	Prometheus PrometheusConfig
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{Retention: 14 * 24 * time.Hour, Minutes: 48 * time.Hour, MaxRows: 20_000_000}
}

// Validate checks the ranges.
func (c Config) Validate() error {
	const day = 24 * time.Hour
	if err := c.Prometheus.validate(); err != nil {
		return err
	}
	switch {
	case c.Retention == 0:
		return nil
	case c.Retention < day || c.Retention > 3660*day:
		return fault.Invalidf("metrics.retention is %s", c.Retention).WithNext("choose between a day and ten years, or 0 for no history")
	case c.Minutes < day || c.Minutes > c.Retention:
		return fault.Invalidf("metrics.minutes is %s", c.Minutes).WithNext("choose between a day and metrics.retention")
	case c.MaxRows < 10_000 || c.MaxRows > 10_000_000_000:
		return fault.Invalidf("metrics.max_rows is %d", c.MaxRows).WithNext("choose between 10000 and 10000000000")
	}
	return nil
}

const (
	// keepEvery is the time between two passes, keepRest that between two hours that are summed up one after the other.
	keepEvery = time.Minute
	keepRest  = 200 * time.Millisecond
	// dropEvery is the time between two looks for old days.
	dropEvery = time.Hour
	// late is how long after an hour its minutes may still come.
	late = 5 * time.Minute
)

// Loops returns the control loop of history: hours of what is over, tables for coming days, none for old ones.
func Loops(c Config, now func() time.Time) []reconcile.Loop {
	if c.Retention == 0 {
		return nil
	}
	return []reconcile.Loop{{Name: "metrics", Begin: func(t reconcile.Term) reconcile.Work {
		k := &keeping{c: c, now: now, term: t}
		return reconcile.Work{Pass: k.pass}
	}}}
}

// keeping is the work of one term.
type keeping struct {
	c       Config
	now     func() time.Time
	term    reconcile.Term
	dropped time.Time // when old days were looked for
}

func (k *keeping) pass(ctx context.Context) (wait time.Duration, err error) {
	now := k.now().UTC()
	more := false
	err = k.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		more = false
		for _, day := range []time.Time{now, now.Add(24 * time.Hour)} {
			if err := tx.MakeMetricDay(ctx, day); err != nil {
				return fmt.Errorf("make the tables of a day: %w", err)
			}
		}
		if now.Sub(k.dropped) >= dropEvery {
			if _, err := tx.DropMetricDays(ctx, now.Add(-k.c.Minutes), now.Add(-k.c.Retention), int64(k.c.MaxRows)); err != nil {
				return fmt.Errorf("drop old days: %w", err)
			}
		}
		more, err = sumUp(ctx, tx, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("keep the history of use: %w", err)
	}
	if now.Sub(k.dropped) >= dropEvery {
		k.dropped = now
	}
	if more {
		return keepRest, nil
	}
	return keepEvery, nil
}

// sumUp sums the minutes of the next hour that has some, and reports whether there may be more.
func sumUp(ctx context.Context, tx *store.Tx, now time.Time) (more bool, err error) {
	until, err := tx.MetricProgress(ctx)
	if err != nil {
		return false, fmt.Errorf("read how far hours are: %w", err)
	}
	first, err := tx.FirstMetricMinute(ctx, until)
	if err != nil {
		return false, fmt.Errorf("look for minutes: %w", err)
	}
	hour := first.UTC().Truncate(time.Hour)
	if hour.Add(time.Hour + late).After(now) {
		return false, nil
	}
	// The kept hours have their tables: those of the minutes' days are made together with them.
	if err := tx.SumKernelMinutes(ctx, hour); err != nil {
		return false, fmt.Errorf("sum up minutes of kernels: %w", err)
	}
	if err := tx.SumAgentMinutes(ctx, hour); err != nil {
		return false, fmt.Errorf("sum up minutes of agents: %w", err)
	}
	return true, tx.SetMetricProgress(ctx, hour.Add(time.Hour))
}
