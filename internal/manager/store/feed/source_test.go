package feed_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/manager/store/storetest"
)

const patience = time.Minute

// watched is a source with the snapshot of its last look.
type watched struct {
	t        *testing.T
	ask      func(snapshot string, most int) (feed.Answer, error)
	snapshot string
}

func watch(t *testing.T, s feed.Source) *watched {
	w := &watched{t: t, ask: func(snapshot string, most int) (feed.Answer, error) {
		return s.ChangesSince(t.Context(), snapshot, most)
	}}
	require.Empty(t, w.look(), "before the first look nothing counts as a change")
	return w
}

// look returns what changed as sorted "kind id".
func (w *watched) look() []string {
	w.t.Helper()
	a, err := w.ask(w.snapshot, 100)
	require.NoError(w.t, err)
	require.False(w.t, a.TooMany)
	require.WithinRange(w.t, a.Server.Started, time.Now().Add(-24*time.Hour), time.Now().Add(time.Minute))
	w.snapshot = a.Snapshot
	out := []string{}
	for kind, ids := range a.Changes {
		for _, id := range ids {
			out = append(out, strings.TrimSpace(string(kind)+" "+id))
		}
	}
	slices.Sort(out)
	return out
}

func begin(t *testing.T, s *store.Store) pgx.Tx {
	t.Helper()
	tx, err := s.Pool().Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func exec(t *testing.T, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) string {
	t.Helper()
	var out string
	require.NoError(t, db.QueryRow(t.Context(), sql, args...).Scan(&out), sql)
	return out
}

const insertEvent = `INSERT INTO session_events (session_id, event) VALUES ($1, $2) RETURNING seq::text`

// TestEventsInAnyOrderOfCommits: an event that commits after one with a higher number is found, one that is rolled back is not.
func TestEventsInAnyOrderOfCommits(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	w := watch(t, feed.Events(s))
	id := uuid.NewString()
	early, lost, late := begin(t, s), begin(t, s), begin(t, s)
	first := exec(t, early, insertEvent, id, "session_started")
	exec(t, lost, insertEvent, id, "session_started")
	second := exec(t, late, insertEvent, id, "session_terminated")
	exec(t, late, insertEvent, id, "")
	require.Empty(t, w.look())
	require.NoError(t, late.Commit(t.Context()))
	require.Equal(t, []string{"event " + second}, w.look(), "moves without a wire name are not followed")
	require.Empty(t, w.look())
	require.NoError(t, early.Commit(t.Context()))
	require.NoError(t, lost.Rollback(t.Context()))
	require.Equal(t, []string{"event " + first}, w.look())
	require.Empty(t, w.look())
}

// TestChangesAreBounded: more than asked for are said to be too many.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	w := watch(t, feed.Events(s))
	for range 4 {
		exec(t, s.Pool(), insertEvent, uuid.NewString(), "session_started")
	}
	for most, tooMany := range map[int]bool{3: true, 4: false} {
		a, err := w.ask(w.snapshot, most)
		require.NoError(t, err)
		require.Equal(t, tooMany, a.TooMany)
		require.Len(t, a.Changes[feed.KindEvent], 4)
	}
}

