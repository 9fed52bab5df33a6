package administration

import (
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/route"
)

// What the described system lets its users and administrators do by hand, this one does by itself: agents tell their kernels at every
// change and when they connect, sessions move when their kernels do, and the scheduler looks after every change. The requests are
// answered by how things are.

// maxStatuses is how many sessions one request may ask about.
const maxStatuses = 100

// syncAgent answers an empty object where there is such an agent.
func (h *Handlers) syncAgent(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	agent := p.Need("agent|agent_id")
	if err := p.Err(); err != nil {
		return err
	}
	if _, err := h.Nodes.Get(c.Context(), c.Actor(), cluster.AgentID(agent)); err != nil {
		return err
	}
	return route.OK(c, struct{}{})
}

// statuses answers the status of each named session that the caller may see.
func (h *Handlers) statuses(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	var ids []cluster.SessionID
	for _, text := range p.List("ids") {
		id, ok := cluster.CanonicalUUID(text)
		if !ok {
			p.Fail("ids", "must be ids of sessions")
			break
		}
		ids = append(ids, cluster.SessionID(id))
	}
	if len(ids) == 0 || len(ids) > maxStatuses {
		p.Fail("ids", "must be 1 to 100 ids of sessions")
	}
	if err := p.Err(); err != nil {
		return err
	}
	found, err := h.Sessions.ByID(c.Context(), c.Actor(), ids)
	if err != nil {
		return err
	}
	out := map[string]string{}
	for id, s := range found {
		out[string(id)] = string(s.Status)
	}
	return route.OK(c, map[string]any{"session_status_map": out})
}

// triggerScheduler answers those who may look at the scheduler.
func (h *Handlers) triggerScheduler(c route.Call) error {
	if _, err := h.Sessions.SchedulerStatus(c.Context(), c.Actor()); err != nil {
		return err
	}
	return c.Nothing()
}
