package graphapi

import (
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
	wire "berth.dev/berth/internal/wire/node"
)

// metric is one value in the wire's statistics: everything as text, pct only where a capacity is known.
type metric struct {
	Current  string `json:"current"`
	Capacity string `json:"capacity,omitempty"`
	Pct      string `json:"pct,omitempty"`
	UnitHint string `json:"unit_hint"`
}

var unitHints = map[string]string{
	"cpu_util": "percent", "cpu_want": "percent", "cpu_used": "msec", "mem": "bytes", "io_read": "bytes", "io_write": "bytes",
	"net_rx": "bps", "net_tx": "bps", "disk": "bytes",
}

// unitHint is the wire's word for the unit of a measurement.
func unitHint(name string) string {
	switch {
	case unitHints[name] != "":
		return unitHints[name]
	case strings.HasSuffix(name, wire.EndUtil):
		return "percent"
	case strings.HasSuffix(name, wire.EndMem):
		return "bytes"
	case strings.HasSuffix(name, wire.EndPower):
		return "Watts"
	case strings.HasSuffix(name, wire.EndTemperature):
		return "Celsius"
	}
	return "count"
}

// metrics renders measured values; capacity holds the upper bounds that are known.
func metrics(values, capacity map[string]float64) map[string]metric {
	out := make(map[string]metric, len(values))
	for name, v := range values {
		if _, _, one := wire.SplitDevice(name); one || strings.HasSuffix(name, wire.EndMemTotal) {
			continue // of single devices, and what is the capacity of another one
		}
		m := metric{Current: number(v), UnitHint: unitHint(name)}
		if c := capacity[name]; c > 0 {
			m.Capacity, m.Pct = number(c), fmt.Sprintf("%.2f", 100*v/c)
		}
		out[name] = m
	}
	return out
}

// shownUnits are those that the official client's page of an agent has words for; it ends with an error at another one.
var shownUnits = map[string]bool{"bytes": true, "percent": true, "Celsius": true}

// complete gives every metric all members, and bytes without a fraction: the official client's page of an agent needs them.
func complete(of map[string]metric) map[string]map[string]*string {
	out := make(map[string]map[string]*string, len(of))
	for name, m := range of {
		if !shownUnits[m.UnitHint] {
			continue
		}
		if m.UnitHint == "bytes" {
			m.Current, _, _ = strings.Cut(m.Current, ".")
		}
		if m.Pct == "" && m.UnitHint == "percent" {
			m.Pct = m.Current
		}
		out[name] = map[string]*string{"current": &m.Current, "capacity": optional(m.Capacity), "pct": optional(m.Pct), "unit_hint": &m.UnitHint}
	}
	return out
}

func completeDevices(of map[string]map[string]metric) map[string]map[string]map[string]*string {
	out := make(map[string]map[string]map[string]*string, len(of))
	for name, metrics := range of {
		out[name] = complete(metrics)
	}
	return out
}

// kernelStat is what a kernel used. The capacity of an accelerator's use is what the kernel holds of it.
func kernelStat(k *session.Kernel) map[string]metric {
	capacity := map[string]float64{}
	for name := range k.LiveStat {
		if family, ok := strings.CutSuffix(name, wire.EndUtil); ok && family != "cpu" {
			held := k.OccupiedSlots[cluster.SlotName(family+".device")] + k.OccupiedSlots[cluster.SlotName(family+".shares")]
			capacity[name] = 100 * float64(held) / cluster.Milli
		}
		addMemory(capacity, k.LiveStat, name)
	}
	return metrics(k.LiveStat, capacity)
}

// addMemory adds the capacity of the memory of an accelerator, where it was measured.
func addMemory(capacity, values map[string]float64, name string) {
	if strings.HasSuffix(name, wire.EndMem) {
		if total, ok := values[name+"_total"]; ok {
			capacity[name] = total
		}
	}
}

// agentStat is what an agent's machine used, all together and by device. What was not measured is not in it.
func agentStat(a *node.Agent) map[string]any {
	capacity := map[string]float64{
		"cpu_util": 100 * float64(a.Capacity[cluster.SlotCPU].Units()),
		"mem":      float64(a.Capacity[cluster.SlotMem].Units()),
	}
	devices := map[string]map[string]metric{"cpu_util": {}, "mem": {}}
	for id, values := range wire.Devices(a.Live) {
		own := map[string]float64{}
		for name := range values {
			if strings.HasSuffix(name, wire.EndUtil) {
				own[name] = 100
				capacity[name] += 100
			}
			addMemory(own, values, name)
		}
		for name, m := range metrics(values, own) {
			if !shownUnits[m.UnitHint] {
				continue
			}
			if devices[name] == nil {
				devices[name] = map[string]metric{}
			}
			devices[name][id] = m
		}
	}
	for name := range a.Live {
		addMemory(capacity, a.Live, name)
	}
	all := metrics(a.Live, capacity)
	for _, name := range []string{"cpu_util", "mem"} {
		if v, ok := all[name]; ok {
			devices[name]["root"] = v
		}
	}
	return map[string]any{"node": complete(all), "devices": completeDevices(devices)}
}
