package reconcile

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/service"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// Planner answers what the scheduler thinks, on every manager; it satisfies service.Explainer.
type Planner struct {
	store *store.Store
	clock chassis.Clock
}

var _ service.Explainer = (*Planner)(nil)

// NewPlanner makes a planner over a store; clock nil is the real one.
func NewPlanner(s *store.Store, clock chassis.Clock) *Planner {
	if clock == nil {
		clock = chassis.RealClock()
	}
	return &Planner{store: s, clock: clock}
}

func (p *Planner) look(ctx context.Context) (out *picture, err error) {
	err = p.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		out, err = look(ctx, tx, p.clock.Now())
		return err
	})
	return out, err
}

// Explain says why a session waits.
func (p *Planner) Explain(ctx context.Context, id cluster.SessionID) (service.Explanation, error) {
	picture, err := p.look(ctx)
	if err != nil {
		return service.Explanation{}, err
	}
	for _, g := range picture.groups {
		decisions, err := scheduler.Plan(g)
		if err != nil {
			return service.Explanation{}, fmt.Errorf("plan group %s: %w", g.Group.Name, err)
		}
		for _, d := range decisions {
			if d.Session == id {
				return p.told(g, d), nil
			}
		}
	}
	return service.Explanation{Session: id, Text: "it does not wait", AsOf: p.clock.Now()}, nil
}

func (p *Planner) told(g scheduler.Snapshot, d scheduler.Decision) service.Explanation {
	out := service.Explanation{Session: d.Session, Group: g.Group.Name, Status: cluster.Pending, Queue: len(g.Pending), AsOf: g.Now}
	if h := d.Hold; h != nil {
		out.Reason, out.Text, out.Rejected, out.Shortfall, out.Position = string(h.Reason), h.Text, h.Rejected, h.Shortfall, h.Position
		out.Estimate, out.Remedies = h.Estimate, h.Remedies
		return out
	}
	for _, pl := range d.Placements {
		out.Placements = append(out.Placements, service.PlannedKernel{Agent: pl.Agent, Devices: pl.Allocation})
	}
	out.Text = "it starts now"
	return out
}

// DryRun plans a session without adding it.
func (p *Planner) DryRun(ctx context.Context, r service.PlanRequest) (service.Explanation, error) {
	picture, err := p.look(ctx)
	if err != nil {
		return service.Explanation{}, err
	}
	g := scheduler.Snapshot{Now: p.clock.Now(), Group: scheduler.Group{Name: r.Group}}
	for _, s := range picture.groups {
		if s.Group.Name == r.Group {
			g = s
		}
	}
	s := scheduler.Session{ID: "dry-run", Type: r.Type, Priority: r.Priority, EnqueuedAt: g.Now, StartsAt: r.StartsAt, Lifetime: r.Lifetime, SingleNode: r.SingleNode, Designated: r.Designated}
	for i, k := range r.Kernels {
		s.Kernels = append(s.Kernels, scheduler.Kernel{ID: cluster.KernelID(fmt.Sprint(i)), Slots: k.Slots, Architecture: k.Architecture, Image: k.Image})
	}
	g.Pending = append(g.Pending, s)
	decisions, err := scheduler.Plan(g)
	if err != nil {
		return service.Explanation{}, fmt.Errorf("plan group %s: %w", r.Group, err)
	}
	out := p.told(g, decisions[len(decisions)-1])
	out.Session, out.Status = "", ""
	return out, nil
}

// Status describes every resource group's queue.
func (p *Planner) Status(ctx context.Context) ([]service.GroupStatus, error) {
	picture, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	out := []service.GroupStatus{}
	for _, g := range picture.groups {
		out = append(out, service.GroupStatus{Name: g.Group.Name, Active: true, Scheduler: g.Group.Order, Pending: len(g.Pending), Agents: len(g.Agents)})
	}
	return out, nil
}
