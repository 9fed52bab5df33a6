package idle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/reconcile"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// idleEvery is the longest time between two looks at running sessions; idleLeast the shortest.
	idleEvery = 15 * time.Second
	idleLeast = time.Second
	// idlePage bounds the sessions of one look, idleBatch those of one transaction.
	idlePage  = 1000
	idleBatch = 50
	// probes are asked of runners at once, each for as long as probePatience.
	probes        = 8
	probePatience = 5 * time.Second
	// askPatience bounds all questions of one page together: runners that say nothing must not keep the others' sessions from ending.
	askPatience = 20 * time.Second
)

// LoopDeps are what the loop knows besides the database. Every part but Clock may be nil.
type LoopDeps struct {
	Clock chassis.Clock
	// Usage keeps measurements over a window.
	Usage interface {
		KeepUsage(ctx context.Context, window time.Duration)
	}
	// Busy reports whether a kernel executes something now. When it cannot tell, the session goes on.
	Busy     func(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID) (bool, error)
	Registry prometheus.Registerer
}

type idleMetrics struct{ warned, ended *prometheus.CounterVec }

func newIdleMetrics(r prometheus.Registerer) idleMetrics {
	m := idleMetrics{
		warned: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_idle_warnings_total",
			Help: "Sessions told that they will end as idle."}, []string{"type"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_idle_ends_total", Help: "Sessions ended as idle."}, []string{"type"}),
	}
	if r != nil {
		r.MustRegister(m.warned, m.ended)
	}
	return m
}

// looker looks for idle sessions during one term.
type looker struct {
	*Service
	deps    LoopDeps
	term    reconcile.Term
	metrics idleMetrics
}

// Loops returns the control loop that warns idle sessions and ends them.
func (s *Service) Loops(deps LoopDeps) []reconcile.Loop {
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	metrics := newIdleMetrics(deps.Registry)
	return []reconcile.Loop{{Name: "idle", Begin: func(t reconcile.Term) reconcile.Work {
		l := &looker{Service: s, deps: deps, term: t, metrics: metrics}
		measured := int64(0)
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
			now := deps.Clock.Now()
			// Measurements come by the bucket: looking at them more often shows nothing new.
			bucket := rule.BucketOf(now)
			next, err := l.idle(ctx, now, bucket != measured)
			if err != nil {
				return 0, err
			}
			measured = bucket
			if next.IsZero() {
				return idleEvery, nil
			}
			return max(min(next.Sub(now), idleEvery), idleLeast), nil
		}}
	}}}
}

// idle looks at all running sessions once and returns when the next look is due; full looks at measurements too.
func (l *looker) idle(ctx context.Context, now time.Time, full bool) (next time.Time, err error) {
	if err := l.term.Check(ctx); err != nil {
		return next, err
	}
	rules, broken, err := readRules(ctx, l.d.Store.Queries)
	if err != nil {
		return next, err
	}
	for _, name := range broken {
		l.d.Log.Warn("an idle checker cannot be read and does nothing", "checker", name)
	}
	if full {
		if window := rules.Window(); window > 0 && l.deps.Usage != nil {
			l.deps.Usage.KeepUsage(ctx, window)
		}
		if err := l.d.Store.DropEndedIdleState(ctx, idlePage); err != nil {
			return next, fmt.Errorf("forget ended sessions: %w", err)
		}
	}
	for after := ""; ; {
		page, err := readCandidates(ctx, l.d.Store.Queries, rules, filter{After: after, Limit: idlePage})
		if err != nil {
			return next, err
		}
		due, soonest := l.look(ctx, page, now, full)
		if !soonest.IsZero() && (next.IsZero() || soonest.Before(next)) {
			next = soonest
		}
		for batch := range slices.Chunk(due, idleBatch) {
			if err := l.settleIdle(ctx, rules, batch, now); err != nil {
				return next, err
			}
		}
		if len(page) < idlePage {
			return next, nil
		}
		after = page[len(page)-1].Row.ID
	}
}

