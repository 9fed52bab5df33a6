package graphapi

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/tenancy"
)

func (q queries) KeypairResourcePolicy(ctx context.Context, name *string) (*model.KeyPairResourcePolicy, error) {
	p, err := orNil(q.tenancy.GetKeypairPolicy(ctx, q.who(ctx), value(name)))
	if p == nil || err != nil {
		return nil, err
	}
	return toPolicy(p), nil
}

func (q queries) KeypairResourcePolicies(ctx context.Context) ([]*model.KeyPairResourcePolicy, error) {
	all, err := q.tenancy.ListKeypairPolicies(ctx, q.who(ctx))
	return convert(all, toPolicy), err
}

func (q queries) KeypairResourcePolicyList(
	ctx context.Context, limit, offset int, filter, order *string,
) (*model.KeyPairResourcePolicyList, error) {
	p, err := q.tenancy.PageKeypairPolicies(ctx, q.who(ctx), page(filter, order, limit, offset))
	if err != nil {
		return nil, err
	}
	return &model.KeyPairResourcePolicyList{Items: convert(p.Items, toPolicy), TotalCount: &p.Total}, nil
}

// toPolicy renders a policy; the limits of folders are those of an old kind that clients still ask for.
func toPolicy(p *tenancy.KeypairPolicy) *model.KeyPairResourcePolicy {
	m := &model.KeyPairResourcePolicy{
		Name: &p.Name, CreatedAt: &p.CreatedAt, DefaultForUnspecified: &p.DefaultForUnspecified,
		TotalResourceSlots: slotsText(p.TotalSlots), MaxSessionLifetime: &p.MaxSessionLifetime,
		MaxConcurrentSessions: &p.MaxConcurrentSessions, MaxConcurrentSftpSessions: &p.MaxConcurrentSFTP,
		MaxContainersPerSession: &p.MaxContainers, MaxPendingSessionCount: p.MaxPendingSessions, MaxPriority: p.MaxPriority,
		IdleTimeout: &p.IdleTimeout, AllowedVfolderHosts: jsonObject(p.AllowedHosts), MaxVfolderCount: new(int), MaxVfolderSize: new(int64),
		MaxQuotaScopeSize: new(int64),
	}
	if p.MaxPendingSlots != nil {
		m.MaxPendingSessionResourceSlots = slotsText(p.MaxPendingSlots)
	}
	return m
}

func (m mutations) ModifyKeypairResourcePolicy(
	ctx context.Context, name string, p model.ModifyKeyPairResourcePolicyInput,
) (*model.MutationReply, error) {
	props, err := keypairPolicyProps(p)
	if err == nil {
		err = m.tenancy.ModifyKeypairPolicy(ctx, m.who(ctx), name, props)
	}
	return reply(err)
}

func (m mutations) CreateKeypairResourcePolicy(
	ctx context.Context, name string, p model.CreateKeyPairResourcePolicyInput,
) (*model.CreateKeyPairResourcePolicyReply, error) {
	props, err := keypairPolicyProps(model.ModifyKeyPairResourcePolicyInput{
		DefaultForUnspecified: &p.DefaultForUnspecified, TotalResourceSlots: p.TotalResourceSlots, MaxSessionLifetime: p.MaxSessionLifetime,
		MaxConcurrentSessions: &p.MaxConcurrentSessions, MaxConcurrentSftpSessions: p.MaxConcurrentSftpSessions,
		MaxContainersPerSession: &p.MaxContainersPerSession, MaxPendingSessionCount: p.MaxPendingSessionCount,
		MaxPendingSessionResourceSlots: p.MaxPendingSessionResourceSlots, MaxPriority: p.MaxPriority, IdleTimeout: &p.IdleTimeout,
		AllowedVfolderHosts: p.AllowedVfolderHosts})
	if err == nil {
		err = m.tenancy.CreateKeypairPolicy(ctx, m.who(ctx), name, props)
	}
	r, err := reply(err)
	if err != nil {
		return nil, err
	}
	out := &model.CreateKeyPairResourcePolicyReply{Ok: r.Ok, Msg: r.Msg}
	if *r.Ok {
		made, err := m.tenancy.GetKeypairPolicy(ctx, m.who(ctx), name)
		if err != nil {
			return nil, err
		}
		out.ResourcePolicy = toPolicy(made)
	}
	return out, nil
}

func (m mutations) DeleteKeypairResourcePolicy(ctx context.Context, name string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteKeypairPolicy(ctx, m.who(ctx), name))
}

