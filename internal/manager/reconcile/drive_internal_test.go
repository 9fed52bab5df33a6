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

// TestALeaderThatReachesNoDatabaseResigns: after ten seconds without an answer, refused or not given, also when answers came before.
func TestALeaderThatReachesNoDatabaseResigns(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		check func(ctx context.Context, since time.Duration) error
		ends  time.Duration
		err   error
	}{
		"refused": {func(context.Context, time.Duration) error { return refused }, 12 * time.Second, refused},
		"no answer": {func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }, 10 * time.Second,
			context.DeadlineExceeded},
		"refused after a minute": {func(_ context.Context, since time.Duration) error {
			if since > time.Minute {
				return refused
			}
			return nil
		}, 72 * time.Second, refused},
		"away for nine seconds": {func(_ context.Context, since time.Duration) error {
			if since > 30*time.Second && since < 39*time.Second {
				return refused
			}
			return nil
		}, 5 * time.Minute, nil},
		"deposed": {func(context.Context, time.Duration) error { return ErrDeposed }, 3 * time.Second, ErrDeposed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				err := Hold(ctx, chassis.RealClock(), func(ctx context.Context) error { return c.check(ctx, time.Since(began)) })
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.ends, time.Since(began))
			})
		})
	}
}
