// Package notice tells users by e-mail and webhook what happened to what is theirs: sessions that ended, failed or will end, folders that
// were shared with them. Each user says of what they want to hear where; by default they hear nothing.
//
// Triggers note in the transaction of an event that it may become a notice (migration 0069), the leader's loop decides (package rule),
// stores a delivery for each channel and sends it. A notice comes at least once: its id is the same whenever it comes again.
package notice

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/notice/rule"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// secretBytes is the length of a webhook's secret before its encoding, secretPrefix what it begins with.
	secretBytes  = 32
	secretPrefix = "bwhs_"
	// maxTests is how many notices a user may have sent within testsWithin to try their ways.
	maxTests    = 5
	testsWithin = 10 * time.Minute
	// kept is how many deliveries of a user are remembered, and listed.
	kept = 100
)

// Mailer sends an e-mail.
type Mailer interface {
	Send(ctx context.Context, to, subject, text string) error
}

// Deps are what a Service works with. Store, Seal, Clock, IDs and Log are required; without Mailer no e-mail is sent. Random defaults to
// the system's.
type Deps struct {
	Store  *store.Store
	Seal   *seal.Key
	Mailer Mailer
	// Receivers says where webhooks may go.
	Receivers callback.Policy
	Clock     func() time.Time
	IDs       func() string
	Random    io.Reader
	Log       *slog.Logger
}

// Service is the use cases.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.Clock == nil || d.IDs == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "notice: store, seal, clock, ids and log are required")
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	return &Service{d}, nil
}

// Wishes are what a user wants to hear of where.
type Wishes struct {
	Email []rule.Kind
	// URL is where the webhook goes; "" when there is none.
	URL     string
	Webhook []rule.Kind
}

// Preferences are the wishes of a user and what becomes of them.
type Preferences struct {
	Wishes
	// Address is where e-mails go. NoEmail says in words why none are sent; "" when they are.
	Address, NoEmail string
}

// Change is what a user wants instead. Secret asks for a new secret of the webhook, which one with a new address always gets.
type Change struct {
	Wishes
	Secret bool
}

// Preferences are those of the actor.
func (s *Service) Preferences(ctx context.Context, a authz.Actor) (p Preferences, err error) {
	if err := authz.Users.Need(a, authz.See, own(a), "see where notices go"); err != nil {
		return p, err
	}
	row, err := s.d.Store.NoticePreferences(ctx, string(a.UserID))
	if err != nil && !store.Missing(err) {
		return p, fmt.Errorf("read the preferences of %s: %w", a.Email, err)
	}
	p.Email, p.Webhook = kindsOf(row.EmailKinds), kindsOf(row.WebhookKinds)
	if row.WebhookUrl != nil {
		p.URL = *row.WebhookUrl
	}
	return s.told(ctx, a, p)
}

// told adds what the user cannot choose.
func (s *Service) told(ctx context.Context, a authz.Actor, p Preferences) (Preferences, error) {
	p.Address = a.Email
	r, err := s.d.Store.NoticeReader(ctx, string(a.UserID))
	if err != nil {
		return p, fmt.Errorf("read user %s: %w", a.Email, err)
	}
	p.NoEmail = rule.Wanted(rule.Test, rule.Email, rule.Reader{Active: r.Active, Service: r.IsService, MailWorks: s.d.Mailer != nil})
	return p, nil
}

