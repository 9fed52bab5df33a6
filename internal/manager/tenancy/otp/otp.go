// Package otp is one-time passwords as a second factor of logins: time-based codes of six digits (TOTP, RFC 6238, SHA-1, 30 seconds), and
// recovery codes for those who lost the device. Secrets are sealed; of recovery codes only hashes are kept. A code is good once.
//
// Service is a tenancy.SecondFactor: logins ask Check. Requests that are signed with a keypair, and API tokens, are not asked for a code.
package otp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	library "github.com/pquerna/otp"
	"github.com/pquerna/otp/hotp"

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
	// issuer is shown by the apps that make codes.
	issuer = "Berth"
	// step is how long a code lives; those of skew steps before and after are good, too, because clocks differ.
	step = 30
	skew = 1
	// secretBytes is the length that RFC 4226 recommends.
	secretBytes = 20
	// recoveryCodes is how many there are; each has 16 letters and digits of base32, which are 80 bits.
	recoveryCodes, recoveryBytes = 10, 10
	// After maxFailures wrong codes in a row, none is looked at for failurePause: whoever gets here knows the password.
	maxFailures  = 10
	failurePause = 15 * time.Minute
	// registrationLife is how long somebody may enrol who has to before the login.
	registrationLife = 5 * time.Minute
)

// Deps are what a Service works with. Store, Seal and Log are required; Clock and Random default to the system's.
type Deps struct {
	Store  *store.Store
	Seal   *seal.Key
	Clock  func() time.Time
	Random io.Reader
	// Required are the roles whose users have to have a second factor.
	Required []authz.Role
	Log      *slog.Logger
}

// Service is the use cases of one-time passwords.
type Service struct{ d Deps }

var _ tenancy.SecondFactor = (*Service)(nil)

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "otp: store, seal and log are required")
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{d}, nil
}

func purpose(user string) string { return "totp " + user }

// Status is what a user has.
type Status struct {
	Activated bool
	// Required: the role of the user has to have one.
	Required      bool
	RecoveryCodes int // that are left
}

// Status tells the actor about their own second factor.
func (s *Service) Status(ctx context.Context, a authz.Actor) (Status, error) {
	if err := authz.Authenticated(a); err != nil {
		return Status{}, err
	}
	row, err := s.d.Store.OTPOf(ctx, string(a.UserID))
	if err != nil {
		return Status{}, fmt.Errorf("read the second factor of %s: %w", a.Email, err)
	}
	return Status{Activated: row.TotpActivated, Required: s.required(row), RecoveryCodes: int(row.RecoveryCodes)}, nil
}

func (s *Service) required(r dbgen.OTPOfRow) bool {
	return slices.Contains(s.d.Required, authz.Role(r.Role))
}

// Enrolment is a secret that awaits its first code.
type Enrolment struct {
	Key seal.Secret // base32
	URI seal.Secret // otpauth://, for a picture that phones read
}

// Enrol makes a new secret of the actor. It counts when Confirm gets a code of it; until then it may be made anew.
func (s *Service) Enrol(ctx context.Context, a authz.Actor) (_ Enrolment, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.enrol-otp", a.Email)
	defer end(&err)
	if err := authz.InPerson(a, "change second factors"); err != nil {
		return Enrolment{}, err
	}
	return s.enrol(ctx, string(a.UserID), a.Email)
}

func (s *Service) enrol(ctx context.Context, user, email string) (Enrolment, error) {
	raw := make([]byte, secretBytes)
	if _, err := io.ReadFull(s.d.Random, raw); err != nil {
		return Enrolment{}, fmt.Errorf("make a secret: %w", err)
	}
	key := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw)
	sealed, err := s.d.Seal.Seal(seal.Secret(key), purpose(user))
	if err != nil {
		return Enrolment{}, fmt.Errorf("seal a secret: %w", err)
	}
	n, err := s.d.Store.SetOTPSecret(ctx, sealed, user)
	if err != nil {
		return Enrolment{}, fmt.Errorf("store a secret: %w", err)
	}
	if n == 0 {
		return Enrolment{}, fault.Conflictf("%s has a second factor already", email).WithNext("remove it first")
	}
	query := url.Values{"secret": {key}, "issuer": {issuer}, "algorithm": {"SHA1"}, "digits": {"6"}, "period": {fmt.Sprint(step)}}
	// Spaces are %20 there: readers of these addresses do not take a plus for one.
	uri := "otpauth://totp/" + url.PathEscape(issuer+":"+email) + "?" + strings.ReplaceAll(query.Encode(), "+", "%20")
	return Enrolment{seal.Secret(key), seal.Secret(uri)}, nil
}

