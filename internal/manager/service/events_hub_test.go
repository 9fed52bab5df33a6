package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/service"
	"berth.dev/berth/internal/manager/store"
)

const insertEvent = `INSERT INTO session_events (session_id, event) VALUES ($1, $2) RETURNING seq`

// write inserts an event in an open transaction.
func (w *world) write(id cluster.SessionID, name string) (seq int64, tx pgx.Tx) {
	w.t.Helper()
	tx, err := w.store.Pool().Begin(w.t.Context())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	require.NoError(w.t, tx.QueryRow(w.t.Context(), insertEvent, string(id), name).Scan(&seq))
	return seq, tx
}

// commit commits and tells so, as Store.Tx does.
func (w *world) commit(tx pgx.Tx) {
	w.t.Helper()
	require.NoError(w.t, tx.Commit(w.t.Context()))
	w.store.Wake(store.TopicEvents)
}

func (w *world) events(f service.EventFilter) <-chan service.Event {
	w.t.Helper()
	f.Sessions = true
	c, err := w.svc.Events(w.t.Context(), w.admin, f)
	require.NoError(w.t, err)
	return c
}

func (w *world) next(c <-chan service.Event) service.Event {
	w.t.Helper()
	select {
	case e, ok := <-c:
		require.True(w.t, ok, "the reader was dropped")
		return e
	case <-time.After(20 * time.Second):
		w.t.Fatal("no event came")
		return service.Event{}
	}
}

// nothingElse asserts that a reader has no event before one that is written now.
func (w *world) nothingElse(id cluster.SessionID, c <-chan service.Event) {
	w.t.Helper()
	seq, tx := w.write(id, "session_success")
	w.commit(tx)
	require.Equal(w.t, seq, w.next(c).Seq)
}

// TestEventsThatCommitLate: a reader gets every event that becomes visible after it began, also those whose numbers are lower than that
// of the newest one at that time.
func TestEventsThatCommitLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	id := w.create("late").ID
	before, early := w.write(id, "session_started")
	_, done := w.write(id, "session_terminated")
	w.commit(done)
	c := w.events(service.EventFilter{FromNow: true})
	w.commit(early)
	require.Equal(t, before, w.next(c).Seq)
	first, one := w.write(id, "session_started")
	second, other := w.write(id, "session_terminated")
	w.commit(other)
	require.Equal(t, second, w.next(c).Seq)
	w.commit(one)
	require.Equal(t, first, w.next(c).Seq)
	w.nothingElse(id, c)
}

// TestNobodyGetsWhatHappenedBefore: a reader that begins after a time without readers does not get the events of that time.
func TestNobodyGetsWhatHappenedBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	id := w.create("before").ID
	ctx, leave := context.WithCancel(t.Context())
	c, err := w.svc.Events(ctx, w.admin, service.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	leave()
	for range c { // until it is closed
	}
	_, tx := w.write(id, "session_started")
	w.commit(tx)
	c = w.events(service.EventFilter{FromNow: true})
	w.nothingElse(id, c)
	_, err = service.CompareEvents(t.Context(), w.svc)
	require.NoError(t, err)
	w.nothingElse(id, c) // a comparison brings nothing that is older than the reader
}

// TestComparisonsOfEventsFindWhatLooksMissed: once, and readers that may miss even more are told to resume.
func TestComparisonsOfEventsFindWhatLooksMissed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	id := w.create("missed").ID
	c := w.events(service.EventFilter{FromNow: true})
	// A number that every snapshot calls visible stands for one that was given again after a crash.
	w.exec(`INSERT INTO session_events (session_id, event, changed) VALUES ($1, 'session_started', '3')`, string(id))
	for _, found := range []int{1, 0} {
		r, err := service.CompareEvents(t.Context(), w.svc)
		require.NoError(t, err)
		require.Equal(t, found, r.Differences)
	}
	require.Equal(t, cluster.SessionStarted, w.next(c).Name)
	w.nothingElse(id, c)
	w.exec(`INSERT INTO session_events (session_id, event, changed) SELECT $1, 'session_started', '3' FROM generate_series(1, 501)`, string(id))
	_, err := service.CompareEvents(t.Context(), w.svc)
	require.NoError(t, err)
	_, ok := <-c
	require.False(t, ok, "the reader shall resume with the last number it saw")
	c = w.events(service.EventFilter{FromNow: true})
	w.nothingElse(id, c)
}

// TestEventsGoOnAfterLostConnections: none is lost and none comes twice.
func TestEventsGoOnAfterLostConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	id := w.create("lost").ID
	c := w.events(service.EventFilter{FromNow: true})
	for range 3 {
		seq, tx := w.write(id, "session_started")
		w.commit(tx)
		require.Equal(t, seq, w.next(c).Seq)
		before := w.store.Connections()
		w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^LISTEN|pg_notify[(]' AND pid <> pg_backend_pid()`)
		soon(t, "hints are exchanged again", func() bool { return w.store.Connections() >= before+2 })
	}
	_, err := service.CompareEvents(t.Context(), w.svc)
	require.NoError(t, err)
	w.nothingElse(id, c)
}
