package alloc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

func TestOvercommittedCoresAreShared(t *testing.T) {
	t.Parallel()
	devices := cores(2, 1)
	for i := range devices {
		devices[i].Capacity = cluster.Whole(4)
	}
	used := alloc.Allocation{}
	for n := 1; n <= 4; n++ {
		a, err := alloc.Fit(devices, used, cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}, alloc.Policy{})
		require.NoError(t, err)
		require.Len(t, a[cluster.SlotCPU], 2, "two cores are two different ones")
		used = used.Add(a)
	}
	_, err := alloc.Fit(devices, used, cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, alloc.Policy{})
	require.Error(t, err)
}
