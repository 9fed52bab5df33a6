package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

const (
	// copyFresh is how old an answer of a manager that does not lead may be.
	copyFresh = time.Second
	// copyIdle: a copy that nobody has asked for that long is thrown away and read anew, instead of brought up to date.
	copyIdle = 10 * time.Minute
	// copyCompare is how often such a copy is compared with the whole database.
	copyCompare = 10 * time.Minute
	// standByEvery is how often a manager that waits to become the leader brings its copy up to date.
	standByEvery = 2 * time.Second
	// askTimeout bounds one question.
	askTimeout = 15 * time.Second
)

// Planner answers why sessions wait and where a request would start. It works on every manager and satisfies session.Explainer. The
// leader answers from the memory of its scheduling loop. Another manager answers from a copy: it reads it when first asked, and brings it
// up to date when asked again and while it stands by to become the leader.
type Planner struct {
	store *store.Store
	clock chassis.Clock

	mu      sync.Mutex
	leading *kept // nil: another manager leads
	copy    *copied
}

// copied is the copy of a manager that does not lead.
type copied struct {
	*kept
	lookedAt time.Time // of the last look; used only inside kept.with
}

var _ session.Explainer = (*Planner)(nil)

// NewPlanner makes a planner over a store; clock nil is the real one.
func NewPlanner(s *store.Store, clock chassis.Clock) *Planner {
	if clock == nil {
		clock = chassis.RealClock()
	}
	return &Planner{store: s, clock: clock, copy: &copied{kept: newKept(clock)}}
}

// lead is called when this manager becomes the leader. It makes the copy the memory of the scheduling loop and returns it.
func (p *Planner) lead() *kept {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading = p.copy.kept
	p.copy = &copied{kept: newKept(p.clock)}
	return p.leading
}

// follow is called when this manager no longer leads. The next question is answered from a copy again.
func (p *Planner) follow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading = nil
}

// standBy keeps the copy up to date until ctx ends, so that this manager can schedule at once when it becomes the leader.
func (p *Planner) standBy(ctx context.Context) {
	for {
		// An error is ignored here: the next look tries again, and the scheduling loop reports it when this manager leads.
		_ = p.ask(ctx, copyFresh, func(*memory, time.Time, bool) error { return nil })
		if chassis.Wait(ctx, p.clock, standByEvery) != nil {
			return
		}
	}
}

