package tenancy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy/password"
)

// The statuses of users. Only active ones are let in; what the others own stays.
const (
	userActive  = "active"
	userDeleted = "deleted"
)

const (
	maxAddresses  = 100
	maxProjectsOf = 1000
)

// UserProps are what administrators set of a user; nil means the default when the user is made and no change later.
type UserProps struct {
	Username, FullName, Description *string
	Password                        *seal.Secret
	Status, StatusInfo              *string
	Domain                          *string // of a new user; "" is the administrator's. It never changes.
	Role                            *authz.Role
	ResourcePolicy                  *string
	NeedPasswordChange              *bool
	SudoSession                     *bool
	// AllowedClientIP replaces the networks that the user may come from; none means all.
	AllowedClientIP *[]string
	// Projects replaces the user's memberships; the projects are of the user's domain.
	Projects *[]cluster.ProjectID
	// MainAccessKey is one of the user's active keypairs.
	MainAccessKey *cluster.AccessKey
	// WithoutPassword makes a user whom no password lets in until they get one. KeypairPolicy is that of the first keypair.
	WithoutPassword bool
	KeypairPolicy   *string
	Expect          Expect[dbgen.User]
}

// CreateUser makes a user with a first keypair (superadmins, and administrators of the user's domain).
func (s *Service) CreateUser(ctx context.Context, a authz.Actor, email string, p UserProps) (_ *User, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.create", email)
	defer end(&err)
	domain := a.Domain
	if p.Domain != nil && *p.Domain != "" {
		domain = *p.Domain
	}
	role := authz.RoleUser
	if p.Role != nil {
		role = *p.Role
	}
	o := authz.Object{Name: email, Domain: domain, OwnerRole: role}
	if err := authz.Users.Need(a, authz.Administer, o, "create a "+string(role)+" in domain "+domain); err != nil {
		return nil, err
	}
	id, k, err := s.makeUser(ctx, a, email, domain, p)
	if err != nil {
		return nil, err
	}
	u, err := s.GetUser(ctx, a, id)
	if err != nil {
		return nil, err
	}
	if u.First, err = s.shownOnce(ctx, a, k.AccessKey, k.SecretKey); err != nil {
		return nil, err
	}
	return u, nil
}

// makeUser makes a user with a first keypair, after the caller decided who may. Without a password none lets the user in.
func (s *Service) makeUser(ctx context.Context, a authz.Actor, email, domain string, p UserProps) (id string, k LoginKeypair, err error) {
	if !GoodEmail(email) {
		return "", k, fault.Invalidf("%.80q is no email address",
			email).WithNext("write one of 64 characters at most, such as ada@example.org")
	}
	if !p.WithoutPassword && (p.Password == nil || *p.Password == "") {
		return "", k, fault.Invalidf("a new user needs a password")
	}
	hash, err := s.newHash(ctx, p.Password, email, store.Value(p.Username), store.Value(p.FullName))
	if err != nil {
		return "", k, err
	}
	key, secret, err := newKeypair(s.d.Random)
	if err != nil {
		return "", k, err
	}
	sealed, err := s.d.Seal.Seal(secret, keypairPurpose(string(key)))
	if err != nil {
		return "", k, fmt.Errorf("seal the secret key: %w", err)
	}
	row := dbgen.User{ID: s.d.IDs(), Email: email, Username: email, DomainName: domain, Role: string(authz.RoleUser), Status: userActive,
		ResourcePolicy: Default, MainAccessKey: (*string)(&key)}
	if err := setUser(a, &row, p); err != nil {
		return "", k, err
	}
	policy := Default
	store.Set(&policy, p.KeypairPolicy)
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.GetDomain(ctx, domain); store.Missing(err) {
			return authz.NotFound(domainNoun, domain)
		} else if err != nil {
			return fmt.Errorf("find domain %s: %w", domain, err)
		}
		if err := tx.InsertUser(ctx, dbgen.InsertUserParams{ID: row.ID, Username: row.Username, Email: row.Email, PasswordHash: hash,
			NeedPasswordChange: row.NeedPasswordChange, FullName: row.FullName, Description: row.Description, Status: row.Status,
			StatusInfo: row.StatusInfo, DomainName: row.DomainName, Role: row.Role, ResourcePolicy: row.ResourcePolicy,
			AllowedClientIp: row.AllowedClientIp, SudoSessionEnabled: row.SudoSessionEnabled,
			MainAccessKey: row.MainAccessKey}); err != nil {
			return userRefused(err, row)
		}
		if err := tx.AddKeypair(ctx, dbgen.AddKeypairParams{AccessKey: string(key), SecretSealed: sealed, UserID: row.ID,
			IsAdmin: administrates(row.Role), ResourcePolicy: policy}); store.Dangling(err) {
			return authz.NotFound(policyNoun, policy)
		} else if err != nil {
			return fmt.Errorf("make a keypair: %w", err)
		}
		return setProjects(ctx, tx, row, p.Projects)
	})
	if err != nil {
		return "", k, fmt.Errorf("create user %s: %w", email, err)
	}
	return row.ID, LoginKeypair{AccessKey: key, SecretKey: secret, Role: authz.Role(row.Role), Status: row.Status}, nil
}

