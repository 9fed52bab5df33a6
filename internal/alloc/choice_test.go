package alloc_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// These tests generate agents and compare a choice with the best of all choices, found by looking at every subset of devices.

// scenes is how many agents each test generates.
func scenes() uint64 {
	if testing.Short() {
		return 500
	}
	return 3000
}

// subsets calls f with every subset of n things, as bits.
func subsets(n int, f func(set int)) {
	for set := range 1 << n {
		f(set)
	}
}

// place is a device of a generated agent with what is left of it.
type place struct {
	id   string
	node int
	card int
	free cluster.Amount
}

// free lists the devices of a slot that have something left.
func freePlaces(devices []alloc.Device, used alloc.Allocation, slot cluster.SlotName, card func(int) int) []place {
	var out []place
	n := 0
	for _, d := range devices {
		if d.Slot != slot {
			continue
		}
		if left := d.Capacity - used[slot][d.ID]; d.Healthy && left > 0 {
			out = append(out, place{d.ID, d.NUMA, card(n), left})
		}
		n++
	}
	return out
}

// Memory comes from as few devices as possible. One device that holds all is the tightest when packing, the emptiest when spreading.
func TestMemoryComesFromFewDevices(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 1))
		var sizes []int64
		for range 1 + r.IntN(5) {
			sizes = append(sizes, r.Int64N(6))
		}
		devices := memory(sizes...)
		placement := alloc.Placement(r.IntN(2))
		want := cluster.Whole(1 + r.Int64N(12))
		places := freePlaces(devices, nil, cluster.SlotMem, func(int) int { return 0 })
		fewest, tightest, emptiest := 99, cluster.Amount(0), cluster.Amount(0)
		subsets(len(places), func(set int) {
			var sum cluster.Amount
			for i, p := range places {
				if set>>i&1 == 1 {
					sum += p.free
				}
			}
			n := bits.OnesCount(uint(set))
			if sum < want || n > fewest {
				return
			}
			if n < fewest {
				fewest, tightest, emptiest = n, sum, sum
			}
			tightest, emptiest = min(tightest, sum), max(emptiest, sum)
		})
		a, err := alloc.Fit(devices, nil, cluster.Slots{cluster.SlotMem: want}, alloc.Policy{Placement: placement})
		if fewest == 99 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		got := a[cluster.SlotMem]
		require.Len(t, got, fewest, "sizes %v, want %s", sizes, want)
		require.Equal(t, want, a.Totals()[cluster.SlotMem])
		if fewest == 1 {
			for id := range got {
				i := slices.IndexFunc(places, func(p place) bool { return p.id == id })
				best := map[alloc.Placement]cluster.Amount{alloc.Pack: tightest, alloc.Spread: emptiest}[placement]
				require.Equal(t, best, places[i].free, "sizes %v, want %s", sizes, want)
			}
		}
	}
}

// A fraction comes from one device where one holds it, the tightest when packing, the emptiest when spreading; else from as few
// as possible, in parts that differ by at most a quantum where the devices can hold such parts.
func TestFractionsComeFromFewDevices(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 2))
		var devices []alloc.Device
		used := alloc.Allocation{"cuda.shares": {}}
		for i := range 1 + r.IntN(5) {
			id := fmt.Sprint("g", i)
			devices = append(devices, alloc.Device{Slot: "cuda.shares", ID: id, NUMA: -1, Capacity: 1000, Healthy: true})
			used["cuda.shares"][id] = cluster.Amount(r.Int64N(11)) * 100
		}
		placement := alloc.Placement(r.IntN(2))
		want := cluster.Amount(1+r.Int64N(250)) * alloc.Quantum
		places := freePlaces(devices, used, "cuda.shares", func(int) int { return 0 })
		a, err := alloc.Fit(devices, used, cluster.Slots{"cuda.shares": want}, alloc.Policy{Placement: placement})
		slices.SortFunc(places, func(a, b place) int { return int(b.free - a.free) })
		var sum cluster.Amount
		fewest := 0
		for fewest < len(places) && sum < want {
			sum += places[fewest].free
			fewest++
		}
		if sum < want {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		got := a["cuda.shares"]
		require.Len(t, got, fewest, "free %v, want %s", places, want)
		require.Equal(t, want, a.Totals()["cuda.shares"])
		require.NoError(t, alloc.Check(devices, used, cluster.Slots{"cuda.shares": want}, a))
		if fewest == 1 {
			best := places[0].free
			for _, p := range places {
				if placement == alloc.Pack && p.free >= want {
					best = min(best, p.free)
				}
			}
			for id := range got {
				require.Equal(t, best, 1000-used["cuda.shares"][id], "free %v, want %s", places, want)
			}
			continue
		}
		smallest, largest := cluster.Amount(1000), cluster.Amount(0)
		for _, v := range got {
			require.Zero(t, v%alloc.Quantum)
			smallest, largest = min(smallest, v), max(largest, v)
		}
		part := (want/cluster.Amount(fewest) + alloc.Quantum - 1) / alloc.Quantum * alloc.Quantum
		if part < want/cluster.Amount(fewest)+alloc.Quantum && places[fewest-1].free >= part+alloc.Quantum && placement == alloc.Pack {
			// The tightest of those that hold a part.
			var holders, chosen []cluster.Amount
			for _, p := range places {
				if p.free >= part+alloc.Quantum {
					holders = append(holders, p.free)
				}
				if got[p.id] > 0 {
					chosen = append(chosen, p.free)
				}
			}
			slices.Sort(holders)
			slices.Sort(chosen)
			require.LessOrEqual(t, chosen[len(chosen)-1], holders[fewest-1], "free %v, want %s, got %v", places, want, got)
		}
		if places[fewest-1].free >= part {
			require.LessOrEqual(t, largest-smallest, alloc.Quantum, "free %v, want %s, got %v", places, want, got)
		}
	}
}