// ask runs fn with the leader's memory or, on other managers, with a copy that is at most most old. asOf is the instant that the memory
// shows; leads says which of the two it is.
func (p *Planner) ask(ctx context.Context, most time.Duration, fn func(m *memory, asOf time.Time, leads bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	p.mu.Lock()
	leading, c := p.leading, p.copy
	p.mu.Unlock()
	if leading != nil {
		loaded := false
		err := leading.with(ctx, func(m *memory) error {
			if loaded = m.changes.Begun(); loaded {
				return fn(m, p.clock.Now(), true)
			}
			return nil
		})
		if err != nil || loaded {
			return err
		}
	}
	return c.with(ctx, func(*memory) error {
		now := p.clock.Now()
		switch age := now.Sub(c.lookedAt); {
		case age < 0, age >= copyIdle:
			c.m = newMemory(p.clock)
			fallthrough
		case age >= most:
			if err := p.refresh(ctx, c, now); err != nil {
				return err
			}
		}
		return fn(c.m, c.lookedAt, false)
	})
}

// refresh brings a copy up to date and runs one pass over it, because the scheduler knows only after a pass why sessions wait. The pass
// also starts sessions in the copy, although only the leader may start them. They are marked as stale: the next refresh reads them again.
func (p *Planner) refresh(ctx context.Context, c *copied, now time.Time) error {
	err := p.store.View(ctx, func(ctx context.Context, q *dbgen.Queries) error {
		if _, err := c.m.look(ctx, p.store, q); err != nil {
			return err
		}
		return c.m.readShares(ctx, q, now)
	})
	if err != nil {
		return fmt.Errorf("look at the cluster: %w", err)
	}
	c.lookedAt = now
	for _, name := range slices.Sorted(maps.Keys(c.m.groups)) {
		result, err := c.m.cluster.Pass(name, now, scheduler.Work{Placements: passPlacements, Steps: passSteps})
		if err != nil {
			return fmt.Errorf("plan resource group %s: %w", name, err)
		}
		for _, d := range result.Decisions {
			c.m.stale[d.Session] = struct{}{}
		}
	}
	return nil
}

// Explain says why a session waits.
func (p *Planner) Explain(ctx context.Context, id cluster.SessionID) (out session.Explanation, err error) {
	row, err := p.store.SessionOwner(ctx, string(id))
	if store.Missing(err) {
		return out, fault.NotFoundf("No such session: %s", id)
	}
	if err != nil {
		return out, fmt.Errorf("find session %s: %w", id, err)
	}
	out = session.Explanation{Session: id, Status: row.Status, AsOf: p.clock.Now()}
	if row.Status != cluster.Pending {
		out.Text = fmt.Sprintf("it does not wait, it is %s", row.Status)
		return out, nil
	}
	err = p.explain(ctx, copyFresh, &out)
	if err == nil && out.Reason == string(scheduler.WaitsForPass) {
		err = p.explain(ctx, 0, &out) // the session is newer than the copy: bring the copy up to date and ask again
	}
	return out, err
}

// explain fills in out for a waiting session, from a memory that is at most most old.
func (p *Planner) explain(ctx context.Context, most time.Duration, out *session.Explanation) error {
	id := out.Session
	return p.ask(ctx, most, func(m *memory, asOf time.Time, _ bool) error {
		e := m.sessions[id]
		out.AsOf = asOf
		out.Reason, out.Text = "", ""
		if e == nil {
			out.Reason, out.Text = string(scheduler.WaitsForPass), "the scheduler has not come to it yet"
			return nil
		}
		out.Group, out.Queue = e.group, m.group(e.group).waiting
		if why := m.doomed[id]; why != "" {
			out.Reason, out.Text = string(scheduler.WaitsForDependency), why
			return nil
		}
		h, waits := m.explain(id)
		if !waits {
			out.Text = "it is being started"
			return nil
		}
		hold(out, &h)
		return nil
	})
}

// DryRun says where a session would start now, or why it would wait, without adding it.
func (p *Planner) DryRun(ctx context.Context, r session.PlanRequest) (out session.Explanation, err error) {
	waits := ""
	if len(r.DependsOn) > 0 {
		if waits, err = p.openDependency(ctx, r.DependsOn); err != nil {
			return out, err
		}
	}
	err = p.ask(ctx, copyFresh, func(m *memory, asOf time.Time, _ bool) error {
		s := scheduler.Session{
			ID: "dry-run", Name: "dry run", Type: r.Type, Priority: r.Priority, EnqueuedAt: asOf, StartsAt: r.StartsAt, Lifetime: r.Lifetime,
			Waiting:    waits,
			Owner:      scheduler.Owner{AccessKey: r.AccessKey, User: r.User, Project: r.Project, Domain: r.Domain},
			SingleNode: r.SingleNode, Private: r.Type == cluster.System, Preemptible: r.Preemptible, Designated: r.Designated, Volumes: r.Volumes,
		}
		for i, k := range r.Kernels {
			s.Kernels = append(s.Kernels, scheduler.Kernel{ID: cluster.KernelID(fmt.Sprintf("dry-run-%d", i)), Slots: k.Slots,
				Architecture: k.Architecture, Image: k.Image, Isolation: k.Isolation, Role: roleText(k.Role)})
		}
		unknown := map[scheduler.Scope]bool{}
		for _, scope := range s.Owner.Scopes() {
			if _, known := m.owners[scope]; !known {
				unknown[scope] = true
			}
		}
		if _, err := m.readQuotas(ctx, p.store.Queries, unknown); err != nil {
			return err
		}
		d := m.cluster.Probe(r.Group, asOf, s)
		out = session.Explanation{Group: r.Group, Queue: m.group(r.Group).waiting, AsOf: asOf}
		if d.Hold != nil {
			hold(&out, d.Hold)
			return nil
		}
		out.Text = "it would start now"
		for _, k := range s.Kernels {
			for _, pl := range d.Placements {
				if pl.Kernel == k.ID {
					out.Placements = append(out.Placements, session.PlannedKernel{Agent: pl.Agent, Devices: pl.Allocation})
				}
			}
		}
		return nil
	})
	return out, err
}

// openDependency says which of some sessions has not succeeded yet; "" when all have.
func (p *Planner) openDependency(ctx context.Context, on []cluster.SessionID) (string, error) {
	ids := make([]string, len(on))
	for i, id := range on {
		ids[i] = string(id)
	}
	rows, err := p.store.DependencyStates(ctx, ids)
	if err != nil {
		return "", fmt.Errorf("read dependencies: %w", err)
	}
	for _, r := range rows {
		if r.Status != cluster.Terminated || r.Result != cluster.ResultSuccess {
			return waitsFor(r.Name), nil
		}
	}
	return "", nil
}

// hold copies the scheduler's explanation of why a session waits into an answer.
func hold(out *session.Explanation, h *scheduler.Explanation) {
	out.Reason, out.Text, out.Rejected, out.Shortfall = string(h.Reason), h.Text, h.Rejected, h.Shortfall
	out.Position, out.Estimate, out.Remedies, out.Elsewhere = h.Position, h.Estimate, h.Remedies, h.Elsewhere
}

// Status describes every resource group's queue.
func (p *Planner) Status(ctx context.Context) (out []session.GroupStatus, err error) {
	err = p.ask(ctx, copyFresh, func(m *memory, _ time.Time, leads bool) error {
		byName := map[string]*session.GroupStatus{}
		for name, g := range m.groups {
			s := &session.GroupStatus{Name: name, Active: !g.policy.Inactive, Scheduler: orFirst(g.policy.Order, scheduler.Orders()),
				Placement: orFirst(g.policy.Placement, scheduler.Placements()), Warning: g.warning, Pending: g.waiting, Reasons: map[string]int{},
				Leader:   leads,
				LastPass: m.passedAt, Drift: m.drift}
			for reason, n := range m.cluster.Queue(name).Reasons {
				s.Reasons[string(reason)] = n
			}
			byName[name] = s
		}
		for _, e := range m.sessions {
			if s := byName[e.group]; s != nil && e.status != cluster.Pending {
				s.Running++
			}
		}
		for _, a := range m.agents {
			if s := byName[a.group]; s != nil {
				if s.Agents++; a.usable {
					s.UsableAgents++
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			out = append(out, *byName[name])
		}
		return nil
	})
	return out, err
}

func orFirst(name string, all []string) string {
	if name == "" && len(all) > 0 {
		return all[0]
	}
	return name
}
