package graphapi

import (
	"context"
	"slices"

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

func toUser(u *tenancy.User) *model.User {
	m := &model.User{
		ID: new(globalID(nodeOfPerson, string(u.ID))), UUID: new(string(u.ID)), Username: &u.Username, Email: &u.Email, FullName: &u.FullName,
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

func (q queries) DomainList(ctx context.Context, limit, offset int, filter, order *string) (*model.DomainList, error) {
	p, err := q.tenancy.PageDomains(ctx, q.who(ctx), page(filter, order, limit, offset))
	if err != nil {
		return nil, err
	}
	return &model.DomainList{Items: convert(p.Items, toDomain), TotalCount: &p.Total}, nil
}

func (q queries) User(ctx context.Context, _, email *string) (*model.User, error) {
	u, err := orNil(q.tenancy.GetUser(ctx, q.who(ctx), value(email)))
	if u == nil || err != nil {
		return nil, err
	}
	return toUser(u), nil
}

func toUserPolicy(p tenancy.Policy) *model.UserResourcePolicy {
	return &model.UserResourcePolicy{ID: p.Name, Name: p.Name, CreatedAt: p.CreatedAt, MaxVfolderCount: &p.MaxFolders,
		MaxQuotaScopeSize: &p.MaxScopeBytes,
		MaxVfolderSize:    &p.MaxScopeBytes, MaxSessionCountPerModelSession: p.MaxModelSessions, MaxCustomizedImageCount: p.MaxImages,
		MaxConcurrentLogins: p.MaxLogins}
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

func (q queries) UserResourcePolicyList(
	ctx context.Context, limit, offset int, filter, order *string,
) (*model.UserResourcePolicyList, error) {
	p, err := q.tenancy.PageUserPolicies(ctx, q.who(ctx), page(filter, order, limit, offset))
	if err != nil {
		return nil, err
	}
	return &model.UserResourcePolicyList{Items: convert(p.Items, toUserPolicy), TotalCount: &p.Total}, nil
}

func (q queries) ProjectResourcePolicyList(
	ctx context.Context, limit, offset int, filter, order *string,
) (*model.ProjectResourcePolicyList, error) {
	p, err := q.tenancy.PageProjectPolicies(ctx, q.who(ctx), page(filter, order, limit, offset))
	if err != nil {
		return nil, err
	}
	return &model.ProjectResourcePolicyList{Items: convert(p.Items, toProjectPolicy), TotalCount: &p.Total}, nil
}
