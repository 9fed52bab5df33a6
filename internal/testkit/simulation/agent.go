package simulation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/devicetest"
	"berth.dev/berth/internal/agent/host"
	hostfake "berth.dev/berth/internal/agent/host/fake"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/ledger"
	agentlink "berth.dev/berth/internal/agent/link"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// scope is the label of all containers of the simulation.
const scope = "simulation"

// machine is one agent's host: engine, disk, clock and network. It outlives the agent's processes.
type machine struct {
	s       *sim
	id      string
	dir     string
	engine  *fake.Engine
	files   *hostfake.Host
	devices *device.Inventory
	tls     tls.ConnectionState

	lines []line // to each manager
	dials int

	full   atomic.Bool
	slow   atomic.Int64 // nanoseconds for each write
	step   atomic.Int64 // what the clock is ahead
	frozen way          // blocked while the process is stopped

	mu   sync.Mutex
	proc *process                   // nil while none runs
	told map[cluster.KernelID]int64 // generations that the present process was told
}

func (s *sim) newMachine(i int) (*machine, error) {
	h := &machine{s: s, id: fmt.Sprintf("i-%d", i), lines: make([]line, s.plan.Managers), told: map[cluster.KernelID]int64{}}
	h.dir = filepath.Join(s.dir, h.id)
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, err
	}
	h.engine = fake.NewEngine(fake.Options{})
	h.engine.AddImage(runtime.Image{ID: imageDigest, References: []string{imageName}, Architecture: "x86_64", Labels: map[string]string{}},
		map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n"), "/etc/group": []byte("root:x:0:\n")})
	h.files = hostfake.New(filepath.Join(h.dir, "kernels"), h.engine.Runtime(scope, cluster.AgentID(h.id)).DialRunner)
	var err error
	if h.devices, err = device.NewInventory(devicetest.Host(s.plan.Cores, 64<<30)...); err != nil {
		return nil, err
	}
	_, err = h.devices.Refresh(context.Background())
	return h, err
}

// join gives the machine the certificate of its agent.
func (h *machine) join(m *managerRole) error {
	who := "agent:" + h.id
	token, err := m.token(h.id)
	if err != nil {
		return fmt.Errorf("make a join token for %s: %w", who, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	reply, err := m.link.Join(h.s.ctx, &node.JoinRequest{Token: token.Secret, AgentId: h.id, CsrDer: csr, Version: 1})
	if err != nil {
		return fmt.Errorf("join %s: %w", who, err)
	}
	leaf, err := x509.ParseCertificate(reply.CertificateDer)
	if err != nil {
		return err
	}
	h.tls = tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}},
		HandshakeComplete: true}
	return nil
}

// ordered notes which kernels the present process was told of.
func (h *machine) ordered(d *node.Desired) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range d.GetKernels() {
		h.told[cluster.KernelID(k.GetKernelId())] = k.GetGeneration()
		h.s.note("%s is told kernel %s gen %d stop %t", h.id, short(k.GetKernelId()), k.GetGeneration(), k.GetStop())
	}
}

func (h *machine) process() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.proc
}

// process is one life of an agent.
type process struct {
	host   *machine
	ctx    context.Context
	cancel context.CancelFunc
	dead   atomic.Bool
	killAt atomic.Int64 // steps until it dies; 0: it lives
	ledger *ledger.Ledger
	rt     *fake.Runtime
	keeper *keeper.Keeper
	link   *agentlink.Link
	group  sync.WaitGroup
	// connected is when the present stream was opened, in nanoseconds; 0 while there is none. home is the manager that it is with.
	connected atomic.Int64
	home      atomic.Pointer[managerRole]
	onDeath   func()

	mu    sync.Mutex
	steps map[cluster.KernelID]int // that kernels have taken
}

var errKilled = fault.Unavailablef("the agent was killed")

