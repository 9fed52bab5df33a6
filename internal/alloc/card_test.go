package alloc_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// pile is a card of several parts, or a core of several threads, with how much of it is free and taken.
type pile struct {
	free  int
	whole bool // all its parts are there and free
	took  int
}

// packCards says how many parts of each card packing takes, one simple step at a time: whole cards that are used up, the largest
// first; then the card with the least left over, a broken one before a whole one; then the largest that is left.
func packCards(cards []pile, want int) {
	for want > 0 {
		best := -1
		better := func(less func(a, b pile) bool, ok func(pile) bool) {
			for i, c := range cards {
				if c.took == 0 && c.free > 0 && ok(c) && (best < 0 || less(c, cards[best])) {
					best = i
				}
			}
		}
		better(func(a, b pile) bool { return a.free > b.free }, func(c pile) bool { return c.whole && c.free <= want })
		if best < 0 {
			better(func(a, b pile) bool {
				return a.free < b.free || a.free == b.free && !a.whole && b.whole
			}, func(c pile) bool { return c.free >= want })
		}
		if best < 0 {
			better(func(a, b pile) bool { return a.free > b.free }, func(pile) bool { return true })
		}
		cards[best].took = min(want, cards[best].free)
		want -= cards[best].took
	}
}

// Cards of different sizes, listed in any order, with parts that are used, unhealthy or not there at all.
func TestCardsKeepTogether(t *testing.T) {
	t.Parallel()
	for seed := range scenes() {
		r := rand.New(rand.NewPCG(seed, 7))
		var devices []alloc.Device
		used := alloc.Allocation{"fpga": {}}
		cards := make([]pile, 1+r.IntN(5))
		cardOf := map[string]int{}
		names := r.Perm(40)
		for c := range cards {
			size := 1 + r.IntN(4)
			ids := make([]string, size)
			for i := range ids {
				ids[i] = fmt.Sprint("f", names[0])
				names = names[1:]
			}
			cards[c].whole = true
			for i, id := range ids {
				d := alloc.Device{Slot: "fpga", ID: id, Capacity: 1000, Healthy: r.IntN(12) > 0, Links: map[string]int{}}
				for j, other := range ids {
					if i != j {
						d.Links[other] = alloc.DistanceSibling
					}
				}
				cardOf[id] = c
				switch {
				case size > 1 && r.IntN(12) == 0:
					cards[c].whole = false // the part is not there
					continue
				case r.IntN(4) == 0:
					used["fpga"][id] = 1000
					cards[c].whole = false
				case !d.Healthy:
					cards[c].whole = false
				default:
					cards[c].free++
				}
				devices = append(devices, d)
			}
		}
		r.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
		free := 0
		for _, c := range cards {
			free += c.free
		}
		if free == 0 {
			continue
		}
		want := 1 + r.IntN(free)
		placement := alloc.Placement(r.IntN(4) / 3)
		a, err := alloc.Fit(devices, used, cluster.Slots{"fpga": cluster.Whole(int64(want))}, alloc.Policy{Placement: placement})
		require.NoError(t, err)
		got := slices.Clone(cards)
		for id := range a["fpga"] {
			got[cardOf[id]].took++
		}
		if placement == alloc.Spread {
			// The emptiest card that the request uses up is taken.
			largest := 0
			for _, c := range cards {
				if c.free <= want {
					largest = max(largest, c.free)
				}
			}
			if largest > 0 {
				require.True(t, slices.ContainsFunc(got, func(c pile) bool { return c.free == largest && c.took == largest }), "seed %d: %v", seed, got)
			}
			continue
		}
		expected := slices.Clone(cards)
		packCards(expected, want)
		order := func(a, b pile) int {
			return (a.free-b.free)*100 + (a.took-b.took)*10 + map[bool]int{true: 1}[a.whole] - map[bool]int{true: 1}[b.whole]
		}
		slices.SortFunc(got, order)
		slices.SortFunc(expected, order)
		require.Equal(t, expected, got, "seed %d: %d of %v", seed, want, cards)
	}
}

// linkedShares makes accelerators that can be cut, in pairs of fast links, two pairs to a switch and a node.
func linkedShares(n int) []alloc.Device {
	out := linked(n)
	for i := range out {
		out[i].Slot = "cuda.shares"
	}
	return out
}

