package circuit_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/proxy"
)

// weighted is a circuit with one target for each weight, on the kernels k0, k1 and so on.
func weighted(weights ...int) *circuit.Circuit {
	c := proxy.Circuit{ID: "a"}
	for i, w := range weights {
		c.Targets = append(c.Targets, proxy.Target{Kernel: cluster.KernelID(fmt.Sprint("k", i)), Port: 80, Weight: w})
	}
	return circuit.New(c)
}

func TestPick(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		weights []int
		want    []float64 // shares; nil when there is no target to pick
	}{
		"none":                     {nil, nil},
		"one":                      {[]int{1}, []float64{1}},
		"one of any weight":        {[]int{17}, []float64{1}},
		"one, drained":             {[]int{0}, nil},
		"all drained":              {[]int{0, 0}, nil},
		"below zero is like zero":  {[]int{-5, 1}, []float64{0, 1}},
		"one of two drained":       {[]int{3, 0}, []float64{1, 0}},
		"halves":                   {[]int{1, 1}, []float64{0.5, 0.5}},
		"weights are proportional": {[]int{1, 2, 7}, []float64{0.1, 0.2, 0.7}},
		"and have no unit":         {[]int{100, 200, 700}, []float64{0.1, 0.2, 0.7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const draws = 20_000
			c, random := weighted(test.weights...), rand.New(rand.NewPCG(1, 2))
			got := map[cluster.KernelID]int{}
			for range draws {
				target, ok := c.Pick(random.Uint64())
				require.Equal(t, test.want != nil, ok)
				got[target.Kernel]++
			}
			for i, share := range test.want {
				// The standard deviation of a share is 0.35 % at most.
				require.InDelta(t, share, float64(got[c.Targets[i].Kernel])/draws, 0.02, "target %d", i)
			}
		})
	}
}

// A visitor stays where they are as long as what changes does not concern their target.
func TestPickIsSticky(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 8).Draw(t, "weights")
		keys := rapid.SliceOfN(rapid.Uint64(), 1, 50).Draw(t, "keys")
		i := rapid.IntRange(0, len(weights)-1).Draw(t, "changed")
		now := slices.Clone(weights)
		now[i] = rapid.IntRange(0, 9).Draw(t, "weight")
		before, after := weighted(weights...), weighted(now...)
		changed := before.Targets[i].ID()
		for _, key := range keys {
			was, ok := before.Pick(key)
			again, _ := before.Pick(key)
			require.Equal(t, was, again, "the same key chooses the same target")
			is, there := after.Pick(key)
			require.Equal(t, slices.ContainsFunc(now, func(w int) bool { return w > 0 }), there)
			if there {
				require.Positive(t, is.Weight, "a drained target gets nobody")
			}
			switch {
			case !ok || !there || was.ID() == is.ID():
			case now[i] > weights[i]:
				require.Equal(t, changed, is.ID(), "a target that weighs more takes visitors, and nobody else does")
			default:
				require.Equal(t, changed, was.ID(), "a target that weighs less loses visitors, and nobody else does")
			}
		}
	})
}

// The order of the targets means nothing: all proxies choose alike.
func TestPickHasNoOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := weighted(rapid.SliceOfN(rapid.IntRange(0, 5), 1, 8).Draw(t, "weights")...)
		other := c.Circuit
		other.Targets = rapid.Permutation(c.Targets).Draw(t, "order")
		key := rapid.Uint64().Draw(t, "key")
		a, ok := c.Pick(key)
		b, ok2 := circuit.New(other).Pick(key)
		require.Equal(t, []any{a, ok}, []any{b, ok2})
	})
}

func TestVisitorsSpread(t *testing.T) {
	t.Parallel()
	c := weighted(1, 1)
	got := map[cluster.KernelID]int{}
	for i := range 2000 {
		target, _ := c.Pick(circuit.KeyOf(fmt.Sprint("user ", i)))
		got[target.Kernel]++
	}
	require.InDelta(t, 1000, got["k0"], 120)
	require.Equal(t, circuit.KeyOfAddress(netip.MustParseAddr("2001:db8::1")), circuit.KeyOfAddress(netip.MustParseAddr("2001:db8::2")),
		"one visitor has a whole /64")
	require.NotEqual(t, circuit.KeyOfAddress(netip.MustParseAddr("192.0.2.1")), circuit.KeyOfAddress(netip.MustParseAddr("192.0.2.2")))
}

// A target that is gone ends its own connections; when all are gone the app is elsewhere.
func TestTargetsGo(t *testing.T) {
	t.Parallel()
	c := onPort("a", 1, 100)
	c.Targets = slices.Concat(target("k-1", 80), target("k-2", 80), target("k-3", 80))
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Put: []proxy.Circuit{c}})
	c.Revision, c.Targets = 2, c.Targets[1:]
	table, closed := table.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "moved", Targets: []proxy.TargetID{{Kernel: "k-1", Port: 80}}}}, closed)
	c.Revision, c.Targets = 3, target("k-4", 80)
	_, closed = table.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "moved"}}, closed)
}

// TestProxiesOfAllVersionsChooseAlike: while proxies are upgraded one by one, old ones and new ones send a visitor to the same target. A
// change of these values moves the visitors of every app.
func TestProxiesOfAllVersionsChooseAlike(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint64(0xb827b552a4f43c3d), circuit.KeyOf("user 1"))
	require.Equal(t, uint64(0x6ff5362fc3dc08ff), circuit.KeyOfAddress(netip.MustParseAddr("192.0.2.1")))
	chosen := ""
	for i := range 60 {
		target, _ := weighted(1, 2, 3, 4).Pick(circuit.KeyOf(fmt.Sprint("user ", i)))
		chosen += string(target.Kernel[1:])
	}
	require.Equal(t, "311302332221320333331333231230333111323321321333123222233013", chosen)
}
