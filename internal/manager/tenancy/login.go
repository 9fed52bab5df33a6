package tenancy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy/password"
)

// LoginPolicy bounds logins by password. The zero value has the default times.
type LoginPolicy struct {
	// MaxAge is how long a login lasts unless it is extended, MaxLife how long at most, Idle how long it lasts unused.
	MaxAge, MaxLife, Idle time.Duration
	// Concurrent is how many logins users may have where their policy does not say; 0 means login.MaxSessions, of which the oldest end.
	Concurrent int
	// PasswordMaxAge is how old a password may be at a login; 0 means any age.
	PasswordMaxAge time.Duration
	// NoSignOut keeps users from deactivating themselves.
	NoSignOut bool
}

// DefaultLoginPolicy returns the documented defaults.
func DefaultLoginPolicy() LoginPolicy {
	return LoginPolicy{MaxAge: 7 * 24 * time.Hour, MaxLife: 30 * 24 * time.Hour, Idle: 3 * 24 * time.Hour}
}

func (p LoginPolicy) withDefaults() LoginPolicy {
	d := DefaultLoginPolicy()
	for _, v := range []struct{ to, is *time.Duration }{{&p.MaxAge, &d.MaxAge}, {&p.MaxLife, &d.MaxLife}, {&p.Idle, &d.Idle}} {
		if *v.to == 0 {
			*v.to = *v.is
		}
	}
	return p
}

// The reasons of logins that do not open although the password is right, and of those that ended; slugs of the wire.
const (
	ReasonPasswordExpired = "password-expired"
	ReasonLoginExists     = "active-login-session-exists"
	ReasonLoginExpired    = "login-session-expired"
)

// WrongGuess reports whether an error of a login says that what its sender knows is wrong: such attempts are counted.
func WrongGuess(err error) bool {
	return fault.Is(err, fault.Unauthenticated) &&
		!slices.Contains([]string{ReasonOTPNeeded, ReasonOTPRegistration, ReasonPasswordExpired}, fault.ReasonOf(err))
}

// LoginAttempt is what somebody sends to log in.
type LoginAttempt struct {
	Domain, Email string
	Password      seal.Secret
	// Force ends the oldest login where the user has as many as allowed.
	Force bool
	// Answers are for second factors.
	Answers map[string]string
	// From and Agent are the address and the program of the sender.
	From  netip.Addr
	Agent string
	// Means is how the sender proves who they are; "" is ByPassword.
	Means string
}

// The means of logins, as the audit log has them.
const (
	ByPassword = "password"
	ByOpenID   = "openid"
	ByPasskey  = "passkey"
	ByLogin    = "login"
)

// Login is an open login: its token, when it ends, and the keypair that it stands for. The secret of the keypair is there only when the
// login was opened by proof of who the user is.
type Login struct {
	LoginKeypair
	ID      string
	Token   login.Token
	UserID  cluster.UserID
	Email   string
	Domain  string
	Expires time.Time
}

// maxAgent bounds what is kept of a program's name.
const maxAgent = 120

// Login opens a login (public). Whatever is wrong with the user, the password or the address, the answer is AuthFailed after the same
// work. The caller bounds attempts.
func (s *Service) Login(ctx context.Context, at LoginAttempt) (Login, error) {
	k, actor, err := s.proven(ctx, at)
	if err != nil {
		return Login{}, err
	}
	if age := s.policy.PasswordMaxAge; age > 0 && k.changed != nil && !k.elsewhere {
		k.expires = new(k.changed.Add(age))
	}
	return s.open(ctx, k, actor, at, false)
}

// open opens a login of an actor who proved who they are. proven says that this stands for the second factors, too.
func (s *Service) open(ctx context.Context, k LoginKeypair, actor authz.Actor, at LoginAttempt, proven bool) (_ Login, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, actor, "login.open", actor.Email)
	defer end(&err)
	audit.ByMeans(ctx, cmp.Or(at.Means, ByPassword))
	if !proven {
		if err := s.CheckSecondFactors(ctx, actor, at.Answers); err != nil {
			return Login{}, err
		}
	}
	now := s.d.Clock()
	if k.expires != nil && !now.Before(*k.expires) {
		return Login{}, fault.New(fault.Unauthenticated, "Password expired on %s", k.expires.UTC().Format(time.RFC3339)).
			WithReason(ReasonPasswordExpired)
	}
	row, err := s.d.Store.LoginStanding(ctx, string(k.AccessKey), string(actor.UserID))
	if err != nil {
		return Login{}, fmt.Errorf("read the standing of %s: %w", actor.Email, err)
	}
	return s.openLogin(ctx, row, k, at, now, stamp(k.changed))
}

