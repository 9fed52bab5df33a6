package mem_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/agent/device/mem"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

var (
	proc = fstest.MapFS{"meminfo": {Data: []byte("MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n")}}
	// twoNodes has 6 GiB on node 0, 2 GiB on node 1 and a node without memory.
	twoNodes = fstest.MapFS{
		"devices/system/node/node0/meminfo": {Data: []byte("Node 0 MemTotal:       6291456 kB\n")},
		"devices/system/node/node1/meminfo": {Data: []byte("Node 1 MemTotal:       2097152 kB\n")},
		"devices/system/node/node2/meminfo": {Data: []byte("Node 2 MemTotal:       0 kB\n")},
	}
)

func discover(t *testing.T, sys, proc fs.FS, reserved int64) ([]device.Device, error) {
	return mem.New(mem.Options{Sys: sys, Proc: proc, Reserved: reserved}).Discover(t.Context())
}

func TestDevices(t *testing.T) {
	t.Parallel()
	one, err := discover(t, fstest.MapFS{}, proc, 1<<30)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.Equal(t, cluster.Whole(7<<30), one[0].Capacity)
	one, err = discover(t, fstest.MapFS{}, proc, -1)
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(8<<30-512<<20), one[0].Capacity, "the default reservation")

	limited := fstest.MapFS{"fs/cgroup/memory.max": {Data: []byte("2147483648\n")}}
	one, err = discover(t, limited, proc, 0)
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(2<<30), one[0].Capacity)
	_, err = discover(t, limited, proc, 2<<30)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	two, err := discover(t, twoNodes, proc, 4<<30)
	require.NoError(t, err)
	require.Len(t, two, 2)
	require.Equal(t, cluster.Whole(3<<30), two[0].Capacity)
	require.Equal(t, cluster.Whole(1<<30), two[1].Capacity)
	_, err = discover(t, fstest.MapFS{}, fstest.MapFS{}, 0)
	require.Error(t, err)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(*testing.T) conformance.Fixture {
		return conformance.Fixture{Driver: mem.New(mem.Options{Sys: twoNodes, Proc: proc, Reserved: -1})}
	})
}

func TestGrantAndSample(t *testing.T) {
	t.Parallel()
	d := mem.New(mem.Options{Sys: twoNodes, Proc: proc})
	held := alloc.Allocation{cluster.SlotMem: {"node0": cluster.Whole(1 << 30), "node1": cluster.Whole(2 << 30)}}
	g, err := d.Grant(held)
	require.NoError(t, err)
	require.Equal(t, device.Grant{Memory: 3 << 30}, g)
	u, err := d.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": held})
	require.NoError(t, err)
	require.Equal(t, map[string]float64{node.MetricMem: 4 << 30, node.MetricMemCap: 8 << 30}, u.Node)
	require.Equal(t, map[string]float64{node.MetricMemCap: 3 << 30}, u.Kernels["k"])
}
