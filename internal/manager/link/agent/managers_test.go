package agent_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// Agents hear after the welcome where managers are, and again when that changes. An agent of an older version hears nothing.
func TestAgentsHearOfManagers(t *testing.T) {
	t.Parallel()
	var managers atomic.Pointer[[]string]
	managers.Store(&[]string{"m1:8082", "m2:8082"})
	m := newMemory()
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 50*time.Millisecond, 15*time.Minute
	var held atomic.Int64
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Managers: func() []string { return *managers.Load() },
		Hold: func(_ context.Context, agent cluster.AgentID, epoch int64) error {
			require.Equal(t, cluster.AgentID("a1"), agent)
			held.Store(epoch)
			return nil
		},
	})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	b := &bundle{memory: m, link: link}
	who := b.join(t, "a1")
	for _, version := range []int32{3, node.Version} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(ctx)
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = version
		require.NoError(t, s.Send(up))
		welcome := receive(t, s).GetWelcome()
		require.Equal(t, version, welcome.Version)
		require.Equal(t, welcome.Epoch, held.Load(), "the other managers can find the agent before it hears of its epoch")
		var heard [][]string
		// Heartbeats of before the change may still be on their way when it is made. Three come after the last list, without another.
		for beats := 0; beats < 3 || version > 3 && len(heard) < 2; {
			down, err := s.Recv()
			require.NoError(t, err)
			switch {
			case down.GetManagers() != nil:
				heard = append(heard, down.GetManagers().Addresses)
				managers.Store(&[]string{"m3:8082"})
				if len(heard) == 2 {
					beats = 0
				}
			case down.GetHeartbeat() != nil:
				beats++
			}
		}
		if version == 3 {
			require.Empty(t, heard)
			continue
		}
		require.Equal(t, [][]string{{"m1:8082", "m2:8082"}, {"m3:8082"}}, heard)
	}
}

// An agent hears of a new manager at once, not with the next heartbeat: it must know where to turn when its own dies.
func TestAgentsHearOfANewManagerAtOnce(t *testing.T) {
	t.Parallel()
	var managers atomic.Pointer[[]string]
	managers.Store(&[]string{"m1:8082"})
	m := newMemory()
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 5*time.Minute, 15*time.Minute
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Managers: func() []string { return *managers.Load() },
	})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	b := &bundle{memory: m, link: link}
	who := b.join(t, "a1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(ctx)
	require.NoError(t, err)
	up := hello(who.id)
	up.GetHello().Version = node.Version
	require.NoError(t, s.Send(up))
	told := func() []string {
		for {
			down, err := s.Recv()
			require.NoError(t, err)
			if list := down.GetManagers(); list != nil {
				return list.Addresses
			}
		}
	}
	require.Equal(t, []string{"m1:8082"}, told())
	managers.Store(&[]string{"m1:8082", "m2:8082"})
	link.TellManagers()
	require.Equal(t, []string{"m1:8082", "m2:8082"}, told())
}

// granting is link/agent.Grants as the test says.
type granting struct {
	keys  atomic.Pointer[[][]byte]
	ended atomic.Pointer[[]string]
	// unread: nobody knows yet which circuits ended.
	unread atomic.Bool
}

func (g *granting) GrantKeys(context.Context) ([][]byte, error) {
	if keys := g.keys.Load(); keys != nil {
		return *keys, nil
	}
	return nil, errors.New("the vault is away")
}

func (g *granting) EndedCircuits(agent cluster.AgentID) ([]string, bool) {
	if ended := g.ended.Load(); ended != nil && agent == "a1" {
		return *ended, true
	}
	return nil, !g.unread.Load()
}

