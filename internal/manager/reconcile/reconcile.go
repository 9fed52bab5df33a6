// Package reconcile holds the control loops of the manager: load a snapshot, decide with
// pure functions, apply in a transaction with a re-check. The loops run on the elected
// leader only; every commit carries the leader's fencing token.
//
// It never talks to agents: what it commits reaches them through link/agent, which is
// woken by hints. Hints make the loops fast; a full pass every Config.Resync makes
// them right when hints are lost.
package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// Config says how patient the loops are.
type Config struct {
	// Debounce gathers hints before a scheduling pass.
	Debounce time.Duration
	// Resync is the time between scheduling passes without any hint.
	Resync time.Duration
	// Sweep is the time between looks at leases and deadlines.
	Sweep time.Duration
	// AgentLease is how long an agent may be silent before it is LOST.
	AgentLease time.Duration
	// LostGrace is how long a LOST agent may return before its kernels end.
	LostGrace time.Duration
	// EventRetention is how long the history of ended sessions is kept; 0 keeps it for ever.
	EventRetention time.Duration
	// LeaderTTL is the lease of the leader in seconds; a dead leader is replaced after it.
	LeaderTTL int
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Debounce: 2 * time.Millisecond, Resync: 30 * time.Second, Sweep: time.Second,
		AgentLease: 30 * time.Second, LostGrace: 5 * time.Minute, EventRetention: 180 * 24 * time.Hour, LeaderTTL: 3,
	}
}

// Validate checks the ranges.
func (c Config) Validate() error {
	for _, v := range []struct {
		name       string
		value      time.Duration
		least, top time.Duration
	}{
		{"debounce", c.Debounce, 0, time.Second},
		{"resync", c.Resync, time.Second, time.Hour},
		{"sweep", c.Sweep, 10 * time.Millisecond, time.Minute},
		{"agent_lease", c.AgentLease, time.Second, time.Hour},
		{"lost_grace", c.LostGrace, time.Second, 24 * time.Hour},
		{"event_retention", c.EventRetention, 0, 100 * 365 * 24 * time.Hour},
	} {
		if v.value < v.least || v.value > v.top {
			return fault.Invalidf("reconcile.%s is %s", v.name, v.value).WithNext("choose between %s and %s", v.least, v.top)
		}
	}
	if c.LeaderTTL < 1 || c.LeaderTTL > 60 {
		return fault.Invalidf("reconcile.leader_ttl is %d", c.LeaderTTL).WithNext("choose between 1 and 60 seconds")
	}
	return nil
}

// Nodes are the rules about agents and their kernels; service.Nodes satisfies it. Each
// call is one bounded, idempotent step.
type Nodes interface {
	// LoseSilent marks agents LOST that were silent for longer than the lease.
	LoseSilent(ctx context.Context, lease time.Duration) ([]cluster.AgentID, error)
	// ExpireLost ends the kernels of agents that stayed LOST for longer than the grace.
	ExpireLost(ctx context.Context, grace time.Duration) (int, error)
	// MissDeadlines gives kernels that stayed too long in a state their named outcome.
	MissDeadlines(ctx context.Context) (int, error)
}

// Deps are what the loops work with. Etcd may be nil: this manager is the only one then.
type Deps struct {
	Store *store.Store
	Nodes Nodes
	// History may be nil: nothing is forgotten.
	History History
	// Folders may be nil: folders are left alone.
	Folders  Folders
	Etcd     *clientv3.Client
	Clock    chassis.Clock
	Registry prometheus.Registerer
	Log      *slog.Logger
	// Holder names this manager in the leadership record.
	Holder string
	// Prefix is put before the keys in etcd.
	Prefix string
	// Idle is what idle checks know besides the database.
	Idle Idle
	// Planner answers from these loops' memory while they lead; nil makes one that nobody asks.
	Planner *Planner
}

// Loops are the control loops of one manager.
type Loops struct {
	cfg     Config
	deps    Deps
	metrics metrics

	idleMetrics idleMetrics
}

// New prepares the loops.
func New(cfg Config, deps Deps) (*Loops, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	if deps.Planner == nil {
		deps.Planner = NewPlanner(deps.Store, deps.Clock)
	}
	return &Loops{cfg: cfg, deps: deps, metrics: newMetrics(deps.Registry), idleMetrics: newIdleMetrics(deps.Registry)}, nil
}

// Service returns the loops as one service: it campaigns, and while it leads it runs
// them. Losing the lead stops the loops and campaigns again.
func (l *Loops) Service() *chassis.Service {
	return chassis.NewService("reconcile", chassis.Hooks{Run: l.run})
}

type metrics struct {
	pass      prometheus.Histogram
	placed    prometheus.Counter
	refused   *prometheus.CounterVec
	waiting   *prometheus.GaugeVec
	preempted prometheus.Counter
	resyncs   prometheus.Counter
	drift     prometheus.Counter
	failures  *prometheus.CounterVec
	leader    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := metrics{
		pass: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_scheduler_pass_seconds", Help: "Duration of one scheduling pass over one resource group, without its commit.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		placed: counter("berth_scheduler_placements_total", "Kernels placed."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_scheduler_refused_total",
			Help: "Sessions whose placement the commit refused, by what had changed meanwhile: room, quota or changed (the session itself)."}, []string{"check"}),
		waiting:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_scheduler_waiting_sessions", Help: "Pending sessions by resource group and dominant reason."}, []string{"group", "reason"}),
		preempted: counter("berth_scheduler_preempted_total", "Sessions that lost their place to one of higher priority."),
		resyncs:   counter("berth_scheduler_resyncs_total", "Full comparisons of the leader's memory with the database."),
		drift:     counter("berth_scheduler_drift_total", "Differences that full comparisons found and corrected; anything but 0 is a bug."),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_reconcile_failures_total", Help: "Passes of a loop that failed."}, []string{"loop"}),
		leader:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_reconcile_leader", Help: "1 while this manager leads."}),
	}
	if r != nil {
		r.MustRegister(m.pass, m.placed, m.refused, m.waiting, m.preempted, m.resyncs, m.drift, m.failures, m.leader)
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
