package sshd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
)

// scripted is a listener whose Accept gives one answer after the other.
type scripted struct {
	answers chan any // net.Conn or error
	closed  chan struct{}
}

func (s *scripted) Accept() (net.Conn, error) {
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	case a := <-s.answers:
		if err, ok := a.(error); ok {
			return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
		}
		return a.(net.Conn), nil
	}
}

func (s *scripted) Close() error {
	close(s.closed)
	return nil
}

func (s *scripted) Addr() net.Addr { return &net.TCPAddr{} }

func TestListenersOutliveWhatPasses(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := &connection{server: New(Config{Log: slog.New(slog.DiscardHandler)}), ctx: ctx, cancel: cancel, free: make(chan struct{}),
		forwards: map[string]net.Listener{}}
	registered := func(name string) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.forwards[name] != nil
	}
	open := func(name string) *scripted {
		l := &scripted{answers: make(chan any, 8), closed: make(chan struct{})}
		require.True(t, c.listen(name, l, "test", func(net.Conn) []byte { return nil }))
		return l
	}
	l := open("one")
	for _, e := range []error{syscall.EMFILE, os.NewSyscallError("accept4", syscall.ENFILE), syscall.ECONNABORTED, syscall.ENOBUFS} {
		l.answers <- e
	}
	near, far := net.Pipe()
	l.answers <- far
	_ = near.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "it was accepted, and closed for want of a place")
	require.True(t, registered("one"))

	// Its end frees its name.
	l.answers <- errors.New("broken")
	require.Eventually(t, func() bool { return !registered("one") }, time.Minute, time.Millisecond)
	await.Value(t, l.closed)
	l = open("one")
	l.answers <- syscall.EMFILE
	require.True(t, c.cancelForward("one"))
	require.False(t, registered("one"))

	// That of the key agent's socket lets it be made again.
	c.agent = "file"
	l = open(agentForward)
	l.answers <- syscall.EINVAL
	require.Eventually(t, func() bool { return c.agentEnv() == nil }, time.Minute, time.Millisecond)

	// The connection's end ends the waiting.
	l = open("two")
	l.answers <- syscall.EMFILE
	cancel()
	c.mu.Lock()
	c.ended = true
	require.NoError(t, l.Close())
	c.mu.Unlock()
	c.work.Wait()
}
