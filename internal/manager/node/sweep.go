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
		var last time.Time // the last pass of this term, by the database's clock
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			if err := t.Check(ctx); err != nil {
				return 0, err
			}
			now, err := n.Store.SessionNow(ctx)
			if err != nil {
				return 0, fmt.Errorf("read the clock: %w", err)
			}
			if absent(last, now, c) {
				if err := n.spare(ctx, c); err != nil {
					return 0, err
				}
			}
			last = now
			return c.Every, n.sweep(ctx, c)
		}}
	}}
}

// sweepSlack is how much later than due a sweep may come without anything having been away.
const sweepSlack = 10 * time.Second

// absent reports whether nobody looked after leases and deadlines for a while: this manager has just begun to lead, was suspended, or
// could not reach the database. Agents could not renew leases then, nor could their reports be stored.
func absent(last, now time.Time, c SweepConfig) bool {
	return last.IsZero() || now.Sub(last) > c.Every+sweepSlack
}

// spare moves leases and deadlines, so that an absence is charged to nobody: each has at least a lease's time from now on.
func (n *Reports) spare(ctx context.Context, c SweepConfig) error {
	if err := n.Store.SpareLeases(ctx, c.LostGrace, c.Lease); err != nil {
		return fmt.Errorf("spare leases: %w", err)
	}
	if err := n.Store.SpareLost(ctx, c.LostGrace, c.Lease); err != nil {
		return fmt.Errorf("spare lost kernels: %w", err)
	}
	if err := n.Store.SpareDeadlines(ctx, c.Lease); err != nil {
		return fmt.Errorf("spare deadlines: %w", err)
	}
	return nil
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
	if count, err := n.TellLosses(ctx); err != nil {
		return fmt.Errorf("tell sessions of broken devices: %w", err)
	} else if count > 0 {
		n.Log.Warn("devices of running kernels broke", "kernels", count)
	}
	return nil
}
