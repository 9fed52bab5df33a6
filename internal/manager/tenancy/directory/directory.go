// Package directory lets people of one LDAP directory in: it proves them at their logins, makes and changes their accounts by the rules of
// package identity, and compares the whole directory with the users here, on a schedule and when administrators ask. Who left the directory
// is deactivated, never deleted; a sync that would take access from too many stops and waits for an administrator's word.
//
// Where somebody logs in is a fact of the user (users.login_directory). When the directory does not answer, its users cannot log in, and
// everybody else can. Keypairs and API tokens of its users go on until a sync deactivates them.
package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

const (
	noun = "directory sync"
	// maxOpen bounds the syncs that wait, keepSyncs those that are remembered, shown those of a status.
	maxOpen, keepSyncs, shown = 10, 100, 20
	maxAllowance              = 1_000_000
)

// Client asks the directory; *ldap.Client is one.
type Client interface {
	Login(ctx context.Context, name string, password chassis.Secret) (ldap.Person, error)
	LoginSubject(ctx context.Context, subject string, password chassis.Secret) (ldap.Person, error)
	All(ctx context.Context) ([]ldap.Person, []ldap.Skipped, error)
}

// Policy is what the configuration says of the directory's people.
type Policy struct {
	// Name is the provider's name of their identities.
	Name  string
	Rules identity.Rules
	// CreateAtLogin makes accounts at the first login. Otherwise syncs alone make them.
	CreateAtLogin bool
	// SyncEvery is the time between syncs; 0 leaves them to administrators.
	SyncEvery time.Duration
	Limits    Limits
}

// Deps are what a Service works with. Store, Identity and Log are required. Without Client there is no directory. Clock and IDs default to
// the system's.
type Deps struct {
	Store    *store.Store
	Identity *identity.Service
	Client   Client
	Policy   Policy
	Clock    func() time.Time
	IDs      func() string
	Log      *slog.Logger
}

// Service is the use cases of the directory.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Identity == nil || d.Log == nil || d.IDs == nil {
		return nil, fault.New(fault.Internal, "directory: store, identity, ids and log are required")
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{d}, nil
}

// Prove decides about a login of a user who logs in at a directory (public: the password decides). Their groups count at once.
func (s *Service) Prove(ctx context.Context, directory string, user cluster.UserID, password seal.Secret) error {
	if s.d.Client == nil || directory != s.d.Policy.Name {
		return fault.Unavailablef("this account logs in at the directory %q, which is not configured here", directory).
			WithNext("ask an administrator")
	}
	subject, err := s.d.Store.DirectorySubject(ctx, directory, string(user))
	if store.Missing(err) {
		return tenancy.AuthFailed() // unlinked a moment ago
	}
	if err != nil {
		return fmt.Errorf("find an identity: %w", err)
	}
	p, err := s.d.Client.LoginSubject(ctx, subject, chassis.NewSecret(password.Reveal()))
	if err != nil {
		return refusal(err)
	}
	result, err := s.d.Identity.Apply(ctx, s.person(&p), &s.d.Policy.Rules)
	if err != nil {
		return err
	}
	if result.User != user {
		return tenancy.AuthFailed()
	}
	return nil
}

// Admit proves somebody by what they typed where no account has that address (public: the password decides), and tells the account. It
// makes one where the policy allows.
func (s *Service) Admit(ctx context.Context, name string, password seal.Secret) (cluster.UserID, error) {
	if s.d.Client == nil {
		return "", tenancy.AuthFailed()
	}
	p, err := s.d.Client.Login(ctx, name, chassis.NewSecret(password.Reveal()))
	if err != nil {
		return "", refusal(err)
	}
	person := s.person(&p)
	if !s.d.Policy.CreateAtLogin {
		plan, err := s.d.Identity.Preview(ctx, person, &s.d.Policy.Rules)
		if err != nil {
			return "", err
		}
		if plan.Action == identity.Create || plan.Action == identity.Link {
			return "", fault.Deniedf("%s has no account here yet",
				person.Email).WithNext("wait for the next sync of the directory, or ask an administrator")
		}
	}
	result, err := s.d.Identity.Apply(ctx, person, &s.d.Policy.Rules)
	if err != nil {
		return "", err
	}
	return result.User, s.logInThere(ctx, result.User, person.Email)
}

// logInThere makes it a fact that the user logs in at the directory.
func (s *Service) logInThere(ctx context.Context, user cluster.UserID, email string) (err error) {
	u, err := s.d.Store.UserByRef(ctx, string(user))
	if err != nil {
		return fmt.Errorf("find user %s: %w", user, err)
	}
	if u.LoginDirectory != nil && *u.LoginDirectory == s.d.Policy.Name {
		return nil
	}
	ctx, end := audit.Begin(ctx, s.d.Store, s.actor(), "directory.take-over-login", email)
	defer end(&err)
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.LogInAtDirectory(ctx, s.d.Policy.Name, string(user)); err != nil {
			return fmt.Errorf("note where %s logs in: %w", email, err)
		}
		return nil
	})
}

// actor is the directory itself, in the record.
func (s *Service) actor() authz.Actor {
	return authz.Actor{Email: "provider:" + s.d.Policy.Name, Domain: s.d.Policy.Rules.Domain}
}

