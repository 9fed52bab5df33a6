package session_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
)

func TestOldHistoryIsForgotten(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	old, recent, lives := w.Running("long-ago", "a1"), w.Running("just-now", "a1"), w.Running("lives-on", "a1")
	for _, id := range []cluster.SessionID{old, recent} {
		w.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(0, ""))
	}
	w.Exec(`UPDATE session_events SET at = at - interval '100 days' WHERE session_id <> $1`, string(recent))
	w.Exec(`UPDATE sessions SET ended_at = ended_at - interval '100 days' WHERE id = $1`, string(old))
	count := func(id cluster.SessionID) (n int) {
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM session_events WHERE session_id = $1`, string(id)).Scan(&n))
		return n
	}
	all, stays := count(old), []int{count(recent), count(lives)}
	require.NotZero(t, all)
	prune(t, w, session.LoopConfig{EventRetention: 90 * 24 * time.Hour})
	require.Zero(t, count(old))
	require.Equal(t, stays, []int{count(recent), count(lives)})
}

// prune runs the loop until it has looked at everything.
func prune(t *testing.T, w *managertest.World, c session.LoopConfig) (passes int) {
	t.Helper()
	loops := w.Sessions.Loops(c)
	i := slices.IndexFunc(loops, func(l reconcile.Loop) bool { return l.Name == "prune" })
	require.GreaterOrEqual(t, i, 0)
	work := loops[i].Begin(w.Term())
	for {
		passes++
		wait, err := work.Pass(t.Context())
		require.NoError(t, err)
		if wait >= time.Minute {
			return passes
		}
	}
}

// TestOldSessionsAreForgotten: with their kernels, in small batches; what a live session depends on stays, and so does what
// an agent must still remove.
func TestOldSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	year := session.LoopConfig{SessionRetention: 365 * 24 * time.Hour, TaskRetention: 30 * 24 * time.Hour}
	ended := func(name string) cluster.SessionID {
		id := w.Running(name, "a1")
		w.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(0, ""))
		return id
	}
	old, needed, owed, recent, lives := ended("long-ago"), ended("needed"), ended("owed"), ended("just-now"), w.Running("lives-on", "a1")
	w.Exec(`UPDATE sessions SET ended_at = ended_at - interval '400 days' WHERE id = ANY($1::uuid[])`,
		[]string{string(old), string(needed), string(owed)})
	w.Exec(`INSERT INTO session_dependencies (session_id, depends_on) VALUES ($1, $2)`, string(lives), string(needed))
	w.Exec(`INSERT INTO kernel_removals (kernel_id, generation, agent_id, session_id, reason)
		SELECT id, generation, 'a1', session_id, '' FROM kernels WHERE session_id = $1`, string(owed))
	for _, age := range []string{"40 days", "1 day"} {
		for _, status := range []string{"done", "started"} {
			w.Exec(`INSERT INTO background_tasks (id, kind, status, updated_at)
				VALUES (gen_random_uuid(), 'test', $1, now() - $2::text::interval)`, status, age)
		}
	}
	prune(t, w, year)
	count := func(query string, args ...any) (n int) {
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), query, args...).Scan(&n))
		return n
	}
	require.Zero(t, count(`SELECT count(*) FROM sessions WHERE id = $1`, string(old)))
	require.Zero(t, count(`SELECT count(*) FROM kernels WHERE session_id = $1`, string(old)))
	require.NotZero(t, count(`SELECT count(*) FROM session_events WHERE session_id = $1`, string(old)), "the history has its own retention")
	require.Equal(t, 4, count(`SELECT count(*) FROM sessions WHERE id = ANY($1::uuid[])`,
		[]string{string(needed), string(owed), string(recent), string(lives)}))
	require.Equal(t, 3, count(`SELECT count(*) FROM background_tasks`))

	w.Exec(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
			requested_slots, ended_at)
		SELECT gen_random_uuid(), 'old-' || n, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots,
			now() - interval '400 days' FROM sessions, generate_series(1, 250) n WHERE id = $1`, string(recent))
	require.Greater(t, prune(t, w, year), 3, "in batches")
	require.Equal(t, 4, count(`SELECT count(*) FROM sessions`))
}
