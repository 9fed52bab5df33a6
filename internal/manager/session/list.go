package session

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// Filter narrows ListSessions on top of list.Query.
type Filter struct {
	list.Query
	Statuses  []string // wire names, see listed; unknown ones match nothing
	AccessKey cluster.AccessKey
	Domain    string
	Project   cluster.ProjectID
	Type      cluster.SessionType
	// CountOnly leaves the items of the page out.
	CountOnly bool
}

// statusWords are the statuses that filters may name: ours, and those of other managers, which no session here has.
var statusWords = append(store.Texts(cluster.AllStatuses), "RUNNING_DEGRADED", "BUILDING", "RESIZING", "SUSPENDED", "DEPRIORITIZING",
	"RESERVED", "PREEMPTED", "RESCHEDULING")

var sessionFields = list.Fields{
	"id": list.ID("s.id"), "type": list.Text("s.type"), "priority": list.Number("s.priority"),
	"name":  list.Text("s.name").Trigrams("(s.ended_at IS NULL OR s.ended_at IS NOT NULL AND name_trigrams(s.name) @> %s)"),
	"image": list.Text("s.image"), "agent_ids": list.Texts(
		"ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"agent_id":    list.Texts("ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"agents":      list.Texts("ARRAY(SELECT k.agent_id FROM kernels k WHERE k.session_id = s.id AND k.agent_id IS NOT NULL)"),
	"domain_name": list.Text("s.domain_name"), "group_name": list.Text("p.name"), "user_email": list.Text("u.email"),
	"user_id": list.ID("s.user_id"), "full_name": list.Text("u.full_name"), "access_key": list.Text("s.access_key"),
	"scaling_group": list.Text("s.resource_group"), "cluster_mode": list.Text("s.cluster_mode"), "cluster_size": list.Number("s.cluster_size"),
	"status": list.Enum("s.status", statusWords, nil), "status_info": list.Text("s.status_info"),
	"status_changed": list.Time("s.status_changed"),
	"result":         list.Text("s.result"), "created_at": list.Time("s.created_at"), "terminated_at": list.Time("s.ended_at"),
	"starts_at": list.Time("s.starts_at"), "scheduled_at": list.Time("s.scheduled_at"), "startup_command": list.Text("s.startup_command"),
	"tag": list.Text("s.tag"), "project_id": list.ID("s.project_id"),
}

// sessionCounts are where the number of sessions is kept: live ones are few, ended ones were counted as they ended.
var sessionCounts = []string{
	"SELECT count(*) FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.ended_at IS NULL",
	"SELECT coalesce(sum(s.n), 0)::bigint FROM ended_session_counts s JOIN users u ON u.id = s.user_id WHERE true",
}

// countedFields are the fields of sessions that sessionCounts have too.
var countedFields = []string{"type", "status", "domain_name", "project_id", "access_key", "user_id", "user_email", "full_name"}

// impliedBy is what follows for a session from the statuses that it may have: whether it has ended. The indexes tell live sessions, ended
// ones and those that did not end well apart. Most have ended well, so nothing may read those on the way to others.
func impliedBy(statuses []string) string {
	final := func(w string) bool { return cluster.Status(w).Final() }
	live := func(w string) bool { return slices.Contains(cluster.AllStatuses, cluster.Status(w)) && !final(w) }
	switch {
	case !slices.ContainsFunc(statuses, final):
		return "s.ended_at IS NULL"
	case !slices.ContainsFunc(statuses, live):
		return "s.ended_at IS NOT NULL"
	case !slices.Contains(statuses, string(cluster.Terminated)):
		return "(s.ended_at IS NULL OR s.status IN ('CANCELLED', 'ERROR'))"
	}
	return ""
}

// listed are the statuses that a filter means. The official clients list what is there now by all statuses of live sessions with
// ERROR, and what has ended by CANCELLED and TERMINATED. A session in ERROR has ended here and holds nothing.
func listed(statuses []string) []string {
	names := func(all ...cluster.Status) bool {
		return !slices.ContainsFunc(all, func(st cluster.Status) bool { return !slices.Contains(statuses, string(st)) })
	}
	switch {
	case names(cluster.Terminated, cluster.Cancelled):
		return append(slices.Clone(statuses), string(cluster.Error))
	case names(cluster.Pending, cluster.Running, cluster.Terminating) && !names(cluster.Terminated):
		return slices.DeleteFunc(slices.Clone(statuses), func(st string) bool { return st == string(cluster.Error) })
	}
	return statuses
}

// List lists what the actor may see: own sessions, of the domain for its administrators, all for superadmins.
func (s *Service) List(ctx context.Context, a authz.Actor, f Filter) (list.Page[*Session], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[*Session]{}, err
	}
	l := &list.Spec{From: "sessions s JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id", Key: "s.id::text",
		Fields: sessionFields, Order: "s.created_at DESC", Counts: func() []string { return sessionCounts }, Counted: countedFields,
		Narrow: "status", Implies: impliedBy}
	l.Where(facts.Sessions.Where(a, authz.See, l.Arg))
	if len(f.Statuses) > 0 {
		statuses := listed(f.Statuses)
		l.And("s.status = ANY(%s::text[])", statuses)
		if sql := impliedBy(statuses); sql != "" {
			l.Implied(sql)
		}
	}
	if f.AccessKey != "" {
		key := l.Arg(string(f.AccessKey))
		l.Where("s.access_key = " + key)
		l.Implied("s.user_id = (SELECT k.user_id FROM keypairs k WHERE k.access_key = " + key + ")")
	}
	if f.Domain != "" {
		l.And("s.domain_name = %s", f.Domain)
	}
	if f.Project != "" {
		id, ok := cluster.CanonicalUUID(string(f.Project))
		if !ok {
			return list.Page[*Session]{Items: []*Session{}}, nil // nothing has such an id
		}
		l.And("s.project_id = %s::uuid", id)
	}
	if f.Type != "" {
		l.And("s.type = %s", string(f.Type))
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return list.Page[*Session]{}, err
	}
	if f.CountOnly {
		return list.Page[*Session]{Items: []*Session{}, Total: total}, nil
	}
	ids := make([]cluster.SessionID, len(keys))
	for i, k := range keys {
		ids[i] = cluster.SessionID(k)
	}
	items, _, err := s.loadSessions(ctx, ids)
	if err != nil {
		return list.Page[*Session]{}, err
	}
	return list.Page[*Session]{Items: list.InOrder(keys, items), Total: total}, nil
}

