package graphapi

import (
	"context"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

const nodeOfGroup = "GroupNode"

func toProject(p *tenancy.Project) *model.Group {
	return &model.Group{
		ID: new(string(p.ID)), Name: &p.Name, Description: p.Description, IsActive: &p.IsActive, CreatedAt: &p.CreatedAt,
		ModifiedAt: &p.ModifiedAt, DomainName: &p.Domain, TotalResourceSlots: slotsText(p.TotalSlots),
		AllowedVfolderHosts: jsonObject(p.AllowedHosts), IntegrationID: p.IntegrationID, ResourcePolicy: &p.Policy,
		Type: new(wireType(p.Type)), ContainerRegistry: new("{}"), ScalingGroups: texts(p.ResourceGroups),
	}
}

func toProjectNode(p *tenancy.Project) *model.GroupNode {
	g := toProject(p)
	return &model.GroupNode{
		ID: globalID(nodeOfGroup, string(p.ID)), RowID: g.ID, Name: g.Name, Description: g.Description, IsActive: g.IsActive,
		CreatedAt: g.CreatedAt, ModifiedAt: g.ModifiedAt, DomainName: g.DomainName, TotalResourceSlots: g.TotalResourceSlots,
		AllowedVfolderHosts: g.AllowedVfolderHosts, IntegrationID: g.IntegrationID, ResourcePolicy: g.ResourcePolicy, Type: g.Type,
		ContainerRegistry: g.ContainerRegistry, ScalingGroups: g.ScalingGroups,
	}
}

// wireType is a type of projects as clients know it: GENERAL or MODEL_STORE.
func wireType(t string) string { return upper(strings.ReplaceAll(t, "-", "_")) }

func (q queries) Group(ctx context.Context, id string, domain *string) (*model.Group, error) {
	p, err := orNil(q.tenancy.GetProject(ctx, q.who(ctx), id, value(domain)))
	if p == nil || err != nil {
		return nil, err
	}
	return toProject(p), nil
}

func (q queries) Groups(ctx context.Context, domain *string, active *bool, kinds []*string) ([]*model.Group, error) {
	all, err := q.tenancy.ListProjects(ctx, q.who(ctx), value(domain))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p *tenancy.Project) bool {
		other := len(kinds) > 0 && !slices.ContainsFunc(kinds, func(k *string) bool { return wireType(value(k)) == wireType(p.Type) })
		return other || active != nil && p.IsActive != *active
	})
	return convert(all, toProject), nil
}

func (q queries) GroupsByName(ctx context.Context, name string, domain *string) ([]*model.Group, error) {
	all, err := q.tenancy.ListProjects(ctx, q.who(ctx), value(domain))
	if err != nil {
		return nil, err
	}
	return convert(slices.DeleteFunc(all, func(p *tenancy.Project) bool { return p.Name != name }), toProject), nil
}

func (q queries) GroupNode(ctx context.Context, id string) (*model.GroupNode, error) {
	kind, raw := fromGlobalID(id)
	if kind != "" && kind != nodeOfGroup {
		return nil, nil
	}
	ref, err := uuid("id", raw)
	if err != nil {
		return nil, err
	}
	p, err := orNil(q.tenancy.GetProject(ctx, q.who(ctx), ref, ""))
	if p == nil || err != nil {
		return nil, err
	}
	return toProjectNode(p), nil
}

