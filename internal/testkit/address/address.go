// Package address gives tests addresses of this host that nobody else gets until the test ends. A port that the kernel chose and that was
// closed again is no such address: the next listener of this test, of one beside it or of another process may get it.
package address

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// Hold returns an address of 127.0.0.1, host and port, that is the test's own until its end. Connections to it are refused except while
// the test, or a process of it, listens there with net.Listen, which it may do one time after the other.
//
// A socket that is bound and does not listen holds the port. Linux lets a listener have the same explicit port when both sockets have
// SO_REUSEADDR, as those of net.Listen do, and gives the port to nobody who asks for any, be it to listen or to connect from.
func Hold(tb testing.TB) string {
	tb.Helper()
	return HoldAt(tb, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// HoldAt is Hold at another IPv4 address of this host.
func HoldAt(tb testing.TB, host netip.Addr) string {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(tb, err)
	tb.Cleanup(func() { _ = unix.Close(fd) })
	check(tb, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	check(tb, unix.Bind(fd, &unix.SockaddrInet4{Addr: host.As4()}))
	at, err := unix.Getsockname(fd)
	check(tb, err)
	in4 := at.(*unix.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), uint16(in4.Port)).String()
}

// Listen returns a listener whose address stays the test's own after it is closed: connections are refused then.
func Listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", Hold(tb))
	check(tb, err)
	return l
}

// Serve starts a server whose address stays the test's own after it is closed, which happens at the latest at the test's end.
func Serve(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	s := &httptest.Server{Listener: Listen(tb), Config: &http.Server{Handler: h}} //nolint:gosec // as httptest.NewServer makes it
	s.Start()
	tb.Cleanup(s.Close)
	return s
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