// Cores come from one NUMA node where one holds them: the tightest when packing, the emptiest when spreading; else from as few
// nodes as possible. Inside a node packing takes whole physical cores and breaks at most one, none while a broken one suffices.
func TestCoresKeepTogether(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 3))
		nodes := 1 + r.IntN(3)
		devices := cores(4*nodes*(1+r.IntN(2)), nodes)
		half := len(devices) / 2
		used := alloc.Allocation{cluster.SlotCPU: {}}
		for _, d := range devices {
			if r.IntN(3) == 0 {
				used[cluster.SlotCPU][d.ID] = cluster.Whole(1)
			}
		}
		placement := alloc.Placement(r.IntN(2))
		places := freePlaces(devices, used, cluster.SlotCPU, func(i int) int { return i % half })
		want := 1 + r.IntN(len(devices))
		a, err := alloc.Fit(devices, used, cluster.Slots{cluster.SlotCPU: cluster.Whole(int64(want))}, alloc.Policy{Placement: placement})
		if want > len(places) {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.Len(t, a[cluster.SlotCPU], want)
		left := make([]int, nodes) // free cores by node
		for _, p := range places {
			left[p.node]++
		}
		took := make([]int, nodes)
		for _, p := range places {
			if a[cluster.SlotCPU][p.id] > 0 {
				took[p.node]++
			}
		}
		say := fmt.Sprintf("seed %d: %d of %v, used %v, took %v", seed, want, left, used, a)
		taken := slices.DeleteFunc(slices.Clone(took), func(n int) bool { return n == 0 })
		byFree := slices.Sorted(slices.Values(left))
		slices.Reverse(byFree)
		fewest, sum := 0, 0
		for sum < want {
			sum += byFree[fewest]
			fewest++
		}
		require.Len(t, taken, fewest, say)
		if fewest > 1 {
			continue
		}
		node := slices.IndexFunc(took, func(n int) bool { return n > 0 })
		for _, n := range left {
			if n >= want && placement == alloc.Pack {
				require.LessOrEqual(t, left[node], n, say)
			} else if placement == alloc.Spread {
				require.GreaterOrEqual(t, left[node], n, say)
			}
		}
		if placement == alloc.Spread {
			continue
		}
		free, gone := map[int]int{}, map[int]int{} // threads by physical core
		for _, p := range places {
			if p.node == node {
				free[p.card]++
				gone[p.card] += int(a[cluster.SlotCPU][p.id] / cluster.Milli)
			}
		}
		whole, broken, breaks, filled := 0, 0, 0, 0
		for card, n := range free {
			if n == 2 {
				whole++
				if gone[card] == 1 {
					breaks++
				} else if gone[card] == 2 {
					filled++
				}
			} else {
				broken++
			}
		}
		require.Equal(t, min(whole, want/2), filled, say)
		rest := want - 2*filled
		require.Equal(t, max(0, rest-broken), breaks, say)
	}
}

