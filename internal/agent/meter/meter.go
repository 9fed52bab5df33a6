// Package meter samples the use of the host and of its kernels: what the device drivers measure, and the counters of the
// containers. A counter that cannot be read is left out: unknown is never zero. One stuck kernel costs its own second, not
// the others'.
package meter

import (
	"context"
	"maps"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

// Sample is one look at everything.
type Sample struct {
	At      time.Time
	Node    map[string]float64
	Kernels map[cluster.KernelID]map[string]float64
}

// Devices measures devices for the kernels that hold them; *device.Inventory satisfies it.
type Devices interface {
	Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) device.Usage
}

// Meter takes samples at an interval and keeps the newest.
type Meter struct {
	Runtime  runtime.Runtime
	Devices  Devices
	Running  func() []keeper.Kernel
	Clock    chassis.Clock
	Interval time.Duration
	// OutOfMemory, when set before Run, is called when more processes of a kernel were killed for want of memory than at the last look.
	OutOfMemory func(keeper.Kernel)

	mu     sync.Mutex
	newest *Sample
	last   map[cluster.KernelID]reading
	kills  map[cluster.KernelID]kills
	host   reading // of the host's cores; Run's own
	ready  chan struct{}
}

// reading is a total of milliseconds of cores at one time.
type reading struct {
	at     time.Time
	usedMS float64
	waitMS *float64 // of waiting for cores; nil is unknown
}

// kills are how many processes of one container were killed for want of memory.
type kills struct {
	container string
	n         int64
}

// percent is the use of cores between two readings, 100 for each that was busy; ok is false when there is no telling.
func percent(from, to reading) (float64, bool) {
	passed := float64(to.at.Sub(from.at)) / float64(time.Millisecond)
	if from.at.IsZero() || passed <= 0 || to.usedMS < from.usedMS {
		return 0, false
	}
	return (to.usedMS - from.usedMS) / passed * 100, true
}

// waiting is the part of the time between two readings in which something waited for a core, in percent; ok is false when there is no
// telling.
func waiting(from, to reading) (float64, bool) {
	if from.waitMS == nil || to.waitMS == nil {
		return 0, false
	}
	waits, ok := percent(reading{at: from.at, usedMS: *from.waitMS}, reading{at: to.at, usedMS: *to.waitMS})
	return min(waits, 100), ok
}

const (
	workers = 4
	budget  = time.Second
)

// New returns a meter; Run makes it sample.
func New(rt runtime.Runtime, devices Devices, running func() []keeper.Kernel, clock chassis.Clock, interval time.Duration) *Meter {
	return &Meter{Runtime: rt, Devices: devices, Running: running, Clock: clock, Interval: interval,
		last: map[cluster.KernelID]reading{}, kills: map[cluster.KernelID]kills{}, ready: make(chan struct{}, 1)}
}

// Ready receives when Take has a sample.
func (m *Meter) Ready() <-chan struct{} { return m.ready }

// Take returns the newest sample once; ok is false when it was taken already.
func (m *Meter) Take() (s Sample, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest == nil {
		return Sample{}, false
	}
	s, m.newest = *m.newest, nil
	return s, true
}

// Run samples until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	tick := m.Clock.NewTicker(m.Interval)
	defer tick.Stop()
	m.node(m.Clock.Now(), m.Devices.Sample(ctx, nil).Node) // the first tick has something to compare with
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
			s := m.sample(ctx)
			m.mu.Lock()
			m.newest = &s
			m.mu.Unlock()
			select {
			case m.ready <- struct{}{}:
			default:
			}
		}
	}
}

// node adds the rate of use to what was measured of the host.
func (m *Meter) node(at time.Time, values map[string]float64) map[string]float64 {
	used, ok := values[node.MetricCPUUsed]
	if !ok {
		return values
	}
	now := reading{at: at, usedMS: used}
	if rate, ok := percent(m.host, now); ok {
		values[node.MetricCPUUtil] = rate
	}
	m.host = now
	return values
}

