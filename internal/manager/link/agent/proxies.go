package agent

import (
	"context"
	"crypto/tls"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
)

// maxProxyConns bounds the connections of all app proxies to this manager.
const maxProxyConns = 1024

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
	switch {
	case err != nil:
	case l.d.Proxies == nil:
		err = fault.Unavailablef("this manager serves no app proxies")
	case l.proxyConns.Add(1) > maxProxyConns:
		l.proxyConns.Add(-1)
		err = fault.Exhaustedf("%d connections of app proxies are open", maxProxyConns)
	}
	if err != nil {
		l.log.Warn("app proxy connection refused", "remote", conn.RemoteAddr(), "error", err)
		_ = conn.Close()
		return
	}
	l.work.Go(func() { // apart from the handshake, which counts against its own bound
		defer l.proxyConns.Add(-1)
		defer conn.Close()
		l.d.Proxies(ctx, name, conn)
	})
}
