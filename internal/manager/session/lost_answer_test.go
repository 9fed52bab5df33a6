package session_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// behind is a world whose connections to the database the test may break. Nothing waits long for the end of an outage there.
func behind(t *testing.T, settings string) (*managertest.World, *storetest.Relay, *store.Store) {
	t.Helper()
	dsn := storetest.DSN(t)
	direct, relay := storetest.Open(t, dsn), storetest.NewRelay(t, dsn)
	d := managertest.Deps(t, storetest.OpenWith(t, store.Config{DSN: relay.DSN() + settings, Patience: 10 * time.Millisecond}))
	w := managertest.On(t, d)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 4`)
	return w, relay, direct
}

// stored counts the live sessions of a name and their kernels.
func stored(t *testing.T, s *store.Store, name string) (sessions, kernels int) {
	t.Helper()
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT count(DISTINCT s.id), count(k.id) FROM sessions s
		LEFT JOIN kernels k ON k.session_id = s.id WHERE s.name = $1 AND s.ended_at IS NULL`, name).Scan(&sessions, &kernels))
	return sessions, kernels
}

// inStatement is what the statement that stores a session holds, and no other.
func inStatement(name string) string { return `"name":"` + name + `","type"` }

func ask(t *testing.T, w *managertest.World, name string) (session.Created, error) {
	t.Helper()
	return w.Sessions.Create(t.Context(), w.Admin, request.Session{Name: name, Image: "python", ClusterSize: 2})
}

// TestALostAnswerIsFoundOut: the connection to the database breaks while a session is stored. Its creator is told that it was created,
// and it is there once.
func TestALostAnswerIsFoundOut(t *testing.T) {
	t.Parallel()
	w, relay, direct := behind(t, "")
	for name, at := range map[string]storetest.Point{"not-arrived": storetest.Before, "answer-lost": storetest.After} {
		relay.Break(at, nil, inStatement(name))
		created, err := ask(t, w, name)
		require.NoError(t, err, name)
		require.True(t, relay.Broken(), name)
		require.True(t, created.Created, name)
		sessions, kernels := stored(t, direct, name)
		require.Equal(t, 1, sessions, name)
		require.Equal(t, 2, kernels, name)
		require.Equal(t, name, w.Session(created.ID).Name, "the id in the answer is that of the session")
	}

	// It breaks again and again: there is an end to it, and nobody is told that nothing was stored.
	for range 3 {
		relay.Break(storetest.Before, nil, inStatement("never-arrives"))
	}
	_, err := ask(t, w, "never-arrives")
	require.True(t, relay.Broken())
	notKnown(t, err)
	sessions, _ := stored(t, direct, "never-arrives")
	require.Zero(t, sessions)
}

func notKnown(t *testing.T, err error) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.True(t, store.Away(err), "%v", err)
	require.ErrorContains(t, err, "it is not known whether it was")
	require.Contains(t, fault.NextOf(err), "look for the session")
}

// TestAnAnswerThatCannotBeFoundOut: the database goes away together with the answer. The session is there, and its creator is told to look.
func TestAnAnswerThatCannotBeFoundOut(t *testing.T) {
	t.Parallel()
	w, relay, direct := behind(t, "")
	relay.Break(storetest.After, func() { relay.Refuse(true) }, inStatement("who-knows"))
	_, err := ask(t, w, "who-knows")
	notKnown(t, err)
	sessions, _ := stored(t, direct, "who-knows")
	require.Equal(t, 1, sessions)

	relay.Refuse(false)
	// Whoever asks again under the same name gets it.
	managertest.Soon(t, "the database is used again", func() bool {
		again, err := ask(t, w, "who-knows")
		return err == nil && !again.Created
	})
}

// holdName makes every statement wait that stores a session of a name, until release.
func holdName(t *testing.T, s *store.Store, name string) (release func()) {
	t.Helper()
	tx, err := s.Pool().Begin(t.Context())
	require.NoError(t, err)
	release = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(release)
	_, err = tx.Exec(t.Context(), `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image,
		status, requested_slots) SELECT gen_random_uuid(), $1, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img',
		'PENDING', '{}' FROM keypairs k, projects p LIMIT 1`, name)
	require.NoError(t, err)
	return release
}

