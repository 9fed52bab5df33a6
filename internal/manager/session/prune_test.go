package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
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
	loops := w.Sessions.Loops(session.LoopConfig{EventRetention: 90 * 24 * time.Hour})
	require.Equal(t, "prune", loops[1].Name)
	work := loops[1].Begin(w.Term())
	for {
		wait, err := work.Pass(t.Context())
		require.NoError(t, err)
		if wait >= time.Minute { // all of it was looked at
			break
		}
	}
	require.Zero(t, count(old))
	require.Equal(t, stays, []int{count(recent), count(lives)})
}
