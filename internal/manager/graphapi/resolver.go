package graphapi

import (
	"context"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/otp"
	"berth.dev/berth/internal/manager/tenancy/purge"
)

// maxList bounds the lists that the wire does not page.
const maxList = 100

type resolver struct {
	tenancy   *tenancy.Service
	otp       *otp.Service
	purges    *purge.Service
	resources *resource.Service
	images    *image.Service
	nodes     *node.Service
	folders   *folder.Service
	sessions  *session.Service
	idle      *idle.Service
	audit     *audit.Service
	actor     func(context.Context) (authz.Actor, bool)
}

type (
	queries   struct{ *resolver }
	mutations struct{ *resolver }
	sessions  struct{ *resolver }
	agents    struct{ *resolver }
)

func (r *resolver) Queries() gqlexec.QueriesResolver               { return queries{r} }
func (r *resolver) Mutations() gqlexec.MutationsResolver           { return mutations{r} }
func (r *resolver) ComputeSession() gqlexec.ComputeSessionResolver { return sessions{r} }
func (r *resolver) Agent() gqlexec.AgentResolver                   { return agents{r} }

// who is the caller; the zero actor is denied by every use case.
func (r *resolver) who(ctx context.Context) authz.Actor {
	a, _ := r.actor(ctx)
	return a
}

