package operation

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/storetest"
)

// TestTasksOfAManagerThatDiedEnd: a manager that is killed and started again at once finds its tasks too young to be given up. They end
// later all the same; before, they were under way until the next restart, and their session could not be committed again.
func TestTasksOfAManagerThatDiedEnd(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	o, err := New(Deps{Store: s, Clock: time.Now, IDs: uuid.NewString, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	o.look = 5 * time.Millisecond
	put := func(age time.Duration) (id string) {
		id = uuid.NewString()
		_, err := s.Pool().Exec(t.Context(), `INSERT INTO background_tasks (id, kind, subject, status, updated_at)
			VALUES ($1, 'commit_session', 's', 'started', now() - $2::interval)`, id, age)
		require.NoError(t, err)
		return id
	}
	status := func(id string) (text string) {
		require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT status FROM background_tasks WHERE id = $1`, id).Scan(&text))
		return text
	}
	young := put(0)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = o.Run(ctx) })
	old := put(time.Hour)
	require.Eventually(t, func() bool { return status(old) == "failed" }, time.Minute, time.Millisecond)
	require.Equal(t, "started", status(young), "its manager may live")
	_, err = s.Pool().Exec(t.Context(), `UPDATE background_tasks SET updated_at = now() - interval '2 minutes' WHERE id = $1`, young)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return status(young) == "failed" }, time.Minute, time.Millisecond)
}
