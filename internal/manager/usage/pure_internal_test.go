package usage

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestPrices(t *testing.T) {
	t.Parallel()
	at := func(h int) time.Time { return noon.Add(time.Duration(h) * time.Hour) }
	prices := []Price{{Slot: "cpu", PerHour: "1", ValidFrom: at(0)}, {Slot: "cpu", PerHour: "2", ValidFrom: at(2)},
		{Slot: "cpu", ResourceGroup: "gpu", PerHour: "5", ValidFrom: at(1)}, {Slot: "mem", PerHour: "0.5", ValidFrom: at(0)}}
	for _, c := range []struct {
		slot  cluster.SlotName
		group string
		hour  int
		want  string
	}{{"cpu", "default", -1, ""}, {"cpu", "default", 0, "1"}, {"cpu", "default", 1, "1"}, {"cpu", "default", 2, "2"}, {"cpu", "gpu", 0, "1"},
		{"cpu", "gpu", 1, "5"}, {"cpu", "gpu", 3, "5"}, {"mem", "gpu", 3, "0.5"}, {"cuda.device", "gpu", 3, ""}} {
		got := perHour(prices, c.slot, c.group, at(c.hour))
		if c.want == "" {
			require.Nil(t, got, "%v", c)
			continue
		}
		require.Equal(t, c.want, plain(got), "%v", c)
	}
	require.Equal(t, []Period{{at(-1), at(0)}, {at(0), at(1)}, {at(1), at(2)}, {at(2), at(4)}}, spans(Period{at(-1), at(4)}, prices))
	require.Equal(t, []Period{{at(2), at(3)}}, spans(Period{at(2), at(3)}, prices))

	// Two cores for an hour at 1 and an hour at 2; 1 GiB for half an hour at 0.5; a device that has no price.
	amount := func(units, per int64, d time.Duration) *big.Int {
		n := big.NewInt(units * per)
		return n.Mul(n, big.NewInt(cluster.Milli*d.Microseconds()))
	}
	rows, total := sum([]part{
		{Period{at(1), at(2)}, "d", "k", "name", "default", "cpu", amount(2, 1, time.Hour)},
		{Period{at(2), at(4)}, "d", "k", "name", "default", "cpu", amount(2, 1, time.Hour)},
		{Period{at(1), at(2)}, "d", "k", "name", "default", "cuda.device", amount(1, 1, time.Hour)},
		{Period{at(1), at(2)}, "d", "k", "renamed", "default", "mem", amount(1, 1<<30, 30*time.Minute)},
	}, prices)
	require.Len(t, rows, 1)
	require.Equal(t, "renamed", rows[0].Name)
	require.Equal(t, "6.25", plain(total))
	require.Equal(t, "6.25", plain(rows[0].Cost))
	require.Len(t, rows[0].Slots, 3)
	require.Equal(t, "4", plain(rows[0].Slots[0].Hours))
	require.Equal(t, "6", plain(rows[0].Slots[0].Cost))
	require.Equal(t, "1", plain(rows[0].Slots[1].Hours))
	require.Nil(t, rows[0].Slots[1].Cost, "what has no price costs nothing that is known")
	require.Equal(t, "0.5", plain(rows[0].Slots[2].Hours))
	require.Equal(t, "0.25", plain(rows[0].Slots[2].Cost))
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	feb := Month(2028, time.February)
	require.Equal(t, 29*24*time.Hour, feb.Until.Sub(feb.From))
	require.NoError(t, feb.Check())
	require.Error(t, Period{noon, noon}.Check())
	require.Error(t, Period{noon, noon.Add(-time.Second)}.Check())
	require.Error(t, Period{noon, noon.AddDate(6, 0, 0)}.Check())
}

// TestBins: bins hold what intervals have within the chart, each session once.
func TestBins(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var intervals []held
		var want float64
		for s := range rapid.IntRange(0, 4).Draw(t, "sessions") {
			for range rapid.IntRange(1, 3).Draw(t, "kernels") {
				from := noon.Add(time.Duration(rapid.IntRange(-1000, 45_000).Draw(t, "from")) * time.Minute)
				until := from.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "length")) * time.Minute)
				n := rapid.IntRange(1, 9).Draw(t, "cores")
				intervals = append(intervals, held{string(rune('a' + s)), cluster.Slots{"cpu": cluster.Whole(int64(n)), "x.y": 500}, from, until})
				first, last := max(0, from.Sub(noon)), min(until.Sub(noon), binCount*binLength)
				want += max(0, float64(last-first)) * float64(n)
			}
		}
		var got float64
		for _, b := range bins(noon, func(each func(held)) {
			for _, h := range intervals {
				each(h)
			}
		}) {
			sessions := map[string]bool{}
			for _, h := range intervals {
				if h.from.Before(b.At.Add(binLength)) && b.At.Before(h.until) && h.from.Before(h.until) {
					sessions[h.session] = true
				}
			}
			if len(sessions) != b.Sessions {
				t.Fatalf("%s: %d sessions, not %d", b.At, b.Sessions, len(sessions))
			}
			got += b.CPU * float64(binLength)
		}
		if d := got - want; d > 1e6 || d < -1e6 { // a millisecond of floating point
			t.Fatalf("%v, not %v", got, want)
		}
	})
}
