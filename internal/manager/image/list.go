package image

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

var imageFields = list.Fields{
	"id": list.Text("i.id::text"), "name": list.Text("i.reference"), "registry": list.Text("i.registry"), "project": list.Text("i.project"),
	"tag": list.Text("i.tag"), "architecture": list.Text("i.architecture"), "digest": list.Text("i.digest"),
	"size_bytes": list.Number("i.size_bytes"),
	"scope":      list.Text("i.scope"),
	"created_at": list.Time("i.created_at"), "last_used_at": list.Time("i.last_used_at"), "status": list.Text("i.status"),
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
