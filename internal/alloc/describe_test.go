package alloc_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	var devices []alloc.Device
	for i := range 16 {
		devices = append(devices, alloc.Device{Slot: cluster.SlotCPU, ID: strconv.Itoa(i), NUMA: i / 8, Capacity: 1000, Healthy: true})
	}
	link := func(to string, class int) map[string]int { return map[string]int{to: class} }
	devices = append(devices,
		alloc.Device{Slot: "cuda.device", ID: "GPU-0", NUMA: 0, Links: link("GPU-1", alloc.DistanceFast)},
		alloc.Device{Slot: "cuda.device", ID: "GPU-1", NUMA: 0, Links: link("GPU-2", alloc.DistanceFar)},
		alloc.Device{Slot: "cuda.device", ID: "GPU-2", NUMA: 1, Links: link("GPU-3", alloc.DistanceSwitch)},
		alloc.Device{Slot: "cuda.device", ID: "GPU-3", NUMA: 1},
		alloc.Device{Slot: "cuda.shares", ID: "GPU-0", NUMA: 0},
		alloc.Device{Slot: "cuda.shares", ID: "GPU-1", NUMA: 0},
		alloc.Device{Slot: "warboy.device", ID: "npu0", NUMA: -1},
		alloc.Device{Slot: "warboy.device", ID: "npu1", NUMA: -1, Links: link("npu0", alloc.DistanceFast)},
		alloc.Device{Slot: "rocm.device", ID: "r0", NUMA: 1},
		alloc.Device{Slot: "rocm.device", ID: "r1", NUMA: 1, Links: link("r0", alloc.DistanceFast)},
	)
	cores := func(from, to int) map[string]cluster.Amount {
		out := map[string]cluster.Amount{}
		for i := from; i <= to; i++ {
			out[strconv.Itoa(i)] = cluster.Milli
		}
		return out
	}
	whole := func(ids ...string) map[string]cluster.Amount {
		out := map[string]cluster.Amount{}
		for _, id := range ids {
			out[id] = cluster.Milli
		}
		return out
	}
	for _, c := range []struct {
		want string
		a    alloc.Allocation
	}{
		{"", nil},
		{"", alloc.Allocation{"mem": {"root": 1 << 30}}},
		{"two GPUs joined by NVLink on NUMA node 0, cores 0-7 beside them",
			alloc.Allocation{"cuda.device": whole("GPU-0", "GPU-1"), "cpu": cores(0, 7)}},
		{"two GPUs on one PCIe switch on NUMA node 1, cores 8-9 beside them",
			alloc.Allocation{"cuda.device": whole("GPU-2", "GPU-3"), "cpu": cores(8, 9)}},
		{"two GPUs on NUMA nodes 0 and 1, cores 6-9 beside them",
			alloc.Allocation{"cuda.device": whole("GPU-1", "GPU-2"), "cpu": cores(6, 9)}},
		{"one GPU on NUMA node 0, core 9 on NUMA node 1, not beside it",
			alloc.Allocation{"cuda.device": whole("GPU-0"), "cpu": cores(9, 9)}},
		{"one GPU on NUMA node 0, cores 7-8 on NUMA nodes 0 and 1, not all of them beside it",
			alloc.Allocation{"cuda.device": whole("GPU-0"), "cpu": cores(7, 8)}},
		{"0.5 of one GPU on NUMA node 0, core 0 beside it",
			alloc.Allocation{"cuda.shares": {"GPU-0": 500}, "cpu": cores(0, 0)}},
		{"1.5 of two GPUs on NUMA node 0", alloc.Allocation{"cuda.shares": {"GPU-0": 750, "GPU-1": 750}}},
		{"two warboy devices joined by a direct link, cores 0-1 on NUMA node 0",
			alloc.Allocation{"warboy.device": whole("npu0", "npu1"), "cpu": cores(0, 1)}},
		{"two GPUs joined by xGMI on NUMA node 1", alloc.Allocation{"rocm.device": whole("r0", "r1")}},
		{"two GPUs (1 of them the agent does not list any more)", alloc.Allocation{"cuda.device": whole("GPU-0", "GPU-9")}},
		{"cores 0,2 on NUMA node 0", alloc.Allocation{"cpu": whole("0", "2")}},
		{"cores 98-99", alloc.Allocation{"cpu": cores(98, 99)}},
	} {
		require.Equal(t, c.want, alloc.Describe(devices, c.a))
	}
}
