package passkey

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// List lists the passkeys of the actor (email ""), or of a user whom the actor administers.
func (s *Service) List(ctx context.Context, a authz.Actor, email string) ([]Passkey, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	user := a.UserID
	if email != "" && email != a.Email {
		row, err := s.d.Store.UserByRef(ctx, store.Text(email))
		if store.Missing(err) {
			return nil, authz.NotFound("user", email)
		}
		if err != nil {
			return nil, fmt.Errorf("find user %s: %w", email, err)
		}
		user = cluster.UserID(row.ID)
		o := authz.Object{Name: email, Owner: user, OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
		if err := authz.Users.Check(a, authz.Administer, o); err != nil {
			return nil, err
		}
	}
	rows, err := s.d.Store.PasskeysOf(ctx, string(user))
	if err != nil {
		return nil, fmt.Errorf("read passkeys: %w", err)
	}
	out := make([]Passkey, len(rows))
	for i, r := range rows {
		out[i] = Passkey{ID: r.ID, Name: r.Name, CreatedAt: r.CreatedAt.UTC(), LastUsed: r.LastUsed, Cloned: r.ClonedAt != nil}
	}
	return out, nil
}

// missing is what everybody hears of a passkey that is not there, and who may not see its user of one that is.
func missing(id string) error { return authz.NotFound(authz.Users.Noun, id) }

// find finds a passkey of the actor, or of a user whom the actor administers.
func (s *Service) find(ctx context.Context, a authz.Actor, id string) (dbgen.PasskeyByIDRow, error) {
	var row dbgen.PasskeyByIDRow
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return row, missing(id)
	}
	row, err := s.d.Store.PasskeyByID(ctx, canonical)
	if store.Missing(err) {
		return row, missing(id)
	}
	if err != nil {
		return row, fmt.Errorf("find passkey %s: %w", id, err)
	}
	if row.UserID == string(a.UserID) {
		return row, nil
	}
	o := authz.Object{Name: id, Owner: cluster.UserID(row.UserID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
	return row, authz.Users.Check(a, authz.Administer, o)
}

// Rename gives a passkey another name.
func (s *Service) Rename(ctx context.Context, a authz.Actor, id, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "passkey.rename", id)
	defer end(&err)
	if err := authz.InPerson(a, "change passkeys"); err != nil {
		return err
	}
	row, err := s.find(ctx, a, id)
	if err != nil {
		return err
	}
	if err := goodName(name); err != nil {
		return err
	}
	n, err := s.d.Store.RenamePasskey(ctx, row.ID, name)
	switch {
	case store.Duplicate(err, "passkeys_user_id_name_key"):
		return fault.Conflictf("there is a passkey called %s already", name).WithNext("choose another name")
	case err != nil:
		return fmt.Errorf("rename a passkey: %w", err)
	case n == 0:
		return missing(id)
	}
	return nil
}

// Delete forgets a passkey, so that it opens nothing any more. When an administrator does so, the user's logins end, too.
func (s *Service) Delete(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "passkey.delete", id)
	defer end(&err)
	if err := authz.InPerson(a, "change passkeys"); err != nil {
		return err
	}
	row, err := s.find(ctx, a, id)
	if err != nil {
		return err
	}
	n, err := s.d.Store.DeletePasskey(ctx, row.ID)
	if err != nil {
		return fmt.Errorf("delete a passkey: %w", err)
	}
	if n == 0 {
		return missing(id)
	}
	if row.UserID == string(a.UserID) {
		return nil
	}
	return s.d.Tenancy.EndLoginsOf(ctx, cluster.UserID(row.UserID))
}
