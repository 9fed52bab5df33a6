package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
)

// driven runs one loop without hints until the test stops it.
func driven(t *testing.T, pass func(ctx context.Context, n int) (time.Duration, error), end func()) (stop func() error) {
	l, err := New(DefaultConfig(), Deps{Clock: chassis.RealClock(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	n := 0
	loop := Loop{Name: "test", Begin: func(Term) Work {
		return Work{End: end, Pass: func(ctx context.Context) (time.Duration, error) { n++; return pass(ctx, n) }}
	}}
	go func() { ended <- l.drive(ctx, loop, Term{}) }()
	return func() error { cancel(); return <-ended }
}

// TestPassesComeWhenTheyAreDue: the first at once, then after the rest that a pass asks for, and after a failure with growing pauses up to
// two seconds, whatever the failed pass asked for.
func TestPassesComeWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		ended := false
		stop := driven(t, func(_ context.Context, n int) (time.Duration, error) {
			at = append(at, time.Since(began))
			switch {
			case n == 1:
				return 10 * time.Second, nil
			case n == 2:
				return 0, nil
			case n < 12:
				return time.Hour, errors.New("the database is away")
			}
			return time.Hour, nil
		}, func() { ended = true })
		require.NoError(t, chassis.Wait(t.Context(), chassis.RealClock(), time.Minute))
		synctest.Wait()
		require.NoError(t, stop())
		require.True(t, ended, "the work is told of the end of the term")
		require.Len(t, at, 12)
		require.Equal(t, []time.Duration{0, 10 * time.Second, 10 * time.Second}, at[:3])
		for i := 3; i < len(at); i++ {
			pause := at[i] - at[i-1]
			require.GreaterOrEqual(t, pause, 50*time.Millisecond)
			require.LessOrEqual(t, pause, 2*time.Second)
		}
		require.Equal(t, 2*time.Second, at[11]-at[10])
	})
}

// TestAPassThatHangsIsEnded: and the loop goes on.
func TestAPassThatHangsIsEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		passes := 0
		stop := driven(t, func(ctx context.Context, n int) (time.Duration, error) {
			if passes = n; n == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return time.Hour, nil
		}, nil)
		require.NoError(t, chassis.Wait(t.Context(), chassis.RealClock(), passTimeout+10*time.Second))
		synctest.Wait()
		require.Equal(t, 2, passes)
		require.NoError(t, stop())
	})
}

// TestADeposedLeaderStops: its loop ends with the word for it, and another error never does that.
func TestADeposedLeaderStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		passes := 0
		stop := driven(t, func(_ context.Context, n int) (time.Duration, error) {
			if passes = n; n == 1 {
				return 0, errors.New("something else")
			}
			return 0, ErrDeposed
		}, nil)
		require.NoError(t, chassis.Wait(t.Context(), chassis.RealClock(), time.Minute))
		synctest.Wait()
		require.Equal(t, 2, passes)
		require.ErrorIs(t, stop(), ErrDeposed)
	})
}
