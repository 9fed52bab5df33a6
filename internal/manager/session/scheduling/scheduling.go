// Package scheduling places waiting sessions. On the leader its loop keeps a copy of the cluster in memory, lets package scheduler
// decide, and commits each decision after checking it against the rows as they are then. On every manager its Planner answers why a
// session waits. A second loop adds up what owners used; fair shares are computed from that.
//
// The decisions themselves are in package scheduler. This package never talks to agents: a commit wakes their connections. The
// manager role makes it and hands its loops to reconcile; session asks the Planner through the interface Explainer.
package scheduling

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// Config holds the times of the scheduling loop.
type Config struct {
	// Debounce is how long the loop waits for more hints after the first one, before it takes a turn.
	Debounce time.Duration
	// Resync is the time between turns without any hint, and between full comparisons of the memory with the database.
	Resync time.Duration
	// Networks are those of sessions of several kernels.
	Networks NetworkConfig
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{Debounce: 2 * time.Millisecond, Resync: 30 * time.Second, Networks: DefaultNetworkConfig()}
}

// Deps are what scheduling works with. Clock and Registry may be nil. If Planner is nil, New makes one.
type Deps struct {
	Store    *store.Store
	Clock    chassis.Clock
	Registry prometheus.Registerer
	// Planner answers questions. While this manager leads, it answers from the loop's memory.
	Planner *Planner
	Log     *slog.Logger
}

// Scheduling brings two control loops: one places sessions, one adds up what owners used.
type Scheduling struct {
	cfg     Config
	deps    Deps
	metrics metrics
}

// New prepares the loops.
func New(cfg Config, deps Deps) (*Scheduling, error) {
	if deps.Store == nil || deps.Log == nil {
		return nil, fault.New(fault.Internal, "scheduling: store and log are required")
	}
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	if deps.Planner == nil {
		deps.Planner = NewPlanner(deps.Store, deps.Clock)
	}
	return &Scheduling{cfg: cfg, deps: deps, metrics: newMetrics(deps.Registry)}, nil
}

// Loops returns the control loops.
func (s *Scheduling) Loops() []reconcile.Loop {
	return []reconcile.Loop{
		{
			Name:    "schedule",
			Hears:   func(topic string) bool { return topic == store.TopicSchedule },
			StandBy: s.deps.Planner.standBy,
			Begin: func(t reconcile.Term) reconcile.Work {
				d := &desk{Scheduling: s, term: t, kept: s.deps.Planner.lead()}
				return reconcile.Work{Pass: d.schedule, Gather: d.gather, End: func() {
					s.deps.Planner.follow()
					s.metrics.waiting.Reset()
				}}
			},
		},
		{
			Name: "usage",
			Begin: func(t reconcile.Term) reconcile.Work {
				return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
					more, err := account(ctx, t)
					if more {
						return 0, err
					}
					return usageEvery, err
				}}
			},
		},
	}
}

type metrics struct {
	pass      prometheus.Histogram
	placed    prometheus.Counter
	refused   *prometheus.CounterVec
	waiting   *prometheus.GaugeVec
	preempted prometheus.Counter
	resyncs   prometheus.Counter
	drift     prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := metrics{
		pass: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_scheduler_pass_seconds",
			Help:    "Duration of one scheduling pass over one resource group, without its commit.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		placed: counter("berth_scheduler_placements_total", "Kernels placed."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_scheduler_refused_total",
			Help: "Sessions whose placement the commit refused, by the check: room, quota, network or changed (the session itself)."},
			[]string{"check"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_scheduler_waiting_sessions",
			Help: "Pending sessions by resource group and dominant reason."}, []string{"group", "reason"}),
		preempted: counter("berth_scheduler_preempted_total", "Sessions that lost their place to one of higher priority."),
		resyncs:   counter("berth_scheduler_resyncs_total", "Full comparisons of the leader's memory with the database."),
		drift:     counter("berth_scheduler_drift_total", "Differences that full comparisons found and corrected; anything but 0 is a bug."),
	}
	if r != nil {
		r.MustRegister(m.pass, m.placed, m.refused, m.waiting, m.preempted, m.resyncs, m.drift)
	}
	return m
}

// gaugeEvery is how often the metric of waiting sessions is set.
const gaugeEvery = 5 * time.Second

// gauge sets the metric of waiting sessions, by resource group and reason.
func (d *desk) gauge(m *memory, now time.Time) {
	if !d.gaugedAt.IsZero() && now.Sub(d.gaugedAt) < gaugeEvery {
		return
	}
	d.gaugedAt = now
	d.metrics.waiting.Reset()
	for name := range m.groups {
		for reason, n := range m.cluster.Queue(name).Reasons {
			d.metrics.waiting.WithLabelValues(name, string(reason)).Set(float64(n))
		}
	}
}
