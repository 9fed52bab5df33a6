package service

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// findProject finds a project by id, or by name within a domain, for whoever asks.
func (s *Service) findProject(ctx context.Context, ref, domain string) (dbgen.Project, error) {
	id, byID := cluster.CanonicalUUID(ref)
	if !byID {
		id = zeroUUID
	}
	p, err := s.d.Store.FindProject(ctx, byID, id, ref, domain)
	if store.Missing(err) {
		return p, authz.NotFound("user group (or project)", ref)
	}
	if err != nil {
		return p, fmt.Errorf("find project %s: %w", ref, err)
	}
	return p, nil
}

const zeroUUID = "00000000-0000-0000-0000-000000000000"
