package chassis

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// CheckTimeout bounds one registered readiness check.
const CheckTimeout = 2 * time.Second

// Health answers whether the process lives and is ready, and holds its metrics.
type Health struct {
	registry *prometheus.Registry

	mu       sync.Mutex
	services []*Service
	checks   []check
}

type check struct {
	name string
	fn   func(ctx context.Context) error
}

// CheckResult is the outcome of one readiness check.
type CheckResult struct {
	Name string `json:"name"`
	// State is a service's state, or "ok" or "failing" for a registered check.
	State string `json:"state"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// NewHealth makes the registry with the process's own metrics in it.
func NewHealth() *Health {
	h := &Health{registry: prometheus.NewRegistry()}
	b := Build()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "Always 1; the labels say what was built.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "go": b.Go},
	})
	info.Set(1)
	h.registry.MustRegister(info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), serviceCollector{h})
	return h
}

// Registry is where every part of the process registers its metrics; names begin with "berth_", but
// for those that dashboards of others ask for.
func (h *Health) Registry() *prometheus.Registry { return h.registry }

// Watch makes readiness depend on the services.
func (h *Health) Watch(services ...*Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.services = append(h.services, services...)
}

// Check adds a named readiness check; fn gets at most CheckTimeout.
func (h *Health) Check(name string, fn func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, check{name, fn})
}

func (h *Health) parts() ([]*Service, []check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.services), slices.Clone(h.checks)
}

// Ready runs all checks at once and returns their results, services first.
func (h *Health) Ready(ctx context.Context) (ok bool, results []CheckResult) {
	services, checks := h.parts()
	results = make([]CheckResult, len(services)+len(checks))
	for i, s := range services {
		state := s.State()
		results[i] = CheckResult{Name: s.Name(), State: state.String(), OK: state == Running}
		if err := s.Err(); err != nil {
			results[i].Error = err.Error()
		}
	}
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, CheckTimeout)
			defer cancel()
			r := CheckResult{Name: c.name, State: "ok", OK: true}
			if err := c.fn(ctx); err != nil {
				r = CheckResult{Name: c.name, State: "failing", Error: err.Error()}
			}
			results[len(services)+i] = r
		})
	}
	wg.Wait()
	ok = !slices.ContainsFunc(results, func(r CheckResult) bool { return !r.OK })
	return ok, results
}

// Handler serves /healthz, /readyz and /metrics. /healthz is 200 unless a service has
// failed; /readyz is 200 only when every service runs and every check passes. Both answer
// JSON: {"ok": bool, "version": "...", "checks": [{"name","state","ok","error"}]}.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, ok bool, results []CheckResult) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// The peer may be gone; there is nobody left to tell.
		_ = json.NewEncoder(w).Encode(map[string]any{"ok": ok, "version": Build().Version, "checks": results})
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		services, _ := h.parts()
		ok, results := true, make([]CheckResult, 0, len(services))
		for _, s := range services {
			state := s.State()
			r := CheckResult{Name: s.Name(), State: state.String(), OK: state != Failed}
			if err := s.Err(); err != nil {
				r.Error = err.Error()
			}
			ok = ok && r.OK
			results = append(results, r)
		}
		answer(w, ok, results)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ok, results := h.Ready(r.Context())
		answer(w, ok, results)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// NotReady returns an error that names every part that is not ready, nil when all are.
func (h *Health) NotReady(ctx context.Context) error {
	ok, results := h.Ready(ctx)
	if ok {
		return nil
	}
	var parts []string
	for _, r := range results {
		if r.OK {
			continue
		}
		p := r.Name + " is " + r.State
		if r.Error != "" {
			p += " (" + r.Error + ")"
		}
		parts = append(parts, p)
	}
	return fmt.Errorf("not ready: %s", strings.Join(parts, ", "))
}

// serviceCollector shows every watched service's state as berth_service_state{service,state} 0 or 1.
type serviceCollector struct{ h *Health }

var serviceStateDesc = prometheus.NewDesc("berth_service_state",
	"1 for the state that the service is in, 0 for the others.", []string{"service", "state"}, nil)

func (c serviceCollector) Describe(ch chan<- *prometheus.Desc) { ch <- serviceStateDesc }

func (c serviceCollector) Collect(ch chan<- prometheus.Metric) {
	services, _ := c.h.parts()
	named := map[string]int{}
	for _, s := range services {
		now, name := s.State(), s.Name()
		// Two roles of a process may have services of one name; told twice, it would take all metrics away.
		if named[name]++; named[name] > 1 {
			name += "-" + strconv.Itoa(named[name])
		}
		for _, state := range States() {
			v := 0.0
			if state == now {
				v = 1
			}
			ch <- prometheus.MustNewConstMetric(serviceStateDesc, prometheus.GaugeValue, v, name, state.String())
		}
	}
}
