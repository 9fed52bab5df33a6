package graphapi

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/tenancy"
)

func toDomain(d *tenancy.Domain) *model.Domain {
	return &model.Domain{
		Name:                    &d.Name,
		Description:             d.Description,
		IsActive:                &d.IsActive,
		CreatedAt:               &d.CreatedAt,
		ModifiedAt:              &d.ModifiedAt,
		TotalResourceSlots:      slotsText(d.TotalSlots),
		AllowedVfolderHosts:     jsonObject(d.AllowedHosts),
		AllowedDockerRegistries: texts(d.AllowedRegistries),
		IntegrationID:           d.IntegrationID,
	}
}

func toProject(p *tenancy.Project) *model.Group {
	return &model.Group{
		ID: new(string(p.ID)), Name: &p.Name, Description: p.Description, IsActive: &p.IsActive, CreatedAt: &p.CreatedAt,
		ModifiedAt: &p.ModifiedAt, DomainName: &p.Domain, TotalResourceSlots: slotsText(p.TotalSlots),
		AllowedVfolderHosts: jsonObject(p.AllowedHosts), IntegrationID: p.IntegrationID, Type: new(upper(p.Type)),
	}
}

func toUser(u *tenancy.User) *model.User {
	m := &model.User{
		ID: new(globalID("UserNode", string(u.ID))), UUID: new(string(u.ID)), Username: &u.Username, Email: &u.Email, FullName: &u.FullName,
		Description: &u.Description, NeedPasswordChange: &u.NeedPasswordChange, IsActive: new(u.Status == "active"), Status: &u.Status,
		StatusInfo: u.StatusInfo, CreatedAt: &u.CreatedAt, ModifiedAt: &u.ModifiedAt, DomainName: &u.Domain, Role: new(string(u.Role)),
		ResourcePolicy: &u.ResourcePolicy, Groups: []*model.UserGroup{}, AllowedClientIP: texts(u.AllowedClientIP),
		TotpActivated: &u.TOTPActivated, SudoSessionEnabled: &u.SudoSession, MainAccessKey: optional(u.MainAccessKey),
	}
	for _, p := range u.Projects {
		m.Groups = append(m.Groups, &model.UserGroup{ID: new(string(p.ID)), Name: &p.Name})
	}
	return m
}

func (q queries) Domain(ctx context.Context, name *string) (*model.Domain, error) {
	d, err := orNil(q.tenancy.GetDomain(ctx, q.who(ctx), value(name)))
	if d == nil || err != nil {
		return nil, err
	}
	return toDomain(d), nil
}

func (q queries) Domains(ctx context.Context, active *bool) ([]*model.Domain, error) {
	all, err := q.tenancy.ListDomains(ctx, q.who(ctx))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(d *tenancy.Domain) bool { return active != nil && d.IsActive != *active })
	return convert(all, toDomain), nil
}

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
		other := len(kinds) > 0 && !slices.ContainsFunc(kinds, func(k *string) bool { return upper(value(k)) == upper(p.Type) })
		return other || active != nil && p.IsActive != *active
	})
	return convert(all, toProject), nil
}

func (q queries) User(ctx context.Context, _, email *string) (*model.User, error) {
	u, err := orNil(q.tenancy.GetUser(ctx, q.who(ctx), value(email)))
	if u == nil || err != nil {
		return nil, err
	}
	return toUser(u), nil
}

// hostsOf reads permissions by host.
func hostsOf(text string) (folder.HostPermissions, error) {
	var out folder.HostPermissions
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fault.Invalidf("allowed_vfolder_hosts is not usable").WithCause(err).
			WithNext(`pass for example {"local:volume1":["mount-in-session","download-file"]} as a text`)
	}
	return out, nil
}

// onlyHosts refuses properties of a domain or project that are not served; props is a struct of pointers and slices.
func onlyHosts(props any) error {
	v := reflect.ValueOf(props)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("json"); !v.Field(i).IsNil() && name != "allowed_vfolder_hosts,omitempty" {
			return fault.Invalidf("of domains and projects only allowed_vfolder_hosts and allowed_docker_registries can be changed " +
				"in this version").WithReason("not-implemented").
				WithNext("leave the other properties out")
		}
	}
	return nil
}

