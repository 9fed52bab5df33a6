package tunnel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Asked reports whether r is a request of this protocol.
func Asked(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.EqualFold(r.Header.Get("Upgrade"), Protocol)
}

// Accept answers r with the connection target, which it owns from here on: it hands it over where the caller can take it,
// else it carries bytes both ways until both directions have ended or the caller is gone. It returns the bytes carried each
// way (0 after a hand-over) when that is over.
func Accept(w http.ResponseWriter, r *http.Request, target net.Conn) (in, out int64, err error) {
	defer target.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return 0, 0, fmt.Errorf("take over the connection: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	reply := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"
	if r.Header.Get(HeaderHandOver) == HandOverFD {
		if unix := unixConn(conn); unix != nil {
			if _, err := io.WriteString(conn, reply); err != nil {
				return 0, 0, fmt.Errorf("answer: %w", err)
			}
			if err := handOver(unix, target); err == nil {
				return 0, 0, nil
			}
			reply = "" // a target without a descriptor of its own is carried
		}
		reply += string(carried)
	}
	if _, err := io.WriteString(conn, reply); err != nil {
		return 0, 0, fmt.Errorf("answer: %w", err)
	}
	in, out = Join(rest(conn, buffered.Reader), target)
	return in, out, nil
}

// unixConn finds the socket below wrappers that offer it.
func unixConn(c net.Conn) *net.UnixConn {
	for {
		switch t := c.(type) {
		case *net.UnixConn:
			return t
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// handOver sends target's descriptor; the receiver gets one of its own.
func handOver(to *net.UnixConn, target net.Conn) error {
	s, ok := target.(syscall.Conn)
	if !ok {
		return errors.New("the connection has no descriptor")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) {
		_, _, sent = to.WriteMsgUnix([]byte{handed}, syscall.UnixRights(int(fd)), nil)
	}); err != nil {
		return err
	}
	return sent
}

// rest puts back what a server had read ahead.
func rest(c net.Conn, ahead *bufio.Reader) net.Conn {
	if ahead == nil || ahead.Buffered() == 0 {
		return c
	}
	return &behind{Conn: c, ahead: ahead}
}

type behind struct {
	net.Conn
	ahead *bufio.Reader
}

func (b *behind) Read(p []byte) (int, error) { return b.ahead.Read(p) }

func (b *behind) CloseWrite() error { return closeWrite(b.Conn) }

// Join copies between two connections, with splice where both are sockets, until both directions have ended; the end of one
// direction is passed on as a half-close. It closes neither. in counts the bytes from a to b, out those back.
func Join(a, b net.Conn) (in, out int64) {
	done := make(chan int64, 1)
	go func() {
		n, err := io.Copy(a, b)
		finish(a, b, err)
		done <- n
	}()
	in, err := io.Copy(b, a)
	finish(b, a, err)
	return in, <-done
}

// finish ends the direction towards to. After an error the other direction has no purpose either.
func finish(to, from net.Conn, err error) {
	if err == nil && closeWrite(to) == nil {
		return
	}
	past := time.Unix(1, 0)
	_ = to.SetDeadline(past)
	_ = from.SetDeadline(past)
}

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.New("cannot be closed by half")
}
