// Package meter samples the use of the host and of its kernels. A counter that cannot be read is
// left out: unknown is never zero. One stuck kernel costs its own second, not the others'.
package meter

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device/cpu"
	"berth.dev/berth/internal/agent/device/mem"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
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

// Meter takes samples at an interval and keeps the newest.
type Meter struct {
	Runtime  runtime.Runtime
	Running  func() []keeper.Kernel
	Clock    chassis.Clock
	Interval time.Duration

	cpu cpu.Sampler

	mu     sync.Mutex
	newest *Sample
	last   map[cluster.KernelID]reading
	ready  chan struct{}
}

type reading struct {
	at  time.Time
	cpu int64
}

const (
	workers = 4
	budget  = time.Second
)

// New returns a meter; Run makes it sample.
func New(rt runtime.Runtime, running func() []keeper.Kernel, clock chassis.Clock, interval time.Duration) *Meter {
	return &Meter{Runtime: rt, Running: running, Clock: clock, Interval: interval,
		last: map[cluster.KernelID]reading{}, ready: make(chan struct{}, 1)}
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
	m.cpu.Sample()
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

func (m *Meter) sample(ctx context.Context) Sample {
	s := Sample{At: m.Clock.Now(), Node: map[string]float64{}, Kernels: map[cluster.KernelID]map[string]float64{}}
	if percent, used, ok := m.cpu.Sample(); ok {
		s.Node[node.MetricCPUUtil], s.Node[node.MetricCPUUsed] = percent, used
	}
	if used, total, ok := mem.Sample(); ok {
		s.Node[node.MetricMem], s.Node[node.MetricMemCap] = used, total
	}
	running := m.Running()
	jobs := make(chan keeper.Kernel)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range min(workers, len(running)) {
		group.Go(func() {
			for k := range jobs {
				if v, err := m.values(ctx, k); err == nil {
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
	return node.KernelStats{AtUnixMS: m.Clock.Now().UnixMilli(), Values: counters(st, k)}, nil
}

func (m *Meter) values(ctx context.Context, k keeper.Kernel) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	st, err := m.Runtime.Stats(ctx, k.Container)
	if err != nil {
		return nil, err
	}
	v := counters(st, k)
	if st.CPUUsedNs != nil {
		at := st.At
		if at.IsZero() {
			at = m.Clock.Now()
		}
		m.mu.Lock()
		before, known := m.last[k.ID]
		m.last[k.ID] = reading{at, *st.CPUUsedNs}
		m.mu.Unlock()
		if d := at.Sub(before.at); known && d > 0 && *st.CPUUsedNs >= before.cpu {
			v[node.MetricCPUUtil] = float64(*st.CPUUsedNs-before.cpu) / float64(d) * 100
		}
	}
	return v, nil
}

func counters(st runtime.Stats, k keeper.Kernel) map[string]float64 {
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
	if k.Memory > 0 {
		v[node.MetricMemCap] = float64(k.Memory)
	}
	if k.Cores > 0 {
		v[node.MetricCores] = float64(k.Cores)
	}
	return v
}
