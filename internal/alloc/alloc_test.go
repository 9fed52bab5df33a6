package alloc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// cores makes n cores over nodes, two siblings each: core i and i+n/2.
func cores(n, nodes int) []alloc.Device {
	var out []alloc.Device
	for i := range n {
		sibling := (i + n/2) % n
		out = append(out, alloc.Device{
			Slot: cluster.SlotCPU, ID: fmt.Sprint(i), NUMA: (i % (n / 2)) * nodes / (n / 2), Capacity: cluster.Whole(1), Healthy: true,
			Links: map[string]int{fmt.Sprint(sibling): alloc.DistanceSibling},
		})
	}
	return out
}

func memory(sizes ...int64) []alloc.Device {
	var out []alloc.Device
	for i, size := range sizes {
		out = append(out, alloc.Device{Slot: cluster.SlotMem, ID: fmt.Sprintf("node%d", i), NUMA: i, Capacity: cluster.Whole(size),
			Healthy: true})
	}
	return out
}

func taken(ids ...string) map[string]cluster.Amount {
	out := map[string]cluster.Amount{}
	for _, id := range ids {
		out[id] = cluster.Whole(1)
	}
	return out
}

func TestCores(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		used  []string
		want  int64
		nodes int
		got   []string
	}{
		{"siblings together", nil, 2, 1, []string{"0", "4"}},
		{"one core of a fresh agent", nil, 1, 1, []string{"0"}},
		{"the remainder goes to a broken pair", []string{"5"}, 1, 1, []string{"1"}},
		{"pairs first, the remainder in a broken pair", []string{"4"}, 3, 1, []string{"0", "1", "5"}},
		{"broken pairs when no whole one is left", []string{"0", "1", "2", "3"}, 2, 1, []string{"4", "5"}},
		{"the tightest node", []string{"0"}, 2, 2, []string{"1", "5"}},
		{"a node that holds all", []string{"0", "4"}, 4, 2, []string{"2", "3", "6", "7"}},
		{"both nodes when one is too small", []string{"0"}, 5, 2, []string{"2", "3", "6", "7", "4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, err := alloc.Fit(cores(8, c.nodes), alloc.Allocation{cluster.SlotCPU: taken(c.used...)},
				cluster.Slots{cluster.SlotCPU: cluster.Whole(c.want)}, alloc.Policy{})
			require.NoError(t, err)
			require.Equal(t, taken(c.got...), a[cluster.SlotCPU])
		})
	}
}

func TestMemoryFollowsCores(t *testing.T) {
	t.Parallel()
	devices := append(cores(8, 2), memory(100, 100)...)
	request := cluster.Slots{cluster.SlotCPU: cluster.Whole(2), cluster.SlotMem: cluster.Whole(60)}
	used := alloc.Allocation{}
	for i, node := range []string{"node0", "node0", "node1", "node1"} {
		a, err := alloc.Fit(devices, used, request, alloc.Policy{})
		require.NoError(t, err, "kernel %d", i)
		require.Equal(t, request, a.Totals())
		if i%2 == 0 {
			require.Contains(t, a[cluster.SlotMem], node)
			require.Len(t, a[cluster.SlotMem], 1)
		}
		used = used.Add(a)
		if i == 2 {
			break // 20 bytes of the fourth kernel would not be left
		}
	}
}

// The public examples of fractional devices.
func TestFractions(t *testing.T) {
	t.Parallel()
	gpus := func(free ...int64) ([]alloc.Device, alloc.Allocation) {
		var devices []alloc.Device
		used := map[string]cluster.Amount{}
		for i, f := range free {
			id := fmt.Sprintf("gpu%d", i)
			devices = append(devices, alloc.Device{Slot: "cuda.shares", ID: id, NUMA: -1, Capacity: 1000, Healthy: true})
			used[id] = cluster.Amount(1000 - f)
		}
		return devices, alloc.Allocation{"cuda.shares": used}
	}
	for _, c := range []struct {
		free   []int64
		want   cluster.Amount
		policy alloc.Policy
		got    map[string]cluster.Amount // nil: refused
	}{
		{[]int64{300, 300}, 400, alloc.Policy{}, map[string]cluster.Amount{"gpu0": 200, "gpu1": 200}},
		{[]int64{300, 200, 100}, 150, alloc.Policy{}, map[string]cluster.Amount{"gpu1": 150}},
		{[]int64{300, 200, 100}, 500, alloc.Policy{}, map[string]cluster.Amount{"gpu0": 300, "gpu1": 200}},
		{[]int64{1000, 500}, 500, alloc.Policy{}, map[string]cluster.Amount{"gpu1": 500}},
		{[]int64{1000, 500}, 500, alloc.Policy{Placement: alloc.Spread}, map[string]cluster.Amount{"gpu0": 500}},
		{[]int64{1000, 1000, 1000}, 2000, alloc.Policy{NoFragment: true}, map[string]cluster.Amount{"gpu0": 1000, "gpu1": 1000}},
		{[]int64{300, 300}, 400, alloc.Policy{NoFragment: true}, nil},
		{[]int64{300, 300}, 700, alloc.Policy{}, nil},
		{[]int64{300, 300}, 305, alloc.Policy{}, nil},
	} {
		devices, used := gpus(c.free...)
		a, err := alloc.Fit(devices, used, cluster.Slots{"cuda.shares": c.want}, c.policy)
		if c.got == nil {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.got, a["cuda.shares"], "free %v, want %s", c.free, c.want)
	}
}

