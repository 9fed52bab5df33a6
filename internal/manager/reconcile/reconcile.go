// Package reconcile elects one manager of the cluster as the leader and runs the control loops on it. Every noun brings its own
// loops; this package knows only their shape: look at what is stored, decide, commit. What a loop commits carries the
// leader's fencing token, so that a manager that lost the lead without noticing cannot write any more.
//
// Hints make loops fast, and passes that come without a hint make them right when hints are lost. Loops never talk to
// agents: what they commit reaches agents through their connections, which hints wake.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// Loop makes one kind of thing true for as long as this manager leads.
type Loop struct {
	// Name labels the loop in logs and metrics.
	Name string
	// Hears reports which hints end the wait between two passes; nil: none.
	Hears func(topic string) bool
	// Begin starts the loop's work of one term.
	Begin func(t Term) Work
	// StandBy, if set, runs while another manager leads, so that taking over is quick.
	StandBy func(ctx context.Context)
}

// Work is a loop during one term. It is used by one goroutine.
type Work struct {
	// Pass makes one bounded, idempotent step. wait is how long the loop may rest before the next one if no hint ends its
	// rest; 0 asks for the next pass at once. After a failure the loop pauses for a moment, whatever hints say.
	Pass func(ctx context.Context) (wait time.Duration, err error)
	// Gather, if set, is how long hints are gathered before the pass that the first of them asked for.
	Gather func() time.Duration
	// End, if set, is called when the term is over.
	End func()
}

// Term is one leadership of this manager.
type Term struct {
	// Token is larger than that of any earlier term of any manager.
	Token int64
	// Holder names this manager.
	Holder string
	store  *store.Store
}

// NewTerm makes a term for tests of single passes; the loops get theirs from an election.
func NewTerm(s *store.Store, token int64, holder string) Term {
	return Term{Token: token, Holder: holder, store: s}
}

// ErrDeposed ends the loops of a leader whose token is no longer the newest.
var ErrDeposed = fault.Conflictf("another manager leads now")

// Commit runs fn in a transaction that only the newest leader can commit; others get ErrDeposed.
func (t Term) Commit(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	return t.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		newest, err := tx.LeaderToken(ctx)
		if err != nil {
			return fmt.Errorf("read leadership: %w", err)
		}
		if newest.Token != t.Token {
			return ErrDeposed
		}
		return fn(ctx, tx)
	})
}

// Check returns ErrDeposed when another manager leads. Steps that commit in transactions of their own are harmless when two
// managers make them, and begin with it so that this stays rare.
func (t Term) Check(ctx context.Context) error {
	return t.Commit(ctx, func(context.Context, *store.Tx) error { return nil })
}

// Config says how leadership changes hands.
type Config struct {
	// LeaderTTL is the lease of the leader in seconds; a dead leader is replaced after it.
	LeaderTTL int
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config { return Config{LeaderTTL: 3} }

// Validate checks the ranges.
func (c Config) Validate() error {
	if c.LeaderTTL < 1 || c.LeaderTTL > 60 {
		return fault.Invalidf("reconcile.leader_ttl is %d", c.LeaderTTL).WithNext("choose between 1 and 60 seconds")
	}
	return nil
}

// Deps are what the loops work with. Etcd may be nil: this manager is the only one then.
type Deps struct {
	Store *store.Store
	Loops []Loop
	Etcd  *clientv3.Client
	// Clock defaults to the real one; Registry may be nil.
	Clock    chassis.Clock
	Registry prometheus.Registerer
	Log      *slog.Logger
	// Holder names this manager in the leadership record.
	Holder string
	// Prefix is put before the keys in etcd.
	Prefix string
}

// Leader campaigns for the lead and runs the loops while it has it.
type Leader struct {
	cfg      Config
	deps     Deps
	leading  prometheus.Gauge
	failures *prometheus.CounterVec
}

// New prepares the loops.
func New(cfg Config, deps Deps) (*Leader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	l := &Leader{
		cfg: cfg, deps: deps,
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_reconcile_leader", Help: "1 while this manager leads."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_reconcile_failures_total",
			Help: "Passes of a loop that failed."}, []string{"loop"}),
	}
	if deps.Registry != nil {
		deps.Registry.MustRegister(l.leading, l.failures)
	}
	return l, nil
}

// Service returns the loops as one service: it campaigns, and while it leads it runs them. Losing the lead stops the loops and
// campaigns again.
func (l *Leader) Service() *chassis.Service {
	return chassis.NewService("reconcile", chassis.Hooks{Run: l.run})
}

// passTimeout bounds one pass: a loop that waits for ever would never be heard of again.
const passTimeout = 2 * time.Minute

func pass(ctx context.Context, work Work) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	return work.Pass(ctx)
}

// drive runs one loop until ctx ends or another manager leads.
func (l *Leader) drive(ctx context.Context, loop Loop, term Term) error {
	var hints <-chan struct{}
	taken := func() {}
	if loop.Hears != nil {
		wakes := l.deps.Store.Wakes(loop.Hears)
		defer wakes.Close()
		hints, taken = wakes.C, func() { wakes.Take() }
	}
	work := loop.Begin(term)
	if work.End != nil {
		defer work.End()
	}
	retry := chassis.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	timer := l.deps.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-hints:
			if work.Gather != nil && chassis.Wait(ctx, l.deps.Clock, work.Gather()) != nil {
				return nil
			}
			taken()
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
		wait, err := pass(ctx, work)
		switch {
		case errors.Is(err, ErrDeposed):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			l.failures.WithLabelValues(loop.Name).Inc()
			pause := retry.Next()
			l.deps.Log.Error("a control loop failed", "loop", loop.Name, "err", err, "again in", pause)
			if chassis.Wait(ctx, l.deps.Clock, pause) != nil {
				return nil
			}
			wait = 0
		default:
			retry.Reset()
		}
		timer.Reset(wait)
	}
}