// ModifyUser changes a user (superadmins, and administrators of the user's domain, but not over superadmins). Who is not active any more
// is let in nowhere from then on, and streams and tokens end; sessions and folders stay.
func (s *Service) ModifyUser(ctx context.Context, a authz.Actor, email string, p UserProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.modify", email)
	defer end(&err)
	return s.changeUser(ctx, a, email, p)
}

// DeleteUser keeps somebody out for good, and everything that they own (soft deletion). ModifyUser with the status active undoes it.
func (s *Service) DeleteUser(ctx context.Context, a authz.Actor, email string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.delete", email)
	defer end(&err)
	return s.changeUser(ctx, a, email, UserProps{Status: new(userDeleted)})
}

func (s *Service) changeUser(ctx context.Context, a authz.Actor, email string, p UserProps) error {
	u, err := administered(ctx, s.d.Store.UserByRef, a, email)
	if err != nil {
		return err
	}
	if p.Domain != nil && *p.Domain != u.DomainName {
		return fault.Conflictf("user %s belongs to domain %s, and so does what they own", email, u.DomainName).
			WithNext("create a user in domain %s", *p.Domain)
	}
	hash, err := s.newHash(ctx, p.Password, u.Email, u.Username, u.FullName) // takes long: not within the transaction
	if err != nil {
		return err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// One at a time, so that of the last two superadmins only one steps back.
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		row, err := administered(ctx, tx.LockUser, a, email)
		if err != nil {
			return err
		}
		if row.IsService && hash != nil {
			return fault.Conflictf("%s is a service account, and no password lets it in", email).WithNext("make an API token of it")
		}
		if hash != nil {
			if err := elsewhere(email, row.LoginDirectory); err != nil {
				return err
			}
		}
		if err := notPurged(ctx, tx, "user", row.ID, email); err != nil {
			return err
		}
		before := row
		if err := p.Expect.met(ctx, tx, row); err != nil {
			return err
		}
		if err := setUser(a, &row, p); err != nil {
			return err
		}
		if err := staysAdministered(ctx, tx, before, row); err != nil {
			return err
		}
		if err := ownMainKey(ctx, tx, a, &row, p.MainAccessKey); err != nil {
			return err
		}
		if err := tx.UpdateUser(ctx, dbgen.UpdateUserParams{ID: row.ID, Username: row.Username, PasswordHash: hash,
			NeedPasswordChange: row.NeedPasswordChange, FullName: row.FullName, Description: row.Description, Status: row.Status,
			StatusInfo: row.StatusInfo, Role: row.Role, ResourcePolicy: row.ResourcePolicy, AllowedClientIp: row.AllowedClientIp,
			SudoSessionEnabled: row.SudoSessionEnabled, MainAccessKey: row.MainAccessKey}); err != nil {
			return userRefused(err, row)
		}
		if before.Role != row.Role {
			if err := tx.SetKeypairsAdmin(ctx, row.ID, administrates(row.Role)); err != nil {
				return fmt.Errorf("change the keypairs: %w", err)
			}
		}
		return setProjects(ctx, tx, row, p.Projects)
	})
	if err != nil {
		return fmt.Errorf("change user %s: %w", email, err)
	}
	return nil
}

