package app

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

const (
	houseEvery = 2 * time.Second
	// tidyEvery is how often what only takes room is removed.
	tidyEvery = 5 * time.Minute
	// unusedFor is how long a private circuit without shares lives that nobody uses.
	unusedFor = 24 * time.Hour
)

// keepHouse ends what has expired until ctx ends. Every manager does: deleting twice changes nothing.
func (s *Service) keepHouse(ctx context.Context) {
	tick := time.NewTicker(houseEvery)
	defer tick.Stop()
	var tidied time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := s.Expire(ctx)
		if now := s.d.Clock(); err == nil && now.Sub(tidied) >= tidyEvery {
			if err = s.Tidy(ctx); err == nil {
				tidied = now
			}
		}
		if err != nil && ctx.Err() == nil {
			s.d.Log.Warn("cannot keep house of circuits", "error", err)
		}
	}
}

// Expire ends circuits and admissions whose time is over.
func (s *Service) Expire(ctx context.Context) error {
	now := s.d.Clock()
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		gone, err := tx.DropExpiredCircuits(ctx, now)
		if err != nil {
			return fmt.Errorf("end circuits that expired: %w", err)
		}
		shut, err := tx.DropExpiredAdmissions(ctx, now)
		if err != nil {
			return fmt.Errorf("end admissions that expired: %w", err)
		}
		if len(gone)+len(shut) > 0 {
			tx.Wake(store.TopicCircuits)
		}
		return nil
	})
}

// Tidy ends private circuits that nobody used for long, and forgets codes and tokens that nobody can use any more, and what was
// only worth remembering for a while.
func (s *Service) Tidy(ctx context.Context) error {
	now, q := s.d.Clock(), s.d.Store
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"unused circuits", func() error {
			return q.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
				gone, err := tx.DropUnusedCircuits(ctx, now.Add(-unusedFor))
				if len(gone) > 0 {
					tx.Wake(store.TopicCircuits)
				}
				return err
			})
		}},
		{"codes", func() error { return q.DropExpiredCodes(ctx, now) }},
		{"tickets of administrators", func() error { return q.DropExpiredOfficeTickets(ctx, now) }},
		{"launch tokens", func() error { return q.DropExpiredLaunches(ctx, now) }},
		{"removals", func() error { return q.ForgetCircuitRemovals(ctx) }},
		{"freed addresses", func() error { return q.ForgetCircuitAddresses(ctx, labelRest) }},
		{"app proxies", func() error { return q.ForgetProxies(ctx, now.Add(-proxyKept)) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("forget %s: %w", step.what, err)
		}
	}
	return nil
}

// Findings compares circuits with sessions and proxies, for the machine's own administrator.
func (s *Service) Findings(ctx context.Context) ([]cluster.Finding, error) {
	rows, err := s.d.Store.CircuitDoctorRows(ctx, s.d.Clock().Add(-seenFor))
	if err != nil {
		return nil, fmt.Errorf("examine circuits: %w", err)
	}
	out := []cluster.Finding{}
	for _, r := range rows {
		switch r.Kind {
		case "circuit-without-session":
			out = append(out, cluster.Finding{Severity: "error", Kind: r.Kind, Object: r.Object,
				Detail: fmt.Sprintf("of app %s is there although its kernel is %s", r.A, r.B),
				Next:   "restart the manager; report this as a defect"})
		case "circuits-without-proxy":
			out = append(out, cluster.Finding{Severity: "warning", Kind: r.Kind, Object: r.Object,
				Detail: fmt.Sprintf("is not connected, but %s circuits are published through it", r.A),
				Next:   "start it, or look at its log"})
		}
	}
	return out, nil
}
