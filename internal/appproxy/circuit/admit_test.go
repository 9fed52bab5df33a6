package circuit_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

var (
	now  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	keys = [][]byte{[]byte("the first key, long enough"), []byte("yesterday's key, also long")}
)

const id = "11111111-2222-3333-4444-555555555555"

func ticket(change func(*proxy.Ticket)) string {
	t := proxy.Ticket{Circuit: id, User: "u1", Epoch: 3, Expires: now.Add(time.Hour)}
	if change != nil {
		change(&t)
	}
	return proxy.SignTicket(t, keys[0])
}

func TestTicketRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := proxy.Ticket{
			Circuit: rapid.StringMatching(`[a-f0-9-]{1,36}`).Draw(t, "circuit"), User: rapid.StringN(0, 40, 120).Draw(t, "user"),
			Epoch: rapid.Int64().Draw(t, "epoch"), Expires: time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "expires"), 0),
		}
		key := rapid.SampledFrom(keys).Draw(t, "key")
		text := proxy.SignTicket(want, key)
		require.Regexp(t, `^[A-Za-z0-9._-]+$`, text)
		got, ok := proxy.ReadTicket(text, keys)
		require.True(t, ok)
		require.Equal(t, want, got)
		// No byte of it can be another one.
		i := rapid.IntRange(0, len(text)-1).Draw(t, "i")
		other := rapid.Byte().Filter(func(b byte) bool { return b != text[i] }).Draw(t, "b")
		_, ok = proxy.ReadTicket(text[:i]+string([]byte{other})+text[i+1:], keys)
		require.False(t, ok)
		_, ok = proxy.ReadTicket(text[:i], keys)
		require.False(t, ok)
		_, ok = proxy.ReadTicket(text, [][]byte{[]byte("a key of somebody else")})
		require.False(t, ok)
	})
}

