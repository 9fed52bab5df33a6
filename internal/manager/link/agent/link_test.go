package agent_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// memory is a Sink and a Vault in memory: what node.Reports and the database do, without their rules.
type memory struct {
	mu       sync.Mutex
	values   map[string][]byte
	epoch    int64
	hellos   []cluster.NodeHello
	facts    []cluster.NodeFacts
	seen     map[cluster.KernelID]cluster.KernelObservation
	calls    int
	fulls    int
	synced   bool // the last report had seen the newest desired state
	desired  []cluster.DesiredKernel
	touched  int
	failures int // Observe fails so often
	gone     []int64
	changed  chan struct{}
}

func newMemory() *memory {
	return &memory{values: map[string][]byte{}, seen: map[cluster.KernelID]cluster.KernelObservation{}, changed: make(chan struct{}, 1)}
}

func (m *memory) change(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// until waits for a condition on the memory.
func (m *memory) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		m.mu.Lock()
		done := ok()
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-m.changed:
		case <-deadline:
			require.FailNow(t, "waited too long", "until %s", what)
		}
	}
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key], nil
}

func (m *memory) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := fn(m.values[key])
	if err != nil {
		return nil, err
	}
	if v != nil {
		m.values[key] = v
	}
	return m.values[key], nil
}

func (m *memory) Register(_ context.Context, h cluster.NodeHello) (epoch int64, _ error) {
	m.change(func() {
		m.epoch = max(m.epoch, h.HighestEpoch) + 1
		m.hellos = append(m.hellos, h)
		epoch = m.epoch
	})
	return epoch, nil
}

func (m *memory) UpdateFacts(_ context.Context, _ cluster.AgentID, _ int64, f cluster.NodeFacts) error {
	m.change(func() { m.facts = append(m.facts, f) })
	return nil
}

func (m *memory) Observe(_ context.Context, _ cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) (acked []cluster.Tombstone, err error) {
	m.change(func() {
		if m.failures > 0 {
			m.failures--
			err = fault.Unavailablef("the database is away")
			return
		}
		if epoch != m.epoch {
			err = fault.Conflictf("old").WithReason("stale-epoch")
			return
		}
		m.calls++
		m.synced = told != nil
		if full {
			m.fulls++
		}
		for _, o := range list {
			m.seen[o.Kernel] = o
			if o.Phase == cluster.PhaseEnded {
				acked = append(acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
			}
		}
	})
	return acked, err
}

func (m *memory) Progress(context.Context, cluster.AgentID, cluster.KernelID, int64, int64, int64, string) error {
	return nil
}

func (m *memory) Desired(context.Context, cluster.AgentID, map[cluster.KernelID]int64) ([]cluster.DesiredKernel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]cluster.DesiredKernel(nil), m.desired...), nil
}

func (m *memory) Delivered(context.Context, []cluster.OrdersAge) error { return nil }

func (m *memory) Touch(context.Context, []cluster.AgentID) error {
	m.change(func() { m.touched++ })
	return nil
}

func (m *memory) Disconnected(_ context.Context, _ cluster.AgentID, epoch int64) error {
	m.change(func() { m.gone = append(m.gone, epoch) })
	return nil
}

type bundle struct {
	*memory
	link  *agentlink.Link
	token node.JoinToken // for agent a1
}

// newToken makes a token for a common name.
func (b *bundle) newToken(t *testing.T, name string, replace bool) node.JoinToken {
	t.Helper()
	who, err := ca.NodeOf(name)
	require.NoError(t, err)
	token, _, err := b.link.Authority().NewToken(t.Context(), ca.TokenRequest{Node: who, Replace: replace, By: "a test"})
	require.NoError(t, err)
	return token
}

func setup(t *testing.T, change ...func(*agentlink.Config)) *bundle {
	t.Helper()
	return setupWith(t, chassis.RealClock(), change...)
}

func setupWith(t *testing.T, clock chassis.Clock, change ...func(*agentlink.Config)) *bundle {
	t.Helper()
	m := newMemory()
	// The lease is far longer than any test: agents of tests do not send heartbeats.
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Heartbeat, cfg.Lease = "127.0.0.1:0", 5*time.Minute, 15*time.Minute
	for _, c := range change {
		c(&cfg)
	}
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c1", Sink: m, Vault: m, Clock: clock, Random: rand.Reader,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	require.NoError(t, err)
	link.WaitForStreams(patience)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	b := &bundle{memory: m, link: link}
	b.token = b.newToken(t, "a1", false)
	return b
}

