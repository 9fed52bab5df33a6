package mem_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/mem"
	"berth.dev/berth/internal/cluster"
)

func TestDevices(t *testing.T) {
	t.Parallel()
	proc := fstest.MapFS{"meminfo": {Data: []byte("MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n")}}
	one, err := mem.Devices(fstest.MapFS{}, proc, 1<<30)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.Equal(t, cluster.Whole(7<<30), one[0].Capacity)

	limited := fstest.MapFS{"fs/cgroup/memory.max": {Data: []byte("2147483648\n")}}
	one, err = mem.Devices(limited, proc, 0)
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(2<<30), one[0].Capacity)
	_, err = mem.Devices(limited, proc, 2<<30)
	require.Error(t, err)

	two, err := mem.Devices(fstest.MapFS{
		"devices/system/node/node0/meminfo": {Data: []byte("Node 0 MemTotal:       6291456 kB\n")},
		"devices/system/node/node1/meminfo": {Data: []byte("Node 1 MemTotal:       2097152 kB\n")},
		"devices/system/node/node2/meminfo": {Data: []byte("Node 2 MemTotal:       0 kB\n")},
	}, proc, 4<<30)
	require.NoError(t, err)
	require.Len(t, two, 2)
	require.Equal(t, cluster.Whole(3<<30), two[0].Capacity)
	require.Equal(t, cluster.Whole(1<<30), two[1].Capacity)
	_, err = mem.Devices(fstest.MapFS{}, fstest.MapFS{}, 0)
	require.Error(t, err)
}
