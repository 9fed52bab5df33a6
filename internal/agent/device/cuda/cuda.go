// Package cuda is the device driver of NVIDIA GPUs: whole cards (cuda.device), parts of cards (cuda.shares) and instances of the
// hardware's own partitioning, MIG (cuda.<profile>-mig). What is on the host and how busy it is comes from a Source, a process of its own
// that may hang without harm. A container gets its devices by a specification of the Container Device Interface, or by device files where
// the engine knows none. How far shares are kept from each other depends on the host; Rung decides it, and docs/devices.md says what each
// rung holds. Package mps runs NVIDIA's daemons for the rungs that need them.
package cuda

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Name is the driver's name.
const Name = "cuda"

// Source tells of the GPUs of this host.
type Source interface {
	// Look lists the cards. While nothing changes the answer is the same, in the same order.
	Look(ctx context.Context) (nvmlwire.Facts, error)
	// Sample measures all cards.
	Sample(ctx context.Context) (nvmlwire.Sample, error)
	// Events receives what the driver reports by itself. The channel is the same every time and may lose events when nobody reads them.
	Events() <-chan nvmlwire.Event
}

// Shares makes what shares of cards need on the host; *mps.Manager satisfies it.
type Shares interface {
	// Ready reports why it cannot work on this host; nil when it can.
	Ready() error
	// Dir is the directory of sockets that a kernel with shares of those cards gets. It does not change.
	Dir(cards []string) string
	// Prepare makes it, Release drains the kernel's programs and takes it away. Both may be repeated.
	Prepare(ctx context.Context, kernel cluster.KernelID, limits map[string]Limit) error
	Release(ctx context.Context, kernel cluster.KernelID) error
	// Keep repairs what was made, where it broke.
	Keep(ctx context.Context)
	// Prepared are the kernels for which something is there.
	Prepared() []cluster.KernelID
	// Problem says in words why no more shares of a card can be given out; "" when they can.
	Problem(card string) string
}

// Options say what the driver works with.
type Options struct {
	Config Config
	Source Source
	// Engine asks the container engine what it can do.
	Engine func(context.Context) (runtime.Info, error)
	// Owner says which kernel a process of this host belongs to. Nil where nobody knows.
	Owner func(pid int) (cluster.KernelID, bool)
	// Shares is nil where shares need nothing made, or cannot be.
	Shares Shares
	// Root is where the host's files are; "" means "/".
	Root string
	Log  *slog.Logger
	// Changed is called when a card broke between two looks. Optional.
	Changed func()
}

// Driver gives NVIDIA GPUs to containers.
type Driver struct {
	o     Options
	kinds map[cluster.SlotName]cluster.SlotKind

	mu     sync.Mutex
	now    view
	broken map[string]string       // what an event said of a card, by its UUID
	told   map[string]bool         // what was logged once
	faults map[nvmlwire.Event]bool // of programs, logged since the newest look: whoever makes many fills no log
	// looked says that a look has succeeded.
	looked atomic.Bool
}

var (
	_ device.Driver   = (*Driver)(nil)
	_ device.Preparer = (*Driver)(nil)
)

// view is what the newest look found. It is never changed in place.
type view struct {
	machine machine
	method  method
	rung    cluster.Isolation
	// withheld says why shares are not given out; "" when they are.
	withheld string
}

// New returns a driver whose slots are those of the configuration, and of the MIG instances that are there now.
func New(ctx context.Context, o Options) (*Driver, error) {
	d := &Driver{o: o, broken: map[string]string{}, told: map[string]bool{}, faults: map[nvmlwire.Event]bool{}}
	if d.o.Root == "" {
		d.o.Root = "/"
	}
	profiles := o.Config.Profiles
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	f, err := o.Source.Look(ctx)
	switch {
	case err == nil && len(profiles) == 0:
		profiles = profilesOf(f)
	case err == nil:
	case o.Config.Enabled == On:
		return nil, fmt.Errorf("look for NVIDIA GPUs: %w", err)
	default:
		o.Log.Warn("NVIDIA GPUs cannot be looked at yet; instances of MIG are given out only if agent.cuda.profiles names them", "err", err)
	}
	if err == nil && o.Config.Enabled == On && len(f.GPUs) == 0 {
		return nil, fault.Invalidf("agent.cuda.enabled is %q and this host has no NVIDIA GPU", On).
			WithNext("look whether nvidia-smi lists it, or set agent.cuda.enabled to %q", Auto)
	}
	d.kinds = kindsOf(o.Config, profiles)
	return d, nil
}

// Bounds of what the driver waits for.
const (
	firstLook  = 10 * time.Second
	engineLook = 2 * time.Second
	keepLimit  = 4 * time.Second
)

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Kinds returns the slots of the configuration and of the MIG profiles that were known at the start.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind { return maps.Clone(d.kinds) }

// Run takes events until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-d.o.Source.Events():
			if !ok {
				<-ctx.Done()
				return ctx.Err()
			}
			if d.note(e) && d.o.Changed != nil {
				d.o.Changed()
			}
		}
	}
}

// drain takes the events that are there.
func (d *Driver) drain() {
	for {
		select {
		case e, ok := <-d.o.Source.Events():
			if !ok {
				return
			}
			d.note(e)
		default:
			return
		}
	}
}

