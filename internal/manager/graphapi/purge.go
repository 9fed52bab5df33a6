package graphapi

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/tenancy/purge"
)

func (q queries) PurgePreview(ctx context.Context, kind, ref string, shared, contents, end *bool) (*model.PurgePreview, error) {
	p, err := q.purges.Preview(ctx, q.who(ctx), purge.Kind(kind), ref,
		purge.Options{PurgeShared: value(shared), Contents: value(contents), EndSessions: value(end)})
	if err != nil {
		return nil, err
	}
	return &model.PurgePreview{Name: &p.Name, DomainName: &p.Domain, Refusal: optional(p.Refusal),
		Items: convert(p.Items, func(i purge.Item) *model.PurgeItem {
			return &model.PurgeItem{What: &i.What, Count: &i.Count, Names: texts(i.Names), Fate: &i.Fate}
		})}, nil
}

func (q queries) Purges(ctx context.Context) ([]*model.PurgeTask, error) {
	all, err := q.purges.List(ctx, q.who(ctx))
	return convert(all, func(p purge.Purge) *model.PurgeTask {
		return &model.PurgeTask{TaskID: &p.ID, Kind: new(string(p.Kind)), Name: &p.Name, DomainName: &p.Domain,
			Message: &p.Message, Done: &p.Done}
	}), err
}

// purge begins a purge; the answer says that it goes on in the background.
func (m mutations) purge(ctx context.Context, kind purge.Kind, ref string, o purge.Options) (*model.MutationReply, error) {
	p, err := m.purges.Begin(ctx, m.who(ctx), kind, ref, o)
	if err != nil {
		return reply(err)
	}
	return &model.MutationReply{Ok: new(true), Msg: new(fmt.Sprintf("%s %s is being purged (task %s)", p.Kind, p.Name, p.ID))}, nil
}

func (m mutations) PurgeUser(ctx context.Context, email string, p model.PurgeUserInput) (*model.MutationReply, error) {
	return m.purge(ctx, purge.User, email, purge.Options{PurgeShared: value(p.PurgeSharedVfolders), EndSessions: value(p.EndSessions)})
}

func (m mutations) PurgeGroup(ctx context.Context, id string, end *bool) (*model.MutationReply, error) {
	ref, err := uuid("gid", id)
	if err != nil {
		return reply(err)
	}
	return m.purge(ctx, purge.Project, ref, purge.Options{EndSessions: value(end)})
}

func (m mutations) PurgeDomain(ctx context.Context, name string, contents, end *bool) (*model.MutationReply, error) {
	return m.purge(ctx, purge.Domain, name, purge.Options{Contents: value(contents), EndSessions: value(end)})
}
