package mock

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Machine is what a file describes.
type Machine struct {
	// Slots are the slots that the devices fill: "cuda.device" = "count".
	Slots map[cluster.SlotName]cluster.SlotKind `toml:"slots"`
	// Isolation is how well those who share devices of a slot are kept apart: "cuda.shares" = "driver".
	Isolation map[cluster.SlotName]cluster.Isolation `toml:"isolation"`
	Devices   []Hardware                             `toml:"devices"`
	Links     []Connection                           `toml:"links"`
	Faults    []Breakdown                            `toml:"faults"`
}

// Hardware is one accelerator.
type Hardware struct {
	UUID  string `toml:"uuid"`
	Model string `toml:"model"`
	PCI   string `toml:"pci"`
	// NUMA is the number of its node; left out it is unknown.
	NUMA *int `toml:"numa"`
	// Memory is an amount such as "80g".
	Memory string `toml:"memory"`
	// Slots are what it has to give: "cuda.device" = "1".
	Slots map[cluster.SlotName]string `toml:"slots"`
	// Nodes are device files of the host that a container gets with it: "/dev/null", or "/dev/null:/dev/mock0" for another
	// name inside. CDI is the name of a CDI device.
	Nodes []string `toml:"nodes"`
	CDI   string   `toml:"cdi"`
	// Load is the utilisation in percent while a kernel has all of it.
	Load float64 `toml:"load"`
	// Power in watts and Temperature in degrees Celsius; left out they are not measured.
	Power       *Span `toml:"power"`
	Temperature *Span `toml:"temperature"`
}

// Span is a measurement that follows the utilisation: Idle at none, Full at 100 percent.
type Span struct {
	Idle float64 `toml:"idle"`
	Full float64 `toml:"full"`
}

// maxSpan bounds what a file may claim.
const maxSpan = 10_000

func (s *Span) check(what string) error {
	if s != nil && !(s.Idle >= 0 && s.Idle <= s.Full && s.Full <= maxSpan) { // nor what is no number
		return fault.Invalidf("%s from %v to %v does not rise from 0 or more to %d at most", what, s.Idle, s.Full, maxSpan)
	}
	return nil
}

// at is the value at a utilisation in percent.
func (s *Span) at(util float64) float64 { return s.Idle + (s.Full-s.Idle)*util/100 }

// Connection links two devices.
type Connection struct {
	Between []string `toml:"between"`
	// Class is sibling, nvlink, switch, node or far.
	Class string `toml:"class"`
}

// Breakdown breaks a device some time after the agent's start.
type Breakdown struct {
	Device string `toml:"device"`
	// After is the time of the breakdown, For how long it lasts; left out it lasts for ever. Both are durations such as "3m".
	After string `toml:"after"`
	For   string `toml:"for"`
	// Problem is what is reported. With Gone the device is not found at all.
	Problem string `toml:"problem"`
	Gone    bool   `toml:"gone"`
}

var classes = map[string]int{
	"sibling": alloc.DistanceSibling, "nvlink": alloc.DistanceFast, "switch": alloc.DistanceSwitch, "node": alloc.DistanceNode,
	"far": alloc.DistanceFar,
}

// maxFile bounds the file.
const maxFile = 1 << 20

// Read reads the description of a machine.
func Read(file string) (Machine, error) {
	f, err := os.Open(file)
	if err != nil {
		return Machine{}, fault.Invalidf("the file of mock devices cannot be read").WithCause(err).
			WithNext("correct agent.mock_devices, or leave it out")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Machine{}, fmt.Errorf("read mock devices: %w", err)
	}
	if len(b) > maxFile {
		return Machine{}, fault.Invalidf("the file of mock devices %s is larger than %d bytes", file, maxFile)
	}
	m, err := Parse(b)
	if err != nil {
		return Machine{}, fmt.Errorf("read mock devices from %s: %w", file, err)
	}
	return m, nil
}

// Parse reads the description of a machine from TOML. What it does not know is an error.
func Parse(text []byte) (Machine, error) {
	var m Machine
	decoder := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
			row, _ := unknown.Errors[0].Position()
			return Machine{}, fault.Invalidf("line %d: there is no key %q", row, strings.Join(unknown.Errors[0].Key(), "."))
		}
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			row, column := bad.Position()
			return Machine{}, fault.Invalidf("line %d, column %d: %s", row, column, strings.TrimPrefix(bad.Error(), "toml: "))
		}
		return Machine{}, fault.Invalidf("it is no TOML").WithCause(err)
	}
	if _, err := m.build(); err != nil {
		return Machine{}, err
	}
	return m, nil
}

// unit is one accelerator, read and checked.
type unit struct {
	devices []device.Device // one for each slot
	grant   device.Grant    // its nodes and its CDI name
	load    float64
	power   *Span
	heat    *Span
	faults  []breakdown
}

type breakdown struct {
	from, until time.Duration // until 0: for ever
	problem     string
	gone        bool
}