// A request for several whole accelerators of a kind that can be cut is near too, where those are equally free.
func TestSharesAreNear(t *testing.T) {
	t.Parallel()
	first := alloc.Device{Slot: "a.device", ID: "a", NUMA: 1, Capacity: 1000, Healthy: true}
	choose := func(used alloc.Allocation, request cluster.Slots, p alloc.Policy) map[string]cluster.Amount {
		a, err := alloc.Fit(append(linkedShares(8), first), used, request, p)
		require.NoError(t, err)
		return a["cuda.shares"]
	}
	busy := func(amount cluster.Amount, ids ...string) alloc.Allocation {
		out := map[string]cluster.Amount{}
		for _, id := range ids {
			out[id] = amount
		}
		return alloc.Allocation{"cuda.shares": out}
	}
	two, four := cluster.Slots{"cuda.shares": 2000}, cluster.Slots{"cuda.shares": 4000}
	require.Equal(t, taken("g0", "g1"), choose(nil, two, alloc.Policy{}))
	require.Equal(t, taken("g2", "g3"), choose(busy(1000, "g0"), two, alloc.Policy{}), "a pair that is left")
	require.Equal(t, taken("g4", "g5", "g6", "g7"), choose(busy(1000, "g0"), four, alloc.Policy{}), "a switch that is left")
	require.Equal(t, taken("g2", "g3"), choose(busy(1000, "g0", "g5"), two, alloc.Policy{}))
	require.Equal(t, taken("g1", "g2", "g3", "g6"), choose(busy(1000, "g0", "g4", "g5", "g7"), four, alloc.Policy{}), "all there are")
	// What was chosen before is on node 1: so is this, where node 1 suffices, in its free pair.
	beside := func(amount cluster.Amount) cluster.Slots {
		return cluster.Slots{"a.device": 1000, "cuda.shares": amount}
	}
	require.Equal(t, taken("g4", "g5"), choose(nil, beside(2000), alloc.Policy{}))
	require.Equal(t, taken("g6", "g7"), choose(busy(1000, "g4"), beside(2000), alloc.Policy{}))
	require.Equal(t, taken("g5", "g7"), choose(busy(1000, "g4", "g6"), beside(2000), alloc.Policy{}),
		"near to what was chosen before being near to each other")
	require.Equal(t, taken("g7", "g0"), choose(busy(1000, "g4", "g5", "g6"), beside(2000), alloc.Policy{}), "what node 1 has, and one more")
	require.Equal(t, taken("g4", "g5", "g6", "g7"), choose(nil, beside(4000), alloc.Policy{}))
	require.Equal(t, map[string]cluster.Amount{"g4": 500}, choose(nil, beside(500), alloc.Policy{}))
	require.Equal(t, map[string]cluster.Amount{"g4": 500}, choose(nil, beside(500), alloc.Policy{Placement: alloc.Spread}))
	// The tightest matter more than links where some are partly used.
	even := func(amount cluster.Amount, ids ...string) map[string]cluster.Amount {
		return map[string]cluster.Amount{ids[0]: amount, ids[1]: amount}
	}
	require.Equal(t, even(800, "g2", "g0"), choose(busy(200, "g2"), cluster.Slots{"cuda.shares": 1600}, alloc.Policy{}))
	require.Equal(t, even(800, "g0", "g1"), choose(busy(200, "g2"), cluster.Slots{"cuda.shares": 1600}, alloc.Policy{Placement: alloc.Spread}))
	half := busy(500, "g1", "g6")
	require.Equal(t, even(750, "g2", "g3"), choose(half, cluster.Slots{"cuda.shares": 1500}, alloc.Policy{}))
	require.Equal(t, map[string]cluster.Amount{"g1": 500}, choose(half, cluster.Slots{"cuda.shares": 500}, alloc.Policy{}))
	require.Equal(t, map[string]cluster.Amount{"g0": 500},
		choose(half, cluster.Slots{"cuda.shares": 500}, alloc.Policy{Placement: alloc.Spread}))
}

// Parts of an uneven request: the remainder of quanta goes one by one to the first devices; those that hold less give what they
// have and the others share what is left.
func TestUnevenParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used []cluster.Amount
		want cluster.Amount
		got  map[string]cluster.Amount
	}{
		{[]cluster.Amount{0, 0}, 1010, map[string]cluster.Amount{"g0": 510, "g1": 500}},
		{[]cluster.Amount{0, 0, 0}, 2020, map[string]cluster.Amount{"g0": 680, "g1": 670, "g2": 670}},
		{[]cluster.Amount{0, 0, 900}, 2100, map[string]cluster.Amount{"g0": 1000, "g1": 1000, "g2": 100}},
		{[]cluster.Amount{0, 0, 900, 500}, 2510, map[string]cluster.Amount{"g0": 950, "g1": 960, "g2": 100, "g3": 500}},
		{[]cluster.Amount{100, 200, 600}, 2000, map[string]cluster.Amount{"g0": 800, "g1": 800, "g2": 400}},
		{[]cluster.Amount{100, 200, 600}, 1910, map[string]cluster.Amount{"g0": 750, "g1": 760, "g2": 400}},
		{[]cluster.Amount{0, 0, 400, 400}, 1200, map[string]cluster.Amount{"g2": 600, "g3": 600}},
		{[]cluster.Amount{0, 0, 400, 300}, 1200, map[string]cluster.Amount{"g2": 600, "g3": 600}},
	} {
		devices, used := shares(c.used...)
		a, err := alloc.Fit(devices, used, cluster.Slots{"cuda.shares": c.want}, alloc.Policy{})
		require.NoError(t, err)
		require.Equal(t, c.got, a["cuda.shares"], "%v", c)
	}
}

