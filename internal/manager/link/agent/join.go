package agent

import (
	"context"
	"crypto/tls"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// Join gives an agent or an app proxy its certificate: a new one for a join token, or a renewed one for a
// connection that already shows the valid certificate of the same name.
//
// An agent's id that is taken may join again with a token, because its machine may have been set up
// anew, but not while an agent of that name is connected and answers. Joining anew makes every
// earlier certificate of the id invalid. The name of an app proxy is shared by its replicas, which have a certificate each.
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
	if name, ok := strings.CutPrefix(req.AgentId, proxy.NamePrefix); ok {
		return l.joinProxy(ctx, name, req)
	}
	if err := ca.CheckAgentID(req.AgentId); err != nil {
		return nil, err
	}
	agent := cluster.AgentID(req.AgentId)
	renewal, err := l.renews(ctx, agent)
	if err != nil {
		return nil, err
	}
	if !renewal {
		if err := l.checkJoinToken(ctx, req.Token); err != nil {
			return nil, err
		}
		if at, answers := l.answering(agent); answers {
			return nil, fault.Conflictf("an agent named %s is connected from %s", agent, at).WithReason("agent-id-taken").
				WithNext("give this agent another id, or stop the other one first")
		}
	}
	der, err := l.auth.IssueAgent(ctx, agent, req.CsrDer, renewal)
	if err != nil {
		return nil, err
	}
	l.log.Info("an agent joined", "agent", agent, "remote", remote(ctx), "renewal", renewal)
	return &node.JoinReply{CertificateDer: der, CaDer: l.auth.Certificate(), ClusterId: l.d.ClusterID}, nil
}

func (l *Link) checkJoinToken(ctx context.Context, secret string) error {
	ok, err := l.auth.CheckToken(ctx, secret)
	if err == nil && !ok {
		err = fault.New(fault.Unauthenticated, "the join token is not valid").WithReason("bad-join-token").
			WithNext("get a new join token from the manager")
	}
	return err
}

// renews reports whether the caller asks for the successor of its own valid certificate. One
// that is no longer valid counts for nothing: its owner needs a token like anybody else.
func (l *Link) renews(ctx context.Context, agent cluster.AgentID) (bool, error) {
	s, ok := tlsState(ctx)
	if !ok || len(s.VerifiedChains) == 0 {
		return false, nil
	}
	owner, _, err := l.auth.Agent(ctx, s)
	switch {
	case fault.Is(err, fault.Unauthenticated):
		return false, nil
	case err != nil:
		return false, err
	case owner != agent:
		return false, fault.Deniedf("agent %s may not renew the certificate of %s", owner, agent)
	}
	return true, nil
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
