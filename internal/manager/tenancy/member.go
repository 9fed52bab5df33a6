package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxMembers bounds what one request changes or a list of members shows.
const maxMembers = 10_000

// MemberMode says what a MemberChange does.
type MemberMode string

// The modes. Those that make administrators of a project are for administrators of its domain.
const (
	AddMembers    MemberMode = "add"
	RemoveMembers MemberMode = "remove"
	AppointAdmins MemberMode = "appoint" // makes members that administer the project
	DismissAdmins MemberMode = "dismiss" // leaves them members
)

// MemberChange is who comes to a project or leaves it; users are named by id or email address.
type MemberChange struct {
	Mode  MemberMode
	Users []string
}

// Member is a user of a project.
type Member struct {
	ID       cluster.UserID
	Email    string
	FullName string
	Status   string
	// Admin administers the members of the project and their sessions.
	Admin bool
}

// Members lists who belongs to a project, by email address: for its administrators and those of its domain.
func (s *Service) Members(ctx context.Context, a authz.Actor, ref string) ([]Member, error) {
	p, err := s.VisibleProject(ctx, a, ref, a.Domain)
	if err != nil {
		return nil, err
	}
	if err := authz.Projects.Check(a, authz.SeeMembers, ProjectObject(p, ref)); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.MembersOf(ctx, p.ID, maxMembers)
	if err != nil {
		return nil, fmt.Errorf("read the members of project %s: %w", p.Name, err)
	}
	out := make([]Member, len(rows))
	for i, r := range rows {
		out[i] = Member{ID: cluster.UserID(r.ID), Email: r.Email, FullName: r.FullName, Status: r.Status, Admin: r.IsAdmin}
	}
	return out, nil
}

// mayBeMade decides who may change the members in such a way.
func (c *MemberChange) mayBeMade(a authz.Actor, o authz.Object) error {
	switch c.Mode {
	case AddMembers, RemoveMembers:
		return authz.Projects.Check(a, authz.Admit, o)
	case AppointAdmins, DismissAdmins:
		return authz.Projects.Check(a, authz.Change, o)
	}
	return fault.Invalidf("%.40q is no way to change the members of a project", string(c.Mode)).
		WithNext("choose add, remove, appoint or dismiss")
}

// make changes the members. The row of the project is locked.
func (c *MemberChange) make(ctx context.Context, tx *store.Tx, a authz.Actor, p dbgen.Project) error {
	if len(c.Users) > maxMembers {
		return fault.Invalidf("%d members are changed at once; %d are the most", len(c.Users), maxMembers)
	}
	refs := make([]string, len(c.Users))
	for i, ref := range c.Users {
		if refs[i] = store.Text(ref); strings.Contains(ref, "@") {
			continue
		}
		id, ok := cluster.CanonicalUUID(ref)
		if !ok {
			return fault.Invalidf("%.80q is neither the id nor the email address of a user", ref)
		}
		refs[i] = id
	}
	rows, err := tx.UsersByRefs(ctx, refs)
	if err != nil {
		return fmt.Errorf("find the users: %w", err)
	}
	ids := []string{}
	for _, ref := range refs {
		i := slices.IndexFunc(rows, func(r dbgen.UsersByRefsRow) bool {
			return (r.ID == ref || r.Email == ref) && r.DomainName == p.DomainName
		})
		if i < 0 { // whether the user is in another domain is nobody's business
			return fault.NotFoundf("No such user in domain %s: %.80s", p.DomainName, ref).WithData(map[string]string{"object": userNoun}).
				WithNext("members of a project are users of its domain")
		}
		ids = append(ids, rows[i].ID)
	}
	slices.Sort(ids) // so that two changes do not wait for each other in a circle
	ids = slices.Compact(ids)
	if err := c.sparesAdmins(ctx, tx, a, p, ids); err != nil {
		return err
	}
	switch c.Mode {
	case AddMembers:
		err = tx.AdmitMembers(ctx, p.ID, ids)
	case RemoveMembers:
		err = tx.RemoveMembers(ctx, p.ID, ids)
	case AppointAdmins:
		err = tx.AppointMembers(ctx, p.ID, ids)
	case DismissAdmins:
		err = tx.DismissMembers(ctx, p.ID, ids)
	}
	if err != nil {
		return fmt.Errorf("change the members: %w", err)
	}
	return nil
}

// sparesAdmins keeps administrators of a project from removing one another: who appoints dismisses. The actor's own office is read
// again under the lock of the project, because it may have ended while the request was on its way.
func (c *MemberChange) sparesAdmins(ctx context.Context, tx *store.Tx, a authz.Actor, p dbgen.Project, ids []string) error {
	o := ProjectObject(p, p.Name)
	if authz.Projects.May(a, authz.Change, o) {
		return nil
	}
	n, err := tx.AdminsAmong(ctx, p.ID, []string{string(a.UserID)})
	if err != nil {
		return fmt.Errorf("look for administrators: %w", err)
	}
	if n == 0 {
		a.Leads = nil
		return authz.Projects.Check(a, authz.Admit, o)
	}
	if c.Mode != RemoveMembers {
		return nil
	}
	if n, err = tx.AdminsAmong(ctx, p.ID, ids); err != nil {
		return fmt.Errorf("look for administrators: %w", err)
	}
	if n > 0 {
		return fault.Deniedf("%s may not remove administrators of project %s: this needs an administrator of its domain", a.Email, p.Name).
			WithNext("ask an administrator of your domain")
	}
	return nil
}
