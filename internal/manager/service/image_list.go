package service

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/minilang"
	"berth.dev/berth/internal/manager/store/facts"
)

var imageFields = minilang.Fields{
	"id": minilang.Text("i.id::text"), "name": minilang.Text("i.reference"), "registry": minilang.Text("i.registry"), "project": minilang.Text("i.project"),
	"tag": minilang.Text("i.tag"), "architecture": minilang.Text("i.architecture"), "digest": minilang.Text("i.digest"), "size_bytes": minilang.Number("i.size_bytes"),
	"created_at": minilang.Time("i.created_at"), "last_used_at": minilang.Time("i.last_used_at"), "status": minilang.Text("i.status"),
}

// ListImages lists alive images that the actor may see.
func (s *Service) ListImages(ctx context.Context, a Actor, q ListQuery) (Page[*Image], error) {
	if err := authz.Authenticated(a); err != nil {
		return Page[*Image]{}, err
	}
	l := &listSpec{from: "images i", key: "i.id::text", fields: imageFields, order: "i.reference", where: []string{"i.status = 'ALIVE'"}}
	l.where = append(l.where, facts.Images.Where(a, authz.See, l.b.Arg))
	keys, total, err := s.page(ctx, l, q)
	if err != nil {
		return Page[*Image]{}, err
	}
	rows, err := s.d.Store.ImagesByID(ctx, keys)
	if err != nil {
		return Page[*Image]{}, fmt.Errorf("read images: %w", err)
	}
	views, err := s.imageViews(ctx, rows)
	if err != nil {
		return Page[*Image]{}, err
	}
	byID := map[cluster.ImageID]*Image{}
	for _, v := range views {
		byID[v.ID] = v
	}
	return Page[*Image]{Items: inOrder(keys, byID), Total: total}, nil
}
