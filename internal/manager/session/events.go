package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Event is one event of a session or kernel for SSE. Seq resumes a broken stream.
type Event struct {
	Seq            int64
	Name           cluster.EventName
	SessionID      cluster.SessionID
	SessionName    string
	OwnerAccessKey cluster.AccessKey
	Reason         cluster.Reason
	Detail         string // a sentence for people; may be empty
	Status         cluster.Status
	ExitCode       *int
	At             time.Time
	// Kernel facts; Kernel is "" for session events.
	Kernel      cluster.KernelID
	ClusterRole string
	ClusterIdx  int
	// Object is set for what changed of an object that is no session; then nothing else is.
	Object *ObjectChange
}

// EventFilter selects events. Session "" means all that the actor may see. With FromNow, a name that no live session has means
// the next session that Owner creates with it: clients ask for the events of a session before they create it.
type EventFilter struct {
	Session  string            // id or name
	Owner    cluster.AccessKey // "" is the actor
	Sessions bool              // events of sessions
	Kernels  bool              // events of kernels
	After    int64
	// FromNow starts with the next event; otherwise events after After are replayed first.
	FromNow bool
	// NoFollow closes the channel after the replay.
	NoFollow bool
	// Objects adds changes of objects other than sessions (ObjectChange), from now on.
	Objects bool
}

// Events streams events until ctx ends or the reader is too slow: then the channel is closed and the
// reader may resume with the last Seq it saw. Events of one session come in order and complete; between sessions
// the order is that of their commits, which numbers follow only roughly.
func (s *Service) Events(ctx context.Context, a authz.Actor, f EventFilter) (<-chan Event, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	// Following begins before the look, so that no session is made between.
	sub, err := s.hub.subscribe(ctx, f.Objects)
	if err != nil {
		return nil, err
	}
	var session cluster.SessionID
	next := "" // the name of the session that is not there yet
	if f.Session != "" {
		o, err := s.findOwner(ctx, a, f.Session, f.Owner)
		_, isID := cluster.CanonicalUUID(f.Session)
		switch {
		case err == nil:
			session = cluster.SessionID(o.ID)
		case fault.Is(err, fault.NotFound) && fault.ReasonOf(err) == "" && !isID && f.FromNow:
			next = f.Session
		default:
			s.hub.unsubscribe(sub)
			return nil, err
		}
	}
	owner := f.Owner
	if owner == "" {
		owner = a.AccessKey
	}
	want := func(e hubEvent) bool {
		if !authz.Sessions.May(a, authz.See, e.object) {
			return false
		}
		if next != "" && e.SessionName == next && e.OwnerAccessKey == owner && e.Name == cluster.SessionEnqueued {
			session, next = e.SessionID, ""
		}
		if next != "" || session != "" && e.SessionID != session {
			return false
		}
		return e.Kernel == "" && f.Sessions || e.Kernel != "" && f.Kernels
	}
	out := make(chan Event, 64)
	go func() {
		defer close(out)
		defer s.hub.unsubscribe(sub)
		send := func(e Event) bool {
			select {
			case out <- e:
				return true
			case <-ctx.Done():
				return false
			}
		}
		replayed := map[int64]struct{}{}
		if !f.FromNow {
			if err := s.replay(ctx, a, session, f, func(e hubEvent) bool {
				replayed[e.Seq] = struct{}{}
				return !want(e) || send(e.Event)
			}); err != nil {
				if ctx.Err() == nil {
					s.d.Log.Warn("could not replay events", "error", err)
				}
				return
			}
		}
		if f.NoFollow {
			return
		}
		for {
			select {
			case e, ok := <-sub.c:
				if !ok {
					return
				}
				if _, twice := replayed[e.Seq]; twice || !want(e) {
					continue
				}
				if !send(e.Event) {
					return
				}
			case <-sub.objects.ready():
				waiting, all := sub.objects.take()
				changes, err := s.visible(ctx, a, waiting, all)
				if err != nil && ctx.Err() == nil {
					s.d.Log.Warn("could not tell a reader which objects changed; it looks at everything again", "error", err)
					changes = []ObjectChange{{Kind: ObjectsResync}}
				}
				for _, c := range changes {
					if !send(Event{Object: &c}) {
						return
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// maxReplay bounds what a resuming reader gets again.
const maxReplay = 100_000

// replay reads the events after f.After that the actor may see, each kind of actor's from where no others' are read.
func (s *Service) replay(ctx context.Context, a authz.Actor, session cluster.SessionID, f EventFilter, each func(hubEvent) bool) error {
	after := f.After
	for n := 0; n < maxReplay; {
		rows, err := s.eventPage(ctx, a, session, f, after)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		for _, r := range rows {
			after = r.Seq
			if r.Event != "" && !each(eventOf(r)) {
				return ctx.Err()
			}
		}
		if n += len(rows); len(rows) < eventPage {
			return nil
		}
	}
	return nil
}

func (s *Service) eventPage(ctx context.Context, a authz.Actor, session cluster.SessionID, f EventFilter,
	after int64) (rows []dbgen.EventsOfSessionAfterRow, err error) {
	switch {
	case session != "":
		return s.d.Store.EventsOfSessionAfter(ctx, string(session), after, eventPage)
	case a.Role == authz.RoleUser:
		own, err := s.d.Store.EventsOfUserAfter(ctx, after, eventPage, string(a.UserID))
		for _, r := range own {
			rows = append(rows, dbgen.EventsOfSessionAfterRow(r))
		}
		return rows, err
	case a.Role == authz.RoleAdmin:
		here, err := s.d.Store.EventsOfDomainAfter(ctx, dbgen.EventsOfDomainAfterParams{DomainName: a.Domain, After: after,
			OfSessions: f.Sessions, OfKernels: f.Kernels, MaxRows: eventPage})
		for _, r := range here {
			rows = append(rows, dbgen.EventsOfSessionAfterRow(r))
		}
		return rows, err
	}
	all, err := s.d.Store.EventsAfter(ctx, after, f.Sessions, f.Kernels, eventPage)
	for _, r := range all {
		rows = append(rows, dbgen.EventsOfSessionAfterRow(r))
	}
	return rows, err
}
