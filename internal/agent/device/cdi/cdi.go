// Package cdi is a device driver of accelerators and network adapters of any vendor who describes them by the Container Device Interface
// (https://github.com/cncf-tags/container-device-interface). A TOML file says which devices fill which slot, how they are found in /sys,
// and which commands measure them. There is one driver for each file.
//
// An engine that reads the same specifications injects the devices by their names. Where it does not, the driver applies the edits of the
// specification itself; a device that needs more than that, such as a hook, is not given out, and says so.
package cdi

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/pci"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Options say what a driver looks at.
type Options struct {
	// Sys is the file system of /sys.
	Sys fs.FS
	// EngineDirs are where the container engine reads specifications, none when it cannot inject devices. Nil means none.
	EngineDirs func() []string
	// Exists reports whether a path is on this host; nil looks.
	Exists func(path string) bool
	// Run runs a program and returns what it printed; nil runs it.
	Run func(ctx context.Context, args []string) ([]byte, error)
	Now func() time.Time
}

// Driver gives out the devices of one class.
type Driver struct {
	o     Options
	c     class
	name  string
	guard device.Guard

	mu      sync.Mutex
	found   map[string]*unit // by the newest look; never changed in place
	metrics measured

	health judged // of the looks, which come one after the other
}

// unit is one device as the newest look saw it.
type unit struct {
	device device.Device
	entry  entry
	// injected says that the engine knows it by name.
	injected bool
}

type measured struct {
	at     time.Time
	values map[string]map[string]float64
}

type judged struct {
	at     time.Time
	values map[string]string
}

// stale is how many intervals old measurements may be; older ones are unknown.
const stale = 3

var _ device.Driver = (*Driver)(nil)

// New returns the driver of a class; nothing is looked at yet.
func New(c Class, o Options) (*Driver, error) {
	built, err := c.build()
	if err != nil {
		return nil, err
	}
	if o.EngineDirs == nil {
		o.EngineDirs = func() []string { return nil }
	}
	if o.Exists == nil {
		o.Exists = func(path string) bool { _, err := os.Stat(path); return err == nil }
	}
	if o.Run == nil {
		o.Run = run
	}
	return &Driver{o: o, c: built, name: "cdi:" + string(built.slot), guard: device.NewGuard()}, nil
}

// Name returns the driver's name.
func (d *Driver) Name() string { return d.name }

// Kinds returns the slot of this class.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{d.c.slot: d.c.count}
}

// Discover reads the specifications, looks where their devices are, and runs the commands whose time has come.
func (d *Driver) Discover(ctx context.Context) ([]device.Device, error) {
	return device.Guarded(ctx, d.guard, func() ([]device.Device, error) { return d.look(ctx) })
}

func (d *Driver) look(ctx context.Context) ([]device.Device, error) {
	entries, err := readSpecs(ctx, d.c.dirs, d.c.kind)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool { return !d.wanted(e.name) })
	judged, err := d.judge(ctx, len(entries))
	if err != nil {
		return nil, err
	}
	var accelerators map[string]pci.Way
	if d.c.hca && len(entries) > 0 {
		accelerators = map[string]pci.Way{}
		for _, addr := range pci.Accelerators(d.o.Sys) {
			accelerators[addr] = pci.WayTo(d.o.Sys, addr)
		}
	}
	engine := d.o.EngineDirs()
	found, out := make(map[string]*unit, len(entries)), make([]device.Device, 0, len(entries))
	for _, e := range entries {
		u := &unit{entry: e, injected: slices.ContainsFunc(engine, func(dir string) bool { return sameDir(dir, e.dir) })}
		u.device = d.locate(e.name)
		problem := cmpOr(e.problem, u.device.Problem, d.unusable(u))
		if judged != nil && problem == "" {
			words, named := judged[e.name]
			if problem = words; !named {
				problem = "the health command says nothing of it"
			}
		}
		u.device.Problem, u.device.Healthy = problem, problem == ""
		own := pci.WayTo(d.o.Sys, u.device.PCI)
		for addr, way := range accelerators {
			if class := pci.Class(own, way); class > 0 {
				if u.device.Links == nil {
					u.device.Links = map[string]int{}
				}
				u.device.Links[addr] = class
			}
		}
		found[e.name] = u
		shown := u.device
		shown.Links = maps.Clone(shown.Links)
		out = append(out, shown)
	}
	d.measure(ctx, len(entries))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = found
	return out, nil
}

