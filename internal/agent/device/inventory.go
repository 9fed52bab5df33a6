package device

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Bounds of one agent's devices and of the calls of its drivers.
const (
	// maxDevices is what a manager takes from one agent.
	maxDevices    = 4096
	discoverLimit = 10 * time.Second
	sampleLimit   = time.Second
	// failures is how many looks in a row must fail before a driver's devices count as broken.
	failures = 2
)

// Inventory is the drivers of one agent and what they found. All methods may be called at the same time.
type Inventory struct {
	drivers []Driver
	owner   map[cluster.SlotName]Driver

	looking sync.Mutex // one look at a time
	mu      sync.Mutex
	known   map[string]found // by driver
}

// found is what is known of one driver's devices. It is never changed in place.
type found struct {
	devices []Device
	failed  int   // looks in a row
	err     error // of the newest look
}

// NewInventory takes the drivers of an agent; nothing is looked at before Refresh.
func NewInventory(drivers ...Driver) (*Inventory, error) {
	v := &Inventory{drivers: slices.Clone(drivers), owner: map[cluster.SlotName]Driver{}, known: map[string]found{}}
	for _, d := range drivers {
		if _, twice := v.known[d.Name()]; twice || d.Name() == "" {
			return nil, fault.Invalidf("two device drivers are called %q", d.Name())
		}
		v.known[d.Name()] = found{}
		for _, slot := range slices.Sorted(maps.Keys(d.Kinds())) {
			if other := v.owner[slot]; other != nil {
				return nil, fault.Invalidf("slot %s is filled by two device drivers, %s and %s", slot, other.Name(), d.Name()).
					WithNext("leave one of the two drivers out of this agent's configuration")
			}
			v.owner[slot] = d
		}
	}
	return v, nil
}

// Kinds are the slots of all drivers.
func (v *Inventory) Kinds() map[cluster.SlotName]cluster.SlotKind {
	out := map[cluster.SlotName]cluster.SlotKind{}
	for _, d := range v.drivers {
		maps.Copy(out, d.Kinds())
	}
	return out
}

// Refresh asks every driver once and reports whether something changed. The error joins those of drivers that could not
// look; what they found earlier stays known.
func (v *Inventory) Refresh(ctx context.Context) (changed bool, err error) {
	v.looking.Lock()
	defer v.looking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, discoverLimit)
	defer cancel()
	type look struct {
		devices []Device
		err     error
	}
	looks := make([]look, len(v.drivers))
	var group sync.WaitGroup
	for i, d := range v.drivers {
		group.Go(func() {
			l := &looks[i]
			if l.devices, l.err = d.Discover(ctx); l.err == nil {
				l.err = check(d.Kinds(), l.devices)
			}
		})
	}
	group.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, d := range v.drivers {
		old := v.known[d.Name()]
		next := after(old, looks[i].devices, looks[i].err)
		if !slices.EqualFunc(old.devices, next.devices, Device.Equal) || text(old.err) != text(next.err) {
			changed = true
		}
		v.known[d.Name()] = next
		if looks[i].err != nil && err == nil {
			err = fmt.Errorf("look for devices of driver %s: %w", d.Name(), looks[i].err)
		}
	}
	return changed, err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// check refuses an answer of a driver that cannot be true.
func check(kinds map[cluster.SlotName]cluster.SlotKind, devices []Device) error {
	if len(devices) > maxDevices {
		return fault.Invalidf("it found %d devices, at most %d can be used", len(devices), maxDevices)
	}
	seen := map[Ref]bool{}
	for _, d := range devices {
		ref := Ref{d.Slot, d.ID}
		switch _, ours := kinds[d.Slot]; {
		case !ours:
			return fault.Invalidf("device %q is of slot %q, which this driver does not fill", d.ID, d.Slot)
		case d.ID == "" || len(d.ID) > 256:
			return fault.Invalidf("a device of slot %s has no usable id: %q", d.Slot, d.ID)
		case seen[ref]:
			return fault.Invalidf("two devices of slot %s have the id %q", d.Slot, d.ID)
		case d.Capacity < 0 || d.Memory < 0:
			return fault.Invalidf("device %q of slot %s has less than nothing", d.ID, d.Slot)
		}
		seen[ref] = true
	}
	return nil
}

