package ca_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/proxy"
)

type vault struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (v *vault) Get(_ context.Context, key string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.values[key], nil
}

func (v *vault) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b, err := fn(v.values[key])
	if err != nil {
		return nil, err
	}
	if b != nil {
		v.values[key] = b
	}
	return v.values[key], nil
}

// clock stands still until the test moves it.
type clock struct {
	chassis.Clock
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is one vault with the authorities of two managers on it.
type fixture struct {
	t          *testing.T
	vault      *vault
	clock      *clock
	one, other *ca.Authority
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, vault: &vault{values: map[string][]byte{}}, clock: &clock{now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}}
	f.one, f.other = f.open(), f.open()
	return f
}

func (f *fixture) open() *ca.Authority {
	f.t.Helper()
	a, err := ca.Open(f.t.Context(), ca.Options{ClusterID: "c", Vault: f.vault, Clock: f.clock, Random: rand.Reader})
	require.NoError(f.t, err)
	return a
}

var (
	agent = ca.Node{Role: ca.RoleAgent, Name: "i-1"}
	web   = ca.Node{Role: ca.RoleAppProxy, Name: "web"}
)

func (f *fixture) token(n ca.Node, change ...func(*ca.TokenRequest)) (string, ca.Token) {
	f.t.Helper()
	r := ca.TokenRequest{Node: n, By: "ada on host"}
	for _, c := range change {
		c(&r)
	}
	text, token, err := f.one.NewToken(f.t.Context(), r)
	require.NoError(f.t, err)
	return text.Secret, token
}

func replace(r *ca.TokenRequest) { r.Replace = true }

// machine has a key.
type machine struct {
	f   *fixture
	key *ecdsa.PrivateKey
	csr []byte
}

func (f *fixture) machine() *machine {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f.t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(f.t, err)
	return &machine{f, key, csr}
}

// join returns the verified state of connections with the new certificate.
func (m *machine) join(a *ca.Authority, n ca.Node, secret string, change ...func(*ca.Request)) (tls.ConnectionState, error) {
	m.f.t.Helper()
	r := ca.Request{Node: n, CSR: m.csr, Secret: secret, From: "10.0.0.7:4711"}
	for _, c := range change {
		c(&r)
	}
	joined, err := a.Join(m.f.t.Context(), r)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	leaf, err := x509.ParseCertificate(joined.Certificate)
	require.NoError(m.f.t, err)
	root, err := x509.ParseCertificate(a.Certificate())
	require.NoError(m.f.t, err)
	require.NoError(m.f.t, leaf.CheckSignatureFrom(root))
	chain := []*x509.Certificate{leaf, root}
	return tls.ConnectionState{PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain}}, nil
}

func refused(t *testing.T, kind fault.Kind, reason string, err error) {
	t.Helper()
	require.Equal(t, reason, fault.ReasonOf(err), "%v", err)
	require.Equal(t, kind, fault.KindOf(err), "%v", err)
	require.NotEmpty(t, fault.NextOf(err), "%v", err)
}

func TestTokenIsForOneRoleAndName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	thief := f.machine()
	for _, n := range []ca.Node{web, {Role: ca.RoleAppProxy, Name: agent.Name}, {Role: ca.RoleAgent, Name: "i-2"}} {
		_, err := thief.join(f.other, n, secret)
		refused(t, fault.Denied, "join-token-of-another", err)
	}
	_, err := thief.join(f.other, agent, "x"+secret)
	refused(t, fault.Unauthenticated, "bad-join-token", err)
	_, err = thief.join(f.other, agent, "")
	refused(t, fault.Unauthenticated, "bad-join-token", err)
	s, err := f.machine().join(f.other, agent, secret)
	require.NoError(t, err, "what the thief tried has not used it up")
	id, _, err := f.one.Agent(t.Context(), s)
	require.NoError(t, err)
	require.EqualValues(t, "i-1", id)
	_, _, err = f.one.Proxy(t.Context(), s)
	denied(t, fault.Denied, "not-a-proxy", err)
}

// denied is refused for errors that come without advice.
func denied(t *testing.T, kind fault.Kind, reason string, err error) {
	t.Helper()
	require.Equal(t, reason, fault.ReasonOf(err), "%v", err)
	require.Equal(t, kind, fault.KindOf(err), "%v", err)
}

func TestTokenWorksOnceForOneKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(web)
	owner := f.machine()
	first, err := owner.join(f.one, web, secret)
	require.NoError(t, err)
	_, err = f.machine().join(f.other, web, secret)
	refused(t, fault.Unauthenticated, "join-token-used", err)
	// The answer was lost: the same key may ask again, anywhere, and what it has counts on.
	second, err := owner.join(f.other, web, secret)
	require.NoError(t, err)
	for _, s := range []tls.ConnectionState{first, second} {
		_, _, err = f.one.Proxy(t.Context(), s)
		require.NoError(t, err)
	}
	list, err := f.other.Tokens(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "used", list[0].Status(f.clock.Now()))
	require.Equal(t, "10.0.0.7:4711", list[0].UsedFrom)
	require.Equal(t, "ada on host", list[0].By)
	for key, v := range f.vault.values {
		require.NotContains(t, string(v), secret, "%s holds the token in clear", key)
	}
}

// Many machines use one token at the same time, at two managers; one gets it.
func TestTokenIsUsedAtomically(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(web)
	results := make(chan error, 16)
	for i := range cap(results) {
		m, a := f.machine(), f.one
		if i%2 == 0 {
			a = f.other
		}
		go func() {
			_, err := a.Join(t.Context(), ca.Request{Node: web, CSR: m.csr, Secret: secret})
			results <- err
		}()
	}
	in := 0
	for range cap(results) {
		if err := await.Value(t, results); err == nil {
			in++
		} else {
			require.Equal(t, "join-token-used", fault.ReasonOf(err), "%v", err)
		}
	}
	require.Equal(t, 1, in)
}

// Two tokens for one new agent, made before it joined, let one machine in.
func TestOneMachineGetsANewName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.token(agent)
	b, _ := f.token(agent)
	_, err := f.machine().join(f.one, agent, a)
	require.NoError(t, err)
	_, err = f.machine().join(f.other, agent, b)
	refused(t, fault.Conflict, "node-known", err)
	_, _, err = f.one.NewToken(t.Context(), ca.TokenRequest{Node: agent})
	refused(t, fault.Conflict, "node-known", err)
}

func TestTokensExpireAndAreRevoked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, token := f.token(agent)
	require.Equal(t, f.clock.Now().Add(time.Hour), token.Expires)
	f.clock.pass(time.Hour)
	_, err := f.machine().join(f.one, agent, secret)
	refused(t, fault.Unauthenticated, "join-token-expired", err)
	list, err := f.one.Tokens(t.Context())
	require.NoError(t, err)
	require.Equal(t, "expired", list[0].Status(f.clock.Now()))

	secret, token = f.token(agent, func(r *ca.TokenRequest) { r.Life = 7 * 24 * time.Hour })
	require.NoError(t, f.other.RevokeToken(t.Context(), token.ID))
	_, err = f.machine().join(f.one, agent, secret)
	refused(t, fault.Unauthenticated, "bad-join-token", err)
	refused(t, fault.NotFound, "", f.one.RevokeToken(t.Context(), token.ID))

	for _, life := range []time.Duration{-time.Second, time.Millisecond, 7*24*time.Hour + 1} {
		_, _, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: agent, Life: life})
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
	f.clock.pass(8 * 24 * time.Hour)
	list, err = f.one.Tokens(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "they are not kept for ever")
}

func TestTokensAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 500 {
		f.token(web)
	}
	_, _, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: web})
	refused(t, fault.Exhausted, "too-many-join-tokens", err)
	f.clock.pass(2 * time.Hour)
	f.token(web) // those that expired make room
}

func TestKnownAgentComesBackByItsKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	owner := f.machine()
	_, err := owner.join(f.one, agent, secret)
	require.NoError(t, err)
	// Its certificate has ended, and nobody made a token.
	f.clock.pass((365 + 89) * 24 * time.Hour)
	again, err := owner.join(f.other, agent, "")
	require.NoError(t, err)
	_, _, err = f.one.Agent(t.Context(), again)
	require.NoError(t, err)
	_, err = f.machine().join(f.other, agent, "")
	refused(t, fault.Unauthenticated, "bad-join-token", err)
	// Not for ever.
	f.clock.pass((365 + 91) * 24 * time.Hour)
	_, err = owner.join(f.other, agent, "")
	refused(t, fault.Unauthenticated, "bad-join-token", err)
}

