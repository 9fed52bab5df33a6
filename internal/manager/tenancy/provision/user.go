package provision

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

// User is a user of a provider.
type User struct {
	scim.User
	ID      string
	Groups  []Ref
	Version int64
	Created time.Time
	Changed time.Time
}

// Ref names a group of a user, or a member of a group.
type Ref struct{ ID, Name string }

var userFields = list.Fields{"id": list.ID("s.id"), "user_name": list.Text("lower(s.user_name)"), "external_id": list.Text("s.external_id"),
	"display_name": list.Text("lower(s.display_name)"), "formatted_name": list.Text("lower(s.formatted_name)"),
	"given_name": list.Text("lower(s.given_name)"), "family_name": list.Text("lower(s.family_name)"), "email": list.Text("lower(s.email)"),
	"active":  list.Bool("(s.active AND coalesce(u.status, 'active') = 'active')"),
	"created": list.Time("s.created_at"), "changed": list.Time("s.modified_at"),
	"groups": list.Texts("ARRAY(SELECT m.group_id::text FROM scim_members m WHERE m.member_id = s.id)")}

var userAttributes = map[string]scim.Attribute{"id": {Field: "id"}, "username": {Field: "user_name", Kind: scim.Folded},
	"externalid": {Field: "external_id"}, "displayname": {Field: "display_name", Kind: scim.Folded},
	"name.formatted":  {Field: "formatted_name", Kind: scim.Folded},
	"name.givenname":  {Field: "given_name", Kind: scim.Folded},
	"name.familyname": {Field: "family_name", Kind: scim.Folded}, "emails": {Field: "email", Kind: scim.Folded},
	"emails.value": {Field: "email", Kind: scim.Folded}, "active": {Field: "active", Kind: scim.Truth},
	"meta.created": {Field: "created", Kind: scim.Time}, "meta.lastmodified": {Field: "changed", Kind: scim.Time},
	"groups": {Field: "groups", Kind: scim.Set}, "groups.value": {Field: "groups", Kind: scim.Set}}

// Page selects a part of a list: Start counts from 1.
type Page struct {
	Filter       string
	Start, Count int
}

// MaxCount is the largest page.
const MaxCount = 100

// keys finds the ids of a page, and how many there are in all.
func (s *Service) keys(ctx context.Context, spec *list.Spec, attributes map[string]scim.Attribute, p Page) (ids []string, total int,
	err error) {
	filter, err := scim.Filter(p.Filter, attributes)
	if err != nil {
		return nil, 0, err
	}
	q := list.Query{Filter: filter, Limit: max(1, min(p.Count, MaxCount)), Offset: max(p.Start, 1) - 1}
	ids, total, err = spec.Keys(ctx, s.d.Store.DB(), q)
	if fault.Is(err, fault.Invalid) {
		return nil, 0, failed(http.StatusBadRequest, scim.InvalidFilter, "the filter or the page cannot be used")
	}
	if p.Count <= 0 { // the number alone is asked for
		ids = nil
	}
	return ids, total, err
}

// ListUsers lists the users of the token's provider.
func (s *Service) ListUsers(ctx context.Context, a authz.Actor, p Page) ([]User, int, error) {
	c, err := s.client(a)
	if err != nil {
		return nil, 0, err
	}
	l := &list.Spec{From: "scim_users s LEFT JOIN users u ON u.id = s.user_id", Key: "s.id::text", Fields: userFields,
		Order: "s.created_at"}
	l.And("s.provider = %s", c.name)
	l.And("s.domain_name = %s", c.domain)
	l.Where("NOT s.deleted")
	ids, total, err := s.keys(ctx, l, userAttributes, p)
	if err != nil {
		return nil, 0, err
	}
	rows, err := s.d.Store.ScimUsers(ctx, ids)
	if err != nil {
		return nil, 0, fmt.Errorf("read users: %w", err)
	}
	groups, err := s.d.Store.GroupsOfScimUsers(ctx, ids)
	if err != nil {
		return nil, 0, fmt.Errorf("read groups of users: %w", err)
	}
	views := map[string]User{}
	for _, r := range rows {
		views[r.ID] = userView(r)
	}
	for _, g := range groups {
		v := views[g.MemberID]
		v.Groups = append(v.Groups, Ref{g.ID, g.DisplayName})
		views[g.MemberID] = v
	}
	return list.InOrder(ids, views), total, nil
}

func userView(r dbgen.ScimUsersRow) User {
	u := userOf(r)
	u.Active = r.IsActive
	return User{User: u, ID: r.ID, Groups: []Ref{}, Version: r.Version, Created: r.CreatedAt.UTC(), Changed: r.ModifiedAt.UTC()}
}

func userOf(r dbgen.ScimUsersRow) scim.User {
	return scim.User{UserName: r.UserName, ExternalID: r.ExternalID, FormattedName: r.FormattedName, GivenName: r.GivenName,
		FamilyName: r.FamilyName, DisplayName: r.DisplayName, Email: r.Email, Active: r.Active}
}

