package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
)

// What the preview says is left is admitted, and one more is not; it names a level that refuses.
func TestThePreviewSaysWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	whats := []Limited{LiveSessions, PrivateSessions, "cpu", "mem"}
	asks := func(what Limited, n cluster.Amount) Usage {
		switch what {
		case LiveSessions:
			return Usage{Sessions: int(n)}
		case PrivateSessions:
			return Usage{Private: int(n)}
		}
		return Usage{Slots: cluster.Slots{cluster.SlotName(what): n}}
	}
	rapid.Check(t, func(rt *rapid.T) {
		amount := rapid.Map(rapid.IntRange(0, 6), func(n int) cluster.Amount { return cluster.Amount(n) })
		levels := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Level {
			l := Level{Used: Usage{Sessions: rapid.IntRange(0, 6).Draw(rt, "n"), Private: rapid.IntRange(0, 3).Draw(rt, "p"),
				Slots: rapid.MapOf(rapid.SampledFrom([]cluster.SlotName{"cpu", "mem"}), amount).Draw(rt, "used")}}
			if rapid.Bool().Draw(rt, "quota?") {
				l.Quota = &Quota{Sessions: rapid.IntRange(-1, 6).Draw(rt, "sessions"), Private: rapid.IntRange(-1, 3).Draw(rt, "private"),
					Slots: rapid.MapOf(rapid.SampledFrom([]cluster.SlotName{"cpu", "mem"}), amount).Draw(rt, "slots")}
			}
			return l
		}), 0, 5).Draw(rt, "levels")
		for _, b := range Bounds(levels, whats) {
			if b.Binds < 0 {
				refused, _ := Admit(levels, asks(b.What, 1_000_000))
				require.Nil(rt, refused)
				continue
			}
			left := b.Levels[b.Binds].Left
			refused, _ := Admit(levels, asks(b.What, left))
			require.Nil(rt, refused, "%s: %d are left", b.What, left)
			refused, what := Admit(levels, asks(b.What, left+1))
			require.NotNil(rt, refused, "%s: %d are left", b.What, left)
			require.Equal(rt, b.What, what)
		}
	})
}

// TestWhatALevelAllows: what a level tells of a limit, what is used of it, and whether there is one. A closed quota allows nothing of
// anything, and what is used is told all the same.
func TestWhatALevelAllows(t *testing.T) {
	t.Parallel()
	used := Usage{Sessions: 3, Private: 2, Slots: cluster.Slots{"cpu": 5}}
	type told struct {
		limit, used cluster.Amount
		limited     bool
	}
	for name, c := range map[string]struct {
		quota *Quota
		want  map[Limited]told
	}{
		"without a quota": {nil, map[Limited]told{
			LiveSessions: {0, 3, false}, PrivateSessions: {0, 2, false}, "cpu": {0, 5, false}, "mem": {0, 0, false}}},
		"without limits": {&Quota{Sessions: -1, Private: -1}, map[Limited]told{
			LiveSessions: {0, 3, false}, PrivateSessions: {0, 2, false}, "cpu": {0, 5, false}}},
		"with limits": {&Quota{Sessions: 7, Private: 4, Slots: cluster.Slots{"cpu": 9}}, map[Limited]told{
			LiveSessions: {7, 3, true}, PrivateSessions: {4, 2, true}, "cpu": {9, 5, true}, "mem": {0, 0, false}}},
		"with limits of nothing": {&Quota{Slots: cluster.Slots{"cpu": 0}}, map[Limited]told{
			LiveSessions: {0, 3, true}, PrivateSessions: {0, 2, true}, "cpu": {0, 5, true}}},
		"closed": {&Quota{Closed: true, Sessions: 7, Private: 4, Slots: cluster.Slots{"cpu": 9}}, map[Limited]told{
			LiveSessions: {0, 3, true}, PrivateSessions: {0, 2, true}, "cpu": {0, 5, true}, "mem": {0, 0, true}}},
		"closed without limits": {&Quota{Closed: true, Sessions: -1, Private: -1}, map[Limited]told{
			LiveSessions: {0, 3, true}, PrivateSessions: {0, 2, true}, "cpu": {0, 5, true}}},
	} {
		for what, want := range c.want {
			limit, n, limited := Level{Quota: c.quota, Used: used}.limit(what)
			if !limited {
				limit = 0
			}
			require.Equal(t, want, told{limit, n, limited}, "%s: %s", name, what)
		}
	}
}

// TestWhichLevelBinds: the level that leaves least, the first of several, with what is kept of it for others; and which one refuses.
func TestWhichLevelBinds(t *testing.T) {
	t.Parallel()
	level := func(id string, limit, used, kept cluster.Amount) Level {
		return Level{Scope: Scope{Kind: ScopeUser, ID: id}, Used: Usage{Slots: cluster.Slots{"cpu": used}}, Kept: cluster.Slots{"cpu": kept},
			Quota: &Quota{Sessions: -1, Private: -1, Slots: cluster.Slots{"cpu": limit}}}
	}
	unlimited := Level{Scope: Scope{Kind: ScopeDomain, ID: "unlimited"}}
	for name, c := range map[string]struct {
		levels  []Level
		binds   int
		left    []cluster.Amount
		refused string // for one more than is left
	}{
		"none":                       {[]Level{unlimited}, -1, []cluster.Amount{0}, ""},
		"the first of equal ones":    {[]Level{unlimited, level("a", 5, 2, 0), level("b", 4, 1, 0)}, 1, []cluster.Amount{0, 3, 3}, "a"},
		"the least":                  {[]Level{level("a", 5, 1, 0), level("b", 5, 3, 0), unlimited}, 1, []cluster.Amount{4, 2, 0}, "b"},
		"what is kept is not left":   {[]Level{level("a", 5, 1, 3), level("b", 5, 3, 0)}, 0, []cluster.Amount{1, 2}, "a"},
		"more is used than the most": {[]Level{level("a", 5, 1, 0), level("b", 5, 9, 0)}, 1, []cluster.Amount{4, 0}, "b"},
	} {
		b := Bounds(c.levels, []Limited{"cpu"})[0]
		require.Equal(t, Limited("cpu"), b.What, name)
		require.Equal(t, c.binds, b.Binds, name)
		for i, l := range b.Levels {
			require.Equal(t, c.left[i], l.Left, "%s: %s", name, l.Scope.ID)
			require.Equal(t, c.levels[i].Scope.ID != "unlimited", l.Limited, "%s: %s", name, l.Scope.ID)
			require.Equal(t, c.levels[i].Used.Slots["cpu"], l.Used, "%s: %s", name, l.Scope.ID)
		}
		if c.binds < 0 {
			continue
		}
		refused, what := Admit(c.levels, Usage{Slots: cluster.Slots{"cpu": c.left[c.binds] + 1}})
		require.NotNil(t, refused, name)
		require.Equal(t, c.refused, refused.Scope.ID, name)
		require.Equal(t, Limited("cpu"), what, name)
	}
	// Who is over a limit may still have what asks for nothing of it.
	refused, _ := Admit([]Level{level("a", 5, 9, 0)}, Usage{Sessions: 1, Slots: cluster.Slots{"cpu": 0}})
	require.Nil(t, refused)
	refused, what := Admit([]Level{{Quota: &Quota{Sessions: 0, Private: 0}}}, Usage{Sessions: 1, Private: 1})
	require.NotNil(t, refused)
	require.Equal(t, LiveSessions, what)
}
