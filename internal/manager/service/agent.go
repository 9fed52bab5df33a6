package service

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/minilang"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
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
	Live          map[string]float64 // nil when unknown: cpu_util, mem ...
}

// AgentFilter narrows ListAgents.
type AgentFilter struct {
	ListQuery
	Status        string // "" means all
	ResourceGroup string
}

const agentNoun = "agent instance"

var agentFields = minilang.Fields{
	"id": minilang.Text("a.id"), "status": minilang.Text("a.status"), "status_changed": minilang.Time("a.status_changed"), "region": minilang.Text("a.region"),
	"scaling_group": minilang.Text("a.resource_group"), "schedulable": minilang.Bool("a.schedulable"), "addr": minilang.Text("a.addr"),
	"first_contact": minilang.Time("a.first_contact"), "lost_at": minilang.Time("a.lost_at"), "version": minilang.Text("a.version"),
	"architecture": minilang.Text("a.architecture"), "available_slots": minilang.OrderOnly("(a.capacity->>'cpu')::bigint"),
	"occupied_slots": minilang.OrderOnly("(SELECT sum((k.requested_slots->>'cpu')::bigint) FROM kernels k WHERE k.agent_id = a.id AND k.ended_at IS NULL)"),
}

// ListAgents lists agents (superadmins and monitors).
func (s *Service) ListAgents(ctx context.Context, a Actor, f AgentFilter) (Page[*Agent], error) {
	if err := authz.NeedReadAll(a, "list agents"); err != nil {
		return Page[*Agent]{}, err
	}
	l := &listSpec{from: "agents a", key: "a.id", fields: agentFields, order: "a.first_contact"}
	if f.Status != "" {
		l.and("a.status = %s", f.Status)
	}
	if f.ResourceGroup != "" {
		l.and("a.resource_group = %s", f.ResourceGroup)
	}
	keys, total, err := s.page(ctx, l, f.ListQuery)
	if err != nil {
		return Page[*Agent]{}, err
	}
	views, err := s.agentViews(ctx, keys)
	if err != nil {
		return Page[*Agent]{}, err
	}
	return Page[*Agent]{Items: inOrder(keys, views), Total: total}, nil
}

// GetAgent returns one agent (superadmins and monitors).
func (s *Service) GetAgent(ctx context.Context, a Actor, id cluster.AgentID) (*Agent, error) {
	if err := authz.NeedReadAll(a, "look at agents"); err != nil {
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
	out := map[cluster.AgentID]*Agent{}
	alive := []cluster.AgentID{}
	for _, r := range rows {
		v := agentView(r)
		out[v.ID] = v
		if v.Status == cluster.AgentAlive {
			alive = append(alive, v.ID)
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

func agentView(r dbgen.Agent) *Agent {
	v := &Agent{
		ID: cluster.AgentID(r.ID), Status: r.Status, StatusChanged: r.StatusChanged.UTC(), Region: r.Region, ResourceGroup: r.ResourceGroup,
		Schedulable: r.Schedulable, Addr: r.Addr, FirstContact: r.FirstContact.UTC(), LostAt: utc(r.LostAt), LastSeen: r.LastSeen.UTC(), Version: r.Version,
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
	return v
}

// SetAgentsSchedulable includes or excludes agents from scheduling (superadmins).
func (s *Service) SetAgentsSchedulable(ctx context.Context, a Actor, ids []cluster.AgentID, schedulable bool) error {
	if err := authz.NeedSuperadmin(a, "change agents"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		known, err := tx.LockAgents(ctx, texts(ids))
		if err != nil {
			return fmt.Errorf("find agents: %w", err)
		}
		there := map[cluster.AgentID]bool{}
		for _, k := range known {
			there[cluster.AgentID(k.ID)] = true
		}
		for _, id := range ids {
			if !there[id] {
				return authz.NotFound(agentNoun, string(id))
			}
		}
		if _, err := tx.SetSchedulable(ctx, schedulable, texts(ids)); err != nil {
			return fmt.Errorf("change agents: %w", err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
}