// row finds a user of the client.
func (s *Service) row(ctx context.Context, c client, id string) (dbgen.ScimUsersRow, error) {
	var none dbgen.ScimUsersRow
	key, err := canonical("user", id)
	if err != nil {
		return none, err
	}
	rows, err := s.d.Store.ScimUsers(ctx, []string{key})
	if err != nil {
		return none, fmt.Errorf("find a user: %w", err)
	}
	if len(rows) == 0 || rows[0].Provider != c.name || rows[0].DomainName != c.domain || rows[0].Deleted {
		return none, missing("user", id)
	}
	return rows[0], nil
}

// GetUser reads a user of the token's provider.
func (s *Service) GetUser(ctx context.Context, a authz.Actor, id string) (User, error) {
	c, err := s.client(a)
	if err != nil {
		return User{}, err
	}
	return s.user(ctx, c, id)
}

func (s *Service) user(ctx context.Context, c client, id string) (User, error) {
	r, err := s.row(ctx, c, id)
	if err != nil {
		return User{}, err
	}
	v := userView(r)
	groups, err := s.d.Store.GroupsOfScimUsers(ctx, []string{r.ID})
	if err != nil {
		return User{}, fmt.Errorf("read groups: %w", err)
	}
	for _, g := range groups {
		v.Groups = append(v.Groups, Ref{g.ID, g.DisplayName})
	}
	return v, nil
}

// person is a user as identity knows people.
func person(provider, subject string, u *scim.User, groups []string) identity.Person {
	return identity.Person{Provider: provider, Subject: subject, Email: u.Address(), EmailVerified: true, Username: u.UserName,
		FullName: u.FullName(), Active: u.Active, Groups: groups}
}

// judge refuses what the rules refuse for good. Who is in no group yet, and who is not active and never was here, is only kept.
func (s *Service) judge(ctx context.Context, c client, p identity.Person) error {
	plan, err := s.d.Identity.Preview(ctx, p, &c.is.Rules)
	if err != nil {
		return err
	}
	if plan.Action != identity.Refuse {
		return nil
	}
	words := plan.Words
	if plan.Next != "" {
		words += "; " + plan.Next
	}
	switch plan.Reason {
	case identity.ReasonNoGroup, identity.ReasonUnknown:
		if !p.Active || plan.Reason == identity.ReasonNoGroup {
			return nil
		}
	case identity.ReasonTaken, identity.ReasonAmbiguous:
		return failed(http.StatusConflict, scim.Uniqueness, "%s", words)
	case identity.ReasonBadAddress, identity.ReasonBadSubject:
		return failed(http.StatusBadRequest, scim.InvalidValue, "%s", words)
	}
	return failed(http.StatusForbidden, "", "%s", words)
}

// CreateUser keeps a new user of the token's provider and makes an account as the rules say.
func (s *Service) CreateUser(ctx context.Context, a authz.Actor, u scim.User) (_ User, err error) {
	id := s.d.IDs()
	c, err := s.stored(ctx, a, "scim.create-user", u.UserName, func(ctx context.Context, c client) error {
		subject := u.ExternalID
		if subject == "" {
			subject = "userName:" + strings.ToLower(u.UserName)
		}
		if err := s.judge(ctx, c, person(c.name, subject, &u, nil)); err != nil {
			return err
		}
		return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			return taken(tx.AddScimUser(ctx, dbgen.AddScimUserParams{ID: id, Provider: c.name, DomainName: c.domain, Subject: subject,
				UserName: u.UserName, ExternalID: u.ExternalID, FormattedName: u.FormattedName, GivenName: u.GivenName,
				FamilyName:  u.FamilyName,
				DisplayName: u.DisplayName, Email: u.Email, Active: u.Active}), u.UserName)
		})
	})
	if err != nil {
		return User{}, err
	}
	if err := s.settle(ctx, id); err != nil {
		return User{}, err
	}
	return s.user(ctx, c, id)
}

// stored runs the part of a change that is recorded.
func (s *Service) stored(ctx context.Context, a authz.Actor, action, object string, do func(context.Context, client) error) (c client,
	err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, action, fault.Clip(store.Text(object), 255))
	defer end(&err)
	if c, err = s.client(a); err != nil {
		return c, err
	}
	return c, do(ctx, c)
}

// taken words what uniqueness refused.
func taken(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case store.Duplicate(err, "scim_users_name"), store.Duplicate(err, "scim_users_provider_subject_key"),
		store.Duplicate(err, "scim_groups_name"):
		return failed(http.StatusConflict, scim.Uniqueness, "there is one called %.100q, or with its externalId, already", name)
	}
	return fmt.Errorf("store %.60q: %w", name, err)
}

// ChangeUser changes a user of the token's provider by a function. ifMatch is the version that it has to have, "" for any.
func (s *Service) ChangeUser(ctx context.Context, a authz.Actor, id, ifMatch string, change func(*scim.User) error) (User, error) {
	c, err := s.stored(ctx, a, "scim.change-user", id, func(ctx context.Context, c client) error {
		return again(func() error { return s.change(ctx, c, id, ifMatch, false, change) })
	})
	if err != nil {
		return User{}, err
	}
	if err := s.settle(ctx, strings.ToLower(id)); err != nil {
		return User{}, err
	}
	return s.user(ctx, c, id)
}

