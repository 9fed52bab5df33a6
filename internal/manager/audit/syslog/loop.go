package syslog

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

const (
	// Name is that of the export in its table.
	Name = "syslog"
	// every is the time between looks for new entries, again the longest between attempts to reach a receiver that is away.
	every = time.Second
	again = 30 * time.Second
	batch = 200
)

// Loops returns the loop that sends the audit log; none without a receiver. One manager sends at a time: the leader. A leader that was
// deposed while it sent stores nothing, so its entries come again.
func Loops(c Config, s *store.Store, entries *audit.Service, host string) []reconcile.Loop {
	if c.Address == "" {
		return nil
	}
	return []reconcile.Loop{{Name: "audit-syslog", Begin: func(t reconcile.Term) reconcile.Work {
		pause, begun := every, false
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			if !begun {
				err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.BeginAuditExport(ctx, Name) })
				if err != nil {
					return 0, fmt.Errorf("begin the export of the audit log: %w", err)
				}
				begun = true
			}
			full, err := pass(ctx, c, s, entries, host, t)
			switch {
			case err != nil:
				pause = min(2*pause, again)
				s.Log().Warn("the audit log waits for its syslog receiver", "in", pause, "error", err)
				return pause, nil
			case full:
				pause = every
				return 0, nil
			}
			pause = every
			return pause, nil
		}}
	}}}
}

// pass sends some entries and stores how far it got. full says that there are more.
func pass(ctx context.Context, c Config, s *store.Store, entries *audit.Service, host string, t reconcile.Term) (full bool, err error) {
	rows, err := s.AuditBehind(ctx, Name, batch)
	if err != nil {
		return false, fmt.Errorf("look for entries of the audit log: %w", err)
	}
	if len(rows) == 0 {
		return false, nil
	}
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	list, err := entries.Entries(ctx, ids)
	if err != nil {
		return false, err
	}
	messages := make([][]byte, len(list))
	for i, e := range list {
		if messages[i], err = message(e, c.Facility, c.MaxMessage, host); err != nil {
			return false, err
		}
	}
	if err := c.send(ctx, messages); err != nil {
		stored := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
			return tx.AuditNotSent(ctx, store.Text(err.Error()), Name)
		})
		if stored != nil {
			return false, fmt.Errorf("note that the audit log was not sent: %w", stored)
		}
		return false, err
	}
	last := rows[len(rows)-1]
	err = t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.AuditSent(ctx, last.Tx, last.ID, Name) })
	if err != nil {
		return false, fmt.Errorf("note how far the audit log was sent: %w", err)
	}
	return len(rows) == batch, nil
}
