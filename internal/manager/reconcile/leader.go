package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/store"
)

// run campaigns and leads until ctx ends.
func (l *Leader) run(ctx context.Context) error {
	retry := chassis.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := l.term(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, ErrDeposed) {
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
func (l *Leader) term(ctx context.Context) error {
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
	take, taken := context.WithTimeout(ctx, silenceLimit)
	err := l.deps.Store.Tx(take, func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, l.deps.Holder)
		return err
	})
	taken()
	if err != nil {
		return fmt.Errorf("take leadership: %w", err)
	}
	l.deps.Log.Info("leading", "holder", l.deps.Holder, "token", token)
	l.leading.Set(1)
	defer l.leading.Set(0)
	return l.lead(ctx, cancel, token)
}

// campaign stands by until this manager is elected.
func (l *Leader) campaign(ctx context.Context, election *concurrency.Election) error {
	waiting, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, loop := range l.deps.Loops {
		if loop.StandBy != nil {
			wg.Go(func() { loop.StandBy(waiting) })
		}
	}
	defer wg.Wait()
	defer cancel()
	return election.Campaign(ctx, l.deps.Holder)
}

// lead runs the loops until ctx ends or one finds that another manager leads.
func (l *Leader) lead(ctx context.Context, cancel context.CancelFunc, token int64) error {
	term := NewTerm(l.deps.Store, token, l.deps.Holder)
	errs := make([]error, len(l.deps.Loops)+1)
	var wg sync.WaitGroup
	if l.deps.Etcd != nil { // alone there is nobody to give the lead to
		wg.Go(func() {
			defer cancel()
			errs[len(l.deps.Loops)] = Hold(ctx, l.deps.Clock, term.Check)
		})
	}
	for i, loop := range l.deps.Loops {
		wg.Go(func() {
			defer cancel()
			errs[i] = l.drive(ctx, loop, term)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

const (
	// checkEvery is how often a leader asks the database whether it still leads.
	checkEvery = 3 * time.Second
	// silenceLimit is how long a manager leads, or waits for its turn to, without an answer of the database. The lease in etcd says nothing
	// about the way to the database, and another manager may have one.
	silenceLimit = 10 * time.Second
)

// Hold returns when a leader must not go on: another manager leads, or the database has not answered for too long. It returns nil when
// ctx ends. check is Term.Check.
func Hold(ctx context.Context, clock chassis.Clock, check func(ctx context.Context) error) error {
	answered := clock.Now()
	for chassis.Wait(ctx, clock, checkEvery) == nil {
		asked := clock.Now()
		limit, done := context.WithTimeout(ctx, max(silenceLimit-asked.Sub(answered), time.Second))
		err := check(limit)
		done()
		switch {
		case err == nil:
			answered = asked
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrDeposed):
			return err
		case clock.Now().Sub(answered) >= silenceLimit:
			return fmt.Errorf("the database has not answered this leader for %s: %w", silenceLimit, err)
		}
	}
	return nil
}
