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
	// UntilStopped: final or TERMINATING.
	UntilStopped
	// UntilRemoved: final, and no agent holds a container of it that it must still remove.
	UntilRemoved
)

// removalPause is the time between two looks whether agents have removed the containers of a session that has ended, without a hint. It
// is not short: one caller may have hundreds of requests that wait.
const removalPause = time.Second

// reached reports whether the status is what a waiter waits for; of UntilRemoved it is only the first half.
func (u Until) reached(st cluster.Status) bool {
	switch u {
	case UntilStarted:
		return st.Final() || st == cluster.Running
	case UntilStopped:
		return st.Final() || st == cluster.Terminating
	default:
		return st.Final()
	}
}

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
	tick := time.NewTicker(s.hub.every)
	defer tick.Stop()
	for {
		if st, err = s.sessionState(ctx, id); err != nil {
			return st, false, err
		}
		var pause <-chan time.Time
		if until.reached(st.Status) {
			held := false
			if until == UntilRemoved {
				if held, err = s.d.Store.HasRemovals(ctx, string(id)); err != nil {
					return st, false, fmt.Errorf("look whether session %s is removed: %w", id, err)
				}
			}
			if !held {
				return st, false, nil
			}
			pause = s.beforeLook()
		}
		select {
		case <-changed:
		case <-pause:
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
