package tenancy

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Project is a group of users of one domain.
type Project struct {
	ID            cluster.ProjectID
	Name          string
	Description   *string
	IsActive      bool
	CreatedAt     time.Time
	ModifiedAt    time.Time
	Domain        string
	TotalSlots    cluster.Slots
	AllowedHosts  map[string]any
	IntegrationID *string
	Type          string
}

func projectView(r dbgen.Project) *Project {
	return &Project{ID: cluster.ProjectID(r.ID), Name: r.Name, Description: r.Description, IsActive: r.IsActive, CreatedAt: r.CreatedAt.UTC(),
		ModifiedAt: r.ModifiedAt.UTC(), Domain: r.DomainName, TotalSlots: r.TotalResourceSlots, AllowedHosts: r.AllowedVfolderHosts, IntegrationID: r.IntegrationID, Type: r.Type}
}

// FindProject finds a project by id, or by name within a domain, for whoever asks. A name may look like an id.
func (s *Service) FindProject(ctx context.Context, ref, domain string) (dbgen.Project, error) {
	id, byID := cluster.CanonicalUUID(ref)
	if !byID {
		id = zeroUUID
	}
	p, err := s.d.Store.FindProject(ctx, byID, id, ref, domain)
	if store.Missing(err) && byID {
		p, err = s.d.Store.FindProject(ctx, false, id, ref, domain)
	}
	if store.Missing(err) {
		return p, authz.NotFound(projectNoun, ref)
	}
	if err != nil {
		return p, fmt.Errorf("find project %s: %w", ref, err)
	}
	return p, nil
}

// GetProject finds a project by id or by name within a domain ("" is the actor's): one of the actor's or administrated ones.
func (s *Service) GetProject(ctx context.Context, a authz.Actor, ref, domain string) (*Project, error) {
	if domain == "" {
		domain = a.Domain
	}
	p, err := s.VisibleProject(ctx, a, ref, domain)
	if err != nil {
		return nil, err
	}
	return projectView(p), nil
}

// VisibleProject is GetProject for the other nouns: it returns the row.
func (s *Service) VisibleProject(ctx context.Context, a authz.Actor, ref, domain string) (dbgen.Project, error) {
	if err := authz.Authenticated(a); err != nil {
		return dbgen.Project{}, err
	}
	p, err := s.FindProject(ctx, ref, domain)
	if err != nil {
		return p, err
	}
	if !a.Member(cluster.ProjectID(p.ID)) && !a.DomainAdmin(p.DomainName) && !a.Monitor() {
		return p, authz.NotFound(projectNoun, ref)
	}
	return p, nil
}

// ListProjects lists projects of a domain ("" is the actor's; superadmins get all): those that the actor may see.
func (s *Service) ListProjects(ctx context.Context, a authz.Actor, domain string) ([]*Project, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	var rows []dbgen.Project
	var err error
	switch {
	case (a.Superadmin() || a.Monitor()) && domain == "":
		rows, err = s.d.Store.ListProjects(ctx, nil)
	case a.Monitor() || a.DomainAdmin(domain) || domain == "" && a.DomainAdmin(a.Domain):
		if domain == "" {
			domain = a.Domain
		}
		rows, err = s.d.Store.ListProjects(ctx, &domain)
	default:
		rows, err = s.d.Store.ListProjectsOf(ctx, string(a.UserID))
	}
	if err != nil {
		return nil, fmt.Errorf("read projects: %w", err)
	}
	out := []*Project{}
	for _, r := range rows {
		if domain == "" || r.DomainName == domain {
			out = append(out, projectView(r))
		}
	}
	return out, nil
}
