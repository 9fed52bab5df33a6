// Package operation is what administrators need to run the cluster itself: the announcement, freezing, and the doctor's comparison of
// rows. It also runs the background tasks of other nouns and keeps their progress, and has callbacks of sessions delivered.
//
// It knows no other noun: what a task does is a function that its starter gives. httpapi and the manager role call it;
// session starts tasks with it.
package operation

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/store"
)

// maxWait is the longest time between two looks at a task that somebody watches, when a hint got lost.
const maxWait = 10 * time.Second

// Deps are what a Service works with; all but Callbacks are required.
type Deps struct {
	Store *store.Store
	Clock func() time.Time
	IDs   func() string
	// Callbacks says where session callbacks may go.
	Callbacks callback.Policy
	Log       *slog.Logger
}

// Service is the use cases.
type Service struct {
	d      Deps
	look   time.Duration // between two looks for tasks that their manager abandoned
	work   *background
	frozen frozenCache
}

// New makes the use cases. Run must be running for callbacks to be delivered.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Clock == nil || d.IDs == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "operation: store, clock, ids and log are required")
	}
	return &Service{d: d, look: taskBeat, work: newBackground(maxBackground)}, nil
}

// Run delivers callbacks and ends abandoned tasks until ctx ends, and returns when all background work has stopped.
func (s *Service) Run(ctx context.Context) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { s.endAbandoned(ctx) })
	(&callback.Worker{Store: s.d.Store, Policy: s.d.Callbacks, Log: s.d.Log}).Run(ctx)
	s.work.stop()
	return nil
}

// endAbandoned ends tasks of managers that died. One that is started again within a minute is still waited for at that moment, so one look
// at the start is not enough.
func (s *Service) endAbandoned(ctx context.Context) {
	next := time.NewTicker(s.look)
	defer next.Stop()
	for {
		if n, err := s.d.Store.AbandonTasks(ctx); err != nil && ctx.Err() == nil {
			s.d.Log.Warn("could not end tasks of a manager that died", "error", err)
		} else if n > 0 {
			s.d.Log.Warn("tasks failed because their manager died", "tasks", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
	}
}
