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
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			if err := t.Check(ctx); err != nil {
				return 0, err
			}
			return c.Every, n.sweep(ctx, c)
		}}
	}}
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
