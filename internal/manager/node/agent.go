package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/list"
)

// Agent is a node as administrators see it.
type Agent struct {
	ID            cluster.AgentID
	Status        cluster.AgentStatus
	StatusChanged time.Time
	Region        string
	ResourceGroup string
	Schedulable   bool
	Addr          string
	FirstContact  time.Time
	LostAt        *time.Time
	LastSeen      time.Time
	Version       string
	Architecture  string
	Capacity      cluster.Slots
	Occupied      cluster.Slots
	SlotKinds     map[cluster.SlotName]cluster.SlotKind
	Devices       []map[string]any
	Engine        string
	EngineOK      bool
	EngineError   string
	Warnings      []string
	// Conditions are what an operator should know, those that keep sessions away first.
	Conditions []cluster.Condition
	// NotDeliveredSince is when the oldest order was given that the agent has not been sent for long; nil when there is none.
	NotDeliveredSince *time.Time
	Live              map[string]float64 // nil when unknown: cpu_util, mem ...
}

// Filter narrows List.
type Filter struct {
	list.Query
	Status        string // "" means all
	ResourceGroup string
}

// deliveryPatience is how long orders may be on their way before they count as not delivered. Managers note every few seconds how far
// they have told agents.
const deliveryPatience = 20 * time.Second

var agentFields = list.Fields{
	"id": list.Text("a.id"), "status": list.Text("a.status"), "status_changed": list.Time("a.status_changed"), "region": list.Text("a.region"),
	"scaling_group": list.Text("a.resource_group"), "schedulable": list.Bool("a.schedulable"), "addr": list.Text("a.addr"),
	"first_contact": list.Time("a.first_contact"), "lost_at": list.Time("a.lost_at"), "version": list.Text("a.version"),
	"architecture": list.Text("a.architecture"), "available_slots": list.OrderOnly("(a.capacity->>'cpu')::bigint"),
	"occupied_slots": list.OrderOnly("(SELECT sum((k.requested_slots->>'cpu')::bigint) FROM kernels k WHERE k.agent_id = a.id AND " +
		"k.ended_at IS NULL)"),
}

// agentCounts are where the number of agents is kept.
const agentCounts = `SELECT coalesce(sum(a.n), 0)::bigint FROM (SELECT c.status, c.kind AS resource_group, c.n FROM list_counts c
	WHERE c.list = 'agents') a WHERE true`

// List lists agents (superadmins and monitors).
func (s *Service) List(ctx context.Context, a authz.Actor, f Filter) (list.Page[*Agent], error) {
	if err := authz.Agents.Need(a, authz.See, authz.Object{}, "list agents"); err != nil {
		return list.Page[*Agent]{}, err
	}
	l := &list.Spec{From: "agents a", Key: "a.id", Fields: agentFields, Order: "a.first_contact",
		Counts: func() []string { return []string{agentCounts} }}
	if f.Status != "" {
		l.And("a.status = %s", f.Status)
	}
	if f.ResourceGroup != "" {
		l.And("a.resource_group = %s", f.ResourceGroup)
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return list.Page[*Agent]{}, err
	}
	views, err := s.agentViews(ctx, keys)
	if err != nil {
		return list.Page[*Agent]{}, err
	}
	return list.Page[*Agent]{Items: list.InOrder(keys, views), Total: total}, nil
}

// Get returns one agent (superadmins and monitors).
func (s *Service) Get(ctx context.Context, a authz.Actor, id cluster.AgentID) (*Agent, error) {
	if err := authz.Agents.Need(a, authz.See, authz.Object{}, "look at agents"); err != nil {
		return nil, err
	}
	views, err := s.agentViews(ctx, []string{string(id)})
	if err != nil {
		return nil, err
	}
	if views[id] == nil {
		return nil, authz.NotFound(agentNoun, string(id))
	}
	return views[id], nil
}

