package membership_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
)

func TestManagersInTurn(t *testing.T) {
	t.Parallel()
	m := membership.NewManagers([]string{"a:1", "b:1", "a:1"}, 0)
	require.Equal(t, []string{"a:1", "b:1"}, m.All())
	require.Equal(t, "a:1", m.Present())
	m.Failed("b:1")
	require.Equal(t, "a:1", m.Present(), "another one's failure changes nothing")
	m.Learn([]string{"c:1", "b:1"})
	require.Equal(t, []string{"a:1", "b:1", "c:1"}, m.All(), "those of the configuration come first")
	require.Equal(t, "a:1", m.Present(), "it stays although the list does not name it")
	for _, want := range []string{"b:1", "c:1", "a:1"} {
		m.Failed(m.Present())
		require.Equal(t, want, m.Present())
	}
	m.Failed("a:1")
	m.Failed("b:1")
	m.Learn([]string{"d:1"})
	require.Equal(t, "c:1", m.Present(), "it stays although it is in no list any more")
	m.Failed("c:1")
	require.Equal(t, "a:1", m.Present())
	require.Equal(t, []string{"a:1", "b:1", "d:1"}, m.All())
}

func TestManagersStart(t *testing.T) {
	t.Parallel()
	for start, want := range map[float64]string{0: "a:1", 0.4: "a:1", 0.5: "b:1", 0.999: "b:1", 1: "b:1"} {
		require.Equal(t, want, membership.NewManagers([]string{"a:1", "b:1"}, start).Present(), "%v", start)
	}
}

// What a manager says is bounded and checked; it never takes anything from the configuration.
func TestWhatManagersSay(t *testing.T) {
	t.Parallel()
	m := membership.NewManagers([]string{"a:1"}, 0)
	m.Learn([]string{"", "no port", ":1", "host:", strings.Repeat("x", node.MaxAddress) + ":1", "b:1", "b:1", "a:1", "[::1]:2"})
	require.Equal(t, []string{"a:1", "b:1", "[::1]:2"}, m.All())
	m.Learn(slices.Repeat([]string{"x:1"}, 2*node.MaxManagers))
	require.Equal(t, []string{"a:1", "x:1"}, m.All())
	m.Learn(nil)
	require.Equal(t, []string{"a:1"}, m.All())
}

// Whatever happens, everybody in the list gets a turn within one round of failures.
func TestEveryManagerGetsATurn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.SampledFrom([]string{"a:1", "b:1", "c:1", "d:1", "e:1"})
		m := membership.NewManagers(rapid.SliceOfN(address, 1, 4).Draw(t, "configured"), rapid.Float64Range(0, 1).Draw(t, "start"))
		for range rapid.IntRange(0, 5).Draw(t, "events") {
			if rapid.Bool().Draw(t, "learn") {
				m.Learn(rapid.SliceOfN(address, 0, 4).Draw(t, "list"))
			} else {
				m.Failed(m.Present())
			}
		}
		seen := map[string]bool{}
		for range len(m.All()) + 1 { // the present one may be in no list
			seen[m.Present()] = true
			m.Failed(m.Present())
		}
		for _, addr := range m.All() {
			require.True(t, seen[addr], addr)
		}
	})
}

// attempt is one call of Connect.To.
type attempt struct {
	addr string
	at   time.Duration // since the beginning
}

// keep runs Keep on the fake clock until to says that it is enough.
func keep(t *testing.T, m *membership.Managers, log *slog.Logger,
	to func(n int, addr string) (lasts time.Duration, worked, enough bool)) (all []attempt) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	err := m.Keep(ctx, membership.Connect{
		Clock: chassis.RealClock(), Random: func() float64 { return 1 }, Log: log,
		To: func(ctx context.Context, addr string) (bool, error) {
			all = append(all, attempt{addr, time.Since(began)})
			lasts, worked, enough := to(len(all), addr)
			if enough {
				cancel()
			}
			_ = chassis.Wait(ctx, chassis.RealClock(), lasts)
			return worked, errors.New("it broke")
		},
	})
	require.ErrorIs(t, err, context.Canceled)
	return all
}

func TestKeepTriesInTurnWithGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := membership.NewManagers([]string{"a:1", "b:1"}, 0)
		all := keep(t, m, slog.New(slog.DiscardHandler), func(n int, _ string) (time.Duration, bool, bool) { return 0, false, n == 9 })
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		require.Equal(t, []attempt{{"a:1", 0}, {"b:1", ms(100)}, {"a:1", ms(300)}, {"b:1", ms(700)}, {"a:1", ms(1500)}, {"b:1", ms(3100)},
			{"a:1", ms(6300)}, {"b:1", ms(11300)}, {"a:1", ms(16300)}}, all, "five seconds at most")
	})
}

// A connection that worked for long is opened again at the same manager first; when that fails, at the next.
func TestKeepPrefersToStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := membership.NewManagers([]string{"a:1", "b:1"}, 0)
		all := keep(t, m, slog.New(slog.DiscardHandler), func(n int, _ string) (time.Duration, bool, bool) {
			switch n {
			case 1, 2: // worked, worked again after a restart
				return time.Hour, true, false
			case 4: // the other took it, and ended it at once
				return time.Second, true, false
			}
			return 0, false, n == 5
		})
		var at []string
		for _, a := range all {
			at = append(at, a.addr)
		}
		require.Equal(t, []string{"a:1", "a:1", "a:1", "b:1", "a:1"}, at)
		require.Equal(t, time.Hour+100*time.Millisecond, all[1].at, "a connection that worked ends the growth of the pauses")
		require.Equal(t, 2*time.Hour+200*time.Millisecond, all[2].at)
	})
}

func TestKeepSaysTheSameOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := membership.NewManagers([]string{"a:1", "b:1"}, 0)
		keep(t, m, slog.New(slog.NewTextHandler(&log, nil)), func(n int, _ string) (time.Duration, bool, bool) { return 0, false, n == 20 })
		require.Equal(t, 2, strings.Count(log.String(), "trying again"), "of each manager")
	})
}
