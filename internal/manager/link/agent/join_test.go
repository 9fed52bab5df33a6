package agent_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// second is another manager of the same cluster, which hears of connections to the first one by connected.
func (b *bundle) second(t *testing.T, connected func(context.Context, cluster.AgentID, time.Duration) (string, bool, error)) *bundle {
	t.Helper()
	cfg := agentlink.DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c1", Sink: b.memory, Vault: b.memory, Clock: chassis.RealClock(), Random: rand.Reader, Connected: connected,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	return &bundle{memory: b.memory, link: link, token: b.token}
}

// tries joins as id with a fresh key.
func (b *bundle) tries(t *testing.T, id string, token node.JoinToken) error {
	t.Helper()
	_, csr := request(t, id)
	_, err := b.dial(t, token.JoinTLS()).Join(t.Context(), &node.JoinRequest{Token: token.Secret, AgentId: id, CsrDer: csr, Version: 1})
	return err
}

// What holds at one manager holds at the other.
func TestJoinAtAnotherManager(t *testing.T) {
	t.Parallel()
	one := setup(t)
	asked := make(chan time.Duration, 1)
	other := one.second(t, func(_ context.Context, a cluster.AgentID, lease time.Duration) (string, bool, error) {
		require.EqualValues(t, "a1", a)
		asked <- lease
		return "10.0.0.1:5", true, nil
	})
	who := one.join(t, "a1")
	one.connect(t, who)
	err := other.tries(t, "a1", one.token) // made before the agent joined
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "has joined this cluster before, with another key")
	require.ErrorContains(t, err, "berth admin join-token create --role agent --name a1 --replace")
	err = other.tries(t, "a1", one.newToken(t, "a1", true))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "agent a1 is connected from 10.0.0.1:5")
	require.Equal(t, agentlink.DefaultConfig().Lease, await.Value(t, asked))
	one.connect(t, who)

	token := one.newToken(t, "a2", false)
	require.NoError(t, other.tries(t, "a2", token))
	require.Equal(t, codes.Unauthenticated, status.Code(one.tries(t, "a2", token)), "it was used at the other one")
}

// Whoever was replaced or revoked at another manager loses its open connections here.
func TestOpenConnectionsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *agentlink.Config) { c.Heartbeat = 50 * time.Millisecond })
	proxies := setupProxiesOn(t, b.memory, func(c *agentlink.Config) { c.Heartbeat = 50 * time.Millisecond })
	other := b.second(t, nil)
	old := b.join(t, "a1")
	control, _ := b.connect(t, old)
	bytes, err := tls.Dial("tcp", b.link.Addr().String(), node.AgentTLS(old.cert, old.ca, node.ALPNStream))
	require.NoError(t, err)
	defer bytes.Close()
	kept := b.join(t, "a2")
	stays, _ := b.connect(t, kept)
	web := proxies.member(t, proxy.NamePrefix+"web", chassis.RealClock())
	require.NoError(t, web.EnsureJoined(t.Context(), proxies.link.Addr().String()))
	visits, err := tls.Dial("tcp", proxies.link.Addr().String(), web.TLS(proxy.ALPN))
	require.NoError(t, err)
	defer visits.Close()
	require.NoError(t, visits.SetDeadline(time.Now().Add(patience)))
	_, err = io.ReadFull(visits, make([]byte, len("web\n")))
	require.NoError(t, err)

	require.NoError(t, other.tries(t, "a1", b.newToken(t, "a1", true)))
	require.NoError(t, other.link.Authority().RevokeCertificates(t.Context(), ca.Node{Role: ca.RoleAppProxy, Name: "web"}))
	for err = nil; err == nil; {
		_, err = control.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.NoError(t, bytes.SetDeadline(time.Now().Add(patience)))
	_, err = io.Copy(io.Discard, bytes)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the stream connection goes on")
	_, err = io.Copy(io.Discard, visits)
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the proxy's connection goes on")
	require.NoError(t, stays.Send(observed(1, true)), "nobody else is touched")
	b.until(t, "the other agent is heard", func() bool { return b.fulls > 0 })
}

// half is a connection that never goes on with its handshake.
func half(ctx context.Context, from, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	return d.DialContext(ctx, "tcp", to)
}

// A stranger holds hundreds of half-open connections, and opens another whenever one is closed. Nodes elsewhere join all the same.
func TestHalfOpenHandshakesStarveNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	addr := b.link.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	var work, open sync.WaitGroup
	defer work.Wait()
	defer stop()
	for range 400 {
		open.Add(1)
		work.Go(func() {
			once := sync.OnceFunc(open.Done)
			defer once()
			for ctx.Err() == nil {
				conn, err := half(ctx, "127.0.0.2", addr)
				if err != nil {
					return
				}
				once()
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1)) // until the manager closes it
				end()
				_ = conn.Close()
			}
		})
	}
	open.Wait()
	for _, id := range []string{"a1", "a2", "a3"} {
		who := b.join(t, id)
		b.connect(t, who)
	}
}

// Also from the address of somebody who just sits there, with more connections than would run into their timeouts while a node
// has the patience to wait.
func TestHalfOpenHandshakesOfTheSameAddress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2000 {
		conn, err := half(t.Context(), "127.0.0.1", b.link.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	b.connect(t, b.join(t, "a1"))
}

// A stranger who finished the handshake without a certificate can only join, and does not keep its place for ever.
func TestStrangersConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conf := b.token.JoinTLS()
	var idle []*tls.Conn
	for range 80 {
		conn, err := tls.Dial("tcp", b.link.Addr().String(), conf)
		require.NoError(t, err)
		defer conn.Close()
		idle = append(idle, conn)
	}
	closed := make(chan struct{}, len(idle))
	for _, conn := range idle {
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	for range len(idle) - 64 {
		await.Value(t, closed) // one address holds no more connections than it should
	}
	b.connect(t, b.join(t, "a1"))
}