// note takes one event and reports whether a card broke by it.
func (d *Driver) note(e nvmlwire.Event) bool {
	words := problem(e)
	d.mu.Lock()
	defer d.mu.Unlock()
	if i, ok := d.now.machine.instances[e.UUID]; ok {
		e.UUID = i.card
	}
	if words == "" {
		if !d.faults[e] {
			d.faults[e] = true
			d.o.Log.Warn("a program failed on a GPU", "gpu", e.UUID, "xid", e.XID)
		}
		return false
	}
	if d.broken[e.UUID] != "" {
		return false // the first error says most
	}
	d.o.Log.Error("a GPU broke; it is given out again after its reset or a restart of the agent", "gpu", e.UUID, "problem", words)
	d.broken[e.UUID] = words
	return true
}

// Discover asks the source and the engine. A card that broke stays broken until it is not found once, as during its reset.
func (d *Driver) Discover(ctx context.Context) ([]device.Device, error) {
	f, err := d.o.Source.Look(ctx)
	if err != nil && d.o.Config.Enabled == Auto && !d.looked.Load() {
		return nil, nil // it never had any that are known of; New has said why
	}
	if err != nil {
		return nil, fmt.Errorf("look for NVIDIA GPUs: %w", err)
	}
	d.looked.Store(true)
	d.drain()
	d.keep(ctx)
	m, err := machineOf(d.o.Config, f)
	if err != nil {
		return nil, err
	}
	how := d.inject(ctx, m)
	p := d.probe(m, how)
	withheld := sharesProblem(d.o.Config, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.broken {
		if _, here := m.cards[id]; !here {
			delete(d.broken, id)
		}
	}
	for _, words := range f.Problems {
		d.once("problem "+words, "a GPU of this host cannot be named, so it is not given out", "problem", words)
	}
	clear(d.faults)
	d.now = view{machine: m, method: how, rung: Rung(p), withheld: withheld}
	problems := maps.Clone(d.broken)
	for id := range m.cards {
		if d.o.Shares != nil && problems[id] == "" {
			if words := d.o.Shares.Problem(id); words != "" {
				problems[id] = words
			}
		}
	}
	var out []device.Device
	for _, x := range m.devices(problems, d.now.rung, withheld) {
		if _, ours := d.kinds[x.Slot]; ours {
			out = append(out, x)
		} else {
			d.once("profile "+string(x.Slot), "instances of a MIG profile that was not there at the start are not given out; restart the agent, "+
				"or name the profile in agent.cuda.profiles", "slot", x.Slot)
		}
	}
	return out, nil
}

// keep repairs what shares need. A daemon that hangs does not keep the look from its end.
func (d *Driver) keep(ctx context.Context) {
	if d.o.Shares == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	d.o.Shares.Keep(ctx)
}

// once logs something the first time; the caller holds mu.
func (d *Driver) once(key, message string, args ...any) {
	if !d.told[key] {
		d.told[key] = true
		d.o.Log.Warn(message, args...)
	}
}

// snapshot is the newest view.
func (d *Driver) snapshot() view {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// Grant says what a container needs to use its devices. A container that has none gets variables that keep its image from taking some.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	v := d.snapshot()
	var dir func([]string) string
	if d.o.Shares != nil {
		dir = d.o.Shares.Dir
	}
	return grantOf(v, d.o.Config, d.kinds, a, dir)
}

// Prepare makes what the shares of an allocation need.
func (d *Driver) Prepare(ctx context.Context, kernel cluster.KernelID, a alloc.Allocation) error {
	v := d.snapshot()
	x, err := choose(v, d.o.Config, d.kinds, a)
	if err != nil || len(x.limits) == 0 || d.o.Shares == nil || !v.rung.AtLeast(Cooperative) {
		return err
	}
	return d.o.Shares.Prepare(ctx, kernel, x.limits)
}

// Release ends a kernel's programs on shared cards and takes back what was made for them.
func (d *Driver) Release(ctx context.Context, kernel cluster.KernelID) error {
	if d.o.Shares == nil {
		return nil
	}
	return d.o.Shares.Release(ctx, kernel)
}

// Prepared are the kernels that have shares with something made for them.
func (d *Driver) Prepared() []cluster.KernelID {
	if d.o.Shares == nil {
		return nil
	}
	return d.o.Shares.Prepared()
}

// Shield is the driver of hosts whose NVIDIA GPUs are not given out: it has no slots, and keeps images from taking cards by themselves.
type Shield struct{}

var _ device.Driver = Shield{}

// Name returns the driver's name.
func (Shield) Name() string { return Name }

// Kinds returns no slots.
func (Shield) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{}
}

// Discover finds nothing.
func (Shield) Discover(context.Context) ([]device.Device, error) { return nil, nil }

// Grant hides the host's cards from every container.
func (Shield) Grant(alloc.Allocation) (device.Grant, error) { return device.Grant{Env: hidden()}, nil }

// Sample measures nothing.
func (Shield) Sample(context.Context, map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	return device.NewUsage(), nil
}

// sorted returns the keys of a set in order.
func sorted[K ~string, T any](m map[K]T) []K { return slices.Sorted(maps.Keys(m)) }