// Accelerators that fit behind one switch are as near to each other as can be: no other choice has a smaller sum of distances. Of
// equally near choices packing takes the one that is farther from what it leaves free.
func TestAcceleratorsAreNear(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 4))
		all := linked(8)
		for i := range all {
			all[i].NUMA = 0
		}
		// Some of them are used, in any number.
		used := alloc.Allocation{"cuda.device": {}}
		for _, d := range all {
			if r.IntN(4) == 0 {
				used["cuda.device"][d.ID] = 1000
			}
		}
		places := freePlaces(all, used, "cuda.device", func(i int) int { return i })
		if len(places) < 2 {
			continue
		}
		all = append(all, alloc.Device{Slot: "a.device", ID: "a", Capacity: 1000, Healthy: true}) // so that numbers do not begin at 0
		want := 1 + r.IntN(len(places))
		first := 0 // how many are behind the first switch
		for _, p := range places {
			if p.card < 4 {
				first++
			}
		}
		if want > max(first, len(places)-first) {
			continue
		}
		known := linked(8)
		for i := range known { // one side of a link may say nothing
			for j := range i {
				switch one, other := known[i], known[j]; r.IntN(3) {
				case 0:
					delete(all[i].Links, other.ID)
				case 1:
					delete(all[j].Links, one.ID)
				}
			}
		}
		placement := alloc.Placement(r.IntN(2))
		a, err := alloc.Fit(all, used, cluster.Slots{"cuda.device": cluster.Whole(int64(want))}, alloc.Policy{Placement: placement})
		require.NoError(t, err)
		score := func(set int) (inside, outside int) {
			for i := range places {
				for j := range i {
					class := known[places[i].card].Links[places[j].id]
					switch one, other := set>>i&1, set>>j&1; {
					case one == 1 && other == 1:
						inside += class
					case one != other:
						outside += class
					}
				}
			}
			return inside, outside
		}
		chosen := 0
		for i, p := range places {
			if a["cuda.device"][p.id] > 0 {
				chosen |= 1 << i
			}
		}
		require.Equal(t, want, bits.OnesCount(uint(chosen)))
		inside, outside := score(chosen)
		subsets(len(places), func(set int) {
			if bits.OnesCount(uint(set)) != want {
				return
			}
			in, out := score(set)
			require.GreaterOrEqual(t, in, inside, "seed %d: %d of %v, got %v", seed, want, places, a)
			if in == inside && placement == alloc.Pack {
				require.LessOrEqual(t, out, outside, "seed %d: %d of %v, got %v", seed, want, places, a)
			}
		})
	}
}

// Memory and accelerators follow the NUMA node of what was chosen before them.
func TestLaterSlotsFollowEarlierOnes(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 5))
		devices := append(append(linked(8), cores(16, 2)...), memory(100, 100)...)
		used := alloc.Allocation{"cuda.device": {}, cluster.SlotCPU: {}, cluster.SlotMem: {}}
		for _, d := range devices {
			if r.IntN(3) == 0 {
				used[d.Slot][d.ID] = d.Capacity / 1000 * cluster.Amount(r.Int64N(1001))
				if d.Slot != cluster.SlotMem {
					used[d.Slot][d.ID] = d.Capacity
				}
			}
		}
		request := cluster.Slots{
			"cuda.device": 1000, cluster.SlotCPU: cluster.Whole(1 + r.Int64N(9)), cluster.SlotMem: cluster.Whole(1 + r.Int64N(60)),
		}
		placement := alloc.Placement(r.IntN(2))
		a, err := alloc.Fit(devices, used, request, alloc.Policy{Placement: placement})
		if err != nil {
			continue
		}
		require.NoError(t, alloc.Check(devices, used, request, a))
		at := func(slot cluster.SlotName) (nodes []int) {
			for _, d := range devices {
				if d.Slot == slot && a[slot][d.ID] > 0 && !slices.Contains(nodes, d.NUMA) {
					nodes = append(nodes, d.NUMA)
				}
			}
			return nodes
		}
		left := func(slot cluster.SlotName, node int) (sum cluster.Amount) {
			for _, d := range devices {
				if d.Slot == slot && d.NUMA == node {
					sum += d.Capacity - used[slot][d.ID]
				}
			}
			return sum
		}
		home := at("cuda.device")
		require.Len(t, home, 1)
		for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
			if left(slot, home[0]) >= request[slot] && len(home) == 1 {
				require.Equal(t, home, at(slot), "seed %d: %s of %v with %v", seed, slot, request, used)
			}
			for _, node := range at(slot) {
				if !slices.Contains(home, node) {
					home = append(home, node)
				}
			}
		}
	}
}

