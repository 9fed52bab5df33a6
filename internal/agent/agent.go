// Package agent is the role that runs on every worker host: it runs the kernels that the manager assigns to this host, and
// reports their state and the state of the host.
//
// It connects its parts and has little logic of its own. Package keeper creates and ends kernels, device finds and measures
// devices, host holds files and folders of kernels, runtime runs containers, link speaks to the manager, stream serves
// terminals and logs, data the connections to apps, meter takes samples and ledger records what must survive a restart.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/internal/agent/confine"
	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/nvmlclient"
	"berth.dev/berth/internal/agent/host/local"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/link"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/agent/stream"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Deps are what an agent works with.
type Deps struct {
	// Runtime must be made for Config.Scope and Config.ID; the agent closes it at its end.
	Runtime runtime.Runtime
	// RunnerPath is the runner's binary on this host; it is mounted into every container. It
	// must be replaced by renaming, never written in place.
	RunnerPath string
	Log        *slog.Logger
	Clock      chassis.Clock // nil means the real one
	// Registry takes the agent's metrics; nil keeps none.
	Registry prometheus.Registerer
	// Drivers replace those of this host's devices; nil means cores, memory, GPUs and what the configuration names.
	Drivers []device.Driver
	// GPUs tells of this host's NVIDIA GPUs; nil means the helper for them, where it is installed.
	GPUs cuda.Source
	// Times change the keeper's deadlines; zero values mean the defaults.
	Times keeper.Times
	// Images is told which images the engine has, before the manager is; nil on agents whose engine is not the manager's own.
	Images func(context.Context, []cluster.NodeImage) error
	// Before is called before every step of a kernel; tests stop the agent there. Nil otherwise.
	Before func(ctx context.Context, kernel cluster.KernelID, point string) error
}

// Agent is one agent; its services make it work.
type Agent struct {
	c        Config
	d        Deps
	ledger   *ledger.Ledger
	scratch  *scratch.Root
	mounts   *mount.Mounts
	runners  *runners.Pool
	keeper   *keeper.Keeper
	meter    *meter.Meter
	disks    disks
	link     *link.Link
	data     *data.Port
	facts    *facts
	gpus     *cuda.Driver       // nil: no NVIDIA GPU is given out
	helper   *nvmlclient.Client // nil: it is not installed, or somebody else tells of the GPUs
	network  *network.Network   // nil: the runtime is no engine whose containers could be connected
	services []*chassis.Service
}

