// Package scheduling places waiting sessions. On the leader it keeps the cluster in memory as the scheduler sees it, lets the
// scheduler decide, and commits what it decided after checking it against the rows as they are then. On every manager its
// Planner answers why a session waits. It also adds up what owners used, which fair shares are made of.
//
// It never talks to agents: a commit wakes their connections.
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

// Config says how patient the scheduling loop is.
type Config struct {
	// Debounce gathers hints before a scheduling pass.
	Debounce time.Duration
	// Resync is the time between scheduling passes without any hint.
	Resync time.Duration
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config { return Config{Debounce: 2 * time.Millisecond, Resync: 30 * time.Second} }

// Deps are what scheduling works with. Clock and Registry may be nil; Planner nil makes one that nobody asks.
type Deps struct {
	Store    *store.Store
	Clock    chassis.Clock
	Registry prometheus.Registerer
	// Planner answers from the loop's memory while it leads.
	Planner *Planner
	Log     *slog.Logger
}

// Scheduling is the loops that place sessions and add up use.
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
			Help: "Sessions whose placement the commit refused, by what had changed meanwhile: room, quota or changed (the session itself)."},
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

// gaugeEvery is how often the queues are counted.
const gaugeEvery = 5 * time.Second

// gauge counts the queues.
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
