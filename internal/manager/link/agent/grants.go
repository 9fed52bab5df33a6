package agent

import (
	"bytes"
	"context"
	"slices"
	"time"

	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// versionGrants is the first version of the stream whose agents verify grants.
const versionGrants = 5

// grantsPatience bounds how long the keys of grants are waited for: the next heartbeat asks again. grantsSoon is the time to that heartbeat
// while the agent was told of none: until then it refuses visitors of apps.
const (
	grantsPatience = 2 * time.Second
	grantsSoon     = 500 * time.Millisecond
)

// verifiesGrants reports whether the agent is to be told about grants.
func (s *session) verifiesGrants() bool { return s.link.d.Grants != nil && s.version >= versionGrants }

// grants is what to tell the agent about grants; nil when nothing is known yet.
func (s *session) grants() *node.Grants {
	ended, ok := s.link.d.Grants.EndedCircuits(s.agent)
	if !ok {
		return nil // the next heartbeat asks again
	}
	ctx, cancel := context.WithTimeout(s.ctx, grantsPatience)
	defer cancel()
	keys, err := s.link.d.Grants.GrantKeys(ctx)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("cannot read the keys of grants", "error", err)
		}
		return nil
	}
	revoked, err := s.link.revocations(ctx)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("cannot read which app proxies were revoked", "error", err)
		}
		return nil
	}
	g := &node.Grants{Keys: keys, EndedCircuits: ended}
	for _, r := range revoked {
		g.Revocations = append(g.Revocations, &node.Revocation{Proxy: r.Proxy, UntilUnix: r.Until.Unix()})
	}
	return g
}

func sameGrants(a, b *node.Grants) bool {
	return b != nil && slices.EqualFunc(a.Keys, b.Keys, bytes.Equal) && slices.Equal(a.EndedCircuits, b.EndedCircuits) &&
		slices.EqualFunc(a.Revocations, b.Revocations, func(a, b *node.Revocation) bool {
			return a.Proxy == b.Proxy && a.UntilUnix == b.UntilUnix
		})
}

// revocations are the app proxies whose certificates ended; they are read once, and again whenever certificates ended.
func (l *Link) revocations(ctx context.Context) ([]proxy.Revocation, error) {
	if known := l.revoked.Load(); known != nil {
		return *known, nil
	}
	return l.readRevocations(ctx)
}

func (l *Link) readRevocations(ctx context.Context) ([]proxy.Revocation, error) {
	list, err := l.auth.RevokedProxies(ctx)
	if err == nil {
		l.revoked.Store(&list)
	}
	return list, err
}

// tellRevocations reads which app proxies were revoked and tells every connected agent at once.
func (l *Link) tellRevocations(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, grantsPatience)
	defer cancel()
	if _, err := l.readRevocations(ctx); err != nil {
		if ctx.Err() == nil {
			l.log.Warn("cannot read which app proxies were revoked", "error", err)
		}
		return false
	}
	l.hurryAll()
	return true
}
