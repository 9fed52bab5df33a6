package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// proposal is a decision to start a session, with the facts on which the decision rests. The commit checks them.
type proposal struct {
	session     cluster.SessionID
	owner       scheduler.Owner
	group       string
	private     bool
	host        bool // its kernels run in the network of their hosts
	kernels     []scheduler.Kernel
	generations []int64
	placements  []scheduler.Placement
}

// commit writes a batch of placements. It checks each of them against the rows as they are now: its agents have room, the session still
// waits and its kernels have the same generations, and no owner gets more than the limits allow. Sessions that fail a check are left out;
// refused names them with the check (quota, room, network or changed), lacking says why some got no network. The others are placed.
func (d *desk) commit(ctx context.Context, batch []proposal,
	kinds map[cluster.SlotName]bool) (refused, lacking map[cluster.SessionID]string, err error) {
	kernels := 0
	err = d.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		refused, lacking, kernels = map[cluster.SessionID]string{}, map[cluster.SessionID]string{}, 0 // the transaction may run again
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
		nets, err := freshNetworks(ctx, tx, d.cfg.Networks, batch)
		if err != nil {
			return err
		}
		hosts, err := groupsWithHost(ctx, tx, batch)
		if err != nil {
			return err
		}
		var places []store.Place
		var made []*given
		for i := range batch {
			p := &batch[i]
			switch {
			case !allowance.allows(p):
				refused[p.session] = "quota"
				continue
			case !room.admit(p):
				refused[p.session] = "room"
				continue
			case p.host && !slices.Contains(hosts, p.group):
				refused[p.session], lacking[p.session] = "network", notOnHost(p.group)
				continue
			}
			if len(p.placements) > 1 && !p.host {
				network, err := nets.choose(p.session, p.group, len(p.placements))
				if err != nil {
					refused[p.session], lacking[p.session] = "network", err.Error()
					continue
				}
				if network != nil {
					made = append(made, network)
				}
			}
			allowance.take(p)
			room.probe(p)
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
		for _, n := range made {
			if refused[n.session] != "" {
				continue
			}
			if err := tx.AddSessionNetwork(ctx, n.number, n.subnet, string(n.session), n.encrypted); err != nil {
				return fmt.Errorf("give session %s a network: %w", n.session, err)
			}
		}
		if err := room.sendProbes(ctx, tx, refused); err != nil {
			return err
		}
		for _, pl := range places {
			if refused[pl.Session] == "" {
				kernels++
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	d.metrics.placed.Add(float64(kernels))
	for _, why := range refused {
		d.metrics.refused.WithLabelValues(why).Inc()
	}
	return refused, lacking, nil
}

// room is what agents have left when the batch is committed. The agents' rows are locked, so it stays true until the commit.
type room struct {
	devices map[cluster.AgentID][]alloc.Device
	used    map[cluster.AgentID]alloc.Allocation
	// probes are agents in quarantine that may be tried with one session.
	probes map[cluster.AgentID]*probe
}

// probe is an agent's trial with one session.
type probe struct {
	trial   cluster.Trial
	at      time.Time
	session cluster.SessionID // "": none yet
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
	r := &room{devices: map[cluster.AgentID][]alloc.Device{}, used: map[cluster.AgentID]alloc.Allocation{},
		probes: map[cluster.AgentID]*probe{}}
	for _, row := range rows {
		if row.Status != cluster.AgentAlive || !row.Schedulable {
			continue
		}
		standing, err := store.Standing(row.Conditions, row.Trial)
		if err != nil {
			return nil, fmt.Errorf("agent %s: %w", row.ID, err)
		}
		standing.EngineOK, standing.EngineError, standing.DiskProblem = row.EngineOk, row.EngineError, row.DiskProblem
		problem, mayProbe := standing.Problem(row.At)
		if problem != "" {
			continue
		}
		if mayProbe != cluster.NoProbe {
			r.probes[cluster.AgentID(row.ID)] = &probe{trial: standing.Trial, at: row.At}
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
		if try := r.probes[pl.Agent]; !ok || try != nil && try.session != "" && try.session != p.session {
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

// probe notes that a session is the one that tries the agents in quarantine among its own.
func (r *room) probe(p *proposal) {
	for _, pl := range p.placements {
		if try := r.probes[pl.Agent]; try != nil {
			try.session = p.session
		}
	}
}

// sendProbes writes that agents in quarantine are being tried, those whose session was placed.
func (r *room) sendProbes(ctx context.Context, tx *store.Tx, refused map[cluster.SessionID]string) error {
	for _, id := range slices.Sorted(maps.Keys(r.probes)) {
		try := r.probes[id]
		if try.session == "" || refused[try.session] != "" {
			continue
		}
		try.trial.Probing, try.trial.ProbeBy, try.trial.ProbeAt = true, try.session, try.at.Add(cluster.ProbeLasts)
		raw, err := store.WriteTrial(try.trial)
		if err != nil {
			return err
		}
		if err := tx.SetTrial(ctx, raw, string(id)); err != nil {
			return fmt.Errorf("note the probe of agent %s: %w", id, err)
		}
	}
	return nil
}
