package openid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"berth.dev/berth/internal/fault"
)

const (
	// maxReply bounds the answer of a provider.
	maxReply = 1 << 20
	// What a provider says of itself is believed for discoveryLife; that it does not answer, for failureLife.
	discoveryLife = time.Hour
	failureLife   = 3 * time.Second
	// keysPause is the least time between two looks at a provider's keys: whoever sends tokens with unknown keys asks for no more.
	keysPause = 5 * time.Second
)

// patience bounds one request to a provider. A login asks three times at most: what the provider is, for the token, for its keys. Tests
// wait longer.
var patience = 6 * time.Second

// algorithms are those of public keys. Neither "none" nor those of shared secrets are among them.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512,
	oidc.EdDSA}

// provider is one with what it said of itself.
type provider struct {
	name   string
	cfg    Config
	client *http.Client
	now    func() time.Time
	one    singleflight.Group

	mu     sync.Mutex
	found  *oidc.Provider
	until  time.Time // found or failed is believed
	failed error
}

func newProvider(name string, cfg Config, rt http.RoundTripper, now func() time.Time) *provider {
	p := &provider{name: name, cfg: cfg, now: now}
	p.client = &http.Client{Timeout: patience, Transport: &bounded{next: rt, now: now},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return p
}

// bounded bounds answers, and how often keys are asked for.
type bounded struct {
	next http.RoundTripper
	now  func() time.Time

	mu   sync.Mutex
	keys string    // where they are
	last time.Time // when somebody looked
}

var errKeysJustRead = errors.New("the provider's keys were read a moment ago")

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	now := b.now()
	if r.Method == http.MethodGet && b.keys != "" && r.URL.String() == b.keys {
		if !b.last.IsZero() && now.Sub(b.last) < keysPause && now.Sub(b.last) >= 0 {
			b.mu.Unlock()
			return nil, errKeysJustRead
		}
		b.last = now
	}
	b.mu.Unlock()
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxReply), resp.Body}
	return resp, nil
}

// discover asks the provider what it is, once for all who want to know.
func (p *provider) discover(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	if p.now().Before(p.until) {
		defer p.mu.Unlock()
		return p.found, p.failed
	}
	p.mu.Unlock()
	ch := p.one.DoChan("discovery", func() (any, error) {
		// Others may wait for it, too: it does not end with one of them.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		found, err := p.ask(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && p.found != nil && p.failed == nil {
			p.until = p.now().Add(failureLife) // what it said before is good still
			return p.found, nil
		}
		p.found, p.failed, p.until = found, err, p.now().Add(discoveryLife)
		if err != nil {
			p.until = p.now().Add(failureLife)
		}
		return found, err
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("ask %s what it is: %w", p.name, ctx.Err())
	case r := <-ch:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*oidc.Provider), nil
	}
}