func (s *Service) agentViews(ctx context.Context, ids []string) (map[cluster.AgentID]*Agent, error) {
	rows, err := s.d.Store.AgentViews(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	occupied, err := s.d.Store.OccupiedByAgent(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("sum up what agents hold: %w", err)
	}
	undelivered, err := s.d.Store.Undelivered(ctx, ids, deliveryPatience)
	if err != nil {
		return nil, fmt.Errorf("see what agents have not been told: %w", err)
	}
	out := map[cluster.AgentID]*Agent{}
	alive := []cluster.AgentID{}
	for _, r := range rows {
		v, err := agentView(r)
		if err != nil {
			return nil, fmt.Errorf("read agent %s: %w", r.ID, err)
		}
		out[v.ID] = v
		if v.Status == cluster.AgentAlive {
			alive = append(alive, v.ID)
		}
	}
	for _, u := range undelivered {
		if v := out[cluster.AgentID(u.AgentID)]; v != nil {
			v.NotDeliveredSince = store.UTC(&u.Since)
			v.Warnings = append(v.Warnings, notDelivered(v.ID, u.Since))
		}
	}
	for _, o := range occupied {
		if v := out[cluster.AgentID(o.AgentID)]; v != nil {
			v.Occupied[cluster.SlotName(o.Slot)] += cluster.Amount(o.Amount)
		}
	}
	if s.d.Live != nil && len(alive) > 0 {
		for id, live := range s.d.Live.Agents(ctx, alive) {
			if v := out[id]; v != nil {
				v.Live = live
			}
		}
	}
	return out, nil
}

func agentView(r dbgen.Agent) (*Agent, error) {
	v := &Agent{
		ID: cluster.AgentID(r.ID), Status: r.Status, StatusChanged: r.StatusChanged.UTC(), Region: r.Region, ResourceGroup: r.ResourceGroup,
		Schedulable: r.Schedulable, Addr: r.Addr, FirstContact: r.FirstContact.UTC(), LostAt: store.UTC(r.LostAt), LastSeen: r.LastSeen.UTC(),
		Version:      r.Version,
		Architecture: r.Architecture, Capacity: r.Capacity, Occupied: cluster.Slots{}, SlotKinds: map[cluster.SlotName]cluster.SlotKind{},
		Devices: []map[string]any{}, Engine: r.Engine, EngineOK: r.EngineOk, EngineError: r.EngineError, Warnings: r.Warnings,
	}
	for k, kind := range r.SlotKinds {
		v.SlotKinds[cluster.SlotName(k)] = cluster.SlotKind(kind)
	}
	for slot := range r.Capacity {
		v.Occupied[slot] = 0
	}
	if err := json.Unmarshal(r.Devices, &v.Devices); err != nil {
		v.Devices = []map[string]any{}
	}
	standing, err := store.Standing(r.Conditions, r.Trial)
	if err != nil {
		return nil, err
	}
	standing.EngineOK, standing.EngineError, standing.DiskProblem = r.EngineOk, r.EngineError, r.DiskProblem
	standing.HungVolumes = r.HungVolumes
	v.Conditions = standing.Conditions()
	return v, nil
}

// maxAgentSessions bounds what Work lists of one agent.
const maxAgentSessions = 1000

// AgentSession is a session that holds something on an agent.
type AgentSession struct {
	ID        cluster.SessionID
	Name      string
	Type      cluster.SessionType
	Status    cluster.Status
	UserEmail string
	AccessKey cluster.AccessKey
	CreatedAt time.Time
	// EndsBy is when a batch session's timeout ends it; nil: not known.
	EndsBy *time.Time
	// Kernels of the session on this agent.
	Kernels int
	// Devices are what they hold there: slot, device, amount in thousandths.
	Devices alloc.Allocation
}

// Work lists the sessions that an agent still holds, the oldest first and at most 1,000 (superadmins and monitors);
// total counts all.
func (s *Service) Work(ctx context.Context, a authz.Actor,
	id cluster.AgentID) (agent *Agent, sessions []AgentSession, total int, err error) {
	if agent, err = s.Get(ctx, a, id); err != nil {
		return nil, nil, 0, err
	}
	rows, err := s.d.Store.LiveSessionsOnAgent(ctx, string(id), maxAgentSessions)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("read the sessions of agent %s: %w", id, err)
	}
	total = len(rows)
	if total == maxAgentSessions {
		n, err := s.d.Store.CountLiveSessionsOnAgent(ctx, string(id))
		if err != nil {
			return nil, nil, 0, fmt.Errorf("count the sessions of agent %s: %w", id, err)
		}
		total = int(n)
	}
	sessions = make([]AgentSession, len(rows))
	for i, r := range rows {
		sessions[i] = AgentSession{ID: cluster.SessionID(r.ID), Name: r.Name, Type: r.Type, Status: r.Status, UserEmail: r.UserEmail,
			AccessKey: cluster.AccessKey(r.AccessKey), CreatedAt: r.CreatedAt.UTC(), Kernels: int(r.Kernels),
			Devices: alloc.Allocation{}}
		for _, text := range r.Allocations {
			held, err := alloc.Parse(text)
			if err != nil {
				return nil, nil, 0, fmt.Errorf("read what session %s holds on agent %s: %w", r.ID, id, err)
			}
			sessions[i].Devices = sessions[i].Devices.Add(held)
		}
		if r.StartedAt != nil && r.BatchTimeoutMs != nil && *r.BatchTimeoutMs > 0 {
			at := r.StartedAt.Add(time.Duration(*r.BatchTimeoutMs) * time.Millisecond).UTC()
			sessions[i].EndsBy = &at
		}
	}
	return agent, sessions, total, nil
}
