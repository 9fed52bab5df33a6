package meter_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// What is measured of accelerators is told of each device, of the host together, and of a kernel that holds a device alone. A device that
// is broken is not in it: unknown is not zero.
func TestMeasurementsOfDevices(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	text, err := os.ReadFile("../device/mock/testdata/four.toml")
	require.NoError(t, err)
	machine, err := mock.Parse(text)
	require.NoError(t, err)
	h := &host{now: time.Unix(1000, 0), busy: -1, tick: make(chan time.Time)}
	driver, err := mock.New(machine, clock{h: h}.Now)
	require.NoError(t, err)
	inventory, err := device.NewInventory(driver)
	require.NoError(t, err)
	_, err = inventory.Refresh(t.Context())
	require.NoError(t, err)
	kernel := func(id cluster.KernelID, a alloc.Allocation) keeper.Kernel {
		return keeper.Kernel{ID: id, Container: runtime.Observed{ID: string(id)}, Allocation: a}
	}
	running := []keeper.Kernel{
		kernel("whole", alloc.Allocation{"cuda.device": {"GPU-0": 1000}}),
		kernel("half", alloc.Allocation{"cuda.shares": {"GPU-1": 500}}),
		kernel("quarter", alloc.Allocation{"cuda.shares": {"GPU-1": 250}}),
		kernel("alone", alloc.Allocation{"cuda.shares": {"GPU-2": 500}}),
		kernel("none", alloc.Allocation{"cpu": {"0": 1000}}),
	}
	m := meter.New(h, inventory, func() []keeper.Kernel { return running }, clock{h: h}, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) }()

	s := h.pass(t, m, time.Second, -1, 0)
	require.Equal(t, map[string]float64{
		"cuda_util@GPU-0": 80, "cuda_mem@GPU-0": 64 * gib, "cuda_mem_total@GPU-0": 80 * gib,
		"cuda_util@GPU-1": 60, "cuda_mem@GPU-1": 48 * gib, "cuda_mem_total@GPU-1": 80 * gib,
		"cuda_util@GPU-2": 40, "cuda_mem@GPU-2": 32 * gib, "cuda_mem_total@GPU-2": 80 * gib,
		"cuda_util@GPU-3": 0, "cuda_mem@GPU-3": 0, "cuda_mem_total@GPU-3": 80 * gib,
		"cuda_util": 180, "cuda_mem": 144 * gib, "cuda_mem_total": 320 * gib,
	}, s.Node)
	require.Equal(t, 80.0, s.Kernels["whole"]["cuda_util"])
	require.Equal(t, 80.0, s.Kernels["whole"]["cuda_util@GPU-0"])
	require.NotContains(t, s.Kernels["whole"], "cuda_util@GPU-1")
	require.Equal(t, 40.0, s.Kernels["half"]["cuda_util"])
	require.NotContains(t, s.Kernels["half"], "cuda_util@GPU-1", "another one holds it, too")
	require.Equal(t, 40.0, s.Kernels["alone"]["cuda_util@GPU-2"])
	require.NotContains(t, s.Kernels["none"], "cuda_util")

	s = h.pass(t, m, 3*time.Minute, -1, 0) // GPU-2 breaks
	require.NotContains(t, s.Node, "cuda_util@GPU-2")
	require.Equal(t, 140.0, s.Node["cuda_util"])
	require.Equal(t, 240.0*gib, s.Node["cuda_mem_total"])
	require.NotContains(t, s.Kernels["alone"], "cuda_util")
	require.NotContains(t, s.Kernels["alone"], "cuda_util@GPU-2")
}
