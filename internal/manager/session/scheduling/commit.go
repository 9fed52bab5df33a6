package scheduling

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// proposal is a decision to start a session, with the facts on which the decision rests. The commit checks them.
type proposal struct {
	session     cluster.SessionID
	owner       scheduler.Owner
	private     bool
	kernels     []scheduler.Kernel
	generations []int64
	placements  []scheduler.Placement
}

// commit writes a batch of placements. It checks each of them against the rows as they are now: its agents have room, the session still
// waits and its kernels have the same generations, and no owner gets more than the limits allow. Sessions that fail a check are left out;
// refused names them with the check (quota, room or changed). The others are placed.
func (d *desk) commit(ctx context.Context, batch []proposal,
	kinds map[cluster.SlotName]bool) (refused map[cluster.SessionID]string, err error) {
	kernels := 0
	err = d.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		refused, kernels = map[cluster.SessionID]string{}, 0 // the transaction may run again
		if err := tx.LockPlacements(ctx); err != nil {
			return fmt.Errorf("wait for other placements: %w", err)
		}
		allowance, err := freshAllowance(ctx, tx.Queries, batch, kinds)
		if err != nil {
			return err
		}
		room, err := freshRoom(ctx, tx, batch)
		if err != nil {
			return err
		}
		var places []store.Place
		for i := range batch {
			p := &batch[i]
			switch {
			case !allowance.allows(p):
				refused[p.session] = "quota"
				continue
			case !room.admit(p):
				refused[p.session] = "room"
				continue
			}
			allowance.take(p)
			for j, pl := range p.placements {
				places = append(places, store.Place{Session: p.session, Kernel: pl.Kernel, Generation: p.generations[j], Agent: pl.Agent,
					Allocation: pl.Allocation.Text()})
			}
		}
		gone, err := tx.PlaceBatch(ctx, places)
		if err != nil {
			return fmt.Errorf("place sessions: %w", err)
		}
		for _, id := range gone {
			refused[id] = "changed"
		}
		for _, pl := range places {
			if refused[pl.Session] == "" {
				kernels++
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.metrics.placed.Add(float64(kernels))
	for _, why := range refused {
		d.metrics.refused.WithLabelValues(why).Inc()
	}
	return refused, nil
}

// room is what agents have left when the batch is committed. The agents' rows are locked, so it stays true until the commit.
type room struct {
	devices map[cluster.AgentID][]alloc.Device
	used    map[cluster.AgentID]alloc.Allocation
}

// freshRoom locks the agents of a batch and reads their devices and what is allocated on them. Agents that take no sessions are absent.
func freshRoom(ctx context.Context, tx *store.Tx, batch []proposal) (*room, error) {
	var ids []string
	for _, p := range batch {
		for _, pl := range p.placements {
			ids = append(ids, string(pl.Agent))
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
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

// admit checks that all placements of one session fit. If so, it counts them as used and returns true; if not, it changes nothing.
func (r *room) admit(p *proposal) bool {
	taken := map[cluster.AgentID]alloc.Allocation{}
	for i, pl := range p.placements {
		devices, ok := r.devices[pl.Agent]
		if !ok {
			return false
		}
		used, ok := taken[pl.Agent]
		if !ok {
			used = r.used[pl.Agent]
		}
		if alloc.Check(devices, used, p.kernels[i].Slots, pl.Allocation) != nil {
			return false
		}
		taken[pl.Agent] = used.Add(pl.Allocation)
	}
	for agent, used := range taken {
		r.used[agent] = used
	}
	return true
}
