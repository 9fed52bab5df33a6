package tenancy

import (
	"context"
	"fmt"
	"regexp"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// serviceHost ends the addresses of service accounts; nobody receives mail there (RFC 2606).
const serviceHost = ".service.invalid"

var serviceNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CreateServiceAccount makes a user that no password lets in, for programs. It belongs to the domain ("" is the actor's), and is a
// member of project ("" for none). Administrators of the domain make its tokens. Its email is NAME@DOMAIN.service.invalid.
func (s *Service) CreateServiceAccount(ctx context.Context, a authz.Actor, name, domain, project string) (_ *User, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.create-service-account", name)
	defer end(&err)
	if domain == "" {
		domain = a.Domain
	}
	o := authz.Object{Name: name, Domain: domain, OwnerRole: authz.RoleUser}
	if err := authz.Users.Need(a, authz.Administer, o, "create a service account in domain "+domain); err != nil {
		return nil, err
	}
	email := name + "@" + domain + serviceHost
	if !serviceNames.MatchString(name) || !GoodEmail(email) {
		return nil, fault.Invalidf("%.80q cannot be the name of a service account", name).
			WithNext("use lower-case letters, digits and hyphens; with the domain it has %d characters at most", 64-len(serviceHost)-1)
	}
	var projects *[]cluster.ProjectID
	if project != "" {
		p, err := s.FindProject(ctx, project, domain)
		if err != nil {
			return nil, err
		}
		projects = &[]cluster.ProjectID{cluster.ProjectID(p.ID)}
	}
	key, secret, err := newKeypair(s.d.Random)
	if err != nil {
		return nil, err
	}
	sealed, err := s.d.Seal.Seal(secret, keypairPurpose(string(key)))
	if err != nil {
		return nil, fmt.Errorf("seal the secret key: %w", err)
	}
	row := dbgen.User{ID: s.d.IDs(), Email: email, Username: email, DomainName: domain, Role: string(authz.RoleUser), Status: userActive,
		ResourcePolicy: Default, FullName: name}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.GetDomain(ctx, domain); store.Missing(err) {
			return authz.NotFound(domainNoun, domain)
		} else if err != nil {
			return fmt.Errorf("find domain %s: %w", domain, err)
		}
		if err := tx.InsertUser(ctx, dbgen.InsertUserParams{ID: row.ID, Username: row.Username, Email: row.Email, FullName: row.FullName,
			Status: row.Status, DomainName: row.DomainName, Role: row.Role, ResourcePolicy: row.ResourcePolicy,
			MainAccessKey: (*string)(&key)}); err != nil {
			return userRefused(err, row)
		}
		if err := tx.MakeServiceAccount(ctx, row.ID); err != nil {
			return fmt.Errorf("make a service account: %w", err)
		}
		if err := tx.AddKeypair(ctx, dbgen.AddKeypairParams{AccessKey: string(key), SecretSealed: sealed, UserID: row.ID,
			ResourcePolicy: Default}); err != nil {
			return fmt.Errorf("make a keypair: %w", err)
		}
		return setProjects(ctx, tx, row, projects)
	})
	if err != nil {
		return nil, fmt.Errorf("create service account %s: %w", name, err)
	}
	return s.GetUser(ctx, a, row.ID)
}