func (p *provider) ask(ctx context.Context) (*oidc.Provider, error) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.cfg.Issuer)
	if err != nil {
		return nil, p.away(err)
	}
	var more struct {
		Keys string `json:"jwks_uri"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, p.away(err)
	}
	at := found.Endpoint()
	for _, text := range []string{at.AuthURL, at.TokenURL, more.Keys} {
		if u, err := url.Parse(text); err != nil || !secure(u) {
			return nil, p.away(fmt.Errorf("%q is no address that is reached by TLS", text))
		}
	}
	b := p.client.Transport.(*bounded)
	b.mu.Lock()
	b.keys = more.Keys
	b.mu.Unlock()
	return found, nil
}

// away says that a provider does not do what it should; the cause is for the log.
func (p *provider) away(err error) error {
	return fault.Unavailablef("the identity provider %s does not answer as it should", p.cfg.Title).WithReason("identity-provider-error").
		WithCause(err).WithNext("try again in some seconds, or log in with a password")
}

// oauth is the client of an authorization code flow.
func (p *provider) oauth(found *oidc.Provider, redirect string) (*oauth2.Config, error) {
	secret, err := p.cfg.secret()
	if err != nil {
		return nil, err
	}
	at := found.Endpoint()
	var more struct {
		Ways []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, p.away(err)
	}
	// The library would try both ways, and so use a code twice. Providers that say nothing take the header.
	at.AuthStyle = oauth2.AuthStyleInHeader
	if secret.IsZero() || len(more.Ways) > 0 && !slices.Contains(more.Ways, "client_secret_basic") {
		at.AuthStyle = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{ClientID: p.cfg.ClientID, ClientSecret: secret.Reveal(), Endpoint: at, RedirectURL: redirect,
		Scopes: p.cfg.Scopes}, nil
}

// exchange turns a code into the token that says who somebody is.
func (p *provider) exchange(ctx context.Context, found *oidc.Provider, f *flow, code string) (string, error) {
	o, err := p.oauth(found, f.Redirect)
	if err != nil {
		return "", err
	}
	token, err := o.Exchange(oidc.ClientContext(ctx, p.client), code, oauth2.VerifierOption(f.Verifier))
	var said *oauth2.RetrieveError
	switch {
	case errors.As(err, &said) && said.Response != nil && said.Response.StatusCode < 500:
		return "", refused("%s does not take the code: %.80s", p.cfg.Title, printable(said.ErrorCode))
	case err != nil:
		return "", p.away(err)
	}
	raw, _ := token.Extra("id_token").(string)
	if raw == "" || len(raw) > maxToken {
		return "", p.away(errors.New("there is no id_token in the answer"))
	}
	return raw, nil
}

// claims are those of a verified token.
type claims struct {
	*oidc.IDToken
	all map[string]any
}

// verify checks a token: signature, issuer, audience and times.
func (p *provider) verify(ctx context.Context, found *oidc.Provider, raw, audience string) (claims, error) {
	v := found.Verifier(&oidc.Config{ClientID: audience, SupportedSigningAlgs: algorithms, Now: p.now,
		SkipExpiryCheck: true}) // the library's check knows no skew
	token, err := v.Verify(ctx, raw)
	if err != nil {
		// Whether the keys could not be read or do not fit, the library does not say.
		if strings.Contains(err.Error(), "fetching keys") && !errors.Is(err, errKeysJustRead) &&
			!strings.Contains(err.Error(), errKeysJustRead.Error()) {
			return claims{}, p.away(err)
		}
		return claims{}, refused("the token of %s is not good: %.200s", p.cfg.Title, printable(err.Error()))
	}
	out := claims{IDToken: token}
	if err := token.Claims(&out.all); err != nil {
		return claims{}, refused("the token of %s cannot be read", p.cfg.Title)
	}
	now, skew := p.now(), p.cfg.ClockSkew
	before, hasBefore := out.moment("nbf")
	switch {
	case token.Expiry.IsZero() || !now.Before(token.Expiry.Add(skew)):
		return claims{}, refused("the token of %s ended at %s", p.cfg.Title, token.Expiry.UTC().Format(time.RFC3339))
	case token.IssuedAt.IsZero() || token.IssuedAt.After(now.Add(skew)):
		return claims{}, refused("the token of %s is of the future (%s): a clock is wrong", p.cfg.Title,
			token.IssuedAt.UTC().Format(time.RFC3339))
	case hasBefore && before.After(now.Add(skew)):
		return claims{}, refused("the token of %s is not good yet: a clock is wrong", p.cfg.Title)
	}
	// A token of a login is for whom it was made. One for the audience of login tokens is made by others: that is their purpose.
	azp, has := out.all["azp"]
	if audience == p.cfg.ClientID && (has && azp != audience || !has && len(token.Audience) > 1) {
		return claims{}, refused("the token of %s was made for another program", p.cfg.Title)
	}
	return out, nil
}

func (c *claims) moment(name string) (time.Time, bool) {
	n, ok := c.all[name].(float64)
	return time.Unix(int64(n), 0), ok
}

// refused is the answer to somebody whose proof is not good.
func refused(text string, args ...any) error {
	return fault.New(fault.Unauthenticated, text, args...).WithReason("auth-failed").WithNext("log in again")
}

// printable is a text of others in an error of ours.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < 32 || c > 126 {
			return '?'
		}
		return c
	}, fault.Cut(text, 300))
}
