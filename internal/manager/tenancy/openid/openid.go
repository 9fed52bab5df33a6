// Package openid is logins at identity providers by OpenID Connect: the authorization code flow with PKCE, state and nonce, and tokens
// that a provider signed for us. What a provider says becomes an identity.Person, and package identity decides.
//
// Nothing is kept of a login under way: what must be remembered is sealed and goes with the browser (a cookie of the web server) and
// comes back. It is good once and for ten minutes.
package openid

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

const (
	flowLife    = 10 * time.Minute
	flowPurpose = "oidc flow"
	maxFlow     = 8 << 10
	maxToken    = 64 << 10
	maxNext     = 1024
	// maxTokenLife bounds how long a token for us may be good, because it opens a login once.
	maxTokenLife = 10 * time.Minute
)

// Deps are what a Service works with. All but Transport, Clock and Random are required.
type Deps struct {
	Store      *store.Store
	Seal       *seal.Key
	Tenancy    *tenancy.Service
	Identities *identity.Service
	Providers  map[string]Config
	// Origins are the web servers' addresses: providers send people back there and nowhere else.
	Origins   []string
	Transport http.RoundTripper
	Clock     func() time.Time
	Random    io.Reader
	Log       *slog.Logger
}

// Service is the use cases of logins at identity providers.
type Service struct {
	d         Deps
	providers map[string]*provider
}

// New makes the use cases. It asks no provider.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.Tenancy == nil || d.Identities == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "openid: store, seal, tenancy, identities and log are required")
	}
	if err := Validate(d.Providers, d.Origins); err != nil {
		return nil, err
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxResponseHeaderBytes, t.MaxConnsPerHost = 64<<10, 16
		d.Transport = t
	}
	s := &Service{d: d, providers: map[string]*provider{}}
	for name, c := range d.Providers {
		s.providers[name] = newProvider(name, c.withDefaults(name), d.Transport, d.Clock)
	}
	return s, nil
}

// Provider is one as people see it.
type Provider struct{ Name, Title string }

// Providers are those that let people in, by name (public).
func (s *Service) Providers() []Provider {
	out := []Provider{}
	for _, name := range slices.Sorted(maps.Keys(s.providers)) {
		out = append(out, Provider{name, s.providers[name].cfg.Title})
	}
	return out
}

func (s *Service) find(name string) (*provider, error) {
	p := s.providers[name]
	if p == nil {
		return nil, fault.NotFoundf("there is no identity provider %.40q", name).WithNext("choose one of GET /server/oidc")
	}
	return p, nil
}

// flow is what is remembered of a login under way.
type flow struct {
	Provider string `json:"p"`
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Redirect string `json:"r"`
	Next     string `json:"x"`
	Force    bool   `json:"f"`
	Ends     int64  `json:"e"`
}

// Begun is where the browser goes, and what it has to bring back.
type Begun struct {
	URL  string
	Flow seal.Secret
}

// Start is what a login begins with.
type Start struct {
	Provider string
	// Origin is the web server as the browser knows it.
	Origin string
	// Next is where the browser goes afterwards, a path of the web server.
	Next string
	// Force ends the oldest login where the user has as many as allowed.
	Force bool
}

// Begin begins a login at a provider (public).
func (s *Service) Begin(ctx context.Context, at Start) (Begun, error) {
	p, err := s.find(at.Provider)
	if err != nil {
		return Begun{}, err
	}
	origin := slices.IndexFunc(s.d.Origins, func(o string) bool { return strings.EqualFold(o, at.Origin) })
	if origin < 0 {
		return Begun{}, fault.Deniedf("the web server %.80q is none of manager.web_origins", printable(at.Origin)).
			WithNext("reach it by its right address, or ask the operator to add this one")
	}
	if at.Next == "" {
		at.Next = "/"
	}
	if !GoodNext(at.Next) {
		return Begun{}, fault.Invalidf("%.80q is no path of the web server", printable(at.Next))
	}
	found, err := p.discover(ctx)
	if err != nil {
		return Begun{}, err
	}
	f := flow{Provider: p.name, Redirect: s.d.Origins[origin] + "/server/oidc/" + p.name + "/callback", Next: at.Next, Force: at.Force,
		Ends: s.d.Clock().Add(flowLife).Unix()}
	for _, to := range []*string{&f.State, &f.Nonce, &f.Verifier} {
		raw := make([]byte, 32)
		if _, err := io.ReadFull(s.d.Random, raw); err != nil {
			return Begun{}, fmt.Errorf("begin a login: %w", err)
		}
		*to = base64.RawURLEncoding.EncodeToString(raw)
	}
	o, err := p.oauth(found, f.Redirect)
	if err != nil {
		return Begun{}, err
	}
	raw, err := json.Marshal(f)
	if err != nil {
		return Begun{}, fmt.Errorf("begin a login: %w", err)
	}
	sealed, err := s.d.Seal.Seal(seal.Secret(raw), flowPurpose)
	if err != nil {
		return Begun{}, fmt.Errorf("begin a login: %w", err)
	}
	return Begun{URL: o.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)),
		Flow: seal.Secret(base64.RawURLEncoding.EncodeToString(sealed))}, nil
}

