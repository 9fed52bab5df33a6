// Package agent holds the manager's connections to its agents: it lets agents join,
// carries desired state down and observed state up on one control stream per agent, and
// opens byte streams to them over their second connection.
//
// It decides nothing: what an agent should run and what its reports mean is the Sink's
// business, which is node.Reports. The manager role makes it and wakes it when desired state changed; session and app open byte
// streams through it.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// Config is how agents reach this manager.
type Config struct {
	// Listen is the host:port of the agent port; port 0 chooses a free one.
	Listen string
	// Advertise is the host:port under which agents, app proxies and other managers reach the port. Empty means the address
	// that is listened on, with the host's name where that stands for all addresses.
	Advertise string
	// Lease is how long an agent may be silent before its connection counts as dead.
	Lease time.Duration
	// Heartbeat is how often either side says that it is alive; at most a third of Lease.
	Heartbeat time.Duration
	// Resync is how often the full desired state is sent although nothing changed.
	Resync time.Duration
	// JoinTokenFile is no longer used: there is no token that lets every agent in. It stays, so that older files are read.
	JoinTokenFile string
}

// DefaultConfig listens on all addresses.
func DefaultConfig() Config {
	return Config{Listen: ":8082", Lease: 30 * time.Second, Heartbeat: 5 * time.Second, Resync: time.Minute}
}

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fault.Invalidf("the agent port's address %q cannot be used", c.Listen).WithCause(err).
			WithNext("write host:port, for example 0.0.0.0:8082")
	}
	if c.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.Advertise); err != nil || host == "" || port == "" || len(c.Advertise) > node.MaxAddress {
			return fault.Invalidf("the advertised address of the agent port %q cannot be used", c.Advertise).WithCause(err).
				WithNext("write host:port, for example manager-1.example.org:8082")
		}
	}
	if c.Heartbeat < 50*time.Millisecond || c.Lease < 3*c.Heartbeat {
		return fault.Invalidf("an agent lease of %s with a heartbeat of %s loses agents that are well", c.Lease, c.Heartbeat).
			WithNext("make the lease at least three heartbeats")
	}
	if c.Resync < time.Second {
		return fault.Invalidf("a resync every %s is too often", c.Resync).WithNext("use a second or more")
	}
	return nil
}

// Sink is where reports go and desired state comes from. Its methods may be called at the
// same time for different agents, never for one.
type Sink interface {
	Register(ctx context.Context, h cluster.NodeHello) (epoch int64, err error)
	UpdateFacts(ctx context.Context, agent cluster.AgentID, epoch int64, f cluster.NodeFacts) error
	// Observe takes a report. told are the kernels, with their generations, of the desired state that the agent knew when it reported; nil
	// when that is not known.
	Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
		list []cluster.KernelObservation) ([]cluster.Tombstone, error)
	Progress(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, generation, current, total int64, message string) error
	// told names the generations whose specification it has; those may come without.
	Desired(ctx context.Context, agent cluster.AgentID, told map[cluster.KernelID]int64) ([]cluster.DesiredKernel, error)
	Touch(ctx context.Context, agents []cluster.AgentID) error
	// Delivered says how old the newest desired state is that agents were sent.
	Delivered(ctx context.Context, ages []cluster.OrdersAge) error
	Disconnected(ctx context.Context, agent cluster.AgentID, epoch int64) error
}

// Live takes what agents measured most recently. It must not block for long and keeps its
// failures to itself: nothing depends on live figures.
type Live interface {
	Put(ctx context.Context, agent cluster.AgentID, node map[string]float64, kernels map[cluster.KernelID]map[string]float64)
}

// Grants say what app proxies may do at agents; app.Service satisfies it.
type Grants interface {
	// GrantKeys verify grants.
	GrantKeys(ctx context.Context) ([][]byte, error)
	// EndedCircuits are circuits of an agent whose grants it must refuse, in order; ok is false while they are not known. The list is
	// never changed.
	EndedCircuits(agent cluster.AgentID) (list []string, ok bool)
}

