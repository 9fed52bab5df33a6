package membership_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/membership/membershiptest"
)

// later is a clock that can be put ahead; its tickers tick when the test says so.
type later struct {
	chassis.Clock
	by    atomic.Int64
	ticks chan time.Time
}

func (c *later) Now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// tick ticks once the ticker's owner waits for it.
func (c *later) tick(t *testing.T) {
	t.Helper()
	select {
	case c.ticks <- c.Now():
	case <-time.After(time.Minute):
		require.FailNow(t, "nobody waits for the next tick")
	}
}

func (c *later) NewTicker(time.Duration) chassis.Ticker { return ticker{c.ticks} }

type ticker struct{ c chan time.Time }

func (t ticker) C() <-chan time.Time { return t.c }
func (ticker) Stop()                 {}
func (ticker) Reset(time.Duration)   {}

// A manager that is gone for good keeps nobody from renewing at another.
func TestRenewalAtAnotherManager(t *testing.T) {
	t.Parallel()
	m := membershiptest.NewManager(t, nil)
	clock := &later{Clock: chassis.RealClock(), ticks: make(chan time.Time)}
	dir, token := t.TempDir(), m.Token(t, "appproxy:p")
	member, err := membership.Open(membership.Options{
		Dir: dir, Name: "appproxy:p", Clock: clock, Log: slog.New(slog.DiscardHandler),
		Token: func() (chassis.Secret, error) { return token, nil },
	})
	require.NoError(t, err)
	require.NoError(t, member.EnsureJoined(t.Context(), m.Addr))
	kept := func() (all string) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			all += string(text)
		}
		return all
	}
	first := kept()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- member.KeepRenewed(ctx, membership.NewManagers([]string{"127.0.0.1:1", m.Addr}, 0)) }()
	clock.tick(t)
	clock.tick(t) // the look before is over
	require.Equal(t, first, kept(), "it is not time yet")
	clock.by.Store(int64(time.Until(member.RenewAt()) + time.Hour))
	clock.tick(t)
	clock.tick(t)
	require.NotEqual(t, first, kept())
	stop()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(time.Minute):
		require.FailNow(t, "it goes on")
	}
}