func (b *bundle) dial(t *testing.T, c *tls.Config) node.NodeClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+b.link.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return node.NewNodeClient(conn)
}

// identity is a joined agent's key and certificate.
type identity struct {
	id   string
	cert tls.Certificate
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
}

func request(t *testing.T, id string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return key, csr
}

func (b *bundle) join(t *testing.T, id string) identity {
	t.Helper()
	key, csr := request(t, id)
	token := b.newToken(t, id, false)
	r, err := b.dial(t, token.JoinTLS()).Join(t.Context(), &node.JoinRequest{Token: token.Secret, AgentId: id, CsrDer: csr, Version: 1})
	require.NoError(t, err)
	require.Equal(t, "c1", r.ClusterId)
	return accept(t, id, key, r)
}

func accept(t *testing.T, id string, key *ecdsa.PrivateKey, r *node.JoinReply) identity {
	t.Helper()
	ca, err := x509.ParseCertificate(r.CaDer)
	require.NoError(t, err)
	return identity{id: id, cert: tls.Certificate{Certificate: [][]byte{r.CertificateDer}, PrivateKey: key}, ca: ca, key: key}
}

// connect opens a control stream and returns it after the welcome.
func (b *bundle) connect(t *testing.T, who identity) (grpc.BidiStreamingClient[node.Up, node.Down], *node.Welcome) {
	t.Helper()
	s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(hello(who.id)))
	m := receive(t, s)
	require.NotNil(t, m.GetWelcome(), "%v", m)
	return s, m.GetWelcome()
}

func hello(id string) *node.Up {
	return &node.Up{Kind: &node.Up_Hello{Hello: &node.Hello{Version: 1, AgentId: id, ClusterId: "c1", HighestEpoch: 6}}}
}

// receive returns the next message that is no heartbeat.
func receive(t *testing.T, s grpc.BidiStreamingClient[node.Up, node.Down]) *node.Down {
	t.Helper()
	for {
		m, err := s.Recv()
		require.NoError(t, err)
		if m.GetHeartbeat() == nil {
			return m
		}
	}
}

const kernelA, kernelB = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"

func observed(revision int64, full bool, kernels ...*node.ObservedKernel) *node.Up {
	return &node.Up{Kind: &node.Up_Observed{Observed: &node.Observed{Revision: revision, Full: full, Kernels: kernels}}}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, csr := request(t, "a1")
	client := b.dial(t, b.token.JoinTLS())
	for name, c := range map[string]struct {
		req  *node.JoinRequest
		code codes.Code
	}{
		"no token":    {&node.JoinRequest{AgentId: "a1", CsrDer: csr, Version: 1}, codes.Unauthenticated},
		"wrong token": {&node.JoinRequest{Token: "x" + b.token.Secret, AgentId: "a1", CsrDer: csr, Version: 1}, codes.Unauthenticated},
		"no version":  {&node.JoinRequest{Token: b.token.Secret, AgentId: "a1", CsrDer: csr}, codes.InvalidArgument},
		"path in id":  {&node.JoinRequest{Token: b.token.Secret, AgentId: "../a", CsrDer: csr, Version: 1}, codes.InvalidArgument},
		"empty id":    {&node.JoinRequest{Token: b.token.Secret, CsrDer: csr, Version: 1}, codes.InvalidArgument},
		"broken CSR":  {&node.JoinRequest{Token: b.token.Secret, AgentId: "a1", CsrDer: csr[1:], Version: 1}, codes.InvalidArgument},
		"tampered CSR": {&node.JoinRequest{Token: b.token.Secret, AgentId: "a1",
			CsrDer: append(csr[:len(csr)-1:len(csr)-1], csr[len(csr)-1]^1), Version: 1}, codes.InvalidArgument},
		"nothing right": {&node.JoinRequest{}, codes.InvalidArgument},
	} {
		_, err := client.Join(t.Context(), c.req)
		require.Equal(t, c.code, status.Code(err), "%s: %v", name, err)
	}

	// Without a certificate nothing but Join is possible.
	s, err := client.Session(t.Context())
	require.NoError(t, err)
	_, err = s.Recv()
	require.Equal(t, codes.Unauthenticated, status.Code(err))

	// A manager of another cluster is not trusted with the token.
	other := b.token
	other.CA[0] ^= 1
	_, err = b.dial(t, other.JoinTLS()).Join(t.Context(), &node.JoinRequest{Token: b.token.Secret, AgentId: "a1", CsrDer: csr, Version: 1})
	require.ErrorContains(t, err, "not the one that the join token belongs to")

	auth := b.link.Authority()
	list, err := auth.Tokens(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, auth.RevokeToken(t.Context(), list[0].ID))
	_, err = client.Join(t.Context(), &node.JoinRequest{Token: b.token.Secret, AgentId: "a1", CsrDer: csr, Version: 1})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	b.join(t, "a1")
	for key, v := range b.values {
		require.NotContains(t, string(v), b.token.Secret, "%s holds the token in clear", key)
	}
}

