package address_test

import (
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/address"
)

func refused(t *testing.T, addr string) {
	t.Helper()
	_, err := net.Dial("tcp", addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// Whoever asks for just this address can listen there, and when the listener is closed it is refused again.
func TestHold(t *testing.T) {
	addr := address.Hold(t)
	refused(t, addr)
	for range 3 {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		far, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		refused(t, addr)
		require.NoError(t, far.Close())
		require.NoError(t, c.Close())
	}
	s := address.Serve(t, http.NotFoundHandler())
	resp, err := http.Get(s.URL)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	s.Close()
	refused(t, s.Listener.Addr().String())
}

// Whoever asks for any port, to listen or to connect from, gets none that is held: of 200 that were only closed, a good part would be
// met by as many tries as the kernel has ports.
func TestHeldPortsAreGivenToNobody(t *testing.T) {
	held := map[string]bool{}
	for range 200 {
		held[address.Hold(t)] = true
	}
	require.Len(t, held, 200, "each is another")
	for range 30_000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.False(t, held[l.Addr().String()])
		require.NoError(t, l.Close())
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	for range 5_000 {
		c, err := net.Dial("tcp", server.Addr().String())
		require.NoError(t, err)
		far, err := server.Accept()
		require.NoError(t, err)
		require.False(t, held[c.LocalAddr().String()])
		require.NoError(t, c.(*net.TCPConn).SetLinger(0)) // a reset leaves no port in TIME_WAIT
		require.NoError(t, c.Close())
		require.NoError(t, far.Close())
	}
}
