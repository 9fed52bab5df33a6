package session_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/reconcile"
)

// chronicle answers with the ends of batches and tells where it was asked to begin.
type chronicle struct {
	answers []int64
	asked   chan int64
}

func (c *chronicle) PruneEvents(_ context.Context, age time.Duration, after int64) (int64, int, error) {
	if age != time.Hour {
		return 0, 0, errors.New("another age")
	}
	if len(c.answers) == 0 {
		return 0, 0, nil
	}
	next := c.answers[0]
	c.answers = c.answers[1:]
	c.asked <- after
	return next, 1, nil
}

// The leader goes through old history batch by batch, from where the last one ended.
func TestPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	c := &chronicle{answers: []int64{1000, 2000, 0}, asked: make(chan int64)}
	cfg := reconcile.DefaultConfig()
	cfg.EventRetention = time.Hour
	loops, err := reconcile.New(cfg, reconcile.Deps{Store: b.store, Nodes: noNodes{}, History: c, Log: log, Holder: "m1"})
	require.NoError(t, err)
	svc := loops.Service()
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { _ = svc.Stop(context.Background()) })
	for _, want := range []int64{0, 1000, 2000} {
		select {
		case after := <-c.asked:
			require.Equal(t, want, after)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "nobody looked for old history")
		}
	}
}