// DeleteUser forgets a user of the token's provider. The account is deactivated and stays.
func (s *Service) DeleteUser(ctx context.Context, a authz.Actor, id, ifMatch string) error {
	_, err := s.stored(ctx, a, "scim.delete-user", id, func(ctx context.Context, c client) error {
		return again(func() error {
			return s.change(ctx, c, id, ifMatch, true, func(u *scim.User) error { u.Active = false; return nil })
		})
	})
	if err != nil {
		return err
	}
	return s.settle(ctx, strings.ToLower(id))
}

func (s *Service) change(ctx context.Context, c client, id, ifMatch string, deleted bool, change func(*scim.User) error) error {
	r, err := s.row(ctx, c, id)
	if err != nil {
		return err
	}
	if err := matches(r.Version, ifMatch); err != nil {
		return err
	}
	if r.Role == string(authz.RoleSuperadmin) {
		return failed(http.StatusForbidden, "", "%s is a superadmin, and SCIM changes none", r.Account)
	}
	u := userOf(r)
	if err := change(&u); err != nil {
		return err
	}
	groups, err := s.groupsOf(ctx, r.ID)
	if err != nil {
		return err
	}
	if err := s.judge(ctx, c, person(c.name, r.Subject, &u, groups)); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockProvider(ctx, c.name); err != nil {
			return fmt.Errorf("wait for other changes: %w", err)
		}
		if r.LetIn && !u.Active {
			if err := s.remove(ctx, tx, c, 1); err != nil {
				return err
			}
		}
		n, err := tx.ChangeScimUser(ctx, dbgen.ChangeScimUserParams{ID: r.ID, Provider: c.name, Version: r.Version, UserName: u.UserName,
			ExternalID: u.ExternalID, FormattedName: u.FormattedName, GivenName: u.GivenName, FamilyName: u.FamilyName,
			DisplayName: u.DisplayName, Email: u.Email, Active: u.Active, Deleted: deleted})
		if err != nil {
			return taken(err, u.UserName)
		}
		if n == 0 {
			return errMoved
		}
		return nil
	})
}

// groupsOf are the names of the groups of a user.
func (s *Service) groupsOf(ctx context.Context, id string) ([]string, error) {
	rows, err := s.d.Store.GroupsOfScimUser(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	if len(rows) > maxGroups {
		return nil, failed(http.StatusConflict, scim.TooMany, "a user is in %d groups at most", maxGroups)
	}
	out := make([]string, len(rows))
	for i, g := range rows {
		out[i] = g.DisplayName
	}
	return out, nil
}

// settle makes the account of a user what was said. It may be done twice.
func (s *Service) settle(ctx context.Context, id string) error {
	rows, err := s.d.Store.ScimUsers(ctx, []string{id})
	if err != nil {
		return fmt.Errorf("read a user: %w", err)
	}
	if len(rows) == 0 || rows[0].Settled {
		return nil
	}
	r := rows[0]
	is, ok := s.d.Providers[r.Provider]
	if !ok || is.Rules.Domain != r.DomainName {
		return s.d.Store.PostponeScimUser(ctx, "the provider is not configured for this domain any more", r.ID)
	}
	u := userOf(r)
	groups, err := s.groupsOf(ctx, r.ID)
	if err != nil {
		return err
	}
	p := person(r.Provider, r.Subject, &u, groups)
	result, err := s.d.Identity.Apply(ctx, p, &is.Rules)
	if err != nil && fault.ReasonOf(err) == "identity-"+string(identity.ReasonNoGroup) && r.UserID != nil {
		p.Active = false // who is in no group that is let in any more, is let in no more
		_, err = s.d.Identity.Apply(ctx, p, &is.Rules)
	}
	problem, user := "", r.UserID
	switch {
	case err == nil && result.User != "":
		user = new(string(result.User))
	case fault.Is(err, fault.Conflict): // others changed the account at that time, or took the address: the loop tries again
		return s.d.Store.PostponeScimUser(ctx, fault.Clip(store.Text(err.Error()), 500), r.ID)
	case fault.Is(err, fault.Denied), fault.Is(err, fault.Invalid), fault.Is(err, fault.NotFound):
		problem = fault.Clip(store.Text(err.Error()), 500)
	case err != nil:
		return err
	}
	if _, err := s.d.Store.SettleScimUser(ctx, user, problem, r.ID, r.Version); err != nil {
		return fmt.Errorf("note that a user is settled: %w", err)
	}
	if r.Deleted {
		if _, err := s.d.Store.DropScimUser(ctx, r.ID); err != nil {
			return fmt.Errorf("forget a user: %w", err)
		}
	}
	return nil
}

// settleAll settles the first users at once and leaves the rest to the loop.
func (s *Service) settleAll(ctx context.Context, ids []string) error {
	var all error
	for i, id := range ids {
		if i == inline {
			break
		}
		all = errors.Join(all, s.settle(ctx, id))
	}
	return all
}
