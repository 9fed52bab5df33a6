package circuit_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// A verdict that nobody filled in lets nobody pass.
func TestTheZeroVerdictIsNoDecision(t *testing.T) {
	t.Parallel()
	require.NotContains(t, []circuit.Decision{circuit.Pass, circuit.Login, circuit.Refuse}, circuit.Verdict{}.Decision)
}

// The proxy logs and counts visitors by the user that a verdict names.
func TestVerdictsNameTheUser(t *testing.T) {
	t.Parallel()
	c := circuit.New(proxy.Circuit{ID: id, Epoch: 3, Protocol: "http"})
	v := circuit.Visitor{At: now, Origin: "https://app.example.org", Method: "GET", Cookie: ticket(nil)}
	require.Equal(t, circuit.Verdict{Decision: circuit.Pass, User: "u1", Reason: "cookie"}, c.Admit(keys, v))
	v.HeaderOrigin = "https://evil.example.com"
	refused := c.Admit(keys, v)
	require.Equal(t, circuit.Refuse, refused.Decision)
	require.Equal(t, "u1", refused.User)
	v.HeaderOrigin, v.Cookie, v.Bearer = "", "", ticket(nil)
	require.Equal(t, circuit.Verdict{Decision: circuit.Pass, User: "u1", Reason: "bearer"}, c.Admit(keys, v))
	v.Upgrade, v.HeaderOrigin = true, "https://evil.example.com"
	require.Equal(t, circuit.Pass, c.Admit(keys, v).Decision, "a program with a ticket of its own may send any origin")
	v.Bearer = ""
	require.Empty(t, c.Admit(keys, v).User)
}

func TestVerifyReturnsTheTicket(t *testing.T) {
	t.Parallel()
	c := circuit.New(proxy.Circuit{ID: id, Epoch: 3})
	got, ok := c.Verify(ticket(nil), keys, now)
	require.True(t, ok)
	require.Equal(t, "u1", got.User)
	require.Equal(t, now.Add(time.Hour).Unix(), got.Expires.Unix())
	for _, change := range []func(*proxy.Ticket){
		func(t *proxy.Ticket) { t.Circuit = "other" }, func(t *proxy.Ticket) { t.Epoch++ }, func(t *proxy.Ticket) { t.Expires = now },
	} {
		got, ok = c.Verify(ticket(change), keys, now)
		require.False(t, ok)
		require.Zero(t, got, "nothing of a ticket that does not count comes out")
	}
	_, ok = c.Verify(ticket(nil), keys[1:], now)
	require.False(t, ok)
}

// What a browser says about the page that caused a request, with a valid cookie and no Origin.
func TestRequestsOfOtherSites(t *testing.T) {
	t.Parallel()
	c := circuit.New(proxy.Circuit{ID: id, Epoch: 3, Protocol: "http"})
	public := circuit.New(proxy.Circuit{ID: id, Epoch: 3, Protocol: "http", Public: true})
	for _, test := range []struct {
		method, site, mode, dest string
		want                     circuit.Decision
	}{
		{"GET", "", "", "", circuit.Pass},
		{"POST", "none", "navigate", "document", circuit.Pass},
		{"POST", "same-origin", "cors", "empty", circuit.Pass},
		{"GET", "same-origin", "navigate", "iframe", circuit.Pass},
		{"GET", "cross-site", "navigate", "document", circuit.Pass},
		{"HEAD", "cross-site", "navigate", "document", circuit.Pass},
		{"GET", "cross-site", "navigate", "", circuit.Pass},
		{"GET", "same-site", "navigate", "document", circuit.Pass},
		{"PUT", "cross-site", "navigate", "document", circuit.Refuse},
		{"GET", "cross-site", "navigate", "iframe", circuit.Refuse},
		{"GET", "cross-site", "navigate", "embed", circuit.Refuse},
		{"GET", "cross-site", "no-cors", "document", circuit.Refuse},
		{"GET", "cross-site", "cors", "", circuit.Refuse},
		{"GET", "same-site", "websocket", "websocket", circuit.Refuse},
	} {
		v := circuit.Visitor{
			At: now, Origin: "https://app.example.org", Method: test.method, Cookie: ticket(nil), FetchSite: test.site, FetchMode: test.mode,
			FetchDest: test.dest,
		}
		require.Equal(t, test.want, c.Admit(keys, v).Decision, "%v", test)
		v.HeaderOrigin = v.Origin
		require.Equal(t, test.want, c.Admit(keys, v).Decision, "%v", test)
		reason := map[circuit.Decision]string{circuit.Pass: "cookie", circuit.Refuse: "public"}[test.want]
		got := public.Admit(keys, v)
		require.Equal(t, circuit.Pass, got.Decision, "a public app is open to other sites' pages: %v", test)
		require.Equal(t, reason, got.Reason, "but the visitor's ticket does not come along: %v", test)
		require.Equal(t, reason == "cookie", got.User != "", "%v", test)
	}
}

