package tenancy

import (
	"context"
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// The types of projects. The folders of a model store are for every member to add to.
const (
	typeGeneral    = "general"
	typeModelStore = "model-store"
)

// ProjectProps are what administrators set of a project; nil means the default when the project is made and no change later.
type ProjectProps struct {
	// Name is the new name of one that is there.
	Name, Description *string
	Active            *bool
	Domain            *string // of a new project; "" is the administrator's. It never changes.
	// Type is general or model-store, of a new project.
	Type           *string
	TotalSlots     map[string]string // as DomainProps has it
	AllowedHosts   map[string]any    // as DomainProps has it; they add to what the domain allows
	ResourcePolicy *string
	IntegrationID  *string
	// Members changes who belongs to it.
	Members *MemberChange
	Expect  Expect[dbgen.Project]
}

// changes reports whether more than the members change.
func (p ProjectProps) changes() bool { p.Members = nil; return !p.empty() }

func (p ProjectProps) empty() bool {
	return p.Name == nil && p.Description == nil && p.Active == nil && p.Domain == nil && p.Type == nil && p.TotalSlots == nil &&
		p.AllowedHosts == nil && p.ResourcePolicy == nil && p.IntegrationID == nil && p.Members == nil
}

// CreateProject makes a project without members (superadmins, and administrators of its domain).
func (s *Service) CreateProject(ctx context.Context, a authz.Actor, name string, p ProjectProps) (_ *Project, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project.create", name)
	defer end(&err)
	domain := a.Domain
	if p.Domain != nil && *p.Domain != "" {
		domain = *p.Domain
	}
	if err := authz.Projects.Need(a, authz.Create, authz.Object{Name: name, Domain: domain}, "create projects in domain "+domain); err != nil {
		return nil, err
	}
	row := dbgen.Project{ID: s.d.IDs(), IsActive: true, DomainName: domain, Type: typeGeneral, ResourcePolicy: Default,
		TotalResourceSlots: cluster.Slots{}, AllowedVfolderHosts: map[string]any{}}
	if p.Type != nil {
		if row.Type = strings.ReplaceAll(strings.ToLower(*p.Type), "_", "-"); row.Type != typeGeneral && row.Type != typeModelStore {
			return nil, fault.Invalidf("%.40q is no type of projects", *p.Type).WithNext("choose general or model-store")
		}
	}
	p.Name, p.Type, p.Domain = &name, nil, nil
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.GetDomain(ctx, store.Text(domain)); store.Missing(err) {
			return authz.NotFound(domainNoun, domain)
		} else if err != nil {
			return fmt.Errorf("find domain %s: %w", domain, err)
		}
		if err := setProject(ctx, tx, &row, p); err != nil {
			return err
		}
		err := tx.InsertProject(ctx, dbgen.InsertProjectParams{ID: row.ID, Name: row.Name, Description: row.Description, IsActive: row.IsActive,
			DomainName: row.DomainName, TotalResourceSlots: row.TotalResourceSlots, AllowedVfolderHosts: row.AllowedVfolderHosts,
			IntegrationID: row.IntegrationID, Type: row.Type, ResourcePolicy: row.ResourcePolicy})
		return projectRefused(err, row)
	})
	if err != nil {
		return nil, fmt.Errorf("create project %s: %w", name, err)
	}
	return s.GetProject(ctx, a, row.ID, domain)
}

// ModifyProject changes a project: superadmins and administrators of its domain everything, its own administrators the members. Lower
// totals end no session. A project that is not active starts no sessions, also not those that wait, and gets no folders, and its sessions
// publish no apps.
func (s *Service) ModifyProject(ctx context.Context, a authz.Actor, ref string, p ProjectProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project.modify", ref)
	defer end(&err)
	return s.changeProject(ctx, a, ref, p)
}

// DeleteProject deactivates a project: sessions run on, and everything stays. ModifyProject undoes it.
func (s *Service) DeleteProject(ctx context.Context, a authz.Actor, ref string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project.delete", ref)
	defer end(&err)
	return s.changeProject(ctx, a, ref, ProjectProps{Active: new(false)})
}

func (s *Service) changeProject(ctx context.Context, a authz.Actor, ref string, p ProjectProps) error {
	found, err := s.VisibleProject(ctx, a, ref, a.Domain)
	if err != nil {
		return err
	}
	o := ProjectObject(found, ref)
	if p.changes() || p.Members == nil {
		if err := authz.Projects.Check(a, authz.Change, o); err != nil {
			return err
		}
	}
	if p.Members != nil {
		if err := p.Members.mayBeMade(a, o); err != nil {
			return err
		}
	}
	if p.Domain != nil && *p.Domain != "" && *p.Domain != found.DomainName {
		return fault.Conflictf("project %s belongs to domain %s, and so do its members and folders", found.Name, found.DomainName).
			WithNext("create a project in domain %s", *p.Domain)
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.LockProject(ctx, found.ID)
		if store.Missing(err) {
			return authz.NotFound(projectNoun, ref)
		}
		if err != nil {
			return fmt.Errorf("find project %s: %w", ref, err)
		}
		if err := notPurged(ctx, tx, "project", row.ID, row.Name); err != nil {
			return err
		}
		if err := p.Expect.met(ctx, tx, row); err != nil {
			return err
		}
		if p.changes() {
			if err := setProject(ctx, tx, &row, p); err != nil {
				return err
			}
			if err := tx.UpdateProject(ctx, dbgen.UpdateProjectParams{ID: row.ID, Name: row.Name, Description: row.Description,
				IsActive: row.IsActive, TotalResourceSlots: row.TotalResourceSlots, AllowedVfolderHosts: row.AllowedVfolderHosts,
				IntegrationID: row.IntegrationID, ResourcePolicy: row.ResourcePolicy}); err != nil {
				return projectRefused(err, row)
			}
			tx.Wake(store.TopicSchedule)
		}
		if p.Members == nil {
			return nil
		}
		return p.Members.make(ctx, tx, a, row)
	})
	if err != nil {
		return fmt.Errorf("change project %s: %w", ref, err)
	}
	return nil
}

// setProject applies properties to a row after checking them.
func setProject(ctx context.Context, tx *store.Tx, row *dbgen.Project, p ProjectProps) error {
	if p.Type != nil && strings.ReplaceAll(strings.ToLower(*p.Type), "_", "-") != row.Type {
		return fault.Conflictf("project %s is of type %s for good", row.Name, row.Type).WithNext("create another project")
	}
	if p.Name != nil {
		if err := checkName("a project", *p.Name, true); err != nil {
			return err
		}
		row.Name = *p.Name
	}
	store.Set(&row.IsActive, p.Active)
	store.Set(&row.ResourcePolicy, p.ResourcePolicy)
	return setTotals(ctx, tx, totals{p.Description, p.IntegrationID, p.TotalSlots, p.AllowedHosts},
		&row.Description, &row.IntegrationID, &row.TotalResourceSlots, &row.AllowedVfolderHosts)
}

// projectRefused tells why the database refused a row of a project.
func projectRefused(err error, row dbgen.Project) error {
	switch {
	case err == nil:
		return nil
	case store.Duplicate(err, ""):
		return fault.Conflictf("there is a project %s in domain %s already", row.Name, row.DomainName).WithNext("choose another name")
	case store.Dangling(err):
		return fault.NotFoundf("No such %s: %s", policyNoun, row.ResourcePolicy).WithData(map[string]string{"object": policyNoun})
	}
	return fmt.Errorf("store the project: %w", err)
}
