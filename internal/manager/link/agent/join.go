package agent

import (
	"context"
	"crypto/tls"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
)

// Join gives an agent or an app proxy its certificate. package ca decides whether the node may have it: who shows its valid
// certificate or has its key may, others need a join token for exactly this name, and a name that is known to have another key needs
// a token that says so.
func (l *Link) Join(ctx context.Context, req *node.JoinRequest) (*node.JoinReply, error) {
	reply, err := l.join(ctx, req)
	if err != nil {
		l.log.Warn("a node was not let in", "node", req.GetAgentId(), "remote", remote(ctx), "error", err)
		return nil, grpcError(err)
	}
	return reply, nil
}

func (l *Link) join(ctx context.Context, req *node.JoinRequest) (*node.JoinReply, error) {
	if req.Version < 1 {
		return nil, fault.Invalidf("the join request has no version")
	}
	who, err := ca.NodeOf(req.AgentId)
	if err != nil {
		return nil, err
	}
	state, _ := tlsState(ctx)
	joined, err := l.auth.Join(ctx, ca.Request{
		Node: who, CSR: req.CsrDer, TLS: state, Secret: req.Token, From: remote(ctx),
		Connected: func(ctx context.Context) (string, bool, error) { return l.connected(ctx, cluster.AgentID(who.Name)) },
	})
	if err != nil {
		return nil, err
	}
	l.log.Info("a node joined", "node", who.String(), "remote", remote(ctx), "by", joined.By)
	return &node.JoinReply{CertificateDer: joined.Certificate, CaDer: l.auth.Certificate(), ClusterId: l.d.ClusterID}, nil
}

// connected tells whether an agent is connected to this manager and answers, or to any other one, as far as the cluster knows.
func (l *Link) connected(ctx context.Context, agent cluster.AgentID) (at string, ok bool, err error) {
	if at, ok = l.answering(agent); ok || l.d.Connected == nil {
		return at, ok, nil
	}
	return l.d.Connected(ctx, agent, l.cfg.Lease)
}

// answering reports whether an agent is connected here and was heard within two heartbeats.
func (l *Link) answering(agent cluster.AgentID) (at string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[agent]
	if s == nil || l.d.Clock.Now().Sub(s.heard()) > 2*l.cfg.Heartbeat {
		return "", false
	}
	return s.remote, true
}

func tlsState(ctx context.Context) (tls.ConnectionState, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return tls.ConnectionState{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return info.State, ok
}

func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

var grpcCodes = map[fault.Kind]codes.Code{
	fault.Internal: codes.Internal, fault.NotFound: codes.NotFound, fault.Conflict: codes.FailedPrecondition,
	fault.Denied: codes.PermissionDenied, fault.Unauthenticated: codes.Unauthenticated, fault.Invalid: codes.InvalidArgument,
	fault.Exhausted: codes.ResourceExhausted, fault.Unavailable: codes.Unavailable, fault.Timeout: codes.DeadlineExceeded,
}

// grpcError is the one place where faults become gRPC statuses. Internal failures keep their
// words: the peer is an agent of this cluster, and its operator reads its log.
func grpcError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if next := fault.NextOf(err); next != "" {
		text += " (" + next + ")"
	}
	return status.Error(grpcCodes[fault.KindOf(err)], text)
}
