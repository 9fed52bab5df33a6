//go:build cgo

package nvmlhelper

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

// maxProcesses bounds what is told of one card.
const maxProcesses = 4096

// Sample measures all cards and MIG instances. What cannot be measured is left out.
func (l *library) Sample() (nvmlwire.Sample, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(); err != nil {
		return nvmlwire.Sample{}, err
	}
	devices, _, err := l.devices()
	if err != nil {
		return nvmlwire.Sample{}, err
	}
	out := nvmlwire.Sample{Uses: []nvmlwire.Use{}}
	for _, d := range devices {
		if d == nil {
			continue
		}
		uuid, ret := d.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		use := nvmlwire.Use{UUID: uuid, MemoryUsed: l.memory(d)}
		if milliwatts, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
			use.Power = new(float64(milliwatts) / 1000)
		}
		if degrees, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
			use.Temperature = new(float64(degrees))
		}
		if on, _ := l.mig(d); on {
			out.Uses = append(out.Uses, use)
			parts, _ := instancesOf(d)
			for _, p := range parts {
				if uuid, ret := p.GetUUID(); ret == nvml.SUCCESS {
					out.Uses = append(out.Uses, nvmlwire.Use{UUID: uuid, MemoryUsed: l.memory(p), Processes: l.processes(p)})
				}
			}
			continue
		}
		if rates, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS && rates.Gpu <= 100 {
			use.Utilisation = new(float64(rates.Gpu))
		}
		use.Processes = l.processes(d)
		l.utilise(d, uuid, use.Processes)
		out.Uses = append(out.Uses, use)
	}
	return out, nil
}

// memory is what programs have of a card's memory; without what the driver keeps for itself, where it tells that.
func (l *library) memory(d nvml.Device) *int64 {
	if l.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Used <= math.MaxInt64 {
			return new(int64(m.Used))
		}
	}
	if m, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS && m.Used <= math.MaxInt64 {
		return new(int64(m.Used))
	}
	return nil
}

// processes are the programs on a card or MIG instance: those that compute, also through MPS, and those that draw.
func (l *library) processes(d nvml.Device) []nvmlwire.Process {
	found := map[int]nvmlwire.Process{}
	take := func(list []nvml.ProcessInfo, ret nvml.Return) {
		if ret != nvml.SUCCESS {
			return
		}
		for _, p := range list {
			now := nvmlwire.Process{PID: int(p.Pid), MemoryUnknown: true}
			if p.UsedGpuMemory <= math.MaxInt64 { // the largest number stands for unknown
				now.Memory, now.MemoryUnknown = int64(p.UsedGpuMemory), false
			}
			if old, twice := found[now.PID]; twice && !old.MemoryUnknown && (now.MemoryUnknown || old.Memory > now.Memory) {
				now = old // lists that overlap each tell all of a program's memory
			}
			if len(found) < maxProcesses {
				found[now.PID] = now
			}
		}
	}
	take(d.GetComputeRunningProcesses())
	take(d.GetGraphicsRunningProcesses())
	if l.has("nvmlDeviceGetMPSComputeRunningProcesses") || l.has("nvmlDeviceGetMPSComputeRunningProcesses_v3") {
		take(d.GetMPSComputeRunningProcesses())
	}
	return slices.SortedFunc(maps.Values(found), func(a, b nvmlwire.Process) int { return cmp.Compare(a.PID, b.PID) })
}

// utilise fills in how much of the card each program used since the last measurement. The driver lists those alone that used
// any, and nobody when it has measured nothing new.
func (l *library) utilise(d nvml.Device, uuid string, processes []nvmlwire.Process) {
	if len(processes) == 0 || !l.has("nvmlDeviceGetProcessUtilization") {
		return
	}
	list, ret := d.GetProcessUtilization(l.measured[uuid])
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
		return
	}
	newest := map[int]nvml.ProcessUtilizationSample{}
	for _, s := range list {
		if s.TimeStamp >= newest[int(s.Pid)].TimeStamp {
			newest[int(s.Pid)] = s
		}
		l.measured[uuid] = max(l.measured[uuid], s.TimeStamp)
	}
	for i, p := range processes {
		if used := newest[p.PID].SmUtil; used <= 100 { // drivers are known to tell numbers that cannot be
			processes[i].Utilisation = new(float64(used))
		}
	}
}