// Deps are what a Link works with; Live, Hold, Release, Connected, Managers, Grants, Wrap, Proxies and
// Peers may be nil.
type Deps struct {
	ClusterID string
	Sink      Sink
	Vault     ca.Vault
	Live      Live
	Clock     chassis.Clock
	Random    io.Reader
	// Hold notes that an agent registered with this manager in that epoch, so that the others find it here; nil when there are
	// no others.
	Hold func(ctx context.Context, agent cluster.AgentID, epoch int64) error
	// Release notes that the registration of that epoch is over; nil like Hold.
	Release func(ctx context.Context, agent cluster.AgentID, epoch int64) error
	// Connected tells whether an agent is connected to any manager, from where, and was heard within the lease; nil where this
	// manager is the only one.
	Connected func(ctx context.Context, agent cluster.AgentID, lease time.Duration) (at string, ok bool, err error)
	// Managers are the agent ports of all managers, for agents to choose from; nil or empty tells agents nothing.
	Managers func() []string
	// Grants are told to agents; without them agents refuse app proxies.
	Grants Grants
	// Forget gives free what else belonged to a node whose certificates an administrator revoked; nil where nothing did.
	Forget func(context.Context, ca.Node) error
	// Wrap may replace a connection below its TLS; tests break connections there.
	Wrap func(net.Conn) net.Conn
	// Proxies serves a connection of an app proxy (ALPN proxy.ALPN) until it ends or ctx does; name is the proxy's, from its
	// verified certificate, without proxy.NamePrefix. The link closes the connection afterwards. Nil refuses app proxies.
	Proxies func(ctx context.Context, name string, conn *tls.Conn)
	// Peers does the same for a connection of another manager (ALPN node.ALPNManager); id is its id. Nil refuses them.
	Peers func(ctx context.Context, id string, conn *tls.Conn)
	Log   *slog.Logger
}

// Link is the agent port of one manager.
type Link struct {
	node.UnimplementedNodeServer
	cfg  Config
	d    Deps
	log  *slog.Logger
	auth *ca.Authority
	hub  *hub

	listener net.Listener
	grpc     *grpc.Server
	control  *queueListener
	// strangers serves connections without a certificate, which joining brings.
	strangers *grpc.Server
	joining   *queueListener

	door  *door
	crowd *crowd
	watch *watch
	work  sync.WaitGroup

	claims claims

	proxyConns, peerConns atomic.Int64
	// revoked are app proxies whose certificates ended, as they were read last; nil before.
	revoked atomic.Pointer[[]proxy.Revocation]

	mu       sync.Mutex
	sessions map[cluster.AgentID]*session
	stopping bool
}

// handshakeTimeout bounds a handshake, joinTimeout the life of a connection without a certificate.
const (
	handshakeTimeout = 10 * time.Second
	joinTimeout      = time.Minute
)

// maxJoinRequest bounds the message of a node that joins.
const maxJoinRequest = 64 << 10

// New makes a link; Start opens the port.
func New(cfg Config, d Deps) (*Link, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Link{cfg: cfg, d: d, log: d.Log, door: newDoor(defaultPlaces), crowd: newCrowd(), watch: newWatch(),
		sessions: map[cluster.AgentID]*session{}}
	l.hub, l.watch.tell = newHub(d.Log, d.Clock.Now, l.askForStreams), l.tellRevocations
	return l, nil
}

// Start prepares the cluster's certificate authority and opens the port.
func (l *Link) Start(ctx context.Context) error {
	auth, err := ca.Open(ctx, ca.Options{ClusterID: l.d.ClusterID, Vault: l.d.Vault, Clock: l.d.Clock, Random: l.d.Random,
		Forget: l.d.Forget})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.auth = auth
	l.mu.Unlock()
	if l.cfg.JoinTokenFile != "" {
		l.log.Warn("manager.agents.join_token_file is no longer used, and the token in that file opens nothing any more; remove both",
			"file", l.cfg.JoinTokenFile, "next", "berth admin join-token create")
	}
	l.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", l.cfg.Listen)
	if err != nil {
		return fault.Unavailablef("the agent port %s cannot be opened", l.cfg.Listen).WithCause(err).
			WithNext("free the address or choose another one")
	}
	l.control, l.joining = newQueueListener(l.listener.Addr()), newQueueListener(l.listener.Addr())
	l.grpc = l.newServer(node.MaxMessage, 16)
	l.strangers = l.newServer(maxJoinRequest, 1)
	return nil
}

