package agent

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/proxy"
)

// A node that opens connection after connection loses its own oldest ones, and nobody else's.
func TestConnectionsOfOneNode(t *testing.T) {
	t.Parallel()
	c := newCrowd()
	enter := func(name string) (*guest, net.Conn) {
		near, far := net.Pipe()
		g := c.guest(near)
		g.enter(tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: name}}}})
		return g, far
	}
	over := func(far net.Conn) bool {
		return errors.Is(far.SetWriteDeadline(time.Unix(1, 0)), io.ErrClosedPipe)
	}
	flood := func(name string, n int) (far []net.Conn) {
		for range n {
			_, f := enter(name)
			far = append(far, f)
		}
		return far
	}
	victim, victimFar := enter("a2")
	_, euFar := enter(proxy.NamePrefix + "eu")
	_, managerFar := enter("manager:m1")
	for i, f := range flood("a1", 3*maxAgentConns) {
		require.Equal(t, i < 2*maxAgentConns, over(f), i)
	}
	for i, f := range flood(proxy.NamePrefix+"web", maxProxyConns) {
		require.Equal(t, i < maxProxyConns-maxConnsOfOneProxy, over(f), i)
	}
	flood("manager:m1", 2*maxProxyConns)
	for _, f := range []net.Conn{victimFar, euFar, managerFar} {
		require.False(t, over(f))
	}
	require.NoError(t, victim.Close())
	require.NoError(t, victim.Close())
	require.True(t, over(victimFar))
	require.Len(t, c.open, 3, "who has left takes no place")
}
