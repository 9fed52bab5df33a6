package graphapi

import (
	"context"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

func (q queries) UserFromUUID(ctx context.Context, _, id *string) (*model.User, error) {
	ref := value(id)
	if ref != "" {
		canonical, err := uuid("user_id", ref)
		if err != nil {
			return nil, err
		}
		ref = canonical
	}
	u, err := orNil(q.tenancy.GetUser(ctx, q.who(ctx), ref))
	if u == nil || err != nil {
		return nil, err
	}
	return toUser(u), nil
}

// userStatus is the status that a list asks for by either of two arguments.
func userStatus(active *bool, status *string) string {
	switch {
	case status != nil:
		return *status
	case active == nil:
		return ""
	case *active:
		return "active"
	}
	return "inactive"
}

func (q queries) UserList(
	ctx context.Context, limit, offset int, filter, order, domain, project *string, active *bool, status *string,
) (*model.UserList, error) {
	p, err := q.tenancy.ListUsers(ctx, q.who(ctx), tenancy.UserFilter{Query: page(filter, order, limit, offset),
		Status: userStatus(active, status), Domain: value(domain), Project: cluster.ProjectID(value(project))})
	if err != nil {
		return nil, err
	}
	return &model.UserList{Items: convert(p.Items, toUser), TotalCount: &p.Total}, nil
}

// Users answers one page of the largest size: clients that may have more users ask for user_list.
func (q queries) Users(ctx context.Context, domain, project *string, active *bool, status *string) ([]*model.User, error) {
	p, err := q.tenancy.ListUsers(ctx, q.who(ctx), tenancy.UserFilter{Query: list.Query{Limit: maxList},
		Status: userStatus(active, status), Domain: value(domain), Project: cluster.ProjectID(value(project))})
	if err != nil {
		return nil, err
	}
	return convert(p.Items, toUser), nil
}

// userProps reads what an input sets; what a new user and a changed one have in common.
func userProps(p model.ModifyUserInput) (tenancy.UserProps, error) {
	out := tenancy.UserProps{Username: p.Username, FullName: p.FullName, Description: p.Description, Status: p.Status,
		Domain: p.DomainName, ResourcePolicy: p.ResourcePolicy, NeedPasswordChange: p.NeedPasswordChange,
		SudoSession: p.SudoSessionEnabled}
	if value(p.TotpActivated) {
		return out, fault.Invalidf("users enrol for one-time passwords themselves").
			WithNext("leave totp_activated out, or make them have one by manager.otp_roles")
	}
	if p.ContainerUID != nil || p.ContainerMainGid != nil || len(p.ContainerGids) > 0 {
		return out, fault.Invalidf("the numbers of users in containers cannot be chosen: agents give every container its own").
			WithNext("leave container_uid, container_main_gid and container_gids out")
	}
	if p.Status == nil && p.IsActive != nil {
		out.Status = new(userStatus(p.IsActive, nil))
	}
	if p.Password != nil {
		out.Password = new(seal.Secret(*p.Password))
	}
	if p.Role != nil {
		out.Role = new(authz.Role(*p.Role))
	}
	if p.MainAccessKey != nil {
		out.MainAccessKey = new(cluster.AccessKey(*p.MainAccessKey))
	}
	if p.AllowedClientIP != nil {
		networks := []string{}
		for _, n := range p.AllowedClientIP {
			networks = append(networks, value(n))
		}
		out.AllowedClientIP = &networks
	}
	if p.GroupIds != nil {
		projects := []cluster.ProjectID{}
		for _, id := range p.GroupIds {
			projects = append(projects, cluster.ProjectID(value(id)))
		}
		out.Projects = &projects
	}
	return out, nil
}

func (m mutations) CreateUser(ctx context.Context, email string, p model.UserInput) (*model.CreateUserReply, error) {
	props, err := userProps(model.ModifyUserInput{Username: p.Username, Password: &p.Password, NeedPasswordChange: p.NeedPasswordChange,
		FullName: p.FullName, Description: p.Description, IsActive: p.IsActive, Status: p.Status, DomainName: p.DomainName, Role: p.Role,
		GroupIds: p.GroupIds, AllowedClientIP: p.AllowedClientIP, TotpActivated: p.TotpActivated, ResourcePolicy: p.ResourcePolicy,
		SudoSessionEnabled: p.SudoSessionEnabled, ContainerUID: p.ContainerUID, ContainerMainGid: p.ContainerMainGid,
		ContainerGids: p.ContainerGids})
	var made *tenancy.User
	if err == nil {
		made, err = m.tenancy.CreateUser(ctx, m.who(ctx), email, props)
	}
	r, err := reply(err)
	if err != nil {
		return nil, err
	}
	out := &model.CreateUserReply{Ok: r.Ok, Msg: r.Msg}
	if made != nil {
		out.User, out.Keypair = toUser(made), toKeypair(made.First)
	}
	return out, nil
}

// ModifyUser answers with the user as they are now, for those who may still see them.
func (m mutations) ModifyUser(ctx context.Context, email string, p model.ModifyUserInput) (*model.ModifyUserReply, error) {
	props, err := userProps(p)
	if err == nil {
		err = m.tenancy.ModifyUser(ctx, m.who(ctx), email, props)
	}
	if err == nil && p.TotpActivated != nil { // false: true was refused
		err = m.otp.Remove(ctx, m.who(ctx), email)
	}
	r, fatal := reply(err)
	if fatal != nil {
		return nil, fatal
	}
	out := &model.ModifyUserReply{Ok: r.Ok, Msg: r.Msg}
	if err == nil {
		if u, err := m.tenancy.GetUser(ctx, m.who(ctx), email); err == nil {
			out.User = toUser(u)
		}
	}
	return out, nil
}

func (m mutations) DeleteUser(ctx context.Context, email string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteUser(ctx, m.who(ctx), email))
}
