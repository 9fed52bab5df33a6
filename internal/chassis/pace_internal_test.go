package chassis

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStays(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7} }
	for _, c := range []struct {
		near, far string
		want      bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"::ffff:192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		require.Equal(t, c.want, stays(at(c.near), at(c.far)), "%s to %s", c.near, c.far)
	}
	require.False(t, stays(&net.UnixAddr{Name: "a"}, &net.UnixAddr{Name: "a"}))
}

// control reads and sets a connection's congestion control.
func control(t *testing.T, conn net.Conn, set string) (name string, err error) {
	t.Helper()
	raw, rerr := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, rerr)
	require.NoError(t, raw.Control(func(fd uintptr) {
		if set != "" {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, set)
			return
		}
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}))
	return name, err
}

// Connections within a machine lose BBR and nothing else.
func TestUnpace(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = control(t, conn, "reno")
	require.NoError(t, err)
	Unpace(conn)
	name, err := control(t, conn, "")
	require.NoError(t, err)
	require.Equal(t, "reno", name, "what does not pace stays")
	if _, err := control(t, conn, "bbr"); err != nil {
		t.Skipf("this machine has no BBR to take away: %v", err)
	}
	Unpace(conn)
	name, err = control(t, conn, "")
	require.NoError(t, err)
	require.Contains(t, []string{"cubic", "reno"}, name)
}
