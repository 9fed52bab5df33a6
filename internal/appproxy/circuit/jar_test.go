package circuit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

func jarOf(owner string, mode proxy.Mode, keys ...string) circuit.Jar {
	var all [][]byte
	for _, k := range keys {
		all = append(all, []byte(k))
	}
	return circuit.New(proxy.Circuit{ID: "c-" + owner, Mode: mode, Owner: owner}).Jar(all)
}

const (
	today     = "the key that signs today"
	yesterday = "the key that signed yesterday"
)

// sent is what a browser sends back of a cookie that was set.
func sent(t require.TestingT, j circuit.Jar, setCookie string) string {
	proof, ok := j.Proof(setCookie)
	require.True(t, ok)
	a, _, _ := strings.Cut(setCookie, ";")
	b, _, _ := strings.Cut(proof, ";")
	return a + "; " + b
}

func TestJar(t *testing.T) {
	t.Parallel()
	alice, other := jarOf("alice", proxy.ModePort, today, yesterday), jarOf("bob", proxy.ModePort, today, yesterday)
	require.False(t, jarOf("alice", proxy.ModeSubdomain, today).On())
	proof, ok := alice.Proof("sid=1; Path=/lab; Max-Age=60; Secure; SameSite=Strict")
	require.True(t, ok)
	require.Regexp(t, `^berth-own-[\w-]{16}=[\w-]{24}; Path=/lab; Max-Age=60; Secure; SameSite=Strict; HttpOnly$`, proof)
	require.True(t, circuit.PlatformCookie(proof[:strings.IndexByte(proof, '=')]), "apps can neither see nor set it")

	both := sent(t, alice, "sid=1; Path=/")
	require.Equal(t, "sid=1", alice.Keep(both))
	require.Empty(t, other.Keep(both), "another tenant's app")
	require.Empty(t, alice.Keep("sid=1"), "one that a script or an app elsewhere set")
	require.Empty(t, alice.Keep(strings.Replace(both, "sid=1", "sid=2", 1)), "one that was put in its place")
	require.Empty(t, alice.Keep(sent(t, other, "sid=1")), "one that another tenant's app set")
	require.Equal(t, "sid=1", alice.Keep(sent(t, other, "sid=2")+"; "+both), "what others set takes nothing away")
	require.Equal(t, "a=1; b=2", alice.Keep(sent(t, alice, "a=1")+"; "+sent(t, alice, "b=2")+"; __Host-berth-1=ticket; c=3"))
	require.Equal(t, "sid=1; sid=2", alice.Keep(sent(t, alice, "sid=1; Path=/a")+"; "+sent(t, alice, "sid=2; Path=/")))

	old := jarOf("alice", proxy.ModePort, yesterday)
	require.Equal(t, "sid=1", alice.Keep(sent(t, old, "sid=1")), "keys take turns")
	require.Empty(t, old.Keep(both))
	for _, none := range []string{"", "=x", "novalue", " ; Path=/"} {
		_, ok := alice.Proof(none)
		require.False(t, ok, none)
	}
	_, ok = jarOf("alice", proxy.ModePort).Proof("sid=1")
	require.False(t, ok, "without keys there is no proof")
	many := both + strings.Repeat("; x=1", 10_000) + "; " + sent(t, alice, "late=1")
	require.Equal(t, "sid=1", alice.Keep(many), "too many are not looked at")
}

// Whatever cookies come, each that is kept is one that was set for the tenant.
func TestKeptCookiesWereSet(t *testing.T) {
	t.Parallel()
	alice, other := jarOf("alice", proxy.ModePort, today), jarOf("bob", proxy.ModePort, today)
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z]{1,3}`)
		set := map[string]bool{}
		var parts []string
		for range rapid.IntRange(0, 8).Draw(t, "cookies") {
			pair := word.Draw(t, "name") + "=" + word.Draw(t, "value")
			switch rapid.IntRange(0, 2).Draw(t, "by") {
			case 0:
				parts, set[pair] = append(parts, sent(t, alice, pair)), true
			case 1:
				parts = append(parts, sent(t, other, pair))
			default:
				parts = append(parts, pair)
			}
		}
		for pair := range strings.SplitSeq(alice.Keep(strings.Join(parts, "; ")), "; ") {
			require.True(t, pair == "" || set[pair], pair)
		}
	})
}
