package alloc_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// rails is a host with two sockets, two PCIe switches at each, and at each switch two GPUs and an adapter. GPU 2n, 2n+1 and adapter n are
// at switch n. The slots of GPUs sort before and after those of adapters.
func rails(gpu cluster.SlotName) []alloc.Device {
	var out []alloc.Device
	for i := range 8 {
		out = append(out, alloc.Device{Slot: gpu, ID: fmt.Sprint("g", i), NUMA: i / 4, PCI: fmt.Sprint("pci", i), Capacity: cluster.Whole(1),
			Healthy: true})
	}
	for i := range 4 {
		out = append(out, alloc.Device{Slot: "rdma.hca", ID: fmt.Sprint("a", i), NUMA: i / 2, PCI: fmt.Sprint("pcia", i),
			Capacity: cluster.Whole(2), Healthy: true,
			Links: map[string]int{fmt.Sprint("pci", 2*i): alloc.DistanceSwitch, fmt.Sprint("pci", 2*i+1): alloc.DistanceSwitch}})
	}
	return append(out, cores(16, 2)...)
}

func TestAdaptersFollowAccelerators(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		busy     []string // GPUs
		full     []string // adapters of which nothing is left
		half     []string // adapters of which one unit is left
		gpus     int64
		adapters int64
		want     map[string]int64
	}{
		{"the one at its switch", []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6"}, nil, nil, 1, 1, map[string]int64{"a3": 1}},
		{"one of its socket when that is full", []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6"}, []string{"a3"}, nil, 1, 1,
			map[string]int64{"a2": 1}},
		{"any when the socket is full", []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6"}, []string{"a2", "a3"}, nil, 1, 1,
			map[string]int64{"a0": 1}},
		{"half of one is enough", []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6"}, nil, []string{"a3"}, 1, 1, map[string]int64{"a3": 1}},
		{"accelerators are served evenly", nil, nil, nil, 8, 4, map[string]int64{"a0": 1, "a1": 1, "a2": 1, "a3": 1}},
		{"one for each socket", nil, nil, nil, 8, 2, map[string]int64{"a0": 1, "a2": 1}},
		{"two for two at one switch are two adapters", []string{"g0", "g1", "g2", "g3", "g4", "g5"}, nil, nil, 2, 2,
			map[string]int64{"a2": 1, "a3": 1}},
		{"more than there are adapters", nil, nil, nil, 8, 8, map[string]int64{"a0": 2, "a1": 2, "a2": 2, "a3": 2}},
		{"what is left of them", nil, []string{"a1", "a2", "a3"}, nil, 4, 2, map[string]int64{"a0": 2}},
	} {
		for _, slot := range []cluster.SlotName{"cuda.device", "xpu.device"} {
			t.Run(c.name+" of "+string(slot), func(t *testing.T) {
				t.Parallel()
				used := alloc.Allocation{slot: taken(c.busy...), "rdma.hca": {}}
				for _, id := range c.full {
					used["rdma.hca"][id] = cluster.Whole(2)
				}
				for _, id := range c.half {
					used["rdma.hca"][id] = cluster.Whole(1)
				}
				request := cluster.Slots{slot: cluster.Whole(c.gpus), "rdma.hca": cluster.Whole(c.adapters)}
				a, err := alloc.Fit(rails(slot), used, request, alloc.Policy{})
				require.NoError(t, err)
				want := map[string]cluster.Amount{}
				for id, n := range c.want {
					want[id] = cluster.Whole(n)
				}
				require.Equal(t, want, a["rdma.hca"])
				require.NoError(t, alloc.Check(rails(slot), used, request, a))
			})
		}
	}
}

// TestAdaptersAlone: without accelerators they are whole devices like others, and cores follow them.
func TestAdaptersAlone(t *testing.T) {
	t.Parallel()
	devices := rails("cuda.device")
	used := alloc.Allocation{"rdma.hca": {"a0": cluster.Whole(2), "a1": cluster.Whole(2)}}
	a, err := alloc.Fit(devices, used, cluster.Slots{"rdma.hca": cluster.Whole(2), cluster.SlotCPU: cluster.Whole(2)}, alloc.Policy{})
	require.NoError(t, err)
	require.Subset(t, []string{"a2", "a3"}, slices.Collect(maps.Keys(a["rdma.hca"])))
	for _, d := range devices {
		if _, ok := a[cluster.SlotCPU][d.ID]; ok && d.Slot == cluster.SlotCPU {
			require.Equal(t, 1, d.NUMA)
		}
	}
}

// TestAdaptersOfUnknownPlaces: links by PCI address mean nothing to an accelerator whose address is unknown.
func TestAdaptersOfUnknownPlaces(t *testing.T) {
	t.Parallel()
	devices := []alloc.Device{
		{Slot: "cuda.device", ID: "g", NUMA: 1, Capacity: cluster.Whole(1), Healthy: true},
		{Slot: "rdma.hca", ID: "a0", NUMA: -1, Capacity: cluster.Whole(1), Healthy: true, Links: map[string]int{"": 1}},
		{Slot: "rdma.hca", ID: "a1", NUMA: 1, Capacity: cluster.Whole(1), Healthy: true},
	}
	request := cluster.Slots{"cuda.device": cluster.Whole(1), "rdma.hca": cluster.Whole(1)}
	a, err := alloc.Fit(devices, nil, request, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("a1"), a["rdma.hca"], "the one at its NUMA node")
	devices[0].NUMA = -1
	a, err = alloc.Fit(devices, nil, request, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, taken("a0"), a["rdma.hca"], "the first")
}

// TestModelsDoNotRestrictAdapters: who asks for a model of GPU takes any adapter.
func TestModelsDoNotRestrictAdapters(t *testing.T) {
	t.Parallel()
	devices := rails("cuda.device")
	devices[7].Model, devices[8].Model = "A100", "MT4129"
	a, err := alloc.Fit(devices, nil, cluster.Slots{"cuda.device": cluster.Whole(1), "rdma.hca": cluster.Whole(1)},
		alloc.Policy{Models: []string{"A100"}})
	require.NoError(t, err)
	require.Equal(t, taken("g7"), a["cuda.device"])
	require.Equal(t, taken("a3"), a["rdma.hca"])
}