func value[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func convert[S, M any](in []S, to func(S) M) []M {
	out := make([]M, len(in))
	for i, s := range in {
		out[i] = to(s)
	}
	return out
}

func page(filter, order *string, limit, offset int) list.Query {
	return list.Query{Filter: value(filter), Order: value(order), Limit: limit, Offset: offset}
}

// orNil turns NotFound into null, the wire's answer to a look-up of something absent.
func orNil[T any](v *T, err error) (*T, error) {
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return v, err
}

// uuid reads a UUID argument in either of its spellings.
func uuid(name, text string) (string, error) {
	id, ok := cluster.CanonicalUUID(text)
	if !ok {
		return "", fault.Invalidf("%s %q is not a UUID", name, text).
			WithNext("pass 32 hexadecimal digits, with or without dashes")
	}
	return id, nil
}

func (q queries) Keypair(ctx context.Context, _, accessKey *string) (*model.KeyPair, error) {
	k, err := orNil(q.tenancy.GetKeypair(ctx, q.who(ctx), cluster.AccessKey(value(accessKey))))
	if k == nil || err != nil {
		return nil, err
	}
	return toKeypair(k), nil
}

func (q queries) Keypairs(ctx context.Context, domain, email *string, active *bool) ([]*model.KeyPair, error) {
	p, err := q.tenancy.ListKeypairs(ctx, q.who(ctx), tenancy.KeypairFilter{
		Query: list.Query{Limit: maxList}, Active: active, Domain: value(domain), Email: value(email)})
	return convert(p.Items, toKeypair), err
}

func (q queries) KeypairList(
	ctx context.Context, limit, offset int, filter, order, domain, email *string, active *bool,
) (*model.KeyPairList, error) {
	p, err := q.tenancy.ListKeypairs(ctx, q.who(ctx), tenancy.KeypairFilter{
		Query: page(filter, order, limit, offset), Active: active, Domain: value(domain), Email: value(email)})
	if err != nil {
		return nil, err
	}
	return &model.KeyPairList{Items: convert(p.Items, toKeypair), TotalCount: &p.Total}, nil
}

func (q queries) ComputeSession(ctx context.Context, id string) (*model.ComputeSession, error) {
	id, err := uuid("session id", id)
	if err != nil {
		return nil, err
	}
	s, err := loadSession(ctx, cluster.SessionID(id))
	if s == nil || err != nil {
		return nil, err
	}
	return toSession(s), nil
}

func (q queries) ComputeSessionList(
	ctx context.Context, limit, offset int, filter, order, domain, project, accessKey, status *string,
) (*model.ComputeSessionList, error) {
	f := session.Filter{
		Query: page(filter, order, limit, offset), Domain: value(domain), AccessKey: cluster.AccessKey(value(accessKey)),
		Project: cluster.ProjectID(value(project)),
	}
	for _, s := range strings.Split(value(status), ",") {
		if s = strings.TrimSpace(s); s != "" {
			f.Statuses = append(f.Statuses, strings.ToUpper(s))
		}
	}
	p, err := q.sessions.List(ctx, q.who(ctx), f)
	if err != nil {
		return nil, err
	}
	return &model.ComputeSessionList{Items: convert(remember(ctx, p.Items), toSession), TotalCount: &p.Total}, nil
}

func container(k session.Kernel) *model.ComputeContainer { return toContainer(&k) }

func (q queries) ComputeContainer(ctx context.Context, id string) (*model.ComputeContainer, error) {
	id, err := uuid("container id", id)
	if err != nil {
		return nil, err
	}
	p, err := q.sessions.ListKernels(
		ctx, q.who(ctx), session.KernelFilter{Kernel: cluster.KernelID(id), Query: list.Query{Limit: 1}},
	)
	if err != nil || len(p.Items) == 0 {
		return nil, err
	}
	return container(p.Items[0]), nil
}

func (q queries) ComputeContainerList(
	ctx context.Context, limit, offset int, filter, order *string, sessionID string, role *string,
) (*model.ComputeContainerList, error) {
	sessionID, err := uuid("session id", sessionID)
	if err != nil {
		return nil, err
	}
	p, err := q.sessions.ListKernels(
		ctx, q.who(ctx), session.KernelFilter{Session: cluster.SessionID(sessionID), Role: role, Query: page(filter, order, limit, offset)},
	)
	if err != nil {
		return nil, err
	}
	loadersOf(ctx).expectImages(p.Items)
	return &model.ComputeContainerList{Items: convert(p.Items, container), TotalCount: &p.Total}, nil
}

func (q queries) Agent(ctx context.Context, id string) (*model.Agent, error) {
	a, err := orNil(q.nodes.Get(ctx, q.who(ctx), cluster.AgentID(id)))
	if a == nil || err != nil {
		return nil, err
	}
	return toAgent(a), nil
}

func (q queries) AgentList(ctx context.Context, limit, offset int, filter, order, group, status *string) (*model.AgentList, error) {
	p, err := q.nodes.List(ctx, q.who(ctx), node.Filter{
		Query: page(filter, order, limit, offset), Status: value(status), ResourceGroup: value(group)})
	if err != nil {
		return nil, err
	}
	return &model.AgentList{Items: convert(rememberAgents(ctx, p.Items), toAgent), TotalCount: &p.Total}, nil
}

func (q queries) Agents(ctx context.Context, group, status *string) ([]*model.Agent, error) {
	p, err := q.nodes.List(ctx, q.who(ctx), node.Filter{
		Query: list.Query{Limit: maxList}, Status: value(status), ResourceGroup: value(group)})
	return convert(rememberAgents(ctx, p.Items), toAgent), err
}

func (q queries) Image(ctx context.Context, id, reference, architecture *string) (*model.Image, error) {
	ref := value(reference)
	arch := value(architecture)
	if id != nil {
		ref, arch = *id, ""
	}
	if ref == "" {
		return nil, fault.Invalidf("no image was named").WithNext("pass id or reference")
	}
	im, err := orNil(q.images.Get(ctx, q.who(ctx), ref, arch))
	if im == nil || err != nil {
		return nil, err
	}
	return toImage(im), nil
}

func (q queries) Images(ctx context.Context, installed, _ *bool) ([]*model.Image, error) {
	out, err := allImages(ctx, q.who(ctx), q.images.List)
	if installed != nil {
		out = slices.DeleteFunc(out, func(m *model.Image) bool { return *m.Installed != *installed })
	}
	return out, err
}

// CustomizedImages are those that the caller made of sessions.
func (q queries) CustomizedImages(ctx context.Context) ([]*model.Image, error) {
	return allImages(ctx, q.who(ctx), q.images.Customized)
}

func allImages(ctx context.Context, a authz.Actor,
	page func(context.Context, authz.Actor, list.Query) (list.Page[*image.Image], error)) ([]*model.Image, error) {
	out := []*model.Image{}
	for {
		p, err := page(ctx, a, list.Query{Limit: maxList, Offset: len(out)})
		if err != nil {
			return nil, err
		}
		out = append(out, convert(p.Items, toImage)...)
		if len(p.Items) == 0 || len(out) >= p.Total {
			return out, nil
		}
	}
}

func (q queries) ScalingGroup(ctx context.Context, name *string) (*model.ScalingGroup, error) {
	g, err := orNil(q.resources.GetGroup(ctx, q.who(ctx), value(name)))
	if g == nil || err != nil {
		return nil, err
	}
	return toResourceGroup(g), nil
}

func (q queries) ScalingGroups(ctx context.Context, name *string, active *bool) ([]*model.ScalingGroup, error) {
	groups, err := q.resources.ListGroups(ctx, q.who(ctx), active)
	if err != nil {
		return nil, err
	}
	if name != nil {
		groups = slices.DeleteFunc(slices.Clone(groups), func(g *resource.Group) bool { return g.Name != *name })
	}
	return convert(groups, toResourceGroup), nil
}

func (s sessions) StatusHistory(ctx context.Context, obj *model.ComputeSession) (*string, error) {
	times, err := loadersOf(ctx).times.load(ctx, cluster.SessionID(*obj.ID))
	if err != nil {
		return nil, err
	}
	return statusHistory(times), nil
}

func (s sessions) Dependencies(ctx context.Context, obj *model.ComputeSession) ([]*model.ComputeSession, error) {
	self, err := loadSession(ctx, cluster.SessionID(*obj.ID))
	if err != nil || self == nil {
		return []*model.ComputeSession{}, err
	}
	found, err := loadRelated(ctx, dependsOn(self))
	return convert(found, toSession), err
}

// dependsOn are the sessions that a session waits for.
func dependsOn(s *session.Session) []cluster.SessionID {
	ids := make([]cluster.SessionID, len(s.DependsOn))
	for i, d := range s.DependsOn {
		ids[i] = d.ID
	}
	return ids
}

func (a agents) ComputeContainers(ctx context.Context, obj *model.Agent, status *string) ([]*model.ComputeContainer, error) {
	items, err := loadersOf(ctx).kernels.load(ctx, cluster.AgentID(*obj.ID))
	if err != nil {
		return nil, err
	}
	if status != nil {
		items = slices.DeleteFunc(slices.Clone(items), func(k session.Kernel) bool { return string(k.Status) != *status })
	}
	return convert(items, container), nil
}

// reply turns the outcome of a mutation into the wire's ok/msg: denials and refusals are
// data there, not errors; only what is our own failure becomes a GraphQL error.
func reply(err error) (*model.MutationReply, error) {
	if err == nil {
		return &model.MutationReply{Ok: new(true), Msg: new("success")}, nil
	}
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Conflict, fault.Denied, fault.Invalid, fault.Exhausted:
		msg := wireWords(err, err.Error())
		if next := fault.NextOf(err); next != "" {
			msg += "; " + next
		}
		return &model.MutationReply{Ok: new(false), Msg: &msg}, nil
	}
	return nil, err
}

