package service

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/minilang"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	projectNoun = "user group (or project)"
	userNoun    = "user"
	domainNoun  = "domain"
	zeroUUID    = "00000000-0000-0000-0000-000000000000"
)

// User is a person.
type User struct {
	ID                 cluster.UserID
	Username           string
	Email              string
	NeedPasswordChange bool
	FullName           string
	Description        string
	Status             string
	StatusInfo         *string
	CreatedAt          time.Time
	ModifiedAt         time.Time
	Domain             string
	Role               authz.Role
	ResourcePolicy     string
	Projects           []Project
	AllowedClientIP    []string
	TOTPActivated      bool
	SudoSession        bool
	MainAccessKey      cluster.AccessKey
}

// UserFilter narrows ListUsers.
type UserFilter struct {
	ListQuery
	Status  string
	Project cluster.ProjectID
	Domain  string
}

var userFields = minilang.Fields{
	"uuid": minilang.Text("u.id::text"), "username": minilang.Text("u.username"), "email": minilang.Text("u.email"),
	"need_password_change": minilang.Bool("u.need_password_change"), "full_name": minilang.Text("u.full_name"), "description": minilang.Text("u.description"),
	"is_active": minilang.Bool("(u.status = 'active')"), "status": minilang.Text("u.status"), "status_info": minilang.Text("u.status_info"),
	"created_at": minilang.Time("u.created_at"), "modified_at": minilang.Time("u.modified_at"), "domain_name": minilang.Text("u.domain_name"),
	"role": minilang.Text("u.role"), "resource_policy": minilang.Text("u.resource_policy"), "allowed_client_ip": minilang.Texts("u.allowed_client_ip"),
	"totp_activated": minilang.Bool("u.totp_activated"), "sudo_session_enabled": minilang.Bool("u.sudo_session_enabled"),
	"main_access_key": minilang.Text("u.main_access_key"),
}

// GetUser finds a user by email or id; "" is the actor.
func (s *Service) GetUser(ctx context.Context, a Actor, ref string) (*User, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if ref == "" {
		ref = string(a.UserID)
	}
	if id, ok := cluster.CanonicalUUID(ref); ok {
		ref = id
	}
	r, err := s.d.Store.UserByRef(ctx, ref)
	if store.Missing(err) {
		return nil, authz.NotFound(userNoun, ref)
	}
	if err != nil {
		return nil, fmt.Errorf("find user: %w", err)
	}
	o := authz.Owned{Noun: userNoun, Name: ref, UserID: cluster.UserID(r.ID), Domain: r.DomainName, OwnerRole: authz.Role(r.Role)}
	if err := authz.Read(a, o); err != nil {
		return nil, err
	}
	views, err := s.userViews(ctx, []dbgen.User{r})
	if err != nil {
		return nil, err
	}
	return views[o.UserID], nil
}

// ListUsers lists the actor, the domain for its administrators, all for superadmins.
func (s *Service) ListUsers(ctx context.Context, a Actor, f UserFilter) (Page[*User], error) {
	if err := authz.Authenticated(a); err != nil {
		return Page[*User]{}, err
	}
	l := &listSpec{from: "users u", key: "u.id::text", fields: userFields, order: "u.created_at"}
	restrict(l, a, "u.id", "u.domain_name", "u.role")
	if f.Status != "" {
		l.and("u.status = %s", f.Status)
	}
	if f.Domain != "" {
		l.and("u.domain_name = %s", f.Domain)
	}
	if f.Project != "" {
		l.and("EXISTS (SELECT 1 FROM project_members m WHERE m.user_id = u.id AND m.project_id::text = %s)", string(f.Project))
	}
	keys, total, err := s.page(ctx, l, f.ListQuery)
	if err != nil {
		return Page[*User]{}, err
	}
	rows, err := s.d.Store.UserViews(ctx, keys)
	if err != nil {
		return Page[*User]{}, fmt.Errorf("read users: %w", err)
	}
	views, err := s.userViews(ctx, rows)
	if err != nil {
		return Page[*User]{}, err
	}
	return Page[*User]{Items: inOrder(keys, views), Total: total}, nil
}