// refusal is what somebody hears whom the directory did not prove.
func refusal(err error) error {
	if errors.Is(err, ldap.ErrRefused) {
		return tenancy.AuthFailed()
	}
	return err
}

func (s *Service) person(p *ldap.Person) identity.Person {
	return identity.Person{Provider: s.d.Policy.Name, Subject: p.Subject, Email: p.Email, EmailVerified: true, Username: p.Username,
		FullName: p.FullName, Active: true, Groups: p.Groups}
}

// Request asks for a sync. DryRun changes nothing; Allowance is how many users it may take access from, when that is more than the
// limits say.
type Request struct {
	DryRun    bool
	Allowance int
}

// Sync is a comparison of the directory with the users here.
type Sync struct {
	ID, Directory string
	DryRun        bool
	// AskedBy is empty for the schedule.
	AskedBy string
	// Status is waiting, running, done, stopped (an administrator's word is needed) or failed; Message says why.
	Status, Message                                      string
	People, Created, Changed, Removed, Narrowed, Refused int
	// Diff has a line for everybody of whom something changes.
	Diff    []string
	AskedAt time.Time
	EndedAt *time.Time
}

func (s *Service) configured() error {
	if s.d.Client == nil {
		return fault.Conflictf("this cluster has no directory").WithReason("not-implemented").WithNext("operators set " +
			"manager.directory.url")
	}
	return nil
}

// Ask asks for a sync (superadmins). It is carried out in the background; Find tells how it went.
func (s *Service) Ask(ctx context.Context, a authz.Actor, r Request) (_ Sync, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "directory.sync", s.d.Policy.Name)
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "compare the directory with the users here"); err != nil {
		return Sync{}, err
	}
	if err := s.configured(); err != nil {
		return Sync{}, err
	}
	if r.Allowance < 0 || r.Allowance > maxAllowance {
		return Sync{}, fault.Invalidf("a sync may remove 0 to %d users by your word", maxAllowance)
	}
	id, err := s.add(ctx, r, a.Email)
	if err != nil {
		return Sync{}, err
	}
	return s.find(ctx, id)
}

func (s *Service) add(ctx context.Context, r Request, by string) (string, error) {
	id := s.d.IDs()
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		n, err := tx.CountOpenSyncs(ctx, s.d.Policy.Name)
		if err != nil {
			return fmt.Errorf("count syncs: %w", err)
		}
		if n >= maxOpen {
			return fault.Conflictf("%d syncs wait already", n).WithNext("wait until they are done: berth directory status")
		}
		if err := tx.AddDirectorySync(ctx, dbgen.AddDirectorySyncParams{ID: id, Directory: s.d.Policy.Name, DryRun: r.DryRun, AskedBy: by,
			Allowance: int32(r.Allowance), AskedAt: s.d.Clock()}); err != nil {
			return fmt.Errorf("ask for a sync: %w", err)
		}
		tx.Wake(store.TopicDirectory)
		return tx.ForgetDirectorySyncs(ctx, keepSyncs)
	})
	return id, err
}

// Find tells how a sync went (superadmins and monitors).
func (s *Service) Find(ctx context.Context, a authz.Actor, id string) (Sync, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "see syncs of the directory"); err != nil {
		return Sync{}, err
	}
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return Sync{}, authz.NotFound(noun, id)
	}
	return s.find(ctx, canonical)
}

func (s *Service) find(ctx context.Context, id string) (Sync, error) {
	row, err := s.d.Store.DirectorySyncByID(ctx, id)
	if store.Missing(err) {
		return Sync{}, authz.NotFound(noun, id)
	}
	if err != nil {
		return Sync{}, fmt.Errorf("read a sync: %w", err)
	}
	return view(row), nil
}

// Status is the directory and its newest syncs, without their lines.
type Status struct {
	Name      string
	Domain    string
	SyncEvery time.Duration
	Limits    Limits
	Syncs     []Sync
}

// Status tells how the directory does (superadmins and monitors).
func (s *Service) Status(ctx context.Context, a authz.Actor) (Status, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "see the directory"); err != nil {
		return Status{}, err
	}
	if err := s.configured(); err != nil {
		return Status{}, err
	}
	rows, err := s.d.Store.NewestDirectorySyncs(ctx, s.d.Policy.Name, shown)
	if err != nil {
		return Status{}, fmt.Errorf("read syncs: %w", err)
	}
	out := Status{Name: s.d.Policy.Name, Domain: s.d.Policy.Rules.Domain, SyncEvery: s.d.Policy.SyncEvery, Limits: s.d.Policy.Limits,
		Syncs: []Sync{}}
	for _, r := range rows {
		v := view(r)
		v.Diff = nil
		out.Syncs = append(out.Syncs, v)
	}
	return out, nil
}

func view(r dbgen.DirectorySync) Sync {
	return Sync{ID: r.ID, Directory: r.Directory, DryRun: r.DryRun, AskedBy: r.AskedBy, Status: r.Status, Message: r.Message,
		People: int(r.People), Created: int(r.Created), Changed: int(r.Updated), Removed: int(r.Removed), Narrowed: int(r.Narrowed),
		Refused: int(r.Refused), Diff: r.Diff, AskedAt: r.AskedAt.UTC(), EndedAt: store.UTC(r.EndedAt)}
}
