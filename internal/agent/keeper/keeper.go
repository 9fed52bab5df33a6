// Package keeper creates and ends the kernels of one agent as the manager wants them, and reports their state.
//
// Every kernel has a goroutine that compares what is wanted, what is recorded and what the runtime shows, asks the pure
// function plan for the next step and carries it out. There is no queue of events: hints only make a kernel compare again.
// Nothing is destroyed because of a difference seen once. The keeper knows no network and no file: package link speaks to
// the manager, the runtime to the engine, and a host.Host has the files, folders and runners of kernels.
package keeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Devices are the devices of this host; *device.Inventory satisfies it.
type Devices interface {
	// Allocatable returns what can be allocated, broken devices too.
	Allocatable() []alloc.Device
	// Usable reports, as a Conflict, the first device of an allocation that must not be given to a container now.
	Usable(a alloc.Allocation) error
	// Grant turns an allocation into what a container needs.
	Grant(a alloc.Allocation) (device.Grant, error)
	// Prepare makes on the host what a kernel's devices need, Release ends what uses them and takes it back. Both may be repeated.
	Prepare(ctx context.Context, kernel cluster.KernelID, a alloc.Allocation) error
	Release(ctx context.Context, kernel cluster.KernelID) error
	// Prepared are the kernels for which something was made, also before this process.
	Prepared() []cluster.KernelID
}

// Ledger records what must survive the agent; *ledger.Ledger satisfies it.
type Ledger interface {
	// Records returns copies of all records, Broken names those that could not be read.
	Records() []*ledger.Record
	Broken() []string
	// Put stores a record and returns when it is on disk; Delete forgets one.
	Put(r *ledger.Record) error
	Delete(kernel cluster.KernelID) error
}

// Network connects containers; *network.Network satisfies it. Its methods may be called again with the same result.
type Network interface {
	// Join chooses how a kernel's container joins the network, before it is made.
	Join(kernel cluster.KernelID, e cluster.Egress) (network.Place, error)
	// Connect connects the container whose first process is pid.
	Connect(kernel cluster.KernelID, pid int) error
	// SetEgress takes what the manager wants of a kernel that may be running.
	SetEgress(kernel cluster.KernelID, e cluster.Egress)
	// SetNetwork takes what the kernels of its session have in common; nil where it is the only one.
	SetNetwork(kernel cluster.KernelID, n *cluster.SessionNetwork)
	// Release takes back what a kernel had whose container is gone.
	Release(kernel cluster.KernelID)
	// HostAddress is where this host is reached by kernels of other hosts; not valid when it is not known.
	HostAddress() netip.Addr
}

// Options are what a keeper needs; all fields without "optional" are required.
type Options struct {
	Agent cluster.AgentID
	// Scope is the label by which containers of this state directory are told from others.
	Scope   string
	Runtime runtime.Runtime
	Ledger  Ledger
	// Host keeps the files and folders of kernels and knows the way to their runners.
	Host    host.Host
	Devices Devices
	// Network connects containers; nil leaves that to the engine.
	Network  Network
	Log      *slog.Logger
	Clock    chassis.Clock
	LogDir   string // logs of ended kernels, until they are acknowledged
	CacheDir string // small files of images; optional
	// UID and GID are the session's user when the manager names none; UID is for kernels without a number of their own.
	UID, GID int
	Users    Users
	// HostPorts are leased to kernels in the network of this host; none means that no such kernel runs here. PortFree reports that nothing
	// listens on a port of the host; nil takes all for free.
	HostPorts cluster.PortRange
	PortFree  func(port int) bool
	// OnPull is called after an image was pulled; optional.
	OnPull func()
	// Limits of waiting; zero values mean the defaults below.
	Times Times
	// MaxCreating bounds how many kernels are created at a time.
	MaxCreating int
	LogLevel    string
	// Before is called before every step and inside some; tests stop the agent there. Optional.
	Before func(ctx context.Context, kernel cluster.KernelID, point string) error
}

// Times are the keeper's deadlines and periods.
type Times struct {
	Create  time.Duration // image check, scratch and container together, without a pull
	Start   time.Duration // until the runner answers
	Busy    time.Duration // until devices are free that others hold; shorter than the manager waits for a first sign
	Silence time.Duration // of a pull
	Stop    time.Duration // after the grace, until the kernel is fenced
	Sweep   time.Duration // between looks for what has no owner
	Expire  time.Duration // of tombstones that nobody acknowledges
}

func (t Times) withDefaults() Times {
	set := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	set(&t.Create, 90*time.Second)
	set(&t.Start, 45*time.Second)
	set(&t.Busy, 20*time.Second)
	set(&t.Silence, 5*time.Minute)
	set(&t.Stop, 30*time.Second)
	set(&t.Sweep, 30*time.Second)
	set(&t.Expire, 7*24*time.Hour)
	return t
}

