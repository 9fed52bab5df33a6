// Package cpu finds the cores of this host with their NUMA nodes and siblings, and
// measures how busy the host is.
package cpu

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Devices returns one device per logical core that this process may use, without the
// first reserved cores. sys is the file system of /sys.
func Devices(sys fs.FS, reserved int) ([]alloc.Device, error) {
	usable, err := affinity()
	if err != nil {
		return nil, err
	}
	return devices(sys, usable, reserved)
}

// affinity lists the cores this process may run on.
func affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("find cores: %w", err)
	}
	var out []int
	for i := 0; len(out) < set.Count(); i++ {
		if set.IsSet(i) {
			out = append(out, i)
		}
	}
	return out, nil
}

func devices(sys fs.FS, usable []int, reserved int) ([]alloc.Device, error) {
	node := nodes(sys)
	var out []alloc.Device
	for _, core := range usable {
		numa, known := node[core]
		if !known {
			numa = -1
		}
		d := alloc.Device{Slot: cluster.SlotCPU, ID: strconv.Itoa(core), NUMA: numa, Capacity: cluster.Whole(1), Healthy: true}
		text, err := fs.ReadFile(sys, fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", core))
		if err == nil {
			for _, sibling := range parseList(string(text)) {
				if sibling != core && slices.Contains(usable, sibling) {
					if d.Links == nil {
						d.Links = map[string]int{}
					}
					d.Links[strconv.Itoa(sibling)] = alloc.DistanceSibling
				}
			}
		}
		out = append(out, d)
	}
	if reserved >= len(out) && reserved > 0 {
		return nil, fmt.Errorf("%d cores are reserved, this host has %d", reserved, len(out))
	}
	// The first cores serve the host's interrupts best; siblings of them go first too.
	drop := map[string]bool{}
	for _, d := range out {
		for _, id := range append([]string{d.ID}, siblingsOf(d)...) {
			if len(drop) < reserved {
				drop[id] = true
			}
		}
	}
	out = slices.DeleteFunc(out, func(d alloc.Device) bool { return drop[d.ID] })
	for i := range out {
		for id := range out[i].Links {
			if drop[id] {
				delete(out[i].Links, id)
			}
		}
	}
	return out, nil
}

func siblingsOf(d alloc.Device) []string {
	var out []string
	for id := range d.Links {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// nodes maps cores to NUMA nodes.
func nodes(sys fs.FS) map[int]int {
	out := map[int]int{}
	dirs, err := fs.Glob(sys, "devices/system/node/node[0-9]*")
	if err != nil {
		return out
	}
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(dir), "node"))
		if err != nil {
			continue
		}
		text, err := fs.ReadFile(sys, dir+"/cpulist")
		if err != nil {
			continue
		}
		for _, core := range parseList(string(text)) {
			out[core] = n
		}
	}
	return out
}

// parseList reads the kernel's list format: "0-3,8,10-11".
func parseList(text string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b-a > 1<<16 {
				continue
			}
		}
		for i := a; i <= b; i++ {
			out = append(out, i)
		}
	}
	return out
}

// Sampler measures the host's use of its cores between two calls.
type Sampler struct {
	mu          sync.Mutex
	busy, total float64
}

// Sample returns the percent of one core used since the last call (100 times the cores is
// the most) and the busy milliseconds since the host's start; ok is false when they are unknown.
func (s *Sampler) Sample() (percent, usedMS float64, ok bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, 0, false
	}
	var busy, total float64
	for i, text := range f[1:min(len(f), 9)] {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, false
		}
		total += v
		if i != 3 && i != 4 { // idle, iowait
			busy += v
		}
	}
	const tick = 10 // ms; USER_HZ is 100 on every Linux that Go runs on
	s.mu.Lock()
	defer s.mu.Unlock()
	cores := float64(strings.Count(string(b), "\ncpu"))
	first := s.total == 0
	if d := total - s.total; d > 0 && !first {
		percent = (busy - s.busy) / d * 100 * cores
	}
	s.busy, s.total = busy, total
	return percent, busy * tick, !first
}
