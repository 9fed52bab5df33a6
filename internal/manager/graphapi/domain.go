package graphapi

import (
	"context"
	"encoding/json"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/tenancy"
)

// hostsOf reads permissions by host; nil is no change.
func hostsOf(text *string) (map[string]any, error) {
	if text == nil {
		return nil, nil
	}
	var out folder.HostPermissions
	if err := json.Unmarshal([]byte(*text), &out); err != nil {
		return nil, fault.Invalidf("allowed_vfolder_hosts is not usable").WithCause(err).
			WithNext(`pass for example {"local:volume1":["mount-in-session","download-file"]} as a text`)
	}
	return out.Checked()
}

// domainProps reads what an input sets; what a new domain and a changed one have in common.
func domainProps(p model.ModifyDomainInput) (out tenancy.DomainProps, err error) {
	out = tenancy.DomainProps{Name: p.Name, Description: p.Description, Active: p.IsActive, IntegrationID: p.IntegrationID}
	if p.AllowedDockerRegistries != nil {
		list := []string{}
		for _, r := range p.AllowedDockerRegistries {
			list = append(list, value(r))
		}
		out.AllowedRegistries = &list
	}
	if out.AllowedHosts, err = hostsOf(p.AllowedVfolderHosts); err != nil {
		return out, err
	}
	out.TotalSlots, err = amounts("total_resource_slots", p.TotalResourceSlots)
	return out, err
}

// domainReply answers a mutation with the domain as it is now, for those who may still see it.
func (m mutations) domainReply(ctx context.Context, name string, err error) (*model.DomainReply, error) {
	r, fatal := reply(err)
	if fatal != nil {
		return nil, fatal
	}
	out := &model.DomainReply{Ok: r.Ok, Msg: r.Msg}
	if err == nil {
		if d, err := m.tenancy.GetDomain(ctx, m.who(ctx), name); err == nil {
			out.Domain = toDomain(d)
		}
	}
	return out, nil
}

func (m mutations) CreateDomain(ctx context.Context, name string, p model.DomainInput) (*model.DomainReply, error) {
	props, err := domainProps(model.ModifyDomainInput{Description: p.Description, IsActive: p.IsActive,
		TotalResourceSlots: p.TotalResourceSlots, AllowedVfolderHosts: p.AllowedVfolderHosts,
		AllowedDockerRegistries: p.AllowedDockerRegistries, IntegrationID: p.IntegrationID})
	if err == nil {
		_, err = m.tenancy.CreateDomain(ctx, m.who(ctx), name, props)
	}
	return m.domainReply(ctx, name, err)
}

func (m mutations) ModifyDomain(ctx context.Context, name string, p model.ModifyDomainInput) (*model.DomainReply, error) {
	props, err := domainProps(p)
	if err == nil {
		err = m.tenancy.ModifyDomain(ctx, m.who(ctx), name, props)
	}
	if p.Name != nil && err == nil {
		name = *p.Name
	}
	return m.domainReply(ctx, name, err)
}

func (m mutations) DeleteDomain(ctx context.Context, name string) (*model.MutationReply, error) {
	return reply(m.tenancy.DeleteDomain(ctx, m.who(ctx), name))
}
