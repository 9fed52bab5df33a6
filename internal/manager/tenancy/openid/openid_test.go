package openid_test

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/openid"
	"berth.dev/berth/internal/testkit/idp"
)

const origin = "https://berth.example.org"

// rig is a cluster with a provider, and a clock that both have.
type rig struct {
	*managertest.World
	idp   *idp.Provider
	began time.Time
	late  atomic.Int64
}

func (r *rig) now() time.Time       { return r.began.Add(time.Duration(r.late.Load())) }
func (r *rig) pass(d time.Duration) { r.late.Add(int64(d)) }

func newRig(t *testing.T, changes ...func(*openid.Config)) *rig {
	t.Helper()
	r := &rig{idp: idp.New(t), began: time.Now()}
	r.idp.Now = r.now
	cfg := openid.Config{Issuer: r.idp.URL, ClientID: idp.ClientID, ClientSecret: chassis.NewSecret(idp.ClientSecret),
		TokenAudience: "berth-tokens", Rules: identity.Rules{Domain: "default", Create: true}}
	for _, c := range changes {
		c(&cfg)
	}
	r.World = managertest.New(t, func(d *nouns.Deps) {
		d.Clock, d.WebOrigins, d.OIDC = r.now, []string{origin}, map[string]openid.Config{"corp": cfg}
	})
	return r
}

func (r *rig) begin() openid.Begun {
	r.T.Helper()
	b, err := r.OpenID.Begin(r.T.Context(), openid.Start{Provider: "corp", Origin: origin, Next: "/data?x=1"})
	require.NoError(r.T, err)
	return b
}

// answer is what the provider sends back.
func (r *rig) answer(b openid.Begun) openid.Answer {
	r.T.Helper()
	back := r.idp.Visit(b.URL)
	require.True(r.T, strings.HasPrefix(back.String(), origin+"/server/oidc/corp/callback?"), back)
	return openid.Answer{Provider: "corp", Flow: b.Flow.Reveal(), State: back.Query().Get("state"), Code: back.Query().Get("code")}
}

func (r *rig) finish(a openid.Answer) (openid.Done, error) {
	return r.OpenID.Finish(r.T.Context(), a, tenancy.LoginAttempt{Agent: "test"})
}

func (r *rig) login() (openid.Done, error) {
	r.T.Helper()
	return r.finish(r.answer(r.begin()))
}

func TestALoginAtAProvider(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	done, err := r.login()
	require.NoError(t, err)
	require.Equal(t, "/data?x=1", done.Next)
	require.Equal(t, "ada@example.org", done.Email)
	l, err := r.Tenancy.ResumeLogin(t.Context(), done.Token.Reveal())
	require.NoError(t, err)
	actor, _, err := r.Tenancy.Authenticate(t.Context(), l.AccessKey)
	require.NoError(t, err)
	require.Equal(t, authz.RoleUser, actor.Role)
	list, err := r.Tenancy.ListLogins(t.Context(), actor)
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, err = r.Tenancy.EndLogin(t.Context(), actor, "all")
	require.NoError(t, err)
	_, err = r.Tenancy.ResumeLogin(t.Context(), done.Token.Reveal())
	require.Error(t, err)

	again, err := r.login()
	require.NoError(t, err)
	require.Equal(t, done.UserID, again.UserID)
	require.Equal(t, 1, r.idp.Asked("/.well-known/openid-configuration"), "discovery is remembered")
	require.Equal(t, 1, r.idp.Asked("/keys"), "keys are remembered")
}

