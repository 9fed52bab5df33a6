// Package rocm is the device driver of AMD GPUs. It finds them as the kernel's compute driver (KFD) lists them in /sys, gives containers
// /dev/kfd and the render nodes of their GPUs with the groups that own these, and measures them by the files of the amdgpu driver. It needs
// neither a library of AMD nor a program.
package rocm

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/pci"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Name is the driver's name, Slot the slot that it fills.
const (
	Name = "rocm"
	Slot = cluster.SlotName("rocm.device")
)

// controlFile is the device file that every program which computes on AMD GPUs opens.
const controlFile = "/dev/kfd"

// maxGPUs bounds what one host may have.
const maxGPUs = 256

// Options say what the driver looks at.
type Options struct {
	// Sys is the file system of /sys.
	Sys fs.FS
	// Owner returns the number of the group that owns a device file; nil looks.
	Owner func(path string) (gid int, err error)
}

// Driver gives out AMD GPUs.
type Driver struct {
	o Options
	// Looks and samples read files of a driver whose hardware may not answer.
	looks, samples device.Guard

	mu    sync.Mutex
	found map[string]unit // by the newest look; never changed in place
}

// unit is one GPU, or one partition of it, as the newest look saw it.
type unit struct {
	device device.Device
	dir    string // of the card below /sys
	grant  device.Grant
	// alone says that no other unit is a part of the same card, so that what the card tells is of this one.
	alone bool
}

var _ device.Driver = (*Driver)(nil)

// New returns the driver; nothing is looked at yet.
func New(o Options) *Driver {
	if o.Owner == nil {
		o.Owner = owner
	}
	return &Driver{o: o, looks: device.NewGuard(), samples: device.NewGuard()}
}

// owner reads the group of a device file.
func owner(path string) (int, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&os.ModeDevice == 0 {
		return 0, fault.Invalidf("%s is no device file", path)
	}
	return int(sys.Gid), nil
}

// Present reports whether a host has AMD GPUs that compute.
func Present(sys fs.FS) bool {
	nodes, err := readNodes(sys)
	return err == nil && slices.ContainsFunc(nodes, node.isGPU)
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Kinds returns the one slot of this driver.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{Slot: cluster.SlotCount}
}

// Discover returns the GPUs that KFD lists, in the order of its nodes.
func (d *Driver) Discover(ctx context.Context) ([]device.Device, error) {
	return device.Guarded(ctx, d.looks, d.look)
}

func (d *Driver) look() ([]device.Device, error) {
	nodes, err := readNodes(d.o.Sys)
	if err != nil {
		return nil, fault.Unavailablef("the GPUs of AMD cannot be listed").WithCause(err).
			WithNext("load the kernel's driver amdgpu, or set agent.rocm to \"off\"")
	}
	gpus := slices.DeleteFunc(nodes, func(n node) bool { return !n.isGPU() })
	if len(gpus) > maxGPUs {
		return nil, fault.Invalidf("KFD lists %d GPUs, at most %d can be used", len(gpus), maxGPUs)
	}
	ids := idsOf(d.o.Sys, gpus)
	ways, cards := make([]pci.Way, len(gpus)), map[string]int{}
	for i, n := range gpus {
		ways[i] = pci.WayTo(d.o.Sys, n.pci)
		cards[n.pci]++
	}
	units := make([]unit, len(gpus))
	for i, n := range gpus {
		units[i] = d.unit(n, ids[i])
		units[i].alone = cards[n.pci] == 1
	}
	for i, n := range gpus {
		for j, m := range gpus {
			if i == j {
				continue
			}
			if class := between(n, m, units[i].device.NUMA, units[j].device.NUMA, ways[i], ways[j]); class > 0 {
				if units[i].device.Links == nil {
					units[i].device.Links = map[string]int{}
				}
				units[i].device.Links[ids[j]] = class
			}
		}
	}
	found, out := make(map[string]unit, len(units)), make([]device.Device, 0, len(units))
	for _, u := range units {
		found[u.device.ID] = u
		shown := u.device
		shown.Links = maps.Clone(shown.Links)
		out = append(out, shown)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = found
	return out, nil
}

// between is the distance class of two GPUs; both ends find the same.
func between(a, b node, numaA, numaB int, wayA, wayB pci.Way) int {
	switch {
	case a.pci != "" && a.pci == b.pci:
		return alloc.DistanceSibling
	case a.xgmi[b.number] || b.xgmi[a.number]:
		return alloc.DistanceFast
	case pci.Class(wayA, wayB) > 0:
		return pci.Class(wayA, wayB)
	case numaA >= 0 && numaA == numaB:
		return alloc.DistanceNode
	case numaA >= 0 && numaB >= 0:
		return alloc.DistanceFar
	}
	return 0
}

var uniqueID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// idsOf names GPUs by the unique number of their hardware, as AMD's programs do, else by their PCI address. Partitions of one card share
// both and get the number of their render node besides.
func idsOf(sys fs.FS, gpus []node) []string {
	out, times := make([]string, len(gpus)), map[string]int{}
	for i, n := range gpus {
		out[i] = n.pci
		if n.unique != 0 {
			out[i] = fmt.Sprintf("GPU-%016x", n.unique)
		} else if text, err := pci.Line(sys, pci.Dir(n.pci)+"/unique_id"); err == nil && uniqueID.MatchString(text) {
			out[i] = "GPU-" + text
		}
		times[out[i]]++
	}
	for i, n := range gpus {
		if times[out[i]] > 1 {
			out[i] = fmt.Sprintf("%s:%d", out[i], n.render)
		}
	}
	return out
}

// unit collects what is known of one GPU.
func (d *Driver) unit(n node, id string) unit {
	dir := pci.Dir(n.pci)
	out := unit{dir: dir, device: device.Device{Memory: n.memory, Device: alloc.Device{
		Slot: Slot, ID: id, NUMA: pci.NUMA(d.o.Sys, dir), PCI: n.pci, Model: n.model, Capacity: cluster.Whole(1)}}}
	if product, err := pci.Line(d.o.Sys, path.Join(dir, "product_name")); err == nil && product != "" {
		out.device.Model = product
	}
	if total, ok := number(d.o.Sys, path.Join(dir, "mem_info_vram_total")); ok && n.memory == 0 {
		out.device.Memory = int64(total)
	}
	render := fmt.Sprintf("/dev/dri/renderD%d", n.render)
	out.device.Problem = d.problem(n, dir)
	for _, file := range []string{controlFile, render} {
		gid, err := d.o.Owner(file)
		if err != nil && out.device.Problem == "" {
			out.device.Problem = fmt.Sprintf("the device file %s is not on this host", file)
		}
		if gid > 0 {
			out.grant.Groups = append(out.grant.Groups, gid)
		}
		out.grant.Nodes = append(out.grant.Nodes, runtime.DeviceNode{Source: file, Target: file, Permissions: "rw"})
	}
	out.device.Healthy = out.device.Problem == ""
	return out
}

// problem says why a GPU does not work: it has no render node, does not answer, or its memory lost data since its driver was loaded.
func (d *Driver) problem(n node, dir string) string {
	if n.render <= 0 {
		return "it has no render node"
	}
	if _, err := fs.Stat(d.o.Sys, dir); n.pci == "" || err != nil {
		return "it is not on the PCI bus any more"
	}
	if _, err := fs.ReadFile(d.o.Sys, path.Join(dir, "unique_id")); err != nil && !isAbsent(err) {
		return "its unique number cannot be read, so the card does not answer"
	}
	entries, err := fs.ReadDir(d.o.Sys, path.Join(dir, "ras"))
	if err != nil {
		return "" // cards without error counters
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_err_count") {
			continue
		}
		if lost := uncorrectable(d.o.Sys, path.Join(dir, "ras", e.Name())); lost > 0 {
			return fmt.Sprintf("it counts %d errors that could not be corrected (ras/%s): reset the card or start the host anew", lost, e.Name())
		}
	}
	return ""
}

