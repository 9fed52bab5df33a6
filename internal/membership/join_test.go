package membership_test

import (
	"context"
	"encoding/pem"
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

// A member whose certificate has ended comes back by its key, when its token has long been used up or is gone.
func TestReturnByKey(t *testing.T) {
	t.Parallel()
	m := membershiptest.NewManager(t, nil)
	clock := &later{Clock: chassis.RealClock()}
	dir, token := t.TempDir(), m.Token(t, "a1")
	open := func(dir string, token func() (chassis.Secret, error)) *membership.Member {
		member, err := membership.Open(membership.Options{Dir: dir, Name: "a1", Clock: clock, Log: slog.New(slog.DiscardHandler), Token: token})
		require.NoError(t, err)
		return member
	}
	used := func() (chassis.Secret, error) { return token, nil }
	authority := func() []byte {
		text, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		block, _ := pem.Decode(text)
		return block.Bytes
	}
	first := open(dir, used)
	require.NoError(t, first.EnsureJoined(t.Context(), m.Addr))
	end := first.TLS("h2").Certificates[0].Leaf.NotAfter
	require.True(t, membership.Belongs(dir, "a1", authority(), clock.Now()))
	require.False(t, membership.Belongs(dir, "a2", authority(), clock.Now()))
	require.False(t, membership.Belongs(dir, "a1", authority(), end))
	require.False(t, membership.Belongs(t.TempDir(), "a1", authority(), clock.Now()))

	require.NoError(t, os.Remove(filepath.Join(dir, "node.crt"))) // as good as ended
	require.False(t, membership.Belongs(dir, "a1", authority(), clock.Now()))
	require.NoError(t, open(dir, nil).EnsureJoined(t.Context(), m.Addr))
	require.NoError(t, os.Remove(filepath.Join(dir, "node.crt")))
	require.NoError(t, open(dir, used).EnsureJoined(t.Context(), m.Addr))

	// A copy of the token without the key is worth nothing.
	err := open(t.TempDir(), used).EnsureJoined(t.Context(), m.Addr)
	require.ErrorContains(t, err, "was used at")
	// Nor is the key of another cluster's member.
	other := membershiptest.NewManager(t, nil)
	require.NoError(t, os.Remove(filepath.Join(dir, "node.crt")))
	require.Error(t, open(dir, nil).EnsureJoined(t.Context(), other.Addr))
	// With a token of the other cluster it moves there.
	fresh := other.Token(t, "a1")
	require.NoError(t, open(dir, func() (chassis.Secret, error) { return fresh, nil }).EnsureJoined(t.Context(), other.Addr))
}