// look judges a page and returns the sessions that need something done.
func (l *looker) look(ctx context.Context, page []*candidate, now time.Time, full bool) (due []*candidate, next time.Time) {
	if full {
		measure(ctx, l.d.Usage, page)
	}
	var ask []*candidate
	for _, s := range page {
		if !full {
			s.Without(rule.Utilization)
		}
		verdicts := s.Judge(now)
		if t := rule.Next(verdicts); !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
		step := stepOf(s, verdicts)
		if step.nothing() {
			continue
		}
		if due = append(due, s); step.unused() {
			ask = append(ask, s)
		}
	}
	l.ask(ctx, ask, now)
	return due, next
}

// ask asks the runners of sessions that nobody used whether they execute something. Those that do count as used now; those
// that cannot be asked are not held to have been unused.
func (l *looker) ask(ctx context.Context, sessions []*candidate, now time.Time) {
	if l.deps.Busy == nil || len(sessions) == 0 {
		return
	}
	asking, done := context.WithTimeout(ctx, askPatience)
	defer done()
	const free, busy, unknown = 0, 1, 2
	state := make([]int, len(sessions))
	work := make(chan int)
	var wg sync.WaitGroup
	for range min(probes, len(sessions)) {
		wg.Go(func() {
			for i := range work {
				s := sessions[i]
				state[i] = unknown
				if !s.Reachable {
					continue
				}
				if asking.Err() != nil {
					continue
				}
				ctx, cancel := context.WithTimeout(asking, probePatience)
				is, err := l.deps.Busy(ctx, s.Agent, s.Main)
				cancel()
				switch {
				case err != nil:
					l.d.Log.Debug("a runner does not say whether it is busy", "session", s.ID, "err", err)
				case is:
					state[i] = busy
				default:
					state[i] = free
				}
			}
		})
	}
	for i := range sessions {
		work <- i
	}
	close(work)
	wg.Wait()
	var ids []string
	var times []time.Time
	for i, s := range sessions {
		if state[i] != free {
			s.Without(rule.Network)
		}
		if state[i] == busy {
			ids, times = append(ids, s.Row.ID), append(times, now)
		}
	}
	if len(ids) > 0 {
		if err := l.d.Store.TouchSessions(ctx, times, ids); err != nil {
			l.d.Log.Warn("could not note that sessions are busy", "sessions", len(ids), "err", err)
		}
	}
}

// idleStep is what is to be done with one session.
type idleStep struct {
	end     *rule.Verdict
	tell    []rule.Verdict
	recover []string // checkers whose warnings no longer hold
}

func (s idleStep) nothing() bool { return s.end == nil && len(s.tell) == 0 && len(s.recover) == 0 }

// unused reports whether the step follows from nobody having used the session.
func (s idleStep) unused() bool {
	if s.end != nil {
		return s.end.Checker.Type == rule.Network
	}
	return slices.ContainsFunc(s.tell, func(v rule.Verdict) bool { return v.Checker.Type == rule.Network })
}

func stepOf(s *candidate, verdicts []rule.Verdict) (step idleStep) {
	if v, ok := rule.Ends(verdicts); ok {
		step.end = &v
		return step
	}
	kept := map[string]bool{}
	for _, v := range verdicts {
		if v.Tell {
			step.tell = append(step.tell, v)
		}
		kept[v.Checker.Name] = v.Phase == rule.Idle || v.Phase == rule.Expired
	}
	for name := range s.Warned {
		if holds, judged := kept[name]; !holds && (judged || s.Whole()) {
			step.recover = append(step.recover, name)
		}
	}
	return step
}

