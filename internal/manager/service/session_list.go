package service

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/minilang"
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

var sessionFields = minilang.Fields{
	"id": minilang.Text("s.id::text"), "type": minilang.Text("s.type"), "name": minilang.Text("s.name"), "priority": minilang.Number("s.priority"),
	"image": minilang.Text("s.image"), "agent_ids": minilang.Texts("ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"agent_id":    minilang.Texts("ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"agents":      minilang.Texts("ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"domain_name": minilang.Text("s.domain_name"), "group_name": minilang.Text("p.name"), "user_email": minilang.Text("u.email"),
	"user_id": minilang.Text("s.user_id::text"), "full_name": minilang.Text("u.full_name"), "access_key": minilang.Text("s.access_key"),
	"scaling_group": minilang.Text("s.resource_group"), "cluster_mode": minilang.Text("s.cluster_mode"), "cluster_size": minilang.Number("s.cluster_size"),
	"status": minilang.Text("s.status"), "status_info": minilang.Text("s.status_info"), "status_changed": minilang.Time("s.status_changed"),
	"result": minilang.Text("s.result"), "created_at": minilang.Time("s.created_at"), "terminated_at": minilang.Time("s.ended_at"),
	"starts_at": minilang.Time("s.starts_at"), "scheduled_at": minilang.Time("s.scheduled_at"), "startup_command": minilang.Text("s.startup_command"),
	"tag": minilang.Text("s.tag"), "project_id": minilang.Text("s.project_id::text"),
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
		own, dom := l.b.Arg(string(a.UserID)), l.b.Arg(a.Domain)
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

var kernelFields = minilang.Fields{
	"id": minilang.Text("k.id::text"), "image": minilang.Text("k.image"), "architecture": minilang.Text("k.architecture"), "agent": minilang.Text("k.agent_id"),
	"agent_addr": minilang.Text("ag.addr"), "cluster_idx": minilang.Number("k.cluster_idx"), "local_rank": minilang.Number("k.local_rank"),
	"cluster_role": minilang.Text("k.cluster_role"), "cluster_hostname": minilang.Text("k.cluster_hostname"), "status": minilang.Text("k.status"),
	"status_info": minilang.Text("k.status_info"), "created_at": minilang.Time("k.created_at"), "status_changed": minilang.Time("k.status_changed"),
	"terminated_at": minilang.Time("k.ended_at"), "scheduled_at": minilang.Time("k.scheduled_at"),
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