// Holds, which the scheduler asks millions of times, says what Choose does; and what is asked for exists in some form whenever
// the sum of what is left suffices and cutting is allowed.
func TestHoldsAndChooseAgree(t *testing.T) {
	t.Parallel()
	const slot = "gpu"
	for seed := range 2 * scenes() {
		r := rand.New(rand.NewPCG(seed, 6))
		var devices []alloc.Device
		used := alloc.Allocation{slot: {}}
		for i := range 1 + r.IntN(4) {
			id := fmt.Sprint("g", i)
			d := alloc.Device{Slot: slot, ID: id, NUMA: r.IntN(3) - 1, Model: fmt.Sprint("m", r.IntN(2)), Healthy: r.IntN(6) > 0}
			d.Capacity = cluster.Amount(1+r.Int64N(2)) * 1000
			used[slot][id] = cluster.Amount(r.Int64N(101)) * d.Capacity / 100
			if r.IntN(2) == 0 {
				used[slot][id] = cluster.Amount(r.Int64N(3)) * d.Capacity / 2
			}
			devices = append(devices, d)
		}
		rule := alloc.Rule(r.IntN(5))
		p := alloc.Policy{Rules: map[cluster.SlotName]alloc.Rule{slot: rule}, NoFragment: r.IntN(2) == 0, Placement: alloc.Placement(r.IntN(2))}
		if r.IntN(3) == 0 {
			p.Models = []string{"m1"}
		}
		want := []cluster.Amount{1, 10, 15, 250, 500, 990, 1000, 1500, 1990, 2000, 2010, 3000}[r.IntN(12)]
		topology := alloc.Prepare(devices, p.Rules)
		free := topology.Free(used)
		holds := topology.Holds(free, alloc.Want{Amount: want}, &p)
		var c alloc.Chooser
		takes, ok := c.Choose(topology, free, []alloc.Want{{Amount: want}}, &p, nil)
		require.Equal(t, holds, ok, "seed %d: rule %d, %s of %v", seed, rule, want, free)
		a, err := alloc.Fit(devices, used, cluster.Slots{slot: want}, p)
		require.Equal(t, holds, err == nil)

		unit := map[alloc.Rule]cluster.Amount{alloc.Fraction: alloc.Quantum, alloc.Divisible: 1}[rule]
		if unit == 0 {
			unit = cluster.Milli
		}
		var sum, total cluster.Amount
		for _, d := range devices {
			if d.Healthy && (p.Models == nil || d.Model == "m1") {
				sum += max(0, d.Capacity-used[slot][d.ID]) / unit * unit
				total += d.Capacity
			}
		}
		possible := want%unit == 0 && sum >= want && (rule != alloc.Unique || want == cluster.Milli)
		if rule == alloc.Fraction && p.NoFragment && possible {
			// As few devices as an agent without sessions needs, in equal parts.
			largest := cluster.Amount(0)
			for _, d := range devices {
				if d.Healthy {
					largest = max(largest, d.Capacity)
				}
			}
			count, holders := 1, 0
			for cluster.Amount(count)*largest < want {
				count++
			}
			for i, d := range devices {
				part := max(0, d.Capacity-used[slot][devices[i].ID])
				if d.Healthy && (p.Models == nil || d.Model == "m1") && part*cluster.Amount(count) >= want {
					holders++
				}
			}
			require.Equal(t, holders >= count, holds, "seed %d: %s of %v", seed, want, free)
		} else {
			require.Equal(t, possible, holds, "seed %d: rule %d, %s of %v", seed, rule, want, free)
		}
		if !holds {
			s, known := alloc.ShortOf(err)
			require.True(t, known)
			require.Equal(t, total, s.Total, "seed %d", seed)
			require.Equal(t, want, s.Want)
			continue
		}
		require.NoError(t, alloc.Check(devices, used, cluster.Slots{slot: want}, a))
		require.Equal(t, a.Text(), topology.Allocation(takes).Text())
		for _, d := range devices {
			if a[slot][d.ID] > 0 {
				require.True(t, d.Healthy && (p.Models == nil || d.Model == "m1"))
				require.Zero(t, a[slot][d.ID]%unit)
			}
		}
		if rule == alloc.Fraction && p.NoFragment && want <= cluster.Milli {
			require.Len(t, a[slot], 1, "seed %d: a request of up to one device is not cut", seed)
		}
		if rule == alloc.Unique {
			require.Len(t, a[slot], 1)
		}
	}
}
