package graphapi

import (
	"context"
	"encoding/json"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
)

// Administration of agents and resource groups.

func (m mutations) ModifyAgent(ctx context.Context, id string, p model.ModifyAgentInput) (*model.MutationReply, error) {
	return reply(
		m.nodes.Modify(
			ctx, m.who(ctx), cluster.AgentID(id), node.Change{Schedulable: p.Schedulable, ResourceGroup: p.ScalingGroup},
		),
	)
}

func (m mutations) CreateScalingGroup(
	ctx context.Context, name string, p model.CreateScalingGroupInput,
) (*model.CreateScalingGroupReply, error) {
	props, err := groupProps(model.ModifyScalingGroupInput{
		Description: p.Description, IsActive: p.IsActive, IsPublic: p.IsPublic, WsproxyAddr: p.WsproxyAddr, WsproxyAPIToken: p.WsproxyAPIToken,
		Driver: &p.Driver, DriverOpts: p.DriverOpts, Scheduler: &p.Scheduler, SchedulerOpts: p.SchedulerOpts, UseHostNetwork: p.UseHostNetwork,
		Egress: p.Egress, EncryptedNetworks: p.EncryptedNetworks,
	})
	if err == nil {
		err = m.resources.CreateGroup(ctx, m.who(ctx), name, props)
	}
	r, err := reply(err)
	if err != nil {
		return nil, err
	}
	out := &model.CreateScalingGroupReply{Ok: r.Ok, Msg: r.Msg}
	if *r.Ok {
		g, err := m.resources.GetGroup(ctx, m.who(ctx), name)
		if err != nil {
			return nil, err
		}
		out.ScalingGroup = toResourceGroup(g)
	}
	return out, nil
}

func (m mutations) ModifyScalingGroup(ctx context.Context, name string, p model.ModifyScalingGroupInput) (*model.MutationReply, error) {
	props, err := groupProps(p)
	if err == nil {
		err = m.resources.ModifyGroup(ctx, m.who(ctx), name, props)
	}
	return reply(err)
}

func groupProps(p model.ModifyScalingGroupInput) (resource.GroupProps, error) {
	out := resource.GroupProps{Description: p.Description, IsActive: p.IsActive, IsPublic: p.IsPublic, WsproxyAddr: p.WsproxyAddr,
		Driver: p.Driver, Scheduler: p.Scheduler, UseHostNetwork: p.UseHostNetwork, Egress: p.Egress,
		EncryptedNetworks: p.EncryptedNetworks}
	if p.WsproxyAPIToken != nil {
		out.WsproxyAPIToken = new(seal.Secret(*p.WsproxyAPIToken))
	}
	var err error
	if out.DriverOpts, err = options("driver_opts", p.DriverOpts); err != nil {
		return out, err
	}
	out.SchedulerOpts, err = options("scheduler_opts", p.SchedulerOpts)
	return out, err
}

// options reads a JSONString argument that must hold an object; nil when it is absent.
func options(name string, text *string) (map[string]any, error) {
	if text == nil || *text == "" || *text == "null" {
		return nil, nil
	}
	m := map[string]any{}
	if err := json.Unmarshal([]byte(*text), &m); err != nil {
		return nil, fault.Invalidf("%s is not a JSON object in a text", name).WithCause(err).WithNext(`pass for example "{}"`)
	}
	return m, nil
}

func (m mutations) DeleteScalingGroup(ctx context.Context, name string) (*model.MutationReply, error) {
	return reply(m.resources.DeleteGroup(ctx, m.who(ctx), name))
}

func (m mutations) associate(ctx context.Context, name string, u resource.GroupUser) (*model.MutationReply, error) {
	return reply(m.resources.AssociateGroup(ctx, m.who(ctx), name, u))
}

func (m mutations) disassociate(ctx context.Context, name string, u resource.GroupUser) (*model.MutationReply, error) {
	return reply(m.resources.DisassociateGroup(ctx, m.who(ctx), name, u))
}

func (m mutations) AssociateScalingGroupWithDomain(ctx context.Context, name, domain string) (*model.MutationReply, error) {
	return m.associate(ctx, name, resource.GroupUser{Domain: domain})
}

func (m mutations) AssociateScalingGroupWithUserGroup(ctx context.Context, name, project string) (*model.MutationReply, error) {
	id, err := uuid("user_group", project)
	if err != nil {
		return reply(err)
	}
	return m.associate(ctx, name, resource.GroupUser{Project: cluster.ProjectID(id)})
}

func (m mutations) AssociateScalingGroupWithKeypair(ctx context.Context, name, key string) (*model.MutationReply, error) {
	return m.associate(ctx, name, resource.GroupUser{Keypair: cluster.AccessKey(key)})
}

func (m mutations) DisassociateScalingGroupWithDomain(ctx context.Context, name, domain string) (*model.MutationReply, error) {
	return m.disassociate(ctx, name, resource.GroupUser{Domain: domain})
}

func (m mutations) DisassociateScalingGroupWithUserGroup(ctx context.Context, name, project string) (*model.MutationReply, error) {
	id, err := uuid("user_group", project)
	if err != nil {
		return reply(err)
	}
	return m.disassociate(ctx, name, resource.GroupUser{Project: cluster.ProjectID(id)})
}

func (m mutations) DisassociateScalingGroupWithKeypair(ctx context.Context, name, key string) (*model.MutationReply, error) {
	return m.disassociate(ctx, name, resource.GroupUser{Keypair: cluster.AccessKey(key)})
}

func (m mutations) DisassociateAllScalingGroupsWithDomain(ctx context.Context, domain string) (*model.MutationReply, error) {
	return m.disassociate(ctx, "", resource.GroupUser{Domain: domain})
}

func (m mutations) DisassociateAllScalingGroupsWithGroup(ctx context.Context, project string) (*model.MutationReply, error) {
	id, err := uuid("user_group", project)
	if err != nil {
		return reply(err)
	}
	return m.disassociate(ctx, "", resource.GroupUser{Project: cluster.ProjectID(id)})
}
