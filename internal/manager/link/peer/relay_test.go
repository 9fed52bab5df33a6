package peer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/manager/link/h2"
	"berth.dev/berth/internal/manager/link/peer"
	"berth.dev/berth/internal/wire/node"
)

const patience = 60 * time.Second

// vault is a Vault in memory.
type vault struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (v *vault) Get(_ context.Context, key string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.values[key], nil
}

func (v *vault) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b, err := fn(v.values[key])
	if err == nil && b != nil {
		v.values[key] = b
	}
	return v.values[key], err
}

// world is a cluster of managers with agents that are handlers.
type world struct {
	t     *testing.T
	vault *vault

	mu       sync.Mutex
	managers map[string]*manager
	holder   map[cluster.AgentID]string // what the database says
	lookups  int
}

type manager struct {
	w     *world
	id    string
	auth  *ca.Authority
	relay *peer.Relay
	ln    net.Listener
	stop  func()

	mu     sync.Mutex
	agents map[cluster.AgentID]http.Handler
	awaits int
	await  func() // what happens while somebody waits for an agent
}

func newWorld(t *testing.T) *world {
	return &world{t: t, vault: &vault{values: map[string][]byte{}}, managers: map[string]*manager{}, holder: map[cluster.AgentID]string{}}
}

func (w *world) find(id string) (peer.Presence, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.managers[id]
	if m == nil {
		return peer.Presence{}, false
	}
	return peer.Presence{ID: id, Agents: m.ln.Addr().String()}, true
}

// start starts a manager with an agent port that other managers can dial.
func (w *world) start(id string) *manager {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil)).With("manager", id)
	m := &manager{w: w, id: id, agents: map[cluster.AgentID]http.Handler{}}
	var err error
	m.auth, err = ca.Open(w.t.Context(), ca.Options{ClusterID: "c", Vault: w.vault, Clock: chassis.RealClock(), Random: rand.Reader})
	require.NoError(w.t, err)
	m.relay = peer.NewRelay(peer.Options{
		ID: id, Local: m, Find: w.find, TLS: func() *tls.Config { return m.auth.ManagerTLS(id) }, Log: log,
		Holder: func(_ context.Context, a cluster.AgentID) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lookups++
			return w.holder[a], nil
		},
	})
	m.ln, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			raw, err := m.ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				conn := tls.Server(raw, m.auth.ServerTLS())
				defer conn.Close()
				if conn.HandshakeContext(ctx) != nil {
					return
				}
				if from, err := m.auth.Manager(conn.ConnectionState()); err == nil {
					m.relay.Serve(ctx, from, conn)
				}
			})
		}
	})
	m.stop = sync.OnceFunc(func() {
		w.mu.Lock()
		if w.managers[id] == m {
			delete(w.managers, id)
		}
		w.mu.Unlock()
		cancel()
		_ = m.ln.Close()
		_ = m.relay.Stop(context.Background())
		work.Wait()
	})
	w.t.Cleanup(m.stop)
	w.mu.Lock()
	w.managers[id] = m
	w.mu.Unlock()
	return m
}

// hold gives a manager an agent.
func (m *manager) hold(id cluster.AgentID, h http.HandlerFunc) {
	m.mu.Lock()
	m.agents[id] = h
	m.mu.Unlock()
	m.w.mu.Lock()
	m.w.holder[id] = m.id
	m.w.mu.Unlock()
}

func (m *manager) drop(id cluster.AgentID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.agents, id)
}

func (m *manager) Holds(id cluster.AgentID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.agents[id] != nil
}

func (m *manager) Await(_ context.Context, id cluster.AgentID) error {
	m.mu.Lock()
	m.awaits++
	await := m.await
	m.mu.Unlock()
	if await != nil {
		await()
	}
	if m.Holds(id) {
		return nil
	}
	return fault.Unavailablef("agent %s is not here", id).WithReason("agent-not-connected")
}

// RoundTrip answers as the agent's connection does: the answer streams.
func (m *manager) RoundTrip(id cluster.AgentID, req *http.Request) (*http.Response, error) {
	m.mu.Lock()
	h := m.agents[id]
	m.mu.Unlock()
	if h == nil {
		return nil, fault.Unavailablef("agent %s is not connected to manager %s", id, m.id).WithReason("agent-not-connected").
			WithNext("wait for it")
	}
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
		srv.Protocols.SetUnencryptedHTTP2(true)
		_ = srv.Serve(&oneConn{conn: far})
	}()
	client, err := h2.NewClient(context.Background(), "agent", near)
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", "agent", "agent", ""
	resp, err := client.RoundTrip(out)
	if err != nil {
		_ = near.Close()
		<-served
		return nil, err
	}
	resp.Body = &closing{resp.Body, func() { _ = client.Close(); _ = near.Close(); <-served }}
	return resp, nil
}

