package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// errDeposed ends the loops of a leader whose token is no longer the newest.
var errDeposed = fault.Conflictf("another manager leads now")

// run campaigns and leads until ctx ends.
func (l *Loops) run(ctx context.Context) error {
	retry := chassis.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := l.term(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, errDeposed) {
			l.deps.Log.Warn("leadership ended", "err", err)
		}
		if err == nil {
			retry.Reset()
		}
		if chassis.Wait(ctx, l.deps.Clock, retry.Next()) != nil {
			return nil
		}
	}
}

// term is one election and what follows from winning it.
func (l *Loops) term(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if l.deps.Etcd != nil {
		session, err := concurrency.NewSession(l.deps.Etcd, concurrency.WithTTL(l.cfg.LeaderTTL), concurrency.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("open election session: %w", err)
		}
		defer session.Close()
		election := concurrency.NewElection(session, l.deps.Prefix+"/manager/leader")
		if err := l.campaign(ctx, election); err != nil {
			return fmt.Errorf("campaign: %w", err)
		}
		defer func() {
			// A leader that stops in good order does not make the others wait for its lease.
			resign, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer done()
			_ = election.Resign(resign)
		}()
		go func() { // ends with ctx, which this term cancels
			select {
			case <-session.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	var token int64
	err := l.deps.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, l.deps.Holder)
		return err
	})
	if err != nil {
		return fmt.Errorf("take leadership: %w", err)
	}
	l.deps.Log.Info("leading", "holder", l.deps.Holder, "token", token)
	l.metrics.leader.Set(1)
	defer l.metrics.leader.Set(0)
	return l.lead(ctx, cancel, token)
}

// campaign stands by until this manager is elected.
func (l *Loops) campaign(ctx context.Context, election *concurrency.Election) error {
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.deps.Planner.standBy(waiting) })
	defer wg.Wait()
	defer cancel()
	return election.Campaign(ctx, l.deps.Holder)
}

// lead runs the loops until ctx ends or one finds that another manager leads.
func (l *Loops) lead(ctx context.Context, cancel context.CancelFunc, token int64) error {
	loops := []func(context.Context, int64) error{l.scheduling, l.sweeping, l.idling, l.accounting, l.pruning, l.foldering}
	errs := make([]error, len(loops))
	var wg sync.WaitGroup
	for i, loop := range loops {
		wg.Go(func() {
			defer cancel()
			errs[i] = loop(ctx, token)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fenced runs fn in a transaction that only the newest leader can commit.
func (l *Loops) fenced(ctx context.Context, token int64, fn func(ctx context.Context, tx *store.Tx) error) error {
	return l.deps.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		newest, err := tx.LeaderToken(ctx)
		if err != nil {
			return fmt.Errorf("read leadership: %w", err)
		}
		if newest.Token != token {
			return errDeposed
		}
		return fn(ctx, tx)
	})
}
