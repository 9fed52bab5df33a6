package cpu

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

func TestDevices(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"devices/system/node/node0/cpulist": {Data: []byte("0-1,4-5\n")},
		"devices/system/node/node1/cpulist": {Data: []byte("2-3,6-7\n")},
	}
	for i := range 8 {
		list := &fstest.MapFile{Data: fmt.Appendf(nil, "%d,%d\n", i%4, i%4+4)}
		sys[fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", i)] = list
	}
	all, err := devices(sys, []int{0, 1, 2, 3, 4, 5, 6, 7}, 0)
	require.NoError(t, err)
	require.Len(t, all, 8)
	require.Equal(t, 1, all[2].NUMA)
	require.Equal(t, map[string]int{"6": 1}, all[2].Links)

	some, err := devices(sys, []int{0, 1, 2, 3, 4, 5, 6, 7}, 2)
	require.NoError(t, err)
	require.Len(t, some, 6)
	require.Equal(t, "1", some[0].ID, "core 0 and its sibling 4 are kept for the host")
	for _, d := range some {
		require.NotEqual(t, "4", d.ID)
	}
	_, err = devices(sys, []int{0, 1}, 2)
	require.Error(t, err)

	bare, err := devices(fstest.MapFS{}, []int{0, 3}, 0)
	require.NoError(t, err)
	require.Equal(t, -1, bare[1].NUMA)
	require.Equal(t, []int{0, 1, 2, 8, 10, 11}, parseList("0-2,8,10-11\n"))
	require.Empty(t, parseList("\n"))
}

// TestConformance runs on a described host of two NUMA nodes and on this one.
func TestConformance(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"devices/system/node/node0/cpulist": {Data: []byte("0-1\n")},
		"devices/system/node/node1/cpulist": {Data: []byte("2-3\n")},
	}
	for i := range 4 {
		list := &fstest.MapFile{Data: fmt.Appendf(nil, "%d-%d\n", i&^1, i|1)}
		sys[fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", i)] = list
	}
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		var gone atomic.Bool
		d := New(Options{Sys: sys, Proc: fstest.MapFS{"stat": {Data: []byte("cpu  10 0 20 1000 5 0 0 0 0 0\n")}}, Overcommit: 2,
			Usable: func() ([]int, error) {
				if gone.Load() {
					return []int{0, 1, 2}, nil
				}
				return []int{0, 1, 2, 3}, nil
			}})
		return conformance.Fixture{Driver: d, Vanish: func() device.Ref {
			gone.Store(true)
			return device.Ref{Slot: cluster.SlotCPU, ID: "3"}
		}}
	})
}

func TestThisHost(t *testing.T) {
	t.Parallel()
	d := New(Options{Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc")})
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, found)
	u, err := d.Sample(t.Context(), nil)
	require.NoError(t, err)
	require.Positive(t, u.Node[node.MetricCPUUsed])
}

func TestGrantAndSample(t *testing.T) {
	t.Parallel()
	d := New(Options{Sys: fstest.MapFS{}, Proc: fstest.MapFS{"stat": {Data: []byte("cpu  10 0 20 1000 5 0 0 0 0 0\n")}}})
	held := alloc.Allocation{cluster.SlotCPU: {"10": cluster.Whole(1), "9": cluster.Whole(1)}}
	g, err := d.Grant(held)
	require.NoError(t, err)
	require.Equal(t, device.Grant{CPUSet: []int{9, 10}}, g)
	u, err := d.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": held})
	require.NoError(t, err)
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 300}, u.Node, "idle and waiting is not busy")
	require.Equal(t, map[string]float64{node.MetricCores: 2}, u.Kernels["k"])
	bare, err := New(Options{Sys: fstest.MapFS{}, Proc: fstest.MapFS{}}).Sample(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, bare.Node, "unknown is not zero")
}