func cmpOr(problems ...string) string {
	for _, p := range problems {
		if p != "" {
			return p
		}
	}
	return ""
}

// wanted reports whether a device of that name is given out. "all" stands for every device of a vendor and is one only where names say so.
func (d *Driver) wanted(name string) bool {
	return d.c.names.MatchString(name) && (name != "all" || d.c.names.String() != "^(?:.*)$")
}

// sameDir compares directories; /var/run and /run are one on Linux.
func sameDir(a, b string) bool {
	plain := func(p string) string { return strings.TrimPrefix(filepath.Clean(p), "/var") }
	return filepath.Clean(a) == filepath.Clean(b) || strings.HasPrefix(plain(a), "/run/") && plain(a) == plain(b)
}

// locate finds a device in /sys. Where the file names a directory and the host has none, the device is broken: its specification is older
// than the host.
func (d *Driver) locate(name string) device.Device {
	out := device.Device{Memory: d.c.memory, Device: alloc.Device{
		Slot: d.c.slot, ID: name, NUMA: -1, Model: d.c.model, Capacity: d.c.capacity}}
	groups := d.c.names.FindStringSubmatch(name)
	if d.c.sysfs != "" {
		dir, ok := d.c.sysfs.of(name, groups)
		if !ok {
			out.Problem = "its name gives no path below /sys"
			return out
		}
		if _, err := fs.Stat(d.o.Sys, dir); err != nil {
			out.Problem = fmt.Sprintf("/sys/%s is not there, so this host has no such device", dir)
			return out
		}
		out.PCI = pci.Of(d.o.Sys, dir)
		if out.NUMA = pci.NUMA(d.o.Sys, dir); out.NUMA < 0 && out.PCI != "" {
			out.NUMA = pci.NUMA(d.o.Sys, pci.Dir(out.PCI))
		}
	}
	if d.c.modelFile != "" {
		if file, ok := d.c.modelFile.of(name, groups); ok {
			if line, err := pci.Line(d.o.Sys, file); err == nil { // a model that is not told is unknown
				out.Model = clean(line)
			}
		}
	}
	if d.c.healthFile != "" {
		file, ok := d.c.healthFile.of(name, groups)
		if !ok {
			out.Problem = "its name gives no path below /sys"
			return out
		}
		line, err := pci.Line(d.o.Sys, file)
		switch {
		case err != nil:
			out.Problem = fmt.Sprintf("/sys/%s cannot be read", file)
		case !d.c.healthy.MatchString(line):
			out.Problem = fmt.Sprintf("/sys/%s says %q", file, clean(line))
		}
	}
	return out
}

// unusable says why a device cannot be given to a container of this engine.
func (d *Driver) unusable(u *unit) string {
	if u.injected || u.entry.problem != "" {
		return ""
	}
	e, problem := editsOf([]*unit{u}, d.c.ignored)
	if problem != "" {
		return problem
	}
	g := e.grant()
	if err := g.Validate(); err != nil {
		return "its specification cannot be applied: " + err.Error()
	}
	for _, n := range g.Nodes {
		if !d.o.Exists(n.Source) {
			return fmt.Sprintf("the device file %s of its specification is not on this host", n.Source)
		}
	}
	for _, m := range g.Mounts {
		if !d.o.Exists(m.Source) {
			return fmt.Sprintf("the file %s of its specification is not on this host", m.Source)
		}
	}
	return ""
}

// judge returns what the health command says of each device, nil where there is none. A run that failed is tried again with the next look.
func (d *Driver) judge(ctx context.Context, devices int) (map[string]string, error) {
	if len(d.c.health.args) == 0 || devices == 0 {
		return nil, nil
	}
	now := d.o.Now()
	if d.health.values == nil || now.Sub(d.health.at) >= d.c.health.every {
		d.health = judged{}
		text, err := d.outcome(ctx, d.c.health)
		if err != nil {
			return nil, fmt.Errorf("ask for the health of devices: %w", err)
		}
		d.health = judged{now, parseHealth(text)}
	}
	return d.health.values, nil
}

