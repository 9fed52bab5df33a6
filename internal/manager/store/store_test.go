package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

func TestSettingsSurviveATransaction(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx := t.Context()
	boom := errors.New("boom")
	err := s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		require.NoError(t, tx.SetSetting(ctx, "a", []byte(`1`)))
		return boom
	})
	require.ErrorIs(t, err, boom)
	_, err = s.GetSetting(ctx, "a")
	require.True(t, store.Missing(err), "a rolled back write must not be seen: %v", err)

	require.NoError(t, s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// An inner Tx joins the outer one.
		return s.Tx(ctx, func(ctx context.Context, inner *store.Tx) error {
			require.Same(t, tx, inner)
			return inner.SetSetting(ctx, "a", []byte(`2`))
		})
	}))
	v, err := s.GetSetting(ctx, "a")
	require.NoError(t, err)
	require.JSONEq(t, `2`, string(v))
}

func TestDeadlocksAreRetried(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx := t.Context()
	require.NoError(t, s.SetSetting(ctx, "a", []byte(`0`)))
	require.NoError(t, s.SetSetting(ctx, "b", []byte(`0`)))
	both := make(chan struct{}, 2)
	run := func(first, second string) error {
		met := false
		return s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.SetSetting(ctx, first, []byte(`1`)); err != nil {
				return err
			}
			if !met { // only the first attempt waits for the other to hold its row
				met = true
				both <- struct{}{}
				for len(both) < 2 {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(time.Millisecond):
					}
				}
			}
			return tx.SetSetting(ctx, second, []byte(`1`))
		})
	}
	errs := make(chan error, 2)
	go func() { errs <- run("a", "b") }()
	go func() { errs <- run("b", "a") }()
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
}

func TestWakesReachThisAndOtherManagers(t *testing.T) {
	t.Parallel()
	dsn := storetest.DSN(t)
	here, there := storetest.Open(t, dsn), storetest.Open(t, dsn)
	readers := map[string]*store.Wakes{}
	for name, s := range map[string]*store.Store{"here": here, "there": there} {
		readers[name] = s.Wakes(func(topic string) bool { return topic == store.TopicSchedule })
		t.Cleanup(readers[name].Close)
	}
	await := func(name, topic string) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case <-readers[name].C:
			case <-deadline:
				t.Fatalf("%s got no hint %q", name, topic)
			}
			for _, got := range readers[name].Take() {
				require.Contains(t, []string{topic, store.TopicAll}, got)
				if got == topic {
					return
				}
			}
		}
	}
	// Connected means that the first TopicAll has come.
	await("there", store.TopicAll)
	require.NoError(t, here.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		tx.Wake(store.TopicSchedule, store.TopicEvents)
		return nil
	}))
	await("here", store.TopicSchedule)
	await("there", store.TopicSchedule)
}
