package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
)

const insertEvent = `INSERT INTO session_events (session_id, event) VALUES ($1, $2) RETURNING seq`

// hubWorld is a world in which the test writes events itself.
type hubWorld struct{ *managertest.World }

// write inserts an event in an open transaction.
func (w hubWorld) write(id cluster.SessionID, name string) (seq int64, tx pgx.Tx) {
	w.T.Helper()
	tx, err := w.Store.Pool().Begin(w.T.Context())
	require.NoError(w.T, err)
	w.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	require.NoError(w.T, tx.QueryRow(w.T.Context(), insertEvent, string(id), name).Scan(&seq))
	return seq, tx
}

// commit commits and tells so, as Store.Tx does.
func (w hubWorld) commit(tx pgx.Tx) {
	w.T.Helper()
	require.NoError(w.T, tx.Commit(w.T.Context()))
	w.Store.Wake(store.TopicEvents)
}

func (w hubWorld) events(f session.EventFilter) <-chan session.Event {
	w.T.Helper()
	f.Sessions = true
	c, err := w.Sessions.Events(w.T.Context(), w.Admin, f)
	require.NoError(w.T, err)
	return c
}

func (w hubWorld) next(c <-chan session.Event) session.Event {
	w.T.Helper()
	select {
	case e, ok := <-c:
		require.True(w.T, ok, "the reader was dropped")
		return e
	case <-time.After(time.Minute):
		w.T.Fatal("no event came")
		return session.Event{}
	}
}

// nothingElse asserts that a reader has no event before one that is written now.
func (w hubWorld) nothingElse(id cluster.SessionID, c <-chan session.Event) {
	w.T.Helper()
	seq, tx := w.write(id, "session_success")
	w.commit(tx)
	require.Equal(w.T, seq, w.next(c).Seq)
}

// TestEventsThatCommitLate: a reader gets every event that becomes visible after it began, also those whose numbers are lower than that
// of the newest one at that time.
func TestEventsThatCommitLate(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("late").ID
	before, early := w.write(id, "session_started")
	_, done := w.write(id, "session_terminated")
	w.commit(done)
	c := w.events(session.EventFilter{FromNow: true})
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
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("before").ID
	ctx, leave := context.WithCancel(t.Context())
	c, err := w.Sessions.Events(ctx, w.Admin, session.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	leave()
	for range c { // until it is closed
	}
	_, tx := w.write(id, "session_started")
	w.commit(tx)
	c = w.events(session.EventFilter{FromNow: true})
	w.nothingElse(id, c)
	_, err = session.CompareEvents(t.Context(), w.Sessions)
	require.NoError(t, err)
	w.nothingElse(id, c) // a comparison brings nothing that is older than the reader
}

// TestComparisonsOfEventsFindWhatLooksMissed: once, and readers that may miss even more are told to resume.
func TestComparisonsOfEventsFindWhatLooksMissed(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("missed").ID
	c := w.events(session.EventFilter{FromNow: true})
	// A number that every snapshot calls visible stands for one that was given again after a crash.
	w.Exec(`INSERT INTO session_events (session_id, event, changed) VALUES ($1, 'session_started', '3')`, string(id))
	for _, found := range []int{1, 0} {
		r, err := session.CompareEvents(t.Context(), w.Sessions)
		require.NoError(t, err)
		require.Equal(t, found, r.Differences)
	}
	require.Equal(t, cluster.SessionStarted, w.next(c).Name)
	w.nothingElse(id, c)
	w.Exec(`INSERT INTO session_events (session_id, event, changed) SELECT $1, 'session_started', '3' FROM generate_series(1, 501)`,
		string(id))
	_, err := session.CompareEvents(t.Context(), w.Sessions)
	require.NoError(t, err)
	_, ok := <-c
	require.False(t, ok, "the reader shall resume with the last number it saw")
	c = w.events(session.EventFilter{FromNow: true})
	w.nothingElse(id, c)
}

// TestEventsGoOnAfterLostConnections: none is lost and none comes twice.
func TestEventsGoOnAfterLostConnections(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("lost").ID
	c := w.events(session.EventFilter{FromNow: true})
	managertest.Soon(t, "hints are exchanged", func() bool { return w.Store.Connections() > 0 })
	for range 3 {
		seq, tx := w.write(id, "session_started")
		w.commit(tx)
		require.Equal(t, seq, w.next(c).Seq)
		before := w.Store.Connections()
		w.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^LISTEN|pg_notify[(]' ` +
			`AND pid <> pg_backend_pid()`)
		managertest.Soon(t, "hints are exchanged again", func() bool { return w.Store.Connections() >= before+2 })
	}
	_, err := session.CompareEvents(t.Context(), w.Sessions)
	require.NoError(t, err)
	w.nothingElse(id, c)
}
