package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// commitBatch is how many sessions one transaction places.
const commitBatch = 64

// scheduling runs a pass for every hint, at every due start time and every Resync.
func (l *Loops) scheduling(ctx context.Context, token int64) error {
	wakes := l.deps.Store.Wakes(func(topic string) bool { return topic == store.TopicSchedule })
	defer wakes.Close()
	timer := l.deps.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-wakes.C:
			if chassis.Wait(ctx, l.deps.Clock, l.cfg.Debounce) != nil {
				return nil
			}
			wakes.Take()
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
		wait := l.cfg.Resync
		again, err := l.pass(ctx, token)
		switch {
		case errors.Is(err, errDeposed):
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil:
			l.metrics.failures.WithLabelValues("schedule").Inc()
			l.deps.Log.Error("scheduling pass failed", "err", err)
			wait = time.Second
		case !again.IsZero():
			wait = min(wait, max(again.Sub(l.deps.Clock.Now()), time.Millisecond))
		}
		timer.Reset(wait)
	}
}

// pass plans and commits once. again is when the next pass is due without a hint.
func (l *Loops) pass(ctx context.Context, token int64) (again time.Time, err error) {
	began := l.deps.Clock.Now()
	defer func() { l.metrics.pass.Observe(l.deps.Clock.Now().Sub(began).Seconds()) }()
	var p *picture
	err = l.fenced(ctx, token, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = look(ctx, tx, began)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	if err := l.giveUp(ctx, token, p); err != nil {
		return time.Time{}, err
	}
	l.metrics.waiting.Reset()
	for _, snapshot := range p.groups {
		decisions, err := scheduler.Plan(snapshot)
		if err != nil {
			return time.Time{}, fmt.Errorf("plan group %s: %w", snapshot.Group.Name, err)
		}
		var placed []scheduler.Decision
		for _, d := range decisions {
			if d.Hold == nil {
				placed = append(placed, d)
			} else {
				l.metrics.waiting.WithLabelValues(string(d.Hold.Reason)).Inc()
			}
		}
		refused := false
		for batch := range slices.Chunk(placed, commitBatch) {
			some, err := l.commit(ctx, token, p, batch)
			if err != nil {
				return time.Time{}, fmt.Errorf("commit placements of group %s: %w", snapshot.Group.Name, err)
			}
			refused = refused || some
		}
		if refused { // with fresher state
			again = l.deps.Clock.Now()
		}
		if err := l.tell(ctx, token, p, decisions); err != nil {
			return time.Time{}, err
		}
	}
	if again.IsZero() {
		again = p.wake
	}
	return again, nil
}

// giveUp cancels sessions that can never start: those whose dependency failed and those
// that waited longer than their group allows.
func (l *Loops) giveUp(ctx context.Context, token int64, p *picture) error {
	if len(p.doomed)+len(p.late) == 0 {
		return nil
	}
	return l.fenced(ctx, token, func(ctx context.Context, tx *store.Tx) error {
		for id, why := range p.doomed {
			if err := stop(ctx, tx, []cluster.SessionID{id}, cluster.ReasonDependency, why, cluster.Pending); err != nil {
				return err
			}
		}
		if len(p.late) == 0 {
			return nil
		}
		return stop(ctx, tx, p.late, cluster.ReasonPendingTimeout, "it waited longer than its resource group allows", cluster.Pending)
	})
}

// commit writes a batch of placements after checking each against the rows as they are
// now. A session that changed or no longer fits is left out; refused says that one was.
func (l *Loops) commit(ctx context.Context, token int64, p *picture, batch []scheduler.Decision) (refused bool, err error) {
	kernels := 0
	err = l.fenced(ctx, token, func(ctx context.Context, tx *store.Tx) error {
		refused, kernels = false, 0 // the transaction may run again
		var agents []string
		for _, d := range batch {
			for _, pl := range d.Placements {
				agents = append(agents, string(pl.Agent))
			}
		}
		slices.Sort(agents)
		room, err := freshRoom(ctx, tx, slices.Compact(agents))
		if err != nil {
			return err
		}
		var places []store.Place
		for _, d := range batch {
			if len(d.Placements) != p.kernels[d.Session] || !room.admit(d.Placements, p.request) {
				refused = true
				l.metrics.refused.Inc()
				continue
			}
			for _, pl := range d.Placements {
				places = append(places, store.Place{Session: d.Session, Kernel: pl.Kernel, Generation: p.generation[pl.Kernel],
					Agent: pl.Agent, Allocation: pl.Allocation.Text()})
			}
		}
		gone, err := tx.PlaceBatch(ctx, places)
		if err != nil {
			return fmt.Errorf("place sessions: %w", err)
		}
		refused = refused || len(gone) > 0
		for _, pl := range places {
			if !slices.Contains(gone, pl.Session) {
				kernels++
			}
		}
		return nil
	})
	if err == nil {
		l.metrics.placed.Add(float64(kernels))
	}
	return refused, err
}

// room is what agents have left at the moment of the commit, under their row locks.
type room struct {
	devices map[cluster.AgentID][]alloc.Device
	used    map[cluster.AgentID]alloc.Allocation
}

func freshRoom(ctx context.Context, tx *store.Tx, ids []string) (*room, error) {
	rows, err := tx.LockAgents(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("lock agents: %w", err)
	}
	held, err := tx.HeldOnAgents(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read allocations: %w", err)
	}
	r := &room{devices: map[cluster.AgentID][]alloc.Device{}, used: map[cluster.AgentID]alloc.Allocation{}}
	for _, row := range rows {
		if row.Status != cluster.AgentAlive || !row.Schedulable {
			continue
		}
		if r.devices[cluster.AgentID(row.ID)], err = devicesOf(row.Devices); err != nil {
			return nil, fmt.Errorf("read devices of agent %s: %w", row.ID, err)
		}
	}
	for _, h := range held {
		a, err := alloc.Parse(string(h.Allocation))
		if err != nil {
			return nil, fmt.Errorf("read allocation on agent %s: %w", h.AgentID, err)
		}
		id := cluster.AgentID(h.AgentID)
		r.used[id] = r.used[id].Add(a)
	}
	return r, nil
}

// admit takes the placements of one session, all or none.
func (r *room) admit(placements []scheduler.Placement, request map[cluster.KernelID]cluster.Slots) bool {
	taken := map[cluster.AgentID]alloc.Allocation{}
	for _, pl := range placements {
		devices, ok := r.devices[pl.Agent]
		if !ok {
			return false
		}
		used, ok := taken[pl.Agent]
		if !ok {
			used = r.used[pl.Agent]
		}
		if alloc.Check(devices, used, request[pl.Kernel], pl.Allocation) != nil {
			return false
		}
		taken[pl.Agent] = used.Add(pl.Allocation)
	}
	for agent, used := range taken {
		r.used[agent] = used
	}
	return true
}
