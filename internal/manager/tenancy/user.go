package tenancy

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
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
	// TOTPSince is when the secret of the one-time passwords in use was made; nil without one.
	TOTPSince     *time.Time
	SudoSession   bool
	MainAccessKey cluster.AccessKey
	// First is the keypair that CreateUser made, with its secret; else nil.
	First *Keypair
}

// UserFilter narrows ListUsers.
type UserFilter struct {
	list.Query
	Status  string
	Project cluster.ProjectID
	Domain  string
}

var userFields = list.Fields{
	"uuid": list.Text("u.id::text"), "username": list.Text("u.username").Trigrams("name_trigrams(u.username) @> %s"),
	"email":                list.Text("u.email").Trigrams("name_trigrams(u.email) @> %s"),
	"need_password_change": list.Bool("u.need_password_change"), "full_name": list.Text("u.full_name"),
	"description": list.Text("u.description"),
	"is_active":   list.Bool("(u.status = 'active')"), "status": list.Text("u.status"), "status_info": list.Text("u.status_info"),
	"created_at": list.Time("u.created_at"), "modified_at": list.Time("u.modified_at"), "domain_name": list.Text("u.domain_name"),
	"role": list.Text("u.role"), "resource_policy": list.Text("u.resource_policy"), "allowed_client_ip": list.Texts("u.allowed_client_ip"),
	"totp_activated": list.Bool("u.totp_activated"), "sudo_session_enabled": list.Bool("u.sudo_session_enabled"),
	"main_access_key": list.Text("u.main_access_key"),
	// The secret was made then; a code confirmed it within minutes.
	"totp_activated_at": list.Time("(SELECT t.created_at FROM user_totp t WHERE t.user_id = u.id AND u.totp_activated)"),
}

// userCounts are where the number of users is kept. Nobody is known there by id.
const userCounts = `SELECT coalesce(sum(u.n), 0)::bigint FROM (SELECT NULL::uuid AS id, c.domain_name, c.owner_role AS role, c.status, c.n
	FROM list_counts c WHERE c.list = 'users') u WHERE true`

// GetUser finds a user by email or id; "" is the actor.
func (s *Service) GetUser(ctx context.Context, a authz.Actor, ref string) (*User, error) {
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
	o := authz.Object{Name: ref, Owner: cluster.UserID(r.ID), OwnerRole: authz.Role(r.Role), Domain: r.DomainName}
	if err := authz.Users.Check(a, authz.See, o); err != nil {
		return nil, err
	}
	views, err := s.userViews(ctx, []dbgen.User{r})
	if err != nil {
		return nil, err
	}
	return views[o.Owner], nil
}

// ListUsers lists the actor, the domain for its administrators, all for superadmins.
func (s *Service) ListUsers(ctx context.Context, a authz.Actor, f UserFilter) (list.Page[*User], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[*User]{}, err
	}
	l := &list.Spec{From: "users u", Key: "u.id::text", Fields: userFields, Order: "u.created_at"}
	l.Where(facts.Users.Where(a, authz.See, l.Arg))
	if f.Status != "" {
		l.And("u.status = %s", f.Status)
	}
	if f.Domain != "" {
		l.And("u.domain_name = %s", f.Domain)
	}
	switch project, ok := cluster.CanonicalUUID(string(f.Project)); {
	case ok:
		l.And("u.id IN (SELECT m.user_id FROM project_members m WHERE m.project_id = %s::uuid)", project)
	case f.Project != "":
		return list.Page[*User]{Items: []*User{}}, nil // nothing has such an id
	case a.Role != authz.RoleUser: // a user is in a list of one
		l.Counts = func() []string { return []string{userCounts} }
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return list.Page[*User]{}, err
	}
	rows, err := s.d.Store.UserViews(ctx, keys)
	if err != nil {
		return list.Page[*User]{}, fmt.Errorf("read users: %w", err)
	}
	views, err := s.userViews(ctx, rows)
	if err != nil {
		return list.Page[*User]{}, err
	}
	return list.Page[*User]{Items: list.InOrder(keys, views), Total: total}, nil
}

