package service

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
)

var imageFields = map[string]listField{
	"id": {"i.id::text", fieldText}, "name": {"i.reference", fieldText}, "registry": {"i.registry", fieldText}, "project": {"i.project", fieldText},
	"tag": {"i.tag", fieldText}, "architecture": {"i.architecture", fieldText}, "digest": {"i.digest", fieldText}, "size_bytes": {"i.size_bytes", fieldNumber},
	"created_at": {"i.created_at", fieldTime}, "last_used_at": {"i.last_used_at", fieldTime}, "status": {"i.status", fieldText},
}

// ListImages lists alive images.
func (s *Service) ListImages(ctx context.Context, a Actor, q ListQuery) (Page[*Image], error) {
	if err := authz.Authenticated(a); err != nil {
		return Page[*Image]{}, err
	}
	l := &listSpec{from: "images i", key: "i.id::text", fields: imageFields, order: "i.reference", where: []string{"i.status = 'ALIVE'"}}
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
