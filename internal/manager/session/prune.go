package session

import (
	"context"
	"fmt"
	"time"
)

const (
	// pruneEvery is the time between looks for what is too old; pruneRest that between two batches.
	pruneEvery = time.Hour
	pruneRest  = 200 * time.Millisecond
	// pruneBatch is how many events or tasks one statement looks at, pruneSessions how many sessions: each has rows of its own.
	pruneBatch    = 1000
	pruneSessions = 100
)

// pruning forgets what ended long ago, one small batch at a time. It goes through the kinds in turn and rests when all are done.
type pruning struct {
	s *Service
	c LoopConfig
	// kind is the next of kinds. position is how far the look at events got.
	kind     int
	position int64
	removed  int
}

// pass takes one batch and says when the next is due.
func (p *pruning) pass(ctx context.Context) (wait time.Duration, err error) {
	kinds := []struct {
		what  string
		age   time.Duration
		batch func(ctx context.Context, age time.Duration) (removed int, more bool, err error)
	}{
		{"sessions that ended long ago", p.c.SessionRetention, p.sessions},
		{"events of sessions that ended long ago", p.c.EventRetention, p.events},
		{"background tasks that ended long ago", p.c.TaskRetention, p.tasks},
		{"entries of the audit log", p.c.AuditRetention, p.audit},
		{"intervals of the usage ledger", p.c.UsageRetention, p.usage},
	}
	k := kinds[p.kind]
	more := false
	if k.age > 0 {
		var removed int
		if removed, more, err = k.batch(ctx, k.age); err != nil {
			return 0, fmt.Errorf("forget %s: %w", k.what, err)
		}
		p.removed += removed
	}
	if more {
		return pruneRest, nil
	}
	if p.removed > 0 {
		p.s.d.Log.Info("forgot "+k.what, "count", p.removed, "retention", k.age)
	}
	p.removed = 0
	if p.kind++; p.kind < len(kinds) {
		return pruneRest, nil
	}
	p.kind = 0
	return pruneEvery, nil
}

func (p *pruning) sessions(ctx context.Context, age time.Duration) (removed int, more bool, err error) {
	n, err := p.s.d.Store.PruneSessions(ctx, age, pruneSessions)
	return int(n), n == pruneSessions, err
}

// events forgets the history of sessions that are still known. Most events are younger, or belong to sessions that live, so a position
// is kept.
func (p *pruning) events(ctx context.Context, age time.Duration) (removed int, more bool, err error) {
	row, err := p.s.d.Store.PruneEvents(ctx, p.position, pruneBatch, age)
	if err != nil {
		return 0, false, err
	}
	p.position = row.Next
	return int(row.Removed), row.Next != 0, nil
}

func (p *pruning) tasks(ctx context.Context, age time.Duration) (removed int, more bool, err error) {
	n, err := p.s.d.Store.PruneTasks(ctx, age, pruneBatch)
	return int(n), n == pruneBatch, err
}

func (p *pruning) audit(ctx context.Context, age time.Duration) (removed int, more bool, err error) {
	n, err := p.s.d.Store.PruneAudit(ctx, age, pruneBatch)
	return int(n), n == pruneBatch, err
}

func (p *pruning) usage(ctx context.Context, age time.Duration) (removed int, more bool, err error) {
	n, err := p.s.d.Store.PruneUsage(ctx, age, pruneBatch)
	return int(n), n == pruneBatch, err
}
