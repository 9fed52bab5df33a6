package feed

import (
	"context"
	"strings"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// connected is what a source needs to know of the store besides queries; *store.Store satisfies it.
type connected interface {
	// Connections is read before the question: a crash after that is noticed by the next look at the latest.
	Connections() int64
}

// Circuits is the source of published circuits.
func Circuits(s *store.Store) Source { return circuits{s} }

type circuits struct{ store *store.Store }

func (c circuits) ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error) {
	n := c.store.Connections()
	row, err := c.store.CircuitChanges(ctx, int32(most)+1, snapshot)
	if err != nil {
		return Answer{}, err
	}
	return answer(row.Snapshot, Server{row.ServerStarted, row.ServerRecovered, n}, KindCircuit, row.Circuits, most), nil
}

// Events is the source of events with a wire name, and of changes of objects other than sessions.
func Events(s *store.Store) Source { return events{s} }

type events struct{ store *store.Store }

func (e events) ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error) {
	n := e.store.Connections()
	row, err := e.store.EventChanges(ctx, int32(most)+1, snapshot)
	if err != nil {
		return Answer{}, err
	}
	a := answer(row.Snapshot, Server{row.ServerStarted, row.ServerRecovered, n}, KindEvent, row.Events, most)
	if len(row.Objects) > 0 {
		if a.Changes == nil {
			a.Changes = Changes{}
		}
		a.Changes[KindObject] = row.Objects
		a.TooMany = a.TooMany || len(row.Objects) > most
	}
	return a, nil
}

// Rights is the source of epochs of rights.
func Rights(s *store.Store) Source { return rights{s} }

type rights struct{ store *store.Store }

func (r rights) ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error) {
	n := r.store.Connections()
	row, err := r.store.RightsChanges(ctx, int32(most)+1, snapshot)
	if err != nil {
		return Answer{}, err
	}
	return answer(row.Snapshot, Server{row.ServerStarted, row.ServerRecovered, n}, KindRights, row.Subjects, most), nil
}

// answer is that of a source of one kind, which was asked for one more than most.
func answer(snapshot string, server Server, kind Kind, ids []string, most int) Answer {
	a := Answer{Snapshot: snapshot, Server: server, TooMany: len(ids) > most}
	if len(ids) > 0 {
		a.Changes = Changes{kind: ids}
	}
	return a
}

// SchedulingSource is the source of what the scheduler must know: sessions, agents, resource groups and limits.
type SchedulingSource struct {
	queries   *dbgen.Queries
	connected connected
	// Token is the newest leader's, as of the last question.
	Token int64
}

// Scheduling is a source over the queries of one transaction.
func Scheduling(q *dbgen.Queries, c connected) *SchedulingSource {
	return &SchedulingSource{queries: q, connected: c}
}

// ChangesSince implements Source.
func (s *SchedulingSource) ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error) {
	n := s.connected.Connections()
	row, err := s.queries.SchedulingChanges(ctx, int32(most)+1, snapshot)
	if err != nil {
		return Answer{}, err
	}
	s.Token = row.Token
	a := answer(row.Snapshot, Server{row.ServerStarted, row.ServerRecovered, n}, "", nil, most)
	a.TooMany = len(row.Changes) > most
	if len(row.Changes) > 0 {
		a.Changes = Changes{}
	}
	for _, c := range row.Changes {
		kind, id, _ := strings.Cut(c, " ")
		a.Changes[Kind(kind)] = append(a.Changes[Kind(kind)], id)
	}
	return a, nil
}
