package keeper_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/devicetest"
	hostfake "berth.dev/berth/internal/agent/host/fake"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
)

const (
	scope = "scope"
	agent = cluster.AgentID("i-test")
	image = "berth/python:latest"
)

// disk is a ledger on a disk that may be full.
type disk struct {
	*ledger.Ledger
	full *atomic.Bool
}

func (d disk) Put(r *ledger.Record) error {
	if d.full.Load() {
		return unix.ENOSPC
	}
	return d.Ledger.Put(r)
}

func (d disk) Delete(id cluster.KernelID) error {
	if d.full.Load() {
		return unix.ENOSPC
	}
	return d.Ledger.Delete(id)
}

// rig is an engine and a state directory that outlive agents, and one agent at a time.
type rig struct {
	network keeper.Network
	t       testing.TB
	dir     string
	engine  *fake.Engine
	times   keeper.Times
	before  func(ctx context.Context, kernel cluster.KernelID, point string) error
	cores   int
	// drivers are those of other devices than cores and memory; devices is what all of them found.
	drivers []device.Driver
	devices *device.Inventory
	wrap    func(runtime.Runtime) runtime.Runtime
	host    *hostfake.Host
	users   keeper.Users
	ports   cluster.PortRange
	// portFree is nil where nothing but kernels listens.
	portFree func(int) bool

	ledger *ledger.Ledger
	full   atomic.Bool // the ledger cannot be written
	keeper *keeper.Keeper
	stop   context.CancelFunc
	group  sync.WaitGroup

	mu   sync.Mutex
	seen map[cluster.KernelID]cluster.KernelObservation
	path map[cluster.KernelID][]string // of phases
	news chan struct{}
	rev  int64
}

func newRig(t testing.TB) *rig {
	r := &rig{
		t: t, dir: t.TempDir(), engine: fake.NewEngine(fake.Options{}), cores: 8, news: make(chan struct{}),
		times: keeper.Times{Sweep: 20 * time.Millisecond, Start: time.Minute, Create: time.Minute},
		seen:  map[cluster.KernelID]cluster.KernelObservation{}, path: map[cluster.KernelID][]string{},
	}
	t.Cleanup(r.engine.Close)
	t.Cleanup(func() { r.kill() })
	r.host = hostfake.New(filepath.Join(r.dir, "kernels"), r.engine.Runtime(scope, agent).DialRunner)
	r.engine.AddImage(runtime.Image{References: []string{image}}, map[string][]byte{
		"/etc/passwd": []byte("root:x:0:0:root:/root:/bin/bash\nnode:x:9001:9001::/home/node:/bin/sh\n"),
		"/etc/group":  []byte("root:x:0:\nvideo:x:44:\n"),
	})
	return r
}

