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

var domainFields = list.Fields{
	"name": list.Text("d.name"), "description": list.Text("d.description"), "is_active": list.Bool("d.is_active"),
	"created_at": list.Time("d.created_at"), "modified_at": list.Time("d.modified_at"), "integration_id": list.Text("d.integration_id"),
}

// PageDomains is one page of the domains that the actor may see.
func (s *Service) PageDomains(ctx context.Context, a authz.Actor, q list.Query) (list.Page[*Domain], error) {
	return pageOf(ctx, s, a, facts.Domains, domainFields, q, s.d.Store.DomainsByName,
		func(r dbgen.Domain) (string, *Domain) { return r.Name, domainView(r) })
}

// pageOf reads a page of what is known by its name: its keys first, then their rows.
func pageOf[R, V any](
	ctx context.Context, s *Service, a authz.Actor, src facts.Source, fields list.Fields, q list.Query,
	byName func(context.Context, []string) ([]R, error), view func(R) (string, V),
) (list.Page[V], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[V]{}, err
	}
	l := &list.Spec{From: src.From, Key: src.Key, Fields: fields, Order: src.Key}
	l.Where(src.Where(a, authz.See, l.Arg))
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), q)
	if err != nil {
		return list.Page[V]{}, err
	}
	found, err := byName(ctx, keys)
	if err != nil {
		return list.Page[V]{}, fmt.Errorf("read a page of %s: %w", src.From, err)
	}
	views := map[string]V{}
	for _, r := range found {
		name, v := view(r)
		views[name] = v
	}
	return list.Page[V]{Items: list.InOrder(keys, views), Total: total}, nil
}