// enter is passed before everything that the process does to its surroundings: a stopped process waits there, a dead one goes no further.
func (p *process) enter(ctx context.Context) error {
	if p.dead.Load() {
		return errKilled
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	// The context may end while the process is stopped; it notices that when it goes on.
	if err := p.host.frozen.pass(both); err != nil && (p.dead.Load() || p.ctx.Err() != nil) {
		return errKilled
	}
	if err := p.host.frozen.pass(p.ctx); err != nil || p.dead.Load() {
		return errKilled
	}
	return ctx.Err()
}

// before is called at every point where an agent may be killed.
func (p *process) before(ctx context.Context, k cluster.KernelID, point string) error {
	p.mu.Lock()
	p.steps[k]++
	n := p.steps[k]
	p.mu.Unlock()
	// Every step takes a time of its own, so that the seed decides in which order those of several kernels are done.
	if err := wait(ctx, time.Duration(p.host.s.chance(int(2*time.Millisecond), p.host.id, k, point, n))); err != nil {
		return err
	}
	if err := p.enter(ctx); err != nil {
		return err
	}
	if p.killAt.Load() > 0 && p.killAt.Add(-1) == 0 {
		p.host.s.note("%s is killed at %s of kernel %s", p.host.id, point, short(string(k)))
		p.die()
		return errKilled
	}
	return nil
}

func (p *process) die() {
	if p.dead.CompareAndSwap(false, true) {
		p.cancel()
		if p.onDeath != nil {
			p.onDeath()
		}
	}
}

// boot starts an agent on what the machine has.
func (h *machine) boot() error {
	p := &process{host: h, steps: map[cluster.KernelID]int{}}
	p.ctx, p.cancel = context.WithCancel(h.s.ctx)
	var err error
	if p.ledger, err = ledger.Open(filepath.Join(h.dir, "ledger.db")); err != nil {
		return err
	}
	id := cluster.AgentID(h.id)
	p.rt = h.engine.Runtime(scope, id)
	clock := machineClock{chassis.RealClock(), &h.step}
	p.keeper, err = keeper.New(keeper.Options{
		Agent: id, Scope: scope, Runtime: guardedRuntime{p.rt, p}, Ledger: disk{p.ledger, p}, Host: guardedHost{h.files, p}, Devices: h.devices,
		Log: h.s.log, Clock: clock, LogDir: filepath.Join(h.dir, "logs"), UID: 1000, GID: 1000, Before: p.before,
	})
	if err != nil {
		return err
	}
	m := meter.New(p.rt, h.devices, p.keeper.Running, clock, time.Minute)
	p.link, err = agentlink.New(agentlink.Options{
		Managers: h.s.addresses(), Dir: filepath.Join(h.dir, "node"), Hello: cluster.NodeHello{Agent: id, BootID: "boot", Version: "test"},
		Token: func() (chassis.Secret, error) { return chassis.Secret{}, os.ErrNotExist }, Keeper: p.keeper, Ledger: p.ledger, Meter: m,
		Facts: h.facts, Log: h.s.log, Clock: clock, Grants: func([][]byte, []string, []proxy.Revocation) error { return nil },
		Act: func(context.Context, string, []byte) ([]byte, error) { return []byte("{}"), nil },
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.proc, h.told = p, map[cluster.KernelID]int64{}
	h.mu.Unlock()
	p.group.Go(func() { _ = p.keeper.Run(p.ctx) })
	p.group.Go(p.stayConnected)
	h.s.note("%s starts", h.id)
	return nil
}

// kill ends the process and waits until nothing of it is left.
func (h *machine) kill() {
	p := h.process()
	if p == nil {
		return
	}
	p.die()
	p.group.Wait()
	_ = p.rt.Close()
	_ = p.ledger.Close()
	h.mu.Lock()
	h.proc = nil
	h.mu.Unlock()
}

func (h *machine) facts() agentlink.Facts {
	var devices []agentlink.Device
	capacity := cluster.Slots{}
	for _, d := range h.devices.Allocatable() {
		capacity[d.Slot] += d.Capacity
		devices = append(devices, agentlink.Device{Device: d})
	}
	return agentlink.Facts{Devices: devices, NodeFacts: cluster.NodeFacts{Revision: 1, Architecture: "x86_64", Capacity: capacity,
		Images: []cluster.NodeImage{nodeImage()}, Engine: "fake", EngineOK: true}}
}

// stayConnected keeps a control stream open to one of the managers, as agents do.
func (p *process) stayConnected() {
	s, id := p.host.s, p.host.id
	draws := 0
	random := func() float64 { // called by one goroutine
		draws++
		return float64(s.chance(1_000_000, id, "pause", draws)) / 1_000_000
	}
	managers := membership.NewManagers(s.addresses(), random())
	_ = managers.Keep(p.ctx, membership.Connect{Clock: machineClock{chassis.RealClock(), &p.host.step}, Random: random, Log: s.log,
		To: func(ctx context.Context, addr string) (worked bool, err error) {
			to := s.seats[slices.Index(s.addresses(), addr)]
			var c *conn
			worked, err = p.link.Converse(ctx, addr, func(ctx context.Context) (node.Node_SessionClient, error) {
				if err := p.enter(ctx); err != nil {
					return nil, err
				}
				var err error
				if c, err = s.connect(ctx, p, to); err != nil {
					return nil, err
				}
				p.home.Store(to.manager())
				p.connected.Store(time.Now().UnixNano())
				return &agentEnd{c: c, ctx: ctx, proc: p}, nil
			})
			p.connected.Store(0)
			if c != nil {
				c.leaveAgent()
				if s.ctx.Err() == nil {
					s.note("%s loses its stream to %s: %v", id, to.name(), err)
				}
			}
			return worked, err
		}})
}

// machineClock is the clock of a machine, which may have been put forward or back. Timers run on.
type machineClock struct {
	chassis.Clock
	step *atomic.Int64
}

func (c machineClock) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.step.Load())) }