// start begins a new agent on the old state.
func (r *rig) start() {
	r.t.Helper()
	var err error
	r.ledger, err = ledger.Open(filepath.Join(r.dir, "ledger.db"))
	require.NoError(r.t, err)
	devices, err := device.NewInventory(append(devicetest.Host(r.cores, 64<<30), r.drivers...)...)
	require.NoError(r.t, err)
	_, err = devices.Refresh(r.t.Context())
	require.NoError(r.t, err)
	r.devices = devices
	var rt runtime.Runtime = r.engine.Runtime(scope, agent)
	if r.wrap != nil {
		rt = r.wrap(rt)
	}
	r.keeper, err = keeper.New(keeper.Options{
		Agent: agent, Scope: scope, Runtime: rt, Ledger: disk{r.ledger, &r.full}, Host: r.host, Devices: devices,
		Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock(), LogDir: filepath.Join(r.dir, "logs"), UID: 9001, GID: 9001,
		Users: r.users, HostPorts: r.ports, PortFree: r.portFree,
		Times: r.times, Before: r.before, Network: r.network,
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	k := r.keeper
	r.group.Go(func() { _ = k.Run(ctx) })
	r.group.Go(func() { // the manager's ear
		r.note(k.TakeAll())
		for {
			select {
			case <-ctx.Done():
				return
			case <-k.Changed():
				changed, _ := k.TakeChanges(1000)
				r.note(changed)
			}
		}
	})
}

func (r *rig) note(list []cluster.KernelObservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range list {
		r.seen[o.Kernel] = o
		step := fmt.Sprint(o.Generation, " ", o.Phase.Status())
		if o.Phase == cluster.PhaseEnded {
			step = fmt.Sprint(o.Generation, " ENDED ", o.Reason)
		}
		if p := r.path[o.Kernel]; len(p) == 0 || p[len(p)-1] != step {
			r.path[o.Kernel] = append(p, step)
		}
	}
	close(r.news)
	r.news = make(chan struct{})
}

// kill ends the agent without asking its kernels.
func (r *rig) kill() {
	if r.stop == nil {
		return
	}
	r.stop()
	r.group.Wait()
	_ = r.ledger.Close()
	r.stop = nil
}

func (r *rig) want(full bool, kernels ...cluster.DesiredKernel) {
	r.mu.Lock()
	r.rev++
	rev := r.rev
	r.mu.Unlock()
	r.keeper.SetDesired(full, rev, kernels)
}

// await waits until a kernel was reported in a state.
func (r *rig) await(id cluster.KernelID, what string, ok func(cluster.KernelObservation) bool) cluster.KernelObservation {
	r.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		r.mu.Lock()
		o, known := r.seen[id]
		news := r.news
		r.mu.Unlock()
		if known && ok(o) {
			return o
		}
		select {
		case <-news:
		case <-limit:
			r.t.Fatalf("kernel %s never was %s; it went %v and is %+v", id, what, r.path[id], o)
		}
	}
}

func (r *rig) awaitPhase(id cluster.KernelID, generation int64, p cluster.Phase) cluster.KernelObservation {
	r.t.Helper()
	return r.await(id, string(p.Status()), func(o cluster.KernelObservation) bool { return o.Generation == generation && o.Phase == p })
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, time.Minute, 2*time.Millisecond, what)
}

// gone waits until nothing of a kernel is left on the host.
func (r *rig) gone(id cluster.KernelID) {
	r.t.Helper()
	r.eventually("something of kernel "+string(id)+" is left", func() bool {
		_, known := r.keeper.Find(id)
		dirs, _ := filepath.Glob(filepath.Join(r.dir, "kernels", string(id)))
		logs, _ := filepath.Glob(filepath.Join(r.dir, "logs", string(id)+"*"))
		return !known && len(dirs) == 0 && len(logs) == 0 && len(r.ledger.Records()) == 0 && r.engine.Count() == 0 && r.host.Attached() == 0
	})
}

func kernelID(i int) cluster.KernelID {
	return cluster.KernelID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
}

func desired(i int, change ...func(*cluster.DesiredKernel)) cluster.DesiredKernel {
	d := cluster.DesiredKernel{
		Kernel: kernelID(i), Session: "11111111-0000-4000-8000-000000000000", Generation: 1,
		Spec: &cluster.KernelSpec{
			Image: image, RegistryType: "local", AutoPull: "digest", Hostname: "main1", SessionName: "sess", SessionType: cluster.Interactive,
			Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 30)}, UID: -1, GID: -1,
		},
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

func batch(command string) func(*cluster.DesiredKernel) {
	return func(d *cluster.DesiredKernel) { d.Spec.SessionType, d.Spec.StartupCommand = cluster.Batch, command }
}

func stopped(i int) cluster.DesiredKernel {
	return cluster.DesiredKernel{
		Kernel: kernelID(i), Session: "11111111-0000-4000-8000-000000000000", Generation: 1, Stop: true, StopReason: cluster.ReasonUserRequested,
	}
}

func (r *rig) phases(id cluster.KernelID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.path[id], ", ")
}