func TestTokensThatAreNotGood(t *testing.T) {
	t.Parallel()
	for words, change := range map[string]func(*idp.Provider, *rig){
		"wrong issuer":   func(p *idp.Provider, _ *rig) { p.Claims["iss"] = "https://evil.example.org" },
		"wrong audience": func(p *idp.Provider, _ *rig) { p.Claims["aud"] = "other" },
		"for another party": func(p *idp.Provider, _ *rig) {
			p.Claims["aud"], p.Claims["azp"] = []string{idp.ClientID, "other"}, "other"
		},
		"for two":        func(p *idp.Provider, _ *rig) { p.Claims["aud"] = []string{idp.ClientID, "other"} },
		"wrong nonce":    func(p *idp.Provider, _ *rig) { p.Claims["nonce"] = "other" },
		"no nonce":       func(p *idp.Provider, _ *rig) { p.Claims["nonce"] = nil },
		"algorithm none": func(p *idp.Provider, _ *rig) { p.Sign = idp.Unsigned },
		"HS256 with the public key": func(p *idp.Provider, _ *rig) {
			p.Sign = p.Shared
		},
		"another's key": func(p *idp.Provider, r *rig) {
			other := idp.New(r.T)
			p.Sign = other.Token
		},
		"expired":              func(p *idp.Provider, r *rig) { p.Claims["exp"] = r.now().Add(-time.Minute - time.Second).Unix() },
		"no end":               func(p *idp.Provider, _ *rig) { p.Claims["exp"] = nil },
		"of the future":        func(p *idp.Provider, r *rig) { p.Claims["iat"] = r.now().Add(2 * time.Minute).Unix() },
		"not good yet":         func(p *idp.Provider, r *rig) { p.Claims["nbf"] = r.now().Add(2 * time.Minute).Unix() },
		"no token":             func(p *idp.Provider, _ *rig) { p.Sign = func(jwt.MapClaims) string { return "" } },
		"no JSON":              func(p *idp.Provider, _ *rig) { p.Sign = func(jwt.MapClaims) string { return "a.b.c" } },
		"no subject":           func(p *idp.Provider, _ *rig) { p.Claims["sub"] = "" },
		"unverified address":   func(p *idp.Provider, _ *rig) { p.Claims["email_verified"] = false },
		"silent about address": func(p *idp.Provider, _ *rig) { p.Claims["email_verified"] = nil },
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.idp.Set(func(p *idp.Provider) {
				p.Claims = jwt.MapClaims{}
				change(p, r)
			})
			_, err := r.login()
			require.Error(t, err)
			if words != "no token" {
				require.True(t, fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Denied), "%v", err)
			}
			var users int
			require.NoError(t, r.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM users WHERE email LIKE 'ada%'`).Scan(&users))
			require.Zero(t, users)
		})
	}
}

// Clocks may differ by a minute.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.idp.Set(func(p *idp.Provider) {
		p.Claims = jwt.MapClaims{"iat": r.now().Add(50 * time.Second).Unix(), "nbf": r.now().Add(50 * time.Second).Unix(),
			"exp": r.now().Add(-30 * time.Second).Unix()}
	})
	_, err := r.login()
	require.NoError(t, err)
}

// An address that nobody verified takes over no account, and a verified one only where the configuration says so, and no superadmin's.
func TestAddressesOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *openid.Config) { c.Rules.LinkVerifiedEmail = true })
	secret := seal.Secret("a long and unusual phrase 7")
	_, err := r.Tenancy.CreateUser(t.Context(), r.Admin, "ada@example.org", tenancy.UserProps{Password: &secret, Domain: new("default")})
	require.NoError(t, err)
	r.idp.Set(func(p *idp.Provider) { p.Claims = jwt.MapClaims{"email_verified": false} })
	_, err = r.login()
	require.Equal(t, "identity-email-unverified", fault.ReasonOf(err))
	r.idp.Set(func(p *idp.Provider) { p.Claims = jwt.MapClaims{"email": r.Admin.Email} })
	_, err = r.login()
	require.Equal(t, "identity-superadmin", fault.ReasonOf(err))
	r.idp.Set(func(p *idp.Provider) { p.Claims = nil })
	_, err = r.login()
	require.NoError(t, err)
}

func TestAnAnswerIsGoodOnceAndForOneBrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.idp.CodesLast = true // the provider is careless
	mine := r.answer(r.begin())
	_, err := r.finish(mine)
	require.NoError(t, err)
	_, err = r.finish(mine)
	require.True(t, fault.Is(err, fault.Unauthenticated), "replayed: %v", err)
	require.ErrorContains(t, err, "used already")

	theirs, own := r.answer(r.begin()), r.answer(r.begin())
	for words, a := range map[string]openid.Answer{
		"a foreign state":    {Provider: "corp", Flow: own.Flow, State: theirs.State, Code: theirs.Code},
		"no state":           {Provider: "corp", Flow: own.Flow, Code: own.Code},
		"no cookie":          {Provider: "corp", State: own.State, Code: own.Code},
		"a made-up cookie":   {Provider: "corp", Flow: "AAAA", State: own.State, Code: own.Code},
		"another provider":   {Provider: "other", Flow: own.Flow, State: own.State, Code: own.Code},
		"another's answer":   {Provider: "corp", Flow: own.Flow, State: own.State, Code: own.Code, Issuer: "https://evil.example.org"},
		"a code of somebody": {Provider: "corp", Flow: r.begin().Flow.Reveal(), State: own.State, Code: own.Code},
	} {
		_, err := r.finish(a)
		require.Error(t, err, words)
	}
	// The code of another login does not fit the verifier of one's own.
	fresh := r.answer(r.begin())
	fresh.Code = theirs.Code
	_, err = r.finish(fresh)
	require.ErrorContains(t, err, "does not take the code: invalid_grant")

	late := r.answer(r.begin())
	r.pass(11 * time.Minute)
	_, err = r.finish(late)
	require.ErrorContains(t, err, "more than 10m0s ago")

	denied := r.answer(r.begin())
	denied.Code, denied.Error, denied.Details = "", "access_denied", "no\n<b>"
	_, err = r.finish(denied)
	require.ErrorContains(t, err, "access_denied no?<b>")
}

// Nobody is led elsewhere: neither by next, nor by the address of the web server.
func TestNobodyIsLedElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, next := range []string{"//evil.example.org", "https://evil.example.org", "/\\evil.example.org", "javascript:alert(1)", "/a b",
		"/a\r\nb", "evil", "/server/oidc/corp/start", "/server/cli", "/" + strings.Repeat("x", 2000), "\\\\evil", "/\t/evil.example.org"} {
		_, err := r.OpenID.Begin(t.Context(), openid.Start{Provider: "corp", Origin: origin, Next: next})
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", next, err)
	}
	for _, o := range []string{"https://evil.example.org", "http://berth.example.org", "https://berth.example.org:444", ""} {
		_, err := r.OpenID.Begin(t.Context(), openid.Start{Provider: "corp", Origin: o})
		require.True(t, fault.Is(err, fault.Denied), "%q: %v", o, err)
	}
	_, err := r.OpenID.Begin(t.Context(), openid.Start{Provider: "corp", Origin: origin, Next: "/server/cli?key=k&name=berth+on+lab"})
	require.NoError(t, err, "a command line is let in after a login at a provider")
	_, err = r.OpenID.Begin(t.Context(), openid.Start{Provider: "none", Origin: origin})
	require.True(t, fault.Is(err, fault.NotFound))
}

// Keys that changed are read again, but strangers cannot have them read as often as they like.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.login()
	require.NoError(t, err)
	r.idp.Rotate()
	r.pass(10 * time.Second)
	_, err = r.login()
	require.NoError(t, err)
	require.Equal(t, 2, r.idp.Asked("/keys"))
	r.pass(10 * time.Second)
	other := idp.New(t)
	for range 20 {
		_, err := r.OpenID.LoginByToken(t.Context(), other.Token(jwt.MapClaims{"iss": r.idp.URL, "aud": "berth-tokens"}), tenancy.LoginAttempt{})
		require.True(t, fault.Is(err, fault.Unauthenticated), "%v", err)
	}
	require.Equal(t, 3, r.idp.Asked("/keys"))
}

func TestProvidersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.answer(r.begin())
	r.idp.Close()
	_, err := r.finish(a)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Equal(t, "identity-provider-error", fault.ReasonOf(err))

	for words, serve := range map[string]http.HandlerFunc{
		"another issuer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"issuer":"https://evil.example.org","authorization_endpoint":"https://x","token_endpoint":"https://x",
"jwks_uri":"https://x"}`))
		},
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("no")) },
		"an error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		},
		"endless": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(strings.Repeat(" ", 2<<20))) },
	} {
		bad := httptest.NewServer(serve)
		r := newRig(t, func(c *openid.Config) { c.Issuer = bad.URL })
		_, err := r.OpenID.Begin(t.Context(), openid.Start{Provider: "corp", Origin: origin})
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", words, err)
		bad.Close()
	}
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := "http://" + r.Host
		_, _ = w.Write([]byte(`{"issuer":"` + at + `","authorization_endpoint":"http://evil.example.org/a","token_endpoint":"` + at +
			`/t","jwks_uri":"` + at + `/k"}`))
	}))
	defer plain.Close()
	r = newRig(t, func(c *openid.Config) { c.Issuer = plain.URL })
	_, err = r.OpenID.Begin(t.Context(), openid.Start{Provider: "corp", Origin: origin})
	require.True(t, fault.Is(err, fault.Unavailable), "an address without TLS")
}

