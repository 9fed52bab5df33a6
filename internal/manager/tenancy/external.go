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
)

// What identity providers say about people becomes users here. Package identity decides, and keeps the record.

// AdmitPerson makes a user without a password for somebody whom an identity provider answers for, as part of the transaction of the
// context. The caller decided.
func (s *Service) AdmitPerson(ctx context.Context, email, domain, username, fullName string) (cluster.UserID, error) {
	props := UserProps{FullName: &fullName, StatusInfo: new("made for an identity provider"), WithoutPassword: true}
	if username != "" {
		props.Username = &username
	}
	id, _, err := s.makeUser(ctx, authz.Actor{}, email, domain, props)
	return cluster.UserID(id), err
}

// Standing is what an identity provider has changed of a user; nil leaves a value.
type Standing struct {
	Role               *authz.Role
	Status, StatusInfo *string
	FullName           *string
	Join, Leave        []cluster.ProjectID
}

// SetStanding changes a user as part of a transaction, by the rules that hold for everybody: the cluster keeps a superadmin, and what is
// being purged is left alone. The caller decided.
func (s *Service) SetStanding(ctx context.Context, tx *store.Tx, user cluster.UserID, c Standing) error {
	row, err := tx.LockUser(ctx, string(user))
	if err != nil {
		return fmt.Errorf("find user %s: %w", user, err)
	}
	if err := notPurged(ctx, tx, userNoun, row.ID, row.Email); err != nil {
		return err
	}
	before := row
	store.Set((*authz.Role)(&row.Role), c.Role)
	store.Set(&row.Status, c.Status)
	store.Set(&row.FullName, c.FullName)
	if c.StatusInfo != nil {
		row.StatusInfo = c.StatusInfo
	}
	if err := staysAdministered(ctx, tx, before, row); err != nil {
		return err
	}
	if err := tx.UpdateUser(ctx, dbgen.UpdateUserParams{ID: row.ID, Username: row.Username, NeedPasswordChange: row.NeedPasswordChange,
		FullName: row.FullName, Description: row.Description, Status: row.Status, StatusInfo: row.StatusInfo, Role: row.Role,
		ResourcePolicy: row.ResourcePolicy, AllowedClientIp: row.AllowedClientIp, SudoSessionEnabled: row.SudoSessionEnabled,
		MainAccessKey: row.MainAccessKey}); err != nil {
		return userRefused(err, row)
	}
	if before.Role != row.Role {
		if err := tx.SetKeypairsAdmin(ctx, row.ID, administrates(row.Role)); err != nil {
			return fmt.Errorf("change the keypairs: %w", err)
		}
	}
	if err := tx.JoinProjects(ctx, texts(c.Join), row.ID); err != nil {
		return fmt.Errorf("join projects: %w", err)
	}
	if err := tx.LeaveProjects(ctx, row.ID, texts(c.Leave)); err != nil {
		return fmt.Errorf("leave projects: %w", err)
	}
	return nil
}

func texts(ids []cluster.ProjectID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// OpenLogin opens a login of a user who proved who they are in another way than by the password of the attempt: to an identity provider,
// or with a passkey (public: the caller has the proof). factors says that the proof stands for the second factor, too; else those of the
// user are asked.
func (s *Service) OpenLogin(ctx context.Context, user cluster.UserID, at LoginAttempt, factors bool) (Login, error) {
	u, err := s.d.Store.UserByRef(ctx, string(user))
	if err != nil && !store.Missing(err) {
		return Login{}, fmt.Errorf("find user %s: %w", user, err)
	}
	if err != nil || u.IsService {
		return Login{}, AuthFailed()
	}
	row, err := s.d.Store.UserForLogin(ctx, u.Email)
	if err != nil && !store.Missing(err) {
		return Login{}, fmt.Errorf("find user: %w", err)
	}
	if err != nil || row.ID != u.ID || row.Status != userActive || !row.DomainActive {
		return Login{}, fault.New(fault.Unauthenticated, "the account %s is not active", u.Email).WithReason("auth-failed").
			WithNext("ask an administrator to activate it")
	}
	if row.AccessKey == "" {
		return Login{}, fault.New(fault.Unauthenticated, "the account %s has no active keypair", u.Email).WithReason("auth-failed").
			WithNext("ask an administrator to make one")
	}
	actor, secret, err := s.Authenticate(ctx, cluster.AccessKey(row.AccessKey))
	if err != nil {
		return Login{}, err
	}
	if at.From.IsValid() {
		actor.ClientIP = at.From.String()
	}
	if err := authz.From(actor, at.From); err != nil {
		return Login{}, err
	}
	k := LoginKeypair{AccessKey: actor.AccessKey, SecretKey: secret, Role: authz.Role(row.Role), Status: row.Status,
		changed: row.PasswordChangedAt}
	return s.open(ctx, k, actor, at, factors)
}

// EndLoginsOf ends all logins of a user whose ways to log in changed. The caller decided.
func (s *Service) EndLoginsOf(ctx context.Context, user cluster.UserID) error {
	if _, err := s.d.Logins.End(ctx, user, ""); err != nil {
		return fmt.Errorf("end the logins of user %s: %w", user, err)
	}
	return nil
}

// FreshLogin finds the login of a token and whom it stands for (public: the token decides). It refuses one that was opened more than some
// time ago: whoever finds an open browser adds no ways to log in.
func (s *Service) FreshLogin(ctx context.Context, token string, within time.Duration) (authz.Actor, error) {
	l, is, err := s.resume(ctx, token)
	if err != nil {
		return authz.Actor{}, err
	}
	if s.d.Clock().Sub(is.Created) > within {
		return authz.Actor{}, fault.Deniedf("this login was opened more than %s ago", within).WithReason("login-not-fresh").
			WithNext("log out, log in again, and repeat this")
	}
	a, _, err := s.Authenticate(ctx, l.AccessKey)
	return a, err
}
