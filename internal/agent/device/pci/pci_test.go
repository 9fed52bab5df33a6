package pci_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/pci"
	"berth.dev/berth/internal/alloc"
)

// host has an adapter and a GPU behind one switch, a second GPU behind another port and a third at the other socket.
var host = fstest.MapFS{
	"devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/class":     {Data: []byte("0x020700\n")},
	"devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/numa_node": {Data: []byte("0\n")},
	"devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0/class":     {Data: []byte("0x030200\n")},
	"devices/pci0000:00/0000:00:02.0/0000:04:00.0/class":                  {Data: []byte("0x120000\n")},
	"devices/pci0000:80/0000:80:01.0/0000:81:00.0/class":                  {Data: []byte("0x038000\n")},
	"devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node":              {Data: []byte("-1\n")},
	"bus/pci/devices/0000:02:00.0": {Mode: fs.ModeSymlink,
		Data: []byte("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0")},
	"bus/pci/devices/0000:03:00.0": {Mode: fs.ModeSymlink,
		Data: []byte("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0")},
	"bus/pci/devices/0000:04:00.0": {Mode: fs.ModeSymlink, Data: []byte("../../../devices/pci0000:00/0000:00:02.0/0000:04:00.0")},
	"bus/pci/devices/0000:81:00.0": {Mode: fs.ModeSymlink, Data: []byte("../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0")},
	"class/infiniband/mlx5_0/device": {Mode: fs.ModeSymlink,
		Data: []byte("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0")},
}

func TestWhereDevicesAre(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0000:02:00.0", pci.Of(host, "class/infiniband/mlx5_0/device"))
	require.Equal(t, "0000:02:00.0", pci.Of(host, "class/infiniband/mlx5_0"), "what is attached to it")
	require.Equal(t, "0000:04:00.0", pci.Of(host, "bus/pci/devices/0000:04:00.0"))
	require.Empty(t, pci.Of(host, "class/infiniband/mlx5_1/device"))
	require.Equal(t, 0, pci.NUMA(host, "class/infiniband/mlx5_0/device"))
	require.Equal(t, -1, pci.NUMA(host, pci.Dir("0000:81:00.0")), "the host does not know it")
	require.Equal(t, -1, pci.NUMA(host, pci.Dir("0000:04:00.0")))
	require.Equal(t, []string{"0000:03:00.0", "0000:04:00.0", "0000:81:00.0"}, pci.Accelerators(host))
	require.Empty(t, pci.Accelerators(fstest.MapFS{}))
}

func TestClassOfTwoDevices(t *testing.T) {
	t.Parallel()
	way := func(addr string) pci.Way { return pci.WayTo(host, addr) }
	require.Equal(t, pci.Way{"pci0000:00", "0000:00:01.0", "0000:01:00.0"}, way("0000:02:00.0"))
	require.Equal(t, alloc.DistanceSwitch, pci.Class(way("0000:02:00.0"), way("0000:03:00.0")))
	require.Zero(t, pci.Class(way("0000:02:00.0"), way("0000:04:00.0")), "another port")
	require.Zero(t, pci.Class(way("0000:02:00.0"), way("0000:81:00.0")), "another host bridge")
	require.Nil(t, way("0000:82:00.0"))
	require.Nil(t, way("0000:ff:00.0"))
	require.Zero(t, pci.Class(way("0000:82:00.0"), way("0000:ff:00.0")), "nothing is known of either")
}