// oneConn is a listener with one connection; it ends with it.
type oneConn struct {
	conn net.Conn
	once sync.Once
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	err = net.ErrClosed
	l.once.Do(func() { c, err = l.conn, nil })
	return c, err
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

type closing struct {
	io.ReadCloser
	then func()
}

func (c *closing) Close() error {
	err := c.ReadCloser.Close()
	c.then()
	return err
}

// soon takes from a channel, or the end of it.
func soon[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(patience):
		require.FailNow(t, "waited too long")
	}
	return got
}

// says answers with who it is and what was asked.
func says(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Name", name)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %s %q %q", r.Method, r.URL.RequestURI(), body, r.Header.Get(node.HeaderAgent), r.Header.Get("X"))
	}
}

func (m *manager) ask(ctx context.Context, id cluster.AgentID, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/kernels/k%2F1/logs?a;b", strings.NewReader(body))
	req.RequestURI, req.URL.Scheme, req.URL.Host = "", "http", "agent"
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
	req.Header.Set("X", "y")
	resp, err := m.relay.RoundTrip(id, req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// A request reaches the agent as it was sent, whichever manager it was sent to, and so does the answer.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	near.hold("i-near", says("i-near"))
	far.hold("i-far", says("i-far"))
	for range 3 {
		for _, id := range []cluster.AgentID{"i-near", "i-far"} {
			status, text, err := near.ask(t.Context(), id, "hello")
			require.NoError(t, err)
			require.Equal(t, []any{http.StatusTeapot, `POST /kernels/k%2F1/logs?a;b hello "" "y"`}, []any{status, text})
		}
	}
	require.Equal(t, 3, w.lookups, "an agent that is here is not looked up")
}

// A stream carries bytes both ways at once, and its ends are ends at the other side.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	over := make(chan error, 1)
	far.hold("i-far", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		buf := make([]byte, 1<<10)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = w.Write(buf[:n])
				_ = rc.Flush()
			}
			if err != nil {
				over <- err
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := near.relay.Upgrade(ctx, "i-far", "/kernels/k/ports/1", nil)
	require.NoError(t, err)
	for _, text := range []string{"one", "two", strings.Repeat("x", 1<<16)} {
		_, err := io.WriteString(stream, text)
		require.NoError(t, err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(stream, got)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	half, ok := stream.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	rest, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.ErrorIs(t, soon(t, over), io.EOF)
	require.NoError(t, stream.Close())
}

// A manager never relays what was relayed to it, even when the database sends it in a circle.
func TestNothingIsRelayedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far, third := w.start("near"), w.start("far"), w.start("third")
	third.hold("i-1", says("i-1"))
	w.mu.Lock()
	w.holder["i-1"] = "far" // which does not have it
	w.mu.Unlock()
	_, _, err := near.ask(t.Context(), "i-1", "")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "agent i-1 is not connected to manager far")
	require.Equal(t, "wait for it", fault.NextOf(err), "the words of the other manager")
	require.Equal(t, 2, w.lookups, "it was looked up twice, by near alone")
	require.Zero(t, far.awaits)
}

// A request whose agent moves while it is looked for finds it at its new manager; one whose body is gone is not sent again.
func TestAgentsMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far, third := w.start("near"), w.start("far"), w.start("third")
	for _, to := range []*manager{near, third} {
		far.hold("i-1", says("i-1"))
		far.drop("i-1")
		near.drop("i-1")
		near.await = func() { to.hold("i-1", says("i-1")) }
		status, text, err := near.ask(t.Context(), "i-1", "again")
		require.NoError(t, err)
		require.Equal(t, http.StatusTeapot, status)
		require.Contains(t, text, "again", "the body was sent again")
	}
	// The same where the row still names the manager that is asked: the agent connects to another one while that one waits.
	near.hold("i-2", says("i-2"))
	near.drop("i-2")
	near.await = func() { third.hold("i-2", says("i-2")) }
	_, text, err := near.ask(t.Context(), "i-2", "moved")
	require.NoError(t, err)
	require.Contains(t, text, "moved")
	near.await = nil

	far.hold("i-1", says("i-1"))
	far.drop("i-1")
	near.drop("i-1")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/kernels/k", io.MultiReader(strings.NewReader("once")))
	require.NoError(t, err)
	_, err = near.relay.RoundTrip("i-1", req)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}

// A request whose body can be read only once, as that of a command with input, is sent to where the agent went when its manager is gone:
// nobody has read of it.
func TestABodyThatNobodyReadIsSentOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	for _, known := range []bool{false, true} { // whether there was a connection to the manager
		agent := cluster.AgentID(fmt.Sprintf("i-%v", known))
		far.hold(agent, says("far"))
		if known {
			_, _, err := near.ask(t.Context(), agent, "")
			require.NoError(t, err)
		}
		far.stop()
		near.await = func() { near.hold(agent, says(string(agent))) }
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/kernels/k", io.MultiReader(strings.NewReader("once")))
		require.NoError(t, err)
		resp, err := near.relay.RoundTrip(agent, req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Contains(t, string(text), "once")
		far = w.start("far")
	}
}

