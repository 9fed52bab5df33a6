// Package mem is the device driver of the host's memory, one device per NUMA node where there are several: it finds it,
// limits containers to what they got of it and measures how much is used.
package mem

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// Root is the id of the only memory device on hosts with one NUMA node.
const Root = "root"

// nodePrefix and the number of a NUMA node are the id of a memory device on hosts with several.
const nodePrefix = "node"

// Name is the driver's name.
const Name = "mem"

// Options say what the driver looks at.
type Options struct {
	// Sys and Proc are the file systems of /sys and /proc.
	Sys, Proc fs.FS
	// Reserved bytes are kept for the host. Below zero it is a tenth of the memory, at most 512 MiB.
	Reserved int64
}

// Driver gives memory to containers.
type Driver struct{ o Options }

var _ device.Driver = (*Driver)(nil)

// New returns the driver; nothing is looked at yet.
func New(o Options) *Driver { return &Driver{o} }

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Kinds returns the one slot of this driver.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{cluster.SlotMem: cluster.SlotBytes}
}

// Discover returns the host's memory less the reserved bytes.
func (d *Driver) Discover(context.Context) ([]device.Device, error) {
	reserved := d.o.Reserved
	if reserved < 0 {
		all, err := info(d.o.Proc)
		if err != nil {
			return nil, err
		}
		reserved = min(all["MemTotal"]/10, 512<<20)
	}
	found, err := devices(d.o.Sys, d.o.Proc, reserved)
	if err != nil {
		return nil, err
	}
	out := make([]device.Device, len(found))
	for i, m := range found {
		out[i] = device.Device{Device: m, Memory: m.Capacity.Units()}
	}
	return out, nil
}

// Grant limits the container to the sum of what it got.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	var sum cluster.Amount
	for id, amount := range a[cluster.SlotMem] {
		if n, ok := strings.CutPrefix(id, nodePrefix); id != Root && (!ok || !number(n)) {
			return device.Grant{}, fault.Invalidf("%q is not a memory device", id).WithReason(device.ReasonGrant)
		}
		if amount <= 0 {
			return device.Grant{}, fault.Invalidf("%s bytes of memory device %s cannot be given", amount, id).WithReason(device.ReasonGrant)
		}
		sum += amount
	}
	return device.Grant{Memory: sum.Units()}, nil
}

func number(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 0 && strconv.Itoa(n) == text
}

// Sample tells the used and the total bytes of the host, and the limit of each kernel.
func (d *Driver) Sample(_ context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	out := device.NewUsage()
	if all, err := info(d.o.Proc); err == nil && all["MemTotal"] > 0 {
		out.Node[node.MetricMem] = float64(all["MemTotal"] - all["MemAvailable"])
		out.Node[node.MetricMemCap] = float64(all["MemTotal"])
	}
	for id, a := range held {
		if limit := a.Totals()[cluster.SlotMem].Units(); limit > 0 {
			out.Kernels[id] = map[string]float64{node.MetricMemCap: float64(limit)}
		}
	}
	return out, nil
}

// devices returns the host's memory less the reserved bytes, which are taken from all nodes in proportion.
func devices(sys, proc fs.FS, reserved int64) ([]alloc.Device, error) {
	total, err := total(sys, proc)
	if err != nil {
		return nil, err
	}
	if reserved >= total {
		return nil, fault.Invalidf("%d MiB of memory are reserved, this host has %d MiB", reserved>>20, total>>20).
			WithNext("set agent.reserved_mem to less")
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
		out = append(out, give(nodePrefix+strconv.Itoa(n), n, share))
	}
	return out, nil
}

// total is the host's memory, or what the cgroup of a nested host leaves of it.
func total(sys, proc fs.FS) (int64, error) {
	all, err := info(proc)
	if err != nil {
		return 0, err
	}
	bytes := all["MemTotal"]
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

// info reads /proc/meminfo in bytes.
func info(proc fs.FS) (map[string]int64, error) {
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
