package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// maxPending bounds one pass; what is beyond it comes up as the queue moves.
const maxPending = 2000

// picture is what one pass over all resource groups works with.
type picture struct {
	groups []scheduler.Snapshot
	// generation is the kernels' generation at the time of the look.
	generation map[cluster.KernelID]int64
	// request is what each kernel asked for, for the re-check.
	request map[cluster.KernelID]cluster.Slots
	// told is what is stored about each waiting session: unchanged explanations are not written again.
	told map[cluster.SessionID]string
	// doomed are sessions with a dependency that can no longer succeed; late those that waited too long.
	doomed map[cluster.SessionID]string
	late   []cluster.SessionID
	// wake is when the next start time or pending timeout is due; zero when there is none.
	wake time.Time
	// kernels counts the waiting kernels per session.
	kernels map[cluster.SessionID]int
}

// look reads the picture in one transaction, so that all of it is of one instant.
func look(ctx context.Context, tx *store.Tx, now time.Time) (*picture, error) {
	pending, err := tx.PendingSessions(ctx, maxPending)
	if err != nil {
		return nil, fmt.Errorf("read pending sessions: %w", err)
	}
	p := &picture{
		generation: map[cluster.KernelID]int64{}, request: map[cluster.KernelID]cluster.Slots{}, told: map[cluster.SessionID]string{},
		doomed: map[cluster.SessionID]string{}, kernels: map[cluster.SessionID]int{},
	}
	if len(pending) == 0 {
		return p, nil
	}
	ids := make([]string, len(pending))
	for i, s := range pending {
		ids[i] = s.ID
	}
	policies, err := tx.GroupPolicies(ctx)
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	kernels, err := tx.PendingKernels(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read pending kernels: %w", err)
	}
	open, err := tx.OpenDependencies(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read dependencies: %w", err)
	}
	agents, err := lookAgents(ctx, tx)
	if err != nil {
		return nil, err
	}

	waits := map[string]string{}
	for _, d := range open {
		waits[d.SessionID] = d.Name
		if d.Status.Final() {
			p.doomed[cluster.SessionID(d.SessionID)] = fmt.Sprintf("session %s, on which it depends, ended without success", d.Name)
		}
	}
	byID := map[string][]scheduler.Kernel{}
	for _, k := range kernels {
		id := cluster.KernelID(k.ID)
		p.generation[id], p.request[id] = k.Generation, k.RequestedSlots
		p.kernels[cluster.SessionID(k.SessionID)]++
		byID[k.SessionID] = append(byID[k.SessionID], scheduler.Kernel{ID: id, Slots: k.RequestedSlots, Architecture: k.Architecture, Image: k.Image})
	}
	byGroup := map[string]*scheduler.Snapshot{}
	timeouts := map[string]time.Duration{}
	for _, g := range policies {
		byGroup[g.Name] = &scheduler.Snapshot{Now: now, Group: scheduler.Group{Name: g.Name, Order: order(g.Scheduler)}, Agents: agents[g.Name]}
		if !g.IsActive {
			byGroup[g.Name].Agents = nil
		}
		if s, ok := g.SchedulerOpts["pending_timeout"].(float64); ok && s > 0 {
			timeouts[g.Name] = time.Duration(s * float64(time.Second))
		}
	}
	for _, s := range pending {
		id := cluster.SessionID(s.ID)
		if p.doomed[id] != "" {
			continue
		}
		if limit := timeouts[s.ResourceGroup]; limit > 0 {
			due := s.CreatedAt.Add(limit)
			if !now.Before(due) {
				p.late = append(p.late, id)
				continue
			}
			p.wakeAt(due)
		}
		session := scheduler.Session{
			ID: id, Priority: int(s.Priority), EnqueuedAt: s.CreatedAt, Waiting: waits[s.ID], Kernels: byID[s.ID],
			SingleNode: s.ClusterMode == "single-node", Designated: agentIDs(s.DesignatedAgents), Failed: agentIDs(s.FailedAgents),
		}
		if s.StartsAt != nil {
			session.StartsAt = *s.StartsAt
			if now.Before(session.StartsAt) {
				p.wakeAt(session.StartsAt)
			}
		}
		p.told[id] = s.StatusInfo + "\x00" + told(s.StatusData)
		if g := byGroup[s.ResourceGroup]; g != nil {
			g.Pending = append(g.Pending, session)
		}
	}
	for _, g := range policies {
		if s := byGroup[g.Name]; len(s.Pending) > 0 {
			p.groups = append(p.groups, *s)
		}
	}
	return p, nil
}

func (p *picture) wakeAt(t time.Time) {
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}

// order maps the names of the wire to those that the scheduler knows today; an order that
// is not there yet behaves like fifo rather than stopping the group.
func order(name string) string {
	for _, known := range scheduler.Orders() {
		if name == known {
			return name
		}
	}
	return "fifo"
}

func agentIDs(in []string) []cluster.AgentID {
	out := make([]cluster.AgentID, len(in))
	for i, id := range in {
		out[i] = cluster.AgentID(id)
	}
	return out
}

// lookAgents reads agents by resource group with what they hold.
func lookAgents(ctx context.Context, tx *store.Tx) (map[string][]scheduler.Agent, error) {
	rows, err := tx.SchedulingAgents(ctx)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	held, err := tx.HeldAllocations(ctx)
	if err != nil {
		return nil, fmt.Errorf("read allocations: %w", err)
	}
	images, err := tx.ImagesOfAgents(ctx)
	if err != nil {
		return nil, fmt.Errorf("read images of agents: %w", err)
	}
	used, count := map[string]alloc.Allocation{}, map[string]int{}
	for _, h := range held {
		a, err := alloc.Parse(string(h.Allocation))
		if err != nil {
			return nil, fmt.Errorf("read allocation on agent %s: %w", h.AgentID, err)
		}
		used[h.AgentID] = used[h.AgentID].Add(a)
		count[h.AgentID]++
	}
	present := map[string]map[string]bool{}
	for _, im := range images {
		if present[im.AgentID] == nil {
			present[im.AgentID] = map[string]bool{}
		}
		present[im.AgentID][im.Reference] = true
	}
	out := map[string][]scheduler.Agent{}
	for _, r := range rows {
		devices, err := devicesOf(r.Devices)
		if err != nil {
			return nil, fmt.Errorf("read devices of agent %s: %w", r.ID, err)
		}
		out[r.ResourceGroup] = append(out[r.ResourceGroup], scheduler.Agent{
			ID: cluster.AgentID(r.ID), Architecture: r.Architecture, Schedulable: r.Schedulable && r.EngineOk, Alive: r.Status == cluster.AgentAlive,
			Devices: devices, Used: used[r.ID], Containers: count[r.ID], Images: present[r.ID],
		})
	}
	return out, nil
}

func devicesOf(raw json.RawMessage) ([]alloc.Device, error) {
	var out []alloc.Device
	if len(raw) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(raw, &out)
	return out, err
}