// Agents hear soon, not with the next heartbeat, what a manager did not know about grants when they came. Of a revoked app proxy they hear
// at once, and after a manager's restart with the welcome.
func TestAgentsHearOfRevocations(t *testing.T) {
	t.Parallel()
	g := &granting{}
	g.keys.Store(&[][]byte{[]byte("key-1")})
	m := newMemory()
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 5*time.Minute, 15*time.Minute
	start := func() (*bundle, func()) {
		link, err := agentlink.New(cfg, agentlink.Deps{ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader,
			Grants: g, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		require.NoError(t, err)
		svc := link.Service("agentlink")
		require.NoError(t, svc.Start(t.Context()))
		stop := sync.OnceFunc(func() { require.NoError(t, svc.Stop(context.Background())) })
		t.Cleanup(stop)
		return &bundle{memory: m, link: link}, stop
	}
	b, stop := start()
	who := b.join(t, "a1")
	b.join(t, "appproxy:web")
	connect := func() grpc.BidiStreamingClient[node.Up, node.Down] {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(ctx)
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = node.Version
		require.NoError(t, s.Send(up))
		return s
	}
	revoked := func(s grpc.BidiStreamingClient[node.Up, node.Down]) []*node.Revocation {
		for {
			if down := receive(t, s); down.GetGrants() != nil {
				return down.GetGrants().Revocations
			}
		}
	}
	g.unread.Store(true)
	s := connect()
	for receive(t, s).GetWelcome() == nil {
	}
	g.unread.Store(false)
	require.Empty(t, revoked(s))
	require.NoError(t, b.link.Authority().RevokeCertificates(t.Context(), ca.Node{Role: ca.RoleAppProxy, Name: "web"}))
	list := revoked(s)
	require.Len(t, list, 1)
	require.Equal(t, "web", list[0].Proxy)
	require.Greater(t, list[0].UntilUnix, time.Now().Add(proxy.GrantLife).Unix())
	stop()
	b, _ = start()
	again := revoked(connect())
	require.Len(t, again, 1)
	require.Equal(t, list[0].UntilUnix, again[0].UntilUnix)
}

// Agents hear after the welcome which grants they obey, and again when that changes. An agent of an older version hears nothing.
func TestAgentsHearOfGrants(t *testing.T) {
	t.Parallel()
	g := &granting{}
	m := newMemory()
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 50*time.Millisecond, 15*time.Minute
	link, err := agentlink.New(cfg, agentlink.Deps{ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader,
		Grants: g, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	b := &bundle{memory: m, link: link}
	who := b.join(t, "a1")
	for _, version := range []int32{4, node.Version} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(ctx)
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = version
		require.NoError(t, s.Send(up))
		require.Equal(t, version, receive(t, s).GetWelcome().Version)
		var heard []string
		for beats := 0; beats < 4 || version > 4 && len(heard) < 2; {
			down, err := s.Recv()
			require.NoError(t, err)
			switch {
			case down.GetGrants() != nil:
				heard = append(heard, fmt.Sprintf("%q %v", down.GetGrants().Keys, down.GetGrants().EndedCircuits))
				if len(heard) == 1 {
					g.ended.Store(&[]string{"circuit-1"})
				}
			case down.GetHeartbeat() != nil:
				if beats++; beats == 1 {
					g.keys.Store(&[][]byte{[]byte("key-1")}) // until then nothing is told
				}
			}
		}
		if version == 4 {
			require.Empty(t, heard)
			g.keys.Store(nil)
			continue
		}
		require.Equal(t, []string{`["key-1"] []`, `["key-1"] [circuit-1]`}, heard)
	}
}

func TestAdvertisedAddress(t *testing.T) {
	t.Parallel()
	for listen, test := range map[string]struct {
		advertise string
		good      func(string) bool
	}{
		"127.0.0.1:0": {"", func(a string) bool { return a != "127.0.0.1:0" && a[:10] == "127.0.0.1:" }},
		"localhost:0": {"m1.example.org:18082", func(a string) bool { return a == "m1.example.org:18082" }},
		":0":          {"", func(a string) bool { return !slices.Contains([]string{":", "["}, a[:1]) }},
	} {
		m := newMemory()
		cfg := agentlink.DefaultConfig()
		cfg.Listen, cfg.Advertise = listen, test.advertise
		link, err := agentlink.New(cfg, agentlink.Deps{ClusterID: "c1", Sink: m, Vault: m, Clock: chassis.RealClock(), Random: rand.Reader,
			Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		svc := link.Service("agentlink")
		require.NoError(t, svc.Start(t.Context()))
		require.True(t, test.good(link.Advertised()), "%s is advertised as %s", listen, link.Advertised())
		require.NoError(t, svc.Stop(context.Background()))
	}
	cfg := agentlink.DefaultConfig()
	for _, bad := range []string{"host", ":1", "host:"} {
		cfg.Advertise = bad
		require.Error(t, cfg.Validate(), bad)
	}
}
