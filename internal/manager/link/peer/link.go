package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/h2"
	"berth.dev/berth/internal/wire/node"
)

// link is the way to one other manager: one connection, opened when it is needed and again after it broke.
type link struct {
	r        *Relay
	id, addr string

	mu      sync.Mutex
	conn    *http.ClientConn
	raw     net.Conn
	dialing chan struct{} // closed when the dial under way is over; nil while there is none
	err     error         // of the last dial
	streams int
	retired bool // closes when the last stream ends
	closed  bool
}

// send relays a request for an agent.
func (l *link) send(id cluster.AgentID, req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	conn, err := l.take(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if fault.Is(err, fault.Exhausted) {
			return nil, err
		}
		return nil, elsewhere{away(id, l.id, err), true}
	}
	resp, err := conn.RoundTrip(meant(req, id, l.id))
	if err != nil {
		l.release()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fault.Unavailablef("the connection to manager %s broke, which agent %s is connected to", l.id, id).
			WithReason("agent-not-connected").WithCause(err).WithNext("try again")
	}
	resp.Body = &countedBody{ReadCloser: resp.Body, release: l.release}
	if resp.Header.Get(node.HeaderRelay) != "" {
		return nil, failed(resp)
	}
	return resp, nil
}

// countedBody gives its stream back when it is closed.
type countedBody struct {
	io.ReadCloser
	once    sync.Once
	release func()
}

func (b *countedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.release)
	return err
}

// take returns the connection with one more stream counted on it; release follows. It dials when there is none that works.
func (l *link) take(ctx context.Context) (*http.ClientConn, error) {
	for tried := false; ; tried = true {
		l.mu.Lock()
		switch {
		case l.closed:
			l.mu.Unlock()
			return nil, errStopping
		case l.conn != nil && l.conn.Err() == nil && l.streams >= maxStreams:
			l.mu.Unlock()
			return nil, fault.Exhaustedf("%d byte streams to agents of manager %s are open, no more are possible", maxStreams, l.id).
				WithNext("close terminals and downloads that are no longer used")
		case l.conn != nil && l.conn.Err() == nil:
			l.streams++
			conn := l.conn
			l.mu.Unlock()
			return conn, nil
		case tried && l.dialing == nil:
			err := l.err
			l.mu.Unlock()
			if err == nil { // it was open for a moment
				err = fault.Unavailablef("the connection to manager %s broke", l.id)
			}
			return nil, err
		}
		if l.dialing == nil {
			l.dialing = make(chan struct{})
			l.r.work.Go(l.dial)
		}
		dialing := l.dialing
		l.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *link) release() {
	l.mu.Lock()
	l.streams--
	over := l.retired && l.streams == 0
	l.mu.Unlock()
	if over {
		l.close()
	}
}

// dial opens a connection. It belongs to all who wait for it, so no caller's context bounds it.
func (l *link) dial() {
	ctx, cancel := context.WithTimeout(l.r.ctx, dialTimeout)
	defer cancel()
	client, raw, err := l.open(ctx)
	l.mu.Lock()
	closed := l.closed
	if !closed && err == nil {
		if l.conn != nil { // it has broken
			_ = l.conn.Close()
			_ = l.raw.Close()
		}
		l.conn, l.raw = client, raw
	}
	l.err = err
	close(l.dialing)
	l.dialing = nil
	l.mu.Unlock()
	switch {
	case err != nil:
		l.r.o.Log.Warn("another manager cannot be reached", "manager", l.id, "address", l.addr, "error", err)
	case closed:
		_ = client.Close()
		_ = raw.Close()
	default:
		l.r.o.Log.Info("connected to another manager", "manager", l.id, "address", l.addr)
	}
}

func (l *link) open(ctx context.Context) (*http.ClientConn, net.Conn, error) {
	raw, err := l.r.dialer.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to manager %s: %w", l.id, err)
	}
	conn := tls.Client(raw, l.r.o.TLS())
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, fmt.Errorf("shake hands with manager %s: %w", l.id, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != node.ALPNManager {
		_ = conn.Close()
		return nil, nil, fault.Unavailablef("manager %s does not relay to its agents (it speaks %q)", l.id, got).
			WithNext("bring all managers to one version")
	}
	client, err := h2.NewClient(ctx, "manager "+l.id, conn)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return client, conn, nil
}

// retire closes the link when no stream is left on it.
func (l *link) retire() {
	l.mu.Lock()
	l.retired = true
	over := l.streams == 0
	l.mu.Unlock()
	if over {
		l.close()
	}
}

func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	conn, raw := l.conn, l.raw
	l.conn, l.raw = nil, nil
	l.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // breaks what runs on it
		_ = raw.Close()
	}
	l.r.forget(l)
}