// settleIdle decides again under the sessions' locks and acts. When one session's rows make trouble the others are settled all the same.
func (l *looker) settleIdle(ctx context.Context, rules rules, batch []*candidate, now time.Time) error {
	err := l.commitIdle(ctx, rules, batch, now)
	if err == nil || errors.Is(err, reconcile.ErrDeposed) || ctx.Err() != nil || len(batch) == 1 {
		return err
	}
	var errs []error
	for _, s := range batch {
		switch err := l.commitIdle(ctx, rules, []*candidate{s}, now); {
		case errors.Is(err, reconcile.ErrDeposed):
			return err
		case err != nil:
			errs = append(errs, fmt.Errorf("session %s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (l *looker) commitIdle(ctx context.Context, rules rules, batch []*candidate, now time.Time) error {
	var told, ended []rule.Verdict
	err := l.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		told, ended = nil, nil
		ids := make([]cluster.SessionID, len(batch))
		texts := make([]string, len(batch))
		seen := map[cluster.SessionID]*candidate{}
		for i, s := range batch {
			ids[i], texts[i], seen[s.ID] = s.ID, s.Row.ID, s
		}
		locked, err := tx.Lock(ctx, ids...)
		if err != nil {
			return err
		}
		current, err := readCandidates(ctx, tx.Queries, rules, filter{IDs: texts, Limit: len(texts)})
		if err != nil {
			return err
		}
		for _, s := range current {
			i := slices.IndexFunc(locked, func(x *store.Locked) bool { return x.ID == s.Row.ID })
			if i < 0 || locked[i].Status != cluster.Running {
				continue
			}
			s.As(seen[s.ID])
			step := stepOf(s, s.Judge(now))
			if err := l.applyIdle(ctx, tx, locked[i], s, step, now); err != nil {
				return err
			}
			told = append(told, step.tell...)
			if step.end != nil {
				ended = append(ended, *step.end)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, v := range told {
		l.metrics.warned.WithLabelValues(string(v.Checker.Type)).Inc()
	}
	for _, v := range ended {
		l.metrics.ended.WithLabelValues(string(v.Checker.Type)).Inc()
	}
	return nil
}

func (l *looker) applyIdle(ctx context.Context, tx *store.Tx, locked *store.Locked, s *candidate, step idleStep, now time.Time) error {
	if v := step.end; v != nil {
		evidence, err := json.Marshal(v.Evidence(s.Session, l.term.Holder, now))
		if err != nil {
			return fmt.Errorf("encode evidence: %w", err)
		}
		if err := tx.NoteIdleEnd(ctx, evidence, s.Row.ID); err != nil {
			return fmt.Errorf("keep evidence: %w", err)
		}
		reason := v.Checker.Type.Reason()
		if err := locked.Stop(ctx, reason, v.Words(), false); err != nil {
			return fmt.Errorf("stop session %s: %w", s.ID, err)
		}
		l.d.Log.Info("session ends as idle", "session", s.ID, "checker", v.Checker.Name, "why", v.Why)
		return locked.Settle(ctx, reason, v.Words())
	}
	for _, v := range step.tell {
		evidence, err := json.Marshal(v.Evidence(s.Session, l.term.Holder, now))
		if err != nil {
			return fmt.Errorf("encode evidence: %w", err)
		}
		detail := v.Words() + "; the session ends at " + v.Deadline.UTC().Format(time.RFC3339)
		if v.Checker.Type != rule.Lifetime {
			detail += " unless it is used"
		}
		_, err = tx.WarnIdle(ctx, dbgen.WarnIdleParams{SessionID: s.Row.ID, Checker: v.Checker.Name, WarnedAt: now, Deadline: v.Deadline,
			DryRun:   v.Checker.DryRun,
			Evidence: evidence, Event: string(cluster.SessionIdleWarning), Reason: string(v.Checker.Type.Reason()), Detail: detail})
		if err != nil {
			return fmt.Errorf("warn session %s: %w", s.ID, err)
		}
		tx.Wake(store.TopicEvents, store.SessionTopic(s.Row.ID))
	}
	if len(step.recover) == 0 {
		return nil
	}
	return tx.DropIdleWarnings(ctx, slices.Repeat([]string{s.Row.ID}, len(step.recover)), step.recover)
}
