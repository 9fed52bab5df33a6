package metric

import (
	"context"
	"maps"
	"math"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

// The series that a manager tells of what its agents measured last. The name and the labels of those of kernels are the ones that
// dashboards for Backend.AI ask for.
const (
	KernelSeries = "backendai_container_utilization"
	AgentSeries  = "berth_agent_utilization"
	DeviceSeries = "berth_device_utilization"
)

var (
	kernelDesc = prometheus.NewDesc(KernelSeries, "What a kernel used when it was measured last; counters count from its start.",
		[]string{"container_metric_name", "value_type", "agent_id", "kernel_id"}, nil)
	agentDesc = prometheus.NewDesc(AgentSeries, "What an agent's machine used when it was measured last; counters count from its start.",
		[]string{"metric_name", "agent_id"}, nil)
	deviceDesc = prometheus.NewDesc(DeviceSeries,
		"What an accelerator of an agent did when it was measured last; kernel_id is the kernel that holds it alone.",
		[]string{"metric_name", "agent_id", "device_id", "kernel_id"}, nil)
)

// maxDeviceValues bounds the measurements of the devices of one agent.
const maxDeviceValues = 1024

// maxExported bounds the kernels and agents that are remembered; what comes beyond them is left out until others have gone.
const maxExported = 100_000

// Exporter stands in the way of what agents measure, and tells a Prometheus what came last. What was not measured for two minutes is told
// no more: a gap, no last value. Put and Collect may be called concurrently.
type Exporter struct {
	next Measurements // nil: nobody else wants them
	now  func() time.Time

	mu      sync.Mutex
	kernels map[cluster.KernelID]measured
	agents  map[cluster.AgentID]measured
}

type measured struct {
	agent  cluster.AgentID
	at     time.Time
	values map[string]float64
	// devices are measurements of single devices, by their whole names.
	devices map[string]float64
}

// NewExporter makes an exporter; next may be nil.
func NewExporter(next Measurements, now func() time.Time) *Exporter {
	return &Exporter{next: next, now: now, kernels: map[cluster.KernelID]measured{}, agents: map[cluster.AgentID]measured{}}
}

// Put takes one batch of an agent.
func (e *Exporter) Put(ctx context.Context, agent cluster.AgentID, own map[string]float64,
	kernels map[cluster.KernelID]map[string]float64,
) {
	now := e.now()
	e.mu.Lock()
	if len(own) > 0 {
		remember(e.agents, agent, measured{agent, now, kept(own), keptDevices(own)}, now)
	}
	for id, values := range kernels {
		if text, ok := cluster.CanonicalUUID(string(id)); ok {
			remember(e.kernels, cluster.KernelID(text), measured{agent, now, kept(values), keptDevices(values)}, now)
		}
	}
	e.mu.Unlock()
	if e.next != nil {
		e.next.Put(ctx, agent, own, kernels)
	}
}

// kept is what history keeps of measurements, in a copy.
func kept(values map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range values {
		known := name == "cpu_util" || name == "mem" || counter(name) >= 0 || device(name)
		if known && len(out) < maxDevices+len(counters)+2 && !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0 {
			out[name] = v
		}
	}
	return out
}

// keptDevices are the measurements of single devices, in a copy; nil where there are none.
func keptDevices(values map[string]float64) map[string]float64 {
	var out map[string]float64
	for name, v := range values {
		metric, _, ok := node.SplitDevice(name)
		if !ok || !device(metric) || len(out) == maxDeviceValues || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || !utf8.ValidString(name) {
			continue
		}
		if out == nil {
			out = map[string]float64{}
		}
		out[name] = v
	}
	return out
}

func remember[K comparable](to map[K]measured, id K, m measured, now time.Time) {
	if _, known := to[id]; !known && len(to) >= maxExported {
		forget(to, now)
		if len(to) >= maxExported {
			return
		}
	}
	to[id] = m
}

func forget[K comparable](of map[K]measured, now time.Time) {
	maps.DeleteFunc(of, func(_ K, m measured) bool { return now.Sub(m.at) > stale })
}

// Describe says which series there are.
func (e *Exporter) Describe(to chan<- *prometheus.Desc) {
	to <- kernelDesc
	to <- agentDesc
	to <- deviceDesc
}

// Collect tells what was measured last.
func (e *Exporter) Collect(to chan<- prometheus.Metric) {
	now := e.now()
	e.mu.Lock()
	forget(e.kernels, now)
	forget(e.agents, now)
	kernels, agents := maps.Clone(e.kernels), maps.Clone(e.agents)
	e.mu.Unlock() // the reader of the channel may be slow; values are never changed once they are there
	type of struct {
		agent cluster.AgentID
		name  string
	}
	holders := map[of]cluster.KernelID{}
	for id, m := range kernels {
		for name := range m.devices {
			holders[of{m.agent, name}] = id
		}
		for name, v := range m.values {
			to <- prometheus.MustNewConstMetric(kernelDesc, prometheus.UntypedValue, v, name, "current", string(m.agent), string(id))
		}
	}
	for id, m := range agents {
		for name, v := range m.values {
			to <- prometheus.MustNewConstMetric(agentDesc, prometheus.UntypedValue, v, name, string(id))
		}
		for full, v := range m.devices {
			name, dev, _ := node.SplitDevice(full)
			to <- prometheus.MustNewConstMetric(deviceDesc, prometheus.UntypedValue, v, name, string(id), dev, string(holders[of{id, full}]))
		}
	}
}