func (q queries) GroupNodes(
	ctx context.Context, _, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.GroupConnection, error) {
	query := page(filter, order, maxList, value(offset))
	counting, err := turnPage(&query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	var p list.Page[*tenancy.Project]
	if p, err = q.tenancy.PageProjects(ctx, q.who(ctx), query); err != nil {
		return nil, err
	}
	out := &model.GroupConnection{PageInfo: &model.PageInfo{}, Edges: []*model.GroupEdge{}, Count: &p.Total}
	if counting {
		return out, nil
	}
	for i, project := range p.Items {
		out.Edges = append(out.Edges, &model.GroupEdge{Node: toProjectNode(project), Cursor: cursor(query.Offset + i)})
	}
	out.PageInfo = pageInfo(query.Offset, len(out.Edges), p.Total)
	return out, nil
}

func (q queries) GroupMembers(ctx context.Context, id string) ([]*model.GroupMember, error) {
	members, err := q.tenancy.Members(ctx, q.who(ctx), id)
	return convert(members, func(m tenancy.Member) *model.GroupMember {
		return &model.GroupMember{UUID: new(string(m.ID)), Email: &m.Email, FullName: &m.FullName, Status: &m.Status, IsAdmin: &m.Admin}
	}), err
}

// noRegistry refuses a registry of a project: commits stay with the agents in this version.
func noRegistry(text *string) error {
	if t := strings.TrimSpace(value(text)); t == "" || t == "{}" || t == "null" {
		return nil
	}
	return fault.Invalidf("projects have no registry of their own in this version").WithReason("not-implemented").
		WithNext("leave container_registry out")
}

// projectProps reads what an input sets; what a new project and a changed one have in common.
func projectProps(p model.ModifyGroupInput) (out tenancy.ProjectProps, err error) {
	out = tenancy.ProjectProps{Name: p.Name, Description: p.Description, Active: p.IsActive, Domain: p.DomainName,
		ResourcePolicy: p.ResourcePolicy, IntegrationID: p.IntegrationID}
	if err := noRegistry(p.ContainerRegistry); err != nil {
		return out, err
	}
	if out.AllowedHosts, err = hostsOf(p.AllowedVfolderHosts); err != nil {
		return out, err
	}
	if out.TotalSlots, err = amounts("total_resource_slots", p.TotalResourceSlots); err != nil {
		return out, err
	}
	switch mode := value(p.UserUpdateMode); {
	case mode != "":
		out.Members = &tenancy.MemberChange{Mode: tenancy.MemberMode(strings.ToLower(mode))}
		for _, u := range p.UserUuids {
			out.Members.Users = append(out.Members.Users, value(u))
		}
	case len(p.UserUuids) > 0:
		return out, fault.Invalidf("user_uuids says nothing without user_update_mode").WithNext("choose add or remove")
	}
	return out, nil
}

// projectReply answers a mutation with the project as it is now, for those who may still see it.
func (m mutations) projectReply(ctx context.Context, id string, err error) (*model.GroupReply, error) {
	r, fatal := reply(err)
	if fatal != nil {
		return nil, fatal
	}
	out := &model.GroupReply{Ok: r.Ok, Msg: r.Msg}
	if err == nil {
		if p, err := m.tenancy.GetProject(ctx, m.who(ctx), id, ""); err == nil {
			out.Group = toProject(p)
		}
	}
	return out, nil
}

func (m mutations) CreateGroup(ctx context.Context, name string, p model.GroupInput) (*model.GroupReply, error) {
	props, err := projectProps(model.ModifyGroupInput{Description: p.Description, IsActive: p.IsActive, DomainName: &p.DomainName,
		TotalResourceSlots: p.TotalResourceSlots, AllowedVfolderHosts: p.AllowedVfolderHosts, IntegrationID: p.IntegrationID,
		ResourcePolicy: p.ResourcePolicy, ContainerRegistry: p.ContainerRegistry})
	props.Type = p.Type
	id := ""
	if err == nil {
		var made *tenancy.Project
		if made, err = m.tenancy.CreateProject(ctx, m.who(ctx), name, props); made != nil {
			id = string(made.ID)
		}
	}
	return m.projectReply(ctx, id, err)
}

func (m mutations) ModifyGroup(ctx context.Context, id string, p model.ModifyGroupInput) (*model.GroupReply, error) {
	ref, err := uuid("gid", id)
	var props tenancy.ProjectProps
	if err == nil {
		props, err = projectProps(p)
	}
	if err == nil {
		err = m.tenancy.ModifyProject(ctx, m.who(ctx), ref, props)
	}
	return m.projectReply(ctx, ref, err)
}

func (m mutations) DeleteGroup(ctx context.Context, id string) (*model.MutationReply, error) {
	ref, err := uuid("gid", id)
	if err == nil {
		err = m.tenancy.DeleteProject(ctx, m.who(ctx), ref)
	}
	return reply(err)
}
