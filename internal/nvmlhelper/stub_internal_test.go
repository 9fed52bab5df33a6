//go:build cgo

package nvmlhelper

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/testkit/await"
)

// TestARealLibraryOfAnOldDriver goes the whole way through cgo: the library is loaded, its functions are bound when they are called,
// and those that it has not are not called. It is not parallel, because go-nvml keeps in variables what it has loaded.
func TestARealLibraryOfAnOldDriver(t *testing.T) {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	file := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	source := filepath.Join("testdata", "nvml.c")
	out, err := exec.Command(compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", file, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	l := newLibrary(nvml.New(nvml.WithLibraryPath(file)), sysOf(), os.Stderr)
	facts, err := l.Look()
	require.NoError(t, err)
	card := func(n int, other, pci string) nvmlwire.GPU {
		return nvmlwire.GPU{UUID: []string{"GPU-stub-0", "GPU-stub-1"}[n], Model: "Tesla V100", PCI: pci, NUMA: -1, Minor: 1 - n,
			Memory: 16 * gib, Capability: "7.0", Links: map[string]int{other: 2}}
	}
	require.Equal(t, nvmlwire.Facts{Driver: "390.157", CUDA: "9.1", GPUs: []nvmlwire.GPU{
		card(0, "GPU-stub-1", "0001:1a:00.0"), card(1, "GPU-stub-0", "0001:1b:00.0"),
	}}, facts)
	sample, err := l.Sample()
	require.NoError(t, err)
	require.Equal(t, nvmlwire.Sample{Uses: []nvmlwire.Use{
		{UUID: "GPU-stub-0", Utilisation: new(40.0), MemoryUsed: new(int64(3)), Power: new(42.5), Temperature: new(30.0),
			Processes: []nvmlwire.Process{{PID: 4242, Memory: gib, Utilisation: new(25.0)}}},
		{UUID: "GPU-stub-1", Utilisation: new(41.0), MemoryUsed: new(int64(3)), Power: new(42.5), Temperature: new(30.0)},
	}}, sample)
	ctx, stop := context.WithCancel(t.Context())
	told, ended := make(chan nvmlwire.Event, 1), make(chan struct{})
	go func() {
		defer close(ended)
		l.Watch(ctx, func(e nvmlwire.Event) { told <- e })
	}()
	require.Equal(t, nvmlwire.Event{UUID: "GPU-stub-1", XID: 48}, await.Value(t, told))
	stop()
	await.Value(t, ended)
}
