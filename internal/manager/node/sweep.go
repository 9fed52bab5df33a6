package node

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/manager/reconcile"
)

// SweepConfig says how patient the sweep is.
type SweepConfig struct {
	// Every is the time between looks at leases and deadlines.
	Every time.Duration
	// Lease is how long an agent may be silent before it is LOST.
	Lease time.Duration
	// LostGrace is how long a LOST agent may return before its kernels end.
	LostGrace time.Duration
}

// Loop looks after the leases of agents and the deadlines of their kernels.
func (n *Reports) Loop(c SweepConfig) reconcile.Loop {
	return reconcile.Loop{Name: "sweep", Begin: func(t reconcile.Term) reconcile.Work {
		var pause settling
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			if err := t.Check(ctx); err != nil {
				return 0, err
			}
			now, err := n.Store.SessionNow(ctx)
			if err != nil {
				return 0, fmt.Errorf("read the clock: %w", err)
			}
			if away := pause.looked(now, c); away > 0 {
				n.Log.Warn("leases and deadlines were not looked after for a while; agents get time to report", "away", away, "time", c.Lease)
			}
			if now.Before(pause.until) {
				return c.Every, nil
			}
			return c.Every, n.sweep(ctx, c)
		}}
	}}
}

// sweepSlack is how much later than due a sweep may come without anything having been away.
const sweepSlack = 10 * time.Second

// settling notices that sweeps failed or did not come for a while: the database was away, this process was suspended, or it has just begun
// to lead. Agents may not have been able to renew leases or report then, so they get the time of a lease to do it before anything is held
// against them. Times are the database's.
type settling struct{ last, until time.Time }

// looked notes a sweep and returns how long there was none, 0 when it came in time.
func (s *settling) looked(now time.Time, c SweepConfig) (away time.Duration) {
	if !s.last.IsZero() {
		away = now.Sub(s.last)
	}
	if away <= c.Every+sweepSlack {
		away = 0
	}
	if away > 0 || s.last.IsZero() {
		s.until = now.Add(c.Lease)
	}
	s.last = now
	return away
}

func (n *Reports) sweep(ctx context.Context, c SweepConfig) error {
	if _, err := n.LoseSilent(ctx, c.Lease); err != nil {
		return fmt.Errorf("look for silent agents: %w", err)
	}
	if count, err := n.ExpireLost(ctx, c.LostGrace); err != nil {
		return fmt.Errorf("end kernels of lost agents: %w", err)
	} else if count > 0 {
		n.Log.Warn("gave up kernels of lost agents", "kernels", count, "grace", c.LostGrace)
	}
	if count, err := n.MissDeadlines(ctx); err != nil {
		return fmt.Errorf("enforce deadlines: %w", err)
	} else if count > 0 {
		n.Log.Warn("kernels missed their deadlines", "sessions", count)
	}
	return nil
}
