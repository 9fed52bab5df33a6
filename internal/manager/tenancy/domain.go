package tenancy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
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
	rows, err := s.d.Store.ListDomains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read domains: %w", err)
	}
	out := []*Domain{}
	for _, r := range rows {
		if authz.Domains.May(a, authz.See, authz.Object{Domain: r.Name}) {
			out = append(out, domainView(r))
		}
	}
	return out, nil
}

// maxRegistries bounds the list of a domain.
const maxRegistries = 100

// AllowRegistries replaces the registries whose images the sessions of a domain may run, besides images that are local to the
// agents (superadmins).
func (s *Service) AllowRegistries(ctx context.Context, a authz.Actor, domain string, registries []string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "domain.allow-registries", domain)
	defer end(&err)
	if err := authz.Domains.Need(a, authz.Administer, authz.Object{Domain: domain}, "change what domains allow"); err != nil {
		return err
	}
	if len(registries) > maxRegistries {
		return fault.Invalidf("a domain allows %d registries at most, not %d", maxRegistries, len(registries))
	}
	for _, r := range registries {
		if r == "" || len(r) > 255 || store.Text(r) != r || strings.ContainsAny(r, "/ \t\n") {
			return fault.Invalidf("%.80q is no registry", r).WithNext("write host or host:port, as references of images begin")
		}
	}
	n, err := s.d.Store.SetRegistriesOfDomain(ctx, append([]string{}, registries...), domain)
	if err != nil {
		return fmt.Errorf("change the registries of domain %s: %w", domain, err)
	}
	if n == 0 {
		return authz.NotFound(domainNoun, domain)
	}
	return nil
}
