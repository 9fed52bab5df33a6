package graphapi

import (
	"context"
	"fmt"
	"strconv"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// The types of agents, users and entries of the audit log in global ids.
const (
	nodeOfAgent  = "AgentNode"
	nodeOfPerson = "UserNode"
	nodeOfEntry  = "AuditLogV2"
)

type containers struct{ *resolver }

func (r *resolver) ComputeContainer() gqlexec.ComputeContainerResolver { return containers{r} }

// ImageObject is null when the image was forgotten since.
func (c containers) ImageObject(ctx context.Context, obj *model.ComputeContainer) (*model.ImageNode, error) {
	im, err := loadImage(ctx, value(obj.Image), value(obj.Architecture))
	if im == nil || err != nil {
		return nil, err
	}
	return toImageNode(im), nil
}

func toImageNode(im *image.Image) *model.ImageNode {
	m := toImage(im)
	return &model.ImageNode{
		ID: globalID(nodeOfImage, string(im.ID)), RowID: m.ID, Name: m.Name, BaseImageName: &im.Name, Namespace: m.Name,
		HumanizedName: m.HumanizedName, Registry: m.Registry, Architecture: m.Architecture, Tag: m.Tag, Tags: []*model.KVPair{},
		Version: m.Tag, Digest: m.Digest, Labels: m.Labels, SizeBytes: m.SizeBytes, Installed: m.Installed, IsLocal: m.IsLocal,
		Aliases: m.Aliases, ResourceLimits: m.ResourceLimits, SupportedAccelerators: m.SupportedAccelerators,
	}
}

// connected is a page of nodes with their places; counting leaves the nodes out.
func connected[S, E any](items []S, offset, total int, counting bool, edge func(S, string) E) (*model.PageInfo, []E, *int) {
	if counting {
		items = nil
	}
	edges := make([]E, len(items))
	for i, s := range items {
		edges[i] = edge(s, cursor(offset+i))
	}
	return pageInfo(offset, len(items), total), edges, &total
}

func toSummary(s node.Summary) *model.AgentSummary {
	return &model.AgentSummary{ID: new(string(s.ID)), Status: new(string(s.Status)), Architecture: &s.Architecture,
		ScalingGroup: &s.ResourceGroup, Schedulable: &s.Schedulable, AvailableSlots: slotsText(s.Capacity), OccupiedSlots: slotsText(s.Occupied)}
}

func (q queries) AgentSummary(ctx context.Context, id string) (*model.AgentSummary, error) {
	p, err := q.nodes.Summaries(ctx, q.who(ctx), node.Filter{Query: list.Query{Filter: "id == " + quoted(id), Limit: 1}})
	if err != nil || len(p.Items) == 0 {
		return nil, err
	}
	return toSummary(p.Items[0]), nil
}

func (q queries) AgentSummaryList(
	ctx context.Context, limit, offset int, filter, order, group, status *string,
) (*model.AgentSummaryList, error) {
	p, err := q.nodes.Summaries(ctx, q.who(ctx), node.Filter{
		Query: page(filter, order, limit, offset), Status: value(status), ResourceGroup: value(group)})
	if err != nil {
		return nil, err
	}
	return &model.AgentSummaryList{Items: convert(p.Items, toSummary), TotalCount: &p.Total}, nil
}

func toAgentNode(a *node.Agent) *model.AgentNode {
	m := toAgent(a)
	return &model.AgentNode{
		ID: globalID(nodeOfAgent, string(a.ID)), RowID: m.ID, Status: m.Status, StatusChanged: m.StatusChanged, Region: m.Region,
		Architecture: m.Architecture, ScalingGroup: m.ScalingGroup, Schedulable: m.Schedulable, AvailableSlots: m.AvailableSlots,
		OccupiedSlots: m.OccupiedSlots, Addr: m.Addr, PublicHost: m.PublicHost, FirstContact: m.FirstContact, LostAt: m.LostAt,
		LiveStat: m.LiveStat, Version: m.Version, ComputePlugins: m.ComputePlugins, GpuAllocMap: new("{}"),
	}
}

func (q queries) agentNode(ctx context.Context, id string) (*model.AgentNode, error) {
	a, err := orNil(q.nodes.Get(ctx, q.who(ctx), cluster.AgentID(id)))
	if fault.Is(err, fault.Denied) { // a global id tells nobody what there is
		return nil, nil
	}
	if a == nil || err != nil {
		return nil, err
	}
	return toAgentNode(a), nil
}

func (q queries) AgentNodes(
	ctx context.Context, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.AgentConnection, error) {
	query := page(filter, order, maxList, value(offset))
	counting, err := turnPage(&query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	p, err := q.nodes.List(ctx, q.who(ctx), node.Filter{Query: query})
	if err != nil {
		return nil, err
	}
	out := &model.AgentConnection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, counting, func(a *node.Agent, at string) *model.AgentEdge {
		return &model.AgentEdge{Node: toAgentNode(a), Cursor: at}
	})
	return out, nil
}

func toUserNode(u *tenancy.User) *model.UserNode {
	m := toUser(u)
	return &model.UserNode{
		ID: *m.ID, RowID: m.UUID, Username: m.Username, Email: m.Email, FullName: m.FullName, Description: m.Description,
		NeedPasswordChange: m.NeedPasswordChange, IsActive: m.IsActive, Status: m.Status, StatusInfo: m.StatusInfo, CreatedAt: m.CreatedAt,
		ModifiedAt: m.ModifiedAt, DomainName: m.DomainName, Role: m.Role, ResourcePolicy: m.ResourcePolicy,
		AllowedClientIP: m.AllowedClientIP, TotpActivated: m.TotpActivated, SudoSessionEnabled: m.SudoSessionEnabled,
		MainAccessKey: m.MainAccessKey,
	}
}

// UserNode accepts a UUID or a global id.
func (q queries) UserNode(ctx context.Context, id string) (*model.UserNode, error) {
	_, raw := fromGlobalID(id)
	ref, err := uuid("id", raw)
	if err != nil {
		return nil, err
	}
	u, err := orNil(q.tenancy.GetUser(ctx, q.who(ctx), ref))
	if u == nil || err != nil {
		return nil, err
	}
	return toUserNode(u), nil
}

func (q queries) UserNodes(
	ctx context.Context, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.UserConnection, error) {
	query := page(filter, order, maxList, value(offset))
	counting, err := turnPage(&query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	p, err := q.tenancy.ListUsers(ctx, q.who(ctx), tenancy.UserFilter{Query: query})
	if err != nil {
		return nil, err
	}
	out := &model.UserConnection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, counting, func(u *tenancy.User, at string) *model.UserEdge {
		return &model.UserEdge{Node: toUserNode(u), Cursor: at}
	})
	return out, nil
}

func (q queries) ImageNode(ctx context.Context, id string) (*model.ImageNode, error) {
	_, raw := fromGlobalID(id)
	ref, err := uuid("id", raw)
	if err != nil {
		return nil, err
	}
	im, err := orNil(q.images.Get(ctx, q.who(ctx), ref, ""))
	if im == nil || err != nil {
		return nil, err
	}
	return toImageNode(im), nil
}

// ImageNodes lists what the caller may see. The scope only names where the page stands.
func (q queries) ImageNodes(
	ctx context.Context, _ string, _, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.ImageConnection, error) {
	query := page(filter, order, maxList, value(offset))
	counting, err := turnPage(&query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	p, err := q.images.List(ctx, q.who(ctx), query)
	if err != nil {
		return nil, err
	}
	out := &model.ImageConnection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, counting, func(im *image.Image,
		at string) *model.ImageEdge {
		return &model.ImageEdge{Node: toImageNode(im), Cursor: at}
	})
	return out, nil
}

// PurgeImageByID forgets an image, as forget_image_by_id does: the bytes are deleted where they lie.
func (m mutations) PurgeImageByID(ctx context.Context, id string, _ *model.PurgeImageOptions) (*model.PurgeImageReply, error) {
	_, raw := fromGlobalID(id)
	ref, err := uuid("image_id", raw)
	if err != nil {
		return nil, err
	}
	im, err := m.images.Forget(ctx, m.who(ctx), ref, "")
	if err != nil {
		return nil, err
	}
	return &model.PurgeImageReply{Image: toImage(im)}, nil
}

func (q queries) AccessibleScalingGroups(ctx context.Context, project string) ([]*model.ScalingGroup, error) {
	id, err := uuid("project_id", project)
	if err != nil {
		return nil, err
	}
	groups, err := q.resources.AllowedGroups(ctx, q.who(ctx), id)
	return convert(groups, toResourceGroup), err
}

// SessionPendingQueue lists waiting sessions of a resource group that the caller may see, those of higher priority first.
func (q queries) SessionPendingQueue(
	ctx context.Context, group string, offset *int, before, after *string, first, last *int,
) (*model.ComputeSessionConnection, error) {
	f := session.Filter{Query: page(nil, new("-priority,+created_at"), sessionPageSize, value(offset)),
		Statuses: []string{string(cluster.Pending)}}
	f.Filter = also("", "scaling_group", group)
	counting, err := turnPage(&f.Query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	p, err := q.sessions.List(ctx, q.who(ctx), f)
	if err != nil {
		return nil, err
	}
	if counting {
		return sessionConnection(nil, 0, p.Total), nil
	}
	return sessionConnection(remember(ctx, p.Items), f.Offset, p.Total), nil
}

// InferenceSessionList lists sessions of the type inference.
func (q queries) InferenceSessionList(
	ctx context.Context, limit, offset int, filter, order, domain, project, accessKey, status *string,
) (*model.ComputeSessionList, error) {
	only := also(value(filter), "type", string(cluster.Inference))
	return q.ComputeSessionList(ctx, limit, offset, &only, order, domain, project, accessKey, status)
}

func (q queries) MyClientIP(ctx context.Context) (*model.ClientIP, error) {
	a := q.who(ctx)
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return &model.ClientIP{ClientIP: optional(a.ClientIP)}, nil
}

// AssociateScalingGroupsWithUserGroup gives resource groups to a project, one after the other: the answer names the first that cannot be.
func (m mutations) AssociateScalingGroupsWithUserGroup(ctx context.Context, groups []*string, project string) (*model.MutationReply,
	error) {
	id, err := uuid("user_group", project)
	for _, g := range groups {
		if err == nil {
			err = m.resources.AssociateGroup(ctx, m.who(ctx), value(g), resource.GroupUser{Project: cluster.ProjectID(id)})
		}
	}
	return reply(err)
}

func toUserV2(u *tenancy.User) *model.UserV2 {
	status := model.UserStatusV2(upper(u.Status))
	return &model.UserV2{
		ID:        globalID(nodeOfUser, string(u.ID)),
		BasicInfo: &model.UserV2BasicInfo{Email: u.Email, FullName: &u.FullName, Username: &u.Username, Description: &u.Description},
		Organization: &model.UserV2OrganizationInfo{DomainName: &u.Domain, Role: new(upper(u.Role)), ResourcePolicy: &u.ResourcePolicy,
			MainAccessKey: optional(u.MainAccessKey)},
		Security: &model.UserV2SecurityInfo{TotpActivated: &u.TOTPActivated, TotpActivatedAt: u.TOTPSince,
			SudoSessionEnabled: &u.SudoSession, AllowedClientIP: texts(u.AllowedClientIP)},
		Status:     &model.UserV2StatusInfo{Status: &status, StatusInfo: u.StatusInfo, NeedPasswordChange: &u.NeedPasswordChange},
		Container:  &model.UserV2ContainerSettings{},
		Timestamps: &model.EntityTimestamps{CreatedAt: &u.CreatedAt, ModifiedAt: &u.ModifiedAt},
	}
}

func (q queries) AdminUsersV2(
	ctx context.Context, filter *model.UserV2Filter, by []*model.UserV2OrderBy, limit, offset *int,
) (*model.UserV2Connection, error) {
	text, err := userFilter(filter, 0)
	if err != nil {
		return nil, err
	}
	query := pageV2(text, orders(by, func(o *model.UserV2OrderBy) (string, model.OrderDirection) {
		return fieldOf(o.Field), o.Direction
	}), limit, offset)
	p, err := q.tenancy.ListUsers(ctx, q.who(ctx), tenancy.UserFilter{Query: query})
	if err != nil {
		return nil, err
	}
	out := &model.UserV2Connection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, false, func(u *tenancy.User, at string) *model.UserV2Edge {
		return &model.UserV2Edge{Node: toUserV2(u), Cursor: at}
	})
	return out, nil
}

func toProjectV2(p *tenancy.Project) *model.ProjectV2 {
	m := &model.ProjectV2{ID: globalID(nodeOfProject, string(p.ID)), BasicInfo: &model.ProjectBasicInfo{Name: p.Name},
		Storage: &model.ProjectStorageInfo{AllowedVfolderHosts: []*model.VFolderHostPermissionEntry{}}}
	for _, host := range sortedKeys(p.AllowedHosts) {
		entry := &model.VFolderHostPermissionEntry{Host: host, Permissions: []string{}}
		if all, ok := p.AllowedHosts[host].([]any); ok {
			for _, one := range all {
				entry.Permissions = append(entry.Permissions, fmt.Sprint(one))
			}
		}
		m.Storage.AllowedVfolderHosts = append(m.Storage.AllowedVfolderHosts, entry)
	}
	return m
}

func (q queries) projectsV2(
	ctx context.Context, domain string, filter *model.ProjectV2Filter, by []*model.ProjectV2OrderBy, limit, offset *int,
) (*model.ProjectV2Connection, error) {
	text, err := projectFilter(filter, 0)
	if err != nil {
		return nil, err
	}
	if domain != "" {
		text = also(text, "domain_name", domain)
	}
	query := pageV2(text, orders(by, func(o *model.ProjectV2OrderBy) (string, model.OrderDirection) {
		return fieldOf(o.Field), o.Direction
	}), limit, offset)
	p, err := q.tenancy.PageProjects(ctx, q.who(ctx), query)
	if err != nil {
		return nil, err
	}
	out := &model.ProjectV2Connection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, false,
		func(p *tenancy.Project, at string) *model.ProjectV2Edge {
			return &model.ProjectV2Edge{Node: toProjectV2(p), Cursor: at}
		})
	return out, nil
}

