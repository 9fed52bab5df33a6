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

// toPolicy renders a policy; the limits of folders are those of an old kind that clients still ask for.
func toPolicy(p *tenancy.KeypairPolicy) *model.KeyPairResourcePolicy {
	m := &model.KeyPairResourcePolicy{
		Name: &p.Name, CreatedAt: &p.CreatedAt, DefaultForUnspecified: &p.DefaultForUnspecified,
		TotalResourceSlots: slotsText(p.TotalSlots), MaxSessionLifetime: &p.MaxSessionLifetime,
		MaxConcurrentSessions: &p.MaxConcurrentSessions, MaxConcurrentSftpSessions: &p.MaxConcurrentSFTP,
		MaxContainersPerSession: &p.MaxContainers, MaxPendingSessionCount: p.MaxPendingSessions, MaxPriority: p.MaxPriority,
		IdleTimeout: &p.IdleTimeout, AllowedVfolderHosts: jsonObject(p.AllowedHosts), MaxVfolderCount: new(int), MaxVfolderSize: new(int64),
	}
	if p.MaxPendingSlots != nil {
		m.MaxPendingSessionResourceSlots = slotsText(p.MaxPendingSlots)
	}
	return m
}

func (m mutations) ModifyKeypairResourcePolicy(
	ctx context.Context, name string, p model.ModifyKeyPairResourcePolicyInput,
) (*model.MutationReply, error) {
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
		return reply(err)
	}
	if props.TotalSlots, err = amounts("total_resource_slots", p.TotalResourceSlots); err != nil {
		return reply(err)
	}
	if props.MaxPendingSlots, err = amounts("max_pending_session_resource_slots", p.MaxPendingSessionResourceSlots); err != nil {
		return reply(err)
	}
	return reply(m.tenancy.ModifyKeypairPolicy(ctx, m.who(ctx), name, props))
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
