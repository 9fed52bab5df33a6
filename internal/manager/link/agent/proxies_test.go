package agent_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/chassis"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// setupProxies is setup with a hook that echoes, after the proxy's name.
func setupProxies(t *testing.T) *bundle {
	t.Helper()
	return setupProxiesOn(t, newMemory())
}

// setupProxiesOn does it on a memory that is there.
func setupProxiesOn(t *testing.T, m *memory, change ...func(*agentlink.Config)) *bundle {
	t.Helper()
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 5*time.Minute, 15*time.Minute
	for _, c := range change {
		c(&cfg)
	}
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Proxies: func(ctx context.Context, name string, conn *tls.Conn) {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			if _, err := io.WriteString(conn, name+"\n"); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		},
	})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	b := &bundle{memory: m, link: link}
	b.token = b.newToken(t, "a1", false)
	return b
}

func (b *bundle) member(t *testing.T, name string, clock chassis.Clock) *membership.Member {
	t.Helper()
	token := b.newToken(t, name, false)
	m, err := membership.Open(membership.Options{
		Dir: filepath.Join(t.TempDir(), "node"), Name: name, Clock: clock, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Token: func() (chassis.Secret, error) { return chassis.NewSecret(token.String()), nil },
	})
	require.NoError(t, err)
	return m
}

// watch dials as an app proxy does and returns what the manager says first, "" when it hangs up.
func (b *bundle) watch(t *testing.T, conf *tls.Config) string {
	t.Helper()
	conn, err := tls.Dial("tcp", b.link.Addr().String(), conf)
	if err != nil {
		return ""
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	buf := make([]byte, 64)
	n, _ := conn.Read(buf)
	return string(buf[:n])
}

func (b *bundle) session(t *testing.T, conf *tls.Config) error {
	t.Helper()
	s, err := b.dial(t, conf).Session(t.Context())
	require.NoError(t, err)
	_ = s.Send(hello("web"))
	_, err = s.Recv()
	return err
}

func TestProxiesJoinAndConnect(t *testing.T) {
	t.Parallel()
	b := setupProxies(t)
	addr := b.link.Addr().String()
	one, two := b.member(t, proxy.NamePrefix+"web", chassis.RealClock()), b.member(t, proxy.NamePrefix+"web", chassis.RealClock())
	require.NoError(t, one.EnsureJoined(t.Context(), addr))
	require.NoError(t, two.EnsureJoined(t.Context(), addr))
	require.Equal(t, "c1", one.ClusterID())
	// Replicas do not push each other out.
	require.Equal(t, "web\n", b.watch(t, one.TLS(proxy.ALPN)))
	require.Equal(t, "web\n", b.watch(t, two.TLS(proxy.ALPN)))

	// An app proxy is no agent, whatever it is called, and an agent no app proxy.
	require.Equal(t, codes.PermissionDenied, status.Code(b.session(t, one.TLS("h2"))))
	require.Empty(t, b.watch(t, one.TLS(node.ALPNStream)))
	agent := b.member(t, "web", chassis.RealClock())
	require.NoError(t, agent.EnsureJoined(t.Context(), addr))
	require.Empty(t, b.watch(t, agent.TLS(proxy.ALPN)))
	// Nor without a certificate.
	require.Empty(t, b.watch(t, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proxy.ALPN}}))

	// Neither gets a certificate of the other's name over its own.
	_, csr := request(t, "x")
	for name, c := range map[string]struct {
		conf *tls.Config
		id   string
	}{
		"proxy as agent":       {one.TLS("h2"), "a1"},
		"proxy as other proxy": {one.TLS("h2"), proxy.NamePrefix + "other"},
		"agent as proxy":       {agent.TLS("h2"), proxy.NamePrefix + "web"},
	} {
		_, err := b.dial(t, c.conf).Join(t.Context(), &node.JoinRequest{Token: b.token.Secret, AgentId: c.id, CsrDer: csr, Version: 1})
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", name, err)
	}
	for _, id := range []string{proxy.NamePrefix, proxy.NamePrefix + "../x", proxy.NamePrefix + "a:b",
		proxy.NamePrefix + string(make([]byte, 80)), "x:y"} {
		_, err := b.dial(t, b.token.JoinTLS()).Join(t.Context(), &node.JoinRequest{Token: b.token.Secret, AgentId: id, CsrDer: csr, Version: 1})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%q: %v", id, err)
	}
	_, err := b.dial(t, b.token.JoinTLS()).Join(t.Context(),
		&node.JoinRequest{Token: "wrong", AgentId: proxy.NamePrefix + "web", CsrDer: csr, Version: 1})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

func TestProxiesAreRefusedWithoutAHook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := b.member(t, proxy.NamePrefix+"web", chassis.RealClock())
	require.NoError(t, m.EnsureJoined(t.Context(), b.link.Addr().String()))
	require.Empty(t, b.watch(t, m.TLS(proxy.ALPN)))
}

// ahead is a clock that can be set forward.
type ahead struct {
	chassis.Clock
	by time.Duration
}

func (a *ahead) Now() time.Time { return a.Clock.Now().Add(a.by) }

func TestProxyCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	b := setupProxies(t)
	addr := b.link.Addr().String()
	clock := &ahead{Clock: chassis.RealClock()}
	m, other := b.member(t, proxy.NamePrefix+"web", clock), b.member(t, proxy.NamePrefix+"web", clock)
	require.NoError(t, m.EnsureJoined(t.Context(), addr))
	require.NoError(t, other.EnsureJoined(t.Context(), addr))
	serial := func() string { return m.TLS(proxy.ALPN).Certificates[0].Leaf.SerialNumber.String() }
	first, conf := serial(), m.TLS(proxy.ALPN)
	clock.by = 242 * 24 * time.Hour
	require.NoError(t, m.EnsureJoined(t.Context(), addr))
	require.Equal(t, first, serial(), "renewed too early")

	clock.by = 275 * 24 * time.Hour // at the latest; no token is needed for it
	require.NoError(t, m.EnsureJoined(t.Context(), addr))
	require.NotEqual(t, first, serial())
	for what, c := range map[string]*tls.Config{"new": m.TLS(proxy.ALPN), "previous": conf, "other replica": other.TLS(proxy.ALPN)} {
		require.Equal(t, "web\n", b.watch(t, c), what)
	}
	// The renewal after that ends the first one.
	require.NoError(t, m.EnsureJoined(t.Context(), addr))
	require.Empty(t, b.watch(t, conf))
	require.Equal(t, "web\n", b.watch(t, m.TLS(proxy.ALPN)))
	require.Equal(t, "web\n", b.watch(t, other.TLS(proxy.ALPN)))
}
