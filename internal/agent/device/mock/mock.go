// Package mock is a device driver of accelerators that do not exist. A TOML file describes the machine: its devices with
// NUMA nodes, links and slots, when which of them breaks, and how busy they are. Tests, demonstrations and simulations see
// the same devices, grants, measurements and breakdowns as on real hardware; programs in the containers find nothing but
// the variables and the device files that the file names.
package mock

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Name is the driver's name.
const Name = "mock"

// Driver gives out the devices of a Machine.
type Driver struct {
	kinds map[cluster.SlotName]cluster.SlotKind
	units []unit
	now   func() time.Time
	began time.Time
}

var _ device.Driver = (*Driver)(nil)

// New returns a driver of that machine, whose time begins now.
func New(m Machine, now func() time.Time) (*Driver, error) {
	units, err := m.build()
	if err != nil {
		return nil, err
	}
	return &Driver{kinds: maps.Clone(m.Slots), units: units, now: now, began: now()}, nil
}

// Name returns the driver's name.
func (d *Driver) Name() string { return Name }

// Kinds returns the slots of the machine.
func (d *Driver) Kinds() map[cluster.SlotName]cluster.SlotKind { return maps.Clone(d.kinds) }

// Discover returns the devices as they are at this time of the machine.
func (d *Driver) Discover(ctx context.Context) ([]device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return state(d.units, d.now().Sub(d.began)), nil
}

// state is pure: the devices of a machine that runs for so long.
func state(units []unit, age time.Duration) []device.Device {
	var out []device.Device
	for _, u := range units {
		problem, gone := u.broken(age)
		if gone {
			continue
		}
		for _, x := range u.devices {
			x.Links = maps.Clone(x.Links)
			x.Healthy, x.Problem = problem == "", problem
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b device.Device) int { return strings.Compare(string(a.Slot), string(b.Slot)) })
	return out
}

func (u unit) broken(age time.Duration) (problem string, gone bool) {
	for _, f := range u.faults {
		if age >= f.from && (f.until == 0 || age < f.until) {
			problem, gone = f.problem, gone || f.gone
		}
	}
	return problem, gone
}

// share is how much of a device one allocation has, in 0 to 1: the largest part of any of its slots.
func (u unit) share(a alloc.Allocation) float64 {
	var out float64
	for _, x := range u.devices {
		out = max(out, float64(a[x.Slot][x.ID])/float64(x.Capacity))
	}
	return min(out, 1)
}

// Grant names the devices in variables, one pair for each family of slots: BACKENDAI_MOCK_CUDA_DEVICES and
// BACKENDAI_MOCK_CUDA_DEVICE_COUNT for cuda.device.
func (d *Driver) Grant(a alloc.Allocation) (device.Grant, error) {
	given := map[string][]string{} // family -> ids
	var parts []device.Part
	for _, u := range d.units {
		taken := false
		for _, x := range u.devices {
			amount, ok := a[x.Slot][x.ID]
			if !ok {
				continue
			}
			if amount <= 0 || amount > x.Capacity {
				return device.Grant{}, fault.Invalidf("%s of device %s cannot be given", amount, x.ID).WithReason(device.ReasonGrant)
			}
			family, _, _ := strings.Cut(string(x.Slot), ".")
			if ids := given[family]; !slices.Contains(ids, x.ID) {
				given[family] = append(ids, x.ID)
			}
			taken = true
		}
		if taken {
			parts = append(parts, device.Part{Driver: u.devices[0].ID, Grant: u.grant})
		}
	}
	for slot := range d.kinds {
		for id := range a[slot] {
			if !slices.ContainsFunc(d.units, func(u unit) bool { return u.has(slot, id) }) {
				return device.Grant{}, fault.Invalidf("%q is not a device of slot %s", id, slot).WithReason(device.ReasonGrant)
			}
		}
	}
	out, err := device.Merge(parts...)
	if err != nil {
		return device.Grant{}, err
	}
	for family, ids := range given {
		name := "BACKENDAI_MOCK_" + strings.ToUpper(strings.ReplaceAll(family, "-", "_"))
		out.Env[name+"_DEVICES"], out.Env[name+"_DEVICE_COUNT"] = strings.Join(ids, ","), strconv.Itoa(len(ids))
	}
	return out, nil
}

func (u unit) has(slot cluster.SlotName, id string) bool {
	return slices.ContainsFunc(u.devices, func(x device.Device) bool { return x.Slot == slot && x.ID == id })
}

// Sample reports every healthy device as busy as the file says in proportion to how much of it kernels have, and its memory
// as filled in the same proportion; power and temperature follow where the file says how. The names begin with the family of the slot:
// cuda_util (percent; 100 is one device), cuda_mem and cuda_mem_total (bytes), cuda_power (watts), cuda_temperature (degrees Celsius).
func (d *Driver) Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	if err := ctx.Err(); err != nil {
		return device.Usage{}, err
	}
	return measure(d.units, d.now().Sub(d.began), held), nil
}

// measure is pure.
func measure(units []unit, age time.Duration, held map[cluster.KernelID]alloc.Allocation) device.Usage {
	out := device.NewUsage()
	for _, u := range units {
		if problem, gone := u.broken(age); problem != "" || gone {
			continue // unknown
		}
		family, _, _ := strings.Cut(string(u.devices[0].Slot), ".")
		util, mem, size := family+"_util", family+"_mem", family+"_mem_total"
		memory := float64(u.devices[0].Memory)
		var sum float64
		for id, a := range held {
			share := u.share(a)
			if share == 0 {
				continue
			}
			sum += share
			if out.Kernels[id] == nil {
				out.Kernels[id] = map[string]float64{}
			}
			out.Kernels[id][util] += share * u.load
			if memory > 0 {
				out.Kernels[id][mem] += share * memory * u.load / 100
				out.Kernels[id][size] += share * memory
			}
		}
		values := map[string]float64{util: min(sum, 1) * u.load}
		if memory > 0 {
			values[mem], values[size] = min(sum, 1)*memory*u.load/100, memory
		}
		if u.power != nil {
			values[family+"_power"] = u.power.at(values[util])
		}
		if u.heat != nil {
			values[family+"_temperature"] = u.heat.at(values[util])
		}
		for _, x := range u.devices {
			out.Devices[device.Ref{Slot: x.Slot, ID: x.ID}] = maps.Clone(values)
		}
	}
	return out
}
