package store_test

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// Managers that start together on an empty database migrate it once, and all of them go on.
func TestManagersMigrateTogether(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	s := storetest.Open(t, dsn)
	want := version(t, s)
	require.NoError(t, execute(t.Context(), s, "DROP SCHEMA public CASCADE"))
	require.NoError(t, execute(t.Context(), s, "CREATE SCHEMA public"))
	const managers = 3
	errs := make([]error, managers)
	opened := make([]*store.Store, managers)
	var all sync.WaitGroup
	for i := range managers {
		all.Go(func() {
			opened[i], errs[i] = store.Open(t.Context(), store.Config{DSN: dsn, MaxConns: 2}, slog.New(slog.DiscardHandler))
		})
	}
	all.Wait()
	for i, err := range errs {
		if opened[i] != nil {
			defer opened[i].Close()
		}
		require.NoError(t, err, "manager %d", i)
	}
	require.Equal(t, want, version(t, opened[0]))
	var twice int
	require.NoError(t, opened[1].Pool().QueryRow(t.Context(), `SELECT count(*) - count(DISTINCT version_id) FROM goose_db_version`).
		Scan(&twice))
	require.Zero(t, twice, "a migration ran twice")
}

func version(t *testing.T, s *store.Store) (v int64) {
	t.Helper()
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT max(version_id) FROM goose_db_version`).Scan(&v))
	return v
}