// KernelFilter selects kernels: those of a session, or live ones of an agent.
type KernelFilter struct {
	Session cluster.SessionID
	Agent   cluster.AgentID
	Kernel  cluster.KernelID
	Role    *string // nil: of any
	list.Query
}

var kernelFields = list.Fields{
	"id": list.ID("k.id"), "image": list.Text("k.image"), "architecture": list.Text("k.architecture"),
	"agent":      list.Text("k.agent_id"),
	"agent_addr": list.Text("ag.addr"), "cluster_idx": list.Number("k.cluster_idx"), "local_rank": list.Number("k.local_rank"),
	"cluster_role": list.Text("k.cluster_role"), "cluster_hostname": list.Text("k.cluster_hostname"), "status": list.Text("k.status"),
	"status_info": list.Text("k.status_info"), "created_at": list.Time("k.created_at"), "status_changed": list.Time("k.status_changed"),
	"terminated_at": list.Time("k.ended_at"), "scheduled_at": list.Time("k.scheduled_at"),
}

// ListKernels lists kernels of sessions that the actor may see.
func (s *Service) ListKernels(ctx context.Context, a authz.Actor, f KernelFilter) (list.Page[Kernel], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[Kernel]{}, err
	}
	l := &list.Spec{From: "kernels k JOIN sessions s ON s.id = k.session_id JOIN users u ON u.id = s.user_id LEFT JOIN agents ag ON ag.id = " +
		"k.agent_id",
		Key: "k.id::text", Fields: kernelFields, Order: "k.created_at DESC, k.local_rank"}
	l.Where(facts.Sessions.Where(a, authz.See, l.Arg))
	if f.Session != "" {
		l.Order = "k.local_rank"
	}
	for column, ref := range map[string]string{"k.session_id": string(f.Session), "k.id": string(f.Kernel)} {
		id, ok := cluster.CanonicalUUID(ref)
		switch {
		case ok:
			l.And(column+" = %s::uuid", id)
		case ref != "":
			return list.Page[Kernel]{Items: []Kernel{}}, nil // nothing has such an id
		}
	}
	if f.Role != nil {
		l.And("k.cluster_role = %s", store.Text(*f.Role))
	}
	if f.Agent != "" {
		l.And("k.agent_id = %s AND k.ended_at IS NULL", string(f.Agent))
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return list.Page[Kernel]{}, err
	}
	rows, err := s.d.Store.KernelViews(ctx, []string{}, keys)
	if err != nil {
		return list.Page[Kernel]{}, fmt.Errorf("read kernels: %w", err)
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
	return list.Page[Kernel]{Items: list.InOrder(keys, byID), Total: total}, nil
}