// New opens the agent's state and wires its parts. Nothing runs before the services are
// started; Stop of the first one closes the state.
func New(c Config, d Deps) (_ *Agent, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Clock == nil {
		d.Clock = chassis.RealClock()
	}
	if d.RunnerPath, err = filepath.Abs(d.RunnerPath); err != nil {
		return nil, fmt.Errorf("find the runner: %w", err)
	}
	if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
		return nil, fmt.Errorf("find the state directory: %w", err)
	}
	a := &Agent{c: c, d: d}
	engine := &engineCDI{}
	devices, err := a.inventory(engine)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("open the agent's state: %w", err)
	}
	if a.ledger, err = ledger.Open(c.ledgerFile()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = a.ledger.Close()
		}
	}()
	if a.scratch, err = scratch.Open(c.scratchDir(), int64(c.MinFree)); err != nil {
		return nil, err
	}
	o := mount.Options{Dir: c.mountDir(), Volumes: c.Volumes, Log: d.Log}
	if e, ok := d.Runtime.(runtime.EngineProcess); ok {
		o.Engine = e.EnginePID
	}
	if a.mounts, err = mount.Open(o); err != nil {
		return nil, err
	}
	if err := a.openDisks(o.Engine); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = a.disks.close()
		}
	}()
	dial := a.scratch.DialRunner
	if r, ok := d.Runtime.(runtime.RunnerDialer); ok {
		dial = r.DialRunner
	}
	a.runners = runners.New(dial)
	groups := confine.New("/", d.Log)
	a.facts = newFacts(d.Runtime, d.Clock, d.Log, devices)
	a.facts.engineCDI = engine
	var connector keeper.Network
	if e, ok := d.Runtime.(network.Engine); ok {
		if a.network, err = network.New(networkOptions(c, d, e, a.facts.look)); err != nil {
			return nil, err
		}
		connector, a.facts.network = a.network, a.network
	}
	users, without := c.userNumbers(d.Runtime)
	if without != "" {
		d.Log.Warn(without)
	}
	a.keeper, err = keeper.New(keeper.Options{
		Network: connector,
		Agent:   cluster.AgentID(c.ID), Scope: c.Scope(), Runtime: d.Runtime, Ledger: a.ledger, Devices: devices,
		Host: &local.Host{Groups: groups, Scratch: a.scratch, Mounts: a.mounts, Runners: a.runners, RunnerPath: d.RunnerPath},
		Log:  d.Log, Clock: d.Clock, LogDir: filepath.Join(c.StateDir, "logs"), CacheDir: filepath.Join(c.StateDir, "images"),
		UID: c.UID, GID: c.GID, Users: users, HostPorts: c.hostPorts(), PortFree: portFree, OnPull: a.facts.look, Times: d.Times,
		MaxCreating: c.MaxCreating, LogLevel: c.RunnerLogLevel, Before: d.Before,
	})
	if err != nil {
		return nil, err
	}
	a.warnOfPorts()
	a.facts.imports = d.Images
	a.facts.users = func() []string {
		if without != "" {
			return []string{without}
		}
		return a.keeper.Shared()
	}
	a.facts.fenced, a.facts.seen, a.facts.mounts, a.facts.interval = a.keeper.Fenced, a.keeper.Prune, a.mounts, c.DeviceInterval
	a.facts.groups = groups
	a.guardDisks()
	a.meter = meter.New(d.Runtime, devices, a.keeper.Running, d.Clock, c.SampleInterval)
	a.meter.OutOfMemory = func(k keeper.Kernel) { a.keeper.OutOfMemory(k.ID, k.Generation) }
	handler := stream.New(stream.Options{
		Find: a.keeper.Find, LogTail: a.keeper.LogTail, Runtime: d.Runtime, Runners: a.runners, Log: d.Log,
		Stats: a.meter.Stats, OnCommit: a.facts.look, SharedUser: c.UID,
	})
	grants, err := data.OpenGrants(filepath.Join(c.StateDir, "grant-keys.json"), d.Clock)
	if err != nil {
		return nil, err
	}
	a.link, err = link.New(link.Options{
		Managers: c.managers(), Dir: filepath.Join(c.StateDir, "node"),
		Hello: cluster.NodeHello{
			Agent: cluster.AgentID(c.ID), BootID: chassis.BootID(), Version: chassis.Build().Version,
			ResourceGroup: c.ResourceGroup, Region: c.Region,
		},
		Token: c.token, Keeper: a.keeper, Ledger: a.ledger, Meter: a.meter, Facts: a.facts.get, NewFacts: a.facts.changed,
		Beat:    func(sent time.Time) { a.facts.skews.heard(sent, d.Clock.Now()) },
		Handler: handler, Act: a.act, Grants: grants.Set, Log: d.Log, Clock: d.Clock,
	})
	if err != nil {
		return nil, err
	}
	a.data = data.New(data.Options{
		Find: a.keeper.Find, Runners: a.runners, Member: a.link.Member(), Grants: grants, Dir: filepath.Join(c.StateDir, "data"),
		Listen: c.DataListen, Advertise: c.DataAdvertise, Manager: c.managers()[0], Registry: d.Registry, Log: d.Log, Clock: d.Clock,
	})
	a.facts.data = a.data
	a.services = []*chassis.Service{
		chassis.NewService("agent-state", chassis.Hooks{Stop: func(context.Context) error { return a.close() }}),
		chassis.NewService("agent-facts", chassis.Hooks{Start: a.facts.start, Run: a.facts.run}).After("agent-data"),
		chassis.NewService("agent-keeper", chassis.Hooks{Run: a.keeper.Run}).After("agent-state"),
		chassis.NewService("agent-devices", chassis.Hooks{Run: a.facts.watchDevices}).After("agent-facts"),
		a.data.Service("agent-data").After("agent-keeper"),
		chassis.NewService("agent-mounts", chassis.Hooks{Run: a.probeMounts}).After("agent-state"),
		a.networkService().After("agent-state"),
		chassis.NewService("agent-meter", chassis.Hooks{Run: a.meter.Run}).After("agent-keeper"),
		chassis.NewService("agent-link", chassis.Hooks{Run: a.link.Run}).After("agent-keeper", "agent-meter", "agent-facts"),
		chassis.NewService("agent-streams", chassis.Hooks{Run: a.link.RunStreams}).After("agent-link"),
		chassis.NewService("agent-disks", chassis.Hooks{Run: a.disks.guard.Run}).After("agent-keeper"),
		a.local().After("agent-keeper"),
	}
	if owners, ok := d.Runtime.(runtime.FileOwners); ok && users.Count > 0 {
		a.services = append(a.services, chassis.NewService("agent-files", chassis.Hooks{
			Run: func(ctx context.Context) error { return a.takeBack(ctx, owners) }}).After("agent-state"))
	}
	if a.helper != nil {
		a.services = append(a.services, chassis.NewService("agent-gpu-helper", chassis.Hooks{Run: a.helper.Run}).After("agent-state"))
	}
	if a.gpus != nil {
		a.services = append(a.services, chassis.NewService("agent-gpus", chassis.Hooks{Run: a.gpus.Run}).After("agent-devices"))
	}
	if a.disks.pool != nil {
		a.services = append(a.services, chassis.NewService("agent-disks-ahead", chassis.Hooks{Run: a.disks.pool.Run}).After("agent-state"))
	}
	return a, nil
}