// A token that the provider signed for us opens one login.
func TestLoginTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := func() jwt.MapClaims { return jwt.MapClaims{"aud": "berth-tokens", "jti": rand.Text()} }
	login := func(token string) error {
		_, err := r.OpenID.LoginByToken(t.Context(), token, tenancy.LoginAttempt{})
		return err
	}
	token := r.idp.Token(good())
	require.NoError(t, login(token))
	require.ErrorContains(t, login(token), "used already")
	for words, c := range map[string]jwt.MapClaims{
		"a token of a login":  {"jti": "1"},
		"no jti":              {"aud": "berth-tokens"},
		"good for too long":   {"aud": "berth-tokens", "jti": "2", "exp": r.now().Add(time.Hour).Unix()},
		"ended":               {"aud": "berth-tokens", "jti": "3", "exp": r.now().Add(-time.Hour).Unix()},
		"of another provider": {"aud": "berth-tokens", "jti": "4", "iss": "https://evil.example.org"},
	} {
		require.True(t, fault.Is(login(r.idp.Token(c)), fault.Unauthenticated), words)
	}
	for _, raw := range []string{"", "x", "a.b.c", "..", idp.Unsigned(jwt.MapClaims{"iss": r.idp.URL, "aud": "berth-tokens", "jti": "5",
		"sub": "1", "exp": r.now().Add(time.Minute).Unix(), "iat": r.now().Unix()}), strings.Repeat("x.", 40_000)} {
		require.True(t, fault.Is(login(raw), fault.Unauthenticated), "%.20q", raw)
	}
	r2 := newRig(t, func(c *openid.Config) { c.TokenAudience = "" })
	_, err := r2.OpenID.LoginByToken(t.Context(), r2.idp.Token(good()), tenancy.LoginAttempt{})
	require.True(t, fault.Is(err, fault.Unauthenticated))
}

