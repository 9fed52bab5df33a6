// Package idp is an identity provider for tests: OpenID Connect with real keys, in this process, which does wrong what a test asks for.
package idp

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/address"
)

// What the provider knows of its only client.
const (
	ClientID     = "berth"
	ClientSecret = "secret of the client"
)

// Provider is an identity provider. Tests write its fields between logins.
type Provider struct {
	*httptest.Server
	t testing.TB

	mu sync.Mutex
	// Now is the provider's clock.
	Now func() time.Time
	// Claims are of whoever logs in. Those of the protocol are added where they are missing.
	Claims jwt.MapClaims
	// Sign replaces how tokens are signed.
	Sign func(jwt.MapClaims) string
	// CodesLast keeps codes good after their use.
	CodesLast bool
	// Issuer replaces what discovery says.
	Issuer string
	keys   []key
	codes  map[string]url.Values
	asked  map[string]int
	serial int
}

type key struct {
	id      string
	private *rsa.PrivateKey
}

// New starts a provider.
func New(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{t: t, Now: time.Now, codes: map[string]url.Values{}, asked: map[string]int{}}
	p.Rotate()
	p.Server = address.Serve(t, p)
	return p
}

// Rotate replaces the keys.
func (p *Provider) Rotate() {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(p.t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	p.keys = []key{{fmt.Sprint("k", p.serial), private}}
}

// Asked is how often an address was asked for.
func (p *Provider) Asked(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[path]
}

// ServeHTTP answers as a provider does.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[r.URL.Path]++
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		issuer := p.Issuer
		if issuer == "" {
			issuer = p.URL
		}
		say(200, map[string]any{"issuer": issuer, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
			"jwks_uri": p.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "none", "HS256"}})
	case "/keys":
		var keys []map[string]string
		for _, k := range p.keys {
			e := big.NewInt(int64(k.private.E)).Bytes()
			keys = append(keys, map[string]string{"kty": "RSA", "use": "sig", "kid": k.id, "alg": "RS256",
				"n": base64.RawURLEncoding.EncodeToString(k.private.N.Bytes()), "e": base64.RawURLEncoding.EncodeToString(e)})
		}
		say(200, map[string]any{"keys": keys})
	case "/authorize":
		q := r.URL.Query()
		if q.Get("client_id") != ClientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" {
			say(400, map[string]string{"error": "invalid_request"})
			return
		}
		p.serial++
		code := fmt.Sprint("code", p.serial)
		p.codes[code] = q
		back, _ := url.Parse(q.Get("redirect_uri"))
		back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
		http.Redirect(w, r, back.String(), http.StatusFound)
	case "/token":
		p.token(r, say)
	default:
		say(404, map[string]string{})
	}
}

func (p *Provider) token(r *http.Request, say func(int, any)) {
	id, secret, _ := r.BasicAuth()
	code := r.PostFormValue("code")
	q, ok := p.codes[code]
	if !p.CodesLast {
		delete(p.codes, code)
	}
	proof := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	id, _ = url.QueryUnescape(id)
	secret, _ = url.QueryUnescape(secret)
	switch {
	case id != ClientID || secret != ClientSecret:
		say(401, map[string]string{"error": "invalid_client"})
	case !ok || r.PostFormValue("redirect_uri") != q.Get("redirect_uri") ||
		base64.RawURLEncoding.EncodeToString(proof[:]) != q.Get("code_challenge"):
		say(400, map[string]string{"error": "invalid_grant"})
	default:
		say(200, map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": p.signed(jwt.MapClaims{"nonce": q.Get("nonce")})})
	}
}

// signed adds to the claims what is missing, and signs them.
func (p *Provider) signed(more jwt.MapClaims) string {
	now := p.Now()
	all := jwt.MapClaims{"iss": p.URL, "aud": ClientID, "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "sub": "1",
		"email": "ada@example.org", "email_verified": true, "name": "Ada"}
	for _, claims := range []jwt.MapClaims{more, p.Claims} {
		for k, v := range claims {
			if all[k] = v; v == nil {
				delete(all, k)
			}
		}
	}
	if p.Sign != nil {
		return p.Sign(all)
	}
	return p.sign(all)
}

func (p *Provider) sign(all jwt.MapClaims) string {
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, all)
	t.Header["kid"] = p.keys[0].id
	raw, err := t.SignedString(p.keys[0].private)
	require.NoError(p.t, err)
	return raw
}

// Token is a token with claims, those of the protocol added.
func (p *Provider) Token(claims jwt.MapClaims) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signed(claims)
}

// Unsigned signs with the algorithm "none".
func Unsigned(all jwt.MapClaims) string {
	raw, _ := jwt.NewWithClaims(jwt.SigningMethodNone, all).SignedString(jwt.UnsafeAllowNoneSignatureType)
	return raw
}

// Shared signs with the public key as if it were a shared secret.
func (p *Provider) Shared(all jwt.MapClaims) string {
	der, err := x509.MarshalPKIXPublicKey(&p.keys[0].private.PublicKey)
	require.NoError(p.t, err)
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, all)
	t.Header["kid"] = p.keys[0].id
	raw, err := t.SignedString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	require.NoError(p.t, err)
	return raw
}

// Set changes the provider while nothing is asked of it.
func (p *Provider) Set(change func(*Provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// Visit goes to the address where a login begins, and returns the one where the provider sends the browser.
func (p *Provider) Visit(address string) *url.URL {
	p.t.Helper()
	c := http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(address)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	require.Equal(p.t, http.StatusFound, resp.StatusCode)
	back, err := resp.Location()
	require.NoError(p.t, err)
	return back
}
