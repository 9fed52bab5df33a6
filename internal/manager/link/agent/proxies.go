package agent

import (
	"context"
	"crypto/tls"
	"sync/atomic"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
)

const (
	// maxProxyConns bounds the connections of all app proxies to this manager, maxPeerConns those of all other managers.
	maxProxyConns = 1024
	maxPeerConns  = 256
)

// joinProxy is join for app proxies.
func (l *Link) joinProxy(ctx context.Context, name string, req *node.JoinRequest) (*node.JoinReply, error) {
	if err := ca.CheckProxyName(name); err != nil {
		return nil, err
	}
	renewed := ""
	if s, ok := tlsState(ctx); ok && len(s.VerifiedChains) > 0 {
		owner, serial, err := l.auth.Proxy(ctx, s)
		switch {
		case fault.Is(err, fault.Unauthenticated): // counts for nothing
		case err != nil:
			return nil, err
		case owner != name:
			return nil, fault.Deniedf("app proxy %s may not renew a certificate of %s", owner, name)
		default:
			renewed = serial
		}
	}
	if renewed == "" {
		if err := l.checkJoinToken(ctx, req.Token); err != nil {
			return nil, err
		}
	}
	der, err := l.auth.IssueProxy(ctx, name, req.CsrDer, renewed)
	if err != nil {
		return nil, err
	}
	l.log.Info("an app proxy joined", "proxy", name, "remote", remote(ctx), "renewal", renewed != "")
	return &node.JoinReply{CertificateDer: der, CaDer: l.auth.Certificate(), ClusterId: l.d.ClusterID}, nil
}

// greetProxy hands the connection of an app proxy to whoever serves it. It owns conn.
func (l *Link) greetProxy(ctx, hctx context.Context, conn *tls.Conn) {
	name, _, err := l.auth.Proxy(hctx, conn.ConnectionState())
	l.handOver(ctx, conn, name, err, l.d.Proxies, &l.proxyConns, maxProxyConns)
}

// greetManager does the same for the connection of another manager.
func (l *Link) greetManager(ctx context.Context, conn *tls.Conn) {
	id, err := l.auth.Manager(conn.ConnectionState())
	l.handOver(ctx, conn, id, err, l.d.Peers, &l.peerConns, maxPeerConns)
}

// handOver has a connection served whose owner was identified, or not when err says so.
func (l *Link) handOver(ctx context.Context, conn *tls.Conn, name string, err error,
	serve func(context.Context, string, *tls.Conn), open *atomic.Int64, most int64,
) {
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
		return
	}
	l.work.Go(func() { // apart from the handshake, which counts against its own bound
		defer open.Add(-1)
		defer conn.Close()
		serve(ctx, name, conn)
	})
}
