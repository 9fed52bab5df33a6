package chassis

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Connections take places of the process and of their address, and give them back when they end.
func TestCrowd(t *testing.T) {
	t.Parallel()
	c := newCrowd(16)
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var leave []func()
	enter := func(from netip.Addr) bool {
		l, ok := c.enter(from)
		leave = append(leave, l)
		return ok
	}
	for range 4 {
		require.True(t, enter(one))
	}
	require.False(t, enter(one), "half of all places")
	for range 4 {
		require.True(t, enter(other), "the others have their own")
	}
	require.False(t, enter(netip.MustParseAddr("192.0.2.3")), "half of the files are for the process itself")
	leave[0]()
	leave[0]()
	require.True(t, enter(netip.MustParseAddr("192.0.2.3")))
	require.False(t, enter(other))
	v6 := newCrowd(8)
	for i, a := range []string{"2001:db8::1", "2001:db8::2", "2001:db8::3"} {
		_, ok := v6.enter(netip.MustParseAddr(a))
		require.Equal(t, i < 2, ok, "a machine has a /64")
	}
	require.Equal(t, maxHeld, newCrowd(1<<63).total)
}

// A connection without a place is closed, and the next one is served as soon as there is a place.
func TestConnectionsWithoutAPlaceAreClosed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	l := crowdListener{ln.(*net.TCPListener), newCrowd(4)} // one connection of an address
	served := make(chan net.Conn, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial()
	atServer := <-served
	second, err := net.Dial("tcp", ln.Addr().String())
	if err == nil { // otherwise the reset was there before the connection was seen to be made
		defer second.Close()
		require.NoError(t, second.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.ReadAll(second)
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NoError(t, atServer.Close())
	_, err = io.ReadAll(first)
	require.NoError(t, err)
	dial()
	_, reads := (<-served).(io.ReaderFrom)
	require.True(t, reads, "files are still sent by the kernel")
}