// openLogin makes the login of somebody who has proven at a time (since) who they are; passwordStamp is what the password is now.
func (s *Service) openLogin(ctx context.Context, row dbgen.LoginStandingRow, k LoginKeypair, at LoginAttempt, since time.Time,
	passwordStamp string,
) (Login, error) {
	token, err := login.NewToken(cluster.UserID(row.ID))
	if err != nil {
		return Login{}, fmt.Errorf("make a token: %w", err)
	}
	now := s.d.Clock()
	is := login.Session{ID: login.NewID(), AccessKey: k.AccessKey, Created: since.UTC(), Seen: now.UTC(),
		Expires: now.Add(s.policy.MaxAge).UTC(), Agent: fault.Clip(store.Text(at.Agent), maxAgent), Stamp: passwordStamp}
	if last := since.Add(s.policy.MaxLife).UTC(); is.Expires.After(last) {
		is.Expires = last
	}
	if at.From.IsValid() {
		is.Address = at.From.String()
	}
	most := s.policy.Concurrent
	if row.MaxConcurrentLogins != nil {
		most = int(*row.MaxConcurrentLogins)
	}
	switch err := s.d.Logins.Open(ctx, token, is, most, at.Force); {
	case errors.Is(err, login.ErrFull):
		return Login{}, fault.Conflictf("%s has %d logins, which is all that one user may have", row.Email, most).
			WithReason(ReasonLoginExists).WithNext("log out elsewhere, or log in by force, which ends the oldest login")
	case err != nil:
		return Login{}, fmt.Errorf("open a login: %w", err)
	}
	return loginOf(row, k, token, is), nil
}

// proven finds who an attempt is by password and address.
func (s *Service) proven(ctx context.Context, at LoginAttempt) (LoginKeypair, authz.Actor, error) {
	k, err := s.Authorize(ctx, at.Domain, at.Email, at.Password)
	if err != nil {
		return LoginKeypair{}, authz.Actor{}, err
	}
	actor, _, err := s.Authenticate(ctx, k.AccessKey)
	if err != nil {
		return LoginKeypair{}, authz.Actor{}, err
	}
	if at.From.IsValid() {
		actor.ClientIP = at.From.String()
	}
	if err := authz.From(actor, at.From); err != nil {
		// Whoever guesses passwords from elsewhere hears and costs the same whether one is right.
		s.d.Log.Warn("a login with the right password came from an address that the user may not come from", "user", actor.Email,
			"client", at.From)
		return LoginKeypair{}, authz.Actor{}, AuthFailed()
	}
	return k, actor, nil
}

// stamp tells passwords of a user apart by when they were set. It is compared, never computed with: clocks do not matter.
func stamp(changed *time.Time) string {
	if changed == nil {
		return ""
	}
	return strconv.FormatInt(changed.UnixMicro(), 36)
}

func loginOf(row dbgen.LoginStandingRow, k LoginKeypair, t login.Token, is login.Session) Login {
	return Login{LoginKeypair: k, ID: is.ID, Token: t, UserID: cluster.UserID(row.ID), Email: row.Email, Domain: row.DomainName,
		Expires: is.Expires}
}

// SiblingLogin opens another login of the user of a login (public: the token decides), for a program at an address. It counts for the
// user's bound, and no other login ends for it. It lives no longer than the first one may, however often that is extended: logins that
// are made of logins do not live for ever.
func (s *Service) SiblingLogin(ctx context.Context, token string, from netip.Addr, agent string) (_ Login, err error) {
	l, is, err := s.resume(ctx, token)
	if err != nil {
		return Login{}, err
	}
	actor, _, err := s.Authenticate(ctx, l.AccessKey)
	if err != nil {
		return Login{}, err
	}
	if from.IsValid() {
		actor.ClientIP = from.String()
	}
	ctx, end := audit.Begin(ctx, s.d.Store, actor, "login.open", actor.Email)
	defer end(&err)
	audit.ByMeans(ctx, ByLogin)
	if err := authz.From(actor, from); err != nil {
		return Login{}, err
	}
	row, err := s.d.Store.LoginStanding(ctx, string(l.AccessKey), string(l.UserID))
	if err != nil {
		return Login{}, fmt.Errorf("read the standing of %s: %w", actor.Email, err)
	}
	return s.openLogin(ctx, row, l.LoginKeypair, LoginAttempt{From: from, Agent: agent}, is.Created, is.Stamp)
}

// LoginExpired is what the holder of a token hears when there is no such login any more.
func LoginExpired() error {
	return fault.New(fault.Unauthenticated, "this login has ended").WithReason(ReasonLoginExpired).WithNext("log in again")
}

// seenEvery is how exactly it is known when a login was last used.
const seenEvery = time.Minute

