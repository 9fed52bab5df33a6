package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// outageSink is a Sink whose queries fail, each after a while, until the database is back.
type outageSink struct {
	Sink
	back time.Time
	each time.Duration
}

func (o *outageSink) Desired(ctx context.Context, _ cluster.AgentID, _ map[cluster.KernelID]int64) ([]cluster.DesiredKernel, error) {
	if time.Now().Before(o.back) {
		_ = chassis.Wait(ctx, chassis.RealClock(), o.each)
		return nil, fault.Unavailablef("the database does not answer")
	}
	return []cluster.DesiredKernel{{Kernel: cluster.KernelID(time.Now().String()), Generation: 1, Stop: true}}, nil
}

// TestOrdersFollowAnOutageAtOnce: after an outage of the database an agent has its orders within a second or two, however long the outage
// was, and orders that are given after these follow within a second.
func TestOrdersFollowAnOutageAtOnce(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]time.Duration{"refused": time.Millisecond, "silent": 29 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const outage = 3 * time.Minute
				clock := chassis.RealClock()
				ctx, cancel := context.WithCancelCause(t.Context())
				sink := &outageSink{back: time.Now().Add(outage), each: each}
				s := newSession(&Link{cfg: DefaultConfig(), d: Deps{Sink: sink, Clock: clock}}, "a1", slog.New(slog.DiscardHandler), nil)
				s.ctx, s.cancel = ctx, cancel
				s.startPushing()
				defer func() { cancel(nil); s.stopPushing() }()
				received := func() time.Time {
					select {
					case m := <-s.out:
						require.NotNil(t, m.GetDesired())
					case <-ctx.Done():
						require.NoError(t, context.Cause(ctx), "the connection must outlive the outage")
					}
					return time.Now()
				}
				require.LessOrEqual(t, received().Sub(sink.back), each+mostPushPause)
				given := time.Now()
				s.wake()
				require.LessOrEqual(t, received().Sub(given), mostPushPause)
			})
		})
	}
}

// TestThePauseBetweenLooksIsBounded: a slow query makes looks seldom, but not more seldom than once in a second.
func TestThePauseBetweenLooksIsBounded(t *testing.T) {
	t.Parallel()
	require.Equal(t, leastPushPause, pushPause(0))
	require.Equal(t, 200*time.Millisecond, pushPause(100*time.Millisecond))
	require.Equal(t, mostPushPause, pushPause(time.Hour))
}
