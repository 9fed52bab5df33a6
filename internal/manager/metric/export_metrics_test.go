package metric_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/metric"
)

type taken struct{ n int }

func (t *taken) Put(context.Context, cluster.AgentID, map[string]float64, map[cluster.KernelID]map[string]float64) {
	t.n++
}

// What was measured last is told until it is two minutes old; what is no measurement of history's is not.
func TestWhatIsExported(t *testing.T) {
	t.Parallel()
	const kernel = "00000000-0000-4000-8000-000000000001"
	now := time.Date(2026, 3, 4, 10, 0, 0, 0, time.UTC)
	next := &taken{}
	e := metric.NewExporter(next, func() time.Time { return now })
	values := map[string]float64{"cpu_util": 50, "net_rx": 1000, "cuda_mem": 5, "oom_kills": 1, "mem": math.NaN(), "io_read": -1}
	put := func(v map[string]float64) {
		e.Put(t.Context(), "i-one", map[string]float64{"mem": 7}, map[cluster.KernelID]map[string]float64{kernel: v, "no id": v})
	}
	put(values)
	values["cpu_util"] = 1 // ours is a copy
	require.Equal(t, 1, next.n)
	registry := prometheus.NewRegistry()
	registry.MustRegister(e)
	told := func(name string, lines ...string) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		var is []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName()+"="+strconv.Quote(l.GetValue()))
				}
				if f.GetName() == name {
					is = append(is, fmt.Sprintf("%s{%s} %g", name, strings.Join(labels, ","), m.GetUntyped().GetValue()))
				}
			}
		}
		require.Equal(t, lines, is)
	}
	of := func(name, value string) string {
		return metric.KernelSeries +
			`{agent_id="i-one",container_metric_name="` + name + `",kernel_id="` + kernel + `",value_type="current"} ` + value
	}
	told(metric.KernelSeries, of("cpu_util", "50"), of("cuda_mem", "5"), of("net_rx", "1000"))
	told(metric.AgentSeries, metric.AgentSeries+`{agent_id="i-one",metric_name="mem"} 7`)
	now = now.Add(time.Minute)
	put(map[string]float64{"cpu_util": 70})
	told(metric.KernelSeries, of("cpu_util", "70"))
	now = now.Add(2*time.Minute + time.Second)
	told(metric.KernelSeries)
	told(metric.AgentSeries)
}

// Accelerators are told of with their agent, and with the kernel that holds them alone. What was not measured is not told.
func TestDevicesAreExported(t *testing.T) {
	t.Parallel()
	const kernel = "00000000-0000-4000-8000-000000000001"
	now := time.Date(2026, 3, 4, 10, 0, 0, 0, time.UTC)
	e := metric.NewExporter(nil, func() time.Time { return now })
	put := func(own, of map[string]float64) {
		e.Put(t.Context(), "i-one", own, map[cluster.KernelID]map[string]float64{kernel: of})
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(e)
	told := func(series string) (is []string) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == series {
					is = append(is, fmt.Sprintf("%s %s%s of %s: %g", labels["agent_id"], labels["metric_name"], labels["container_metric_name"],
						labels["device_id"]+"/"+labels["kernel_id"], m.GetUntyped().GetValue()))
				}
			}
		}
		slices.Sort(is)
		return is
	}
	put(map[string]float64{"cuda_util": 80, "cuda_util@GPU-0": 80, "cuda_mem@GPU-0": 5, "cuda_power@GPU-1": 70, "cuda_temperature@GPU-1": 41,
		"cuda_util@GPU-1": math.NaN(), "odd@GPU-1": 1, "cuda_util@": 3},
		map[string]float64{"cuda_util": 80, "cuda_util@GPU-0": 80, "cuda_mem@GPU-0": 5})
	require.Equal(t, []string{"i-one cuda_mem of GPU-0/" + kernel + ": 5", "i-one cuda_power of GPU-1/: 70",
		"i-one cuda_temperature of GPU-1/: 41", "i-one cuda_util of GPU-0/" + kernel + ": 80"}, told(metric.DeviceSeries))
	require.Equal(t, []string{"i-one cuda_util of /" + kernel + ": 80"}, told(metric.KernelSeries))
	require.Equal(t, []string{"i-one cuda_util of /: 80"}, told(metric.AgentSeries))
	now = now.Add(time.Minute)
	put(map[string]float64{"cuda_power@GPU-1": 71}, nil)
	require.Equal(t, []string{"i-one cuda_power of GPU-1/: 71"}, told(metric.DeviceSeries))
}

type elsewhere struct {
	ids []string
	is  metric.Kind
}

func (e *elsewhere) Points(_ context.Context, of metric.Kind, ids []string, r metric.Range, sum bool) (map[string][]metric.Point, error) {
	e.is, e.ids = of, ids
	p := metric.Point{At: r.From}
	p.Add("cpu_util", 42)
	key := ""
	if !sum {
		key = ids[0]
	}
	return map[string][]metric.Point{key: {p}}, nil
}

// Another source is asked in place of the tables, and only for what the actor may see.
func TestAnotherSourceStandsIn(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent(agent, 8, 16<<30)
	id := w.Running("history", agent)
	from := &elsewhere{}
	s, err := metric.New(metric.Deps{Store: w.Store, Sessions: w.Sessions, Agents: w.Nodes, Projects: w.Tenancy, Clock: time.Now,
		Source: from})
	require.NoError(t, err)
	h, err := s.OfSession(t.Context(), w.Admin, string(id), "", metric.Range{})
	points := one(t, h, err)
	require.Equal(t, new(42.0), points[0].CPU)
	require.Equal(t, []string{string(w.Session(id).MainKernel().ID)}, from.ids)
	h, err = s.OfGroup(t.Context(), w.Admin, "", metric.Range{})
	require.Equal(t, new(42.0), one(t, h, err)[0].CPU)
	require.Equal(t, metric.OfAgents, from.is)
	from.ids = nil
	_, err = s.OfSession(t.Context(), w.Stranger("eve"), string(id), "", metric.Range{})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = s.OfGroup(t.Context(), w.Stranger("mallory"), "", metric.Range{})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.Nil(t, from.ids)
}

func TestAddressesOfPrometheus(t *testing.T) {
	t.Parallel()
	for url, well := range map[string]bool{"": true, "https://prom.example.org": true, "http://10.0.0.1:9090/prefix": true, "prom:9090": false,
		"ftp://x": false, "https://": false, "https://user:pass@prom": false, "https://prom?x=1": false, "https://prom#x": false} {
		c := metric.DefaultConfig()
		c.Prometheus.URL = url
		require.Equal(t, well, c.Validate() == nil, url)
	}
	for url, well := range map[string]bool{"": false, "https://prom": true, "http://prom": false, "http://127.0.0.1:9090": true} {
		c := metric.DefaultConfig()
		c.Retention, c.Prometheus = 0, metric.PrometheusConfig{URL: url, TokenFile: "/run/token"}
		require.Equal(t, well, c.Validate() == nil, "a token, and %q", url)
	}
}