// after is what is known after one more look; it is pure. A device that vanished stays listed as broken, so that kernels
// which hold it still count, until the agent starts again. One failed look means nothing; after the second in a row nothing
// of the driver is given out until a look succeeds.
func after(old found, devices []Device, err error) found {
	if err != nil {
		next := found{devices: old.devices, failed: old.failed + 1, err: err}
		if next.failed >= failures {
			next.devices = slices.Clone(old.devices)
			for i := range next.devices {
				next.devices[i].Healthy, next.devices[i].Problem = false, "its driver cannot look at it: "+err.Error()
			}
		}
		return next
	}
	next := found{devices: slices.Clone(devices)}
	here := map[Ref]bool{}
	for i, d := range next.devices {
		here[Ref{d.Slot, d.ID}] = true
		if d.Healthy {
			next.devices[i].Problem = ""
		} else if d.Problem == "" {
			next.devices[i].Problem = "its driver does not say why"
		}
	}
	for _, d := range old.devices {
		if !here[Ref{d.Slot, d.ID}] && len(next.devices) < maxDevices {
			d.Healthy, d.Problem = false, "it is not there any more"
			next.devices = append(next.devices, d)
		}
	}
	return next
}

// Devices returns everything that is known, in the order of the drivers.
func (v *Inventory) Devices() []Device {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []Device
	for _, d := range v.drivers {
		out = append(out, v.known[d.Name()].devices...)
	}
	return out[:min(len(out), maxDevices)]
}

// Allocatable returns the devices as the allocator knows them.
func (v *Inventory) Allocatable() []alloc.Device {
	devices := v.Devices()
	out := make([]alloc.Device, len(devices))
	for i, d := range devices {
		out[i] = d.Device
	}
	return out
}

// maxWarnings bounds what Warnings returns.
const maxWarnings = 64

// Warnings say in words what is broken; of very much it names a part.
func (v *Inventory) Warnings() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for _, d := range v.drivers {
		known := v.known[d.Name()]
		if known.err != nil {
			out = append(out, fmt.Sprintf("device driver %s cannot look at the host: %v", d.Name(), known.err))
		}
		if known.failed >= failures {
			continue // one reason for all of its devices
		}
		for _, x := range known.devices {
			if !x.Healthy && len(out) < maxWarnings {
				out = append(out, fmt.Sprintf("device %s of slot %s is not given out: %s", x.ID, x.Slot, x.Problem))
			}
		}
	}
	return out
}

// Usable reports, as a Conflict, the first device of an allocation that is broken or gone.
func (v *Inventory) Usable(a alloc.Allocation) error {
	state := map[Ref]Device{}
	for _, d := range v.Devices() {
		state[Ref{d.Slot, d.ID}] = d
	}
	for _, slot := range slices.Sorted(maps.Keys(a)) {
		for _, id := range slices.Sorted(maps.Keys(a[slot])) {
			switch d, known := state[Ref{slot, id}]; {
			case !known:
				return fault.Conflictf("%s device %q is not a device of this agent", slot, id).WithReason("device-conflict")
			case !d.Healthy:
				return fault.Conflictf("%s device %q cannot be used: %s", slot, id, d.Problem).WithReason("device-unhealthy")
			}
		}
	}
	return nil
}

// Grant turns an allocation into what a container needs.
func (v *Inventory) Grant(a alloc.Allocation) (Grant, error) {
	for _, slot := range slices.Sorted(maps.Keys(a)) {
		if v.owner[slot] == nil {
			return Grant{}, fault.Conflictf("no device driver of this agent fills slot %s", slot).WithReason("device-conflict")
		}
	}
	var parts []Part
	for _, d := range v.drivers {
		g, err := d.Grant(a)
		if err != nil {
			return Grant{}, fmt.Errorf("grant devices of driver %s: %w", d.Name(), err)
		}
		parts = append(parts, Part{Driver: d.Name(), Grant: g})
	}
	return Merge(parts...)
}

// Sample measures everything. A driver that fails or takes too long leaves its part out.
func (v *Inventory) Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) Usage {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	parts := make([]Usage, len(v.drivers))
	var group sync.WaitGroup
	for i, d := range v.drivers {
		group.Go(func() {
			if u, err := d.Sample(ctx, held); err == nil {
				parts[i] = u
			}
		})
	}
	group.Wait()
	out := NewUsage()
	for _, u := range parts {
		out.add(u)
	}
	return out
}