func (m *Meter) sample(ctx context.Context) Sample {
	s := Sample{At: m.Clock.Now(), Kernels: map[cluster.KernelID]map[string]float64{}}
	running := m.Running()
	held := map[cluster.KernelID]alloc.Allocation{}
	for _, k := range running {
		held[k.ID] = k.Allocation
	}
	usage := m.Devices.Sample(ctx, held)
	devices(usage, held)
	s.Node = m.node(s.At, usage.Node)
	jobs := make(chan keeper.Kernel)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range min(workers, len(running)) {
		group.Go(func() {
			for k := range jobs {
				if v, err := m.values(ctx, k); err == nil {
					maps.Copy(v, usage.Kernels[k.ID])
					mu.Lock()
					s.Kernels[k.ID] = v
					mu.Unlock()
				}
			}
		})
	}
	for _, k := range running {
		jobs <- k
	}
	close(jobs)
	group.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	live := map[cluster.KernelID]bool{}
	for _, k := range running {
		live[k.ID] = true
	}
	for id := range m.last {
		if !live[id] {
			delete(m.last, id)
		}
	}
	for id := range m.kills {
		if !live[id] {
			delete(m.kills, id)
		}
	}
	return s
}

// Stats reads the counters of one kernel now.
func (m *Meter) Stats(ctx context.Context, k keeper.Kernel) (node.KernelStats, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	st, err := m.Runtime.Stats(ctx, k.Container)
	if err != nil {
		return node.KernelStats{}, err
	}
	values := counters(st)
	maps.Copy(values, m.Devices.Sample(ctx, map[cluster.KernelID]alloc.Allocation{k.ID: k.Allocation}).Kernels[k.ID])
	return node.KernelStats{AtUnixMS: m.Clock.Now().UnixMilli(), Values: values}, nil
}

func (m *Meter) values(ctx context.Context, k keeper.Kernel) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	st, err := m.Runtime.Stats(ctx, k.Container)
	if err != nil {
		return nil, err
	}
	m.countKills(k, st.OOMKills)
	v := counters(st)
	if used, ok := v[node.MetricCPUUsed]; ok {
		now := reading{at: st.At, usedMS: used}
		if st.CPUWaitNs != nil {
			now.waitMS = new(float64(*st.CPUWaitNs) * 1e-6)
		}
		if st.At.IsZero() {
			now.at = m.Clock.Now()
		}
		m.mu.Lock()
		before := m.last[k.ID]
		m.last[k.ID] = now
		m.mu.Unlock()
		if rate, ok := percent(before, now); ok {
			v[node.MetricCPUUtil] = rate
			if waits, ok := waiting(before, now); ok {
				v[node.MetricCPUWant] = rate + waits
			}
		}
	}
	return v, nil
}

// countKills tells of kills that are new; n is nil where they are not counted.
func (m *Meter) countKills(k keeper.Kernel, n *int64) {
	if n == nil || m.OutOfMemory == nil {
		return
	}
	m.mu.Lock()
	before := m.kills[k.ID]
	if before.container != k.Container.ID {
		before.n = 0
	}
	m.kills[k.ID] = kills{k.Container.ID, *n}
	m.mu.Unlock()
	if *n > before.n {
		m.OutOfMemory(k)
	}
}

func counters(st runtime.Stats) map[string]float64 {
	v := map[string]float64{}
	set := func(name string, p *int64, scale float64) {
		if p != nil {
			v[name] = float64(*p) * scale
		}
	}
	set(node.MetricCPUUsed, st.CPUUsedNs, 1e-6)
	set(node.MetricMem, st.MemoryBytes, 1)
	set(node.MetricMemPeak, st.MemoryPeak, 1)
	set(node.MetricIORead, st.IOReadBytes, 1)
	set(node.MetricIOWrite, st.IOWriteByte, 1)
	set(node.MetricNetRx, st.NetRxBytes, 1)
	set(node.MetricNetTx, st.NetTxBytes, 1)
	set(node.MetricPids, st.Pids, 1)
	set(node.MetricOOM, st.OOMKills, 1)
	return v
}
