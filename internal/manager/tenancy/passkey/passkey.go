// Package passkey is logins with passkeys (WebAuthn): keys that never leave the authenticator of a user, which signs for one origin only.
// The authenticator checks its user (a finger, a code), so a passkey stands for both factors of a login.
//
// Nothing is kept of a ceremony under way: its challenge is sealed, goes to the client and comes back. It is good once and for five
// minutes.
package passkey

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"
	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

const (
	// fresh is how old a login may be that enrols a passkey.
	fresh = 10 * time.Minute
	// ceremonyLife is how long a challenge is good, maxOf how many passkeys a user has.
	ceremonyLife = 5 * time.Minute
	maxOf        = 20
	maxFlow      = 16 << 10
	maxAnswer    = 32 << 10
	loginPurpose = "passkey login"
)

func enrolPurpose(user cluster.UserID) string { return "passkey of " + string(user) }

// Deps are what a Service works with. Store, Seal, Tenancy, IDs and Log are required; Clock defaults to the system's.
type Deps struct {
	Store   *store.Store
	Seal    *seal.Key
	Tenancy *tenancy.Service
	// Origins are the web servers' addresses as browsers know them; without one there are no passkeys. The host of the first one, without
	// a port, is what passkeys are made for: the others have the same host or one below it.
	Origins []string
	Clock   func() time.Time
	IDs     func() string
	Log     *slog.Logger
}

// Service is the use cases of passkeys.
type Service struct {
	d   Deps
	lib *webauthn.WebAuthn
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.Tenancy == nil || d.IDs == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "passkey: store, seal, tenancy, ids and log are required")
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	s := &Service{d: d}
	if len(d.Origins) == 0 {
		return s, nil
	}
	first, err := url.Parse(d.Origins[0])
	if err != nil {
		return nil, fault.Invalidf("manager.web_origins: %q is no origin", d.Origins[0])
	}
	for _, o := range d.Origins {
		u, err := url.Parse(o)
		if err != nil || u.Hostname() != first.Hostname() && !strings.HasSuffix(u.Hostname(), "."+first.Hostname()) {
			return nil, fault.Invalidf("manager.web_origins: passkeys of %s cannot be used at %q", first.Hostname(), o).
				WithNext("name first the origin whose host ends the others' hosts")
		}
	}
	yes := true
	s.lib, err = webauthn.New(&webauthn.Config{RPID: first.Hostname(), RPDisplayName: "Berth", RPOrigins: d.Origins,
		AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{RequireResidentKey: &yes,
			ResidentKey: protocol.ResidentKeyRequirementRequired, UserVerification: protocol.VerificationRequired}})
	if err != nil {
		return nil, fault.Invalidf("manager.web_origins cannot be used for passkeys").WithCause(err)
	}
	return s, nil
}

func (s *Service) configured() error {
	if s.lib == nil {
		return fault.Conflictf("this cluster has no passkeys").WithReason("not-implemented").
			WithNext("operators set manager.web_origins to the web server's address")
	}
	return nil
}

// person is a user as the library sees one. The handle that authenticators keep is the user's id.
type person struct {
	id          cluster.UserID
	email, name string
	credentials []webauthn.Credential
}

func (p person) WebAuthnID() []byte {
	id, _ := uuid.Parse(string(p.id)) // it is one
	return id[:]
}
func (p person) WebAuthnName() string                       { return p.email }
func (p person) WebAuthnDisplayName() string                { return p.name }
func (p person) WebAuthnCredentials() []webauthn.Credential { return p.credentials }

// Ceremony is what a client gives to its authenticator (JSON), and what it brings back with the answer.
type Ceremony struct {
	Options json.RawMessage
	Flow    seal.Secret
}

// flow is what is remembered of a ceremony.
type flow struct {
	Session webauthn.SessionData `json:"s"`
	Ends    int64                `json:"e"`
}

func (s *Service) begun(options any, session *webauthn.SessionData, purpose string) (Ceremony, error) {
	var c Ceremony
	raw, err := json.Marshal(flow{*session, s.d.Clock().Add(ceremonyLife).Unix()})
	if err != nil {
		return c, fmt.Errorf("remember a challenge: %w", err)
	}
	sealed, err := s.d.Seal.Seal(seal.Secret(raw), purpose)
	if err != nil {
		return c, fmt.Errorf("remember a challenge: %w", err)
	}
	c.Flow = seal.Secret(base64.RawURLEncoding.EncodeToString(sealed))
	if c.Options, err = json.Marshal(options); err != nil {
		return c, fmt.Errorf("write a challenge: %w", err)
	}
	return c, nil
}