// TestChangesOfObjectsInAnyOrderOfCommits: changes of objects other than sessions are told beside events, once each, also when they commit
// after one with a higher number; what is rolled back is not, nor are marks of use.
func TestChangesOfObjectsInAnyOrderOfCommits(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	newest := func() string { return exec(t, s.Pool(), `SELECT coalesce(max(seq), 0)::text FROM object_changes`) }
	w := watch(t, feed.Events(s))
	early, lost, late := begin(t, s), begin(t, s), begin(t, s)
	const insert = `INSERT INTO resource_groups (name) VALUES ($1) RETURNING name`
	exec(t, early, insert, "early")
	exec(t, lost, insert, "lost")
	exec(t, late, insert, "late")
	event := exec(t, late, insertEvent, uuid.NewString(), "session_started")
	require.Empty(t, w.look())
	require.NoError(t, late.Commit(t.Context()))
	last := newest()
	require.Equal(t, []string{"event " + event, "object " + last}, w.look())
	require.Empty(t, w.look())
	require.NoError(t, early.Commit(t.Context()))
	require.NoError(t, lost.Rollback(t.Context()))
	require.Equal(t, last, newest(), "the one that commits later has the lower number")
	first := exec(t, s.Pool(), `SELECT seq::text FROM object_changes WHERE id = 'early'`)
	require.Equal(t, []string{"object " + first}, w.look())

	exec(t, s.Pool(), `INSERT INTO agents (id, status, resource_group) VALUES ('a1', 'ALIVE', 'late') RETURNING id`)
	require.Equal(t, []string{"object " + newest()}, w.look())
	exec(t, s.Pool(), `UPDATE agents SET last_seen = now() RETURNING id`)
	require.Empty(t, w.look())
	exec(t, s.Pool(), `UPDATE agents SET schedulable = NOT schedulable RETURNING id`)
	require.Equal(t, []string{"object " + newest()}, w.look())
}

// TestChangesOfObjectsAreBounded: more than asked for are said to be too many, however few events there are.
func TestChangesOfObjectsAreBounded(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	w := watch(t, feed.Events(s))
	for i := range 4 {
		exec(t, s.Pool(), `INSERT INTO resource_groups (name) VALUES ($1) RETURNING name`, fmt.Sprint("g", i))
	}
	exec(t, s.Pool(), insertEvent, uuid.NewString(), "session_started")
	for most, tooMany := range map[int]bool{3: true, 4: false} {
		a, err := w.ask(w.snapshot, most)
		require.NoError(t, err)
		require.Equal(t, tooMany, a.TooMany)
		require.Len(t, a.Changes[feed.KindObject], 4)
		require.Len(t, a.Changes[feed.KindEvent], 1)
	}
}

// TestCircuitsThatChangeAndGo: changes and removals in any order of commits.
func TestCircuitsThatChangeAndGo(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	a, b := uuid.NewString(), uuid.NewString()
	setup := begin(t, s)
	_, err := setup.Exec(t.Context(), `SET LOCAL session_replication_role = replica`) // without sessions, kernels and users
	require.NoError(t, err)
	for i, id := range []string{a, b} {
		exec(t, setup, `INSERT INTO circuits (id, proxy, mode, port, session_id, kernel_id, app, protocol, target, path, user_id, created_by,
				public, allowed, created_at)
			VALUES ($1, 'p', 'port', $2, $3, $3, 'web', 'http', 80, '/', $3, $3, false, '{}', now()) RETURNING id::text`,
			id, 1000+i, uuid.NewString())
	}
	require.NoError(t, setup.Commit(t.Context()))
	w := watch(t, feed.Circuits(s))

	one, other := begin(t, s), begin(t, s)
	exec(t, one, `UPDATE circuits SET public = true WHERE id = $1 RETURNING id::text`, a)
	exec(t, other, `DELETE FROM circuits WHERE id = $1 RETURNING id::text`, b)
	require.Empty(t, w.look())
	require.NoError(t, other.Commit(t.Context()))
	require.Equal(t, []string{"circuit " + b}, w.look())
	require.NoError(t, one.Commit(t.Context()))
	require.Equal(t, []string{"circuit " + a}, w.look())
	exec(t, s.Pool(), `UPDATE circuits SET last_activity = now() WHERE id = $1 RETURNING id::text`, a)
	require.Empty(t, w.look(), "visits are no changes")
}

