package agent

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/mps"
	"berth.dev/berth/internal/agent/device/cuda/nvmlclient"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// openGPUs makes the driver of this host's NVIDIA GPUs. Where none are given out it still hides them from images. By itself it takes no
// slot that another driver fills: a machine that a file describes comes before what a look at this host would find.
func (a *Agent) openGPUs(others []device.Driver) (device.Driver, error) {
	c := a.c.CUDA
	if by, slot := filled(others, cuda.Fills); by != "" && c.Enabled == cuda.Auto {
		a.d.Log.Info("NVIDIA GPUs are not looked for: another device driver fills their slot", "part", "gpus", "driver", by, "slot", slot)
		return cuda.Shield{}, nil
	}
	if c.Enabled != cuda.Off && a.d.GPUs == nil {
		a.openHelper()
	}
	switch {
	case c.Enabled == cuda.Off:
		return cuda.Shield{}, nil
	case a.d.GPUs == nil && c.Enabled == cuda.On:
		return nil, fault.Invalidf("agent.cuda.enabled is %q, and the helper for NVIDIA GPUs is not there", cuda.On).
			WithNext("install berth-nvml beside this program, or set agent.cuda.enabled to %q", cuda.Auto)
	case a.d.GPUs == nil:
		return cuda.Shield{}, nil
	}
	shares, err := a.openShares()
	if err != nil {
		return nil, err
	}
	d, err := cuda.New(context.Background(), cuda.Options{
		Config: c, Source: a.d.GPUs, Shares: shares, Engine: a.d.Runtime.Info, Owner: a.ownerOf, Log: a.d.Log.With("part", "gpus"),
		Changed: func() { a.facts.lookAgain() },
	})
	if err != nil {
		return nil, err
	}
	a.gpus = d
	return d, nil
}

// filled finds the first driver that fills one of the slots.
func filled(drivers []device.Driver, one func(cluster.SlotName) bool) (driver string, slot cluster.SlotName) {
	for _, d := range drivers {
		for _, slot := range slices.Sorted(maps.Keys(d.Kinds())) {
			if one(slot) {
				return d.Name(), slot
			}
		}
	}
	return "", ""
}

// openHelper takes the helper program for NVIDIA GPUs where it is installed.
func (a *Agent) openHelper() {
	log := a.d.Log.With("part", "gpus")
	path, err := nvmlclient.Find()
	if err != nil {
		log.Debug("no NVIDIA GPUs are looked for", "err", err)
		return
	}
	client := nvmlclient.New(nvmlclient.Options{Path: path, Log: log, Clock: a.d.Clock})
	a.helper, a.d.GPUs = client, client
}

// openShares makes what runs the daemons of shared cards: where shares are offered, and where those of an earlier configuration are left.
func (a *Agent) openShares() (cuda.Shares, error) {
	dir := filepath.Join(a.c.CUDA.MPSDir, a.c.Scope())
	if _, err := os.Stat(dir); err != nil && !a.c.CUDA.Fractions {
		return nil, nil
	}
	return mps.New(mps.Options{Control: mps.Program{Path: a.c.CUDA.MPSControl}, Dir: dir, Owner: a.ownerOf, Log: a.d.Log.With("part", "mps")})
}

// maxCgroup bounds what is read of one process's control groups.
const maxCgroup = 64 << 10

// ownerOf says which kernel a process of this host belongs to.
func (a *Agent) ownerOf(pid int) (cluster.KernelID, bool) {
	if a.keeper == nil {
		return "", false // the first look, before there are kernels
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", false // it has ended
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	if err != nil {
		return "", false
	}
	return kernelOf(string(text), a.keeper.Running())
}

// kernelOf finds the kernel whose container the control groups of a process belong to. Engines write the container's id into the path, as a
// directory of its own or as "docker-ID.scope".
func kernelOf(cgroups string, running []keeper.Kernel) (cluster.KernelID, bool) {
	for _, k := range running {
		if id := k.Container.ID; len(id) >= 12 && strings.Contains(cgroups, id) {
			return k.ID, true
		}
	}
	return "", false
}