// open reads what a client brought back, and uses its challenge.
func (s *Service) open(ctx context.Context, text, purpose string) (webauthn.SessionData, error) {
	var none webauthn.SessionData
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(text) > maxFlow || len(sealed) == 0 {
		return none, stale()
	}
	raw, err := s.d.Seal.Open(sealed, purpose)
	if err != nil {
		return none, stale()
	}
	var f flow
	if err := json.Unmarshal([]byte(raw.Reveal()), &f); err != nil {
		return none, fmt.Errorf("read a challenge: %w", err)
	}
	now := s.d.Clock()
	if now.Unix() >= f.Ends {
		return none, stale()
	}
	if err := s.d.Store.ForgetProofs(ctx, now.Add(-time.Minute)); err != nil {
		return none, fmt.Errorf("forget old challenges: %w", err)
	}
	sum := sha256.Sum256([]byte("passkey challenge " + f.Session.Challenge))
	n, err := s.d.Store.UseProof(ctx, sum[:], time.Unix(f.Ends, 0))
	if err != nil {
		return none, fmt.Errorf("use a challenge: %w", err)
	}
	if n == 0 {
		return none, stale()
	}
	return f.Session, nil
}

func stale() error {
	return fault.New(fault.Unauthenticated, "this challenge was used already, is older than %s, or is of somebody else", ceremonyLife).
		WithReason("auth-failed").WithNext("begin again")
}

// BeginEnrol begins to enrol a passkey of whoever holds the token of a fresh login (public: the token decides).
func (s *Service) BeginEnrol(ctx context.Context, token string) (Ceremony, error) {
	a, err := s.d.Tenancy.FreshLogin(ctx, token, fresh)
	if err != nil {
		return Ceremony{}, err
	}
	if err := s.configured(); err != nil {
		return Ceremony{}, err
	}
	p, _, err := s.person(ctx, a.UserID, a.Email, a.FullName)
	if err != nil {
		return Ceremony{}, err
	}
	if len(p.credentials) >= maxOf {
		return Ceremony{}, full(a.Email)
	}
	options, session, err := s.lib.BeginRegistration(p,
		webauthn.WithExclusions(webauthn.Credentials(p.credentials).CredentialDescriptors()))
	if err != nil {
		return Ceremony{}, fmt.Errorf("begin to enrol a passkey: %w", err)
	}
	return s.begun(options, session, enrolPurpose(a.UserID))
}

func full(email string) error {
	return fault.Exhaustedf("%s has %d passkeys, which is all that one user may have", email, maxOf).WithNext("delete one")
}

// person reads a user's passkeys. Those that were cloned are not theirs any more.
func (s *Service) person(ctx context.Context, user cluster.UserID, email, name string) (person, []dbgen.Passkey, error) {
	p := person{id: user, email: email, name: name}
	if name == "" {
		p.name = email
	}
	rows, err := s.d.Store.PasskeysOf(ctx, string(user))
	if err != nil {
		return p, nil, fmt.Errorf("read passkeys: %w", err)
	}
	for _, r := range rows {
		var c webauthn.Credential
		if err := json.Unmarshal(r.Credential, &c); err != nil {
			return p, nil, fmt.Errorf("read passkey %s: %w", r.ID, err)
		}
		c.Authenticator.SignCount = uint32(r.SignCount)
		p.credentials = append(p.credentials, c)
	}
	return p, rows, nil
}

// Passkey is one of a user.
type Passkey struct {
	ID, Name  string
	CreatedAt time.Time
	LastUsed  *time.Time
	// Cloned: its counter went back, so there is a second one. It opens nothing.
	Cloned bool
}

// Enrol keeps a passkey of whoever holds the token of a fresh login (public: the token decides).
func (s *Service) Enrol(ctx context.Context, token, flowText, name string, answer []byte) (_ Passkey, err error) {
	a, err := s.d.Tenancy.FreshLogin(ctx, token, fresh)
	if err != nil {
		return Passkey{}, err
	}
	ctx, end := audit.Begin(ctx, s.d.Store, a, "passkey.enrol", name)
	defer end(&err)
	if err := s.configured(); err != nil {
		return Passkey{}, err
	}
	if err := goodName(name); err != nil {
		return Passkey{}, err
	}
	session, err := s.open(store.WithNote(ctx, nil), flowText, enrolPurpose(a.UserID))
	if err != nil {
		return Passkey{}, err
	}
	p, _, err := s.person(ctx, a.UserID, a.Email, a.FullName)
	if err != nil {
		return Passkey{}, err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(answer)
	if err != nil || len(answer) > maxAnswer {
		return Passkey{}, unusable(err)
	}
	made, err := s.lib.CreateCredential(p, session, parsed)
	if err != nil {
		return Passkey{}, unusable(err)
	}
	raw, err := json.Marshal(made)
	if err != nil {
		return Passkey{}, fmt.Errorf("write a passkey: %w", err)
	}
	out := Passkey{ID: s.d.IDs(), Name: name, CreatedAt: s.d.Clock().UTC()}
	n, err := s.d.Store.AddPasskey(ctx, dbgen.AddPasskeyParams{ID: out.ID, UserID: string(a.UserID), CredentialID: made.ID, Credential: raw,
		SignCount: int64(made.Authenticator.SignCount), Name: name, CreatedAt: out.CreatedAt, Most: maxOf})
	switch {
	case store.Duplicate(err, "passkeys_user_id_name_key"):
		return Passkey{}, fault.Conflictf("%s has a passkey called %s already", a.Email, name).WithNext("choose another name")
	case store.Duplicate(err, "passkeys_credential_id_key"):
		return Passkey{}, fault.Conflictf("this passkey is enrolled already")
	case err != nil:
		return Passkey{}, fmt.Errorf("store a passkey: %w", err)
	case n == 0:
		return Passkey{}, full(a.Email)
	}
	return out, nil
}

func goodName(name string) error {
	if n := len([]rune(name)); n == 0 || n > 64 || store.Text(name) != name ||
		strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fault.Invalidf("%.80q cannot be the name of a passkey", name).WithNext("use 1 to 64 characters, for example the device's name")
	}
	return nil
}