// GoodNext reports whether a text is a path of the web server, which leads nowhere else. Of the server's own addresses it is only the page
// on which the user lets a command line in, and which asks first.
func GoodNext(next string) bool {
	own := strings.HasPrefix(next, "/server/") && !strings.HasPrefix(next, "/server/cli?")
	return len(next) <= maxNext && strings.HasPrefix(next, "/") && !strings.HasPrefix(next, "//") && !own &&
		!strings.ContainsFunc(next, func(c rune) bool { return c < 33 || c > 126 || c == '\\' })
}

// Answer is with what a provider sent the browser back.
type Answer struct {
	// Provider is the one whose address was called.
	Provider string
	// Flow is what the browser brought along.
	Flow string
	// State, Code, Issuer, Error and Details are the members of the address.
	State, Code, Issuer, Error, Details string
}

// Done is a login that opened.
type Done struct {
	tenancy.Login
	Next string
}

// Finish ends a login at a provider (public: the provider's answer decides).
func (s *Service) Finish(ctx context.Context, a Answer, at tenancy.LoginAttempt) (Done, error) {
	p, err := s.find(a.Provider)
	if err != nil {
		return Done{}, err
	}
	f, err := s.open(a)
	if err != nil {
		return Done{}, err
	}
	if a.Error != "" {
		return Done{}, refused("%s refuses the login: %.80s %.200s", p.cfg.Title, printable(a.Error), printable(a.Details))
	}
	if a.Code == "" || len(a.Code) > maxToken {
		return Done{}, refused("%s sent no code", p.cfg.Title)
	}
	if err := s.once(ctx, "oidc state "+f.State, time.Unix(f.Ends, 0)); err != nil {
		return Done{}, err
	}
	found, err := p.discover(ctx)
	if err != nil {
		return Done{}, err
	}
	if a.Issuer != "" && a.Issuer != p.cfg.Issuer { // RFC 9207
		return Done{}, refused("the answer is of another provider than %s", p.cfg.Title)
	}
	raw, err := p.exchange(ctx, found, f, a.Code)
	if err != nil {
		return Done{}, err
	}
	c, err := p.verify(ctx, found, raw, p.cfg.ClientID)
	if err != nil {
		return Done{}, err
	}
	if subtle.ConstantTimeCompare([]byte(c.Nonce), []byte(f.Nonce)) != 1 {
		return Done{}, refused("the token of %s was made for another login", p.cfg.Title)
	}
	at.Force = f.Force
	l, err := s.admit(ctx, p, &c, at)
	return Done{l, f.Next}, err
}

// open reads what the browser brought along, and compares it with what the provider sent.
func (s *Service) open(a Answer) (*flow, error) {
	stale := refused("this login was not begun in this browser, or more than %s ago", flowLife)
	sealed, err := base64.RawURLEncoding.DecodeString(a.Flow)
	if err != nil || len(a.Flow) > maxFlow || len(sealed) == 0 {
		return nil, stale
	}
	text, err := s.d.Seal.Open(sealed, flowPurpose)
	if err != nil {
		return nil, stale
	}
	var f flow
	if err := json.Unmarshal([]byte(text.Reveal()), &f); err != nil {
		return nil, fmt.Errorf("read a login under way: %w", err)
	}
	if f.Provider != a.Provider || f.State == "" || subtle.ConstantTimeCompare([]byte(f.State), []byte(a.State)) != 1 ||
		s.d.Clock().Unix() >= f.Ends {
		return nil, stale
	}
	return &f, nil
}