// A manager that is gone is told with its name. When another one of that name is back at another address, it is found there.
func TestManagersGoAndComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	far.hold("i-1", says("i-1"))
	_, _, err := near.ask(t.Context(), "i-1", "")
	require.NoError(t, err)
	gone, _ := w.find("far")
	far.stop()
	_, _, err = near.ask(t.Context(), "i-1", "")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "agent i-1 is connected to manager far, which does not answer")
	require.Equal(t, "agent-not-connected", fault.ReasonOf(err))

	back := w.start("far")
	back.hold("i-1", says("i-1"))
	require.NotEqual(t, gone.Agents, back.ln.Addr().String())
	_, _, err = near.ask(t.Context(), "i-1", "")
	require.NoError(t, err)
}

// A stream that is under way when its manager dies ends with an error, not with what looks like its end.
func TestStreamsBreakWithTheirManager(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	began := make(chan struct{})
	far.hold("i-1", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the beginning")
		_ = http.NewResponseController(w).Flush()
		close(began)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/kernels/k/logs", nil)
	require.NoError(t, err)
	resp, err := near.relay.RoundTrip("i-1", req)
	require.NoError(t, err)
	defer resp.Body.Close()
	soon(t, began)
	text := make([]byte, len("the beginning"))
	_, err = io.ReadFull(resp.Body, text)
	require.NoError(t, err)
	require.Equal(t, "the beginning", string(text))
	far.stop()
	text, err = io.ReadAll(resp.Body)
	require.Error(t, err)
	require.Empty(t, text)
}

// An agent's answer cannot pass for the other manager's own failure.
func TestAgentsCannotSpeakForManagers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	far.hold("i-1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(node.HeaderRelay, "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"kind":"unavailable","reason":"agent-not-connected","msg":"no"}`)
	})
	status, text, err := near.ask(t.Context(), "i-1", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "agent-not-connected")
	require.Equal(t, 1, w.lookups)
}

// Who waits for an answer and gives up leaves nothing behind, and who asks after Stop is refused.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	near, far := w.start("near"), w.start("far")
	held := make(chan struct{})
	far.hold("i-1", func(_ http.ResponseWriter, r *http.Request) { close(held); <-r.Context().Done() })
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-held; cancel(errors.New("the client went away")) }()
	_, _, err := near.ask(ctx, "i-1", "")
	require.ErrorContains(t, err, "the client went away")
	near.stop()
	_, _, err = near.ask(t.Context(), "i-1", "")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}

// Only a manager may connect as one: agents and app proxies have other certificates, strangers none.
func TestWhoIsAManager(t *testing.T) {
	t.Parallel()
	auth, err := ca.Open(t.Context(), ca.Options{ClusterID: "c", Vault: &vault{values: map[string][]byte{}}, Clock: chassis.RealClock(),
		Random: rand.Reader})
	require.NoError(t, err)
	// member is the certificate of somebody who joined.
	member := func(who ca.Node) *tls.Config {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "manager:m1"}, DNSNames: []string{node.ServerName}}, key)
		require.NoError(t, err)
		token, _, err := auth.NewToken(t.Context(), ca.TokenRequest{Node: who})
		require.NoError(t, err)
		joined, err := auth.Join(t.Context(), ca.Request{Node: who, CSR: csr, Secret: token.Secret})
		require.NoError(t, err)
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{node.ALPNManager},
			Certificates: []tls.Certificate{{Certificate: [][]byte{joined.Certificate}, PrivateKey: key}}}
	}
	agent, proxy := member(ca.Node{Role: ca.RoleAgent, Name: "i-1"}), member(ca.Node{Role: ca.RoleAppProxy, Name: "p"})
	for name, test := range map[string]struct {
		client *tls.Config
		want   string
	}{
		"manager":   {auth.ManagerTLS("m1"), "m1"},
		"agent":     {agent, ""},
		"app proxy": {proxy, ""},
		"stranger":  {&tls.Config{InsecureSkipVerify: true, NextProtos: []string{node.ALPNManager}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			server := tls.Server(far, auth.ServerTLS())
			go func() { _ = tls.Client(near, test.client).HandshakeContext(t.Context()) }()
			require.NoError(t, server.HandshakeContext(t.Context()))
			id, err := auth.Manager(server.ConnectionState())
			require.Equal(t, test.want, id)
			require.Equal(t, test.want == "", err != nil)
		})
	}
	for name, conf := range map[string]*tls.Config{"agent": agent, "app proxy": proxy} { // at an address that was announced
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() {
			if far, err := ln.Accept(); err == nil {
				_ = tls.Server(far, conf).HandshakeContext(t.Context())
				_ = far.Close()
			}
		}()
		near, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		require.ErrorContains(t, tls.Client(near, auth.ManagerTLS("m1")).HandshakeContext(t.Context()), "certificate",
			"an %s passes for a manager", name)
		require.NoError(t, near.Close())
		require.NoError(t, ln.Close())
	}
	for _, id := range []string{"manager:m1", "manager:"} {
		require.Error(t, ca.CheckAgentID(id), "nobody joins under such a name")
	}
}

var _ peer.Local = (*agent.Link)(nil)
