package simulation

import (
	"context"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/node"
)

// sink is where the link's reports go, with the faults of messages.
type sink struct {
	r *node.Reports
	m *managerRole
}

func (k sink) Register(ctx context.Context, h cluster.NodeHello) (epoch int64, err error) {
	err = k.m.call(ctx, "register "+string(h.Agent), func(ctx context.Context) (err error) {
		if epoch, err = k.r.Register(ctx, h); err == nil {
			k.m.s.registered(h.Agent, epoch)
		}
		return err
	})
	if err == nil {
		k.m.s.comesLate(h.Agent, epoch)
	}
	return epoch, err
}

// report is one that a manager has in its hands.
type report struct {
	sink  sink
	epoch int64
	full  bool
	told  map[cluster.KernelID]int64
	list  []cluster.KernelObservation
}

// comesLate lets the last report of an agent's stream before be stored only now, when the agent has a new one: the manager that took it may
// have waited for the database, or may have stood still.
func (s *sim) comesLate(agent cluster.AgentID, epoch int64) {
	s.mu.Lock()
	r, there := s.reported[agent]
	s.mu.Unlock()
	if !there || r.epoch >= epoch || s.chance(2, agent, epoch, "comes late") > 0 {
		return
	}
	s.group.Go(func() {
		if wait(s.ctx, time.Duration(s.chance(int(8*time.Second), agent, epoch, "how late"))) == nil {
			_, _ = r.sink.observe(s.ctx, agent, r) // it is refused
		}
	})
}

// observe hands a report to the noun.
func (k sink) observe(ctx context.Context, agent cluster.AgentID, r report) (acked []cluster.Tombstone, _ error) {
	err := k.m.call(ctx, "observe "+string(agent), func(ctx context.Context) (err error) {
		defer k.m.s.fence(ctx, k.m.seat.name()+", a report", "streams of "+string(agent), r.epoch, func() int64 { return k.m.s.newest(agent) })()
		acked, err = k.r.Observe(ctx, agent, r.epoch, r.full, r.told, r.list)
		return err
	})
	return acked, err
}

func (k sink) UpdateFacts(ctx context.Context, agent cluster.AgentID, epoch int64, f cluster.NodeFacts) error {
	return k.m.call(ctx, "facts "+string(agent), func(ctx context.Context) error { return k.r.UpdateFacts(ctx, agent, epoch, f) })
}

func (k sink) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) ([]cluster.Tombstone, error) {
	now := report{k, epoch, full, told, list}
	k.m.s.mu.Lock()
	k.m.s.reported[agent] = now
	k.m.s.mu.Unlock()
	k.m.mu.Lock()
	k.m.told[agent]++
	n, old := k.m.told[agent], k.m.last[agent]
	k.m.last[agent] = list
	k.m.mu.Unlock()
	percent := int(k.m.s.reports.Load())
	hit := func(what string) bool { return k.m.s.chance(100, agent, n, what) < percent }
	if hit("lost before") {
		return nil, fault.Unavailablef("the report was lost")
	}
	acked, err := k.observe(ctx, agent, now)
	if err != nil {
		return nil, err
	}
	if hit("twice") {
		if _, err := k.observe(ctx, agent, now); err != nil {
			return nil, err
		}
	}
	if len(old) > 0 && !full && hit("late") {
		if _, err := k.observe(ctx, agent, report{sink: k, epoch: epoch, list: old}); err != nil {
			return nil, err
		}
	}
	if hit("lost after") {
		return nil, fault.Unavailablef("the answer was lost")
	}
	return acked, nil
}

func (k sink) Progress(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, generation, current, total int64,
	message string) error {
	return k.m.call(ctx, "progress", func(ctx context.Context) error {
		return k.r.Progress(ctx, agent, kernel, generation, current, total, message)
	})
}

func (k sink) Desired(ctx context.Context, agent cluster.AgentID,
	told map[cluster.KernelID]int64) (list []cluster.DesiredKernel, err error) {
	err = k.m.call(ctx, "desired "+string(agent), func(ctx context.Context) (err error) {
		list, err = k.r.Desired(ctx, agent, told)
		return err
	})
	k.m.mu.Lock()
	k.m.asked[agent]++
	n := k.m.asked[agent]
	k.m.mu.Unlock()
	if err == nil && k.m.s.chance(100, agent, n, "orders wait") < 15 {
		// What was read is sent only now: ends may have been stored and acknowledged meanwhile.
		err = wait(ctx, time.Duration(k.m.s.chance(int(8*time.Second), agent, n, "how long")))
	}
	return list, err
}

func (k sink) Touch(ctx context.Context, agents []cluster.AgentID) error {
	return k.m.call(ctx, "touch", func(ctx context.Context) error { return k.r.Touch(ctx, agents) })
}

// Disconnected changes nothing: the agent's lease goes on.
func (k sink) Disconnected(context.Context, cluster.AgentID, int64) error { return nil }

func (k sink) Delivered(ctx context.Context, ages []cluster.OrdersAge) error {
	return k.m.call(ctx, "delivered", func(ctx context.Context) error { return k.r.Delivered(ctx, ages) })
}

// registered notes the newest stream of an agent.
func (s *sim) registered(agent cluster.AgentID, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epochs[agent] = max(s.epochs[agent], epoch)
}

func (s *sim) newest(agent cluster.AgentID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[agent]
}

// fence watches what somebody writes who has been replaced: number is its own, newest that of its successor. It returns what to call
// afterwards. It costs nothing where nobody was replaced.
func (s *sim) fence(ctx context.Context, who, what string, number int64, newest func() int64) func() {
	last := newest()
	if number >= last {
		return func() {}
	}
	digest := func() string {
		var out string
		if err := s.db.store.Pool().QueryRow(ctx, allState).Scan(&out); err != nil {
			s.fail(s.clock().Sub(s.began), "the simulation works", "read what a replaced part could change: %v", err)
		}
		return out
	}
	before := digest()
	return func() {
		if digest() != before {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stale = append(s.stale, staleWrite{who: who, what: what, number: number, newest: last})
		}
	}
}

// allState changes with every change of a session, a kernel, an agent's state or a removal.
const allState = `SELECT md5(concat(
	(SELECT string_agg(s::text, ',' ORDER BY id) FROM sessions s), (SELECT string_agg(k::text, ',' ORDER BY id) FROM kernels k),
	(SELECT string_agg(r::text, ',' ORDER BY kernel_id, generation, agent_id) FROM kernel_removals r),
	(SELECT string_agg(concat(id, status, epoch, trial), ',' ORDER BY id) FROM agents)))`