func TestRejoinAndRenewal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.join(t, "a1")
	s, _ := b.connect(t, first)

	// While the agent answers, nobody else may take its name, whatever an administrator said.
	key, csr := request(t, "a1")
	replace := b.newToken(t, "a1", true)
	_, err := b.dial(t, replace.JoinTLS()).Join(t.Context(), &node.JoinRequest{Token: replace.Secret, AgentId: "a1", CsrDer: csr, Version: 1})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "agent a1 is connected from")

	// It renews its own certificate without a token, and both count until the next one.
	client := b.dial(t, node.AgentTLS(first.cert, first.ca, "h2"))
	r, err := client.Join(t.Context(), &node.JoinRequest{AgentId: "a1", CsrDer: csr, Version: 1})
	require.NoError(t, err)
	second := accept(t, "a1", key, r)
	b.connect(t, first)
	last, _ := b.connect(t, second)
	_, err = client.Join(t.Context(), &node.JoinRequest{AgentId: "a2", CsrDer: csr, Version: 1})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "not another's")

	// When it went away another machine may take its place, with a token that says so; then its certificates are void.
	_, err = s.Recv()
	for err == nil {
		_, err = s.Recv()
	}
	require.NoError(t, last.CloseSend())
	require.Eventually(t, func() bool {
		_, csr := request(t, "a1")
		_, err := b.dial(t, replace.JoinTLS()).Join(t.Context(),
			&node.JoinRequest{Token: replace.Secret, AgentId: "a1", CsrDer: csr, Version: 1})
		return err == nil
	}, patience, 50*time.Millisecond)
	old, err := b.dial(t, node.AgentTLS(second.cert, second.ca, "h2")).Session(t.Context())
	require.NoError(t, err)
	_ = old.Send(hello("a1")) // it may have been refused already
	_, err = old.Recv()
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

func TestHelloIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	who := b.join(t, "a1")
	for name, c := range map[string]struct {
		up   *node.Up
		code codes.Code
	}{
		"no hello":       {observed(1, true), codes.InvalidArgument},
		"another's name": {hello("a2"), codes.PermissionDenied},
		"another cluster": {&node.Up{Kind: &node.Up_Hello{Hello: &node.Hello{Version: 1, AgentId: "a1", ClusterId: "c2"}}},
			codes.PermissionDenied},
		"no version": {&node.Up{Kind: &node.Up_Hello{Hello: &node.Hello{AgentId: "a1"}}}, codes.InvalidArgument},
	} {
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Send(c.up))
		_, err = s.Recv()
		require.Equal(t, c.code, status.Code(err), "%s: %v", name, err)
	}
}