func TestKeysThatAreNone(t *testing.T) {
	t.Parallel()
	for _, key := range [][]byte{nil, {}, []byte("short")} {
		require.Empty(t, proxy.SignTicket(proxy.Ticket{Circuit: id}, key))
		_, ok := proxy.ReadTicket(ticket(nil), [][]byte{key})
		require.False(t, ok)
	}
	_, ok := proxy.ReadTicket(ticket(nil), nil)
	require.False(t, ok)
	_, ok = proxy.ReadTicket(strings.Repeat("a.", 4000), keys)
	require.False(t, ok)
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	base := proxy.Circuit{ID: id, Epoch: 3, Protocol: "http"}
	const home, foreign = "https://app.example.org", "https://evil.example.com"
	visit := func(change func(*circuit.Visitor)) circuit.Visitor {
		v := circuit.Visitor{At: now, Addr: netip.MustParseAddr("192.0.2.7"), Secure: true, Origin: home, Method: "GET", Cookie: ticket(nil)}
		change(&v)
		return v
	}
	past := now.Add(-time.Second)
	for name, test := range map[string]struct {
		circuit func(*proxy.Circuit)
		visitor func(*circuit.Visitor)
		want    circuit.Decision
		reason  string
	}{
		"cookie": {want: circuit.Pass, reason: "cookie"},
		"yesterday's key": {visitor: func(v *circuit.Visitor) {
			v.Cookie = proxy.SignTicket(proxy.Ticket{Circuit: id, Epoch: 3, Expires: now.Add(1e9)}, keys[1])
		}, want: circuit.Pass, reason: "cookie"},
		"none": {visitor: func(v *circuit.Visitor) { v.Cookie = "" }, want: circuit.Login, reason: "no-ticket"},
		"another circuit's": {visitor: func(v *circuit.Visitor) { v.Cookie = ticket(func(t *proxy.Ticket) { t.Circuit = "other" }) },
			want: circuit.Login, reason: "no-ticket"},
		"an older epoch's": {visitor: func(v *circuit.Visitor) { v.Cookie = ticket(func(t *proxy.Ticket) { t.Epoch = 2 }) },
			want: circuit.Login, reason: "no-ticket"},
		"a later epoch's": {visitor: func(v *circuit.Visitor) { v.Cookie = ticket(func(t *proxy.Ticket) { t.Epoch = 4 }) },
			want: circuit.Login, reason: "no-ticket"},
		"expired this instant": {visitor: func(v *circuit.Visitor) { v.Cookie = ticket(func(t *proxy.Ticket) { t.Expires = now }) },
			want: circuit.Login, reason: "no-ticket"},
		"two tickets in one": {visitor: func(v *circuit.Visitor) { v.Cookie += ", " + v.Cookie }, want: circuit.Login, reason: "no-ticket"},
		"bearer": {visitor: func(v *circuit.Visitor) { v.Cookie, v.Bearer = "", ticket(nil) }, want: circuit.Pass,
			reason: "bearer"},
		"bad bearer, good cookie": {visitor: func(v *circuit.Visitor) { v.Bearer = "x" }, want: circuit.Login, reason: "bad-ticket"},
		"from an allowed network": {visitor: func(v *circuit.Visitor) {
			v.Cookie = ticket(func(t *proxy.Ticket) { t.Clients = []string{"10.0.0.0/8", "192.0.2.0/24"} })
		}, want: circuit.Pass, reason: "cookie"},
		"from elsewhere": {visitor: func(v *circuit.Visitor) {
			v.Cookie = ticket(func(t *proxy.Ticket) { t.Clients = []string{"10.0.0.0/8"} })
		}, want: circuit.Refuse, reason: "address-not-allowed"},
		"bearer from elsewhere": {visitor: func(v *circuit.Visitor) {
			v.Cookie, v.Bearer = "", ticket(func(t *proxy.Ticket) { t.Clients = []string{"10.0.0.0/8"} })
		}, want: circuit.Refuse, reason: "address-not-allowed"},
		"from no address": {visitor: func(v *circuit.Visitor) {
			v.Addr, v.Cookie = netip.Addr{}, ticket(func(t *proxy.Ticket) { t.Clients = []string{"0.0.0.0/0"} })
		}, want: circuit.Refuse, reason: "address-not-allowed"},
		"public, from elsewhere": {circuit: func(c *proxy.Circuit) { c.Public = true }, visitor: func(v *circuit.Visitor) {
			v.Cookie = ticket(func(t *proxy.Ticket) { t.Clients = []string{"10.0.0.0/8"} })
		}, want: circuit.Pass, reason: "public"},
		"own page posts": {visitor: func(v *circuit.Visitor) { v.Method, v.HeaderOrigin, v.FetchSite = "POST", home, "same-origin" },
			want: circuit.Pass, reason: "cookie"},
		"foreign page posts": {visitor: func(v *circuit.Visitor) { v.Method, v.HeaderOrigin = "POST", foreign }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"origin null": {visitor: func(v *circuit.Visitor) { v.Method, v.HeaderOrigin = "POST", "null" }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"own host, other port": {visitor: func(v *circuit.Visitor) { v.HeaderOrigin = home + ":8443" }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"own host, no TLS": {visitor: func(v *circuit.Visitor) { v.HeaderOrigin = "http://app.example.org" }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"origin as prefix": {visitor: func(v *circuit.Visitor) { v.HeaderOrigin = home + ".evil.example.com" }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"another app's fetch": {visitor: func(v *circuit.Visitor) {
			v.FetchSite, v.FetchMode, v.FetchDest = "same-site", "no-cors",
				"image"
		}, want: circuit.Refuse, reason: "foreign-origin"},
		"another app's frame": {visitor: func(v *circuit.Visitor) {
			v.FetchSite, v.FetchMode, v.FetchDest = "same-site", "navigate",
				"iframe"
		}, want: circuit.Refuse, reason: "foreign-origin"},
		"a link followed": {visitor: func(v *circuit.Visitor) {
			v.FetchSite, v.FetchMode, v.FetchDest = "cross-site", "navigate",
				"document"
		}, want: circuit.Pass, reason: "cookie"},
		"a foreign form": {visitor: func(v *circuit.Visitor) {
			v.Method, v.FetchSite, v.FetchMode, v.FetchDest = "POST", "cross-site", "navigate", "document"
		}, want: circuit.Refuse, reason: "foreign-origin"},
		"a site nobody knows": {visitor: func(v *circuit.Visitor) { v.FetchSite = "Same-Origin" }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"own WebSocket": {visitor: func(v *circuit.Visitor) { v.Upgrade, v.HeaderOrigin = true, home }, want: circuit.Pass,
			reason: "cookie"},
		"foreign WebSocket": {visitor: func(v *circuit.Visitor) { v.Upgrade, v.HeaderOrigin = true, foreign }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"WebSocket of a program": {visitor: func(v *circuit.Visitor) { v.Upgrade, v.Cookie, v.Bearer = true, "", ticket(nil) },
			want: circuit.Pass, reason: "bearer"},
		"expired circuit": {circuit: func(c *proxy.Circuit) { c.ExpiresAt = &past }, want: circuit.Refuse, reason: "expired"},
		"expires this instant": {circuit: func(c *proxy.Circuit) { at := now; c.ExpiresAt, c.Public = &at, true }, want: circuit.Refuse,
			reason: "expired"},
		"public, nobody": {circuit: func(c *proxy.Circuit) { c.Public = true }, visitor: func(v *circuit.Visitor) { v.Cookie = "" },
			want: circuit.Pass, reason: "public"},
		"public, foreign page": {circuit: func(c *proxy.Circuit) { c.Public = true },
			visitor: func(v *circuit.Visitor) { v.Method, v.HeaderOrigin = "POST", foreign }, want: circuit.Pass, reason: "public"},
		"public, foreign socket": {circuit: func(c *proxy.Circuit) { c.Public = true },
			visitor: func(v *circuit.Visitor) { v.Upgrade, v.Cookie, v.HeaderOrigin = true, "", foreign }, want: circuit.Refuse,
			reason: "foreign-origin"},
		"address not allowed": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("10.0.0.0/8") }, want: circuit.Refuse,
			reason: "address-not-allowed"},
		"not allowed binds all": {circuit: func(c *proxy.Circuit) { c.Public, c.Allowed = true, prefixes("10.0.0.0/8") }, want: circuit.Refuse,
			reason: "address-not-allowed"},
		"allowed": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("10.0.0.0/8", "192.0.2.0/24") }, want: circuit.Pass,
			reason: "cookie"},
		"mapped address": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("192.0.2.0/24") },
			visitor: func(v *circuit.Visitor) { v.Addr = netip.MustParseAddr("::ffff:192.0.2.7") }, want: circuit.Pass, reason: "cookie"},
		"mapped prefix": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("::ffff:192.0.2.0/120") }, want: circuit.Pass,
			reason: "cookie"},
		"every IPv6 is no IPv4": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("::/0") }, want: circuit.Refuse,
			reason: "address-not-allowed"},
		"address with a zone": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("fe80::/10") },
			visitor: func(v *circuit.Visitor) { v.Addr = netip.MustParseAddr("fe80::1%eth0") }, want: circuit.Pass, reason: "cookie"},
		"address unknown": {circuit: func(c *proxy.Circuit) { c.Allowed = prefixes("0.0.0.0/0", "::/0") },
			visitor: func(v *circuit.Visitor) { v.Addr = netip.Addr{} }, want: circuit.Refuse, reason: "address-not-allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := base
			if test.circuit != nil {
				test.circuit(&c)
			}
			v := visit(func(v *circuit.Visitor) {
				if test.visitor != nil {
					test.visitor(v)
				}
			})
			got := circuit.New(c).Admit(keys, v)
			require.Equal(t, test.want, got.Decision, got.Reason)
			require.Equal(t, test.reason, got.Reason)
			if got.Decision != circuit.Pass {
				require.NotEmpty(t, got.Words)
			}
		})
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestAdmitConn(t *testing.T) {
	t.Parallel()
	home := netip.MustParseAddr("192.0.2.1")
	c := proxy.Circuit{ID: id, Protocol: "tcp", Admitted: []netip.Addr{netip.AddrFrom16(home.As16())}}
	require.Equal(t, circuit.Pass, circuit.New(c).AdmitConn(home, now).Decision)
	require.Equal(t, circuit.Pass, circuit.New(c).AdmitConn(netip.AddrFrom16(home.As16()), now).Decision)
	require.Equal(t, circuit.Refuse, circuit.New(c).AdmitConn(home.Next(), now).Decision)
	require.Equal(t, circuit.Refuse, circuit.New(c).AdmitConn(netip.Addr{}, now).Decision)
	c.Allowed = prefixes("10.0.0.0/8")
	require.Equal(t, "address-not-allowed", circuit.New(c).AdmitConn(home, now).Reason, "the allow list binds whoever was admitted")
	past := now
	c.Allowed, c.Public, c.ExpiresAt = nil, true, &past
	require.Equal(t, "expired", circuit.New(c).AdmitConn(home, now).Reason)
	c.ExpiresAt = nil
	require.Equal(t, circuit.Pass, circuit.New(c).AdmitConn(home.Next(), now).Decision)
}

func TestCookieNames(t *testing.T) {
	t.Parallel()
	c := circuit.New(proxy.Circuit{ID: id})
	require.Equal(t, "berth-11111111222233334444555555555555", c.CookieName(false))
	require.Equal(t, "__Host-berth-11111111222233334444555555555555", c.CookieName(true))
	for name, want := range map[string]bool{
		c.CookieName(true): true, c.CookieName(false): true, "BERTH-x": true, "__host-Berth-x": true, "berth-": true,
		"berth": false, "_xsrf": false, "__Host-": false, "__Host-session": false, "my-berth-x": false, "": false,
	} {
		require.Equal(t, want, circuit.PlatformCookie(name), name)
	}
}

func BenchmarkAdmit(b *testing.B) {
	c := circuit.New(proxy.Circuit{ID: id, Epoch: 3})
	v := circuit.Visitor{At: now, Addr: netip.MustParseAddr("192.0.2.7"), Origin: "https://a", Method: "GET", Cookie: ticket(nil)}
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprint(n, "keys"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if c.Admit(keys[:n], v).Decision != circuit.Pass {
					b.Fatal()
				}
			}
		})
	}
}