// Second factors of this cluster are asked, unless the provider has asked for one.
func TestSecondFactors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	done, err := r.login()
	require.NoError(t, err)
	_, err = r.Store.Pool().Exec(t.Context(), `UPDATE users SET totp_activated = true WHERE id = $1`, string(done.UserID))
	require.NoError(t, err)
	_, err = r.login()
	require.Equal(t, tenancy.ReasonOTPNeeded, fault.ReasonOf(err))
	require.ErrorContains(t, err, "did not ask for one")
	r.idp.Set(func(p *idp.Provider) { p.Claims = jwt.MapClaims{"amr": []string{"pwd", "mfa"}} })
	_, err = r.login()
	require.NoError(t, err)
}

func TestConfigurations(t *testing.T) {
	t.Parallel()
	good := openid.Config{Issuer: "https://login.example.org", ClientID: "x"}
	origins := []string{origin, "http://localhost:8090"}
	require.NoError(t, openid.Validate(map[string]openid.Config{"corp": good}, origins))
	require.NoError(t, openid.Validate(nil, nil))
	for words, c := range map[string]openid.Config{
		"issuer":     {Issuer: "http://login.example.org", ClientID: "x"},
		"client_id":  {Issuer: good.Issuer},
		"clock_skew": {Issuer: good.Issuer, ClientID: "x", ClockSkew: time.Hour},
		"audience":   {Issuer: good.Issuer, ClientID: "x", TokenAudience: "x"},
		"rules":      {Issuer: good.Issuer, ClientID: "x", Rules: identity.Rules{Create: true}},
	} {
		require.ErrorContains(t, openid.Validate(map[string]openid.Config{"corp": c}, origins), words)
	}
	require.ErrorContains(t, openid.Validate(map[string]openid.Config{"corp": good}, nil), "web_origins")
	require.ErrorContains(t, openid.Validate(nil, []string{"https://x/"}), "web_origins")
	require.ErrorContains(t, openid.Validate(nil, []string{"http://berth.example.org"}), "web_origins")
	require.ErrorContains(t, openid.Validate(map[string]openid.Config{"Corp": good}, origins), "name")
}
