package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/agent/confine"
	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cdi"
	"berth.dev/berth/internal/agent/device/cpu"
	"berth.dev/berth/internal/agent/device/mem"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/agent/device/rocm"
	"berth.dev/berth/internal/agent/kernellog"
	"berth.dev/berth/internal/agent/link"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
)

// facts holds the description of this node that is sent to the manager, and signals when it changes.
type facts struct {
	rt      runtime.Runtime
	clock   chassis.Clock
	devices *device.Inventory
	// interval is the time between two looks for devices.
	interval time.Duration
	// again asks for a look before its time.
	again  chan struct{}
	log    *slog.Logger
	fenced func() []cluster.KernelID
	seen   func([]runtime.Image)
	// imports is told of the images before the manager is; nil on agents whose engine is not the manager's own.
	imports func(context.Context, []cluster.NodeImage) error
	mounts  *mount.Mounts
	groups  *confine.Maker
	disks   func() (problem string, warnings []string)
	users   func() []string // which kernels share a user number, and why
	data    *data.Port
	network *network.Network // nil: there is none of ours

	skews     skews
	kernelLog kernellog.Log

	imported []cluster.NodeImage // by the last scan that could; scans come one after the other

	// engineCDI is told where the engine reads specifications of devices.
	engineCDI *engineCDI

	mu      sync.Mutex
	now     link.Facts
	engine  []string // warnings of the engine, when it last answered
	changed chan struct{}
	rescan  chan struct{}
}

// engineCDI is where the engine reads specifications of the Container Device Interface, as it last said. It keeps what it knows while the
// engine does not answer.
type engineCDI struct{ dirs atomic.Pointer[[]string] }

func (e *engineCDI) get() []string {
	if dirs := e.dirs.Load(); dirs != nil {
		return *dirs
	}
	return nil
}

// set reports whether it is something new.
func (e *engineCDI) set(dirs []string) bool {
	old := e.get()
	e.dirs.Store(&dirs)
	return !slices.Equal(old, dirs)
}

