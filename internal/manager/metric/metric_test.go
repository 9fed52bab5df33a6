package metric_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/metric"
)

const agent = cluster.AgentID("i-one")

// moved is a clock whose time tests move; nothing here waits for it.
type moved struct {
	chassis.Clock
	now time.Time
}

func (c *moved) Now() time.Time { return c.now }

func (c *moved) Advance(d time.Duration) { c.now = c.now.Add(d) }

// bench is a recorder with a clock that tests move, and the use cases.
type bench struct {
	*managertest.World
	t     *testing.T
	clock *moved
	rec   *metric.Recorder
	all   *metric.Service
}

func newBench(t *testing.T) *bench {
	t.Helper()
	w := managertest.New(t)
	b := &bench{World: w, t: t, clock: &moved{now: time.Date(2026, 3, 4, 10, 0, 0, 0, time.UTC)}}
	b.rec = metric.NewRecorder(nil, w.Store, b.clock, slog.New(slog.DiscardHandler))
	var err error
	b.all, err = metric.New(metric.Deps{Store: w.Store, Sessions: w.Sessions, Agents: w.Nodes, Projects: w.Tenancy, Clock: b.clock.Now})
	require.NoError(t, err)
	return b
}

// measure has an agent tell every ten seconds, for a while, what value makes of the time since the beginning.
func (b *bench) measure(kernel cluster.KernelID, long time.Duration, value func(second int) map[string]float64) {
	b.t.Helper()
	for s := 0; s < int(long/time.Second); s += 10 {
		v := value(s)
		own := map[string]float64{"cpu_util": v["cpu_util"], "mem": 7 << 30}
		b.rec.Put(b.t.Context(), agent, own, map[cluster.KernelID]map[string]float64{kernel: v})
		b.clock.Advance(10 * time.Second)
	}
}

func (b *bench) session(name string) (cluster.SessionID, cluster.KernelID) {
	b.t.Helper()
	id := b.Running(name, agent)
	return id, b.Session(id).MainKernel().ID
}

func one(t *testing.T, h metric.History, err error) []metric.Point {
	t.Helper()
	require.NoError(t, err)
	require.Len(t, h.Series, 1)
	return h.Series[0].Points
}

// A minute tells averages of what is measured at moments, rates of what is counted, and nothing of what was not measured.
func TestMinutes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent(agent, 8, 16<<30)
	id, kernel := b.session("history")
	began := b.clock.Now()
	b.measure(kernel, 3*time.Minute, func(s int) map[string]float64 {
		v := map[string]float64{"cpu_util": float64(s), "mem": 1 << 20, "io_read": float64(1000 * s), "cuda_util": 50, "cpu_used": 1, "odd": 1}
		if s >= 60 {
			delete(v, "mem")
		}
		if s >= 120 {
			v["io_read"] = float64(10 * (s - 120)) // the counter began anew
		}
		return v
	})
	metric.Write(t.Context(), b.rec)
	h, err := b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: began})
	p := one(t, h, err)
	require.Equal(t, kernel, h.Series[0].Kernel)
	require.Equal(t, agent, h.Series[0].Agent)
	require.Equal(t, "main1", h.Series[0].Hostname)
	require.Equal(t, time.Minute, h.Range.Step)
	require.Len(t, p, 3)
	require.Equal(t, began, p[0].At)
	require.InDelta(t, 25, *p[0].CPU, 0.01)
	require.InDelta(t, 1<<20, *p[0].Mem, 0.5)
	require.InDelta(t, 1000, *p[0].IORead, 0.01)
	require.Equal(t, map[string]float64{"cuda_util": 50}, p[0].Devices)
	require.Nil(t, p[0].NetRx, "unknown is not zero")
	require.Nil(t, p[1].Mem)
	require.InDelta(t, 1000, *p[1].IORead, 0.01, "the rate goes on over the end of a minute")
	require.InDelta(t, 10, *p[2].IORead, 0.01)

	h, err = b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: began, Step: 3 * time.Minute})
	p = one(t, h, err)
	require.Len(t, p, 1)
	require.InDelta(t, 85, *p[0].CPU, 0.01)
	h, err = b.all.OfAgent(t.Context(), b.Admin, agent, metric.Range{From: began})
	require.InDelta(t, 7<<30, *one(t, h, err)[0].Mem, 1000)
	h, err = b.all.OfGroup(t.Context(), b.Admin, "", metric.Range{From: began})
	require.Len(t, one(t, h, err), 3)
	h, err = b.all.OfProject(t.Context(), b.Admin, "default", "default", metric.Range{From: began})
	require.Equal(t, map[string]float64{"cuda_util": 50}, one(t, h, err)[0].Devices)

	eve := b.Stranger("eve")
	_, err = b.all.OfSession(t.Context(), eve, string(id), "", metric.Range{})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	for _, err := range []error{
		second(b.all.OfAgent(t.Context(), eve, agent, metric.Range{})), second(b.all.OfGroup(t.Context(), eve, "", metric.Range{})),
	} {
		require.True(t, fault.Is(err, fault.Denied), "%v", err)
	}
	_, err = b.all.OfGroup(t.Context(), b.Admin, "none", metric.Range{})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