func (q queries) AdminProjectsV2(
	ctx context.Context, filter *model.ProjectV2Filter, by []*model.ProjectV2OrderBy, limit, offset *int,
) (*model.ProjectV2Connection, error) {
	return q.projectsV2(ctx, "", filter, by, limit, offset)
}

func (q queries) DomainProjectsV2(
	ctx context.Context, scope model.DomainScope, filter *model.ProjectV2Filter, by []*model.ProjectV2OrderBy, limit, offset *int,
) (*model.ProjectV2Connection, error) {
	if scope.DomainName == "" {
		return nil, fault.Invalidf("the scope names no domain").WithNext("pass scope: {domainName: ...}")
	}
	return q.projectsV2(ctx, scope.DomainName, filter, by, limit, offset)
}

// ScopedAuditLogsV2 lists entries about some objects, or of what some users did, as far as the caller may see them.
func (q queries) ScopedAuditLogsV2(
	ctx context.Context, scope model.AuditLogScope, filter *model.AuditLogFilter, by []*model.AuditLogOrderBy, limit, offset *int,
) (*model.AuditLogV2Connection, error) {
	text, err := auditFilter(filter, 0)
	if err != nil {
		return nil, err
	}
	t := &terms{}
	if text != "" {
		t.add("(%s)", text)
	}
	var about []string
	for _, e := range scope.Entity {
		about = append(about, fmt.Sprintf("(action like %s & object == %s)", pattern("", actionsOf(string(e.EntityType)), "%"),
			quoted(e.EntityID)))
	}
	for _, u := range scope.TriggeredUser {
		id, err := uuid("triggeredUser", u.Value)
		if err != nil {
			return nil, err
		}
		about = append(about, "user_id == "+quoted(id))
	}
	if len(about) > 0 {
		t.all = append(t.all, anyOf(about))
	}
	query := pageV2(t.String(), orders(by, func(o *model.AuditLogOrderBy) (string, model.OrderDirection) {
		return map[model.AuditLogOrderField]string{model.AuditLogOrderFieldCreatedAt: "at", model.AuditLogOrderFieldEntityType: "action",
			model.AuditLogOrderFieldOperation: "action", model.AuditLogOrderFieldStatus: "result"}[o.Field], o.Direction
	}), limit, offset)
	p, err := q.audit.List(ctx, q.who(ctx), audit.Query{Filter: query.Filter, Order: query.Order, Limit: query.Limit, Offset: query.Offset})
	if err != nil {
		return nil, err
	}
	out := &model.AuditLogV2Connection{}
	out.PageInfo, out.Edges, out.Count = connected(p.Items, query.Offset, p.Total, false, func(e *audit.Entry,
		at string) *model.AuditLogV2Edge {
		return &model.AuditLogV2Edge{Node: toEntry(e), Cursor: at}
	})
	return out, nil
}

