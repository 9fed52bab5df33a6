package transfer

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
)

type connKey struct{}

// Configure prepares the server whose handler this is: transfers get to know their connections, and those within this machine are
// sent without pauses.
func (s *Server) Configure(h *http.Server) {
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		chassis.Unpace(c)
		return context.WithValue(ctx, connKey{}, c)
	}
}

// connOf is nil with TLS, where the kernel does not send the file.
func connOf(r *http.Request) *net.TCPConn {
	c := r.Context().Value(connKey{})
	if _, secret := c.(*tls.Conn); secret {
		return nil
	}
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = wrapped.NetConn()
	}
	tcp, _ := c.(*net.TCPConn)
	return tcp
}

// cork makes a connection send full segments alone until uncork. With it the kernel sends a file in larger steps: the
// head waits for the first bytes, and what one call could not place joins the next.
func cork(r *http.Request) (uncork func()) {
	c := connOf(r)
	if c == nil {
		return func() {}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return func() {}
	}
	setCork(raw, 1)
	return func() { setCork(raw, 0) }
}

// setCork says nothing of failures: without it the bytes are the same.
func setCork(raw syscall.RawConn, value int) {
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, value) })
}
