package e2e_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// relay passes connections on, until a test breaks them.
type relay struct {
	listener        net.Listener
	network, target string
	group           sync.WaitGroup

	mu    sync.Mutex
	hung  chan struct{} // closed when bytes pass again; nil while they do
	conns map[net.Conn]struct{}
}

// newRelay passes connections to listener on to a target; it ends with the test.
func newRelay(t testing.TB, listener net.Listener, network, target string) *relay {
	t.Helper()
	r := &relay{listener: listener, network: network, target: target, conns: map[net.Conn]struct{}{}}
	r.group.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.cut()
		r.hang(false)
		r.group.Wait()
	})
	return r
}

// tcpRelay listens on a port of its own.
func tcpRelay(t testing.TB, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newRelay(t, l, "tcp", target)
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.group.Go(func() { r.serve(c) })
	}
}

func (r *relay) serve(near net.Conn) {
	defer near.Close()
	r.pass()
	far, err := net.Dial(r.network, r.target)
	if err != nil {
		return
	}
	defer far.Close()
	r.mu.Lock()
	r.conns[near], r.conns[far] = struct{}{}, struct{}{}
	r.mu.Unlock()
	var both sync.WaitGroup
	copyAll := func(to, from net.Conn) {
		_, _ = io.Copy(writer{to, r}, from)
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { copyAll(far, near) })
	copyAll(near, far)
	both.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, near)
	delete(r.conns, far)
}

// writer waits while the relay hangs.
type writer struct {
	io.Writer
	r *relay
}

func (w writer) Write(p []byte) (int, error) {
	w.r.pass()
	return w.Writer.Write(p)
}

// pass waits while the relay hangs.
func (r *relay) pass() {
	r.mu.Lock()
	hung := r.hung
	r.mu.Unlock()
	if hung != nil {
		<-hung
	}
}

// cut breaks every connection that is open now.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

// hang keeps everything back that is sent, until it is called with false.
func (r *relay) hang(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case on && r.hung == nil:
		r.hung = make(chan struct{})
	case !on && r.hung != nil:
		close(r.hung)
		r.hung = nil
	}
}