// Keeper holds the kernels of one agent.
type Keeper struct {
	o        Options
	times    Times
	images   *images
	creating chan struct{}
	// awake measures deadlines: what passes while this process is stopped is charged to nobody.
	awake *chassis.Awake

	mu      sync.Mutex
	kernels map[cluster.KernelID]*kernel
	ctx     context.Context // of Run; nil before
	listed  bool            // the runtime has shown its containers once
	synced  bool            // a full desired state arrived on the present connection
	rev     int64           // of the newest desired state
	// forgotten keeps the last acknowledged generations, so that a late message revives nothing; longForgotten are those before them.
	forgotten, longForgotten map[cluster.KernelID]int64
	// orphans counts looks at directories without an owner, strays those at devices that were prepared for nobody.
	orphans, strays map[cluster.KernelID]int
	// lastUser is the user number that was given out last; toldShared are the reasons of having none that were logged.
	lastUser   int
	lastPort   int // of those that were leased
	toldShared map[string]bool
	report     report
	reap       chan struct{}
	group      sync.WaitGroup
}

// maxForgotten bounds each of the two maps of forgotten kernels.
const maxForgotten = 4096

// New returns a keeper that knows what the ledger knows; Run makes it work.
func New(o Options) (*Keeper, error) {
	if o.MaxCreating == 0 {
		o.MaxCreating = 16
	}
	if o.Before == nil {
		o.Before = func(context.Context, cluster.KernelID, string) error { return nil }
	}
	k := &Keeper{
		o: o, times: o.Times.withDefaults(), creating: make(chan struct{}, o.MaxCreating),
		kernels: map[cluster.KernelID]*kernel{}, forgotten: map[cluster.KernelID]int64{}, orphans: map[cluster.KernelID]int{},
		report: newReport(), reap: make(chan struct{}, 1), awake: chassis.NewAwake(o.Clock), strays: map[cluster.KernelID]int{},
		toldShared: map[string]bool{},
	}
	k.images = &images{
		rt: o.Runtime, clock: o.Clock, awake: k.awake, silence: k.times.Silence, pulled: o.OnPull, group: &k.group, cache: o.CacheDir,
		pulls: map[string]*pull{}, base: map[string]baseFiles{},
	}
	k.lastUser = o.Users.begin(o.Scope)
	for _, id := range o.Ledger.Broken() {
		o.Log.Warn("a record of the ledger cannot be read; its container is known by its labels only", "kernel", id)
	}
	for _, r := range o.Ledger.Records() {
		n := k.add(r.Kernel)
		n.record, n.scratch, n.uid = r, true, r.UID
		a, err := alloc.Parse(r.Allocation)
		if err != nil {
			o.Log.Warn("the recorded allocation cannot be read", "kernel", r.Kernel, "err", err)
		}
		n.reserved = a
		n.publish(phaseOf(r))
	}
	return k, nil
}

// phaseOf is the phase that a record stands for.
func phaseOf(r *ledger.Record) cluster.Phase {
	switch {
	case r.Final != nil, r.Stopping != nil && !r.Stopping.Restart:
		return cluster.PhaseTerminating
	case r.Running:
		return cluster.PhaseRunning
	}
	return cluster.PhasePreparing
}

// add makes a kernel's entry; the caller holds mu or is New.
func (k *Keeper) add(id cluster.KernelID) *kernel {
	n := &kernel{id: id, k: k, wake: make(chan struct{}, 1)}
	k.kernels[id] = n
	if k.listed && k.ctx != nil {
		k.launch(n)
	}
	return n
}

// launch starts a kernel's goroutine; the caller holds mu.
func (k *Keeper) launch(n *kernel) {
	ctx := k.ctx
	k.group.Go(func() { n.run(ctx) })
}

// Run works until ctx ends and waits for everything it started. Containers are not touched by its end.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	defer k.group.Wait()
	hints := k.o.Runtime.Watch(ctx)
	if err := k.firstList(ctx); err != nil {
		return err
	}
	k.group.Go(func() { k.reaper(ctx) })
	k.group.Go(func() { k.awake.Run(ctx) })
	sweep := k.o.Clock.NewTicker(k.times.Sweep)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case h, ok := <-hints:
			switch {
			case !ok:
				hints = nil // ctx has ended
			case h.Kernel != "":
				k.hint(h)
			default:
				_ = k.list(ctx) // the next sweep lists again
			}
		case <-sweep.C():
			_ = k.list(ctx) // the next sweep lists again
			k.sweep()
		}
	}
}