// SetPreferences replaces those of the actor. secret is that of the webhook when a new one was made: it is told this once.
func (s *Service) SetPreferences(ctx context.Context, a authz.Actor, c Change) (p Preferences, secret seal.Secret, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "notice.set-preferences", a.Email)
	defer end(&err)
	if err := authz.Users.Need(a, authz.Change, own(a), "change where notices go"); err != nil {
		return p, "", err
	}
	// Whoever changes it hears of everything from then on, and is told a secret.
	if err := authz.InPerson(a, "change where notices go"); err != nil {
		return p, "", err
	}
	if c.Wishes, err = checked(c.Wishes); err != nil {
		return p, "", err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		secret = ""
		row, err := tx.LockNoticePreferences(ctx, string(a.UserID))
		if err != nil {
			return fmt.Errorf("read preferences: %w", err)
		}
		if c.URL == "" && len(c.Email) == 0 {
			return tx.DropNoticePreferences(ctx, string(a.UserID))
		}
		set := dbgen.SetNoticePreferencesParams{UserID: string(a.UserID), EmailKinds: textsOf(c.Email), WebhookKinds: textsOf(c.Webhook)}
		if c.URL != "" {
			set.WebhookUrl, set.WebhookSecretSealed = &c.URL, row.WebhookSecretSealed
			// The receiver of an old address could sign for the new one.
			if c.Secret || row.WebhookUrl == nil || *row.WebhookUrl != c.URL {
				if secret, set.WebhookSecretSealed, err = s.freshSecret(string(a.UserID)); err != nil {
					return err
				}
			}
		}
		return tx.SetNoticePreferences(ctx, set)
	})
	if err != nil {
		return p, "", fmt.Errorf("store the preferences of %s: %w", a.Email, err)
	}
	p, err = s.told(ctx, a, Preferences{Wishes: c.Wishes})
	return p, secret, err
}

func (s *Service) freshSecret(user string) (secret seal.Secret, sealed []byte, err error) {
	raw := make([]byte, secretBytes)
	if _, err := io.ReadFull(s.d.Random, raw); err != nil {
		return "", nil, fmt.Errorf("make a secret: %w", err)
	}
	secret = seal.Secret(secretPrefix + base64.RawURLEncoding.EncodeToString(raw))
	if sealed, err = s.d.Seal.Seal(secret, purpose(user)); err != nil {
		return "", nil, fmt.Errorf("seal a secret: %w", err)
	}
	return secret, sealed, nil
}

func purpose(user string) string { return "webhook " + user }

// checked is wishes that can be stored: each kind once, in the order of rule.Kinds.
func checked(w Wishes) (Wishes, error) {
	for _, kinds := range []*[]rule.Kind{&w.Email, &w.Webhook} {
		for _, k := range *kinds {
			if !slices.Contains(rule.Kinds(), k) {
				return w, fault.Invalidf("%.40q is no kind of notice", string(k)).WithNext("use ended, failed, idle or shared")
			}
		}
		*kinds = slices.DeleteFunc(rule.Kinds(), func(k rule.Kind) bool { return !slices.Contains(*kinds, k) })
	}
	if w.URL == "" {
		if len(w.Webhook) > 0 {
			return w, fault.Invalidf("there is no webhook that could be told").WithNext("give its address, too")
		}
		return w, nil
	}
	if store.Text(w.URL) != w.URL {
		return w, fault.Invalidf("the address of the webhook is no text")
	}
	return w, callback.CheckAddress(w.URL)
}

