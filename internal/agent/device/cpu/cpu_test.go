package cpu

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestDevices(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"devices/system/node/node0/cpulist": {Data: []byte("0-1,4-5\n")},
		"devices/system/node/node1/cpulist": {Data: []byte("2-3,6-7\n")},
	}
	for i := range 8 {
		sys[fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d,%d\n", i%4, i%4+4)}
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
	here, err := Devices(sys, 0)
	require.NoError(t, err)
	require.NotEmpty(t, here)
}