// TestSchedulingFactsThatChange: agents, groups, limits and sessions, and the leader's token.
func TestSchedulingFactsThatChange(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	var token int64
	w := &watched{t: t}
	w.ask = func(snapshot string, most int) (a feed.Answer, err error) {
		err = s.View(t.Context(), func(ctx context.Context, q *dbgen.Queries) error {
			source := feed.Scheduling(q, s)
			a, err = source.ChangesSince(ctx, snapshot, most)
			token = source.Token
			return err
		})
		return a, err
	}
	exec(t, s.Pool(), `INSERT INTO resource_groups (name) VALUES ('g') RETURNING name`)
	require.Empty(t, w.look())
	require.Zero(t, token)

	one, other := begin(t, s), begin(t, s)
	exec(t, one, `INSERT INTO agents (id, status, resource_group) VALUES ('a 1', 'ALIVE', 'g') RETURNING id`)
	exec(t, one, `UPDATE agents SET schedulable = NOT schedulable WHERE id = 'a 1' RETURNING id`)
	exec(t, other, `INSERT INTO keypair_resource_policies (name) VALUES ('limits') RETURNING name`)
	exec(t, other, `UPDATE keypair_resource_policies SET max_concurrent_sessions = 3 WHERE name = 'limits' RETURNING name`)
	exec(t, other, `UPDATE resource_groups SET scheduler = 'lifo' WHERE name = 'g' RETURNING name`)
	require.Empty(t, w.look())
	require.NoError(t, other.Commit(t.Context()))
	require.Equal(t, []string{"group g", "quota"}, w.look())
	require.NoError(t, one.Commit(t.Context()))
	require.Equal(t, []string{"agent a 1"}, w.look(), "twice changed, once named")

	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.TakeLeadership(ctx, "me")
		return err
	}))
	require.Empty(t, w.look())
	require.EqualValues(t, 1, token)
}

// TestLooksUseTheIndex: a look at many events reads an index and never the whole table.
func TestLooksUseTheIndex(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	s, err := store.Open(t.Context(), store.Config{DSN: dsn, SkipMigrations: true, MaxConns: 1}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Pool().Exec(t.Context(), `INSERT INTO session_events (session_id, event)
		SELECT gen_random_uuid(), CASE WHEN i % 2 = 0 THEN 'session_started' ELSE '' END FROM generate_series(1, 20000) i`)
	require.NoError(t, err)
	_, err = s.Pool().Exec(t.Context(), `ANALYZE session_events`)
	require.NoError(t, err)
	scans := func() string {
		exec(t, s.Pool(), `SELECT pg_stat_force_next_flush()::text`)
		return exec(t, s.Pool(), `SELECT seq_scan::text FROM pg_stat_user_tables WHERE relname = 'session_events'`)
	}
	w := watch(t, feed.Events(s))
	before := scans()
	for range 20 { // also with a plan that is made once for all parameters
		seq := exec(t, s.Pool(), insertEvent, uuid.NewString(), "session_started")
		require.Equal(t, []string{"event " + seq}, w.look())
		require.Empty(t, w.look())
	}
	require.Equal(t, before, scans())
	used := exec(t, s.Pool(), `SELECT idx_scan::text FROM pg_stat_user_indexes WHERE indexrelname = 'session_events_changed'`)
	require.NotEqual(t, "0", used)
}

// reasons notes why everything was compared.
type reasons struct{ seen []feed.Reason }

func (r *reasons) Apply(context.Context, feed.Changes) error { return nil }
func (r *reasons) Compare(_ context.Context, why feed.Reason) (int, error) {
	r.seen = append(r.seen, why)
	return 0, nil
}

// TestLostConnectionsAreNoticed: when the server ends the connection for hints, as every crash does, everything is compared.
func TestLostConnectionsAreNoticed(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	connected := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool { return s.Connections() >= n }, patience, time.Millisecond)
	}
	connected(1)
	f, r := feed.New(feed.Config{Name: "events"}), &reasons{}
	look := func(want ...feed.Reason) {
		t.Helper()
		_, err := f.Look(t.Context(), feed.Events(s), r)
		require.NoError(t, err)
		require.Equal(t, want, r.seen)
	}
	look(feed.First)
	look(feed.First)
	ended := exec(t, s.Pool(), `SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity
		WHERE datname = current_database() AND query ~ '^LISTEN|pg_notify[(]' AND pid <> pg_backend_pid()`)
	require.Equal(t, "1", ended, fmt.Sprintf("%d connections so far", s.Connections()))
	connected(3)
	look(feed.First, feed.Reconnected)
	look(feed.First, feed.Reconnected)
}
