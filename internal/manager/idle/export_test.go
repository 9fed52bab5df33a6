package idle

import (
	"context"
	"time"

	"berth.dev/berth/internal/manager/reconcile"
)

// LookOnce is one look of the loop at an instant; full looks at measurements too.
func (s *Service) LookOnce(ctx context.Context, deps LoopDeps, t reconcile.Term, now time.Time, full bool) (time.Time, error) {
	l := &looker{Service: s, deps: deps, term: t, metrics: newIdleMetrics(nil)}
	return l.idle(ctx, now, full)
}
