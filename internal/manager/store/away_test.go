package store_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/testkit/await"
)

// TestADatabaseThatIsAway: whatever keeps PostgreSQL from serving is Unavailable, reads wait for the end of a short outage, and everything
// works when it is back.
func TestADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	server := storetest.NewServer(t)
	ctx := t.Context()
	s, err := store.Open(ctx, store.Config{DSN: server.DSN() + " connect_timeout=60", SkipMigrations: true, MaxConns: 3},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.SetSetting(ctx, "a", []byte(`1`)))

	// Read-only, as after a failover to a standby.
	require.NoError(t, execute(ctx, s, "ALTER DATABASE postgres SET default_transaction_read_only = on"))
	s.Pool().Reset()
	unavailable(t, s.SetSetting(ctx, "a", []byte(`2`)))
	unavailable(t, s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.SetSetting(ctx, "a", []byte(`2`)) }))
	v, err := s.GetSetting(ctx, "a")
	require.NoError(t, err, "reads go on")
	require.JSONEq(t, `1`, string(v))
	tx, err := s.Pool().BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadWrite})
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "ALTER DATABASE postgres RESET default_transaction_read_only")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	s.Pool().Reset()
	require.NoError(t, s.SetSetting(ctx, "a", []byte(`1`)))

	// Away: writes are told at once.
	server.Kill()
	unavailable(t, s.SetSetting(ctx, "a", []byte(`3`)))
	unavailable(t, s.Ping(ctx))
	// A read that comes early in the outage waits for its end.
	read := make(chan error, 1)
	go func() {
		_, err := s.GetSetting(ctx, "a")
		read <- err
	}()
	server.Start()
	if err := <-read; err != nil { // a machine as slow as this one may need longer than reads wait
		unavailable(t, err)
	}
	_, err = s.GetSetting(ctx, "a")
	require.NoError(t, err)
	require.NoError(t, s.SetSetting(ctx, "a", []byte(`4`)))

	// A connection that breaks while a statement runs leaves it open whether the statement happened.
	broken := make(chan error, 1)
	go func() {
		broken <- execute(ctx, s, "UPDATE cluster_settings SET value = '5' FROM pg_sleep(60) WHERE key = 'a'")
	}()
	require.Eventually(t, func() bool {
		var n int
		err := s.DB().QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 1
	}, patience, tick)
	server.KillBackend()
	err = <-broken
	unavailable(t, err)
	require.True(t, store.Unknown(err), "%v", err)
}

// TestADatabaseThatSaysNothing: a server that keeps its connections and does not answer is away as well, after a bounded time.
func TestADatabaseThatSaysNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, err := store.Open(ctx, store.Config{DSN: storetest.DSN(t), SkipMigrations: true, MaxConns: 2,
		StatementPatience: 100 * time.Millisecond},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer s.Close()
	await.Return(t, func() {
		unavailable(t, execute(ctx, s, "SELECT pg_sleep(3600)"))
		// On a busy machine the patience may be over before there is a connection. Then nothing was sent, and nothing is unknown.
		for sent := false; !sent; {
			err := execute(ctx, s, "DO $$ BEGIN PERFORM pg_sleep(3600); END $$")
			unavailable(t, err)
			sent = store.Unknown(err)
		}
		rows, err := s.DB().Query(ctx, "SELECT pg_sleep(3600)")
		if err == nil {
			require.False(t, rows.Next())
			err = rows.Err()
			rows.Close()
		}
		unavailable(t, err)
		unavailable(t, s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.DB().Exec(ctx, "SELECT pg_sleep(3600)")
			return err
		}))
	})
	// On a busy machine a new connection may take longer than the patience of this store.
	require.Eventually(t, func() bool { return execute(ctx, s, "SELECT 1") == nil }, patience, tick, "no connection of the pool is lost")
}

func execute(ctx context.Context, s *store.Store, sql string) error {
	_, err := s.DB().Exec(ctx, sql)
	return err
}

func unavailable(t *testing.T, err error) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.True(t, store.Away(err), "%v", err)
	require.NotEmpty(t, fault.NextOf(err))
}

// TestAnOlderBinaryRefusesANewerSchema: it would misread what the newer one has written.
func TestAnOlderBinaryRefusesANewerSchema(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	s := storetest.Open(t, dsn)
	require.NoError(t, execute(t.Context(), s, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)"))
	_, err := store.Open(t.Context(), store.Config{DSN: dsn, MaxConns: 2}, slog.New(slog.DiscardHandler))
	require.Error(t, err)
	require.Equal(t, "schema-newer", fault.ReasonOf(err))
	require.Contains(t, err.Error(), "schema version 9999")
	var f *fault.Error
	require.True(t, errors.As(err, &f))
	require.NotEmpty(t, f.Next)
}
