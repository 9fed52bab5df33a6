package alloc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Devices have numbers: accelerators first, then cores, then memory; by slot, by PCI address, and by ids as people count.
func TestDevicesInOrder(t *testing.T) {
	t.Parallel()
	device := func(slot cluster.SlotName, id, pci string) alloc.Device {
		return alloc.Device{Slot: slot, ID: id, PCI: pci, NUMA: -1, Capacity: 1000, Healthy: true}
	}
	topology := alloc.Prepare([]alloc.Device{
		device("mem", "node1", ""), device("cpu", "10", ""), device("cpu", "9", ""), device("tpu", "t", ""), device("mem", "node0", ""),
		device("cuda.device", "b", "0000:02"), device("cuda.device", "c", "0000:01"), device("cpu", "2", ""),
	}, map[cluster.SlotName]alloc.Rule{"tpu": alloc.Unique})
	var got []string
	for i := range topology.Len() {
		got = append(got, string(topology.Device(i).Slot)+" "+topology.Device(i).ID)
		require.Equal(t, i, topology.Index(topology.Device(i).Slot, topology.Device(i).ID))
	}
	require.Equal(t, []string{"cuda.device c", "cuda.device b", "tpu t", "cpu 2", "cpu 9", "cpu 10", "mem node0", "mem node1"}, got)
	require.Equal(t, 4, topology.Slots())
	for i, want := range []struct {
		slot     cluster.SlotName
		rule     alloc.Rule
		from, to int
	}{{"cuda.device", alloc.Whole, 0, 2}, {"tpu", alloc.Unique, 2, 3}, {"cpu", alloc.Whole, 3, 6}, {"mem", alloc.Bulk, 6, 8}} {
		slot, rule, from, to := topology.Slot(i)
		require.Equal(t, want.slot, slot)
		require.Equal(t, want.rule, rule, slot)
		require.Equal(t, want.from, from, slot)
		require.Equal(t, want.to, to, slot)
		require.Equal(t, i, topology.Section(slot))
	}
	require.Equal(t, -1, topology.Section("other"))
	require.Equal(t, -1, topology.Index("other", "2"))
	require.Equal(t, -1, topology.Index("cpu", "3"))
	require.Equal(t, -1, topology.Index("cpu", "node0"), "of another slot")
	free := topology.Free(alloc.Allocation{"cpu": {"9": 400, "10": 2000}})
	require.Equal(t, []cluster.Amount{1000, 1000, 1000, 1000, 600, 0, 1000, 1000}, free)
	require.Equal(t, alloc.Allocation{"cpu": {"2": 30}, "mem": {"node1": 5}},
		topology.Allocation([]alloc.Take{{Device: 3, Amount: 10}, {Device: 3, Amount: 20}, {Device: 7, Amount: 5}}))
	require.Equal(t, alloc.Allocation{}, topology.Allocation(nil))
}

func TestRulesOfSlots(t *testing.T) {
	t.Parallel()
	for slot, want := range map[cluster.SlotName]alloc.Rule{
		"cpu": alloc.Whole, "mem": alloc.Bulk, "cuda.mem": alloc.Bulk, "cuda.shares": alloc.Fraction, "cuda.device": alloc.Whole,
		"shares": alloc.Whole,
		"memory": alloc.Whole,
	} {
		require.Equal(t, want, alloc.DefaultRule(slot), slot)
	}
	// Cores that are shared by weight are cut at will.
	rules := map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}
	a, err := alloc.Fit(cores(2, 1), nil, cluster.Slots{cluster.SlotCPU: 1}, alloc.Policy{Rules: rules})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{"cpu": {"0": 1}}, a)
	a, err = alloc.Fit(cores(2, 1), a, cluster.Slots{cluster.SlotCPU: 1500}, alloc.Policy{Rules: rules})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{"cpu": {"1": 1000, "0": 500}}, a)
	full := alloc.Allocation{"cpu": {"0": 999, "1": 1000}}
	a, err = alloc.Fit(cores(2, 1), full, cluster.Slots{cluster.SlotCPU: 1}, alloc.Policy{Rules: rules})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{"cpu": {"0": 1}}, a, "the last thousandth")
}

