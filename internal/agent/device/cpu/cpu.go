// Package cpu is the device driver of cores: it finds them with their NUMA nodes and siblings, pins containers to them and
// measures how busy the host is. Package alloc chooses which cores a kernel gets.
package cpu

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// Name is the driver's name.
const Name = "cpu"

// Options say what the driver looks at. The zero value of Usable and Overcommit means this process's cores, each once.
type Options struct {
	// Sys and Proc are the file systems of /sys and /proc.
	Sys, Proc fs.FS
	// Usable lists the cores that may be used; nil means those that this process may run on.
	Usable func() ([]int, error)
	// Reserved cores are kept for the host.
	Reserved int
	// Overcommit is how many sessions' cores one core stands for.
	Overcommit int
}

// Driver gives cores to containers.
type Driver struct{ o Options }

var _ device.Driver = (*Driver)(nil)

// New returns the driver; nothing is looked at yet.
func New(o Options) *Driver {
	if o.Usable == nil {
		o.Usable = affinity
	}
	o.Overcommit = max(1, o.Overcommit)
	return &Driver{o}
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Kinds returns the one slot of this driver.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount}
}

// Discover returns one device per logical core that may be used, without the first reserved cores.
func (d *Driver) Discover(context.Context) ([]device.Device, error) {
	usable, err := d.o.Usable()
	if err != nil {
		return nil, err
	}
	cores, err := devices(d.o.Sys, usable, d.o.Reserved)
	if err != nil {
		return nil, err
	}
	out := make([]device.Device, len(cores))
	for i, c := range cores {
		c.Capacity *= cluster.Amount(d.o.Overcommit)
		out[i] = device.Device{Device: c}
	}
	return out, nil
}

// Grant pins the container to its cores.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	var out device.Grant
	for id, amount := range a[cluster.SlotCPU] {
		n, err := strconv.Atoi(id)
		if err != nil || n < 0 || strconv.Itoa(n) != id {
			return device.Grant{}, fault.Invalidf("%q is not the number of a core", id).WithReason(device.ReasonGrant)
		}
		if amount <= 0 {
			return device.Grant{}, fault.Invalidf("%s of core %s cannot be given", amount, id).WithReason(device.ReasonGrant)
		}
		out.CPUSet = append(out.CPUSet, n)
	}
	slices.Sort(out.CPUSet)
	return out, nil
}

// Sample tells how long the host's cores were busy since its start, and how many cores each kernel has.
func (d *Driver) Sample(_ context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	out := device.NewUsage()
	if b, err := fs.ReadFile(d.o.Proc, "stat"); err == nil {
		if busy, ok := busyMS(string(b)); ok {
			out.Node[node.MetricCPUUsed] = busy
		}
	}
	for id, a := range held {
		if cores := a.Totals()[cluster.SlotCPU].Units(); cores > 0 {
			out.Kernels[id] = map[string]float64{node.MetricCores: float64(cores)}
		}
	}
	return out, nil
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
		return nil, fault.Invalidf("%d cores are reserved, this host has %d", reserved, len(out)).
			WithNext("set agent.reserved_cpu to less")
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

// busyMS reads the milliseconds that all cores together were busy from /proc/stat.
func busyMS(stat string) (float64, bool) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, false
	}
	var busy float64
	for i, text := range f[1:min(len(f), 9)] {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 { // idle, iowait
			busy += v
		}
	}
	const tick = 10 // ms; USER_HZ is 100 on every Linux that Go runs on
	return busy * tick, true
}