func (s *Service) userViews(ctx context.Context, rows []dbgen.User) (map[cluster.UserID]*User, error) {
	out := map[cluster.UserID]*User{}
	ids, enrolled := []string{}, []string{}
	for _, r := range rows {
		ids = append(ids, r.ID)
		if r.TotpActivated {
			enrolled = append(enrolled, r.ID)
		}
		v := &User{ID: cluster.UserID(r.ID), Username: r.Username, Email: r.Email, NeedPasswordChange: r.NeedPasswordChange, FullName: r.FullName,
			Description: r.Description, Status: r.Status, StatusInfo: r.StatusInfo, CreatedAt: r.CreatedAt.UTC(), ModifiedAt: r.ModifiedAt.UTC(),
			Domain: r.DomainName,
			Role:   authz.Role(r.Role), ResourcePolicy: r.ResourcePolicy, Projects: []Project{}, AllowedClientIP: r.AllowedClientIp,
			TOTPActivated: r.TotpActivated,
			SudoSession:   r.SudoSessionEnabled}
		if r.MainAccessKey != nil {
			v.MainAccessKey = cluster.AccessKey(*r.MainAccessKey)
		}
		out[v.ID] = v
	}
	if len(enrolled) > 0 {
		since, err := s.d.Store.OTPSince(ctx, enrolled)
		if err != nil {
			return nil, fmt.Errorf("read since when users have one-time passwords: %w", err)
		}
		for _, o := range since {
			out[cluster.UserID(o.UserID)].TOTPSince = new(o.CreatedAt.UTC())
		}
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

// UserByEmail finds a user, for whoever asks.
func (s *Service) UserByEmail(ctx context.Context, email string) (dbgen.UsersByEmailRow, error) {
	rows, err := s.d.Store.UsersByEmail(ctx, nil, []string{store.Text(email)})
	if err != nil {
		return dbgen.UsersByEmailRow{}, fmt.Errorf("find user %s: %w", email, err)
	}
	if len(rows) == 0 {
		return dbgen.UsersByEmailRow{}, authz.NotFound(userNoun, email)
	}
	return rows[0], nil
}

// MainActor is a user (email; "" is the actor) as who logs in as them, for who may see that user: to tell what holds for them.
func (s *Service) MainActor(ctx context.Context, a authz.Actor, email string) (authz.Actor, error) {
	if err := authz.Authenticated(a); err != nil {
		return authz.Actor{}, err
	}
	if email == "" || email == a.Email {
		return a, nil
	}
	u, err := s.UserByEmail(ctx, email)
	if err != nil {
		return authz.Actor{}, err
	}
	o := authz.Object{Name: email, Owner: cluster.UserID(u.ID), OwnerRole: authz.Role(u.Role), Domain: u.DomainName}
	if err := authz.Users.Check(a, authz.See, o); err != nil {
		return authz.Actor{}, err
	}
	login, err := s.d.Store.UserForLogin(ctx, email)
	if err != nil {
		return authz.Actor{}, fmt.Errorf("find the main keypair of %s: %w", email, err)
	}
	if login.AccessKey == "" {
		return authz.Actor{}, fault.Conflictf("%s has no active keypair", email).WithNext("make one, or make one active")
	}
	row, err := s.d.Store.ActorByKey(ctx, login.AccessKey)
	if err != nil {
		return authz.Actor{}, fmt.Errorf("find the main keypair of %s: %w", email, err)
	}
	return ActorOf(row), nil
}

// ActorOfUser is another user as an actor, for who may see that user: to look at things as that user does.
func (s *Service) ActorOfUser(ctx context.Context, a authz.Actor, email string) (authz.Actor, error) {
	u, err := s.UserByEmail(ctx, email)
	if err != nil {
		return authz.Actor{}, err
	}
	o := authz.Object{Name: email, Owner: cluster.UserID(u.ID), OwnerRole: authz.Role(u.Role), Domain: u.DomainName}
	if err := authz.Users.Check(a, authz.See, o); err != nil {
		return authz.Actor{}, err
	}
	projects, err := s.d.Store.ListProjectsOf(ctx, u.ID)
	if err != nil {
		return authz.Actor{}, fmt.Errorf("read projects of %s: %w", email, err)
	}
	other := authz.Actor{UserID: o.Owner, Email: u.Email, Domain: u.DomainName, Role: o.OwnerRole, AccessKey: a.AccessKey}
	for _, p := range projects {
		other.Projects = append(other.Projects, cluster.ProjectID(p.ID))
	}
	return other.Within(a.Scope), nil
}
