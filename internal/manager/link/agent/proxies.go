package agent

import (
	"context"
	"crypto/tls"
	"sync/atomic"

	"berth.dev/berth/internal/fault"
)

const (
	// maxProxyConns bounds the connections of all app proxies to this manager, maxPeerConns those of all other managers.
	maxProxyConns = 1024
	maxPeerConns  = 256
)

// greetProxy hands the connection of an app proxy to whoever serves it. It owns conn.
func (l *Link) greetProxy(ctx, hctx context.Context, conn *tls.Conn) {
	// It is watched before its certificate is looked at, so that no end of the certificate is missed.
	m := l.watch.add(conn.ConnectionState(), func(error) { _ = conn.NetConn().Close() })
	name, _, err := l.auth.Proxy(hctx, conn.ConnectionState())
	serve := l.d.Proxies
	if serve != nil {
		serve = func(ctx context.Context, name string, conn *tls.Conn) {
			defer m.leave()
			l.d.Proxies(ctx, name, conn)
		}
	}
	if !l.handOver(ctx, conn, name, err, serve, &l.proxyConns, maxProxyConns) {
		m.leave()
	}
}

// greetManager does the same for the connection of another manager.
func (l *Link) greetManager(ctx context.Context, conn *tls.Conn) {
	id, err := l.auth.Manager(conn.ConnectionState())
	l.handOver(ctx, conn, id, err, l.d.Peers, &l.peerConns, maxPeerConns)
}

// handOver has a connection served whose owner was identified, or not when err says so. It reports whether it did.
func (l *Link) handOver(ctx context.Context, conn *tls.Conn, name string, err error,
	serve func(context.Context, string, *tls.Conn), open *atomic.Int64, most int64,
) bool {
	switch {
	case err != nil:
	case serve == nil:
		err = fault.Unavailablef("this manager does not speak %s", conn.ConnectionState().NegotiatedProtocol)
	case open.Add(1) > most:
		open.Add(-1)
		err = fault.Exhaustedf("%d connections of this kind are open", most)
	}
	if err != nil {
		l.log.Warn("connection refused", "protocol", conn.ConnectionState().NegotiatedProtocol, "remote", conn.RemoteAddr(), "error", err)
		_ = conn.Close()
		return false
	}
	l.work.Go(func() { // apart from the handshake, which counts against its own bound
		defer open.Add(-1)
		defer conn.Close()
		serve(ctx, name, conn)
	})
	return true
}
