package data

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

// listener accepts at most maxWaiting connections that have not sent their request yet.
type listener struct {
	net.Listener
	admit func(net.Conn) error // may be nil
	log   *slog.Logger
	free  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newListener(l net.Listener, admit func(net.Conn) error, log *slog.Logger) *listener {
	return &listener{Listener: l, admit: admit, log: log, free: make(chan struct{}, maxWaiting), done: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		select {
		case l.free <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.free
			return nil, err
		}
		if l.admit != nil {
			if err := l.admit(c); err != nil {
				l.log.Warn("a connection to the data port was refused", "err", err)
				_ = c.Close()
				<-l.free
				continue
			}
		}
		return &waiting{Conn: c, release: sync.OnceFunc(func() { <-l.free })}, nil
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// waiting is a connection that is counted until it becomes a tunnel or ends.
type waiting struct {
	net.Conn
	release func()
}

// NetConn returns the socket itself, which is what is spliced and handed over on.
func (w *waiting) NetConn() net.Conn { return w.Conn }

func (w *waiting) Close() error {
	w.release()
	return w.Conn.Close()
}

// settle is called when a connection has become a tunnel: it no longer counts as waiting.
func settle(c net.Conn, s http.ConnState) {
	if s != http.StateHijacked {
		return
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if w, ok := c.(*waiting); ok {
		w.release()
	}
}

// samePeer refuses peers of another user than uid or root.
func samePeer(c net.Conn, uid int) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fault.Deniedf("the peer is not on a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return fmt.Errorf("find the peer's user: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return fmt.Errorf("find the peer's user: %w", err)
	}
	if cerr != nil {
		return fmt.Errorf("find the peer's user: %w", cerr)
	}
	if cred.Uid != 0 && int(cred.Uid) != uid {
		return fault.Deniedf("process %d of user %d may not use it", cred.Pid, cred.Uid).WithNext("run the app proxy as the agent's user")
	}
	return nil
}
