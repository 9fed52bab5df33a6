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
