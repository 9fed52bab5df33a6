package simulation_test

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"berth.dev/berth/internal/testkit/simulation"
)

// tellsEvery is after how many seeds a long run says how far it is.
const tellsEvery = 500

// TestSimulation runs the plans of some seeds and tells the shortest history that breaks a promise. BERTH_SIM_SEEDS says how many seeds
// (few where nothing is said), BERTH_SIM_FIRST from which one on; BERTH_SIM_SEED runs a single one and tells its whole history.
func TestSimulation(t *testing.T) {
	if one := number("BERTH_SIM_SEED", 0); one != 0 {
		p := simulation.NewPlan(one)
		db := simulation.NewDatabase(t)
		r := simulation.Run(t, db, p)
		if r.Violation != nil {
			short, shorter := simulation.Shrink(t, db, p, r)
			t.Errorf("the shortest history of %s\n\nthe whole history:", simulation.Report(short, shorter))
			t.Log(simulation.Report(p, r))
			return
		}
		t.Log(p)
		for _, line := range r.History {
			t.Log(line)
		}
		t.Logf("%s of simulated time, %d transactions, sessions: %v", r.Lasted, r.Calls, r.Ended)
		return
	}
	first, seeds := number("BERTH_SIM_FIRST", 1), number("BERTH_SIM_SEEDS", 3)
	last := first + seeds
	next := atomic.Uint64{}
	next.Store(first)
	var sum sums
	for range number("BERTH_SIM_WORKERS", 2) {
		t.Run("worker", func(t *testing.T) {
			t.Parallel()
			db := simulation.NewDatabase(t)
			for seed := next.Add(1) - 1; seed < last; seed = next.Add(1) - 1 {
				p := simulation.NewPlan(seed)
				r := simulation.Run(t, db, p)
				telling, runs := sum.add(r)
				if runs%tellsEvery == 0 {
					t.Logf("%d of %d seeds", runs, seeds)
				}
				if telling {
					short, shorter := simulation.Shrink(t, db, p, r)
					t.Errorf("%s\n\nRun it again with BERTH_SIM_SEED=%d.", simulation.Report(short, shorter), seed)
				} else if r.Violation != nil {
					t.Errorf("seed %d %s", seed, r.Violation)
				}
			}
		})
	}
	t.Cleanup(func() { sum.tell(t) })
}

// sums add up what runs did.
type sums struct {
	mu     sync.Mutex
	runs   int
	calls  int
	hours  float64
	ended  map[string]int
	broken map[string]int
}

// add counts a run. It says whether the run is among the first few that broke its promise, whose histories are worth being shortened, and
// how many runs there were.
func (s *sums) add(r simulation.Result) (telling bool, runs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended, s.broken = map[string]int{}, map[string]int{}
	}
	s.runs++
	s.calls += r.Calls
	s.hours += r.Lasted.Hours()
	for what, n := range r.Ended {
		s.ended[what] += n
	}
	if r.Violation == nil {
		return false, s.runs
	}
	s.broken[r.Violation.Rule]++
	return s.broken[r.Violation.Rule] <= 2, s.runs
}

func (s *sums) tell(t *testing.T) {
	t.Logf("%d seeds, %.1f hours of simulated time, %d transactions and passes", s.runs, s.hours, s.calls)
	for _, what := range slices.Sorted(maps.Keys(s.ended)) {
		t.Logf("%6d sessions: %s", s.ended[what], what)
	}
	for _, rule := range slices.Sorted(maps.Keys(s.broken)) {
		t.Logf("%6d seeds broke: %s", s.broken[rule], rule)
	}
}

// TestSameSeedSameHistory: what a seed shows it shows again.
func TestSameSeedSameHistory(t *testing.T) {
	t.Parallel()
	db := simulation.NewDatabase(t)
	first := number("BERTH_SIM_AGAIN_FIRST", 1000)
	for seed := range number("BERTH_SIM_AGAIN", 3) {
		p := simulation.NewPlan(first + seed)
		once, again := simulation.Run(t, db, p), simulation.Run(t, db, p)
		assert.Equal(t, settled(once.History), settled(again.History), "seed %d", p.Seed)
	}
}

// settled is a history without what one instant leaves open: in which order lines of that instant are noted, and which of two true reasons
// for the end of a stream is seen first.
func settled(history []string) string {
	for i, line := range history {
		if before, _, ended := strings.Cut(line, ": "); ended && strings.Contains(before, "loses its stream") {
			history[i] = before
		}
	}
	slices.Sort(history)
	return strings.Join(history, "\n")
}

func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}