// ResumeLogin finds the login of a token (public: the token decides) and whom it stands for, without the secret of the keypair. It has
// ended when the user, the domain or the keypair is not active any more, and when the password changed.
func (s *Service) ResumeLogin(ctx context.Context, token string) (Login, error) {
	l, _, err := s.resume(ctx, token)
	return l, err
}

func (s *Service) resume(ctx context.Context, text string) (Login, login.Session, error) {
	token, ok := login.ParseToken(text)
	if !ok {
		return Login{}, login.Session{}, LoginExpired()
	}
	is, ok, err := s.d.Logins.Find(ctx, token)
	if err != nil {
		return Login{}, is, fmt.Errorf("find a login: %w", err)
	}
	if !ok {
		return Login{}, is, LoginExpired()
	}
	row, err := s.d.Store.LoginStanding(ctx, string(is.AccessKey), string(token.User()))
	if err != nil && !store.Missing(err) {
		return Login{}, is, fmt.Errorf("read the standing of a login: %w", err)
	}
	now := s.d.Clock()
	if err != nil || row.Status != userActive || !row.DomainActive || !row.KeyActive || stamp(row.PasswordChangedAt) != is.Stamp ||
		now.Sub(is.Seen) >= s.policy.Idle || now.Sub(is.Created) >= s.policy.MaxLife {
		if err := s.d.Logins.Remove(ctx, token); err != nil {
			s.d.Log.Warn("could not remove a login that has ended", "login", is.ID, "error", err)
		}
		return Login{}, is, LoginExpired()
	}
	if now.Sub(is.Seen) >= seenEvery {
		is.Seen = now.UTC()
		if err := s.d.Logins.Replace(ctx, token, is); err != nil {
			return Login{}, is, fmt.Errorf("note that a login is used: %w", err)
		}
	}
	// The secret of the keypair outlives the login, so whoever holds the token does not get it.
	k := LoginKeypair{AccessKey: is.AccessKey, Role: authz.Role(row.Role), Status: row.Status}
	return loginOf(row, k, token, is), is, nil
}

// ActorOfLogin is whom the token of a login stands for (public: the token decides), as long as the login lasts. The caller examines the
// address.
func (s *Service) ActorOfLogin(ctx context.Context, token seal.Secret) (authz.Actor, error) {
	l, _, err := s.resume(ctx, token.Reveal())
	if err != nil {
		return authz.Actor{}, err
	}
	a, _, err := s.Authenticate(ctx, l.AccessKey)
	if fault.Is(err, fault.Unauthenticated) {
		return authz.Actor{}, LoginExpired()
	}
	a.ByLogin = true
	return a, err
}

// ExtendLogin lets a login last longer (public: the token decides), and tells until when.
func (s *Service) ExtendLogin(ctx context.Context, token string) (Login, error) {
	l, is, err := s.resume(ctx, token)
	if err != nil {
		return Login{}, err
	}
	now := s.d.Clock()
	is.Seen, is.Expires = now.UTC(), now.Add(s.policy.MaxAge).UTC()
	if last := is.Created.Add(s.policy.MaxLife); is.Expires.After(last) {
		is.Expires = last
	}
	if err := s.d.Logins.Replace(ctx, l.Token, is); err != nil {
		return Login{}, fmt.Errorf("extend a login: %w", err)
	}
	l.Expires = is.Expires
	return l, nil
}

// Logout ends the login of a token (public: the token decides). There need not be one.
func (s *Service) Logout(ctx context.Context, token string) error {
	t, ok := login.ParseToken(token)
	if !ok {
		return nil
	}
	if err := s.d.Logins.Remove(ctx, t); err != nil {
		return fmt.Errorf("end a login: %w", err)
	}
	return nil
}

// ListLogins lists the actor's logins, the newest first.
func (s *Service) ListLogins(ctx context.Context, a authz.Actor) ([]login.Session, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	all, err := s.d.Logins.List(ctx, a.UserID)
	if err != nil {
		return nil, fmt.Errorf("list logins: %w", err)
	}
	now := s.d.Clock()
	return slices.DeleteFunc(all, func(l login.Session) bool {
		return now.Sub(l.Seen) >= s.policy.Idle || now.Sub(l.Created) >= s.policy.MaxLife
	}), nil
}

