package reconcile

import (
	"context"
	"errors"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/store"
)

const (
	// pruneEvery is the time between looks for history that is too old; pruneRest that between two batches.
	pruneEvery = time.Hour
	pruneRest  = 200 * time.Millisecond
)

// History is what is remembered of sessions that ended; service.Service satisfies it.
type History interface {
	// PruneEvents forgets the events of sessions that ended longer ago than age, one batch after the position. next is where
	// the following batch begins, 0 when all were looked at.
	PruneEvents(ctx context.Context, age time.Duration, after int64) (next int64, removed int, err error)
}

// pruning forgets old history in small batches until ctx ends.
func (l *Loops) pruning(ctx context.Context, token int64) error {
	if l.cfg.EventRetention == 0 || l.deps.History == nil {
		<-ctx.Done()
		return nil
	}
	for position := int64(0); ; {
		next, err := l.prune(ctx, token, position)
		switch {
		case errors.Is(err, errDeposed):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			l.metrics.failures.WithLabelValues("prune").Inc()
			l.deps.Log.Error("forgetting old history failed", "err", err)
			next = 0
		}
		wait := pruneRest
		if position = next; next == 0 {
			wait = pruneEvery
		}
		if chassis.Wait(ctx, l.deps.Clock, wait) != nil {
			return nil
		}
	}
}

func (l *Loops) prune(ctx context.Context, token int64, after int64) (next int64, err error) {
	if err := l.fenced(ctx, token, func(context.Context, *store.Tx) error { return nil }); err != nil {
		return 0, err
	}
	next, removed, err := l.deps.History.PruneEvents(ctx, l.cfg.EventRetention, after)
	if removed > 0 {
		l.deps.Log.Info("forgot events of sessions that ended long ago", "events", removed, "retention", l.cfg.EventRetention)
	}
	return next, err
}
