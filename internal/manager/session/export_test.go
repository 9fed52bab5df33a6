package session

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/manager/authz"
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

// VisibleObjects is what an actor is told when all changes of objects that the database holds come at once.
func VisibleObjects(ctx context.Context, s *Service, a authz.Actor) ([]ObjectChange, error) {
	rows, err := s.d.Store.DB().Query(ctx, `SELECT seq FROM object_changes`)
	if err != nil {
		return nil, err
	}
	seqs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	changes, err := s.d.Store.ObjectChangesBySeq(ctx, seqs)
	if err != nil {
		return nil, err
	}
	q := newObjectQueue()
	q.add(changes)
	waiting, all := q.take()
	return s.visible(ctx, a, waiting, all)
}