// drivers are the device drivers of this host but that of NVIDIA GPUs, which looks at what these fill (openGPUs).
func drivers(c Config, clock chassis.Clock, engine *engineCDI) ([]device.Driver, error) {
	sys, proc := os.DirFS("/sys"), os.DirFS("/proc")
	out := []device.Driver{
		cpu.New(cpu.Options{Sys: sys, Proc: proc, Reserved: c.ReservedCPU, Overcommit: c.CPUOvercommit}),
		mem.New(mem.Options{Sys: sys, Proc: proc, Reserved: int64(c.ReservedMem)}),
	}
	if c.MockDevices != "" {
		machine, err := mock.Read(c.MockDevices)
		if err != nil {
			return nil, err
		}
		d, err := mock.New(machine, clock.Now)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	if c.ROCm == ROCmOn || c.ROCm == ROCmAuto && rocm.Present(sys) {
		out = append(out, rocm.New(rocm.Options{Sys: sys}))
	}
	classes, err := cdi.Read(c.CDIDevices)
	if err != nil {
		return nil, err
	}
	for _, class := range classes {
		d, err := cdi.New(class, cdi.Options{Sys: sys, EngineDirs: engine.get, Now: clock.Now})
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func newFacts(rt runtime.Runtime, clock chassis.Clock, log *slog.Logger, devices *device.Inventory) *facts {
	f := &facts{rt: rt, clock: clock, log: log, devices: devices, changed: make(chan struct{}, 1), rescan: make(chan struct{}, 1),
		again: make(chan struct{}, 1), engineCDI: &engineCDI{}}
	host, _ := os.Hostname() // only shown
	f.now = link.Facts{NodeFacts: cluster.NodeFacts{
		Architecture: architecture(goruntime.GOARCH), Hostname: host, SlotKinds: devices.Kinds(),
		EngineError: "the container engine has not answered yet", Revision: clock.Now().UnixMilli(),
	}}
	f.now.Devices, f.now.Capacity = f.found()
	return f
}

// found returns all devices, and per slot the sum of the capacities of the healthy ones.
func (f *facts) found() ([]link.Device, cluster.Slots) {
	var devices []link.Device
	capacity := cluster.Slots{}
	for _, d := range f.devices.Devices() {
		capacity[d.Slot] += 0 // a slot of which every device is broken is reported with zero
		if d.Healthy {
			capacity[d.Slot] += d.Capacity
		}
		devices = append(devices, link.Device{Device: d.Device, Memory: d.Memory, Problem: d.Problem})
	}
	return devices, capacity
}

// architecture gives the wire's name of a Go architecture.
func architecture(goarch string) string {
	switch goarch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return goarch
}

func (f *facts) get() link.Facts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// look starts the next scan at once.
func (f *facts) look() {
	select {
	case f.rescan <- struct{}{}:
	default:
	}
}

// lookAgain starts the next look for devices at once.
func (f *facts) lookAgain() {
	select {
	case f.again <- struct{}{}:
	default:
	}
}

const (
	lookWell = time.Minute
	lookSick = 2 * time.Second
)

// watchDevices discovers devices at an interval until ctx ends, and starts a scan when something has changed. From then on
// a broken or vanished device is given to no other kernel. Kernels that hold it keep it.
func (f *facts) watchDevices(ctx context.Context) error {
	tick := f.clock.NewTicker(f.interval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		case <-f.again:
		}
		changed, err := f.devices.Refresh(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if (err != nil) != failing {
			failing = err != nil
			f.log.Warn("the devices of this host were looked for", "failing", failing, "err", err)
		}
		if changed {
			f.log.Info("the devices of this host have changed", "warnings", f.devices.Warnings())
			f.look()
		}
	}
}

// run scans until ctx ends: once a minute while the engine answers, every two seconds while it does not.
func (f *facts) run(ctx context.Context) error {
	defer f.kernelLog.Close()
	for {
		wait := lookSick
		if f.scan(ctx) {
			wait = lookWell
		}
		t := f.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C():
		case <-f.rescan:
		}
		t.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// start fills in the addresses of the data port before the first scan: after a restart of the agent the apps of running
// kernels are reachable even if the engine hangs.
func (f *facts) start(ctx context.Context) error {
	address, socket := f.ways(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now.DataAddress, f.now.DataSocket = address, socket
	return nil
}

func (f *facts) ways(ctx context.Context) (address, socket string) {
	if f.data == nil {
		return "", ""
	}
	return f.data.Address(ctx), f.data.Socket()
}

// scan collects the facts anew and reports whether the engine can run sessions and its images were passed on.
func (f *facts) scan(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	info, err := f.rt.Info(ctx)
	if err == nil && f.engineCDI.set(info.CDI) {
		f.lookAgain()
	}
	var images []runtime.Image
	brought := true
	if err == nil {
		if images, err = f.rt.Images(ctx); err == nil {
			f.seen(images)
			brought = f.bring(ctx, imagesOf(images))
		}
	}
	answered := err == nil
	h := health{engine: err, log: f.kernelLog.Look(f.clock.Now())}
	if f.network != nil && err == nil {
		err = f.network.Problem() // an agent whose sessions cannot be connected takes none
		h.network = err
	}
	if f.network != nil {
		h.unguarded = f.network.Warnings()
	}
	h.skew, h.known = f.skews.now()
	address, socket := f.ways(ctx)
	devices, capacity := f.found()
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.now
	next.Devices, next.Capacity = devices, capacity
	next.EngineOK, next.EngineError = err == nil, ""
	if err != nil {
		next.EngineError = err.Error()
	}
	if answered {
		next.Engine = fmt.Sprintf("%s %s, api %s, cgroup v%d", info.Name, info.Version, info.APIVersion, info.CgroupVersion)
		if info.Architecture != "" {
			next.Architecture = info.Architecture
		}
		f.engine = info.Warnings
		next.Images = imagesOf(images)
	}
	next.Warnings = append(slices.Clone(f.engine), f.devices.Warnings()...)
	for _, id := range f.fenced() {
		next.Warnings = append(next.Warnings, fmt.Sprintf("the container of kernel %s cannot be removed", id))
	}
	if f.mounts != nil {
		next.Warnings, next.HungVolumes = append(next.Warnings, f.mounts.Warnings()...), f.mounts.Hung()
	}
	if f.users != nil {
		next.Warnings = append(next.Warnings, f.users()...)
	}
	if f.groups != nil {
		next.Warnings = append(next.Warnings, f.groups.Warnings()...)
	}
	if f.disks != nil {
		problem, warnings := f.disks()
		next.DiskProblem, next.Warnings = problem, append(next.Warnings, warnings...)
	}
	h.disk, h.hung = next.DiskProblem, next.HungVolumes
	next.Conditions = cluster.KeepSince(f.now.Conditions, conditionsOf(h), f.clock.Now())
	next.DataAddress, next.DataSocket = address, socket
	next.TunnelProblem = "its runtime connects the containers"
	if f.network != nil {
		next.NetworkAddress = f.network.Address()
		next.TunnelKey, next.TunnelPort, next.TunnelProblem = f.network.Tunnel()
	}
	if !sameFacts(f.now, next) {
		next.Revision++
		f.now = next
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
	return err == nil && brought
}

// bring passes on the images when they have changed. What fails is tried again with the next scan, soon.
func (f *facts) bring(ctx context.Context, images []cluster.NodeImage) bool {
	if f.imports == nil || slices.EqualFunc(f.imported, images, sameImage) {
		return true
	}
	if err := f.imports(ctx, images); err != nil {
		f.log.Warn("could not take the images of this engine into the catalogue", "err", err)
		return false
	}
	f.imported = images
	return true
}

func sameImage(x, y cluster.NodeImage) bool {
	return x.Reference == y.Reference && x.Digest == y.Digest && x.SizeBytes == y.SizeBytes && x.Architecture == y.Architecture &&
		maps.Equal(x.Labels, y.Labels)
}

func imagesOf(images []runtime.Image) []cluster.NodeImage {
	var out []cluster.NodeImage
	for _, img := range images {
		for _, ref := range img.References {
			out = append(out, cluster.NodeImage{Reference: ref, Digest: img.ID, Architecture: img.Architecture, SizeBytes: img.SizeBytes,
				Labels: img.Labels})
		}
	}
	slices.SortFunc(out, func(a, b cluster.NodeImage) int { return strings.Compare(a.Reference, b.Reference) })
	return out
}

// sameFacts compares what scan may change.
func sameFacts(a, b link.Facts) bool {
	sameDevice := func(x, y link.Device) bool {
		return device.Device{Device: x.Device, Memory: x.Memory, Problem: x.Problem}.Equal(
			device.Device{Device: y.Device, Memory: y.Memory, Problem: y.Problem})
	}
	return a.EngineOK == b.EngineOK && a.EngineError == b.EngineError && a.Engine == b.Engine && a.Architecture == b.Architecture &&
		a.DiskProblem == b.DiskProblem && sameConditions(a.Conditions, b.Conditions) &&
		a.DataAddress == b.DataAddress && a.DataSocket == b.DataSocket && a.NetworkAddress == b.NetworkAddress &&
		a.TunnelKey == b.TunnelKey && a.TunnelPort == b.TunnelPort && a.TunnelProblem == b.TunnelProblem &&
		maps.Equal(a.Capacity, b.Capacity) &&
		slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.HungVolumes, b.HungVolumes) &&
		slices.EqualFunc(a.Devices, b.Devices, sameDevice) && slices.EqualFunc(a.Images, b.Images, sameImage)
}