// A want can be restricted to one device: it is taken from there or not at all.
func TestAWantOfOneDevice(t *testing.T) {
	t.Parallel()
	devices, used := shares(700, 0)
	topology := alloc.Prepare(devices, nil)
	free := topology.Free(used)
	var c alloc.Chooser
	choose := func(w alloc.Want, p alloc.Policy) ([]alloc.Take, bool) {
		return c.Choose(topology, free, []alloc.Want{w}, &p, []alloc.Take{{Device: 9, Amount: 9}})
	}
	for _, want := range []cluster.Amount{10, 300} {
		takes, ok := choose(alloc.Want{Amount: want, On: 1}, alloc.Policy{})
		require.True(t, ok)
		require.Equal(t, []alloc.Take{{Device: 9, Amount: 9}, {Device: 0, Amount: want}}, takes, "takes are appended")
	}
	takes, ok := choose(alloc.Want{Amount: 1000, On: 2}, alloc.Policy{})
	require.True(t, ok)
	require.Equal(t, int32(1), takes[1].Device)
	for name, w := range map[string]alloc.Want{
		"more than it has": {Amount: 310, On: 1}, "no quantum": {Amount: 15, On: 1},
		"not there": {Amount: 10, On: 3}, "more than capacity": {Amount: 1010, On: 2},
	} {
		takes, ok := choose(w, alloc.Policy{})
		require.False(t, ok, name)
		require.Equal(t, []alloc.Take{{Device: 9, Amount: 9}}, takes, name)
	}
	_, ok = choose(alloc.Want{Amount: 10, On: 2}, alloc.Policy{Models: []string{"T4"}})
	require.False(t, ok)
}

// Where it spreads, a request takes the emptiest physical cores instead of what is broken already.
func TestCoresSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used []string
		want int64
		got  []string
	}{
		{nil, 1, []string{"0"}},
		{[]string{"0"}, 1, []string{"4"}},
		{[]string{"0"}, 2, []string{"1", "5"}},
		{[]string{"0", "1", "2"}, 3, []string{"3", "7", "4"}},
	} {
		request := cluster.Slots{cluster.SlotCPU: cluster.Whole(c.want)}
		used := alloc.Allocation{cluster.SlotCPU: taken(c.used...)}
		a, err := alloc.Fit(cores(8, 1), used, request, alloc.Policy{Placement: alloc.Spread})
		require.NoError(t, err)
		require.Equal(t, taken(c.got...), a[cluster.SlotCPU], "used %v", c.used)
	}
}

// Cards of several units share their load between their parts.
func TestPartsOfACardShareTheLoad(t *testing.T) {
	t.Parallel()
	var devices []alloc.Device
	for i := range 4 {
		devices = append(devices, alloc.Device{
			Slot: "fpga", ID: fmt.Sprint("f", i), NUMA: 0, Capacity: 2000, Healthy: true,
			Links: map[string]int{fmt.Sprint("f", i^1): alloc.DistanceSibling},
		})
	}
	for want, got := range map[int64]map[string]cluster.Amount{
		1: {"f0": 1000}, 2: {"f0": 1000, "f1": 1000}, 3: {"f0": 2000, "f1": 1000}, 4: {"f0": 2000, "f1": 2000},
		5: {"f0": 2000, "f1": 2000, "f2": 1000}, 6: {"f0": 2000, "f1": 2000, "f2": 1000, "f3": 1000},
	} {
		a, err := alloc.Fit(devices, nil, cluster.Slots{"fpga": cluster.Whole(want)}, alloc.Policy{})
		require.NoError(t, err)
		require.Equal(t, got, a["fpga"], want)
	}
	// A part that is used more gives what it has.
	used := alloc.Allocation{"fpga": {"f0": 1000, "f2": 2000, "f3": 2000}}
	a, err := alloc.Fit(devices, used, cluster.Slots{"fpga": cluster.Whole(3)}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, map[string]cluster.Amount{"f0": 1000, "f1": 2000}, a["fpga"])
}

