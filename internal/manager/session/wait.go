package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Until says what Wait waits for.
type Until int

const (
	// UntilStarted: RUNNING or final.
	UntilStarted Until = iota
	// UntilEnded: final.
	UntilEnded
)

// State is what a waiter learns.
type State struct {
	ID           cluster.SessionID
	Name         string
	Status       cluster.Status
	StatusInfo   string
	Result       cluster.Result
	ExitCode     *int // of the main kernel
	ServicePorts []ServicePort
}

// Wait waits for a session; timeout 0 waits as long as ctx lives. TimedOut says that the state
// is not there yet; that is no error.
func (s *Service) Wait(ctx context.Context, a authz.Actor, id cluster.SessionID, until Until,
	timeout time.Duration) (st State, timedOut bool, err error) {
	if err := authz.Authenticated(a); err != nil {
		return st, false, err
	}
	if _, err := s.ownerByID(ctx, a, id); err != nil {
		return st, false, err
	}
	// Watching begins before the first look, so that no change falls between.
	changed, cancel := s.hub.watch(id)
	defer cancel()
	var deadline <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		deadline = t.C
	}
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		if st, err = s.sessionState(ctx, id); err != nil {
			return st, false, err
		}
		if st.Status.Final() || until == UntilStarted && st.Status == cluster.Running {
			return st, false, nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-deadline:
			return st, true, nil
		case <-ctx.Done():
			return st, false, fmt.Errorf("wait for session %s: %w", id, ctx.Err())
		}
	}
}

func (s *Service) sessionState(ctx context.Context, id cluster.SessionID) (State, error) {
	r, err := s.d.Store.SessionStateForWait(ctx, string(id))
	if err != nil {
		return State{}, fmt.Errorf("read session %s: %w", id, err)
	}
	return State{ID: id, Name: r.Name, Status: r.Status, StatusInfo: r.StatusInfo, Result: r.Result,
		ExitCode: store.Int(r.ExitCode), ServicePorts: servicePorts(r.ServicePorts)}, nil
}
