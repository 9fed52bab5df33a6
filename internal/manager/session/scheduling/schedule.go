package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/scheduler"
)

const (
	// passPlacements and passSteps bound one pass over a group, so that hints and questions are heard in between;
	// one pass is one commit.
	passPlacements = 256
	passSteps      = 4_000_000
	// A turn that placed at least crowd sessions is followed by a rest of at most mostRest, so that the next turn finds more to do.
	crowd    = 8
	mostRest = 20 * time.Millisecond
	// mostGivenUp bounds how many sessions one turn cancels, of each of the two causes.
	mostGivenUp = 100
	// resyncShare bounds full comparisons to 1/resyncShare of the leader's time, however large the cluster is.
	resyncShare = 50
)

// desk is the state of the scheduling loop during one term of leadership.
type desk struct {
	*Scheduling
	term reconcile.Term
	kept *kept
	// resyncAt is when everything is compared again; zero before the first turn of the term.
	resyncAt time.Time
	// refusals counts turns in a row in which commits were refused and nothing was placed.
	refusals int
	// placed is how many sessions the last turn placed, ended when it ended. took is how long it took if it placed many, otherwise 0.
	placed   int
	took     time.Duration
	ended    time.Time
	telling  telling
	gaugedAt time.Time
}

// schedule takes one turn and says when the next is due without a hint.
func (d *desk) schedule(ctx context.Context) (wait time.Duration, err error) {
	began := d.deps.Clock.Now()
	again, err := d.turn(ctx)
	if d.ended, d.took = d.deps.Clock.Now(), 0; d.placed >= crowd {
		d.took = d.ended.Sub(began)
	}
	if err != nil {
		return 0, err
	}
	wait = d.cfg.Resync
	if !again.IsZero() {
		wait = min(wait, max(again.Sub(d.deps.Clock.Now()), 0))
	}
	return wait, nil
}

// gather says how long to wait for more hints before a turn. After a turn that placed many sessions, the pause is as long as that turn took
// (at most mostRest). So turns become fewer and larger when many sessions arrive.
func (d *desk) gather() time.Duration {
	return max(d.cfg.Debounce, min(d.took, mostRest)-d.deps.Clock.Now().Sub(d.ended))
}

// soonest returns the earlier of two instants; zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// turn brings the memory up to date, cancels sessions that cannot start, runs one pass over every group, commits what the passes decided,
// and stores explanations for sessions that wait. again is when the next turn is due if no hint comes.
func (d *desk) turn(ctx context.Context) (again time.Time, err error) {
	now := d.deps.Clock.Now()
	if err := d.catchUp(ctx, now); err != nil {
		return time.Time{}, err
	}
	again, err = d.giveUp(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	var names []string
	if err := d.kept.with(ctx, func(m *memory) error {
		names, m.passedAt = slices.Sorted(maps.Keys(m.groups)), now
		again = soonest(again, m.nextTrial())
		return nil
	}); err != nil {
		return time.Time{}, err
	}
	placed, refused := 0, 0
	for _, name := range names {
		out, err := d.pass(ctx, name, now)
		if err != nil {
			return time.Time{}, fmt.Errorf("schedule resource group %s: %w", name, err)
		}
		placed, refused = placed+out.placed, refused+out.refused
		if out.more {
			again = now
		}
		again = soonest(again, out.wake)
	}
	d.placed = placed
	if refused > 0 { // the memory was out of date: try again soon, and later each time it does not help
		if d.refusals++; placed > 0 {
			d.refusals = 0
		}
		again = soonest(again, now.Add(min(time.Millisecond<<min(d.refusals, 10), time.Second)))
		if d.refusals > 3 {
			d.resyncAt = now // the memory must differ from the database somewhere: compare everything
		}
	} else {
		d.refusals = 0
	}
	next, err := d.tell(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	return soonest(soonest(again, next), d.resyncAt), nil
}

// catchUp brings the memory up to date. It makes a full comparison when one is due.
func (d *desk) catchUp(ctx context.Context, now time.Time) error {
	return d.kept.with(ctx, func(m *memory) error {
		return d.deps.Store.View(ctx, func(ctx context.Context, q *dbgen.Queries) error {
			first := d.resyncAt.IsZero()
			switch {
			case first: // the memory was a copy until now; this look brings it up to date
				m.changes.CompareEvery(d.cfg.Resync, resyncShare)
			case !now.Before(d.resyncAt):
				m.changes.CompareSoon()
			}
			seen, err := m.look(ctx, d.deps.Store, q)
			if err != nil {
				return err
			}
			if seen.token != d.term.Token {
				return reconcile.ErrDeposed
			}
			if err := m.readShares(ctx, q, now); err != nil {
				return err
			}
			d.resyncAt = seen.NextCompare
			if first {
				d.deps.Log.Info("scheduling", "sessions", len(m.sessions), "agents", len(m.agents), "groups", len(m.groups))
			}
			d.countDrift(m, seen.Report)
			return nil
		})
	})
}

// countDrift counts full comparisons, and the differences that they corrected although looks should have found them.
func (d *desk) countDrift(m *memory, r feed.Report) {
	if r.Compared != feed.NotCompared && r.Compared != feed.First {
		d.metrics.resyncs.Inc()
	}
	if !r.Compared.Missed() {
		return
	}
	m.drift += r.Differences
	if r.Differences > 0 {
		d.metrics.drift.Add(float64(r.Differences))
		d.deps.Log.Warn("the scheduler's memory differed from the database and was corrected", "differences", r.Differences)
	}
}

// giveUp cancels waiting sessions whose dependency failed, and those that have waited longer than their group allows. next is when the next
// session will have waited too long.
func (d *desk) giveUp(ctx context.Context, now time.Time) (next time.Time, err error) {
	var doomed map[cluster.SessionID]string
	var late []cluster.SessionID
	err = d.kept.with(ctx, func(m *memory) error {
		doomed = map[cluster.SessionID]string{}
		for id, why := range m.doomed {
			if len(doomed) == mostGivenUp {
				break
			}
			doomed[id] = why
			m.stale[id] = struct{}{}
		}
		late, next = m.late(now, mostGivenUp)
		for _, id := range late {
			m.stale[id] = struct{}{}
		}
		return nil
	})
	if err != nil || len(doomed)+len(late) == 0 {
		return next, err
	}
	err = d.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		for _, id := range slices.Sorted(maps.Keys(doomed)) {
			if err := session.StopAll(ctx, tx, []cluster.SessionID{id}, cluster.Pending, cluster.ReasonDependency, doomed[id]); err != nil {
				return err
			}
		}
		return session.StopAll(ctx, tx, late, cluster.Pending, cluster.ReasonPendingTimeout, "it waited longer than its resource group allows")
	})
	return now, err
}

