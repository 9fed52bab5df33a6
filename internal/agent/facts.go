package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/agent/device/cpu"
	"berth.dev/berth/internal/agent/device/mem"
	"berth.dev/berth/internal/agent/link"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
)

// facts keeps what is true of this node and tells when it changes.
type facts struct {
	rt      runtime.Runtime
	clock   chassis.Clock
	devices []alloc.Device
	fenced  func() []cluster.KernelID
	seen    func([]runtime.Image)
	mounts  *mount.Mounts
	data    *data.Port

	mu      sync.Mutex
	now     link.Facts
	engine  []string // warnings of the engine, when it last answered
	changed chan struct{}
	rescan  chan struct{}
}

// Devices finds the cores and the memory of this host.
func Devices(c Config) ([]alloc.Device, error) {
	sys, proc := os.DirFS("/sys"), os.DirFS("/proc")
	cores, err := cpu.Devices(sys, c.ReservedCPU)
	if err != nil {
		return nil, err
	}
	for i := range cores {
		cores[i].Capacity *= cluster.Amount(max(1, c.CPUOvercommit))
	}
	reserved := int64(c.ReservedMem)
	if reserved < 0 {
		info, err := mem.Info(proc)
		if err != nil {
			return nil, err
		}
		reserved = min(info["MemTotal"]/10, 512<<20)
	}
	memory, err := mem.Devices(sys, proc, reserved)
	if err != nil {
		return nil, err
	}
	return append(cores, memory...), nil
}

func newFacts(rt runtime.Runtime, clock chassis.Clock, devices []alloc.Device) *facts {
	f := &facts{rt: rt, clock: clock, devices: devices, changed: make(chan struct{}, 1), rescan: make(chan struct{}, 1)}
	host, _ := os.Hostname() // only shown
	f.now = link.Facts{Devices: devices, NodeFacts: cluster.NodeFacts{
		Architecture: architecture(goruntime.GOARCH), Hostname: host, Capacity: cluster.Slots{},
		SlotKinds:   map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
		EngineError: "the container engine has not answered yet", Revision: clock.Now().UnixMilli(),
	}}
	for _, d := range devices {
		if d.Healthy {
			f.now.Capacity[d.Slot] += d.Capacity
		}
		if _, ok := f.now.SlotKinds[d.Slot]; !ok {
			f.now.SlotKinds[d.Slot] = cluster.SlotCount
		}
	}
	return f
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

// look makes the next look at engine and images happen at once.
func (f *facts) look() {
	select {
	case f.rescan <- struct{}{}:
	default:
	}
}

const (
	lookWell = time.Minute
	lookSick = 2 * time.Second
)

// run looks at the engine until ctx ends: seldom while it is well, often while it is not.
func (f *facts) run(ctx context.Context) error {
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

// start says how apps are reached before anything else is known: an agent that comes back to an engine that hangs still leads
// to the apps that run.
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

// scan asks the engine; it reports whether the engine answered.
func (f *facts) scan(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	info, err := f.rt.Info(ctx)
	var images []runtime.Image
	if err == nil {
		if images, err = f.rt.Images(ctx); err == nil {
			f.seen(images)
		}
	}
	address, socket := f.ways(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.now
	if err != nil {
		next.EngineOK, next.EngineError = false, err.Error()
	} else {
		next.EngineOK, next.EngineError = true, ""
		next.Engine = fmt.Sprintf("%s %s, api %s, cgroup v%d", info.Name, info.Version, info.APIVersion, info.CgroupVersion)
		if info.Architecture != "" {
			next.Architecture = info.Architecture
		}
		f.engine = info.Warnings
		next.Images = imagesOf(images)
	}
	next.Warnings = slices.Clone(f.engine)
	for _, id := range f.fenced() {
		next.Warnings = append(next.Warnings, fmt.Sprintf("the container of kernel %s cannot be removed", id))
	}
	if f.mounts != nil {
		next.Warnings, next.HungVolumes = append(next.Warnings, f.mounts.Warnings()...), f.mounts.Hung()
	}
	next.DataAddress, next.DataSocket = address, socket
	if !sameFacts(f.now, next) {
		next.Revision++
		f.now = next
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
	return err == nil
}

func imagesOf(images []runtime.Image) []cluster.NodeImage {
	var out []cluster.NodeImage
	for _, img := range images {
		for _, ref := range img.References {
			out = append(out, cluster.NodeImage{Reference: ref, Digest: img.ID, Architecture: img.Architecture, SizeBytes: img.SizeBytes, Labels: img.Labels})
		}
	}
	slices.SortFunc(out, func(a, b cluster.NodeImage) int { return strings.Compare(a.Reference, b.Reference) })
	return out
}

func sameFacts(a, b link.Facts) bool {
	return a.EngineOK == b.EngineOK && a.DataAddress == b.DataAddress && a.DataSocket == b.DataSocket && a.EngineError == b.EngineError && a.Engine == b.Engine && a.Architecture == b.Architecture &&
		slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.HungVolumes, b.HungVolumes) && slices.EqualFunc(a.Images, b.Images, func(x, y cluster.NodeImage) bool {
		return x.Reference == y.Reference && x.Digest == y.Digest && x.SizeBytes == y.SizeBytes && x.Architecture == y.Architecture && maps.Equal(x.Labels, y.Labels)
	})
}
