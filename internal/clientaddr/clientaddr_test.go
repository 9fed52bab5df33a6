package clientaddr_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/clientaddr"
)

func trusted(t *testing.T, list ...string) clientaddr.Trusted {
	t.Helper()
	out, err := clientaddr.ParseTrusted("manager.trusted_proxies", list)
	require.NoError(t, err)
	return out
}

func TestClient(t *testing.T) {
	t.Parallel()
	proxies := trusted(t, "10.0.0.0/8", "192.0.2.1", "::ffff:198.51.100.0/120", "2001:db8:1::/48", "fe80::/10")
	for name, c := range map[string]struct {
		peer string
		list []string
		want string
	}{
		"no header":                         {"203.0.113.9", nil, "203.0.113.9"},
		"a stranger's header":               {"203.0.113.9", []string{"10.1.1.1"}, "203.0.113.9"},
		"one proxy":                         {"10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		"what the client wrote itself":      {"10.0.0.1", []string{"6.6.6.6, 203.0.113.9"}, "203.0.113.9"},
		"in a field of its own":             {"10.0.0.1", []string{"6.6.6.6", "203.0.113.9"}, "203.0.113.9"},
		"two proxies":                       {"10.0.0.1", []string{"6.6.6.6, 203.0.113.9, 192.0.2.1"}, "203.0.113.9"},
		"two proxies, two fields":           {"10.0.0.1", []string{"6.6.6.6, 203.0.113.9", "192.0.2.1"}, "203.0.113.9"},
		"only proxies":                      {"10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"a proxy that says nothing":         {"10.0.0.1", nil, "10.0.0.1"},
		"an empty field":                    {"10.0.0.1", []string{""}, "10.0.0.1"},
		"nonsense through a proxy":          {"10.0.0.1", []string{"nonsense"}, "10.0.0.1"},
		"nonsense of the client":            {"10.0.0.1", []string{"nonsense, 203.0.113.9"}, "203.0.113.9"},
		"nonsense behind two proxies":       {"10.0.0.1", []string{"203.0.113.9, nonsense, 192.0.2.1"}, "192.0.2.1"},
		"with a port":                       {"10.0.0.1", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		"IPv6 with a port":                  {"10.0.0.1", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		"IPv6 in brackets":                  {"10.0.0.1", []string{"[2001:db8::7]"}, "2001:db8::7"},
		"IPv4 as IPv6, peer":                {"::ffff:10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		"IPv4 as IPv6, entry":               {"10.0.0.1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		"IPv4 as IPv6, trusted entry":       {"10.0.0.1", []string{"203.0.113.9, ::ffff:192.0.2.1"}, "203.0.113.9"},
		"IPv4 as IPv6, setting":             {"198.51.100.7", []string{"203.0.113.9"}, "203.0.113.9"},
		"a zone, peer":                      {"fe80::1%eth0", []string{"203.0.113.9"}, "203.0.113.9"},
		"a zone, entry":                     {"10.0.0.1", []string{"fe81::1%eth0"}, "fe81::1"},
		"IPv6 proxy":                        {"2001:db8:1::5", []string{"2001:db8:2::5"}, "2001:db8:2::5"},
		"the neighbour of a single address": {"192.0.2.2", []string{"203.0.113.9"}, "192.0.2.2"},
		"no address":                        {"", []string{"203.0.113.9"}, "invalid IP"},
	} {
		require.Equal(t, c.want, proxies.Client(clientaddr.Parse(c.peer), c.list).String(), name)
	}
	require.Equal(t, "10.0.0.1", clientaddr.Trusted{}.Client(clientaddr.Parse("10.0.0.1"), []string{"203.0.113.9"}).String())

	endless := strings.Repeat("10.0.0.9,", 40) + "10.0.0.9"
	require.Equal(t, "10.0.0.9", proxies.Client(clientaddr.Parse("10.0.0.1"), []string{"203.0.113.9", endless}).String())
}

func TestSecure(t *testing.T) {
	t.Parallel()
	proxies := trusted(t, "10.0.0.0/8")
	at, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	require.True(t, proxies.Secure(at, false, []string{"https"}))
	require.True(t, proxies.Secure(at, false, []string{"http, HTTPS "}))
	require.True(t, proxies.Secure(at, false, []string{"http", "https"}))
	require.False(t, proxies.Secure(at, true, []string{"https,http"}))
	require.True(t, proxies.Secure(at, true, nil))
	require.False(t, proxies.Secure(stranger, false, []string{"https"}))
	require.True(t, proxies.Secure(stranger, true, []string{"http"}))
}

func TestTrustedProxiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "10.0.0.0/33", "proxy.example.org", "10.0.0.*", "10.0.0.1-10.0.0.9", "10.0.0.1:80", "10/8"} {
		_, err := clientaddr.ParseTrusted("storage.trusted_proxies", []string{"10.0.0.1", bad})
		require.ErrorContains(t, err, "storage.trusted_proxies", bad)
	}
	require.True(t, trusted(t).Empty())
	require.False(t, trusted(t).Has(netip.MustParseAddr("127.0.0.1")))
	require.False(t, trusted(t, " 127.0.0.1 ").Empty())
}

func TestNetworkOfAnAddress(t *testing.T) {
	t.Parallel()
	for a, want := range map[string]string{"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8::1:2:3:4": "2001:db8::",
		"fe80::1%eth0": "fe80::"} {
		require.Equal(t, want, clientaddr.Network(netip.MustParseAddr(a)).String())
	}
	require.False(t, clientaddr.Network(netip.Addr{}).IsValid())
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddr("1.2.3.4")
	require.True(t, clientaddr.Networks{}.Admit(at))
	require.True(t, clientaddr.Networks{}.Admit(netip.Addr{}), "who has no list comes from anywhere")
	require.True(t, clientaddr.ParseNetworks(nil).Admit(at))
	require.False(t, clientaddr.ParseNetworks(nil).Listed())

	n := clientaddr.ParseNetworks(
		[]string{"10.0.0.0/8", "192.0.2.7", "192.0.2.16/28", "192.0.2.99/24x", "2001:db8::/32", "::ffff:172.16.0.0/108", "::ffff:198.51.100.1",
			" 100.64.*.* ", "203.0.113.*", "fe80::1", "junk", "1.*.3.*", "*", "1.2.3.4.*", "", "2001:db8:ffff:*"},
	)
	require.True(t, n.Listed())
	for ip, want := range map[string]bool{
		"10.9.8.7": true, "::ffff:10.9.8.7": true, "11.0.0.1": false,
		"192.0.2.7": true, "192.0.2.8": false, "192.0.2.17": true, "192.0.2.31": true, "192.0.2.32": false, "192.0.2.15": false,
		"2001:db8::1": true, "2001:db9::1": false, "172.31.255.255": true, "172.32.0.0": false, "198.51.100.1": true, "198.51.100.2": false,
		"100.64.255.1": true, "100.65.0.1": false, "203.0.113.200": true, "203.0.114.1": false,
		"fe80::1": true, "fe80::1%eth0": true, "fe80::2": false, "1.2.3.4": false, "1.0.3.0": false, "0.0.0.0": false, "::": false,
	} {
		require.Equal(t, want, n.Admit(netip.MustParseAddr(ip)), ip)
	}
	again := clientaddr.ParseNetworks(n.Texts())
	require.Equal(t, n.Texts(), again.Texts())
	require.Contains(t, n.Texts(), "100.64.0.0/16")
	require.True(t, again.Admit(netip.MustParseAddr("100.64.255.1")))
	require.False(t, again.Admit(at))
	require.Nil(t, clientaddr.ParseNetworks(nil).Texts())
	require.False(t, clientaddr.ParseNetworks(clientaddr.ParseNetworks([]string{"junk"}).Texts()).Admit(at))
	require.False(t, n.Admit(netip.Addr{}), "an address that is not known is in no network")
	require.False(t, clientaddr.ParseNetworks([]string{"junk"}).Admit(at), "a list of which nothing can be read admits nobody")
	require.True(t, clientaddr.ParseNetworks([]string{"0.0.0.0/0"}).Admit(at))
	require.False(t, clientaddr.ParseNetworks([]string{"0.0.0.0/0"}).Admit(netip.MustParseAddr("::1")))
}
