package proxy_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/proxy"
)

func grantKey(fill byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(fill), ed25519.SeedSize)))
}

func public(t require.TestingT, k ed25519.PrivateKey) ed25519.PublicKey {
	p, ok := k.Public().(ed25519.PublicKey)
	require.True(t, ok)
	return p
}

func aGrant() proxy.Grant {
	return proxy.Grant{Circuit: "00000000-0000-4000-8000-0000000000c1", Kernel: "00000000-0000-4000-8000-000000000001", Generation: 3,
		Port: 8888, Proxy: "web", Issuer: "cluster-1", Expires: time.Unix(1_800_000_000, 0).UTC()}
}

// The bytes are the same in every build: agents and managers of different versions verify each other's grants.
func TestGrantBytes(t *testing.T) {
	t.Parallel()
	text, err := proxy.SignGrant(aGrant(), grantKey('k'))
	require.NoError(t, err)
	raw, err := base64.RawURLEncoding.DecodeString(text)
	require.NoError(t, err)
	body := raw[9 : len(raw)-ed25519.SignatureSize]
	require.Equal(t, byte(1), raw[0])
	require.Equal(t, "\x00\x00\x00\x00\x00\x00@\x00\x80\x00\x00\x00\x00\x00\x00\xc1"+
		"\x00\x00\x00\x00\x00\x00@\x00\x80\x00\x00\x00\x00\x00\x00\x01"+
		"\x00\x00\x00\x00\x00\x00\x00\x03"+"\x22\xb8"+"\x00\x00\x00\x00\x6b\x49\xd2\x00"+"\x03web"+"\x09cluster-1", string(body))
	require.Less(t, len(text), 300)
}

func TestGrantsAreReadBack(t *testing.T) {
	t.Parallel()
	uuid := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	rapid.Check(t, func(t *rapid.T) {
		want := proxy.Grant{
			Circuit: uuid.Draw(t, "circuit"), Kernel: cluster.KernelID(uuid.Draw(t, "kernel")),
			Generation: rapid.Int64Range(0, 1<<62).Draw(t, "generation"), Port: rapid.IntRange(1, 65535).Draw(t, "port"),
			Proxy: rapid.StringN(1, 60, 255).Draw(t, "proxy"), Issuer: rapid.StringN(0, 60, 255).Draw(t, "issuer"),
			Expires: time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "expires"), 0).UTC(),
		}
		key := grantKey('a')
		text, err := proxy.SignGrant(want, key)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), proxy.MaxGrant)
		got, err := proxy.VerifyGrant(text, []ed25519.PublicKey{public(t, grantKey('b')), public(t, key)})
		require.NoError(t, err)
		require.Equal(t, want, got)
		read, err := proxy.ReadGrant(text)
		require.NoError(t, err)
		require.Equal(t, want, read)

		_, err = proxy.VerifyGrant(text, []ed25519.PublicKey{public(t, grantKey('b'))})
		require.ErrorIs(t, err, proxy.ErrGrantKey)
		// Whatever byte is changed, it verifies no more.
		raw, err := base64.RawURLEncoding.DecodeString(text)
		require.NoError(t, err)
		raw[rapid.IntRange(0, len(raw)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		_, err = proxy.VerifyGrant(base64.RawURLEncoding.EncodeToString(raw), []ed25519.PublicKey{public(t, key)})
		require.Error(t, err)
	})
}

func TestWhatIsNoGrant(t *testing.T) {
	t.Parallel()
	keys := []ed25519.PublicKey{public(t, grantKey('k'))}
	text, err := proxy.SignGrant(aGrant(), grantKey('k'))
	require.NoError(t, err)
	for name, bad := range map[string]string{
		"empty": "", "words": "let me in", "cut": text[:len(text)-10], "longer": text + "AAAA", "padded": text + "=", "a line end": text + "\n",
		"too long": strings.Repeat("A", proxy.MaxGrant+1),
	} {
		_, err := proxy.VerifyGrant(bad, keys)
		require.Error(t, err, name)
	}
	// A signature of the same bytes without the mark is none.
	raw, err := base64.RawURLEncoding.DecodeString(text)
	require.NoError(t, err)
	body := raw[:len(raw)-ed25519.SignatureSize]
	plain := base64.RawURLEncoding.EncodeToString(append(body[:len(body):len(body)], ed25519.Sign(grantKey('k'), body)...))
	_, err = proxy.VerifyGrant(plain, keys)
	require.ErrorIs(t, err, proxy.ErrGrantSignature)
	for _, change := range []func(*proxy.Grant){
		func(g *proxy.Grant) { g.Circuit = "c" }, func(g *proxy.Grant) { g.Kernel = "k" }, func(g *proxy.Grant) { g.Port = 0 },
		func(g *proxy.Grant) { g.Port = 65536 }, func(g *proxy.Grant) { g.Proxy = "" }, func(g *proxy.Grant) { g.Generation = -1 },
		func(g *proxy.Grant) { g.Proxy = strings.Repeat("x", 256) }, func(g *proxy.Grant) { g.Issuer = strings.Repeat("x", 256) },
	} {
		g := aGrant()
		change(&g)
		_, err := proxy.SignGrant(g, grantKey('k'))
		require.Error(t, err)
	}
}

func FuzzGrant(f *testing.F) {
	text, err := proxy.SignGrant(aGrant(), grantKey('k'))
	require.NoError(f, err)
	f.Add(text)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := proxy.VerifyGrant(text, []ed25519.PublicKey{public(t, grantKey('k'))})
		if err == nil {
			again, err := proxy.SignGrant(g, grantKey('k'))
			require.NoError(t, err)
			require.Equal(t, text, again) // there is one text for a grant
		}
	})
}

// BenchmarkVerifyGrant is what the first connection with a grant costs an agent.
func BenchmarkVerifyGrant(b *testing.B) {
	text, err := proxy.SignGrant(aGrant(), grantKey('k'))
	require.NoError(b, err)
	keys := []ed25519.PublicKey{public(b, grantKey('k'))}
	for b.Loop() {
		if _, err := proxy.VerifyGrant(text, keys); err != nil {
			b.Fatal(err)
		}
	}
}