// firstList waits until the engine has listed its containers once. Before that nothing can be decided.
func (k *Keeper) firstList(ctx context.Context) error {
	backoff := chassis.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	told := false
	for {
		err := k.list(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !told {
			told = true
			k.o.Log.Error("the container engine does not answer; kernels wait until it does", "err", err)
		}
		if err := chassis.Wait(ctx, k.o.Clock, backoff.Next()); err != nil {
			return err
		}
	}
	if told {
		k.o.Log.Info("the container engine answers")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
	for _, n := range k.kernels {
		k.launch(n)
	}
	return nil
}

// list compares all containers with what is known. It only adds: a kernel that is missing from the list is inspected by its
// name, because its container may have been created while the list was made.
func (k *Keeper) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	all, err := k.o.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := make(map[cluster.KernelID]bool, len(all))
	for _, o := range all {
		id := o.Identity.Kernel
		seen[id] = true
		n := k.kernels[id]
		if n == nil {
			n = k.add(id)
			n.container, n.uid, n.ports = &o, k.numberOf(id), k.leasedBy(id)
			continue
		}
		if n.record == nil && n.uid == 0 {
			n.uid, n.ports = k.numberOf(id), k.leasedBy(id)
		}
		if !k.listed {
			n.container = &o
			continue
		}
		if n.container == nil || n.container.ID != o.ID || n.container.Phase != o.Phase {
			n.poke(true)
		}
	}
	if k.listed {
		for id, n := range k.kernels {
			if n.container != nil && !seen[id] {
				n.poke(true)
			}
		}
	}
	return nil
}

func (k *Keeper) hint(h runtime.Hint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.kernels[h.Kernel]; n != nil {
		n.oom = n.oom || h.OOM
		n.poke(true)
	}
}

// sweep takes one look at everything that the manager does not mention, and at
// directories that belong to no kernel.
func (k *Keeper) sweep() {
	k.wakeReaper()
	ids, err := k.o.Host.List()
	if err != nil {
		k.o.Log.Warn("sweep", "err", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Clock.Now()
	for _, n := range k.kernels {
		if n.unsaved {
			n.poke(false)
		}
		if k.synced && n.desired == nil {
			n.absent++
			n.poke(false)
		}
		if r := n.record; r != nil && r.Final != nil && !r.EndsAt.IsZero() && now.Sub(r.EndsAt) > k.times.Expire {
			n.settle(r.Generation)
		}
	}
	present := map[cluster.KernelID]bool{}
	for _, id := range ids {
		present[id] = true
		if k.kernels[id] != nil || !k.synced {
			continue
		}
		if k.orphans[id]++; k.orphans[id] >= looks {
			delete(k.orphans, id)
			if err := k.o.Host.Release(id); err != nil {
				k.o.Log.Warn("a directory without an owner cannot be removed", "kernel", id, "err", err)
				continue
			}
			k.o.Log.Info("removed a directory without an owner", "kernel", id)
			k.wakeReaper()
		}
	}
	maps.DeleteFunc(k.orphans, func(id cluster.KernelID, _ int) bool { return !present[id] })
	k.releaseStrays()
}

// releaseStrays takes back what drivers made for kernels that nobody knows; the caller holds mu.
func (k *Keeper) releaseStrays() {
	prepared := k.o.Devices.Prepared()
	for _, id := range prepared {
		if k.kernels[id] != nil || !k.synced {
			continue
		}
		if k.strays[id]++; k.strays[id] == looks {
			k.group.Go(func() {
				if err := k.o.Devices.Release(k.ctx, id); err != nil {
					k.o.Log.Warn("devices without an owner cannot be released", "kernel", id, "err", err)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.strays, id)
			})
		}
	}
	maps.DeleteFunc(k.strays, func(id cluster.KernelID, n int) bool { return n < looks && !slices.Contains(prepared, id) })
}

func (k *Keeper) wakeReaper() {
	select {
	case k.reap <- struct{}{}:
	default:
	}
}

// reaper deletes the files of kernels that were released.
func (k *Keeper) reaper(ctx context.Context) {
	k.wakeReaper()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.reap:
			if err := k.o.Host.Reap(ctx); err != nil {
				k.o.Log.Warn("delete old directories", "err", err)
			}
		}
	}
}

// SetDesired takes a full desired state or a delta. Within a generation a stop is never
// taken back, and older generations are ignored, so repeated messages change nothing.
// Deltas before the first full state of a connection are ignored.
func (k *Keeper) SetDesired(full bool, revision int64, kernels []cluster.DesiredKernel) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case full && k.synced && revision < k.rev:
		return
	case !full && (!k.synced || revision <= k.rev):
		return
	}
	k.rev = revision
	seen := make(map[cluster.KernelID]bool, len(kernels))
	for i := range kernels {
		d := kernels[i]
		seen[d.Kernel] = true
		n := k.kernels[d.Kernel]
		if k.settled(n, d) {
			continue
		}
		if n == nil {
			n = k.add(d.Kernel)
		}
		n.want(d)
	}
	if full {
		k.synced = true
		for id, n := range k.kernels {
			if !seen[id] {
				n.desired = nil
				n.absent++
				n.poke(false)
			}
		}
	}
}