func TestStatesTravel(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *agentlink.Config) { c.Heartbeat, c.Lease = 5*time.Second, 30*time.Second }) // renewed every sixth of the lease
	b.desired = []cluster.DesiredKernel{{Kernel: kernelA, Generation: 1, Spec: &cluster.KernelSpec{Image: "img", ClusterIdx: 3}}}
	b.failures = 2
	s, w := b.connect(t, b.join(t, "a1"))
	require.EqualValues(t, 7, w.Epoch, "above what the agent has seen")
	require.EqualValues(t, 30_000, w.LeaseMs)

	d := receive(t, s).GetDesired()
	require.True(t, d.Full)
	require.EqualValues(t, 7, d.Epoch)
	require.Len(t, d.Kernels, 1)
	require.Equal(t, "img", d.Kernels[0].Spec.Image)
	require.EqualValues(t, 3, d.Kernels[0].Spec.ClusterIdx)

	require.NoError(t, s.Send(&node.Up{Kind: &node.Up_Facts{Facts: &node.Facts{Revision: 1, Architecture: "x86_64",
		Slots: map[string]string{"cpu": "4", "mem": "1073741824"}, SlotKinds: map[string]string{"cpu": "count", "mem": "bytes"},
		Devices: []*node.Device{{Slot: "cpu", Id: "0", Capacity: 1000, Healthy: true}}}}}))
	code := int32(3)
	require.NoError(t, s.Send(observed(1, true,
		&node.ObservedKernel{KernelId: kernelA, Generation: 1, Phase: node.Phase_PHASE_RUNNING},
		&node.ObservedKernel{KernelId: kernelB, Generation: 2, Phase: node.Phase_PHASE_ENDED, ExitCode: &code},
		&node.ObservedKernel{KernelId: "nonsense", Generation: 2, Phase: node.Phase_PHASE_ENDED})))
	ack := receive(t, s).GetAck()
	require.Len(t, ack.Kernels, 1, "after the database came back")
	require.Equal(t, kernelB, ack.Kernels[0].KernelId)
	b.until(t, "both are stored", func() bool { return len(b.seen) == 2 && len(b.facts) == 1 })
	b.change(func() {
		require.Equal(t, 1, b.fulls)
		require.False(t, b.synced, "the report had not seen the desired state")
		require.Equal(t, cluster.PhaseRunning, b.seen[kernelA].Phase)
		require.Equal(t, 3, *b.seen[kernelB].ExitCode)
		require.Equal(t, cluster.Whole(1<<30), b.facts[0].Capacity[cluster.SlotMem])
		require.JSONEq(t, `[{"Slot":"cpu","ID":"0","NUMA":0,"Capacity":1000,"Healthy":true}]`, string(b.facts[0].Devices))
	})
	up := observed(2, false, &node.ObservedKernel{KernelId: kernelA, Generation: 1, Phase: node.Phase_PHASE_TERMINATING})
	up.GetObserved().DesiredRevision = d.Revision
	require.NoError(t, s.Send(up))
	b.until(t, "the newest state is seen", func() bool { return b.synced })

	// Only what changed is sent after a wake, and nothing when nothing did.
	b.link.Wake("a1")
	b.change(func() { b.desired[0].Stop, b.desired[0].StopReason = true, cluster.ReasonUserRequested })
	b.link.Wake("a1")
	b.link.WakeAll()
	d2 := receive(t, s).GetDesired()
	require.False(t, d2.Full)
	require.Greater(t, d2.Revision, d.Revision)
	require.True(t, d2.Kernels[0].Stop)
	require.Equal(t, "user-requested", d2.Kernels[0].StopReason)
	b.until(t, "the lease is renewed", func() bool { return b.touched > 0 })
}

func TestActions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.connect(t, b.join(t, "a1"))
	var agent sync.WaitGroup
	t.Cleanup(agent.Wait)
	agent.Go(func() {
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			if a := m.GetAction(); a != nil {
				r := &node.ActionReply{RequestId: a.RequestId, Body: a.Body}
				if a.Verb == "fail" {
					r = &node.ActionReply{RequestId: a.RequestId, Error: "no", ErrorKind: "conflict"}
				}
				if s.Send(&node.Up{Kind: &node.Up_ActionReply{ActionReply: r}}) != nil {
					return
				}
			}
		}
	})
	b.until(t, "it is registered", func() bool { return len(b.hellos) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body, err := b.link.Do(ctx, "a1", "probe", []byte(`{"x":1}`))
	require.NoError(t, err)
	require.Equal(t, `{"x":1}`, string(body))
	_, err = b.link.Do(ctx, "a1", "fail", nil)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = b.link.Do(ctx, "a2", "probe", nil)
	require.True(t, fault.Is(err, fault.Unavailable))
	require.NoError(t, s.CloseSend())
}

func TestNewerConnectionTakesOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	who := b.join(t, "a1")
	old, w1 := b.connect(t, who)
	_, w2 := b.connect(t, who)
	require.Greater(t, w2.Epoch, w1.Epoch)
	var err error
	for err == nil {
		_, err = old.Recv()
	}
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	b.until(t, "the older one is noted as gone", func() bool { return len(b.gone) == 1 && b.gone[0] == w1.Epoch })
	require.True(t, b.link.Connected("a1"))
}