// outcome is the result of one pass over a group and its commit.
type outcome struct {
	placed, refused int
	more            bool
	wake            time.Time
}

// pass lets the scheduler decide about a group and commits what it decided.
func (d *desk) pass(ctx context.Context, group string, now time.Time) (out outcome, err error) {
	var batch []proposal
	var evictions []eviction
	var kinds map[cluster.SlotName]bool
	err = d.kept.with(ctx, func(m *memory) error {
		began := d.deps.Clock.Now()
		result, err := m.cluster.Pass(group, now, scheduler.Work{Placements: passPlacements, Steps: passSteps})
		if err != nil {
			return err
		}
		d.metrics.pass.Observe(d.deps.Clock.Now().Sub(began).Seconds())
		m.doubt(result.Decisions)
		batch, evictions = m.propose(result.Decisions)
		if len(batch) == 0 {
			m.lack(group, nil)
		}
		out.more, out.wake = result.More, result.Wake
		if e := m.group(group); result.More || !e.wake.Equal(result.Wake) { // the reason why a session waits may have changed
			m.changed, e.wake = true, result.Wake
		}
		kinds = maps.Clone(m.slots)
		return nil
	})
	if err != nil {
		return out, err
	}
	if len(batch) > 0 {
		refused, lacking, err := d.commit(ctx, batch, kinds)
		if err != nil {
			return out, fmt.Errorf("commit placements: %w", err)
		}
		out.refused, out.placed = len(refused), len(batch)-len(refused)
		if err := d.kept.with(ctx, func(m *memory) error { m.refused(batch, refused); m.lack(group, lacking); return nil }); err != nil {
			return out, err
		}
	}
	if len(evictions) > 0 {
		if err := d.evict(ctx, group, evictions); err != nil {
			return out, fmt.Errorf("clear places: %w", err)
		}
	}
	return out, nil
}

// propose splits decisions into sessions to place and sessions to stop, each with what its transaction needs.
func (m *memory) propose(decisions []scheduler.Decision) (batch []proposal, evictions []eviction) {
	for _, d := range decisions {
		e := m.sessions[d.Session]
		switch {
		case e == nil:
		case len(d.Preempt) > 0:
			reason := cluster.ReasonPreempted
			if m.group(e.group).policy.Preemption.Reschedule {
				reason = cluster.ReasonRescheduled
			}
			evictions = append(evictions, eviction{d.Session, d.Preempt, reason})
		case len(d.Placements) == len(e.kernels):
			byID := map[cluster.KernelID]scheduler.Placement{}
			for _, pl := range d.Placements {
				byID[pl.Kernel] = pl
			}
			p := proposal{session: d.Session, owner: e.owner, group: e.group, private: e.private, host: e.host, kernels: e.kernels,
				generations: e.generations}
			for _, k := range e.kernels {
				p.placements = append(p.placements, byID[k.ID])
			}
			batch = append(batch, p)
		}
	}
	return batch, evictions
}

// refused marks agents as stale on which the commit found no room: the memory is out of date about them.
func (m *memory) refused(batch []proposal, refused map[cluster.SessionID]string) {
	for _, p := range batch {
		if refused[p.session] == "room" {
			for _, pl := range p.placements {
				m.staleAgents[pl.Agent] = struct{}{}
			}
		}
	}
}
