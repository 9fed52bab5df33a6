package cuda

import (
	"context"
	"fmt"
	"maps"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// The names of measurements: percent of one card, bytes, watts and degrees Celsius.
const (
	metricUtil        = "cuda_util"
	metricMem         = "cuda_mem"
	metricMemTotal    = "cuda_mem_total"
	metricPower       = "cuda_power"
	metricTemperature = "cuda_temperature"
)

// Sample measures cards and instances. A kernel that has whole ones is measured by them, one that has shares by its processes.
func (d *Driver) Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	s, err := d.o.Source.Sample(ctx)
	if err != nil {
		return device.Usage{}, fmt.Errorf("measure NVIDIA GPUs: %w", err)
	}
	v := d.snapshot()
	d.mu.Lock()
	broken := maps.Clone(d.broken)
	d.mu.Unlock()
	return measure(v.machine, d.o.Config, d.kinds, broken, s, held, d.o.Owner), nil
}

// measure is pure but for owner. What the source does not tell is absent, and so is everything about a broken card.
func measure(m machine, c Config, kinds map[cluster.SlotName]cluster.SlotKind, broken map[string]string, s nvmlwire.Sample,
	held map[cluster.KernelID]alloc.Allocation, owner func(int) (cluster.KernelID, bool)) device.Usage {
	out := device.NewUsage()
	uses := map[string]nvmlwire.Use{}
	for _, u := range s.Uses {
		uses[u.UUID] = u
	}
	values := func(id string) map[string]float64 {
		g, memory := m.cards[id], m.cards[id].Memory
		if i, ok := m.instances[id]; ok {
			g, memory = m.cards[i.card], i.Memory
		}
		u, told := uses[id]
		if !told || g.Problem != "" || broken[g.UUID] != "" {
			return nil
		}
		return valuesOf(u, memory)
	}
	for _, id := range m.order {
		if of := values(id); of != nil {
			out.Devices[device.Ref{Slot: SlotDevice, ID: id}] = of
			if _, shared := kinds[SlotShares]; shared {
				out.Devices[device.Ref{Slot: SlotShares, ID: id}] = maps.Clone(of)
			}
		}
	}
	for _, id := range m.offered {
		if slot := SlotMIG(m.instances[id].Profile); kinds[slot] != "" {
			if of := values(id); of != nil {
				out.Devices[device.Ref{Slot: slot, ID: id}] = of
			}
		}
	}
	for kernel, a := range held {
		t := total{values: map[string]float64{}, unknown: map[string]bool{}}
		for slot := range kinds {
			for id, amount := range a[slot] {
				of := values(id)
				if of != nil && slot == SlotShares {
					of = shareOf(uses[id], kernel, owner)
					of[metricMemTotal] = float64(limitOf(m.cards[id].Memory, int64(c.Reserve), amount).MemoryMiB << 20)
				}
				t.add(of)
			}
		}
		if known := t.known(); len(known) > 0 {
			out.Kernels[kernel] = known
		}
	}
	return out
}

// valuesOf turns one measurement into ours.
func valuesOf(u nvmlwire.Use, memory int64) map[string]float64 {
	out := map[string]float64{}
	set := func(name string, p *float64) {
		if p != nil && *p >= 0 {
			out[name] = *p
		}
	}
	set(metricUtil, u.Utilisation)
	set(metricPower, u.Power)
	set(metricTemperature, u.Temperature)
	if u.MemoryUsed != nil && *u.MemoryUsed >= 0 {
		out[metricMem] = float64(*u.MemoryUsed)
	}
	if memory > 0 {
		out[metricMemTotal] = float64(memory)
	}
	return out
}

// shareOf is what one kernel's processes use of a card. A card without any listed process may have some that the driver does not list: then
// only rest is known, of a card that rests.
func shareOf(u nvmlwire.Use, kernel cluster.KernelID, owner func(int) (cluster.KernelID, bool)) map[string]float64 {
	out := map[string]float64{}
	if len(u.Processes) == 0 || owner == nil {
		if u.Utilisation != nil && *u.Utilisation == 0 {
			out[metricUtil] = 0
		}
		return out
	}
	var memory, util float64
	told, sized := true, true
	for _, p := range u.Processes {
		if id, ok := owner(p.PID); !ok || id != kernel {
			continue
		}
		memory += float64(max(p.Memory, 0))
		sized = sized && !p.MemoryUnknown
		if p.Utilisation == nil {
			told = false
		} else {
			util += max(*p.Utilisation, 0)
		}
	}
	if sized {
		out[metricMem] = memory
	}
	if told || u.Utilisation != nil && *u.Utilisation == 0 {
		out[metricUtil] = util
	}
	return out
}

// total sums the devices of a kernel; what is unknown of one of them is unknown of all. The temperature is that of the hottest.
type total struct {
	values  map[string]float64
	unknown map[string]bool
}

func (t *total) add(of map[string]float64) {
	for _, name := range []string{metricUtil, metricMem, metricMemTotal, metricPower, metricTemperature} {
		v, ok := of[name]
		switch {
		case !ok:
			t.unknown[name] = true
		case name == metricTemperature:
			t.values[name] = max(t.values[name], v)
		default:
			t.values[name] += v
		}
	}
}

func (t *total) known() map[string]float64 {
	maps.DeleteFunc(t.values, func(name string, _ float64) bool { return t.unknown[name] })
	return t.values
}