func TestRawConnections(t *testing.T) {
	t.Parallel()
	home := netip.MustParseAddr("192.0.2.1")
	c := circuit.New(proxy.Circuit{ID: id, Protocol: "tcp", Admitted: []netip.Addr{home, netip.MustParseAddr("fe80::1%eth0")}})
	for addr, want := range map[string]circuit.Decision{
		"192.0.2.1": circuit.Pass, "::ffff:192.0.2.1": circuit.Pass, "192.0.2.2": circuit.Refuse,
		"fe80::1": circuit.Pass, "fe80::1%eth1": circuit.Pass,
		"fe80::2": circuit.Refuse,
	} {
		got := c.AdmitConn(netip.MustParseAddr(addr), now)
		require.Equal(t, want, got.Decision, addr)
		require.Equal(t, want == circuit.Refuse, got.Words != "", addr)
		require.Equal(t, map[circuit.Decision]string{circuit.Pass: "address", circuit.Refuse: "address-not-admitted"}[want], got.Reason, addr)
	}
	later := now.Add(time.Second)
	limited := circuit.New(proxy.Circuit{ID: id, Protocol: "tcp", Public: true, ExpiresAt: &later, Allowed: prefixes("192.0.2.0/24")})
	require.Equal(t, circuit.Pass, limited.AdmitConn(home, now).Decision, "the last instant before the end")
	require.Equal(t, "expired", limited.AdmitConn(home, later).Reason)
	require.Equal(t, "address-not-allowed", limited.AdmitConn(netip.MustParseAddr("198.51.100.1"), now).Reason)
	require.NotEmpty(t, limited.AdmitConn(home, later).Words)
}

// Addresses are compared in one form. What the manager sent is not changed: the proxy keeps it.
func TestNewBringsAddressesToOneForm(t *testing.T) {
	t.Parallel()
	said := proxy.Circuit{
		ID: id, Allowed: prefixes("::ffff:192.0.2.0/120", "::ffff:0.0.0.0/96", "2001:db8::/32", "::ffff:0.0.0.0/95", "10.0.0.0/8"),
		Admitted: []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.9"), netip.MustParseAddr("fe80::1%eth0")},
	}
	c := circuit.New(said)
	require.Equal(t, prefixes("192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::ffff:0.0.0.0/95", "10.0.0.0/8"), c.Allowed)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("fe80::1")}, c.Admitted)
	require.Equal(t, prefixes("::ffff:192.0.2.0/120", "::ffff:0.0.0.0/96"), said.Allowed[:2])
	require.Equal(t, "::ffff:192.0.2.9", said.Admitted[0].String())
	require.Equal(t, "fe80::1%eth0", said.Admitted[1].String())
}

// Limits count a visitor of IPv6 by the network that is theirs.
func TestNetworksOfVisitors(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "2001:db8:1:2::": "2001:db8:1:2::",
		"fe80::1%eth0": "fe80::", "2001:db8:1:2:ffff:ffff:ffff:ffff": "2001:db8:1:2::", "2001:db8:1:3::1": "2001:db8:1:3::",
	} {
		require.Equal(t, want, circuit.Network(netip.MustParseAddr(addr)).String(), addr)
	}
	require.Equal(t, netip.Addr{}, circuit.Network(netip.Addr{}))
	require.NotEqual(t, circuit.Network(netip.MustParseAddr("2001:db8:1:2::1")), circuit.Network(netip.MustParseAddr("2001:db8:1:3::1")))
}