// settled reports whether the manager has stored the end of what an order wants to run: it read the order before that and sent it after
// the acknowledgement. n is nil for a kernel that is not here; the caller holds mu.
func (k *Keeper) settled(n *kernel, d cluster.DesiredKernel) bool {
	if d.Stop {
		return false // asked again, a kernel that is not here gets the same answer
	}
	if n != nil && n.record != nil {
		return n.acked && d.Generation <= n.record.Generation
	}
	return d.Generation <= max(k.forgotten[d.Kernel], k.longForgotten[d.Kernel])
}

// Disconnected is called when the connection to the manager ends. The last desired state is still followed, but a kernel that
// is absent from it is no longer taken for unwanted, until a full desired state arrives on the next connection.
func (k *Keeper) Disconnected() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.synced, k.rev = false, 0
}

// Revision is the newest desired state that was taken.
func (k *Keeper) Revision() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rev
}

// Ack lets the keeper forget ended kernels.
func (k *Keeper) Ack(tombs []cluster.Tombstone) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range tombs {
		n := k.kernels[t.Kernel]
		if n == nil || n.record == nil || n.record.Final == nil || n.record.Generation > t.Generation || n.obs.Phase != cluster.PhaseEnded {
			continue
		}
		n.settle(t.Generation)
	}
}

// used sums what all kernels but one hold; the caller holds mu.
func (k *Keeper) used(except *kernel) alloc.Allocation {
	out := alloc.Allocation{}
	for _, n := range k.kernels {
		if n == except {
			continue
		}
		for slot, devices := range n.reserved {
			if out[slot] == nil {
				out[slot] = map[string]cluster.Amount{}
			}
			for id, v := range devices {
				out[slot][id] += v
			}
		}
	}
	return out
}

// Kernel is a kernel as streams and statistics see it.
type Kernel struct {
	ID         cluster.KernelID
	Session    cluster.SessionID
	Generation int64
	Phase      cluster.Phase
	Token      string
	// User is the user number that only this kernel has; 0 for none.
	User      int
	Container runtime.Observed
	// Exists: Container is valid.
	Exists bool
	// Allocation is what the kernel holds; nobody changes it.
	Allocation alloc.Allocation
}

// Serving reports why the kernel's runner cannot be called; nil when it can.
func (k Kernel) Serving() error {
	if k.Phase < cluster.PhaseRunning || !k.Exists || k.Container.Phase != runtime.PhaseRunning {
		return fault.Conflictf("kernel %s does not run (it is %s)", k.ID, strings.ToLower(string(k.Phase.Status()))).
			WithReason("kernel-not-running")
	}
	return nil
}

func (n *kernel) info() Kernel {
	out := Kernel{ID: n.id, Phase: n.obs.Phase, Allocation: n.reserved}
	if n.record != nil {
		out.Session, out.Generation, out.Token, out.User = n.record.Session, n.record.Generation, n.record.Token, n.record.UID
	}
	if n.container != nil {
		out.Container, out.Exists = *n.container, true
	}
	return out
}

// Find returns one kernel.
func (k *Keeper) Find(id cluster.KernelID) (Kernel, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.kernels[id]
	if n == nil {
		return Kernel{}, false
	}
	return n.info(), true
}

// Running returns the kernels whose containers run.
func (k *Keeper) Running() []Kernel {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Kernel
	for _, id := range slices.Sorted(maps.Keys(k.kernels)) {
		if n := k.kernels[id]; n.container != nil && n.container.Phase == runtime.PhaseRunning {
			out = append(out, n.info())
		}
	}
	return out
}

// Prune drops what is cached for images that are gone.
func (k *Keeper) Prune(present []runtime.Image) { k.images.prune(present) }

// Fenced names kernels that were reported as ended although their containers could not be removed.
func (k *Keeper) Fenced() []cluster.KernelID {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []cluster.KernelID
	for _, id := range slices.Sorted(maps.Keys(k.kernels)) {
		if n := k.kernels[id]; n.record != nil && n.record.Fenced && n.container != nil {
			out = append(out, id)
		}
	}
	return out
}

func newToken() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// logFile is where the log of an ended kernel waits for its acknowledgement.
func (k *Keeper) logFile(id cluster.KernelID) string {
	return filepath.Join(k.o.LogDir, string(id)+".log")
}