// unusable is the answer to what an authenticator should not say. The library's details are of what the client sent.
func unusable(err error) error {
	words := "its parts do not fit"
	var said *protocol.Error
	if errors.As(err, &said) {
		words = said.Details
	}
	return fault.Invalidf("the answer of the authenticator is not good: %.200s", words).WithCause(err).WithNext("begin again")
}

// BeginLogin begins a login with any passkey (public).
func (s *Service) BeginLogin(context.Context) (Ceremony, error) {
	if err := s.configured(); err != nil {
		return Ceremony{}, err
	}
	options, session, err := s.lib.BeginDiscoverableLogin(webauthn.WithUserVerification(protocol.VerificationRequired))
	if err != nil {
		return Ceremony{}, fmt.Errorf("begin a login with a passkey: %w", err)
	}
	return s.begun(options, session, loginPurpose)
}

// Login opens a login with a passkey (public: the passkey decides). Whatever is wrong, the answer is AuthFailed, but for a passkey that was
// cloned.
func (s *Service) Login(ctx context.Context, flowText string, answer []byte, at tenancy.LoginAttempt) (tenancy.Login, error) {
	var none tenancy.Login
	if err := s.configured(); err != nil {
		return none, err
	}
	session, err := s.open(ctx, flowText, loginPurpose)
	if err != nil {
		return none, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(answer)
	if err != nil || len(answer) > maxAnswer {
		return none, unusable(err)
	}
	var row dbgen.Passkey
	find := func(rawID, handle []byte) (webauthn.User, error) {
		r, err := s.d.Store.PasskeyByCredential(ctx, rawID)
		if err != nil {
			return nil, fmt.Errorf("find a passkey: %w", err)
		}
		p, _, err := s.person(ctx, cluster.UserID(r.UserID), "", "")
		if err != nil {
			return nil, err
		}
		if string(p.WebAuthnID()) != string(handle) {
			return nil, errors.New("the passkey is of another user")
		}
		row = r
		return p, nil
	}
	_, used, err := s.lib.ValidatePasskeyLogin(find, session, parsed)
	if err != nil {
		s.d.Log.Info("a login with a passkey failed", "error", err, "client", at.From)
		return none, tenancy.AuthFailed()
	}
	if row.ClonedAt != nil {
		return none, cloned(row.Name)
	}
	user := cluster.UserID(row.UserID)
	if used.Authenticator.CloneWarning {
		s.d.Log.Warn("the counter of a passkey went back: there are two of it; it is closed", "user", user, "passkey", row.Name,
			"client", at.From)
		if err := s.close(ctx, user, row); err != nil {
			return none, err
		}
		return none, cloned(row.Name)
	}
	raw, err := json.Marshal(used)
	if err != nil {
		return none, fmt.Errorf("write a passkey: %w", err)
	}
	n, err := s.d.Store.UsePasskey(ctx, int64(used.Authenticator.SignCount), raw, new(s.d.Clock()), row.ID)
	if err != nil {
		return none, fmt.Errorf("note the use of a passkey: %w", err)
	}
	if n == 0 { // somebody else used it with a later counter meanwhile, or it was deleted
		return none, tenancy.AuthFailed()
	}
	return s.d.Tenancy.OpenLogin(ctx, user, at, true)
}

func cloned(name string) error {
	return fault.New(fault.Unauthenticated, "the passkey %s was copied, so it opens nothing any more", name).WithReason("auth-failed").
		WithNext("log in otherwise, delete it and enrol another one")
}

// close notes that there are two of a passkey.
func (s *Service) close(ctx context.Context, user cluster.UserID, row dbgen.Passkey) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, authz.Actor{UserID: user}, "passkey.close", row.Name)
	defer end(&err)
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		return tx.NoteClone(ctx, row.ID, new(s.d.Clock()))
	})
}