// disk is the agent's ledger on a disk that may be full or slow.
type disk struct {
	*ledger.Ledger
	p *process
}

func (d disk) write(fn func() error) error {
	if err := d.p.enter(d.p.ctx); err != nil {
		return err
	}
	if slow := time.Duration(d.p.host.slow.Load()); slow > 0 {
		if err := wait(d.p.ctx, slow); err != nil {
			return errKilled
		}
	}
	if d.p.host.full.Load() {
		return unix.ENOSPC
	}
	return fn()
}

func (d disk) Put(r *ledger.Record) error { return d.write(func() error { return d.Ledger.Put(r) }) }

func (d disk) Delete(k cluster.KernelID) error {
	return d.write(func() error { return d.Ledger.Delete(k) })
}

// guardedHost is the files of a machine as a process that may be stopped or dead sees them.
type guardedHost struct {
	*hostfake.Host
	p *process
}

func (g guardedHost) Prepare(k cluster.KernelID, c host.Content) ([]runtime.Mount, error) {
	if err := g.p.enter(g.p.ctx); err != nil {
		return nil, err
	}
	if g.p.host.full.Load() {
		return nil, fault.Exhaustedf("the disk of the agent's scratch directory is full").WithReason("scratch-full").WithNext("free space")
	}
	return g.Host.Prepare(k, c)
}

func (g guardedHost) Release(k cluster.KernelID) error {
	if err := g.p.enter(g.p.ctx); err != nil {
		return err
	}
	return g.Host.Release(k)
}

func (g guardedHost) Hello(ctx context.Context, k cluster.KernelID, generation int64, token string) (run.Hello, error) {
	if err := g.p.enter(ctx); err != nil {
		return run.Hello{}, err
	}
	return g.Host.Hello(ctx, k, generation, token)
}

// guardedRuntime is the engine of a machine as a process that may be stopped or dead sees it.
type guardedRuntime struct {
	*fake.Runtime
	p *process
}

func (g guardedRuntime) Ensure(ctx context.Context, spec runtime.Spec) (runtime.Observed, error) {
	if err := g.p.enter(ctx); err != nil {
		return runtime.Observed{}, err
	}
	o, err := g.Runtime.Ensure(ctx, spec)
	g.p.host.s.note("%s ensures the container of kernel %s gen %d: %s %v", g.p.host.id, short(string(spec.Identity.Kernel)),
		spec.Identity.Generation, o.Phase, err)
	if gone := g.p.enter(ctx); gone != nil && err == nil {
		return o, gone
	}
	return o, err
}

func (g guardedRuntime) Stop(ctx context.Context, k cluster.KernelID, grace time.Duration) error {
	if err := g.p.enter(ctx); err != nil {
		return err
	}
	g.p.host.s.ending(g.p.host, k, "stops")
	return g.Runtime.Stop(ctx, k, grace)
}

func (g guardedRuntime) Remove(ctx context.Context, k cluster.KernelID) error {
	if err := g.p.enter(ctx); err != nil {
		return err
	}
	g.p.host.s.ending(g.p.host, k, "removes")
	return g.Runtime.Remove(ctx, k)
}

func (g guardedRuntime) Inspect(ctx context.Context, k cluster.KernelID) (runtime.Observed, error) {
	if err := g.p.enter(ctx); err != nil {
		return runtime.Observed{}, err
	}
	return g.Runtime.Inspect(ctx, k)
}

func (g guardedRuntime) List(ctx context.Context) ([]runtime.Observed, error) {
	if err := g.p.enter(ctx); err != nil {
		return nil, err
	}
	return g.Runtime.List(ctx)
}

// short is the end of an id, which tells kernels apart.
func short(id string) string { return id[max(0, len(id)-4):] }
