package cuda

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

var architecture = goruntime.GOARCH

// pipeDir is where a container with shares finds the sockets of MPS.
const pipeDir = "/run/berth-mps"

// hidden are the variables of a container without GPUs. An engine whose default runtime is NVIDIA's gives a container whatever
// NVIDIA_VISIBLE_DEVICES names, and many images set it to "all"; "void" is nothing.
func hidden() map[string]string {
	return map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
}

// chosen is what an allocation takes of this driver's slots.
type chosen struct {
	cards     []string // whole
	instances []string
	limits    map[string]Limit // of shares, by card
}

// all are the ids in the order of the host: cards, then instances.
func (x chosen) all(m machine) []string {
	out := append(slices.Clone(x.cards), sorted(x.limits)...)
	slices.SortFunc(out, func(a, b string) int { return m.cards[a].index - m.cards[b].index })
	return append(out, x.instances...)
}

// choose checks an allocation against what is there.
func choose(v view, c Config, kinds map[cluster.SlotName]cluster.SlotKind, a alloc.Allocation) (chosen, error) {
	out := chosen{limits: map[string]Limit{}}
	m := v.machine
	taken := map[string]cluster.SlotName{}
	for _, slot := range sorted(kinds) {
		for _, id := range sorted(a[slot]) {
			amount := a[slot][id]
			unknown := false
			switch slot {
			case SlotDevice, SlotShares:
				unknown = !slices.Contains(m.order, id)
			default:
				unknown = !slices.Contains(m.offered, id) || SlotMIG(m.instances[id].Profile) != slot
			}
			if unknown {
				return out, fault.Invalidf("%q is not a device of slot %s", id, slot).WithReason(device.ReasonGrant)
			}
			if amount <= 0 || amount > cluster.Milli || amount != cluster.Milli && slot != SlotShares {
				return out, fault.Invalidf("%s of %s device %s cannot be given", amount, slot, id).WithReason(device.ReasonGrant)
			}
			if other, twice := taken[id]; twice {
				return out, fault.Conflictf("GPU %s is to be given as %s and as %s at once", id, other, slot).WithReason(device.ReasonGrant)
			}
			taken[id] = slot
			switch slot {
			case SlotDevice:
				out.cards = append(out.cards, id)
			case SlotShares:
				out.limits[id] = limitOf(m.cards[id].Memory, int64(c.Reserve), amount)
			default:
				out.instances = append(out.instances, id)
			}
		}
	}
	if len(out.limits) > 0 && len(taken) > len(out.limits) {
		return out, fault.Conflictf("a kernel cannot have shares of a GPU and other GPUs: a program uses either MPS or none").
			WithReason(device.ReasonGrant).WithNext("ask for cuda.shares alone; one share is a whole card")
	}
	return out, nil
}

// grantOf is pure. dir names the directory of MPS for some cards; nil where there is no MPS.
func grantOf(v view, c Config, kinds map[cluster.SlotName]cluster.SlotKind, a alloc.Allocation,
	dir func([]string) string) (device.Grant, error) {
	x, err := choose(v, c, kinds, a)
	if err != nil {
		return device.Grant{}, err
	}
	m, how := v.machine, v.method
	out := device.Grant{Env: hidden()}
	ids := x.all(m)
	if len(ids) == 0 {
		return out, nil
	}
	var global, visible []string
	for i, id := range ids {
		if g, card := m.cards[id]; card {
			global = append(global, fmt.Sprintf("%d:%d", i, g.index))
		}
		visible = append(visible, strconv.Itoa(i))
	}
	if len(x.instances) > 0 || len(x.limits) > 0 {
		visible = ids // the order of instances, and that in which limits are counted, is not left to the driver
	}
	out.Env["CUDA_VISIBLE_DEVICES"] = strings.Join(visible, ",")
	out.Env["CUDA_RESOURCE_VIRTUALIZED"] = "0"
	if len(global) > 0 {
		out.Env["CUDA_GLOBAL_DEVICE_IDS"] = strings.Join(global, ",")
	}
	if err := how.give(m, ids, &out); err != nil {
		return device.Grant{}, err
	}
	if len(x.limits) > 0 {
		if v.withheld != "" {
			return device.Grant{}, fault.Conflictf("shares of GPU %s are not given out: %s", ids[0], v.withheld).WithReason(device.ReasonGrant)
		}
		share(v.rung, ids, x.limits, dir, &out)
	}
	return out, nil
}

// give adds the devices by the method of this host.
func (how method) give(m machine, ids []string, out *device.Grant) error {
	if how.kind != "" {
		for _, id := range ids {
			out.CDI = append(out.CDI, how.kind+"="+id)
		}
		return nil
	}
	paths := slices.Clone(how.control)
	for _, id := range ids {
		list, err := nodesOf(m, how, id)
		if err != nil {
			return err
		}
		for _, p := range list {
			if !slices.Contains(paths, p) {
				paths = append(paths, p)
			}
		}
	}
	for _, p := range paths {
		out.Nodes = append(out.Nodes, runtime.DeviceNode{Source: p, Target: p, Permissions: "rw"})
	}
	out.Mounts = slices.Clone(how.libraries)
	return nil
}

// share adds what holds the limits of shares, and replaces what an image says of them.
func share(rung cluster.Isolation, ids []string, limits map[string]Limit, dir func([]string) string, out *device.Grant) {
	out.Env["CUDA_RESOURCE_VIRTUALIZED"] = "1"
	if !rung.AtLeast(Cooperative) || dir == nil {
		return
	}
	var memory []string
	percent, least := int64(1), limits[ids[0]].MemoryMiB
	for i, id := range ids {
		l := limits[id]
		memory = append(memory, fmt.Sprintf("%d=%dM", i, l.MemoryMiB))
		percent, least = max(percent, l.Percent()), min(least, l.MemoryMiB)
	}
	out.Mounts = append(out.Mounts, runtime.Mount{Source: dir(ids), Target: pipeDir, ReadOnly: true})
	out.Env["CUDA_MPS_PIPE_DIRECTORY"] = pipeDir
	out.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = strings.Join(memory, ",")
	out.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.FormatInt(percent, 10)
	out.Env["TF_MIN_GPU_MULTIPROCESSOR_COUNT"] = "4" // TensorFlow leaves smaller GPUs alone otherwise
	if rung == ByDriver {
		out.Env["NVIDIA_GPU_MEMORY_LIMIT"] = strconv.FormatInt(least, 10)
		out.Env["NVIDIA_GPU_MEMORY_REQUEST"] = strconv.FormatInt(least, 10)
	}
}
