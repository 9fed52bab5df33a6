package tenancy

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// Domain is a tenant.
type Domain struct {
	Name              string
	Description       *string
	IsActive          bool
	CreatedAt         time.Time
	ModifiedAt        time.Time
	TotalSlots        cluster.Slots
	AllowedHosts      map[string]any
	AllowedRegistries []string
	IntegrationID     *string
}

func domainView(r dbgen.Domain) *Domain {
	return &Domain{Name: r.Name, Description: r.Description, IsActive: r.IsActive, CreatedAt: r.CreatedAt.UTC(),
		ModifiedAt: r.ModifiedAt.UTC(),
		TotalSlots: r.TotalResourceSlots, AllowedHosts: r.AllowedVfolderHosts, AllowedRegistries: r.AllowedDockerRegistries,
		IntegrationID: r.IntegrationID}
}

// GetDomain returns a domain; "" is the actor's own, the only one that most actors may see.
func (s *Service) GetDomain(ctx context.Context, a authz.Actor, name string) (*Domain, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if name == "" {
		name = a.Domain
	}
	if err := authz.Domains.Check(a, authz.See, authz.Object{Name: name, Domain: name}); err != nil {
		return nil, err
	}
	r, err := s.d.Store.GetDomain(ctx, name)
	if store.Missing(err) {
		return nil, authz.NotFound(domainNoun, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read domain %s: %w", name, err)
	}
	return domainView(r), nil
}

// ListDomains lists all domains for superadmins and monitors, the actor's own otherwise.
func (s *Service) ListDomains(ctx context.Context, a authz.Actor) ([]*Domain, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	var b list.Builder
	rows, err := s.d.Store.DB().Query(ctx, "SELECT d.* FROM "+facts.Domains.From+" WHERE "+facts.Domains.Where(a, authz.See, b.Arg)+
		" ORDER BY d.name", b.Args...)
	if err != nil {
		return nil, fmt.Errorf("read domains: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dbgen.Domain])
	if err != nil {
		return nil, fmt.Errorf("read domains: %w", err)
	}
	out := []*Domain{}
	for _, r := range found {
		out = append(out, domainView(r))
	}
	return out, nil
}