// administered finds a user whom the actor administers.
func administered(
	ctx context.Context, find func(ctx context.Context, ref string) (dbgen.User, error), a authz.Actor, email string,
) (dbgen.User, error) {
	row, err := find(ctx, store.Text(email))
	if store.Missing(err) {
		return row, authz.NotFound(userNoun, email)
	}
	if err != nil {
		return row, fmt.Errorf("find user %s: %w", email, err)
	}
	o := authz.Object{Name: email, Owner: cluster.UserID(row.ID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
	return row, authz.Users.Check(a, authz.Administer, o)
}

// setUser applies properties to a row after checking them. It decides who may give which role.
func setUser(a authz.Actor, row *dbgen.User, p UserProps) error {
	self := row.ID == string(a.UserID)
	if p.Role != nil && string(*p.Role) != row.Role {
		switch *p.Role {
		case authz.RoleSuperadmin, authz.RoleMonitor, authz.RoleAdmin, authz.RoleUser:
		default:
			return fault.Invalidf("%.40q is no role", string(*p.Role)).WithNext("choose user, admin, monitor or superadmin")
		}
		if self {
			return fault.Conflictf("nobody changes their own role").WithNext("ask another administrator")
		}
		if !a.Superadmin() && (*p.Role == authz.RoleSuperadmin || *p.Role == authz.RoleMonitor) {
			return fault.Deniedf("%s may not make a %s: this needs a superadmin", a.Email, *p.Role)
		}
		row.Role = string(*p.Role)
	}
	if p.Status != nil && *p.Status != row.Status {
		if !slices.Contains([]string{userActive, "inactive", userDeleted, "before-verification"}, *p.Status) {
			return fault.Invalidf("%.40q is no status of users",
				*p.Status).WithNext("choose active, inactive, before-verification or deleted")
		}
		if self {
			return fault.Conflictf("nobody changes their own status").WithNext("ask another administrator")
		}
		row.Status = *p.Status
		row.StatusInfo = new("set by an administrator")
	}
	if self && !a.Superadmin() && (p.ResourcePolicy != nil && *p.ResourcePolicy != row.ResourcePolicy ||
		p.SudoSession != nil && *p.SudoSession != row.SudoSessionEnabled ||
		p.AllowedClientIP != nil && !slices.Equal(*p.AllowedClientIP, row.AllowedClientIp)) {
		return fault.Deniedf("%s may not set their own limits", a.Email).
			WithNext("leave out resource_policy, sudo_session_enabled and allowed_client_ip, or ask a superadmin")
	}
	store.Set(&row.Username, p.Username)
	store.Set(&row.FullName, p.FullName)
	store.Set(&row.Description, p.Description)
	store.Set(&row.NeedPasswordChange, p.NeedPasswordChange)
	store.Set(&row.SudoSessionEnabled, p.SudoSession)
	store.Set(&row.ResourcePolicy, p.ResourcePolicy)
	if p.StatusInfo != nil {
		row.StatusInfo = p.StatusInfo
	}
	if n := row.Username; p.Username != nil && (n == "" || len(n) > 64 || strings.ContainsFunc(n, unprintable)) {
		return fault.Invalidf("%.80q cannot be the name of a user", n).WithNext("use 1 to 64 characters without spaces")
	}
	for _, text := range []struct {
		name, is string
		most     int
	}{{"full name", row.FullName, 255}, {"description", row.Description, 512}} {
		if len(text.is) > text.most || store.Text(text.is) != text.is {
			return fault.Invalidf("the %s has more than %d bytes or is no text", text.name, text.most)
		}
	}
	if p.AllowedClientIP != nil {
		networks := slices.DeleteFunc(slices.Clone(*p.AllowedClientIP), func(n string) bool { return n == "" })
		if len(networks) > maxAddresses {
			return fault.Invalidf("a user has %d allowed networks at most, not %d", maxAddresses, len(networks))
		}
		for _, n := range networks {
			_, addrErr := netip.ParseAddr(n)
			_, prefixErr := netip.ParsePrefix(n)
			if addrErr != nil && prefixErr != nil {
				return fault.Invalidf("%.60q is neither an address nor a network", n).WithNext("write for example 10.0.0.0/8")
			}
		}
		if row.AllowedClientIp = networks; len(networks) == 0 {
			row.AllowedClientIp = nil
		}
	}
	return nil
}

func unprintable(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }

// GoodEmail reports whether a text can be the address of a user.
func GoodEmail(email string) bool {
	name, host, found := strings.Cut(email, "@")
	return found && name != "" && host != "" && len(email) <= 64 && !strings.Contains(host, "@") && !strings.ContainsFunc(email,
		unprintable)
}

func administrates(role string) bool {
	return role == string(authz.RoleSuperadmin) || role == string(authz.RoleAdmin)
}

// newHash is the hash of a new password of somebody with these names, nil for none.
func (s *Service) newHash(ctx context.Context, fresh *seal.Secret, names ...string) (*string, error) {
	if fresh == nil || *fresh == "" {
		return nil, nil
	}
	if err := password.Check(fresh.Reveal(), names...); err != nil {
		return nil, err
	}
	hash, err := s.passwords.Hash(ctx, *fresh)
	if err != nil {
		return nil, fmt.Errorf("hash password: %w", err)
	}
	return &hash, nil
}

// staysAdministered refuses a change that leaves the cluster without a superadmin who is let in.
func staysAdministered(ctx context.Context, tx *store.Tx, before, after dbgen.User) error {
	rules := func(u dbgen.User) bool { return u.Role == string(authz.RoleSuperadmin) && u.Status == userActive }
	if !rules(before) || rules(after) {
		return nil
	}
	n, err := tx.CountOtherSuperadmins(ctx, before.ID)
	if err != nil {
		return fmt.Errorf("count superadmins: %w", err)
	}
	if n == 0 {
		return fault.Conflictf("%s is the last active superadmin", before.Email).WithNext("make another user a superadmin first")
	}
	return nil
}

// ownMainKey makes one of the user's own active keypairs the main one. Its policy limits the user, so nobody but superadmins changes to one
// of another policy for themselves.
func ownMainKey(ctx context.Context, tx *store.Tx, a authz.Actor, row *dbgen.User, key *cluster.AccessKey) error {
	if key == nil || row.MainAccessKey != nil && *row.MainAccessKey == string(*key) {
		return nil
	}
	k, err := tx.ActorByKey(ctx, string(*key))
	if err != nil && !store.Missing(err) {
		return fmt.Errorf("find keypair: %w", err)
	}
	if store.Missing(err) || k.UserID != row.ID || !k.IsActive || k.ExpiresAt != nil {
		return fault.Invalidf("%.20q is no active keypair of %s", string(*key), row.Email)
	}
	if row.ID == string(a.UserID) && !a.Superadmin() && row.MainAccessKey != nil {
		old, err := tx.ActorByKey(ctx, *row.MainAccessKey)
		if err != nil {
			return fmt.Errorf("find the main keypair: %w", err)
		}
		if old.ResourcePolicy != k.ResourcePolicy {
			return fault.Deniedf("%s may not set their own limits", a.Email).
				WithNext("choose a keypair of policy %s, or ask a superadmin", old.ResourcePolicy)
		}
	}
	row.MainAccessKey = (*string)(key)
	return nil
}

// setProjects replaces memberships; they are of the user's domain.
func setProjects(ctx context.Context, tx *store.Tx, row dbgen.User, projects *[]cluster.ProjectID) error {
	if projects == nil {
		return nil
	}
	ids := []string{}
	for _, p := range *projects {
		id, ok := cluster.CanonicalUUID(string(p))
		if !ok || len(ids) == maxProjectsOf {
			return fault.Invalidf("%.60q is no id of a project, or there are more than %d", string(p), maxProjectsOf)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	n, err := tx.CountProjectsIn(ctx, ids, row.DomainName)
	if err != nil {
		return fmt.Errorf("look for projects: %w", err)
	}
	if int(n) != len(ids) {
		return fault.NotFoundf("not all of these projects are in domain %s", row.DomainName).
			WithNext("users are members of projects of their own domain")
	}
	if err := tx.LeaveOtherProjects(ctx, row.ID, ids); err != nil {
		return fmt.Errorf("leave projects: %w", err)
	}
	if err := tx.JoinProjects(ctx, ids, row.ID); err != nil {
		return fmt.Errorf("join projects: %w", err)
	}
	return nil
}

// notPurged refuses to change what is being forgotten.
func notPurged(ctx context.Context, tx *store.Tx, kind, subject, name string) error {
	gone, err := tx.BeingPurged(ctx, kind, subject)
	if err != nil {
		return fmt.Errorf("look for purges: %w", err)
	}
	if gone {
		return fault.Conflictf("%s %s is being purged", kind, name).WithNext("wait until that is done, and make a new one")
	}
	return nil
}

// userRefused tells why the database refused a row of a user.
func userRefused(err error, row dbgen.User) error {
	switch {
	case store.Duplicate(err, "users_email_key"):
		return fault.Conflictf("there is a user %s already", row.Email).WithNext("choose another email address")
	case store.Duplicate(err, "users_username_key"):
		return fault.Conflictf("there is a user called %s already", row.Username).WithNext("choose another user name")
	case store.Dangling(err):
		return fault.NotFoundf("No such %s: %s", policyNoun, row.ResourcePolicy).WithData(map[string]string{"object": policyNoun})
	}
	return fmt.Errorf("store the user: %w", err)
}