// newServer makes a gRPC server of the port with bounds for what one connection may cost.
func (l *Link) newServer(message int, streams uint32) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(handshaken{}),
		grpc.MaxRecvMsgSize(message), grpc.MaxSendMsgSize(node.MaxMessage),
		grpc.MaxConcurrentStreams(streams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true),
		// Thousands of agents are connected and say little: gRPC's own buffers would be half of what one costs. TLS has read whole records
		// already, so reading needs none.
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(node.Buffer), grpc.SharedWriteBuffer(true),
		grpc.StaticStreamWindowSize(node.Window), grpc.StaticConnWindowSize(node.Window),
		// Who neither joins nor opens a control stream does not keep its connection.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: l.cfg.Lease / 2, Timeout: l.cfg.Lease / 2, MaxConnectionIdle: time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	node.RegisterNodeServer(server, l)
	return server
}

// Run serves agents until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	l.work.Go(func() {
		// The error only says that the server was stopped.
		_ = l.grpc.Serve(l.control)
	})
	l.work.Go(func() { _ = l.strangers.Serve(l.joining) })
	l.work.Go(func() { l.RenewLeases(ctx) })
	l.work.Go(func() { l.watch.run(ctx, l.d.Clock, min(l.cfg.Heartbeat, watchEvery), l.auth, l.log) })
	stop := context.AfterFunc(ctx, func() { _ = l.listener.Close() })
	defer stop()
	backoff := chassis.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for {
		conn, err := l.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("the agent port was closed: %w", err)
		}
		if err != nil {
			wait := backoff.Next()
			l.log.Warn("cannot accept a connection on the agent port", "error", err, "retry_in", wait)
			if chassis.Wait(ctx, chassis.RealClock(), wait) != nil {
				return nil
			}
			continue
		}
		backoff.Reset()
		if l.d.Wrap != nil {
			conn = l.d.Wrap(conn)
		}
		// Never waits: who comes to a full house takes the place of another stranger.
		p := l.door.enter(addressOf(conn.RemoteAddr()), func() { _ = conn.Close() })
		l.work.Go(func() { l.greet(ctx, conn, p) })
	}
}

// Stop ends all connections and waits for their goroutines. Containers are untouched.
func (l *Link) Stop(ctx context.Context) error {
	_ = l.listener.Close()
	l.mu.Lock()
	l.stopping = true
	for _, s := range l.sessions {
		s.cancel(errStopping)
	}
	l.mu.Unlock()
	l.hub.close()
	_ = l.control.Close()
	_ = l.joining.Close()
	l.grpc.Stop()
	l.strangers.Stop()
	done := make(chan struct{})
	go func() { l.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for agent connections to end: %w", ctx.Err())
	}
}

var errStopping = fault.Unavailablef("this manager is stopping").WithNext("connect again")

// Addr is the address of the open port.
func (l *Link) Addr() net.Addr { return l.listener.Addr() }

// Advertised is the host:port under which others reach the open port.
func (l *Link) Advertised() string {
	if l.cfg.Advertise != "" {
		return l.cfg.Advertise
	}
	addr := l.listener.Addr().String()
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return addr
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return addr
	}
	return net.JoinHostPort(name, port)
}

// Service is the link as a part of a process.
func (l *Link) Service(name string) *chassis.Service {
	return chassis.NewService(name, chassis.Hooks{Start: l.Start, Run: l.Run, Stop: l.Stop})
}

// Connected tells whether an agent's control stream is with this manager.
func (l *Link) Connected(agent cluster.AgentID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[agent] != nil
}

// Holds tells whether byte streams of an agent are with this manager and work, or would as soon as somebody opens one.
func (l *Link) Holds(agent cluster.AgentID) bool {
	if l.hub.holds(agent) {
		return true
	}
	s := l.session(agent)
	return s != nil && s.asks() && l.d.Clock.Now().Sub(s.heard()) <= 2*l.cfg.Heartbeat
}

// Await waits until byte streams of an agent work here, connectWait at most.
func (l *Link) Await(ctx context.Context, agent cluster.AgentID) error {
	c, err := l.hub.find(ctx, agent)
	if err != nil {
		return err
	}
	l.hub.release(c)
	return nil
}

// ManagerTLS is the client configuration towards the agent ports of other managers.
func (l *Link) ManagerTLS(id string) *tls.Config { return l.auth.ManagerTLS(id) }

// Wake makes the link look at an agent's desired state again, soon. It never blocks, and
// wakes that come close together are one.
func (l *Link) Wake(agent cluster.AgentID) {
	if s := l.session(agent); s != nil {
		s.wake()
	}
}

// session is an agent's control stream; nil while it is not connected here.
func (l *Link) session(agent cluster.AgentID) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[agent]
}

// askForStreams has an agent dial its stream connection.
func (l *Link) askForStreams(agent cluster.AgentID) {
	if s := l.session(agent); s != nil {
		s.askForStreams()
	}
}

