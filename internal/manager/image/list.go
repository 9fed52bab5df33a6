package image

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

var imageFields = list.Fields{
	"id": list.Text("i.id::text"), "name": list.Text("i.reference"), "registry": list.Text("i.registry"), "project": list.Text("i.project"),
	"tag": list.Text("i.tag"), "architecture": list.Text("i.architecture"), "digest": list.Text("i.digest"),
	"size_bytes": list.Number("i.size_bytes"),
	"scope":      list.Text("i.scope"),
	"alias":      list.Text("(SELECT string_agg(a.alias, ' ' ORDER BY a.alias) FROM image_aliases a WHERE a.image_id = i.id)"),
	"created_at": list.Time("i.created_at"), "last_used_at": list.Time("i.last_used_at"), "status": list.Text("i.status"),
}

// keptCounts are where the number of images is kept, as far as scope, registry and the owner's domain say who sees them. Whose an image is
// is not known there.
const keptCounts = `SELECT coalesce(sum(i.n), 0)::bigint FROM (SELECT c.kind AS scope, c.registry, c.status, c.domain_name,
	c.owner_role, c.n,
	NULL::uuid AS owner_id, NULL::uuid AS project_id FROM list_counts c WHERE c.list = 'images') i
CROSS JOIN LATERAL (SELECT i.domain_name, i.owner_role AS role) u CROSS JOIN LATERAL (SELECT NULL::text AS domain_name) p WHERE true`

// counts are where the number of images that an actor sees is kept: what is for everybody and what the actor administrates, and besides
// those that the actor and the actor's projects have.
func counts(l *list.Spec, a authz.Actor) []string {
	if a.Role != authz.RoleUser && a.Role != authz.RoleAdmin {
		return []string{keptCounts}
	}
	me, projects := l.Arg(string(a.UserID))+"::uuid", l.Arg(store.Texts(a.Projects))+"::uuid[]"
	theirs := "SELECT count(*) FROM " + facts.Images.From + ` WHERE i.scope <> 'global' AND i.id IN (SELECT x.id FROM images x
		WHERE x.owner_id = ` + me +
		` UNION SELECT x.id FROM images x WHERE x.project_id = ANY(` + projects + "))"
	if a.Role == authz.RoleAdmin {
		theirs += " AND (coalesce(u.domain_name, p.domain_name) = " + l.Arg(a.Domain) + " AND coalesce(u.role, '') <> 'superadmin') IS NOT TRUE"
	}
	return []string{keptCounts, theirs}
}

// List lists alive images that the actor may see.
func (s *Service) List(ctx context.Context, a authz.Actor, q list.Query) (list.Page[*Image], error) {
	return s.list(ctx, a, q, false)
}

// Customized lists the images that the actor made of sessions.
func (s *Service) Customized(ctx context.Context, a authz.Actor, q list.Query) (list.Page[*Image], error) {
	return s.list(ctx, a, q, true)
}

func (s *Service) list(ctx context.Context, a authz.Actor, q list.Query, own bool) (list.Page[*Image], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[*Image]{}, err
	}
	l := &list.Spec{From: facts.Images.From, Key: facts.Images.Key, Fields: imageFields, Order: "i.reference"}
	l.Where("i.status = 'ALIVE'")
	l.Where(facts.Images.Where(a, authz.See, l.Arg))
	if own {
		l.Where("i.origin = 'commit' AND i.owner_id = " + l.Arg(string(a.UserID)) + "::uuid")
	} else {
		l.Counts = func() []string { return counts(l, a) }
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), q)
	if err != nil {
		return list.Page[*Image]{}, err
	}
	rows, err := s.d.Store.ImagesByID(ctx, keys)
	if err != nil {
		return list.Page[*Image]{}, fmt.Errorf("read images: %w", err)
	}
	views, err := s.imageViews(ctx, rows)
	if err != nil {
		return list.Page[*Image]{}, err
	}
	byID := map[cluster.ImageID]*Image{}
	for _, v := range views {
		byID[v.ID] = v
	}
	return list.Page[*Image]{Items: list.InOrder(keys, byID), Total: total}, nil
}