// TestAStatementThatStillRuns: the connection is gone and the statement goes on at the server. The second one under the same ids waits for
// it, and both are one session.
func TestAStatementThatStillRuns(t *testing.T) {
	t.Parallel()
	w, relay, direct := behind(t, "")
	release := holdName(t, direct, "still-runs")
	relay.Break(storetest.During, nil, inStatement("still-runs"))
	var created session.Created
	var failed error
	var asking sync.WaitGroup
	asking.Go(func() { created, failed = ask(t, w, "still-runs") })
	managertest.Soon(t, "the first statement and the second one wait", func() bool {
		var n int
		err := direct.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%InsertSessions%'`).Scan(&n)
		return err == nil && n == 2
	})
	release()
	asking.Wait()
	require.NoError(t, failed)
	require.True(t, created.Created)
	sessions, kernels := stored(t, direct, "still-runs")
	require.Equal(t, 1, sessions)
	require.Equal(t, 2, kernels)
}

// TestASecondStatementThatIsRefused: what keeps the second statement from storing the session says nothing of the first one.
func TestASecondStatementThatIsRefused(t *testing.T) {
	t.Parallel()
	w, relay, direct := behind(t, " lock_timeout=20ms")
	defer holdName(t, direct, "refused")()
	relay.Break(storetest.During, nil, inStatement("refused"))
	_, err := ask(t, w, "refused")
	require.True(t, relay.Broken())
	notKnown(t, err)
}

// TestALostCommitIsFoundOut: sessions with limits or folders are stored in a transaction; the answer to its commit is lost.
func TestALostCommitIsFoundOut(t *testing.T) {
	t.Parallel()
	w, relay, direct := behind(t, "")
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = 5`)
	relay.Break(storetest.After, nil, inStatement("committed"), "commit")
	created, err := ask(t, w, "committed")
	require.NoError(t, err)
	require.True(t, relay.Broken())
	require.True(t, created.Created)
	sessions, _ := stored(t, direct, "committed")
	require.Equal(t, 1, sessions)

	relay.Break(storetest.Before, nil, inStatement("not-committed"), "commit")
	_, err = ask(t, w, "not-committed")
	require.True(t, relay.Broken())
	notKnown(t, err)
	sessions, _ = stored(t, direct, "not-committed")
	require.Zero(t, sessions)
}

// silent explains nothing: what is added to it is the session noun's own.
type silent struct{ session.Explainer }

// Explain implements session.Explainer.
func (silent) Explain(context.Context, cluster.SessionID) (session.Explanation, error) {
	return session.Explanation{}, nil
}

// TestWhyNamesAnAgentThatGetsNoOrders: a session whose agent was not told of it says so, and since when.
func TestWhyNamesAnAgentThatGetsNoOrders(t *testing.T) {
	t.Parallel()
	w := managertest.New(t, func(d *nouns.Deps) { d.Explainer = silent{} })
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("waits-for-orders").ID
	why := func() string {
		t.Helper()
		_, e, err := w.Sessions.Explain(t.Context(), w.Admin, string(id), "")
		require.NoError(t, err)
		return e.Text
	}
	w.Place(id, "a1")
	require.NotContains(t, why(), "delivered", "the order is young")
	w.Exec(`UPDATE kernels SET status_changed = date_trunc('second', now()) - interval '1 minute'`)
	w.Exec(`UPDATE agents SET orders_at = now() - interval '2 minutes'`)
	var since time.Time
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT status_changed FROM kernels`).Scan(&since))
	require.Contains(t, why(), "it is SCHEDULED")
	require.Contains(t, why(), "orders to agent a1 have not been delivered since "+since.UTC().Format(time.RFC3339))

	// An older order does not count, and what it was told of is delivered.
	require.NoError(t, w.Reports.Delivered(t.Context(), []cluster.OrdersAge{{Agent: "a1", Age: 90 * time.Second}}))
	require.Contains(t, why(), "orders to agent a1")
	require.NoError(t, w.Reports.Delivered(t.Context(), []cluster.OrdersAge{{Agent: "a1", Age: 10 * time.Second}}))
	require.NotContains(t, why(), "delivered")
	// A report that comes late takes nothing back.
	require.NoError(t, w.Reports.Delivered(t.Context(), []cluster.OrdersAge{{Agent: "a1", Age: 5 * time.Minute}}))
	require.NotContains(t, why(), "delivered")

	// A stop that the agent was not told of is an order, too.
	w.Report(id, "a1", cluster.PhaseCreating)
	w.Report(id, "a1", cluster.PhaseRunning)
	_, err := w.Sessions.Destroy(t.Context(), w.Admin, string(id), session.DestroyOptions{})
	require.NoError(t, err)
	w.Exec(`UPDATE kernels SET status_changed = now() - interval '1 minute'`)
	w.Exec(`UPDATE agents SET orders_at = now() - interval '2 minutes'`)
	require.Contains(t, why(), "it is TERMINATING")
	require.Contains(t, why(), "orders to agent a1 have not been delivered since")
}