// SendTest has a notice sent that tells of nothing, and returns its id.
func (s *Service) SendTest(ctx context.Context, a authz.Actor, c rule.Channel) (id string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "notice.test", string(c))
	defer end(&err)
	if err := authz.Users.Need(a, authz.Change, own(a), "have a notice sent"); err != nil {
		return "", err
	}
	if c != rule.Email && c != rule.Webhook {
		return "", fault.Invalidf("%.40q is no way for notices", string(c)).WithNext("use email or webhook")
	}
	now := s.d.Clock()
	id = s.d.IDs()
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// The row is locked, so that tests are counted one after the other.
		row, err := tx.LockNoticePreferences(ctx, string(a.UserID))
		if err != nil {
			return fmt.Errorf("read preferences: %w", err)
		}
		r, err := tx.NoticeReader(ctx, string(a.UserID))
		if err != nil {
			return fmt.Errorf("read user %s: %w", a.Email, err)
		}
		why := rule.Wanted(rule.Test, c, rule.Reader{Active: r.Active, Service: r.IsService, HasWebhook: row.WebhookUrl != nil,
			MailWorks: s.d.Mailer != nil})
		if why != "" {
			return fault.Conflictf("no notice can be sent: %s", why).WithNext("see where notices go: berth notice show")
		}
		n, err := tx.CountNoticeTests(ctx, string(a.UserID), now.Add(-testsWithin))
		if err != nil {
			return fmt.Errorf("count tests: %w", err)
		}
		if n >= maxTests {
			return fault.Exhaustedf("%d notices were sent to try the way within %d minutes", n, int(testsWithin.Minutes())).
				WithReason("rate-limit-exceeded").
				WithNext("wait some minutes")
		}
		err = tx.AddNoticeDelivery(ctx, dbgen.AddNoticeDeliveryParams{NoticeID: id, Channel: string(c), UserID: string(a.UserID),
			Kind: string(rule.Test), Words: "This is a test: notices of Berth reach you here.", At: now, State: waiting, Now: now})
		if err != nil || row.WebhookUrl != nil || len(row.EmailKinds) > 0 {
			return err
		}
		return tx.DropNoticePreferences(ctx, string(a.UserID)) // made to be locked
	})
	if err != nil {
		return "", err
	}
	s.d.Store.Wake(store.TopicNotices)
	return id, nil
}

// Delivery is a notice on its way, arrived, or given up.
type Delivery struct {
	ID                         string
	Channel                    rule.Channel
	Kind                       rule.Kind
	SubjectKind, Subject, Name string
	Reason, Words              string
	At                         time.Time // of what it tells
	State                      string    // waiting, sent or failed
	Attempts                   int
	// Next is when it is tried again, Done when it arrived or was given up.
	Next, Done *time.Time
	// Error is what went wrong last.
	Error string
}

// Deliveries are the last notices of the actor, the newest first.
func (s *Service) Deliveries(ctx context.Context, a authz.Actor) ([]Delivery, error) {
	if err := authz.Users.Need(a, authz.See, own(a), "see notices"); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.NoticesOf(ctx, string(a.UserID), kept)
	if err != nil {
		return nil, fmt.Errorf("read the notices of %s: %w", a.Email, err)
	}
	out := make([]Delivery, len(rows))
	for i, r := range rows {
		out[i] = Delivery{ID: r.NoticeID, Channel: rule.Channel(r.Channel), Kind: rule.Kind(r.Kind), SubjectKind: r.SubjectKind,
			Subject: r.Subject, Name: r.Name, Reason: r.Reason, Words: r.Words, At: r.At, State: r.State, Attempts: int(r.Attempts),
			Done: r.DoneAt, Error: r.LastError}
		if r.State == waiting {
			out[i].Next = &rows[i].NextAt
		}
	}
	return out, nil
}

// own is what belongs to the actor: nobody sees or changes where somebody else hears of what.
func own(a authz.Actor) authz.Object { return authz.Object{Owner: a.UserID} }

func kindsOf(texts []string) []rule.Kind {
	out := make([]rule.Kind, len(texts))
	for i, t := range texts {
		out[i] = rule.Kind(t)
	}
	return out
}

func textsOf(kinds []rule.Kind) []string {
	out := make([]string, len(kinds))
	for i, k := range kinds {
		out[i] = string(k)
	}
	return out
}

// Reseal seals all secrets of webhooks with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	return store.Reseal(ctx, db, store.BeforeAllUUIDs,
		func(ctx context.Context, tx *store.Tx, after string, limit int32) ([]dbgen.SealedOfNoticesRow, error) {
			return tx.SealedOfNotices(ctx, after, limit)
		},
		func(ctx context.Context, tx *store.Tx, r dbgen.SealedOfNoticesRow) (string, bool, error) {
			fresh, is, err := key.Reseal(r.WebhookSecretSealed, purpose(r.UserID))
			if err != nil || !is {
				return r.UserID, false, err
			}
			return r.UserID, true, tx.ResealNotices(ctx, fresh, r.UserID)
		})
}