// build checks the whole description. It is pure.
func (m Machine) build() ([]unit, error) {
	for _, slot := range slices.Sorted(maps.Keys(m.Slots)) {
		family, _, ok := strings.Cut(string(slot), ".")
		if kind := m.Slots[slot]; kind != cluster.SlotCount && kind != cluster.SlotBytes && kind != cluster.SlotUnique {
			return nil, fault.Invalidf("slot %q is counted as %q, not as count, bytes or unique", slot, kind)
		}
		if !ok || family == "" || strings.ToLower(family) != family {
			return nil, fault.Invalidf("slot %q is not of the form family.name", slot)
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(m.Isolation)) {
		if _, ok := m.Slots[slot]; !ok {
			return nil, fault.Invalidf("isolation: slot %q is not among the machine's slots", slot)
		}
		if _, err := cluster.ParseIsolation(string(m.Isolation[slot])); err != nil {
			return nil, fmt.Errorf("isolation of slot %s: %w", slot, err)
		}
	}
	at := map[string]int{}
	var out []unit
	for i, h := range m.Devices {
		if _, twice := at[h.UUID]; twice || h.UUID == "" {
			return nil, fault.Invalidf("devices[%d]: the uuid %q is empty or used twice", i, h.UUID)
		}
		at[h.UUID] = i
		u, err := m.unit(h)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", h.UUID, err)
		}
		out = append(out, u)
	}
	for i, l := range m.Links {
		class, ok := classes[l.Class]
		if !ok {
			return nil, fault.Invalidf("links[%d]: class %q is not one of %s", i, l.Class, strings.Join(slices.Sorted(maps.Keys(classes)), ", "))
		}
		for n, a := range l.Between {
			for _, b := range l.Between[n+1:] {
				from, ok1 := at[a]
				to, ok2 := at[b]
				if !ok1 || !ok2 || from == to {
					return nil, fault.Invalidf("links[%d]: %q and %q are not two devices of this machine", i, a, b)
				}
				out[from].link(b, class)
				out[to].link(a, class)
			}
		}
	}
	for i, f := range m.Faults {
		n, ok := at[f.Device]
		if !ok {
			return nil, fault.Invalidf("faults[%d]: there is no device %q", i, f.Device)
		}
		b, err := f.parse()
		if err != nil {
			return nil, fmt.Errorf("faults[%d]: %w", i, err)
		}
		out[n].faults = append(out[n].faults, b)
	}
	// Whatever is given together must be possible together.
	var all []device.Part
	for i, u := range out {
		all = append(all, device.Part{Driver: m.Devices[i].UUID, Grant: u.grant})
	}
	if _, err := device.Merge(all...); err != nil {
		return nil, err
	}
	return out, nil
}

func (m Machine) unit(h Hardware) (unit, error) {
	u := unit{load: h.Load, power: h.Power, heat: h.Temperature}
	if err := cmp.Or(h.Power.check("power"), h.Temperature.check("temperature")); err != nil {
		return u, err
	}
	if !(h.Load >= 0 && h.Load <= 100) { // nor what is no number, which metrics cannot tell
		return u, fault.Invalidf("a load of %v percent is not between 0 and 100", h.Load)
	}
	numa := -1
	if h.NUMA != nil {
		if numa = *h.NUMA; numa < 0 {
			return u, fault.Invalidf("NUMA node %d is below zero", numa)
		}
	}
	var memory int64
	if h.Memory != "" {
		var err error
		if memory, err = cluster.ParseBytes(h.Memory); err != nil {
			return u, fmt.Errorf("memory: %w", err)
		}
	}
	if len(h.Slots) == 0 {
		return u, fault.Invalidf("it fills no slot").WithNext(`write slots = { "cuda.device" = "1" }`)
	}
	for _, slot := range slices.Sorted(maps.Keys(h.Slots)) {
		kind, ok := m.Slots[slot]
		if !ok {
			return u, fault.Invalidf("slot %q is not among the machine's slots", slot)
		}
		capacity, err := cluster.ParseAmount(kind, h.Slots[slot])
		if err != nil {
			return u, fmt.Errorf("slot %s: %w", slot, err)
		}
		if capacity <= 0 {
			return u, fault.Invalidf("slot %s has no capacity", slot)
		}
		u.devices = append(u.devices, device.Device{Memory: memory, Device: alloc.Device{
			Slot: slot, ID: h.UUID, NUMA: numa, PCI: h.PCI, Model: h.Model, Capacity: capacity, Healthy: true,
			Isolation: m.Isolation[slot]}})
	}
	for _, text := range h.Nodes {
		source, target, named := strings.Cut(text, ":")
		if !named {
			target = source
		}
		if !strings.HasPrefix(path.Clean(source), "/dev/") {
			return u, fault.Invalidf("%q is not a path below /dev", source)
		}
		u.grant.Nodes = append(u.grant.Nodes, runtime.DeviceNode{Source: source, Target: target, Permissions: "rwm"})
	}
	if h.CDI != "" {
		u.grant.CDI = []string{h.CDI}
	}
	return u, nil
}

func (u *unit) link(other string, class int) {
	for i := range u.devices {
		if u.devices[i].Links == nil {
			u.devices[i].Links = map[string]int{}
		}
		u.devices[i].Links[other] = class
	}
}

func (f Breakdown) parse() (breakdown, error) {
	out := breakdown{problem: f.Problem, gone: f.Gone}
	var err error
	if out.from, err = time.ParseDuration(f.After); err != nil || out.from < 0 {
		return out, fault.Invalidf("after = %q is not a duration such as 3m", f.After)
	}
	if f.For != "" {
		last, err := time.ParseDuration(f.For)
		if err != nil || last <= 0 {
			return out, fault.Invalidf("for = %q is not a duration such as 3m", f.For)
		}
		out.until = out.from + last
	}
	if out.problem == "" && !out.gone {
		return out, fault.Invalidf("it says neither which problem the device has nor that it is gone")
	}
	return out, nil
}