func TestReplacement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	old := f.machine()
	before, err := old.join(f.one, agent, secret)
	require.NoError(t, err)
	endedBefore, err := f.other.Ended(t.Context())
	require.NoError(t, err)

	word, _ := f.token(agent, replace)
	late, _ := f.token(agent, replace)
	fresh := f.machine()
	connected := func(r *ca.Request) {
		r.Connected = func(context.Context) (string, bool, error) { return "10.0.0.9:1", true, nil }
	}
	_, err = fresh.join(f.other, agent, word, connected)
	refused(t, fault.Conflict, "agent-id-taken", err)
	after, err := fresh.join(f.other, agent, word)
	require.NoError(t, err, "the refusal has not used it up")
	_, _, err = f.one.Agent(t.Context(), after)
	require.NoError(t, err)
	_, _, err = f.one.Agent(t.Context(), before)
	refused(t, fault.Unauthenticated, "certificate-replaced", err)
	endedNow, err := f.one.Ended(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, endedBefore, endedNow, "whoever holds connections hears of it")

	// Neither the old key, nor its certificate, nor its used token, nor a token of the time before leads back.
	for _, s := range []string{"", secret} {
		_, err = old.join(f.one, agent, s, func(r *ca.Request) { r.TLS = before })
		require.True(t, fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Conflict), "%v", err)
	}
	_, err = old.join(f.one, agent, late)
	refused(t, fault.Conflict, "join-token-outdated", err)
	_, _, err = f.one.Agent(t.Context(), after)
	require.NoError(t, err)
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.token(web)
	b, _ := f.token(web)
	one, two, three := f.machine(), f.machine(), f.machine()
	first, err := one.join(f.one, web, a)
	require.NoError(t, err)
	second, err := two.join(f.other, web, b)
	require.NoError(t, err)
	for _, s := range []tls.ConnectionState{first, second} {
		_, _, err = f.one.Proxy(t.Context(), s)
		require.NoError(t, err, "replicas do not push each other out")
	}
	// An administrator's word ends them all.
	word, _ := f.token(web, replace)
	third, err := three.join(f.one, web, word)
	require.NoError(t, err)
	for _, s := range []tls.ConnectionState{first, second} {
		_, _, err = f.one.Proxy(t.Context(), s)
		refused(t, fault.Unauthenticated, "certificate-replaced", err)
	}
	_, _, err = f.one.Proxy(t.Context(), third)
	require.NoError(t, err)
	_, err = one.join(f.other, web, a) // its token was used by its own key, but before
	refused(t, fault.Conflict, "join-token-outdated", err)
}

func TestRevokedCertificates(t *testing.T) {
	t.Parallel()
	for _, n := range []ca.Node{agent, web} {
		f := newFixture(t)
		denied(t, fault.NotFound, "", f.one.RevokeCertificates(t.Context(), n))
		secret, _ := f.token(n)
		m := f.machine()
		s, err := m.join(f.one, n, secret)
		require.NoError(t, err)
		require.NoError(t, f.other.RevokeCertificates(t.Context(), n))
		require.Equal(t, "certificate-replaced", fault.ReasonOf(f.one.Counts(t.Context(), n, ca.SerialOf(s.PeerCertificates[0]))))
		_, err = m.join(f.one, n, "", func(r *ca.Request) { r.TLS = s })
		refused(t, fault.Unauthenticated, "bad-join-token", err)
		_, err = m.join(f.one, n, secret)
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		word, _ := f.token(n, replace)
		_, err = m.join(f.one, n, word)
		require.NoError(t, err)
	}
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	m := f.machine()
	first, err := m.join(f.one, agent, secret)
	require.NoError(t, err)
	over := func(s tls.ConnectionState) func(*ca.Request) { return func(r *ca.Request) { r.TLS = s } }
	fresh := f.machine() // a renewal may bring a new key
	second, err := fresh.join(f.other, agent, "", over(first))
	require.NoError(t, err)
	for _, s := range []tls.ConnectionState{first, second} {
		_, _, err = f.one.Agent(t.Context(), s)
		require.NoError(t, err, "both count until the next renewal")
	}
	_, err = fresh.join(f.other, agent, "", over(second))
	require.NoError(t, err)
	_, _, err = f.one.Agent(t.Context(), first)
	refused(t, fault.Unauthenticated, "certificate-replaced", err)
	// Nobody renews into another name.
	for _, n := range []ca.Node{{Role: ca.RoleAgent, Name: "i-2"}, web} {
		_, err = fresh.join(f.one, n, "", over(second))
		require.True(t, fault.Is(err, fault.Denied), "%v", err)
	}
}

// The records and tokens are those of an earlier version.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	m := f.machine()
	s, err := m.join(f.one, agent, secret)
	require.NoError(t, err)
	psecret, _ := f.token(web)
	p := f.machine()
	ps, err := p.join(f.one, web, psecret)
	require.NoError(t, err)
	old := struct {
		Serial string    `json:"serial"`
		At     time.Time `json:"at"`
	}{ca.SerialOf(s.PeerCertificates[0]), f.clock.Now()}
	f.vault.values["node-certificate/i-1"], err = json.Marshal(old)
	require.NoError(t, err)
	f.vault.values["join-tokens"] = []byte(`[{"hash":[1,2,3],"at":"2026-01-01T00:00:00Z"}]`)
	f.one = f.open()
	require.JSONEq(t, `[]`, string(f.vault.values["join-tokens"]), "tokens that let anybody in are void")

	_, err = m.join(f.one, agent, "")
	refused(t, fault.Unauthenticated, "bad-join-token", err)
	_, _, err = f.one.Agent(t.Context(), s) // it connects, and from now on its key is known
	require.NoError(t, err)
	_, err = m.join(f.one, agent, "")
	require.NoError(t, err)
	_, _, err = f.one.Proxy(t.Context(), ps)
	require.NoError(t, err)
	_, err = f.machine().join(f.one, agent, "")
	refused(t, fault.Unauthenticated, "bad-join-token", err)
}

func TestNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, n := range []ca.Node{{}, {Role: "manager", Name: "m1"}, {Role: ca.RoleAgent, Name: "../x"},
		{Role: ca.RoleAgent, Name: "appproxy:web"}, {Role: ca.RoleAppProxy, Name: "a:b"}} {
		_, _, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: n})
		require.True(t, fault.Is(err, fault.Invalid), "%v: %v", n, err)
		_, err = f.one.Join(t.Context(), ca.Request{Node: n})
		require.True(t, fault.Is(err, fault.Invalid), "%v: %v", n, err)
		require.True(t, fault.Is(f.one.RevokeCertificates(t.Context(), n), fault.Invalid))
	}
	_, _, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: agent, By: "a\nb"})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

// Keys of less than 128 bits of strength, and of kinds that nobody reviewed, get no certificate.
func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	secret, _ := f.token(agent)
	join := func(key crypto.Signer, err error) error {
		t.Helper()
		require.NoError(t, err)
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		require.NoError(t, err)
		_, err = f.one.Join(t.Context(), ca.Request{Node: agent, CSR: csr, Secret: secret})
		return err
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	require.True(t, fault.Is(join(weak, err), fault.Invalid))
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	require.True(t, fault.Is(join(curve, err), fault.Invalid))
	_, strong, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, join(strong, err))
}

// A revoked app proxy is noted for as long as its grants may be valid, at every manager, and its addresses are freed. Agents are not.
func TestRevokedAppProxiesAreNoted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	noted := func() (out []string) {
		list, err := f.other.RevokedProxies(t.Context())
		require.NoError(t, err)
		for _, r := range list {
			out = append(out, r.Proxy)
			grant := proxy.Grant{Proxy: r.Proxy, Expires: f.clock.Now().Add(proxy.GrantLife)}
			require.True(t, r.Refuses(grant), "what was signed until now")
		}
		return out
	}
	require.Error(t, f.one.RevokeCertificates(t.Context(), web), "it never joined")
	require.Empty(t, noted())
	for _, n := range []ca.Node{web, agent} {
		secret, _ := f.token(n)
		_, err := f.machine().join(f.one, n, secret)
		require.NoError(t, err)
		require.NoError(t, f.one.RevokeCertificates(t.Context(), n))
	}
	require.Equal(t, []string{web.Name}, noted())
	f.clock.pass(proxy.GrantLife / 2)
	made, _, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: web, Replace: true})
	require.NoError(t, err)
	_, err = f.machine().join(f.one, web, made.Secret)
	require.NoError(t, err)
	require.Equal(t, []string{web.Name}, noted(), "replaced by another machine")
	f.clock.pass(2 * proxy.GrantLife)
	other := ca.Node{Role: ca.RoleAppProxy, Name: "eu"}
	secret, _ := f.token(other)
	_, err = f.machine().join(f.one, other, secret)
	require.NoError(t, err)
	require.NoError(t, f.one.RevokeCertificates(t.Context(), other))
	require.Equal(t, []string{"eu"}, noted(), "the earlier one is over")
}

// The resource group of an agent is what its token says, over renewals and joins by its key, until another token says another.
func TestTokensNameTheResourceGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	group := func(want string) {
		t.Helper()
		got, err := f.other.ResourceGroup(t.Context(), "i-1")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	group("")
	for _, bad := range []ca.TokenRequest{{Node: web, ResourceGroup: "gpu"}, {Node: agent, ResourceGroup: "a b"},
		{Node: agent, ResourceGroup: strings.Repeat("x", 65)}} {
		_, _, err := f.one.NewToken(t.Context(), bad)
		require.True(t, fault.Is(err, fault.Invalid), "%v", bad)
	}
	made, listed, err := f.one.NewToken(t.Context(), ca.TokenRequest{Node: agent, ResourceGroup: "gpu"})
	require.NoError(t, err)
	require.Equal(t, "gpu", listed.ResourceGroup)
	m := f.machine()
	s, err := m.join(f.one, agent, made.Secret)
	require.NoError(t, err)
	group("gpu")
	_, err = m.join(f.other, agent, "", func(r *ca.Request) { r.TLS = s })
	require.NoError(t, err)
	group("gpu")
	_, err = m.join(f.other, agent, "")
	require.NoError(t, err)
	group("gpu")
}
