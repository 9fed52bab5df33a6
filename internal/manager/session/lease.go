package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
)

const (
	// leaseEvery is the time between looks for leases that ran out.
	leaseEvery = 5 * time.Second
	// leaseBatch bounds the sessions of one look.
	leaseBatch = 100
)

// RenewLease prolongs the lease of a session by its length; a length of 0 drops the lease, so that the session stays when its client
// leaves. A session without a lease gets none.
func (s *Service) RenewLease(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, length time.Duration) error {
	o, err := s.Changeable(ctx, a, ref, owner)
	if err != nil {
		return err
	}
	if err := request.CheckLease(length); err != nil {
		return err
	}
	var n int64
	if length == 0 {
		n, err = s.d.Store.DropLease(ctx, o.ID)
	} else {
		n, err = s.d.Store.RenewLease(ctx, int32(length/time.Second), o.ID)
	}
	if err != nil {
		return fmt.Errorf("renew the lease of session %s: %w", o.Name, err)
	}
	if n == 0 && length != 0 {
		return fault.Conflictf("session %s has no lease", o.Name).WithNext("sessions get one only when they are created")
	}
	return nil
}

// leaseLoop ends sessions whose clients are gone. Clients could not renew while no manager led or PostgreSQL was away, so a term, and
// every pass after one that failed, begins with new leases for all.
func (s *Service) leaseLoop() reconcile.Loop {
	return reconcile.Loop{Name: "lease", Begin: func(t reconcile.Term) reconcile.Work {
		renewed := false
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
				if !renewed {
					return tx.RenewAllLeases(ctx)
				}
				return endUnleased(ctx, tx)
			})
			renewed = err == nil
			return leaseEvery, err
		}}
	}}
}

// endUnleased ends sessions whose lease ran out, and forgets leases of those that have ended.
func endUnleased(ctx context.Context, tx *store.Tx) error {
	rows, err := tx.ExpiredLeases(ctx, leaseBatch)
	if err != nil {
		return fmt.Errorf("find leases that ran out: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	ids := make([]cluster.SessionID, len(rows))
	for i, id := range rows {
		ids[i] = cluster.SessionID(id)
	}
	locked, err := tx.Lock(ctx, ids...)
	if err != nil {
		return err
	}
	const detail = "the client that held the session is gone: it did not renew its lease"
	for _, l := range locked {
		if l.Status.Final() || l.Status == cluster.Terminating {
			continue
		}
		// Kernels that are being made end as they do for anybody else: their agents make it so.
		if err := l.Stop(ctx, cluster.ReasonClientGone, detail, false); err != nil {
			return fmt.Errorf("stop session %s: %w", l.ID, err)
		}
		if err := l.Settle(ctx, cluster.ReasonClientGone, detail); err != nil {
			return fmt.Errorf("settle session %s: %w", l.ID, err)
		}
	}
	if err := tx.DropLeases(ctx, rows); err != nil {
		return fmt.Errorf("forget leases: %w", err)
	}
	return nil
}