// Grant gives the control file, the render nodes of the chosen GPUs, and the groups that own them.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	if len(a[Slot]) == 0 {
		return device.Grant{}, nil
	}
	d.mu.Lock()
	found := d.found
	d.mu.Unlock()
	var out device.Grant
	for _, id := range slices.Sorted(maps.Keys(a[Slot])) {
		u, ok := found[id]
		if !ok {
			return device.Grant{}, fault.Invalidf("%q is not a device of slot %s", id, Slot).WithReason(device.ReasonGrant)
		}
		if amount := a[Slot][id]; amount <= 0 || amount > u.device.Capacity {
			return device.Grant{}, fault.Invalidf("%s of device %s cannot be given", amount, id).WithReason(device.ReasonGrant)
		}
		for _, n := range u.grant.Nodes {
			if !slices.Contains(out.Nodes, n) {
				out.Nodes = append(out.Nodes, n)
			}
		}
		out.Groups = append(out.Groups, u.grant.Groups...)
	}
	slices.Sort(out.Groups)
	out.Groups = slices.Compact(out.Groups)
	return out, nil
}

// Sample tells rocm_util (percent), rocm_mem and rocm_mem_total (bytes), rocm_power (watts) and rocm_temperature (degrees Celsius) of each
// GPU that works, and of the kernels that hold some. Of parts of one card only their memory is known.
func (d *Driver) Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	return device.Guarded(ctx, d.samples, func() (device.Usage, error) { return d.sample(held), nil })
}

func (d *Driver) sample(held map[cluster.KernelID]alloc.Allocation) device.Usage {
	d.mu.Lock()
	found := d.found
	d.mu.Unlock()
	out := device.NewUsage()
	for id, u := range found {
		if !u.device.Healthy {
			continue // unknown
		}
		values := map[string]float64{}
		if u.device.Memory > 0 {
			values["rocm_mem_total"] = float64(u.device.Memory)
		}
		if u.alone {
			maps.Copy(values, measure(d.o.Sys, u.dir))
		}
		out.Devices[device.Ref{Slot: Slot, ID: id}] = values
	}
	for kernel, a := range held {
		sum := map[string]float64{}
		for id, amount := range a[Slot] {
			if amount <= 0 {
				continue
			}
			for name, v := range out.Devices[device.Ref{Slot: Slot, ID: id}] {
				if name == "rocm_temperature" {
					sum[name] = max(sum[name], v)
				} else {
					sum[name] += v
				}
			}
		}
		if len(sum) > 0 {
			out.Kernels[kernel] = sum
		}
	}
	return out
}
