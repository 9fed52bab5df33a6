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
		ModifiedAt: r.ModifiedAt.UTC(), Domain: r.DomainName, TotalSlots: r.TotalResourceSlots, AllowedHosts: r.AllowedVfolderHosts,
		IntegrationID: r.IntegrationID, Type: r.Type}
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
	return p, authz.Projects.Check(a, authz.See, ProjectObject(p, ref))
}

// ProjectObject are the facts of a project that decide who may do what; name is how the caller calls it.
func ProjectObject(p dbgen.Project, name string) authz.Object {
	return authz.Object{Name: name, Project: cluster.ProjectID(p.ID), Domain: p.DomainName}
}

// ListProjects lists projects that the actor may see: of a domain, "" is the actor's. Superadmins and monitors get those of all
// domains for "", and everybody the own ones in other domains.
func (s *Service) ListProjects(ctx context.Context, a authz.Actor, domain string) ([]*Project, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	sql := "SELECT p.* FROM " + facts.Projects.From + " WHERE " + facts.Projects.Where(a, authz.See, arg)
	if domain != "" {
		sql += " AND p.domain_name = " + arg(domain)
	}
	rows, err := s.d.Store.DB().Query(ctx, sql+" ORDER BY p.domain_name, p.name", args...)
	if err != nil {
		return nil, fmt.Errorf("read projects: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dbgen.Project])
	if err != nil {
		return nil, fmt.Errorf("read projects: %w", err)
	}
	out := []*Project{}
	for _, r := range found {
		out = append(out, projectView(r))
	}
	return out, nil
}
