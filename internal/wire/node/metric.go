package node

import "strings"

// The ends of the names of measurements of accelerators; what is before them is the family of the slot: cuda_util.
const (
	EndUtil        = "_util"        // percent; of several devices their sum, so that 100 is one device
	EndMem         = "_mem"         // bytes
	EndMemTotal    = "_mem_total"   // bytes: how much there is of EndMem
	EndPower       = "_power"       // watts
	EndTemperature = "_temperature" // degrees Celsius; of several devices the highest
)

// OfDevice is the name of a measurement of one device: cuda_util@GPU-0. In Metrics.node it is the whole device, in KernelMetrics.values the
// device as the kernel alone has it. Readers that do not know such names leave them out.
func OfDevice(metric, id string) string { return metric + "@" + id }

// SplitDevice is the reverse of OfDevice; ok is false for a measurement that is not of one device.
func SplitDevice(name string) (metric, id string, ok bool) {
	metric, id, ok = strings.Cut(name, "@")
	return metric, id, ok && metric != "" && id != ""
}

// Devices are the measurements of single devices among values: device, then name.
func Devices(values map[string]float64) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for name, v := range values {
		if metric, id, ok := SplitDevice(name); ok {
			if out[id] == nil {
				out[id] = map[string]float64{}
			}
			out[id][metric] = v
		}
	}
	return out
}
