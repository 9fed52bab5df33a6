// Package mem finds the memory of this host, per NUMA node where there are several, and
// measures how much of it is used.
package mem

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Root is the id of the only memory device on hosts with one NUMA node.
const Root = "root"

// Devices returns the host's memory less the reserved bytes, which are taken from all
// nodes in proportion. sys and proc are the file systems of /sys and /proc.
func Devices(sys, proc fs.FS, reserved int64) ([]alloc.Device, error) {
	total, err := total(sys, proc)
	if err != nil {
		return nil, err
	}
	if reserved >= total {
		return nil, fmt.Errorf("%d MiB of memory are reserved, this host has %d MiB", reserved>>20, total>>20)
	}
	give := func(id string, numa int, bytes int64) alloc.Device {
		return alloc.Device{Slot: cluster.SlotMem, ID: id, NUMA: numa, Capacity: cluster.Whole(bytes), Healthy: true}
	}
	sizes := nodes(sys)
	if len(sizes) < 2 {
		return []alloc.Device{give(Root, -1, total-reserved)}, nil
	}
	var sum int64
	var ids []int
	for n, size := range sizes {
		sum += size
		ids = append(ids, n)
	}
	slices.Sort(ids)
	var out []alloc.Device
	for _, n := range ids {
		// In pages, so that products of large numbers do not overflow.
		share := (total - reserved) >> 12 * (sizes[n] >> 12) / (sum >> 12) << 12
		out = append(out, give("node"+strconv.Itoa(n), n, share))
	}
	return out, nil
}

// total is the host's memory, or what the cgroup of a nested host leaves of it.
func total(sys, proc fs.FS) (int64, error) {
	info, err := Info(proc)
	if err != nil {
		return 0, err
	}
	bytes := info["MemTotal"]
	for _, file := range []string{"fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes"} {
		if b, err := fs.ReadFile(sys, file); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				bytes = min(bytes, n)
			}
		}
	}
	if bytes == 0 {
		return 0, fmt.Errorf("find memory: /proc/meminfo names no total")
	}
	return bytes, nil
}

// Info reads /proc/meminfo in bytes.
func Info(proc fs.FS) (map[string]int64, error) {
	b, err := fs.ReadFile(proc, "meminfo")
	if err != nil {
		return nil, fmt.Errorf("find memory: %w", err)
	}
	return parse(string(b), 0), nil
}

// parse reads lines of "Name: N kB"; skip is the number of words before the name.
func parse(text string, skip int) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < skip+2 {
			continue
		}
		if n, err := strconv.ParseInt(f[skip+1], 10, 64); err == nil {
			out[strings.TrimSuffix(f[skip], ":")] = n << 10
		}
	}
	return out
}

// nodes maps NUMA nodes to their memory; nodes without memory are left out.
func nodes(sys fs.FS) map[int]int64 {
	out := map[int]int64{}
	files, err := fs.Glob(sys, "devices/system/node/node[0-9]*/meminfo")
	if err != nil {
		return out
	}
	for _, f := range files {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(f)), "node"))
		if err != nil {
			continue
		}
		b, err := fs.ReadFile(sys, f)
		if err != nil {
			continue
		}
		if size := parse(string(b), 2)["MemTotal"]; size > 0 {
			out[n] = size
		}
	}
	return out
}

// Sample returns the used and the total bytes of the host; ok is false when they are unknown.
func Sample() (used, total float64, ok bool) {
	info, err := Info(os.DirFS("/proc"))
	if err != nil || info["MemTotal"] == 0 {
		return 0, 0, false
	}
	return float64(info["MemTotal"] - info["MemAvailable"]), float64(info["MemTotal"]), true
}
