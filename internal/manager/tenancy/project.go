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
	Policy        string // resource policy of projects
	// ResourceGroups are the names of those that are given to the project itself, besides those of its domain.
	ResourceGroups []string
}

func projectView(r dbgen.Project) *Project {
	return &Project{ID: cluster.ProjectID(r.ID), Name: r.Name, Description: r.Description, IsActive: r.IsActive, CreatedAt: r.CreatedAt.UTC(),
		ModifiedAt: r.ModifiedAt.UTC(), Domain: r.DomainName, TotalSlots: r.TotalResourceSlots, AllowedHosts: r.AllowedVfolderHosts,
		IntegrationID: r.IntegrationID, Type: r.Type, Policy: r.ResourcePolicy, ResourceGroups: []string{}}
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
	view := projectView(p)
	return view, s.addGroups(ctx, []*Project{view})
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
	return out, s.addGroups(ctx, out)
}

// addGroups adds the names of resource groups to projects.
func (s *Service) addGroups(ctx context.Context, projects []*Project) error {
	ids := make([]string, len(projects))
	for i, p := range projects {
		ids[i] = string(p.ID)
	}
	rows, err := s.d.Store.GroupsOfProjects(ctx, ids)
	if err != nil {
		return fmt.Errorf("read the resource groups of projects: %w", err)
	}
	of := map[cluster.ProjectID][]string{}
	for _, r := range rows {
		of[cluster.ProjectID(r.ProjectID)] = append(of[cluster.ProjectID(r.ProjectID)], r.ResourceGroup)
	}
	for _, p := range projects {
		p.ResourceGroups = append(p.ResourceGroups, of[p.ID]...)
	}
	return nil
}

var projectFields = list.Fields{
	"id": list.Text("p.id::text"), "row_id": list.Text("p.id::text"), "name": list.Text("p.name"), "description": list.Text("p.description"),
	"is_active": list.Bool("p.is_active"), "created_at": list.Time("p.created_at"), "modified_at": list.Time("p.modified_at"),
	"domain_name": list.Text("p.domain_name"), "integration_id": list.Text("p.integration_id"),
	"resource_policy": list.Text("p.resource_policy"), "type": list.Text("upper(replace(p.type, '-', '_'))"),
}

// PageProjects is one page of the projects that the actor may see, whatever domain they are in.
func (s *Service) PageProjects(ctx context.Context, a authz.Actor, q list.Query) (list.Page[*Project], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[*Project]{}, err
	}
	l := &list.Spec{From: facts.Projects.From, Key: facts.Projects.Key, Fields: projectFields, Order: "p.created_at"}
	l.Where(facts.Projects.Where(a, authz.See, l.Arg))
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), q)
	if err != nil {
		return list.Page[*Project]{}, err
	}
	rows, err := s.d.Store.ProjectsByID(ctx, keys)
	if err != nil {
		return list.Page[*Project]{}, fmt.Errorf("read projects: %w", err)
	}
	views := map[cluster.ProjectID]*Project{}
	for _, r := range rows {
		views[cluster.ProjectID(r.ID)] = projectView(r)
	}
	items := list.InOrder(keys, views)
	return list.Page[*Project]{Items: items, Total: total}, s.addGroups(ctx, items)
}
