// Package devicetest makes machines for tests of everything above the device drivers: the drivers of cores and memory over
// a host that is only described. Its cores belong to no NUMA node and its memory is one device.
package devicetest

import (
	"fmt"
	"testing/fstest"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cpu"
	"berth.dev/berth/internal/agent/device/mem"
)

// Host returns the drivers of a host with that many cores, numbered from 0, and that many bytes of memory, in whole KiB.
func Host(cores int, memory int64) []device.Driver {
	proc := fstest.MapFS{
		"stat":    {Data: []byte("cpu  100 0 100 1000 0 0 0 0 0 0\n")},
		"meminfo": {Data: fmt.Appendf(nil, "MemTotal: %d kB\nMemAvailable: %d kB\n", memory>>10, memory>>11)},
	}
	return []device.Driver{
		cpu.New(cpu.Options{Sys: fstest.MapFS{}, Proc: proc, Usable: func() ([]int, error) {
			out := make([]int, cores)
			for i := range out {
				out[i] = i
			}
			return out, nil
		}}),
		mem.New(mem.Options{Sys: fstest.MapFS{}, Proc: proc}),
	}
}