// Confirm activates the actor's second factor with a code of it, and returns fresh recovery codes, which nobody can be told again.
func (s *Service) Confirm(ctx context.Context, a authz.Actor, code string) (_ []string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.confirm-otp", a.Email)
	defer end(&err)
	if err := authz.InPerson(a, "change second factors"); err != nil {
		return nil, err
	}
	return s.confirm(ctx, string(a.UserID), code)
}

func (s *Service) confirm(ctx context.Context, user, code string) ([]string, error) {
	row, err := s.d.Store.OTPOf(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("read the second factor: %w", err)
	}
	switch {
	case row.TotpActivated:
		return nil, fault.Conflictf("%s has a second factor already", row.Email)
	case row.SecretSealed == nil:
		return nil, fault.Conflictf("%s has not begun to enrol", row.Email).WithNext("begin with POST /totp")
	}
	if err := s.use(ctx, row, code, false); err != nil {
		return nil, wrongCode(err)
	}
	codes, hashes, err := s.newRecoveryCodes(user)
	if err != nil {
		return nil, err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		n, err := tx.ActivateOTP(ctx, user)
		if err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		if n == 0 {
			return fault.Conflictf("%s has a second factor already", row.Email)
		}
		return tx.ReplaceRecoveryCodes(ctx, user, hashes)
	})
	if err != nil {
		return nil, fmt.Errorf("activate the second factor of %s: %w", row.Email, err)
	}
	return codes, nil
}

// wrongCode is the answer to a wrong code of somebody who is let in already: their request is bad, not their signature.
func wrongCode(err error) error {
	if fault.Is(err, fault.Unauthenticated) {
		return fault.Invalidf("Invalid TOTP code provided").WithNext("type the code that the app shows now; a code is good once")
	}
	return err
}

// RenewRecoveryCodes replaces the actor's recovery codes, with a code of the second factor.
func (s *Service) RenewRecoveryCodes(ctx context.Context, a authz.Actor, code string) (_ []string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.renew-recovery-codes", a.Email)
	defer end(&err)
	if err := authz.InPerson(a, "change second factors"); err != nil {
		return nil, err
	}
	row, err := s.d.Store.OTPOf(ctx, string(a.UserID))
	if err != nil {
		return nil, fmt.Errorf("read the second factor: %w", err)
	}
	if !row.TotpActivated || row.SecretSealed == nil {
		return nil, fault.Conflictf("%s has no second factor", a.Email)
	}
	if err := s.use(ctx, row, code, false); err != nil {
		return nil, wrongCode(err)
	}
	codes, hashes, err := s.newRecoveryCodes(row.ID)
	if err != nil {
		return nil, err
	}
	if err := s.d.Store.ReplaceRecoveryCodes(ctx, row.ID, hashes); err != nil {
		return nil, fmt.Errorf("store recovery codes: %w", err)
	}
	return codes, nil
}

// Remove takes a second factor away: the actor's own (email ""), or that of a user whom the actor administers.
func (s *Service) Remove(ctx context.Context, a authz.Actor, email string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "user.remove-otp", email)
	defer end(&err)
	if err := authz.InPerson(a, "change second factors"); err != nil {
		return err
	}
	id := string(a.UserID)
	if email != "" && email != a.Email {
		row, err := s.d.Store.OTPByEmail(ctx, store.Text(email))
		if err != nil && !store.Missing(err) {
			return fmt.Errorf("find user %s: %w", email, err)
		}
		o := authz.Object{Name: email, Owner: cluster.UserID(row.ID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
		if store.Missing(err) {
			return authz.NotFound("user", email)
		}
		if err := authz.Users.Check(a, authz.Administer, o); err != nil {
			return err
		}
		id = row.ID
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeactivateOTP(ctx, id); err != nil {
			return fmt.Errorf("deactivate the second factor: %w", err)
		}
		if _, err := tx.DeleteOTP(ctx, id); err != nil {
			return fmt.Errorf("delete the second factor: %w", err)
		}
		return nil
	})
}

