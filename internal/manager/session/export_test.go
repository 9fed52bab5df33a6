package session

import (
	"context"
	"time"

	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store/feed"
)

// CompareEvents looks at events and compares the newest ones.
func CompareEvents(ctx context.Context, s *Service) (feed.Report, error) {
	s.hub.events.CompareSoon()
	return s.hub.events.Look(ctx, feed.Events(s.d.Store), s.hub)
}

// LookForRemovals sets how often a wait looks whether containers are gone, without a hint.
func (s *Service) LookForRemovals(every time.Duration) { s.removalPause = every }

// LeaseLoop is the loop that ends sessions whose clients are gone.
func (s *Service) LeaseLoop() reconcile.Loop { return s.leaseLoop() }