// WakeAll wakes every connected agent.
func (l *Link) WakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		s.wake()
	}
}

// TellManagers tells every connected agent at once which managers there are, so that an agent knows where to turn when this one dies.
func (l *Link) TellManagers() { l.hurryAll() }

// hurryAll tells every connected agent at once what comes with heartbeats.
func (l *Link) hurryAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		s.hurry()
	}
}

// Authority decides who may join; nil before the link has started.
func (l *Link) Authority() *ca.Authority {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.auth
}

// greet finishes the handshake of a connection and passes it to what its protocol is for. The connection keeps its place at the
// door until its owner has shown a certificate of this cluster.
func (l *Link) greet(ctx context.Context, raw net.Conn, p *place) {
	defer p.leave()
	g := l.crowd.guest(raw)
	conn := tls.Server(g, l.auth.ServerTLS())
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(hctx); err != nil {
		_ = raw.Close()
		l.log.Debug("agent connection refused", "remote", raw.RemoteAddr(), "error", err)
		return
	}
	known := l.counts(hctx, conn.ConnectionState())
	if known {
		p.identified()
		g.enter(conn.ConnectionState())
	}
	switch conn.ConnectionState().NegotiatedProtocol {
	case "h2":
		if !known {
			l.greetStranger(ctx, conn)
		} else if !l.control.put(conn) {
			_ = conn.Close()
		}
	case node.ALPNStream:
		if err := l.greetStream(hctx, conn); err != nil {
			l.log.Warn("stream connection refused", "remote", raw.RemoteAddr(), "error", err)
			_ = conn.Close()
		}
	case proxy.ALPN:
		l.greetProxy(ctx, hctx, conn)
	case node.ALPNManager:
		l.greetManager(ctx, conn)
	default:
		_ = conn.Close()
	}
}

// greetStranger serves a connection without a certificate, which can do nothing but join, and returns when it is over.
func (l *Link) greetStranger(ctx context.Context, conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	over := make(chan struct{})
	if !l.joining.put(&strangerConn{Conn: conn, over: over}) {
		_ = conn.Close()
		return
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	_ = conn.Close()
}

// counts tells whether the peer shows a certificate of this cluster that was neither replaced nor revoked. While that cannot be
// found out the certificate counts here: whatever its owner asks for is checked again.
func (l *Link) counts(ctx context.Context, s tls.ConnectionState) bool {
	if len(s.VerifiedChains) == 0 {
		return false
	}
	leaf := s.PeerCertificates[0]
	n, err := ca.NodeOf(leaf.Subject.CommonName)
	if err != nil {
		return true // a manager
	}
	return !fault.Is(l.auth.Counts(ctx, n, ca.SerialOf(leaf)), fault.Unauthenticated)
}

func (l *Link) greetStream(ctx context.Context, conn *tls.Conn) error {
	// It is watched before its certificate is looked at, so that no end of the certificate is missed.
	m := l.watch.add(conn.ConnectionState(), func(error) { _ = conn.NetConn().Close() })
	agent, _, err := l.auth.Agent(ctx, conn.ConnectionState())
	if err == nil {
		err = l.hub.add(ctx, agent, conn, m)
	}
	if err != nil {
		m.leave()
	}
	return err
}

// RenewLeases renews the leases of agents that were heard lately, all in one statement, until ctx ends. Run calls it; a simulation that
// brings its own streams does, too.
func (l *Link) RenewLeases(ctx context.Context) {
	every := l.cfg.Lease / 6
	tick := l.d.Clock.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		now := l.d.Clock.Now()
		l.hub.closeIdle(now.Add(-idleStreams), func(agent cluster.AgentID) bool {
			s := l.session(agent)
			return s != nil && s.asks()
		})
		since := now.Add(-every - l.cfg.Heartbeat)
		var heard []cluster.AgentID
		l.mu.Lock()
		for id, s := range l.sessions {
			if s.epoch.Load() > 0 && s.heard().After(since) {
				heard = append(heard, id)
			}
		}
		l.mu.Unlock()
		if len(heard) == 0 {
			continue
		}
		tctx, cancel := context.WithTimeout(ctx, every)
		l.tellDeliveries(tctx)
		if err := l.d.Sink.Touch(tctx, heard); err != nil && ctx.Err() == nil {
			l.log.Warn("cannot renew the leases of agents", "agents", len(heard), "error", err)
		}
		cancel()
	}
}
