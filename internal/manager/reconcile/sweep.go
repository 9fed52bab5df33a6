package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// batchAllowance is how long the runner and the agent have to enforce a batch timeout
// before the manager does.
const batchAllowance = time.Minute

// sweeping looks after leases and deadlines until ctx ends.
func (l *Loops) sweeping(ctx context.Context, token int64) error {
	tick := l.deps.Clock.NewTicker(l.cfg.Sweep)
	defer tick.Stop()
	for {
		if err := l.sweep(ctx, token); err != nil {
			if errors.Is(err, errDeposed) {
				return err
			}
			if ctx.Err() == nil {
				l.metrics.failures.WithLabelValues("sweep").Inc()
				l.deps.Log.Error("sweep failed", "err", err)
			}
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *Loops) sweep(ctx context.Context, token int64) error {
	if err := l.fenced(ctx, token, func(context.Context, *store.Tx) error { return nil }); err != nil {
		return err
	}
	lost, err := l.deps.Nodes.LoseSilent(ctx, l.cfg.AgentLease)
	if err != nil {
		return fmt.Errorf("look for silent agents: %w", err)
	}
	for _, agent := range lost {
		l.deps.Log.Warn("agent is lost", "agent", agent, "lease", l.cfg.AgentLease)
	}
	if n, err := l.deps.Nodes.ExpireLost(ctx, l.cfg.LostGrace); err != nil {
		return fmt.Errorf("end kernels of lost agents: %w", err)
	} else if n > 0 {
		l.deps.Log.Warn("gave up kernels of lost agents", "kernels", n, "grace", l.cfg.LostGrace)
	}
	if n, err := l.deps.Nodes.MissDeadlines(ctx); err != nil {
		return fmt.Errorf("enforce deadlines: %w", err)
	} else if n > 0 {
		l.deps.Log.Warn("kernels missed their deadlines", "sessions", n)
	}
	return l.fenced(ctx, token, l.stopOverdueBatches)
}

func (l *Loops) stopOverdueBatches(ctx context.Context, tx *store.Tx) error {
	ids, err := tx.OverdueBatches(ctx, batchAllowance)
	if err != nil || len(ids) == 0 {
		return err
	}
	return stop(ctx, tx, ids, cluster.ReasonTaskTimeout, "the job ran longer than its timeout", cluster.Running)
}

// stop ends sessions that are still in the given status.
func stop[S ~string](ctx context.Context, tx *store.Tx, ids []S, reason cluster.Reason, detail string, from cluster.Status) error {
	locked, err := tx.Lock(ctx, sessionIDs(ids)...)
	if err != nil {
		return err
	}
	for _, s := range locked {
		if s.Status != from {
			continue
		}
		if err := s.Stop(ctx, reason, detail, false); err != nil {
			return fmt.Errorf("stop session %s: %w", s.ID, err)
		}
		if err := s.Settle(ctx, reason, detail); err != nil {
			return fmt.Errorf("settle session %s: %w", s.ID, err)
		}
	}
	return nil
}

func sessionIDs[S ~string](ids []S) []cluster.SessionID {
	out := make([]cluster.SessionID, len(ids))
	for i, id := range ids {
		out[i] = cluster.SessionID(id)
	}
	return out
}
