package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/tenancy"
)

const (
	noun = "task template"
	// maxTemplates is how many somebody may have.
	maxTemplates = 500
)

// Template is a template with whose it is.
type Template struct {
	ID          string
	Kind        Kind
	Name        string
	Owner       cluster.UserID
	OwnerEmail  string
	OwnerRole   authz.Role
	Project     cluster.ProjectID
	ProjectName string
	Domain      string
	CreatedAt   time.Time
	Document    json.RawMessage
}

// Deps are what the service works with; all are required.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	IDs     func() string
}

// Service is the use cases of templates.
type Service struct{ d Deps }

// New makes the service.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.IDs == nil {
		return nil, errors.New("templates need a store, tenancy and a source of ids")
	}
	return &Service{d}, nil
}

// Whose says for whom templates are made.
type Whose struct {
	Owner   cluster.AccessKey // "" is the actor
	Project string            // name or id; the members see the template
	Domain  string            // of a project that is given by name; "" is the owner's
}

// Create stores the templates of a payload, all or none, for a member of the project.
func (s *Service) Create(ctx context.Context, a authz.Actor, kind Kind, w Whose, payload string) (_ []Template, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "template.create", w.Project)
	defer end(&err)
	audit.ActingFor(ctx, string(w.Owner))
	if err := authz.Changing(a, authz.AreaSessions); err != nil {
		return nil, err
	}
	row, err := s.d.Tenancy.Owner(ctx, a, w.Owner)
	if err != nil {
		return nil, err
	}
	owner := tenancy.ActorOf(row).Within(a.Scope)
	if w.Domain == "" {
		w.Domain = owner.Domain
	}
	project, err := s.d.Tenancy.FindProject(ctx, w.Project, w.Domain)
	if err != nil {
		return nil, err
	}
	if err := authz.Projects.Check(owner, authz.Use, tenancy.ProjectObject(project, w.Project)); err != nil {
		return nil, err
	}
	written, err := Read(kind, payload)
	if err != nil {
		return nil, err
	}
	for _, t := range written {
		if err := s.known(ctx, owner, kind, t.Document); err != nil {
			return nil, err
		}
	}
	var made []Template
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		made = nil
		if err := tx.LockOwnerOfTemplates(ctx, row.UserID); err != nil {
			return fmt.Errorf("wait for other templates of the user: %w", err)
		}
		n, err := tx.CountTemplates(ctx, row.UserID)
		if err != nil {
			return fmt.Errorf("count templates: %w", err)
		}
		if n+int64(len(written)) > maxTemplates {
			return fault.Exhaustedf("%s may have %d templates and has %d", owner.Email, maxTemplates, n).WithNext("delete some first")
		}
		for _, t := range written {
			id := s.d.IDs()
			err := tx.AddTemplate(ctx, dbgen.AddTemplateParams{ID: id, Kind: string(kind), Name: t.Name, UserID: row.UserID,
				ProjectID: project.ID, Document: t.Document})
			if err != nil {
				return refused(err, t.Name)
			}
			made = append(made, Template{ID: id, Kind: kind, Name: t.Name, Owner: owner.UserID, OwnerEmail: owner.Email, OwnerRole: owner.Role,
				Project: cluster.ProjectID(project.ID), ProjectName: project.Name, Domain: project.DomainName, Document: t.Document})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("create templates: %w", err)
	}
	return made, nil
}

// known refuses a cluster template whose session templates its owner does not see.
func (s *Service) known(ctx context.Context, owner authz.Actor, kind Kind, document json.RawMessage) error {
	if kind != Cluster {
		return nil
	}
	var d ClusterDocument
	if err := json.Unmarshal(document, &d); err != nil {
		return fmt.Errorf("read the template: %w", err)
	}
	for _, n := range d.Spec.Nodes {
		if _, err := s.find(ctx, owner, authz.See, Session, n.SessionTemplate); err != nil {
			return fmt.Errorf("role %s: %w", n.Role, err)
		}
	}
	return nil
}

func refused(err error, name string) error {
	if store.Duplicate(err, "session_templates_user_id_kind_name_key") {
		return fault.Conflictf("there is a template called %s already", name).WithNext("choose another name, or change that one")
	}
	return fmt.Errorf("store template %s: %w", name, err)
}

// List lists templates that the actor may see, by name: the own ones, or all. A project ("" is none) narrows it.
func (s *Service) List(ctx context.Context, a authz.Actor, kind Kind, all bool, project string) ([]Template, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.read(ctx, a, func(arg func(any) string) string {
		where := " AND t.kind = " + arg(string(kind))
		if !all {
			where += " AND t.user_id = " + arg(string(a.UserID))
		}
		if id, ok := cluster.CanonicalUUID(project); ok {
			where += " AND t.project_id = " + arg(id)
		} else if project != "" {
			where += " AND p.name = " + arg(store.Text(project))
		}
		return where
	})
}

// maxListed bounds a list: it has no pages on the wire.
const maxListed = 1000