// What an agent says of links is checked: classes below zero are the nearest, those beyond the scale the farthest.
func TestClassesOfLinksOutsideOfTheScale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, second int // the classes of the links a-b and b-c
		got           map[string]cluster.Amount
	}{
		{256, 100, taken("b", "c")}, {300, 254, taken("b", "c")}, {1 << 40, 200, taken("b", "c")}, {100, 256, taken("a", "b")},
		{2, 3, taken("a", "b")}, {3, 2, taken("b", "c")},
	} {
		devices := []alloc.Device{
			{Slot: "gpu", ID: "a", Capacity: 1000, Healthy: true, Links: map[string]int{"b": c.first, "c": 1 << 20}},
			{Slot: "gpu", ID: "b", Capacity: 1000, Healthy: true, Links: map[string]int{"a": c.first, "c": c.second}},
			{Slot: "gpu", ID: "c", Capacity: 1000, Healthy: true, Links: map[string]int{"b": c.second, "a": 1 << 20}},
		}
		a, err := alloc.Fit(devices, nil, cluster.Slots{"gpu": 2000}, alloc.Policy{})
		require.NoError(t, err)
		require.Equal(t, c.got, a["gpu"], "%v", c)
	}
}

// Devices of one node are near without a link between them.
func TestDevicesOfANodeAreNear(t *testing.T) {
	t.Parallel()
	devices := linkedShares(4)
	for i := range devices {
		devices[i].NUMA, devices[i].Links = []int{0, 1, 1, 0}[i], nil
	}
	devices[1].Links = map[string]int{"elsewhere": alloc.DistanceFast}
	a, err := alloc.Fit(devices, nil, cluster.Slots{"cuda.shares": 2000}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("g0", "g3"), a["cuda.shares"])
	for i := range devices {
		devices[i].NUMA = []int{-1, 1, -1, 1}[i]
	}
	a, err = alloc.Fit(devices, nil, cluster.Slots{"cuda.shares": 2000}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("g1", "g3"), a["cuda.shares"], "devices whose nodes are unknown share none")
}

// As many devices as the links are looked at of, and more of them.
func TestManyLinkedAccelerators(t *testing.T) {
	t.Parallel()
	for _, n := range []int{16, 40} {
		devices := linked(n)
		for i := range devices {
			devices[i].NUMA = 0
		}
		used := alloc.Allocation{"cuda.device": taken("g0")}
		a, err := alloc.Fit(devices, used, cluster.Slots{"cuda.device": 2000}, alloc.Policy{})
		require.NoError(t, err)
		require.Len(t, a["cuda.device"], 2)
		if n == 16 {
			require.Equal(t, taken("g2", "g3"), a["cuda.device"])
		}
	}
	// Accelerators of several units are shared out by units, whatever their links.
	devices := linked(3)
	for i := range devices {
		devices[i].Capacity = 2000
	}
	a, err := alloc.Fit(devices, nil, cluster.Slots{"cuda.device": 5000}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, cluster.Slots{"cuda.device": 5000}, a.Totals())
	require.NoError(t, alloc.Check(devices, nil, a.Totals(), a))
}

// Memory of an unknown node is not near to an accelerator of an unknown node.
func TestUnknownNodesAreNotNear(t *testing.T) {
	t.Parallel()
	devices := append(memory(100, 50), alloc.Device{Slot: "gpu", ID: "g", NUMA: -1, Capacity: 1000, Healthy: true})
	devices[0].NUMA = -1
	a, err := alloc.Fit(devices, nil, cluster.Slots{"gpu": 1000, cluster.SlotMem: cluster.Whole(10)}, alloc.Policy{})
	require.NoError(t, err)
	require.Contains(t, a[cluster.SlotMem], "node1", "the tightest")
	// Of equal ones the first is taken.
	for _, placement := range []alloc.Placement{alloc.Pack, alloc.Spread} {
		a, err = alloc.Fit(memory(50, 50), nil, cluster.Slots{cluster.SlotMem: cluster.Whole(10)}, alloc.Policy{Placement: placement})
		require.NoError(t, err)
		require.Contains(t, a[cluster.SlotMem], "node0")
	}
}

// Agents report these numbers, and agents of other versions too.
func TestClassesOfLinks(t *testing.T) {
	t.Parallel()
	require.Equal(t, []int{1, 2, 4, 8, 16}, []int{
		alloc.DistanceSibling, alloc.DistanceFast, alloc.DistanceSwitch, alloc.DistanceNode, alloc.DistanceFar,
	})
}