func (m mutations) ModifyDomain(ctx context.Context, name string, p model.ModifyDomainInput) (*model.MutationReply, error) {
	if registries := p.AllowedDockerRegistries; registries != nil {
		p.AllowedDockerRegistries = nil
		if err := onlyHosts(p); err != nil {
			return reply(err)
		}
		list := make([]string, len(registries))
		for i, r := range registries {
			list[i] = value(r)
		}
		if err := m.tenancy.AllowRegistries(ctx, m.who(ctx), name, list); err != nil {
			return reply(err)
		}
	}
	return m.allow(p, p.AllowedVfolderHosts, func(hosts folder.HostPermissions) error {
		return m.folders.AllowInDomain(ctx, m.who(ctx), name, hosts)
	})
}

func (m mutations) ModifyGroup(ctx context.Context, id string, p model.ModifyGroupInput) (*model.MutationReply, error) {
	return m.allow(p, p.AllowedVfolderHosts, func(hosts folder.HostPermissions) error {
		return m.folders.AllowInProject(ctx, m.who(ctx), id, hosts)
	})
}

func (m mutations) allow(props any, text *string, set func(folder.HostPermissions) error) (*model.MutationReply, error) {
	if err := onlyHosts(props); err != nil || text == nil {
		return reply(err)
	}
	hosts, err := hostsOf(*text)
	if err != nil {
		return reply(err)
	}
	return reply(set(hosts))
}

func toUserPolicy(p tenancy.Policy) *model.UserResourcePolicy {
	return &model.UserResourcePolicy{ID: p.Name, Name: p.Name, CreatedAt: p.CreatedAt, MaxVfolderCount: &p.MaxFolders,
		MaxQuotaScopeSize: &p.MaxScopeBytes,
		MaxVfolderSize:    &p.MaxScopeBytes, MaxSessionCountPerModelSession: p.MaxModelSessions, MaxCustomizedImageCount: p.MaxImages}
}

func toProjectPolicy(p tenancy.Policy) *model.ProjectResourcePolicy {
	return &model.ProjectResourcePolicy{ID: p.Name, Name: p.Name, CreatedAt: p.CreatedAt, MaxVfolderCount: &p.MaxFolders,
		MaxQuotaScopeSize: &p.MaxScopeBytes,
		MaxVfolderSize:    &p.MaxScopeBytes, MaxNetworkCount: p.MaxNetworks}
}

func one[T any](list []T, err error) (*T, error) {
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// UserResourcePolicy is the named policy, or the caller's.
func (q queries) UserResourcePolicy(ctx context.Context, name *string) (*model.UserResourcePolicy, error) {
	p, err := one(q.tenancy.UserPolicies(ctx, q.who(ctx), tenancy.PolicyQuery{Name: value(name), Mine: value(name) == ""}))
	if p == nil || err != nil {
		return nil, err
	}
	return toUserPolicy(*p), nil
}

func (q queries) UserResourcePolicies(ctx context.Context) ([]*model.UserResourcePolicy, error) {
	list, err := q.tenancy.UserPolicies(ctx, q.who(ctx), tenancy.PolicyQuery{})
	return convert(list, toUserPolicy), err
}

func (q queries) ProjectResourcePolicy(ctx context.Context, name string) (*model.ProjectResourcePolicy, error) {
	p, err := one(q.tenancy.ProjectPolicies(ctx, q.who(ctx), tenancy.PolicyQuery{Name: name}))
	if p == nil || err != nil {
		return nil, err
	}
	return toProjectPolicy(*p), nil
}

func (q queries) ProjectResourcePolicies(ctx context.Context) ([]*model.ProjectResourcePolicy, error) {
	list, err := q.tenancy.ProjectPolicies(ctx, q.who(ctx), tenancy.PolicyQuery{})
	return convert(list, toProjectPolicy), err
}
