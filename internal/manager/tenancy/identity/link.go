package identity

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Linked is an identity of a user.
type Linked struct {
	Provider, Subject, Email string
	// GivenRole is the role that the provider gave, empty for none.
	GivenRole           authz.Role
	CreatedAt, LastSeen time.Time
}

// find finds the user whom the actor names (email ""; the actor), for whoever may do that with them.
func (s *Service) find(ctx context.Context, a authz.Actor, email string, v authz.Verb) (dbgen.User, error) {
	ref := store.Text(email)
	if email == "" || email == a.Email {
		ref = string(a.UserID)
	}
	row, err := s.d.Store.UserByRef(ctx, ref)
	if store.Missing(err) {
		return row, authz.NotFound("user", email)
	}
	if err != nil {
		return row, fmt.Errorf("find user %s: %w", email, err)
	}
	if row.ID == string(a.UserID) {
		return row, nil
	}
	return row, authz.Users.Check(a, v, authz.Object{Name: email, Owner: cluster.UserID(row.ID), OwnerRole: authz.Role(row.Role),
		Domain: row.DomainName})
}

// List lists the identities of the actor (email ""), or of a user whom the actor administers.
func (s *Service) List(ctx context.Context, a authz.Actor, email string) ([]Linked, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	u, err := s.find(ctx, a, email, authz.Administer)
	if err != nil {
		return nil, err
	}
	rows, err := s.d.Store.IdentitiesOf(ctx, []string{u.ID})
	if err != nil {
		return nil, fmt.Errorf("read identities: %w", err)
	}
	out := make([]Linked, len(rows))
	for i, r := range rows {
		out[i] = Linked{Provider: r.Provider, Subject: r.Subject, Email: r.Email, GivenRole: authz.Role(store.Value(r.GivenRole)),
			CreatedAt: r.CreatedAt.UTC(), LastSeen: r.LastSeen.UTC()}
	}
	return out, nil
}

// Unlink ends the identity of the actor (email ""), or of a user whom the actor administers, and takes back what the provider gave. Its
// holder's next login is that of somebody new. Logins of the user end.
func (s *Service) Unlink(ctx context.Context, a authz.Actor, email, provider string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "identity.unlink", email+" "+provider)
	defer end(&err)
	if err := authz.InPerson(a, "unlink identities"); err != nil {
		return err
	}
	u, err := s.find(ctx, a, email, authz.Administer)
	if err != nil {
		return err
	}
	if u.ID == string(a.UserID) && u.PasswordHash == nil {
		return fault.Conflictf("%s has no password, so nobody could log in any more", u.Email).WithNext("ask an administrator")
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		row, err := tx.LockUser(ctx, u.ID)
		if err != nil {
			return fmt.Errorf("find the account: %w", err)
		}
		is, err := account(ctx, tx.Queries, provider, row)
		if err != nil {
			return err
		}
		if !is.Elsewhere {
			return authz.NotFound("identity", provider)
		}
		others, err := tx.CountOtherSuperadmins(ctx, row.ID)
		if err != nil {
			return fmt.Errorf("count superadmins: %w", err)
		}
		// Nothing is wanted any more: what the provider gave goes.
		plan := Plan{Action: Update, User: is.ID}
		planRole(&Person{Provider: provider}, &Snapshot{OtherSuperadmins: int(others)}, &is, authz.RoleUser, &plan)
		planProjects(&Snapshot{}, &is, given{}, &plan)
		if _, err := s.write(ctx, tx, &Person{Provider: provider}, &plan); err != nil {
			return err
		}
		_, err = tx.DropIdentity(ctx, provider, row.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("unlink %s: %w", provider, err)
	}
	return s.d.Tenancy.EndLoginsOf(ctx, cluster.UserID(u.ID))
}
