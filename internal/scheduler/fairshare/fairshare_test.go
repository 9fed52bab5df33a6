package fairshare_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler/fairshare"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestDecayedShare(t *testing.T) {
	t.Parallel()
	d, err := fairshare.Parse(map[string]any{"half_life_days": 1.0, "lookback_days": 2.0, "resource_weights": map[string]any{"mem": 0.0}})
	require.NoError(t, err)
	day := 24 * time.Hour
	capacity := cluster.Slots{cluster.SlotCPU: 4000, cluster.SlotMem: cluster.Whole(8 << 30)}
	all := map[cluster.SlotName]float64{cluster.SlotCPU: 4000 * day.Seconds()}
	share := d.Share(now, capacity, []fairshare.Bucket{{Start: now.Add(-day), Used: all}}, 1)
	require.InDelta(t, 0.25, share, 1e-9, "one full day of two, half of it decayed")
	require.InDelta(t, 0.125, d.Share(now, capacity, []fairshare.Bucket{{Start: now.Add(-day), Used: all}}, 2), 1e-9)
	require.Zero(t, d.Share(now, capacity, []fairshare.Bucket{{Start: now.Add(-5 * day), Used: all}}, 1))
}

func TestShareOptionsAndWeights(t *testing.T) {
	t.Parallel()
	for _, bad := range []map[string]any{
		{"half_life_days": 0.0}, {"lookback_days": -1.0}, {"decay_unit_days": 400.0}, {"default_weight": 0.0}, {"resource_weights": 1.0},
		{"resource_weights": map[string]any{"cpu": -1.0}}, {"resource_weights": map[string]any{"cpu": "x"}},
		{"resource_weights": map[string]any{"cpu": 2e6}}, {"other": 1.0},
	} {
		_, err := fairshare.Parse(bad)
		require.True(t, fault.Is(err, fault.Invalid), "%v", bad)
	}
	d, err := fairshare.Parse(map[string]any{"ageing_seconds": 60.0, "default_weight": 4.0, "resource_weights": nil})
	require.NoError(t, err)
	day := 24 * time.Hour
	require.Equal(
		t,
		fairshare.Decay{HalfLife: 7 * day, Lookback: 28 * day, Unit: day, Weight: 4, Resources: map[cluster.SlotName]float64{}},
		d,
	)
	full := func(slot cluster.SlotName, amount float64, at time.Time) []fairshare.Bucket {
		return []fairshare.Bucket{{Start: at, Used: map[cluster.SlotName]float64{slot: amount * 28 * day.Seconds()}}}
	}
	capacity := cluster.Slots{cluster.SlotCPU: 4000, cluster.SlotMem: 8000, "cuda.device": 2000, "gone.device": 0}
	all := 1 + 0.001 + 10
	require.InDelta(t, 1/all, d.Share(now, capacity, full(cluster.SlotCPU, 4000, now), 1), 1e-9)
	require.InDelta(t, 0.001/all, d.Share(now, capacity, full(cluster.SlotMem, 8000, now), 1), 1e-9)
	require.InDelta(t, 10/all, d.Share(now, capacity, full("cuda.device", 2000, now), 1), 1e-9)
	require.InDelta(t, 1/all/4, d.Share(now, capacity, full(cluster.SlotCPU, 4000, now), 0), 1e-9, "the default weight")
	require.InDelta(t, 1/all, d.Share(now, capacity, full(cluster.SlotCPU, 4000, now.Add(day)), 1), 1e-9, "not decayed: it lies ahead")
	require.InDelta(t, 0.5/all, d.Share(now, capacity, full(cluster.SlotCPU, 4000, now.Add(-7*day-time.Hour)), 1), 1e-9)
	require.InDelta(t, 1/all, d.Share(now, capacity, full(cluster.SlotCPU, 4000, now.Add(-23*time.Hour)), 1), 1e-9, "of the same day")
	last := now.Add(-29 * day)
	require.Positive(t, d.Share(now, capacity, full(cluster.SlotCPU, 4000, last), 1))
	require.Zero(t, d.Share(now, capacity, full(cluster.SlotCPU, 4000, last.Add(-time.Second)), 1))
	require.Zero(t, d.Share(now, cluster.Slots{}, full(cluster.SlotCPU, 4000, now), 1))
}

// Every number is accepted at its bounds and refused beyond them.
func TestOptionsHaveRanges(t *testing.T) {
	t.Parallel()
	for name, r := range map[string][4]float64{ // the lowest, the highest, one below, one above
		"half_life_days":  {0.001, 3650, 0.0009, 3650.1},
		"lookback_days":   {0.001, 3650, 0.0009, 3650.1},
		"decay_unit_days": {0.001, 365, 0.0009, 365.1},
		"default_weight":  {0.001, 1e6, 0.0009, 1e6 + 1},
		"ageing_seconds":  {0, 1e9, -1, 1e9 + 1},
	} {
		for i, v := range r {
			_, err := fairshare.Parse(map[string]any{name: v})
			require.Equal(t, i >= 2, fault.Is(err, fault.Invalid), "%s %v", name, v)
		}
	}
	for v, good := range map[float64]bool{0: true, 1e6: true, 1e6 + 1: false, -0.1: false} {
		_, err := fairshare.Parse(map[string]any{"resource_weights": map[string]any{"cpu": v}})
		require.Equal(t, !good, fault.Is(err, fault.Invalid), "weight %v", v)
	}
}

// Use of several buckets and slots adds up, each decayed by its age.
func TestSharesAddUp(t *testing.T) {
	t.Parallel()
	d, err := fairshare.Parse(map[string]any{"half_life_days": 1.0, "lookback_days": 10.0, "resource_weights": map[string]any{"mem": 1.0}})
	require.NoError(t, err)
	day := 24 * time.Hour
	capacity := cluster.Slots{cluster.SlotCPU: 1000, cluster.SlotMem: 1000}
	used := func(age time.Duration, cpu, mem float64) fairshare.Bucket {
		return fairshare.Bucket{Start: now.Add(-age), Used: map[cluster.SlotName]float64{
			cluster.SlotCPU: cpu * 1000 * 10 * day.Seconds(), cluster.SlotMem: mem * 1000 * 10 * day.Seconds()}}
	}
	buckets := []fairshare.Bucket{used(0, 0.1, 0.3), used(2*day, 0.4, 0), used(20*day, 1, 1), used(3*day, 0, 0.8)}
	require.InDelta(t, (0.1+0.4/4+0.3+0.8/8)/2, d.Share(now, capacity, buckets, 0), 1e-9)
	require.InDelta(t, (0.1+0.4/4+0.3+0.8/8)/2/4, d.Share(now, capacity, buckets, 4), 1e-9)
	require.InDelta(t, (0.1+0.4/4+0.3+0.8/8)/2, d.Share(now, capacity, buckets, -1), 1e-9, "no weight is below zero")
}