// inventory looks for this host's devices. An agent that does not know its cores and memory does not start. What else cannot be looked
// at now, such as GPUs whose driver hangs, is given out once it can.
func (a *Agent) inventory(engine *engineCDI) (*device.Inventory, error) {
	found := a.d.Drivers
	if found == nil {
		var err error
		if found, err = drivers(a.c, a.d.Clock, engine); err != nil {
			return nil, err
		}
		gpus, err := a.openGPUs(found)
		if err != nil {
			return nil, err
		}
		found = slices.Insert(found, 0, gpus)
		if a.c.MockDevices != "" {
			a.d.Log.Warn("this agent offers devices that do not exist", "file", a.c.MockDevices)
		}
	}
	v, err := device.NewInventory(found...)
	if err != nil {
		return nil, err
	}
	if _, err := v.Refresh(context.Background()); err != nil {
		slots := map[cluster.SlotName]bool{}
		for _, d := range v.Allocatable() {
			slots[d.Slot] = true
		}
		if !slots[cluster.SlotCPU] || !slots[cluster.SlotMem] {
			return nil, err
		}
		a.d.Log.Warn("some devices of this host cannot be looked at yet; they are given out once they can", "err", err)
	}
	return v, nil
}

// Services are the agent's parts, to be run in one group.
func (a *Agent) Services() []*chassis.Service { return a.services }

// Ready reports why the agent cannot take kernels now; nil when it can.
func (a *Agent) Ready(context.Context) error {
	f := a.facts.get()
	switch {
	case !f.EngineOK:
		return fault.Unavailablef("the container engine cannot run sessions: %s", f.EngineError)
	case !a.link.Connected():
		return fault.Unavailablef("no manager is connected; %s is tried next", a.link.Manager())
	}
	return nil
}

// probeEvery is the time between two checks whether volumes answer.
const probeEvery = 10 * time.Second

// probeMounts checks regularly whether volumes answer; a change is reported with the facts.
func (a *Agent) probeMounts(ctx context.Context) error {
	tick := a.d.Clock.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
			a.mounts.Probe(ctx)
		case <-a.mounts.Changed():
			a.facts.look()
		}
	}
}

// networkOptions are those of the network of sessions.
func networkOptions(c Config, d Deps, e network.Engine, changed func()) network.Options {
	return network.Options{Engine: e, Config: c.Network, StateDir: c.StateDir, Scope: c.Scope(), Agent: cluster.AgentID(c.ID),
		Log: d.Log.With("part", "network"), Clock: d.Clock, Changed: changed}
}

// networkService makes the network of sessions and keeps it.
func (a *Agent) networkService() *chassis.Service {
	return chassis.NewService("agent-network", chassis.Hooks{Run: func(ctx context.Context) error {
		if a.network == nil {
			<-ctx.Done()
			return ctx.Err()
		}
		return a.network.Run(ctx)
	}})
}

func (a *Agent) close() error {
	a.runners.Close()
	a.mounts.Close()
	err := errors.Join(a.ledger.Close(), a.disks.close())
	if rerr := a.d.Runtime.Close(); err == nil {
		err = rerr
	}
	return err
}

// token reads the join token as late as possible: the file may appear after the agent's start.
func (c Config) token() (chassis.Secret, error) {
	if !c.JoinToken.IsZero() || c.JoinTokenFile == "" {
		return c.JoinToken, nil
	}
	b, err := os.ReadFile(c.JoinTokenFile)
	if err != nil {
		return chassis.Secret{}, err
	}
	return chassis.NewSecret(strings.TrimSpace(string(b))), nil
}

// act carries out the manager's actions.
func (a *Agent) act(_ context.Context, verb string, _ []byte) ([]byte, error) {
	switch verb {
	case "rescan-images":
		a.facts.look()
		return []byte("{}"), nil
	case "probe":
		return json.Marshal(map[string]any{"version": chassis.Build().Version, "kernels": len(a.keeper.Running())})
	}
	return nil, fault.Invalidf("this agent knows no action %q", verb).WithNext("update the agent")
}

// local serves `berth doctor` on a unix socket that only the user of this process may open.
func (a *Agent) local() *chassis.Service {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /findings", func(w http.ResponseWriter, r *http.Request) {
		found, err := a.Findings(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(found) // a caller that left needs no answer
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(a.d.Log.Handler(), slog.LevelDebug)}
	path := a.c.SocketPath()
	var l net.Listener
	return chassis.NewService("agent-local", chassis.Hooks{
		Start: func(context.Context) error {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("open %s: %w", path, err)
			}
			var err error
			if l, err = chassis.ListenUnix(path); err != nil {
				return fmt.Errorf("open %s: %w", path, err)
			}
			return nil
		},
		Run: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
			defer stop()
			err := srv.Serve(l)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		},
		Stop: func(context.Context) error {
			_ = os.Remove(path) // gone with the listener already, most of the time
			return nil
		},
	})
}
