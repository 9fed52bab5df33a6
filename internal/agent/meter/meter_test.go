package meter_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// host is everything that a meter looks at, with a time that the test sets.
type host struct {
	runtime.Runtime // only Stats is called

	mu   sync.Mutex
	now  time.Time
	busy float64 // ms of the host's cores; below zero it is unknown
	used int64   // ns of the kernel's cores
	wait *int64  // ns of waiting for cores; nil is unknown
	oom  *int64  // processes of the kernel that were killed for want of memory; nil is unknown
	tick chan time.Time
}

// clock is a host's time.
type clock struct {
	chassis.Clock // only Now and NewTicker are called
	h             *host
}

func (c clock) Now() time.Time {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.h.now
}

func (c clock) NewTicker(time.Duration) chassis.Ticker { return ticker{c.h.tick} }

type ticker struct{ c chan time.Time }

func (t ticker) C() <-chan time.Time { return t.c }
func (ticker) Stop()                 {}
func (ticker) Reset(time.Duration)   {}

func (h *host) Stats(_ context.Context, o runtime.Observed) (runtime.Stats, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.ID == "gone" {
		return runtime.Stats{}, fault.NotFoundf("gone")
	}
	used := h.used
	return runtime.Stats{CPUUsedNs: &used, CPUWaitNs: h.wait, OOMKills: h.oom}, nil
}

func (h *host) Sample(_ context.Context, held map[cluster.KernelID]alloc.Allocation) device.Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := device.NewUsage()
	if h.busy >= 0 {
		u.Node[node.MetricCPUUsed] = h.busy
	}
	for id, a := range held {
		u.Kernels[id] = map[string]float64{node.MetricMemCap: float64(a.Totals()[cluster.SlotMem].Units())}
	}
	return u
}

// pass lets time go by and returns the sample of its end.
func (h *host) pass(t *testing.T, m *meter.Meter, d time.Duration, busy float64, used time.Duration) meter.Sample {
	t.Helper()
	h.mu.Lock()
	h.now, h.busy, h.used = h.now.Add(d), busy, int64(used)
	h.mu.Unlock()
	h.tick <- time.Time{}
	select {
	case <-m.Ready():
	case <-time.After(time.Minute):
		t.Fatal("no sample comes")
	}
	s, ok := m.Take()
	require.True(t, ok)
	_, again := m.Take()
	require.False(t, again, "a sample is taken once")
	return s
}

func TestRatesAndLimits(t *testing.T) {
	t.Parallel()
	h := &host{now: time.Unix(1000, 0), busy: 1000, tick: make(chan time.Time)}
	held := alloc.Allocation{cluster.SlotMem: {"root": cluster.Whole(1 << 30)}}
	running := []keeper.Kernel{
		{ID: "k", Container: runtime.Observed{ID: "k"}, Allocation: held},
		{ID: "gone", Container: runtime.Observed{ID: "gone"}, Allocation: held},
	}
	m := meter.New(h, h, func() []keeper.Kernel { return running }, clock{h: h}, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) }()

	s := h.pass(t, m, 0, 1000, 0)
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 1000}, s.Node, "no time has passed")
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 0, node.MetricMemCap: 1 << 30}, s.Kernels["k"], "one look tells no rate")
	s = h.pass(t, m, 2*time.Second, 4000, time.Second)
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 4000, node.MetricCPUUtil: 150}, s.Node)
	require.Equal(t, 50.0, s.Kernels["k"][node.MetricCPUUtil])
	require.NotContains(t, s.Kernels, cluster.KernelID("gone"))

	stats, err := m.Stats(t.Context(), running[0])
	require.NoError(t, err)
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 1000, node.MetricMemCap: 1 << 30}, stats.Values)

	s = h.pass(t, m, 2*time.Second, -1, 2*time.Second)
	require.Empty(t, s.Node, "unknown is not zero")
	require.Equal(t, 50.0, s.Kernels["k"][node.MetricCPUUtil])

	s = h.pass(t, m, 2*time.Second, 2000, time.Second)
	require.Equal(t, map[string]float64{node.MetricCPUUsed: 2000}, s.Node, "a total that went back tells no rate")
	require.NotContains(t, s.Kernels["k"], node.MetricCPUUtil)
	s = h.pass(t, m, time.Second, 3000, time.Second)
	require.Equal(t, 100.0, s.Node[node.MetricCPUUtil])
}

// What a kernel wanted is what it used and how long it waited; an unknown wait makes the sum unknown.
func TestWantedProcessorTime(t *testing.T) {
	t.Parallel()
	h := &host{now: time.Unix(1000, 0), tick: make(chan time.Time)}
	m := meter.New(h, h, func() []keeper.Kernel { return []keeper.Kernel{{ID: "k", Container: runtime.Observed{ID: "k"}}} }, clock{h: h},
		time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) }()

	used := time.Duration(0)
	for _, c := range []struct {
		name  string
		waits time.Duration // in all; below zero is unknown
		want  any           // percent; nil is unknown
	}{
		{"one look tells no rate", 0, nil},
		{"it waited for nine tenths", 9 * time.Second, 95.0},
		{"the kernel tells nothing", -1, nil},
		{"one look again", 10 * time.Second, nil},
		{"it waited for nothing", 10 * time.Second, 5.0},
		{"a total began anew", time.Second, nil},
		{"no more than always", 21 * time.Second, 105.0},
	} {
		h.mu.Lock()
		if h.wait = nil; c.waits >= 0 {
			h.wait = new(int64(c.waits))
		}
		h.mu.Unlock()
		s := h.pass(t, m, 10*time.Second, 0, used)
		if c.want == nil {
			require.NotContains(t, s.Kernels["k"], node.MetricCPUWant, c.name)
		} else {
			require.InDelta(t, c.want, s.Kernels["k"][node.MetricCPUWant], 1e-6, c.name)
		}
		used += 500 * time.Millisecond
	}
}

func TestProcessesKilledForWantOfMemoryAreTold(t *testing.T) {
	t.Parallel()
	h := &host{now: time.Unix(1000, 0), tick: make(chan time.Time)}
	running := []keeper.Kernel{{ID: "k", Generation: 1, Container: runtime.Observed{ID: "c1"}}}
	m := meter.New(h, h, func() []keeper.Kernel { return running }, clock{h: h}, time.Second)
	var told []int64 // generations; the meter calls before it gives the sample
	m.OutOfMemory = func(k keeper.Kernel) { told = append(told, k.Generation) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	defer func() { cancel(); require.ErrorIs(t, <-done, context.Canceled) }()
	for _, look := range []struct {
		container  string
		generation int64
		kills      *int64
		told       []int64
	}{
		{"c1", 1, nil, nil},
		{"c1", 1, new(int64(0)), nil},
		{"c1", 1, new(int64(2)), []int64{1}},
		{"c1", 1, new(int64(2)), []int64{1}},
		{"c1", 1, new(int64(3)), []int64{1, 1}},
		{"c2", 2, new(int64(0)), []int64{1, 1}},
		{"c3", 3, new(int64(3)), []int64{1, 1, 3}}, // a restart that was not seen in between
	} {
		running[0].Container.ID, running[0].Generation = look.container, look.generation
		h.oom = look.kills
		h.pass(t, m, time.Second, 0, 0)
		require.Equal(t, look.told, told, "%+v", look)
	}
}
