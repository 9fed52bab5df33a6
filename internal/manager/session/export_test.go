package session

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/testkit/await"
)

// CompareEvents looks at events and compares the newest ones.
func CompareEvents(ctx context.Context, s *Service) (feed.Report, error) {
	s.hub.events.CompareSoon()
	return s.hub.events.Look(ctx, feed.Events(s.d.Store), s.hub)
}

// OnHints is a service of the same sessions whose waits look again for hints alone. It serves until the test ends.
// held tells that a wait has looked and found containers that are still to be removed.
func OnHints(t testing.TB, s *Service) (out *Service, held <-chan struct{}) {
	found := make(chan struct{}, 1)
	out = &Service{d: s.d, hub: newHub(s.d.Store, s.d.Log, 24*time.Hour), routes: s.routes, beforeLook: func() <-chan time.Time {
		select {
		case found <- struct{}{}:
		default:
		}
		return nil
	}}
	begun, cancel := out.hub.watch("none")
	defer cancel()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { out.hub.run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	await.Value(t, begun) // it wakes everybody once, at its beginning
	return out, found
}

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