func TestRefusalsNameSlotAndShortfall(t *testing.T) {
	t.Parallel()
	devices := append(cores(4, 1), memory(1024)...)
	_, err := alloc.Fit(devices, nil, cluster.Slots{cluster.SlotCPU: cluster.Whole(6)}, alloc.Policy{})
	require.True(t, fault.Is(err, fault.Invalid))
	require.EqualError(t, err, "slot cpu: 6 asked for, the whole agent has 4 (2 too much)")

	_, err = alloc.Fit(devices, alloc.Allocation{cluster.SlotMem: {"node0": cluster.Whole(1000)}},
		cluster.Slots{cluster.SlotMem: cluster.Whole(30)}, alloc.Policy{})
	require.True(t, fault.Is(err, fault.Exhausted))
	require.EqualError(t, err, "slot mem: 30 bytes asked for, 24 bytes is free (6 bytes missing)")
	s, ok := alloc.ShortOf(err)
	require.True(t, ok)
	require.Equal(t, cluster.Whole(6), s.Missing())

	_, err = alloc.Fit(devices, nil, cluster.Slots{"cuda.device": cluster.Whole(1)}, alloc.Policy{})
	require.EqualError(t, err, "slot cuda.device: 1 asked for, this agent has none")
	_, err = alloc.Fit(devices, nil, cluster.Slots{"cuda.device": 0, cluster.SlotCPU: 1000}, alloc.Policy{})
	require.NoError(t, err, "a slot asked for with zero is ignored")
	_, err = alloc.Fit(devices, nil, cluster.Slots{cluster.SlotCPU: 500}, alloc.Policy{})
	require.True(t, fault.Is(err, fault.Invalid), "half a core")
}

func TestUnhealthyDevicesAreNotTaken(t *testing.T) {
	t.Parallel()
	devices := cores(4, 1)
	devices[0].Healthy = false
	a, err := alloc.Fit(devices, nil, cluster.Slots{cluster.SlotCPU: cluster.Whole(3)}, alloc.Policy{})
	require.NoError(t, err)
	require.NotContains(t, a[cluster.SlotCPU], "0")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	devices := cores(4, 1)
	one := cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}
	choice := alloc.Allocation{cluster.SlotCPU: taken("1")}
	require.NoError(t, alloc.Check(devices, nil, one, choice))
	require.ErrorContains(t, alloc.Check(devices, choice, one, choice), `cpu device "1" has 0 free`)
	require.ErrorContains(t, alloc.Check(devices, nil, one, alloc.Allocation{cluster.SlotCPU: taken("9")}), "is not a device")
	require.ErrorContains(t, alloc.Check(devices, nil, cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}, choice), "1 chosen, 2 asked for")
}

// TestLedger walks random sequences of allocations and releases: nothing is ever taken
// twice, totals are exact, a release gives back exactly what was taken, the choice survives text.
func TestLedger(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "nodes")
		devices := cores(16, nodes)
		for i := range nodes {
			devices = append(devices, memory(make([]int64, nodes)...)[i])
			devices[len(devices)-1].Capacity = cluster.Whole(rapid.Int64Range(0, 1000).Draw(t, "mem"))
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "gpus") {
			devices = append(devices, alloc.Device{Slot: "cuda.shares", ID: fmt.Sprint("g", i), NUMA: i % nodes, Capacity: 1000, Healthy: true})
		}
		for i := range devices {
			devices[i].Healthy = rapid.IntRange(0, 9).Draw(t, "health") > 0
		}
		policy := alloc.Policy{
			Placement: rapid.SampledFrom([]alloc.Placement{alloc.Pack, alloc.Spread}).Draw(t, "placement"), NoFragment: rapid.Bool().
					Draw(t, "nofragment"),
		}
		var live []alloc.Allocation
		used := alloc.Allocation{}
		for range rapid.IntRange(1, 40).Draw(t, "moves") {
			if len(live) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				used = used.Sub(live[i])
				live = append(live[:i], live[i+1:]...)
			} else {
				request := cluster.Slots{
					cluster.SlotCPU: cluster.Whole(rapid.Int64Range(0, 9).Draw(t, "cpu")),
					cluster.SlotMem: cluster.Whole(rapid.Int64Range(0, 600).Draw(t, "want-mem")),
					"cuda.shares":   cluster.Amount(rapid.Int64Range(0, 250).Draw(t, "shares")) * alloc.Quantum,
				}
				a, err := alloc.Fit(devices, used, request, policy)
				if err != nil {
					s, ok := alloc.ShortOf(err)
					if !ok || (s.Free >= s.Want && !s.Fragmented) {
						t.Fatalf("refused without a shortfall: %v", err)
					}
					continue
				}
				if err := alloc.Check(devices, used, request, a); err != nil {
					t.Fatalf("own choice refused: %v", err)
				}
				again, err := alloc.Fit(devices, used, request, policy)
				if err != nil || again.Text() != a.Text() {
					t.Fatalf("second look chose %s (%v), first %s", again.Text(), err, a.Text())
				}
				parsed, err := alloc.Parse(a.Text())
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, parsed)
				used = used.Add(parsed)
			}
			// A restart recomputes what is used from the live kernels.
			recomputed := alloc.Allocation{}
			for _, a := range live {
				recomputed = recomputed.Add(a)
			}
			if recomputed.Text() != used.Text() {
				t.Fatalf("recomputed %s, kept %s", recomputed.Text(), used.Text())
			}
			for _, d := range devices {
				if v := used[d.Slot][d.ID]; v > d.Capacity || v < 0 || v > 0 && !d.Healthy {
					t.Fatalf("device %s %s: %s of %s used, healthy %v", d.Slot, d.ID, v, d.Capacity, d.Healthy)
				}
			}
		}
	})
}
