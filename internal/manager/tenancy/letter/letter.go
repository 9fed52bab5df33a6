// Package letter is what e-mails let their readers do once: set a new password within half an hour, or make the account that an
// administrator invited them to within a week. An e-mail carries a token of 256 random bits, of which only the SHA-256 is kept.
//
// Whoever asks for a new password of an address hears the same, at the same time, whether there is such a user: the request goes into a
// bounded queue, and Run does the rest.
package letter

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/password"
)

const (
	resetLife      = 30 * time.Minute
	invitationLife = 7 * 24 * time.Hour
	// maxResets is how many e-mails about a password a user gets in resetLife; maxInvitations how many of one inviter may be open.
	maxResets, maxInvitations = 3, 500
	// maxQueue bounds what waits to be sent.
	maxQueue = 200
	// randomBytes is the length of a token before its encoding.
	randomBytes = 32
)

// Mailer sends an e-mail.
type Mailer interface {
	Send(ctx context.Context, to, subject, text string) error
}

// Deps are what a Service works with. Store, Tenancy and Log are required; without Mailer nothing is sent. Clock and Random default to
// the system's.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	Mailer  Mailer
	// Link is where readers go; {token} and {kind} (reset, invitation) are filled in. Empty: e-mails hold the token alone.
	Link   string
	Clock  func() time.Time
	Random io.Reader
	// PasswordCost is what hashes of passwords cost.
	PasswordCost seal.Cost
	Log          *slog.Logger
}

// Service is the use cases of letters.
type Service struct {
	d         Deps
	passwords *seal.Passwords
	queue     chan func(context.Context)
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "letter: store, tenancy and log are required")
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{d: d, passwords: seal.NewPasswords(1, d.PasswordCost, d.Random), queue: make(chan func(context.Context), maxQueue)}, nil
}

// Run writes and sends what waits. It returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-s.queue:
			do(ctx)
		}
	}
}

// later puts something into the queue. When it is full, nothing more is taken: the log says so.
func (s *Service) later(do func(context.Context)) bool {
	select {
	case s.queue <- do:
		return true
	default:
		s.d.Log.Warn("more e-mails wait than are kept; one is left out", "waiting", maxQueue)
		return false
	}
}

func (s *Service) configured() error {
	if s.d.Mailer == nil {
		return fault.Conflictf("this cluster sends no e-mail").WithReason("not-implemented").
			WithNext("ask an administrator for a new password; operators set manager.mail")
	}
	return nil
}

// RequestReset has an e-mail sent with which the user of the address can set a new password (public). The answer never tells whether
// there is one.
func (s *Service) RequestReset(_ context.Context, email string) error {
	if err := s.configured(); err != nil {
		return err
	}
	email = fault.Clip(store.Text(email), 64)
	s.later(func(ctx context.Context) {
		if err := s.sendReset(ctx, email, asked); err != nil {
			s.d.Log.Warn("could not send an e-mail for a new password", "error", err)
		}
	})
	return nil
}

// Ready tells whether e-mails can be sent.
func (s *Service) Ready() error { return s.configured() }

// Welcome has an e-mail sent with which a user whom somebody made sets their first password, within a week. It waits until there is room
// for one more.
func (s *Service) Welcome(ctx context.Context, email string) error {
	if err := s.configured(); err != nil {
		return err
	}
	send := func(ctx context.Context) {
		if err := s.sendReset(ctx, email, welcome); err != nil {
			s.d.Log.Warn("could not send an e-mail to a new user", "user", email, "error", err)
		}
	}
	select {
	case s.queue <- send:
		return nil
	case <-ctx.Done():
		return fault.Unavailablef("the e-mail to %s waits for others", email).
			WithNext("give them a password, berth user set --password-stdin").WithCause(ctx.Err())
	}
}

// occasion is why somebody is sent a token for a new password.
type occasion struct {
	life           time.Duration
	subject, words string
	first          bool // a first password, where there is none
}

