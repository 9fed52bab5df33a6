package service

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
)

// SessionFilter narrows ListSessions on top of ListQuery.
type SessionFilter struct {
	ListQuery
	Statuses  []string // wire names; unknown ones match nothing
	AccessKey cluster.AccessKey
	Domain    string
	Project   cluster.ProjectID
	Type      cluster.SessionType
}

var sessionFields = map[string]listField{
	"id": {"s.id::text", fieldText}, "type": {"s.type", fieldText}, "name": {"s.name", fieldText}, "priority": {"s.priority", fieldNumber},
	"image": {"s.image", fieldText}, "agent_ids": {"ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)", fieldTexts},
	"agent_id":    {"ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)", fieldTexts},
	"agents":      {"ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)", fieldTexts},
	"domain_name": {"s.domain_name", fieldText}, "group_name": {"p.name", fieldText}, "user_email": {"u.email", fieldText},
	"user_id": {"s.user_id::text", fieldText}, "full_name": {"u.full_name", fieldText}, "access_key": {"s.access_key", fieldText},
	"scaling_group": {"s.resource_group", fieldText}, "cluster_mode": {"s.cluster_mode", fieldText}, "cluster_size": {"s.cluster_size", fieldNumber},
	"status": {"s.status", fieldText}, "status_info": {"s.status_info", fieldText}, "status_changed": {"s.status_changed", fieldTime},
	"result": {"s.result", fieldText}, "created_at": {"s.created_at", fieldTime}, "terminated_at": {"s.ended_at", fieldTime},
	"starts_at": {"s.starts_at", fieldTime}, "scheduled_at": {"s.scheduled_at", fieldTime}, "startup_command": {"s.startup_command", fieldText},
	"tag": {"s.tag", fieldText}, "project_id": {"s.project_id::text", fieldText},
}

// ListSessions lists what the actor may see: own sessions, of the domain for its administrators, all for superadmins.
func (s *Service) ListSessions(ctx context.Context, a Actor, f SessionFilter) (Page[*Session], error) {
	if err := authz.Authenticated(a); err != nil {
		return Page[*Session]{}, err
	}
	l := &listSpec{from: "sessions s JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id", key: "s.id::text",
		fields: sessionFields, order: "s.created_at DESC"}
	restrict(l, a, "s.user_id", "s.domain_name", "u.role")
	if len(f.Statuses) > 0 {
		l.and("s.status = ANY(%s::text[])", f.Statuses)
	}
	if f.AccessKey != "" {
		l.and("s.access_key = %s", string(f.AccessKey))
	}
	if f.Domain != "" {
		l.and("s.domain_name = %s", f.Domain)
	}
	if f.Project != "" {
		l.and("s.project_id::text = %s", string(f.Project))
	}
	if f.Type != "" {
		l.and("s.type = %s", string(f.Type))
	}
	keys, total, err := s.page(ctx, l, f.ListQuery)
	if err != nil {
		return Page[*Session]{}, err
	}
	ids := make([]cluster.SessionID, len(keys))
	for i, k := range keys {
		ids[i] = cluster.SessionID(k)
	}
	items, _, err := s.loadSessions(ctx, ids)
	if err != nil {
		return Page[*Session]{}, err
	}
	return Page[*Session]{Items: inOrder(keys, items), Total: total}, nil
}

// restrict narrows a list of owned objects to what authz.Read would allow.
func restrict(l *listSpec, a Actor, userID, domain, ownerRole string) {
	switch {
	case a.Superadmin() || a.Monitor():
		l.where = append(l.where, "true")
	case a.Role == authz.RoleAdmin:
		own, dom := l.b.arg(string(a.UserID)), l.b.arg(a.Domain)
		l.where = append(l.where, fmt.Sprintf("(%s = %s::uuid OR %s = %s AND %s <> 'superadmin')", userID, own, domain, dom, ownerRole))
	default:
		l.and(userID+" = %s::uuid", string(a.UserID))
	}
}

// KernelsFilter selects kernels: those of a session, or live ones of an agent.
type KernelsFilter struct {
	Session cluster.SessionID
	Agent   cluster.AgentID
	Kernel  cluster.KernelID
	ListQuery
}

var kernelFields = map[string]listField{
	"id": {"k.id::text", fieldText}, "image": {"k.image", fieldText}, "architecture": {"k.architecture", fieldText}, "agent": {"k.agent_id", fieldText},
	"agent_addr": {"ag.addr", fieldText}, "cluster_idx": {"k.cluster_idx", fieldNumber}, "local_rank": {"k.local_rank", fieldNumber},
	"cluster_role": {"k.cluster_role", fieldText}, "cluster_hostname": {"k.cluster_hostname", fieldText}, "status": {"k.status", fieldText},
	"status_info": {"k.status_info", fieldText}, "created_at": {"k.created_at", fieldTime}, "status_changed": {"k.status_changed", fieldTime},
	"terminated_at": {"k.ended_at", fieldTime}, "scheduled_at": {"k.scheduled_at", fieldTime},
}

// ListKernels lists kernels of sessions that the actor may see.
func (s *Service) ListKernels(ctx context.Context, a Actor, f KernelsFilter) (Page[Kernel], error) {
	if err := authz.Authenticated(a); err != nil {
		return Page[Kernel]{}, err
	}
	l := &listSpec{from: "kernels k JOIN sessions s ON s.id = k.session_id JOIN users u ON u.id = s.user_id LEFT JOIN agents ag ON ag.id = k.agent_id",
		key: "k.id::text", fields: kernelFields, order: "k.created_at DESC, k.local_rank"}
	restrict(l, a, "s.user_id", "s.domain_name", "u.role")
	if f.Session != "" {
		l.and("k.session_id::text = %s", string(f.Session))
		l.order = "k.local_rank"
	}
	if f.Agent != "" {
		l.and("k.agent_id = %s AND k.ended_at IS NULL", string(f.Agent))
	}
	if f.Kernel != "" {
		l.and("k.id::text = %s", string(f.Kernel))
	}
	keys, total, err := s.page(ctx, l, f.ListQuery)
	if err != nil {
		return Page[Kernel]{}, err
	}
	rows, err := s.d.Store.KernelViews(ctx, []string{}, keys)
	if err != nil {
		return Page[Kernel]{}, fmt.Errorf("read kernels: %w", err)
	}
	views := make([]Kernel, len(rows))
	for i, r := range rows {
		views[i] = kernelView(r)
	}
	s.addLive(ctx, views)
	byID := map[cluster.KernelID]Kernel{}
	for _, v := range views {
		byID[v.ID] = v
	}
	return Page[Kernel]{Items: inOrder(keys, byID), Total: total}, nil
}
