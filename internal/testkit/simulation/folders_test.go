package simulation_test

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth.dev/berth/internal/testkit/simulation"
)

// TestFolders runs what users do with folders while managers die between any two writes and requests to the storage proxy get lost.
// The environment is that of TestSimulation.
func TestFolders(t *testing.T) {
	first, seeds := number("BERTH_SIM_FIRST", 1), number("BERTH_SIM_SEEDS", 5)
	one := number("BERTH_SIM_SEED", 0)
	if one != 0 {
		first, seeds = one, 1
	}
	next := atomic.Uint64{}
	next.Store(first)
	for range min(number("BERTH_SIM_WORKERS", 2), seeds) {
		t.Run("worker", func(t *testing.T) {
			t.Parallel()
			db := simulation.NewDatabase(t)
			sum := map[string]int{}
			for seed := next.Add(1) - 1; seed < first+seeds; seed = next.Add(1) - 1 {
				broken, history, took := simulation.RunFolders(t, db, seed)
				for what, n := range took {
					sum[what] += n
				}
				if broken != "" {
					t.Errorf("seed %d: %s\n%s\n\nRun it again with BERTH_SIM_SEED=%d.", seed, broken, strings.Join(history, "\n"), seed)
				} else if one != 0 {
					t.Log(strings.Join(history, "\n"))
				}
			}
			for _, what := range slices.Sorted(maps.Keys(sum)) {
				t.Logf("%6d %s", sum[what], what)
			}
		})
	}
}