// read reads templates that the actor may see.
func (s *Service) read(ctx context.Context, a authz.Actor, where func(arg func(any) string) string) ([]Template, error) {
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	sql := "SELECT t.id, t.kind, t.name, t.user_id, u.email, u.role, t.project_id, p.name, p.domain_name, t.created_at, t.document FROM " +
		facts.Templates.From + " WHERE " + facts.Templates.Where(a, authz.See, arg) + where(arg) +
		fmt.Sprintf(" ORDER BY t.name, t.id LIMIT %d", maxListed)
	rows, err := s.d.Store.DB().Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Template])
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	return found, nil
}

// find finds a template by id, or by name among the actor's own, and asks whether the actor may do that with it.
func (s *Service) find(ctx context.Context, a authz.Actor, verb authz.Verb, kind Kind, ref string) (Template, error) {
	if err := authz.Authenticated(a); err != nil {
		return Template{}, err
	}
	found, err := s.read(ctx, a, func(arg func(any) string) string {
		where := " AND t.kind = " + arg(string(kind))
		if id, ok := cluster.CanonicalUUID(ref); ok {
			return where + " AND t.id = " + arg(id)
		}
		return where + " AND t.name = " + arg(store.Text(ref)) + " AND t.user_id = " + arg(string(a.UserID))
	})
	if err != nil {
		return Template{}, err
	}
	if len(found) == 0 {
		return Template{}, authz.NotFound(noun, ref)
	}
	t := found[0]
	o := authz.Object{Name: ref, Owner: t.Owner, OwnerRole: t.OwnerRole, Domain: t.Domain, Project: t.Project}
	return t, authz.Templates.Check(a, verb, o)
}

// Get finds a template by id, or by name among the actor's own.
func (s *Service) Get(ctx context.Context, a authz.Actor, kind Kind, ref string) (Template, error) {
	return s.find(ctx, a, authz.See, kind, ref)
}

// Replace writes a template anew (its owner, administrators of its domain). Sessions that were started from it stay as they are.
func (s *Service) Replace(ctx context.Context, a authz.Actor, kind Kind, ref, payload string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "template.modify", ref)
	defer end(&err)
	t, err := s.find(ctx, a, authz.Change, kind, ref)
	if err != nil {
		return err
	}
	written, err := Read(kind, payload)
	if err != nil {
		return err
	}
	if len(written) != 1 {
		return fault.Invalidf("the request holds %d templates for one", len(written))
	}
	if err := s.known(ctx, a, kind, written[0].Document); err != nil {
		return err
	}
	n, err := s.d.Store.ChangeTemplate(ctx, t.ID, written[0].Name, written[0].Document)
	return outcome(n, err, written[0].Name, ref)
}

// Delete deletes a template (its owner, administrators of its domain). Sessions that were started from it stay as they are.
func (s *Service) Delete(ctx context.Context, a authz.Actor, kind Kind, ref string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "template.delete", ref)
	defer end(&err)
	t, err := s.find(ctx, a, authz.Change, kind, ref)
	if err != nil {
		return err
	}
	n, err := s.d.Store.DropTemplate(ctx, t.ID)
	return outcome(n, err, t.Name, ref)
}

// outcome tells what became of a change of n rows.
func outcome(n int64, err error, name, ref string) error {
	switch {
	case err != nil:
		return refused(err, name)
	case n == 0:
		return authz.NotFound(noun, ref)
	}
	return nil
}

// Session fills a request for a session from a session template that the actor may use.
func (s *Service) Session(ctx context.Context, a authz.Actor, ref string, r request.Session) (request.Session, error) {
	t, err := s.find(ctx, a, authz.Use, Session, ref)
	if err != nil {
		return r, err
	}
	var d SessionDocument
	if err := json.Unmarshal(t.Document, &d); err != nil {
		return r, fmt.Errorf("read template %s: %w", ref, err)
	}
	orElse(&r.Project, string(t.Project))
	return d.Fill(r), nil
}

// Cluster fills a request for a session of several kernels from a cluster template that the actor may use.
func (s *Service) Cluster(ctx context.Context, a authz.Actor, ref string, r request.Session) (request.Session, error) {
	t, err := s.find(ctx, a, authz.Use, Cluster, ref)
	if err != nil {
		return r, err
	}
	var d ClusterDocument
	if err := json.Unmarshal(t.Document, &d); err != nil {
		return r, fmt.Errorf("read template %s: %w", ref, err)
	}
	templates := map[string]*SessionDocument{}
	for _, n := range d.Spec.Nodes {
		id := n.SessionTemplate
		if templates[id] != nil {
			continue
		}
		m, err := s.find(ctx, a, authz.Use, Session, id)
		if err != nil { // it was deleted meanwhile, or is not for everybody who uses this one
			return r, fmt.Errorf("role %s of template %s: %w", n.Role, t.Name, err)
		}
		templates[id] = &SessionDocument{}
		if err := json.Unmarshal(m.Document, templates[id]); err != nil {
			return r, fmt.Errorf("read template %s: %w", id, err)
		}
	}
	orElse(&r.Project, string(t.Project))
	if r, err = d.Fill(r, templates); err != nil {
		return r, fmt.Errorf("start from template %s: %w", ref, err)
	}
	return r, nil
}