var (
	asked = occasion{resetLife, "A new password for Berth", "Somebody asked for a new password of your account. " +
		"It can be set within 30 minutes, once.", false}
	welcome = occasion{invitationLife, "Your account of Berth", "An account was made for you. Its password can be set within a week, once.",
		true}
)

func (s *Service) sendReset(ctx context.Context, email string, why occasion) error {
	now := s.d.Clock()
	if err := s.d.Store.ForgetLetters(ctx, now); err != nil {
		return fmt.Errorf("forget old letters: %w", err)
	}
	reader, err := s.d.Store.ReaderOfReset(ctx, now, email, why.first)
	if store.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the user: %w", err)
	}
	if reader.Letters >= maxResets {
		return nil
	}
	text, sum, err := s.token()
	if err != nil {
		return err
	}
	if err := s.d.Store.InsertLetter(ctx, dbgen.InsertLetterParams{TokenHash: sum, Kind: "reset", Email: reader.Email, UserID: &reader.ID,
		Projects: []string{}, ExpiresAt: now.Add(why.life)}); err != nil {
		return fmt.Errorf("store a letter: %w", err)
	}
	return s.d.Mailer.Send(ctx, reader.Email, why.subject, why.words+"\n\n"+s.way("reset", text)+
		"\n\nIf that was not you, nothing needs to be done.\n")
}

// way tells the reader where to go.
func (s *Service) way(kind, token string) string {
	if s.d.Link == "" {
		return "Token: " + token
	}
	return strings.NewReplacer("{token}", token, "{kind}", kind).Replace(s.d.Link)
}

func (s *Service) token() (text string, sum []byte, err error) {
	raw := make([]byte, randomBytes)
	if _, err := io.ReadFull(s.d.Random, raw); err != nil {
		return "", nil, fmt.Errorf("make a token: %w", err)
	}
	text = base64.RawURLEncoding.EncodeToString(raw)
	return text, hashOf(text), nil
}

func hashOf(token string) []byte {
	sum := sha256.Sum256([]byte("berth letter\n" + token))
	return sum[:]
}

// find reads a letter that is good still.
func (s *Service) find(ctx context.Context, token, kind string) (dbgen.LetterByHashRow, error) {
	row, err := s.d.Store.LetterByHash(ctx, hashOf(token))
	if err != nil && !store.Missing(err) {
		return row, fmt.Errorf("find a letter: %w", err)
	}
	if err != nil || row.Kind != kind || !s.d.Clock().Before(row.ExpiresAt) {
		return row, gone()
	}
	return row, nil
}

func gone() error {
	return fault.New(fault.Unauthenticated, "the token of the e-mail is not known, was used, or has ended").WithReason("auth-failed").
		WithNext("ask for another e-mail")
}

// Reset sets a new password with the token of an e-mail (public). A second factor stays, and is asked for at the next login.
func (s *Service) Reset(ctx context.Context, token string, fresh seal.Secret) (err error) {
	row, err := s.find(ctx, token, "reset")
	if err != nil {
		return err
	}
	if err := password.Check(fresh.Reveal(), row.Email, row.Username, row.FullName); err != nil {
		return err
	}
	hash, err := s.passwords.Hash(ctx, fresh)
	if err != nil {
		return fmt.Errorf("hash password: %w", err)
	}
	reader := authz.Actor{UserID: cluster.UserID(*row.UserID), Email: row.Email}
	ctx, end := audit.Begin(ctx, s.d.Store, reader, "user.reset-password", row.Email)
	defer end(&err)
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		n, err := tx.UseLetter(ctx, hashOf(token))
		if err != nil {
			return fmt.Errorf("use a letter: %w", err)
		}
		if n == 0 {
			return gone()
		}
		if err := tx.UseLettersOf(ctx, row.UserID); err != nil {
			return fmt.Errorf("end other letters: %w", err)
		}
		n, err = tx.ResetPassword(ctx, &hash, *row.UserID)
		if err != nil {
			return fmt.Errorf("store password: %w", err)
		}
		if n == 0 {
			return gone()
		}
		return nil
	})
}