// later is a clock that is set forward while the link uses it.
type later struct {
	chassis.Clock
	by atomic.Int64
}

func (l *later) Now() time.Time { return l.Clock.Now().Add(time.Duration(l.by.Load())) }

func TestSilentAgentIsDropped(t *testing.T) {
	t.Parallel()
	clock := &later{Clock: chassis.RealClock()}
	b := setupWith(t, clock, func(c *agentlink.Config) { c.Heartbeat = 50 * time.Millisecond })
	s, _ := b.connect(t, b.join(t, "a1"))
	clock.by.Store(int64(16 * time.Minute)) // the lease is over
	var err error
	for err == nil {
		_, err = s.Recv() // it hears, but says nothing
	}
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.False(t, b.link.Connected("a1"))
}

// serveStreams is the agent's side of the stream connection.
func (b *bundle) serveStreams(t *testing.T, who identity, h http.Handler) net.Conn {
	t.Helper()
	conn, err := (&tls.Dialer{Config: node.AgentTLS(who.cert, who.ca, node.ALPNStream)}).DialContext(t.Context(), "tcp",
		b.link.Addr().String())
	require.NoError(t, err)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: p}
	l := &oneConn{conn: conn, done: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		_ = srv.Close()
		_ = conn.Close()
		wg.Wait()
	})
	return conn
}

type oneConn struct {
	conn net.Conn
	once sync.Once
	done chan struct{}
	shut sync.Once
}

// plain hides the TLS below from the server, which speaks HTTP/2 on it by prior knowledge.
type plain struct{ net.Conn }

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = plain{l.conn} })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { l.shut.Do(func() { close(l.done) }); return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

func TestStreams(t *testing.T) {
	t.Parallel()
	b := setup(t)
	who := b.join(t, "a1")
	cancelled := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /kernels/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "logs of %s %s", r.PathValue("id"), r.URL.RawQuery)
	})
	mux.HandleFunc("POST /kernels/{id}/echo", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		in := bufio.NewScanner(r.Body)
		for in.Scan() {
			fmt.Fprintf(w, "%s:%s\n", r.Header.Get("Berth-Upgrade"), in.Text())
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("GET /kernels/{id}/hang", func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(cancelled)
	})
	mux.HandleFunc("POST /kernels/{id}/refuse", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "not running", http.StatusConflict)
	})
	mux.HandleFunc("POST /kernels/{id}/ports/{port}", func(w http.ResponseWriter, _ *http.Request) {
		run.WriteFailure(w, fault.Unavailablef("nothing listens on port 1").WithReason("app-refused").WithNext("start it"))
	})
	first := b.serveStreams(t, who, mux)

	get := func(ctx context.Context, path string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
		require.NoError(t, err)
		resp, err := b.link.RoundTrip("a1", req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	text, err := get(t.Context(), "/kernels/k/logs?follow=true")
	require.NoError(t, err)
	require.Equal(t, "logs of k follow=true", text)

	stream, err := b.link.Upgrade(t.Context(), "a1", "/kernels/k/echo", http.Header{"Berth-Upgrade": {"pty"}})
	require.NoError(t, err)
	lines := bufio.NewReader(stream)
	for _, word := range []string{"one", "two"} { // full-duplex: an answer before the end of the request
		_, err = fmt.Fprintln(stream, word)
		require.NoError(t, err)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "pty:"+word+"\n", line)
	}

	// A second connection takes new streams; the old one finishes what runs on it.
	b.serveStreams(t, who, mux)
	require.Eventually(t, func() bool {
		text, err := get(t.Context(), "/kernels/k/logs")
		return err == nil && text == "logs of k "
	}, patience, 10*time.Millisecond)
	_, err = fmt.Fprintln(stream, "three")
	require.NoError(t, err)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "pty:three\n", line)
	require.NoError(t, stream.Close())

	_, err = b.link.Upgrade(t.Context(), "a1", "/kernels/k/refuse", nil)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "not running")
	_, err = b.link.Upgrade(t.Context(), "a1", "/kernels/k/ports/1", nil)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Equal(t, "app-refused", fault.ReasonOf(err))
	require.Equal(t, "start it", fault.NextOf(err))

	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { cancel(errors.New("enough")) })
	_, err = get(ctx, "/kernels/k/hang")
	require.ErrorContains(t, err, "enough")
	wg.Wait()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/etc/passwd", nil)
	require.NoError(t, err)
	_, err = b.link.RoundTrip("a1", req)
	require.Error(t, err, "only routes of agents")
	_ = first.Close()
}