func (m mutations) CreateUserResourcePolicy(
	ctx context.Context, name string, p model.CreateUserResourcePolicyInput,
) (*model.CreateUserResourcePolicyReply, error) {
	r, err := reply(m.tenancy.CreateUserPolicy(ctx, m.who(ctx), name, userPolicyProps(model.ModifyUserResourcePolicyInput(p))))
	if err != nil {
		return nil, err
	}
	out := &model.CreateUserResourcePolicyReply{Ok: r.Ok, Msg: r.Msg}
	if *r.Ok {
		out.ResourcePolicy, err = queries(m).UserResourcePolicy(ctx, &name)
	}
	return out, err
}

// either is the newer of two fields of one meaning, or the older.
func either[T any](newer, older *T) *T {
	if newer != nil {
		return newer
	}
	return older
}

func userPolicyProps(p model.ModifyUserResourcePolicyInput) tenancy.PolicyProps {
	return tenancy.PolicyProps{MaxFolders: p.MaxVfolderCount, MaxScopeBytes: either(p.MaxQuotaScopeSize, p.MaxVfolderSize),
		MaxModelSessions: p.MaxSessionCountPerModelSession, MaxImages: p.MaxCustomizedImageCount,
		MaxLogins: p.MaxConcurrentLogins}
}

func (m mutations) ModifyUserResourcePolicy(
	ctx context.Context, name string, p model.ModifyUserResourcePolicyInput,
) (*model.MutationReply, error) {
	return reply(m.tenancy.ModifyUserPolicy(ctx, m.who(ctx), name, userPolicyProps(p)))
}

func (m mutations) DeleteUserResourcePolicy(ctx context.Context, name string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteUserPolicy(ctx, m.who(ctx), name))
}

func projectPolicyProps(p model.ModifyProjectResourcePolicyInput) tenancy.PolicyProps {
	return tenancy.PolicyProps{MaxFolders: p.MaxVfolderCount, MaxScopeBytes: either(p.MaxQuotaScopeSize, p.MaxVfolderSize),
		MaxNetworks: p.MaxNetworkCount}
}

func (m mutations) CreateProjectResourcePolicy(
	ctx context.Context, name string, p model.CreateProjectResourcePolicyInput,
) (*model.CreateProjectResourcePolicyReply, error) {
	r, err := reply(m.tenancy.CreateProjectPolicy(ctx, m.who(ctx), name, projectPolicyProps(model.ModifyProjectResourcePolicyInput(p))))
	if err != nil {
		return nil, err
	}
	out := &model.CreateProjectResourcePolicyReply{Ok: r.Ok, Msg: r.Msg}
	if *r.Ok {
		out.ResourcePolicy, err = queries(m).ProjectResourcePolicy(ctx, name)
	}
	return out, err
}

func (m mutations) ModifyProjectResourcePolicy(
	ctx context.Context, name string, p model.ModifyProjectResourcePolicyInput,
) (*model.MutationReply, error) {
	return reply(m.tenancy.ModifyProjectPolicy(ctx, m.who(ctx), name, projectPolicyProps(p)))
}

func (m mutations) DeleteProjectResourcePolicy(ctx context.Context, name string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteProjectPolicy(ctx, m.who(ctx), name))
}

// keypairPolicyProps reads what an input sets.
func keypairPolicyProps(p model.ModifyKeyPairResourcePolicyInput) (tenancy.KeypairPolicyProps, error) {
	props := tenancy.KeypairPolicyProps{
		DefaultForUnspecified: p.DefaultForUnspecified, MaxSessionLifetime: p.MaxSessionLifetime,
		MaxConcurrentSessions: p.MaxConcurrentSessions, MaxConcurrentSFTP: p.MaxConcurrentSftpSessions,
		MaxPendingSessions: p.MaxPendingSessionCount, MaxPriority: p.MaxPriority, MaxContainers: p.MaxContainersPerSession,
	}
	if p.IdleTimeout != nil {
		props.IdleTimeout = new(int(*p.IdleTimeout))
	}
	var err error
	if props.AllowedHosts, err = options("allowed_vfolder_hosts", p.AllowedVfolderHosts); err != nil {
		return props, err
	}
	if props.TotalSlots, err = amounts("total_resource_slots", p.TotalResourceSlots); err != nil {
		return props, err
	}
	props.MaxPendingSlots, err = amounts("max_pending_session_resource_slots", p.MaxPendingSessionResourceSlots)
	return props, err
}

// amounts reads slots as they are written: texts or numbers.
func amounts(name string, text *string) (map[string]string, error) {
	m, err := options(name, text)
	if m == nil || err != nil {
		return nil, err
	}
	out := make(map[string]string, len(m))
	for slot, v := range m {
		switch v := v.(type) {
		case nil:
		case string:
			out[slot] = v
		case float64:
			b, err := json.Marshal(v)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			out[slot] = string(b)
		default:
			return nil, fault.Invalidf("%s of %s is not an amount", name, slot).WithNext(`write for example {"cpu":"4","mem":"8g"}`)
		}
	}
	return out, nil
}
