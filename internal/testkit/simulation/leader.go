package simulation

import (
	"context"
	"errors"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// leaderTTL is the documented lease of the leader.
const leaderTTL = 3 * time.Second

// election is what etcd does for managers: one of them leads for as long as it renews its lease.
type election struct {
	mu     sync.Mutex
	holder *managerRole
	until  time.Time // when the lease ends
	since  time.Time // when the holder won
	token  int64     // the newest in the database
}

// win makes a manager the leader unless another one holds the lease.
func (e *election) win(m *managerRole, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder != nil && now.Before(e.until) {
		return false
	}
	e.holder, e.until, e.since = m, now.Add(leaderTTL), now
	return true
}

// renew prolongs the lease of the leader; false when it has lost the lead.
func (e *election) renew(m *managerRole, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder != m {
		return false
	}
	e.until = now.Add(leaderTTL)
	return true
}

// resign ends the lease of a leader that stops in good order; that of one that was killed runs out.
func (e *election) resign(m *managerRole) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder == m && !m.dead.Load() {
		e.holder = nil
	}
}

// leader is who holds the lease, and since when; nil: nobody, or one that does not run.
func (e *election) leader(now time.Time) (*managerRole, time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder == nil || e.holder.dead.Load() || !now.Before(e.until) {
		return nil, time.Time{}
	}
	return e.holder, e.since
}

func (e *election) took(token int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.token = max(e.token, token)
}

func (e *election) newest() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.token
}

// campaign waits for the lead and leads, again and again, as package reconcile does with etcd.
func (m *managerRole) campaign() {
	pause := func(n int) time.Duration { return time.Duration(m.s.chance(100_000_000, "campaign", m.seat.n, n)) }
	for rest, n := pause(0), 1; wait(m.ctx, rest) == nil; rest, n = 500*time.Millisecond+pause(n), n+1 {
		if m.enter(m.ctx) == nil && m.s.election.win(m, time.Now()) {
			m.s.note("%s leads", m.seat.name())
			m.lead()
			m.s.note("%s leads no more", m.seat.name())
		}
	}
}

// lead runs the loops until the lease is lost, a loop finds that another manager leads, or the database does not answer.
func (m *managerRole) lead() {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	defer m.s.election.resign(m)
	var token int64
	var works []reconcile.Work
	limit, done := context.WithTimeout(ctx, 10*time.Second)
	err := m.call(limit, "take leadership", func(ctx context.Context) error {
		err := m.s.db.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			token, err = tx.TakeLeadership(ctx, m.seat.name())
			return err
		})
		if err != nil {
			return err
		}
		m.s.election.took(token)
		for _, l := range m.loops {
			works = append(works, l.Begin(reconcile.NewTerm(m.s.db.store, token, m.seat.name())))
		}
		return nil
	})
	defer func() {
		for _, w := range works {
			if w.End != nil {
				w.End()
			}
		}
	}()
	done()
	if err != nil {
		return
	}
	var group sync.WaitGroup
	defer group.Wait()
	for i, w := range works {
		var hints <-chan struct{}
		if m.loops[i].Hears != nil {
			hints = m.schedule
		}
		group.Go(func() {
			defer cancel()
			m.drive(ctx, w, m.loops[i].Name, token, hints)
		})
	}
	if len(m.s.seats) > 1 {
		group.Go(func() {
			defer cancel()
			_ = reconcile.Hold(ctx, chassis.RealClock(), func(ctx context.Context) error {
				if err := m.enter(ctx); err != nil {
					return err
				}
				return m.s.outage(ctx, m.seat, "check") // that another one leads, the loops find out
			})
		})
	}
	for wait(ctx, leaderTTL/3) == nil {
		if m.enter(ctx) != nil || !m.s.election.renew(m, time.Now()) {
			cancel()
		}
	}
}

// drive runs a loop as package reconcile does.
func (m *managerRole) drive(ctx context.Context, w reconcile.Work, name string, token int64, hints <-chan struct{}) {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	retry := chassis.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for n := 0; ; n++ {
		select {
		case <-hints:
			if wait(ctx, 2*time.Millisecond) != nil {
				return
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		var rest time.Duration
		err := m.call(ctx, name, func(ctx context.Context) (err error) {
			defer m.s.fence(ctx, m.seat.name()+", "+name, "leaders", token, m.s.election.newest)()
			rest, err = w.Pass(ctx)
			return err
		})
		switch {
		case errors.Is(err, reconcile.ErrDeposed), ctx.Err() != nil:
			return
		case err != nil:
			if wait(ctx, retry.Next()) != nil {
				return
			}
			rest = 0
		default:
			retry.Reset()
		}
		timer.Reset(rest + time.Duration(m.s.chance(1_000_000, name, n)))
	}
}