func toEntry(e *audit.Entry) *model.AuditLogV2 {
	id := strconv.FormatInt(e.ID, 10)
	status := model.AuditLogStatusSuccess
	if e.Result != audit.Done {
		status = model.AuditLogStatusError
	}
	m := &model.AuditLogV2{ID: globalID(nodeOfEntry, id), CreatedAt: &e.At, Operation: &e.Action, Status: &status, Description: &e.Reason,
		RequestID: optional(e.RequestID), ActionID: &id, EntityType: new(kindOf(e.Action)), EntityID: optional(e.Object),
		TriggeredBy: optional(e.UserID)}
	if e.UserID != "" {
		m.User = &model.UserV2{ID: globalID(nodeOfUser, e.UserID), BasicInfo: &model.UserV2BasicInfo{Email: e.Email}}
	}
	return m
}

// ImageV2 accepts a UUID or a global id.
func (q queries) ImageV2(ctx context.Context, id string) (*model.ImageV2, error) {
	_, raw := fromGlobalID(id)
	ref, err := uuid("id", raw)
	if err != nil {
		return nil, err
	}
	im, err := orNil(q.images.Get(ctx, q.who(ctx), ref, ""))
	if im == nil || err != nil {
		return nil, err
	}
	return &model.ImageV2{ID: globalID("ImageV2", string(im.ID)),
		Identity: &model.ImageIdentity{CanonicalName: &im.Reference, Architecture: &im.Architecture}}, nil
}