// measure runs the metrics command when its time has come. What it does not tell is unknown.
func (d *Driver) measure(ctx context.Context, devices int) {
	now := d.o.Now()
	d.mu.Lock()
	due := len(d.c.metrics.args) > 0 && devices > 0 && (d.metrics.values == nil || now.Sub(d.metrics.at) >= d.c.metrics.every)
	d.mu.Unlock()
	if !due {
		return
	}
	text, err := d.outcome(ctx, d.c.metrics)
	if err != nil {
		return
	}
	values := parseMetrics(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.metrics = measured{now, values}
}

// Grant names the devices to an engine that knows them, and applies the edits of their specifications elsewhere.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	if len(a[d.c.slot]) == 0 {
		return device.Grant{}, nil
	}
	d.mu.Lock()
	found := d.found
	d.mu.Unlock()
	bad := func(format string, args ...any) (device.Grant, error) {
		return device.Grant{}, fault.Invalidf(format, args...).WithReason(device.ReasonGrant)
	}
	var byName, byHand []*unit
	var names []string
	for _, id := range slices.SortedFunc(maps.Keys(a[d.c.slot]), natural) {
		u, ok := found[id]
		if !ok {
			return bad("%q is not a device of slot %s", id, d.c.slot)
		}
		if amount := a[d.c.slot][id]; amount <= 0 || amount > d.c.capacity {
			return bad("%s of device %s cannot be given", amount, id)
		}
		if !u.device.Healthy {
			return bad("device %s of slot %s cannot be given: %s", id, d.c.slot, u.device.Problem)
		}
		names = append(names, id)
		if u.injected {
			byName = append(byName, u)
		} else {
			byHand = append(byHand, u)
		}
	}
	e, problem := editsOf(byHand, d.c.ignored)
	if problem != "" {
		return bad("devices %s of slot %s cannot be given: %s", strings.Join(names, ", "), d.c.slot, problem)
	}
	out := e.grant()
	for _, u := range byName {
		out.CDI = append(out.CDI, d.c.kind+"="+u.entry.name)
	}
	for name, value := range d.c.env {
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		out.Env[name] = strings.NewReplacer("{names}", strings.Join(names, ","), "{count}", strconv.Itoa(len(names))).Replace(value)
	}
	return out, nil
}

// Sample tells what the metrics command last said, of devices and of the kernels that hold them. The names begin with the family of the
// slot: gaudi2_util in percent, gaudi2_mem and gaudi2_mem_total in bytes, gaudi2_power in watts and gaudi2_temperature in degrees Celsius.
func (d *Driver) Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	if err := ctx.Err(); err != nil {
		return device.Usage{}, err
	}
	d.mu.Lock()
	found, metrics := d.found, d.metrics
	d.mu.Unlock()
	if d.o.Now().Sub(metrics.at) > stale*d.c.metrics.every {
		metrics.values = nil
	}
	out := device.NewUsage()
	values := map[string]map[string]float64{}
	for id, u := range found {
		if !u.device.Healthy {
			continue // unknown
		}
		one := map[string]float64{}
		for name, v := range metrics.values[id] {
			one[d.c.family+"_"+name] = v
		}
		if size := d.c.family + "_mem_total"; u.device.Memory > 0 {
			if _, told := one[size]; !told {
				one[size] = float64(u.device.Memory)
			}
		}
		if len(one) > 0 {
			values[id] = one
			out.Devices[device.Ref{Slot: d.c.slot, ID: id}] = maps.Clone(one)
		}
	}
	hot := d.c.family + "_temperature"
	for kernel, a := range held {
		sum := map[string]float64{}
		for id, amount := range a[d.c.slot] {
			if amount <= 0 {
				continue
			}
			for name, v := range values[id] {
				if name == hot {
					sum[name] = max(sum[name], v)
				} else {
					sum[name] += v
				}
			}
		}
		if len(sum) > 0 {
			out.Kernels[kernel] = sum
		}
	}
	return out, nil
}