// Invitation is to whom and where somebody is invited.
type Invitation struct {
	Email    string
	Domain   string // "" is the inviter's
	Projects []cluster.ProjectID
}

// Invite has an e-mail sent with which its reader can make an account: superadmins, and administrators of the domain.
func (s *Service) Invite(ctx context.Context, a authz.Actor, i Invitation) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.invite", i.Email)
	defer end(&err)
	if i.Domain == "" {
		i.Domain = a.Domain
	}
	o := authz.Object{Name: i.Email, Domain: i.Domain, OwnerRole: authz.RoleUser}
	if err := authz.Users.Need(a, authz.Administer, o, "invite somebody to domain "+i.Domain); err != nil {
		return err
	}
	if err := s.configured(); err != nil {
		return err
	}
	if !tenancy.GoodEmail(i.Email) {
		return fault.Invalidf("%.80q is no email address", i.Email)
	}
	now := s.d.Clock()
	if err := s.d.Store.ForgetLetters(store.WithNote(ctx, nil), now); err != nil { // is not what the record is about
		return fmt.Errorf("forget old letters: %w", err)
	}
	open, err := s.d.Store.CountInvitations(ctx, string(a.AccessKey), now)
	if err != nil {
		return fmt.Errorf("count invitations: %w", err)
	}
	if open >= maxInvitations {
		return fault.Exhaustedf("%s has %d open invitations, which is all that one may have", a.Email, open).WithNext("wait until some are taken")
	}
	projects := []string{}
	for _, p := range i.Projects {
		id, ok := cluster.CanonicalUUID(string(p))
		if !ok {
			return fault.Invalidf("%.60q is no id of a project", string(p))
		}
		projects = append(projects, id)
	}
	text, sum, err := s.token()
	if err != nil {
		return err
	}
	err = s.d.Store.InsertLetter(ctx, dbgen.InsertLetterParams{TokenHash: sum, Kind: "invitation", Email: i.Email,
		InvitedBy: new(string(a.AccessKey)), DomainName: &i.Domain, Projects: projects, ExpiresAt: now.Add(invitationLife)})
	if store.Dangling(err) {
		return authz.NotFound("domain", i.Domain)
	}
	if err != nil {
		return fmt.Errorf("store a letter: %w", err)
	}
	s.later(func(ctx context.Context) {
		err := s.d.Mailer.Send(ctx, i.Email, "An invitation to Berth", a.Email+" invites you to make an account. "+
			"That can be done within a week, once.\n\n"+s.way("invitation", text)+"\n")
		if err != nil {
			s.d.Log.Warn("could not send an invitation", "to", i.Email, "error", err)
		}
	})
	return nil
}

// Accept makes the account that an e-mail invites to (public). Whoever invited must still be allowed to make it.
func (s *Service) Accept(ctx context.Context, token string, p tenancy.UserProps) (*tenancy.User, error) {
	row, err := s.find(ctx, token, "invitation")
	if err != nil {
		return nil, err
	}
	inviter, _, err := s.d.Tenancy.Authenticate(ctx, cluster.AccessKey(*row.InvitedBy))
	if fault.Is(err, fault.Unauthenticated) {
		return nil, gone()
	}
	if err != nil {
		return nil, err
	}
	projects := make([]cluster.ProjectID, len(row.Projects))
	for i, id := range row.Projects {
		projects[i] = cluster.ProjectID(id)
	}
	props := tenancy.UserProps{Username: p.Username, FullName: p.FullName, Password: p.Password, Domain: row.DomainName, Projects: &projects}
	made, err := s.d.Tenancy.CreateUser(ctx, inviter, row.Email, props)
	if fault.Is(err, fault.Denied) {
		return nil, gone()
	}
	if err != nil {
		return nil, err // the letter is good still: the address is unique, so it makes one account
	}
	if _, err := s.d.Store.UseLetter(ctx, hashOf(token)); err != nil {
		s.d.Log.Warn("could not end an invitation that was taken", "error", err)
	}
	return made, nil
}
