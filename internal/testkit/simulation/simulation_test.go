package simulation_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"berth.dev/berth/internal/testkit/simulation"
)

// TestSimulation runs the plans of some seeds. BERTH_SIM_SEEDS says how many (5 where nothing is said), BERTH_SIM_SEED which single one.
func TestSimulation(t *testing.T) {
	seeds, first := number("BERTH_SIM_SEEDS", 5), uint64(1)
	if one := number("BERTH_SIM_SEED", 0); one != 0 {
		seeds, first = 1, uint64(one)
	}
	db := simulation.NewDatabase(t)
	for seed := first; seed < first+uint64(seeds); seed++ {
		p := simulation.NewPlan(seed)
		r := simulation.Run(t, db, p)
		if os.Getenv("BERTH_SIM_SEED") != "" {
			t.Log(p)
			for _, l := range r.History {
				t.Log(l)
			}
			t.Log(r.Lasted, r.Calls, r.Ended)
		}
		if r.Violation != nil {
			t.Error(fmt.Sprint(seed, r.Violation))
		}
	}
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
