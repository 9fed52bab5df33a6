package tunnel

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"berth.dev/berth/internal/fault"
)

// adopt makes a connection of a descriptor that a peer sent, and owns the descriptor. It takes connected streams alone:
// datagrams have no end and no order, and a socket without a peer breaks whoever asks for the peer's address.
func adopt(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "tunnel")
	if f == nil {
		return nil, errors.New("no descriptor was handed over")
	}
	defer f.Close() // net.FileConn makes a copy
	kind, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE)
	if err != nil {
		return nil, fmt.Errorf("what was handed over is no socket: %w", err)
	}
	if kind != syscall.SOCK_STREAM {
		return nil, fmt.Errorf("a socket of kind %d was handed over", kind)
	}
	peer, err := syscall.Getpeername(fd)
	if err != nil {
		return nil, fmt.Errorf("the socket that was handed over is not connected: %w", err)
	}
	switch peer.(type) {
	case *syscall.SockaddrInet4, *syscall.SockaddrInet6, *syscall.SockaddrUnix:
	default:
		return nil, fmt.Errorf("a socket of family %T was handed over", peer)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket that was handed over: %w", err)
	}
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
		return conn, nil
	}
	_ = conn.Close()
	return nil, fmt.Errorf("a %T was handed over", conn)
}

// unixConn finds the socket below wrappers that offer it. What is below TLS is none of ours: the bytes on it are TLS's.
func unixConn(c net.Conn) *net.UnixConn {
	for {
		switch t := c.(type) {
		case *net.UnixConn:
			return t
		case *tls.Conn:
			return nil
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// handOver sends text together with target's descriptor, of which the receiver gets one of its own. Nothing was sent when
// it reports an error and unsent.
func handOver(to *net.UnixConn, text []byte, target net.Conn) (unsent bool, err error) {
	s, ok := target.(syscall.Conn)
	if !ok {
		return true, errors.New("the connection has no descriptor")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true, err
	}
	n := 0
	var sent error
	if err := raw.Control(func(fd uintptr) { n, _, sent = to.WriteMsgUnix(text, syscall.UnixRights(int(fd)), nil) }); err != nil {
		return true, err
	}
	if sent != nil {
		return n == 0, sent
	}
	if n < len(text) { // the descriptor went with the first byte
		_, err = to.Write(text[n:])
	}
	return false, err
}

func unreachable(err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	return fault.Unavailablef("the way into the session broke off").WithReason("tunnel").WithCause(err)
}