// Overcommitted cores are taken from the emptiest first.
func TestOvercommittedCoresAreEven(t *testing.T) {
	t.Parallel()
	devices := cores(3, 1)[:3]
	for i := range devices {
		devices[i].NUMA, devices[i].Links, devices[i].Capacity = 0, nil, cluster.Whole(2)
	}
	used := alloc.Allocation{cluster.SlotCPU: {"0": 2000, "1": 1000}}
	for want, got := range map[int64]map[string]cluster.Amount{
		1: {"2": 1000}, 2: {"1": 1000, "2": 1000}, 3: {"1": 1000, "2": 2000},
	} {
		a, err := alloc.Fit(devices, used, cluster.Slots{cluster.SlotCPU: cluster.Whole(want)}, alloc.Policy{})
		require.NoError(t, err)
		require.Equal(t, got, a[cluster.SlotCPU], want)
	}
}

// Links may be known from one side only; devices without any are near when they share a node.
func TestLinksFromOneSide(t *testing.T) {
	t.Parallel()
	gpu := func(id string, node int, links map[string]int) alloc.Device {
		return alloc.Device{Slot: "cuda.device", ID: id, NUMA: node, Capacity: 1000, Healthy: true, Links: links}
	}
	choose := func(n int64, devices ...alloc.Device) map[string]cluster.Amount {
		a, err := alloc.Fit(devices, nil, cluster.Slots{"cuda.device": cluster.Whole(n)}, alloc.Policy{})
		require.NoError(t, err)
		return a["cuda.device"]
	}
	fast, gone := alloc.DistanceFast, map[string]int{"elsewhere": alloc.DistanceFast}
	require.Equal(t, taken("b", "d"), choose(2, gpu("a", 0, nil), gpu("b", 0, map[string]int{"d": fast}), gpu("c", 0, nil), gpu("d", 0, nil)))
	require.Equal(t, taken("b", "d"), choose(2, gpu("a", 0, nil), gpu("b", 0, nil), gpu("c", 0, nil), gpu("d", 0, map[string]int{"b": fast})))
	// The nearer of two claims counts.
	require.Equal(t, taken("b", "c"), choose(2, gpu("a", 0, map[string]int{"b": alloc.DistanceSwitch}),
		gpu("b", 0, map[string]int{"c": alloc.DistanceFar}), gpu("c", 0, map[string]int{"b": fast})))
	// Without a node a link is all that is known; a link to a device that is not there is nothing.
	require.Equal(t, taken("a", "c"), choose(2, gpu("a", -1, map[string]int{"c": alloc.DistanceNode}), gpu("b", -1, gone), gpu("c", -1, nil)))
	// Without any link the first ones are taken.
	require.Equal(t, taken("a", "b"), choose(2, gpu("a", 0, nil), gpu("b", 0, nil), gpu("c", 0, nil)))
}

// Accelerators of the unknown node are taken last.
func TestTheUnknownNodeIsLast(t *testing.T) {
	t.Parallel()
	devices := []alloc.Device{
		{Slot: "gpu", ID: "a", NUMA: -1, Capacity: 1000, Healthy: true}, {Slot: "gpu", ID: "b", NUMA: 1, Capacity: 1000, Healthy: true},
		{Slot: "gpu", ID: "c", NUMA: 0, Capacity: 1000, Healthy: true},
	}
	a, err := alloc.Fit(devices, nil, cluster.Slots{"gpu": 1000}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("c"), a["gpu"])
	a, err = alloc.Fit(devices, nil, cluster.Slots{"gpu": 2000}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("b", "c"), a["gpu"])
}