// connectAs opens a control stream of an agent that speaks a version.
func (b *bundle) connectAs(t *testing.T, who identity, version int32) node.Node_SessionClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(ctx)
	require.NoError(t, err)
	up := hello(who.id)
	up.GetHello().Version = version
	require.NoError(t, s.Send(up))
	require.NotNil(t, receive(t, s).GetWelcome())
	return s
}

// TestStreamsAreAskedFor: an agent dials its stream connection when the first byte stream is wanted, also one that connects only then. An
// agent of an older version is not asked: it has its connection anyway.
func TestStreamsAreAskedFor(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	for name, c := range map[string]struct {
		version int32
		late    bool
	}{"connected": {node.VersionStreams, false}, "connects": {node.VersionStreams, true}, "older": {node.VersionStreams - 1, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			who := b.join(t, "a1")
			require.False(t, b.link.Holds("a1"))
			type reply struct {
				text string
				err  error
			}
			got := make(chan reply, 1)
			get := func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/kernels/k/logs", nil)
				if err != nil {
					got <- reply{err: err}
					return
				}
				resp, err := b.link.RoundTrip("a1", req)
				if err != nil {
					got <- reply{err: err}
					return
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				got <- reply{string(text), err}
			}
			if c.late {
				go get()
			}
			s := b.connectAs(t, who, c.version)
			require.Equal(t, c.version >= node.VersionStreams, b.link.Holds("a1"), "others need not look for it elsewhere")
			if !c.late {
				go get()
			}
			for asked := c.version < node.VersionStreams; !asked; {
				down, err := s.Recv()
				require.NoError(t, err)
				asked = down.GetStreams() != nil
			}
			b.serveStreams(t, who, answer)
			r := await.Value(t, got)
			require.NoError(t, r.err)
			require.Equal(t, "here", r.text)
			require.True(t, b.link.Holds("a1"))
		})
	}
}

// TestStreamsComeBeforeTheirOwners: the order to start an interactive kernel has the agent dial; that of a batch job does not.
func TestStreamsComeBeforeTheirOwners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.connectAs(t, b.join(t, "a1"), node.Version)
	order := func(id cluster.KernelID, kind cluster.SessionType) {
		b.change(func() {
			b.desired = append(b.desired, cluster.DesiredKernel{Kernel: id, Session: "s", Generation: 1,
				Spec: &cluster.KernelSpec{SessionType: kind}})
		})
		b.link.Wake("a1")
	}
	next := func() *node.Down {
		for {
			down, err := s.Recv()
			require.NoError(t, err)
			if down.GetHeartbeat() == nil {
				return down
			}
		}
	}
	require.True(t, next().GetDesired().GetFull())
	order("batch", cluster.Batch)
	require.Len(t, next().GetDesired().GetKernels(), 1)
	order("interactive", cluster.Interactive)
	require.Len(t, next().GetDesired().GetKernels(), 1)
	require.NotNil(t, next().GetStreams())
}

func TestStreamsOfAbsentAgents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.link.WaitForStreams(time.Millisecond)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/kernels/k/logs", nil)
	require.NoError(t, err)
	_, err = b.link.RoundTrip("a1", req)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Equal(t, "agent-not-connected", fault.ReasonOf(err))
	b.link.WaitForStreams(patience)

	// A connection that breaks while an answer is awaited is Unavailable too.
	who := b.join(t, "a1")
	reached := make(chan struct{})
	conn := b.serveStreams(t, who, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	}))
	var wg sync.WaitGroup
	wg.Go(func() { <-reached; _ = conn.Close() })
	_, err = b.link.RoundTrip("a1", req)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	wg.Wait()

	// Streams need a node certificate.
	c := b.token.JoinTLS()
	c.NextProtos = []string{node.ALPNStream}
	anonymous, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", b.link.Addr().String())
	require.NoError(t, err)
	_, err = anonymous.Read(make([]byte, 1))
	require.Error(t, err)
}