// once notes that a proof was used. It is good until then, and once.
func (s *Service) once(ctx context.Context, proof string, until time.Time) error {
	sum := sha256.Sum256([]byte(proof))
	if err := s.d.Store.ForgetProofs(ctx, s.d.Clock().Add(-time.Minute)); err != nil {
		return fmt.Errorf("forget old proofs: %w", err)
	}
	n, err := s.d.Store.UseProof(ctx, sum[:], until)
	if err != nil {
		return fmt.Errorf("use a proof: %w", err)
	}
	if n == 0 {
		return refused("this login was used already")
	}
	return nil
}

// admit makes a login of a verified token.
func (s *Service) admit(ctx context.Context, p *provider, c *claims, at tenancy.LoginAttempt) (tenancy.Login, error) {
	person := c.person(p.name, &p.cfg)
	is, err := s.d.Identities.Apply(ctx, person, &p.cfg.Rules)
	if err != nil {
		return tenancy.Login{}, err
	}
	l, err := s.d.Tenancy.OpenLogin(ctx, is.User, at, p.cfg.SecondFactor || slices.Contains(texts(c.all["amr"]), "mfa"))
	switch fault.ReasonOf(err) {
	case tenancy.ReasonOTPNeeded, tenancy.ReasonOTPRegistration:
		return l, fault.New(fault.Unauthenticated, "%s has to show a second factor, and %s did not ask for one", person.Email, p.cfg.Title).
			WithReason(fault.ReasonOf(err)).
			WithNext("log in with a passkey, or with password and code; or have %s ask for a second factor", p.cfg.Title)
	}
	return l, err
}

// LoginByToken opens a login with a token that a provider signed for us (public: the token decides). It is good once, and lives for ten
// minutes at most.
func (s *Service) LoginByToken(ctx context.Context, raw string, at tenancy.LoginAttempt) (tenancy.Login, error) {
	p, err := s.signer(raw)
	if err != nil {
		return tenancy.Login{}, err
	}
	found, err := p.discover(ctx)
	if err != nil {
		return tenancy.Login{}, err
	}
	c, err := p.verify(ctx, found, raw, p.cfg.TokenAudience)
	if err != nil {
		return tenancy.Login{}, err
	}
	id, _ := c.all["jti"].(string)
	switch {
	case id == "" || len(id) > maxNext:
		return tenancy.Login{}, refused("the token of %s has no jti, so it could be used twice", p.cfg.Title)
	case c.Expiry.Sub(c.IssuedAt) > maxTokenLife:
		return tenancy.Login{}, refused("the token of %s is good for more than %s", p.cfg.Title, maxTokenLife)
	}
	if err := s.once(ctx, "login token "+p.name+" "+id, c.Expiry.Add(p.cfg.ClockSkew)); err != nil {
		return tenancy.Login{}, err
	}
	return s.admit(ctx, p, &c, at)
}

// signer finds the provider that a token names. Nothing is believed of the token yet.
func (s *Service) signer(raw string) (*provider, error) {
	unusable := refused("this is no login token that is taken here")
	parts := strings.Split(raw, ".")
	if len(raw) > maxToken || len(parts) != 3 {
		return nil, unusable
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	var says struct {
		Issuer string `json:"iss"`
	}
	if err := errors.Join(err, json.Unmarshal(body, &says)); err != nil {
		return nil, unusable
	}
	for _, name := range slices.Sorted(maps.Keys(s.providers)) {
		if p := s.providers[name]; p.cfg.TokenAudience != "" && p.cfg.Issuer == says.Issuer {
			return p, nil
		}
	}
	return nil, unusable
}

// person reads the claims.
func (c *claims) person(provider string, cfg *Config) identity.Person {
	text := func(name string) string { t, _ := c.claim(name).(string); return t }
	p := identity.Person{Provider: provider, Subject: c.Subject, Email: text("email"), Username: text(cfg.UsernameClaim),
		FullName: text("name"), Active: true, Groups: texts(c.claim(cfg.GroupsClaim))}
	verified := c.all["email_verified"]
	p.EmailVerified = p.Email != "" && (cfg.TrustEmail || verified == true || verified == "true")
	return p
}

// claim finds a claim by its name, or by a way into objects.
func (c *claims) claim(name string) any {
	if v, ok := c.all[name]; ok {
		return v
	}
	var v any = c.all
	for part := range strings.SplitSeq(name, ".") {
		object, _ := v.(map[string]any)
		v = object[part]
	}
	return v
}

// texts are the texts of a claim that is one or a list.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		out := []string{}
		for _, e := range v {
			if t, ok := e.(string); ok {
				out = append(out, t)
			}
		}
		return out
	}
	return nil
}
