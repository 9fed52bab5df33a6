package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

const (
	// batchAllowance is how long the runner and the agent have to enforce a batch timeout before the manager does.
	batchAllowance = time.Minute
	// joinEvery is the time between looks at the counts of ended sessions and of lists, which are joined when there are joinAfter new ones.
	joinEvery = 10 * time.Second
	joinAfter = 1000
)

// LoopConfig says how patient the loops are.
type LoopConfig struct {
	// Sweep is the time between looks at the timeouts of batch sessions.
	Sweep time.Duration
	// EventRetention is how long the history of ended sessions is kept; 0 keeps it for ever.
	EventRetention time.Duration
	// SessionRetention is how long ended sessions themselves are kept, TaskRetention background tasks that came to an end;
	// AuditRetention is how long entries of the audit log are, UsageRetention intervals of the usage ledger. 0 is for ever.
	SessionRetention, TaskRetention, AuditRetention, UsageRetention time.Duration
}

// Loops returns the control loops of sessions but for scheduling: batch sessions end at their timeout, sessions whose clients are gone by
// their leases, those of users who left a project, old history is forgotten, the counts of ended sessions and of lists stay few.
func (s *Service) Loops(c LoopConfig) []reconcile.Loop {
	loops := []reconcile.Loop{{Name: "batch-timeout", Begin: func(t reconcile.Term) reconcile.Work {
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) { return c.Sweep, t.Commit(ctx, stopOverdueBatches) }}
	}}, s.leaseLoop(), s.leaverLoop(), {Name: "counts", Begin: func(t reconcile.Term) reconcile.Work {
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			return joinEvery, t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
				if err := tx.JoinListCounts(ctx, joinAfter); err != nil {
					return err
				}
				return tx.JoinEndedCounts(ctx, joinAfter)
			})
		}}
	}}}
	if max(c.EventRetention, c.SessionRetention, c.TaskRetention, c.AuditRetention, c.UsageRetention) > 0 {
		loops = append(loops, reconcile.Loop{Name: "prune", Begin: func(t reconcile.Term) reconcile.Work {
			p := &pruning{s: s, c: c}
			return reconcile.Work{Pass: func(ctx context.Context) (wait time.Duration, err error) {
				if err := t.Check(ctx); err != nil {
					return 0, err
				}
				return p.pass(ctx)
			}}
		}})
	}
	return loops
}

func stopOverdueBatches(ctx context.Context, tx *store.Tx) error {
	ids, err := tx.OverdueBatches(ctx, batchAllowance)
	if err != nil || len(ids) == 0 {
		return err
	}
	overdue := make([]cluster.SessionID, len(ids))
	for i, id := range ids {
		overdue[i] = cluster.SessionID(id)
	}
	return StopAll(ctx, tx, overdue, cluster.Running, cluster.ReasonTaskTimeout, "the job ran longer than its timeout")
}

// StopAll ends those of some sessions that are still in a status ("" is any that is not on its way out), within a transaction of a
// control loop.
func StopAll(ctx context.Context, tx *store.Tx, ids []cluster.SessionID, from cluster.Status, reason cluster.Reason, detail string) error {
	locked, err := tx.Lock(ctx, ids...)
	if err != nil {
		return err
	}
	for _, s := range locked {
		if from != "" && s.Status != from || s.Status.Final() || s.Status == cluster.Terminating {
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
