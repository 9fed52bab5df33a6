package reconcile

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
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/snapshot"
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
)

// Idle is what idle checks know besides the database. Every part may be nil.
type Idle struct {
	// Usage holds what was measured; without it no check of utilisation ends anything.
	Usage interface {
		snapshot.Usage
		// KeepUsage asks for measurements to be kept over a window.
		KeepUsage(ctx context.Context, window time.Duration)
	}
	// Busy reports whether a kernel executes something now. When it cannot tell, the session goes on.
	Busy func(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID) (bool, error)
}

type idleMetrics struct{ warned, ended *prometheus.CounterVec }

func newIdleMetrics(r prometheus.Registerer) idleMetrics {
	m := idleMetrics{
		warned: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_idle_warnings_total", Help: "Sessions told that they will end as idle."}, []string{"type"}),
		ended:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_idle_ends_total", Help: "Sessions ended as idle."}, []string{"type"}),
	}
	if r != nil {
		r.MustRegister(m.warned, m.ended)
	}
	return m
}

// idling warns idle sessions and ends them until ctx ends.
func (l *Loops) idling(ctx context.Context, token int64) error {
	measured := int64(0)
	for {
		now := l.deps.Clock.Now()
		// Measurements come by the bucket: looking at them more often shows nothing new.
		bucket := idle.BucketOf(now)
		next, err := l.idle(ctx, token, now, bucket != measured)
		switch {
		case errors.Is(err, errDeposed):
			return err
		case err != nil && ctx.Err() == nil:
			l.metrics.failures.WithLabelValues("idle").Inc()
			l.deps.Log.Error("looking for idle sessions failed", "err", err)
		case err == nil:
			measured = bucket
		}
		wait := idleEvery
		if !next.IsZero() {
			wait = max(min(next.Sub(now), idleEvery), idleLeast)
		}
		if chassis.Wait(ctx, l.deps.Clock, wait) != nil {
			return nil
		}
	}
}

