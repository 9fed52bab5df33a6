package proxy_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/proxy"
)

// Tickets carry the networks that they are good from, and nobody can take them out.
func TestTicketsOfNetworks(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef0123456789abcdef")
	end := time.Unix(1_800_000_000, 0)
	plain := proxy.Ticket{Circuit: "c", User: "u", Epoch: 7, Expires: end}
	bound := plain
	bound.Clients = []string{"10.0.0.0/8", "2001:db8::/32"}
	for _, want := range []proxy.Ticket{plain, bound} {
		got, ok := proxy.ReadTicket(proxy.SignTicket(want, key), [][]byte{key})
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	require.True(t, plain.From(netip.Addr{}))
	require.True(t, bound.From(netip.MustParseAddr("::ffff:10.1.2.3")))
	require.False(t, bound.From(netip.MustParseAddr("11.1.2.3")))
	require.False(t, bound.From(netip.Addr{}))

	parts := strings.Split(proxy.SignTicket(bound, key), ".")
	require.Len(t, parts, 6)
	for _, forged := range []string{
		strings.Join(append(parts[:4:4], parts[5]), "."), strings.Join(append(append(parts[:4:4], ""), parts[5]), "."),
		strings.Join(append(append(parts[:4:4], "bm9uZQ"), parts[5]), "."),
	} {
		_, ok := proxy.ReadTicket(forged, [][]byte{key})
		require.False(t, ok, forged)
	}
}
