package feed_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/manager/store/storetest"
)

// epochs holds the epochs of rights as a consumer of their changes does.
type epochs struct {
	db    *store.Store
	known map[string]int64
}

func (e *epochs) Apply(ctx context.Context, c feed.Changes) error {
	rows, err := e.db.RightsEpochs(ctx, c[feed.KindRights])
	for _, r := range rows {
		e.known[r.Subject] = r.Epoch
	}
	return err
}

func (e *epochs) Compare(ctx context.Context, _ feed.Reason) (int, error) {
	now, err := stored(ctx, e.db)
	if err != nil {
		return 0, err
	}
	e.known = now
	return 0, nil
}

func stored(ctx context.Context, db *store.Store) (map[string]int64, error) {
	rows, err := db.DB().Query(ctx, "SELECT subject, epoch FROM rights_epochs")
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	var subject string
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&subject, &epoch}, func() error { out[subject] = epoch; return nil })
	return out, err
}

// TestNoChangeIsMissedOverCrashes: a server that crashes between looks gives transaction numbers again that earlier snapshots call done.
// What commits under them is found by the very next look, whoever noticed the crash before it. The store does not run its exchange of
// hints here, and its broken connections are gone before the look, so only what the server says of itself tells.
func TestNoChangeIsMissedOverCrashes(t *testing.T) {
	t.Parallel()
	server := storetest.NewServer(t)
	db, err := store.Open(t.Context(), store.Config{DSN: server.DSN() + " connect_timeout=60", SkipMigrations: true, MaxConns: 4},
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer db.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's dice
	held := &epochs{db: db, known: map[string]int64{}}
	f := feed.New(feed.Config{Name: "rights"})
	look := func() feed.Reason {
		r, err := f.Look(t.Context(), feed.Rights(db), held)
		require.NoError(t, err)
		return r.Compared
	}
	change := func(subject string, commit bool) (number uint64) {
		tx, err := db.Pool().Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&number))
		_, err = tx.Exec(t.Context(), "SELECT change_rights(ARRAY[$1])", subject)
		require.NoError(t, err)
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
		}
		return number
	}
	again := 0
	crashes := map[string]func(){"backend": server.KillBackend, "server": func() { server.Kill(); server.Start() }}
	names := slices.Sorted(maps.Keys(crashes))
	for round := range 3 {
		change(fmt.Sprint("user:", dice.IntN(5)), true)
		highest := uint64(0)
		for range 1 + dice.IntN(4) {
			highest = change(fmt.Sprint("user:", dice.IntN(5)), false)
		}
		look()
		crash := names[round%len(names)]
		crashes[crash]()
		db.Pool().Reset() // somebody else met the broken connections
		for range 1 + dice.IntN(3) {
			if change(fmt.Sprint("user:", dice.IntN(5)), true) <= highest {
				again++
			}
		}
		compared := look()
		now, err := stored(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, now, held.known, "after the crash of a %s", crash)
		require.NotEqual(t, feed.NotCompared, compared)
		require.Equal(t, feed.NotCompared, look(), "the crash counts once")
	}
	require.Positive(t, again, "no transaction number was given again: the test proves nothing")
}