func (s *Service) userViews(ctx context.Context, rows []dbgen.User) (map[cluster.UserID]*User, error) {
	out := map[cluster.UserID]*User{}
	ids := []string{}
	for _, r := range rows {
		ids = append(ids, r.ID)
		v := &User{ID: cluster.UserID(r.ID), Username: r.Username, Email: r.Email, NeedPasswordChange: r.NeedPasswordChange, FullName: r.FullName,
			Description: r.Description, Status: r.Status, StatusInfo: r.StatusInfo, CreatedAt: r.CreatedAt.UTC(), ModifiedAt: r.ModifiedAt.UTC(), Domain: r.DomainName,
			Role: authz.Role(r.Role), ResourcePolicy: r.ResourcePolicy, Projects: []Project{}, AllowedClientIP: r.AllowedClientIp, TOTPActivated: r.TotpActivated,
			SudoSession: r.SudoSessionEnabled}
		if r.MainAccessKey != nil {
			v.MainAccessKey = cluster.AccessKey(*r.MainAccessKey)
		}
		out[v.ID] = v
	}
	projects, err := s.d.Store.ProjectsOfUsers(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read projects of users: %w", err)
	}
	for _, p := range projects {
		v := out[cluster.UserID(p.UserID)]
		v.Projects = append(v.Projects, *projectView(p.Project))
	}
	return out, nil
}

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
	return &Domain{Name: r.Name, Description: r.Description, IsActive: r.IsActive, CreatedAt: r.CreatedAt.UTC(), ModifiedAt: r.ModifiedAt.UTC(),
		TotalSlots: r.TotalResourceSlots, AllowedHosts: r.AllowedVfolderHosts, AllowedRegistries: r.AllowedDockerRegistries, IntegrationID: r.IntegrationID}
}

// GetDomain returns a domain; "" is the actor's own, the only one that most actors may see.
func (s *Service) GetDomain(ctx context.Context, a Actor, name string) (*Domain, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if name == "" {
		name = a.Domain
	}
	if name != a.Domain && authz.NeedReadAll(a, "look at domains") != nil {
		return nil, authz.NotFound(domainNoun, name)
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
func (s *Service) ListDomains(ctx context.Context, a Actor) ([]*Domain, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if authz.NeedReadAll(a, "list domains") != nil {
		own, err := s.GetDomain(ctx, a, "")
		if err != nil {
			return nil, err
		}
		return []*Domain{own}, nil
	}
	rows, err := s.d.Store.ListDomains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read domains: %w", err)
	}
	out := make([]*Domain, len(rows))
	for i, r := range rows {
		out[i] = domainView(r)
	}
	return out, nil
}

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

// findProject finds a project by id, or by name within a domain, for whoever asks.
func (s *Service) findProject(ctx context.Context, ref, domain string) (dbgen.Project, error) {
	id, byID := cluster.CanonicalUUID(ref)
	if !byID {
		id = zeroUUID
	}
	p, err := s.d.Store.FindProject(ctx, byID, id, ref, domain)
	if store.Missing(err) {
		return p, authz.NotFound(projectNoun, ref)
	}
	if err != nil {
		return p, fmt.Errorf("find project %s: %w", ref, err)
	}
	return p, nil
}

// GetProject finds a project by id or by name within a domain ("" is the actor's): one of the actor's or administrated ones.
func (s *Service) GetProject(ctx context.Context, a Actor, ref, domain string) (*Project, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if domain == "" {
		domain = a.Domain
	}
	p, err := s.findProject(ctx, ref, domain)
	if err != nil {
		return nil, err
	}
	if !a.Member(cluster.ProjectID(p.ID)) && !a.DomainAdmin(p.DomainName) && !a.Monitor() {
		return nil, authz.NotFound(projectNoun, ref)
	}
	return projectView(p), nil
}

// ListProjects lists projects of a domain ("" is the actor's; superadmins get all): those that the actor may see.
func (s *Service) ListProjects(ctx context.Context, a Actor, domain string) ([]*Project, error) {
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