func second[T any](_ T, err error) error { return err }

// Minutes that are over become hours; old days go, and what is left answers long ranges.
func TestHoursAndRetention(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent(agent, 8, 16<<30)
	id, kernel := b.session("long")
	began := b.clock.Now()
	b.measure(kernel, 2*time.Hour, func(s int) map[string]float64 {
		return map[string]float64{"cpu_util": float64(100 * (1 + s/3600)), "cuda_util": float64(s / 3600)}
	})
	metric.Write(t.Context(), b.rec)
	b.clock.Advance(10 * time.Minute)
	cfg := metric.Config{Retention: 3 * 24 * time.Hour, Minutes: 24 * time.Hour, MaxRows: 1_000_000}
	keep := func() {
		t.Helper()
		w := metric.Loops(cfg, b.clock.Now)[0].Begin(b.Term())
		for {
			wait, err := w.Pass(t.Context())
			require.NoError(t, err)
			if wait == time.Minute {
				return
			}
		}
	}
	keep()
	hours := func(from time.Time, step time.Duration) []metric.Point {
		h, err := b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: from, Step: step})
		return one(t, h, err)
	}
	check := func() {
		t.Helper()
		p := hours(began, time.Hour)
		require.Len(t, p, 2)
		require.InDelta(t, 100, *p[0].CPU, 0.01)
		require.InDelta(t, 200, *p[1].CPU, 0.01)
		require.InDelta(t, 1, p[1].Devices["cuda_util"], 0.01)
	}
	check()
	require.Len(t, hours(began, time.Minute), 120)
	keep() // again changes nothing
	check()

	b.clock.Advance(48 * time.Hour)
	keep()
	var minutes int
	require.NoError(t, b.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM kernel_minutes`).Scan(&minutes))
	require.Zero(t, minutes, "the day of the minutes is gone")
	check()
	require.Len(t, hours(began, 30*time.Minute), 2, "hours stand for minutes that are gone")
	b.clock.Advance(72 * time.Hour)
	keep()
	require.Empty(t, hours(began, time.Hour))
}

// A database that is away for a while costs nothing. Two managers that tell the same minute tell it once.
func TestMinutesWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent(agent, 8, 16<<30)
	id, kernel := b.session("waits")
	began := b.clock.Now()
	load := func(int) map[string]float64 { return map[string]float64{"cpu_util": 10} }
	b.measure(kernel, time.Minute, load)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	metric.Write(gone, b.rec)
	b.measure(kernel, time.Minute, load)
	metric.Write(t.Context(), b.rec)
	h, err := b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: began})
	require.Len(t, one(t, h, err), 2)

	other := metric.NewRecorder(nil, b.Store, b.clock, slog.New(slog.DiscardHandler))
	for range 2 {
		other.Put(t.Context(), agent, nil, map[cluster.KernelID]map[string]float64{kernel: {"cpu_util": 10}})
		b.rec.Put(t.Context(), agent, nil, map[cluster.KernelID]map[string]float64{kernel: {"cpu_util": 10}})
	}
	b.clock.Advance(time.Minute)
	metric.Write(t.Context(), other)
	metric.Write(t.Context(), b.rec)
	h, err = b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: began})
	require.Len(t, one(t, h, err), 3)
}

func TestRanges(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 10, 3, 30, 0, time.UTC)
	r, err := metric.Range{}.Complete(now)
	require.NoError(t, err)
	require.Equal(t, metric.Range{From: now.Add(-3 * time.Hour).Truncate(time.Minute), Until: now, Step: time.Minute}, r)
	r, err = metric.Range{From: now.Add(-14 * 24 * time.Hour)}.Complete(now)
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, r.Step)
	for _, bad := range []metric.Range{
		{From: now}, {From: now.Add(time.Hour)}, {From: now.Add(-500 * 24 * time.Hour)}, {Step: time.Second}, {Step: 90 * time.Second},
		{Step: -time.Minute}, {From: now.Add(-100 * time.Hour), Step: time.Minute},
	} {
		_, err := bad.Complete(now)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", bad, err)
		require.NotEmpty(t, fault.NextOf(err), "%+v", bad)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := metric.DefaultConfig()
	require.NoError(t, good.Validate())
	require.NoError(t, metric.Config{}.Validate(), "no history")
	require.Empty(t, metric.Loops(metric.Config{}, time.Now))
	for _, change := range []func(*metric.Config){
		func(c *metric.Config) { c.Retention = time.Hour }, func(c *metric.Config) { c.Minutes = 0 },
		func(c *metric.Config) { c.Minutes = c.Retention + 1 }, func(c *metric.Config) { c.MaxRows = 1 },
	} {
		c := good
		change(&c)
		require.True(t, fault.Is(c.Validate(), fault.Invalid), "%+v", c)
	}
}