func (m mutations) AliasImage(ctx context.Context, alias, target string, architecture *string) (*model.MutationReply, error) {
	return reply(m.images.Alias(ctx, m.who(ctx), alias, target, value(architecture)))
}

func (m mutations) DealiasImage(ctx context.Context, alias string) (*model.MutationReply, error) {
	return reply(m.images.Dealias(ctx, m.who(ctx), alias))
}

func (m mutations) ForgetImage(ctx context.Context, reference, architecture string) (*model.MutationReply, error) {
	_, err := m.images.Forget(ctx, m.who(ctx), reference, architecture)
	return reply(err)
}

// ForgetImageByID takes a UUID or the relay id base64("ImageNode:<uuid>").
func (m mutations) ForgetImageByID(ctx context.Context, id string) (*model.MutationReply, error) {
	_, raw := fromGlobalID(id)
	uuid, ok := cluster.CanonicalUUID(raw)
	if !ok {
		return reply(image.NotFound(id))
	}
	_, err := m.images.Forget(ctx, m.who(ctx), uuid, "")
	return reply(err)
}

// UntagImageFromRegistry answers the wire's second half of deleting an image of a session. Such images are in no registry, and
// forgetting one deletes it where it lies: what is left to say is whether the caller may.
func (m mutations) UntagImageFromRegistry(ctx context.Context, id string) (*model.MutationReply, error) {
	return m.ForgetImageByID(ctx, id)
}

// ModifyComputeSession accepts a UUID or the relay id base64("compute_session_node:<uuid>").
func (m mutations) ModifyComputeSession(
	ctx context.Context, in model.ModifyComputeSessionInput,
) (*model.ModifyComputeSessionPayload, error) {
	_, ref := fromGlobalID(in.ID)
	id, err := uuid("session id", ref)
	if err != nil {
		return nil, err
	}
	s, err := m.sessions.Modify(ctx, m.who(ctx), cluster.SessionID(id), in.Name, in.Priority)
	if err != nil {
		return nil, err
	}
	return &model.ModifyComputeSessionPayload{Item: toSession(s), ClientMutationID: in.ClientMutationID}, nil
}