// Check implements tenancy.SecondFactor: answers["otp"] is a code, or one of the recovery codes.
func (s *Service) Check(ctx context.Context, a authz.Actor, answers map[string]string) error {
	row, err := s.d.Store.OTPOf(ctx, string(a.UserID))
	if err != nil {
		return fmt.Errorf("read the second factor: %w", err)
	}
	switch given := answers["otp"]; {
	case !row.TotpActivated && s.required(row):
		token, err := s.registration(row.ID)
		if err != nil {
			return err
		}
		return tenancy.OTPRegistrationNeeded(token)
	case !row.TotpActivated:
		return nil
	case given == "":
		return tenancy.OTPNeeded()
	default:
		return s.use(ctx, row, given, true)
	}
}

// use accepts a code once, or says OTPWrong. Codes of all steps are compared, whichever fits, so that the time tells nothing.
func (s *Service) use(ctx context.Context, row dbgen.OTPOfRow, given string, recovery bool) error {
	// What is counted of codes is no change that the record of the use case is about: that is what follows a right code.
	ctx = store.WithNote(ctx, nil)
	now := s.d.Clock()
	if row.Failures >= maxFailures && row.FailedAt != nil && now.Sub(*row.FailedAt) < failurePause {
		return fault.Exhaustedf("%s got %d wrong codes in a row", row.Email, row.Failures).WithReason("rate-limit-exceeded").
			WithCause(tenancy.ErrSecondFactor).WithNext("wait %s, or ask an administrator to remove the second factor", failurePause)
	}
	secret, err := s.d.Seal.Open(row.SecretSealed, purpose(row.ID))
	if err != nil {
		return fmt.Errorf("open the secret: %w", err)
	}
	matched, err := match(secret, given, now)
	if err != nil {
		return err
	}
	used := int64(0)
	switch {
	case matched > 0:
		used, err = s.d.Store.UseOTPStep(ctx, matched, row.ID)
	case recovery:
		used, err = s.d.Store.UseRecoveryCode(ctx, row.ID, hashOf(row.ID, given))
		if err == nil && used > 0 {
			s.d.Log.Warn("a recovery code was used", "user", row.Email, "left", row.RecoveryCodes-1)
			err = s.d.Store.ForgiveOTP(ctx, row.ID)
		}
	}
	if err != nil {
		return fmt.Errorf("note the use of a code: %w", err)
	}
	if used == 0 {
		if err := s.d.Store.NoteWrongOTP(ctx, row.ID); err != nil {
			return fmt.Errorf("note a wrong code: %w", err)
		}
		return tenancy.OTPWrong()
	}
	return nil
}

// match returns the step whose code was given, 0 when there is none.
func match(secret seal.Secret, given string, now time.Time) (int64, error) {
	given = strings.Map(func(r rune) rune {
		if r == ' ' || r == '-' {
			return -1
		}
		return r
	}, given)
	current, matched := now.Unix()/step, int64(0)
	for at := current - skew; at <= current+skew; at++ {
		code, err := hotp.GenerateCodeCustom(secret.Reveal(), uint64(at),
			hotp.ValidateOpts{Digits: library.DigitsSix, Algorithm: library.AlgorithmSHA1})
		if err != nil {
			return 0, fmt.Errorf("compute a code: %w", err)
		}
		matched = max(matched, at*int64(subtle.ConstantTimeCompare([]byte(code), []byte(given))))
	}
	return matched, nil
}

// newRecoveryCodes makes codes of four groups of four letters and digits.
func (s *Service) newRecoveryCodes(user string) (codes []string, hashes [][]byte, err error) {
	for range recoveryCodes {
		raw := make([]byte, recoveryBytes)
		if _, err := io.ReadFull(s.d.Random, raw); err != nil {
			return nil, nil, fmt.Errorf("make recovery codes: %w", err)
		}
		text := strings.ToLower(base32.StdEncoding.EncodeToString(raw))
		codes = append(codes, text[:4]+"-"+text[4:8]+"-"+text[8:12]+"-"+text[12:])
		hashes = append(hashes, hashOf(user, text))
	}
	return codes, hashes, nil
}

// hashOf is what is kept of a recovery code; groups and case do not matter.
func hashOf(user, code string) []byte {
	code = strings.ToLower(strings.NewReplacer("-", "", " ", "").Replace(code))
	sum := sha256.Sum256([]byte("berth recovery code\n" + user + "\n" + code))
	return sum[:]
}