// idle looks at all running sessions once and returns when the next look is due; full looks at measurements too.
func (l *Loops) idle(ctx context.Context, token int64, now time.Time, full bool) (next time.Time, err error) {
	if err := l.fenced(ctx, token, func(context.Context, *store.Tx) error { return nil }); err != nil {
		return next, err
	}
	rules, broken, err := snapshot.ReadRules(ctx, l.deps.Store.Queries)
	if err != nil {
		return next, err
	}
	for _, name := range broken {
		l.deps.Log.Warn("an idle checker cannot be read and does nothing", "checker", name)
	}
	if full {
		if window := rules.Window(); window > 0 && l.deps.Idle.Usage != nil {
			l.deps.Idle.Usage.KeepUsage(ctx, window)
		}
		if err := l.deps.Store.DropEndedIdleState(ctx, idlePage); err != nil {
			return next, fmt.Errorf("forget ended sessions: %w", err)
		}
	}
	for after := ""; ; {
		page, err := snapshot.Read(ctx, l.deps.Store.Queries, rules, snapshot.Filter{After: after, Limit: idlePage})
		if err != nil {
			return next, err
		}
		due, soonest := l.look(ctx, page, now, full)
		if !soonest.IsZero() && (next.IsZero() || soonest.Before(next)) {
			next = soonest
		}
		for batch := range slices.Chunk(due, idleBatch) {
			if err := l.settleIdle(ctx, token, rules, batch, now); err != nil {
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
func (l *Loops) look(ctx context.Context, page []*snapshot.Session, now time.Time, full bool) (due []*snapshot.Session, next time.Time) {
	if full && l.deps.Idle.Usage != nil {
		snapshot.Measure(ctx, l.deps.Idle.Usage, page)
	}
	var ask []*snapshot.Session
	for _, s := range page {
		if !full {
			s.Without(idle.Utilization)
		}
		verdicts := s.Judge(now)
		if t := idle.Next(verdicts); !t.IsZero() && (next.IsZero() || t.Before(next)) {
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
func (l *Loops) ask(ctx context.Context, sessions []*snapshot.Session, now time.Time) {
	if l.deps.Idle.Busy == nil || len(sessions) == 0 {
		return
	}
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
				ctx, cancel := context.WithTimeout(ctx, probePatience)
				is, err := l.deps.Idle.Busy(ctx, s.Agent, s.Main)
				cancel()
				switch {
				case err != nil:
					l.deps.Log.Debug("a runner does not say whether it is busy", "session", s.ID, "err", err)
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
			s.Without(idle.Network)
		}
		if state[i] == busy {
			ids, times = append(ids, s.Row.ID), append(times, now)
		}
	}
	if len(ids) > 0 {
		if err := l.deps.Store.TouchSessions(ctx, times, ids); err != nil {
			l.deps.Log.Warn("could not note that sessions are busy", "sessions", len(ids), "err", err)
		}
	}
}

// idleStep is what is to be done with one session.
type idleStep struct {
	end     *idle.Verdict
	tell    []idle.Verdict
	recover []string // checkers whose warnings no longer hold
}

func (s idleStep) nothing() bool { return s.end == nil && len(s.tell) == 0 && len(s.recover) == 0 }

// unused reports whether the step follows from nobody having used the session.
func (s idleStep) unused() bool {
	if s.end != nil {
		return s.end.Checker.Type == idle.Network
	}
	return slices.ContainsFunc(s.tell, func(v idle.Verdict) bool { return v.Checker.Type == idle.Network })
}

func stepOf(s *snapshot.Session, verdicts []idle.Verdict) (step idleStep) {
	if v, ok := idle.Ends(verdicts); ok {
		step.end = &v
		return step
	}
	kept := map[string]bool{}
	for _, v := range verdicts {
		if v.Tell {
			step.tell = append(step.tell, v)
		}
		kept[v.Checker.Name] = v.Phase == idle.Idle || v.Phase == idle.Expired
	}
	for name := range s.Warned {
		if holds, judged := kept[name]; !holds && (judged || s.Whole()) {
			step.recover = append(step.recover, name)
		}
	}
	return step
}

// settleIdle decides again under the sessions' locks and acts. When one session's rows make trouble the others are settled all the same.
func (l *Loops) settleIdle(ctx context.Context, token int64, rules snapshot.Rules, batch []*snapshot.Session, now time.Time) error {
	err := l.commitIdle(ctx, token, rules, batch, now)
	if err == nil || errors.Is(err, errDeposed) || ctx.Err() != nil || len(batch) == 1 {
		return err
	}
	var errs []error
	for _, s := range batch {
		switch err := l.commitIdle(ctx, token, rules, []*snapshot.Session{s}, now); {
		case errors.Is(err, errDeposed):
			return err
		case err != nil:
			errs = append(errs, fmt.Errorf("session %s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Loops) commitIdle(ctx context.Context, token int64, rules snapshot.Rules, batch []*snapshot.Session, now time.Time) error {
	var told, ended []idle.Verdict
	err := l.fenced(ctx, token, func(ctx context.Context, tx *store.Tx) error {
		told, ended = nil, nil
		ids := make([]cluster.SessionID, len(batch))
		texts := make([]string, len(batch))
		seen := map[cluster.SessionID]*snapshot.Session{}
		for i, s := range batch {
			ids[i], texts[i], seen[s.ID] = s.ID, s.Row.ID, s
		}
		locked, err := tx.Lock(ctx, ids...)
		if err != nil {
			return err
		}
		current, err := snapshot.Read(ctx, tx.Queries, rules, snapshot.Filter{IDs: texts, Limit: len(texts)})
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
		l.idleMetrics.warned.WithLabelValues(string(v.Checker.Type)).Inc()
	}
	for _, v := range ended {
		l.idleMetrics.ended.WithLabelValues(string(v.Checker.Type)).Inc()
	}
	return nil
}

func (l *Loops) applyIdle(ctx context.Context, tx *store.Tx, locked *store.Locked, s *snapshot.Session, step idleStep, now time.Time) error {
	if v := step.end; v != nil {
		evidence, err := json.Marshal(v.Evidence(s.Session, l.deps.Holder, now))
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
		l.deps.Log.Info("session ends as idle", "session", s.ID, "checker", v.Checker.Name, "why", v.Why)
		return locked.Settle(ctx, reason, v.Words())
	}
	for _, v := range step.tell {
		evidence, err := json.Marshal(v.Evidence(s.Session, l.deps.Holder, now))
		if err != nil {
			return fmt.Errorf("encode evidence: %w", err)
		}
		detail := v.Words() + "; the session ends at " + v.Deadline.UTC().Format(time.RFC3339)
		if v.Checker.Type != idle.Lifetime {
			detail += " unless it is used"
		}
		_, err = tx.WarnIdle(ctx, dbgen.WarnIdleParams{SessionID: s.Row.ID, Checker: v.Checker.Name, WarnedAt: now, Deadline: v.Deadline, DryRun: v.Checker.DryRun,
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