// EndLogin ends one of the actor's logins by its id, or all of them for "all", and tells how many ended.
func (s *Service) EndLogin(ctx context.Context, a authz.Actor, id string) (n int, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "login.end", id)
	defer end(&err)
	if err := authz.InPerson(a, "end logins"); err != nil {
		return 0, err
	}
	which := id
	if id == "all" {
		which = ""
	} else if id == "" {
		return 0, fault.Invalidf("no login is named").WithNext("name one of `berth login list`, or all")
	}
	if n, err = s.d.Logins.End(ctx, a.UserID, which); err != nil {
		return 0, fmt.Errorf("end a login: %w", err)
	}
	if n == 0 && which != "" {
		return 0, authz.NotFound("login", id)
	}
	return n, nil
}

// ReplacePassword changes a password by the password itself, for users whose password has expired (public). It opens no login. The
// caller bounds attempts.
func (s *Service) ReplacePassword(ctx context.Context, at LoginAttempt, fresh seal.Secret) (changed time.Time, err error) {
	if s.policy.PasswordMaxAge == 0 {
		return time.Time{}, fault.Invalidf("passwords do not expire here, so they are changed by who is logged in").
			WithReason("generic-bad-request").WithNext("log in first, or ask an administrator for manager.login.password_max_age")
	}
	_, actor, err := s.proven(ctx, at)
	if err != nil {
		return time.Time{}, err
	}
	ctx, end := audit.Begin(ctx, s.d.Store, actor, "user.change-password", actor.Email)
	defer end(&err)
	return s.changePassword(ctx, actor, at.Password, fresh)
}

// changePassword checks the old password once more and replaces it. Every login of the user ends by that.
func (s *Service) changePassword(ctx context.Context, a authz.Actor, old, fresh seal.Secret) (time.Time, error) {
	var none time.Time
	row, err := s.d.Store.PasswordStanding(ctx, string(a.UserID))
	if err != nil {
		return none, fmt.Errorf("find password: %w", err)
	}
	if err := elsewhere(a.Email, row.LoginDirectory); err != nil {
		return none, err
	}
	hash := ""
	if row.PasswordHash != nil {
		hash = *row.PasswordHash
	}
	ok, _, err := s.passwords.Check(ctx, old, hash)
	switch {
	case err != nil:
		return none, fmt.Errorf("check password: %w", err)
	case !ok:
		return none, AuthFailed()
	case fresh == old:
		return none, fault.Invalidf("the new password is the old one").WithNext("choose another password")
	}
	if err := password.Check(fresh.Reveal(), a.Email, row.Username); err != nil {
		return none, err
	}
	renewed, err := s.passwords.Hash(ctx, fresh)
	if err != nil {
		return none, fmt.Errorf("hash password: %w", err)
	}
	changed, err := s.d.Store.ChangePassword(ctx, &renewed, string(a.UserID), row.PasswordHash)
	switch {
	case store.Missing(err):
		return none, fault.Conflictf("somebody else changed this password at the same time").WithNext("try again with the password of now")
	case err != nil:
		return none, fmt.Errorf("store password: %w", err)
	case changed == nil:
		return none, fault.New(fault.Internal, "a changed password has no time")
	}
	return changed.UTC(), nil
}

// SignOut deactivates the actor's own user for good, by the password. An administrator can undo it. The caller bounds attempts.
func (s *Service) SignOut(ctx context.Context, a authz.Actor, email string, password seal.Secret) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.sign-out", email)
	defer end(&err)
	if err := authz.InPerson(a, "leave the cluster"); err != nil {
		return err
	}
	if email != a.Email && email != a.Username {
		return fault.Invalidf("this is not your email address").WithNext("users sign out themselves; administrators deactivate others")
	}
	if s.policy.NoSignOut {
		return fault.Deniedf("this cluster does not let users deactivate themselves").WithNext("ask an administrator")
	}
	row, err := s.d.Store.PasswordStanding(ctx, string(a.UserID))
	if err != nil {
		return fmt.Errorf("find password: %w", err)
	}
	if err := elsewhere(a.Email, row.LoginDirectory); err != nil {
		return err
	}
	hash := ""
	if row.PasswordHash != nil {
		hash = *row.PasswordHash
	}
	if ok, _, err := s.passwords.Check(ctx, password, hash); err != nil {
		return fmt.Errorf("check password: %w", err)
	} else if !ok {
		return AuthFailed()
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		before, err := tx.LockUser(ctx, a.Email)
		if err != nil {
			return fmt.Errorf("find user: %w", err)
		}
		after := before
		after.Status = "inactive"
		if err := staysAdministered(ctx, tx, before, after); err != nil {
			return err
		}
		return tx.SignOutUser(ctx, before.ID)
	})
	if err != nil {
		return fmt.Errorf("sign out %s: %w", a.Email, err)
	}
	if _, err := s.d.Logins.End(ctx, a.UserID, ""); err != nil {
		s.d.Log.Warn("the logins of a user who signed out end by themselves", "user", a.Email, "error", err)
	}
	return nil
}
