package appproxy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// manager is the manager's end of wire/proxy: it publishes what a test says.
type manager struct {
	t    *testing.T
	tls  *tls.Config // of proxies
	cert tls.Certificate
	addr string

	mu       sync.Mutex
	ln       net.Listener
	away     bool
	conns    map[net.Conn]bool
	revision int64
	circuits map[string]proxy.Circuit
	late     map[string]proxy.Circuit // known to look-ups alone
	codes    map[string]proxy.RedeemReply
	codeOf   map[string]string // code to circuit
	keys     [][]byte
	watches  map[chan proxy.Event]bool
	instance proxy.Instance
	lookups  int
	launched []proxy.LaunchRequest
	closed   []proxy.CloseRequest
	activity map[string]proxy.CircuitActivity
	stuck    chan struct{} // questions at stuckAt wait for it
	stuckAt  string
	asked    int // so many did
	template func(proxy.LaunchRequest) (proxy.Circuit, error)
	codeNo   int
	version  int
	bound    []proxy.LaunchRequest
}

// newManager starts a manager; one that is like another is of the same cluster.
func newManager(t *testing.T, like ...*manager) *manager {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	m := &manager{
		t: t, cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, conns: map[net.Conn]bool{},
		circuits: map[string]proxy.Circuit{}, late: map[string]proxy.Circuit{},
		codes: map[string]proxy.RedeemReply{}, codeOf: map[string]string{}, watches: map[chan proxy.Event]bool{},
		activity: map[string]proxy.CircuitActivity{},
		keys:     [][]byte{[]byte("today's key of the manager, long")},
		version:  proxy.Version,
		tls:      &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{proxy.ALPN}},
	}
	for _, other := range like {
		m.cert, m.tls, m.keys = other.cert, other.tls, other.keys
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m.ln, m.addr = ln, ln.Addr().String()
	go m.accept()
	t.Cleanup(func() {
		m.stop()
		_ = ln.Close()
	})
	return m
}

// EnsureJoined and TLS make the manager the membership of its proxies too.
func (m *manager) EnsureJoined(context.Context, string) error { return nil }

func (m *manager) TLS(string) *tls.Config { return m.tls.Clone() }

func (m *manager) accept() {
	for {
		raw, err := m.ln.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		away := m.away
		m.mu.Unlock()
		if away {
			_ = raw.Close()
			continue
		}
		go m.serve(raw)
	}
}

func (m *manager) serve(raw net.Conn) {
	conn := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{m.cert}, NextProtos: []string{proxy.ALPN}})
	m.mu.Lock()
	m.conns[raw] = true
	m.mu.Unlock()
	if conn.HandshakeContext(context.Background()) == nil {
		(&http2.Server{}).ServeConn(conn, &http2.ServeConnOpts{Handler: http.HandlerFunc(m.answer),
			BaseConfig: &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}})
	}
	_ = conn.Close()
	m.mu.Lock()
	delete(m.conns, raw)
	m.mu.Unlock()
}

// stop kills it; circuits stay, as they do in a database.
// stop ends all connections and takes no more. The port stays, or another program could get it.
func (m *manager) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = true
	for c := range m.conns {
		_ = c.Close()
	}
}

func (m *manager) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = false
}

func (m *manager) tell(e proxy.Event) {
	for w := range m.watches {
		w <- e
	}
}

// publish puts a circuit, or changes it.
func (m *manager) publish(c proxy.Circuit) proxy.Circuit {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	c.Revision = m.revision
	m.circuits[c.ID] = c
	m.tell(proxy.Event{Circuits: []proxy.Circuit{c}})
	return c
}

func (m *manager) revoke(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.circuits, id)
	m.tell(proxy.Event{Gone: []string{id}})
}

// code makes a one-time code.
func (m *manager) code(id, user string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.codeNo++
	code := fmt.Sprintf("code-%d", m.codeNo)
	m.codes[code] = proxy.RedeemReply{User: user, Epoch: m.circuits[id].Epoch, ExpiresAt: time.Now().Add(time.Hour), Path: "/"}
	m.codeOf[code] = id
	return code
}

func (m *manager) ticket(id string, epoch int64) string {
	return proxy.SignTicket(proxy.Ticket{Circuit: id, User: "u1", Epoch: epoch, Expires: time.Now().Add(time.Hour)}, m.keys[0])
}

func (m *manager) seen(get func() bool) func() bool {
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return get()
	}
}

func (m *manager) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == proxy.PathWatch {
		m.watch(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	if stuck := m.stuck; stuck != nil && r.URL.Path == m.stuckAt {
		m.asked++
		m.mu.Unlock()
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
		m.mu.Lock()
	}
	reply, err := m.decide(r.URL.Path, body)
	m.mu.Unlock()
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	_ = json.NewEncoder(w).Encode(reply)
}

func (m *manager) decide(path string, body []byte) (any, error) {
	switch path {
	case proxy.PathLookup:
		var q proxy.LookupRequest
		_ = json.Unmarshal(body, &q)
		m.lookups++
		for _, set := range []map[string]proxy.Circuit{m.circuits, m.late} {
			for _, c := range set {
				if q.Label != "" && c.Label == q.Label || q.Port != 0 && c.Port == q.Port {
					return proxy.LookupReply{Circuit: &c}, nil
				}
			}
		}
		return proxy.LookupReply{}, nil
	case proxy.PathConf:
		return proxy.ConfReply{Token: "launch-token"}, nil
	case proxy.PathClose:
		var q proxy.CloseRequest
		_ = json.Unmarshal(body, &q)
		m.closed = append(m.closed, q)
		return struct{}{}, nil
	case proxy.PathActivity:
		var q proxy.Activity
		_ = json.Unmarshal(body, &q)
		for _, a := range q.Circuits {
			old := m.activity[a.ID]
			a.Requests, a.BytesIn = a.Requests+old.Requests, a.BytesIn+old.BytesIn
			m.activity[a.ID] = a
		}
		return struct{}{}, nil
	case proxy.PathRedeem:
		var q proxy.RedeemRequest
		_ = json.Unmarshal(body, &q)
		reply, ok := m.codes[q.Code]
		if !ok || m.codeOf[q.Code] != q.Circuit {
			return nil, fault.Deniedf("the code is not valid").WithReason("bad-code")
		}
		delete(m.codes, q.Code)
		if c := m.circuits[q.Circuit]; !c.HTTP() && !slices.Contains(c.Admitted, q.Client) {
			m.revision++
			c.Revision, c.Admitted = m.revision, append(slices.Clone(c.Admitted), q.Client)
			m.circuits[c.ID] = c // told by look-ups before the watch
			defer m.tell(proxy.Event{Circuits: []proxy.Circuit{c}})
		}
		return reply, nil
	case proxy.PathBind:
		if m.version < proxy.VersionBind {
			break
		}
		var q proxy.LaunchRequest
		_ = json.Unmarshal(body, &q)
		m.bound = append(m.bound, q)
		if q.Token != "start-token" {
			return nil, fault.Deniedf("this launch token is not valid").WithReason("bad-launch-token").WithNext("start the app again")
		}
		return proxy.BindReply{Token: "launch-token"}, nil
	case proxy.PathLaunch:
		var q proxy.LaunchRequest
		_ = json.Unmarshal(body, &q)
		m.launched = append(m.launched, q)
		if q.Token != "launch-token" {
			return nil, fault.New(fault.Unauthenticated, "the launch token is not valid any more").WithReason("bad-token").
				WithNext("open the app again")
		}
		c, err := m.template(q)
		if err != nil {
			return nil, err
		}
		old, reused := m.circuits[c.ID]
		if reused {
			c = old
		} else {
			m.revision++
			c.Revision = m.revision
			m.circuits[c.ID] = c
			defer m.tell(proxy.Event{Circuits: []proxy.Circuit{c}})
		}
		m.codeNo++
		code := fmt.Sprintf("code-%d", m.codeNo)
		m.codes[code] = proxy.RedeemReply{User: "u1", Epoch: c.Epoch, ExpiresAt: time.Now().Add(time.Hour), Path: "/lab?x=1"}
		m.codeOf[code] = c.ID
		return proxy.LaunchReply{Circuit: c, Code: code, Reused: reused, Path: "/lab?x=1"}, nil
	}
	return nil, fault.NotFoundf("no route %s", path)
}

func (m *manager) watch(w http.ResponseWriter, r *http.Request) {
	var q proxy.WatchRequest
	_ = json.NewDecoder(r.Body).Decode(&q)
	news := make(chan proxy.Event, 1000)
	m.mu.Lock()
	m.instance = q.Instance
	first := proxy.Event{Snapshot: true, Complete: true, Keys: m.keys, Version: m.version}
	for _, c := range m.circuits {
		first.Circuits = append(first.Circuits, c)
	}
	m.watches[news] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.watches, news)
		m.mu.Unlock()
	}()
	out := json.NewEncoder(w)
	_ = out.Encode(first)
	for {
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case e := <-news:
			_ = out.Encode(e)
		case <-time.After(proxy.Beat):
			_ = out.Encode(proxy.Event{})
		case <-r.Context().Done():
			return
		}
	}
}

// app is what listens inside a session: it tells what reached it.
type app struct{ *http.ServeMux }

func newApp() app {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"path": r.URL.RequestURI(), "host": r.Host, "header": r.Header})
	})
	mux.HandleFunc("/strict", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Strict-Transport-Security", "max-age=1; includeSubDomains")
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	})
	return app{mux}
}

// site is a proxy with its manager and the apps behind it.
type site struct {
	t     *testing.T
	m     *manager
	p     *appproxy.Proxy
	web   net.Listener // an HTTP app
	echo  net.Listener // an app that sends back what it gets
	group *chassis.Group
	cfg   appproxy.Config
}

func config(t *testing.T, m *manager) appproxy.Config {
	t.Helper()
	cfg := appproxy.DefaultConfig()
	cfg.Managers, cfg.StateDir, cfg.Listen = []string{m.addr}, t.TempDir(), "127.0.0.1:0"
	cfg.Ports.From = freePorts(t)
	cfg.Ports.To = cfg.Ports.From + 9
	cfg.Secret = chassis.NewSecret("a secret of sixteen characters")
	return cfg
}

// These tests have the ports from firstPort on, in blocks of ten: no other package has them, nor does the kernel give them to anybody.
const (
	firstPort  = 61_000
	portBlocks = 300
)

// portsTold counts the blocks that tests of this process were told.
var portsTold atomic.Int64

// freePorts is the first of ten ports that nobody has and no other test was told. Each process begins elsewhere.
func freePorts(t *testing.T) int {
	t.Helper()
next:
	for range portBlocks {
		base := firstPort + 10*((os.Getpid()*97+int(portsTold.Add(1)))%portBlocks)
		for port := base; port < base+10; port++ {
			ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				continue next
			}
			_ = ln.Close()
		}
		return base
	}
	t.Fatal("no free ports")
	return 0
}

func newSite(t *testing.T, change func(*appproxy.Config), managers ...func(*manager)) *site {
	t.Helper()
	s := &site{t: t, m: newManager(t)}
	for _, m := range managers {
		m(s.m)
	}
	s.cfg = config(t, s.m)
	if change != nil {
		change(&s.cfg)
	}
	var err error
	s.web, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: newApp(), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(s.web) }()
	t.Cleanup(func() { _ = server.Close() })
	s.echo, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.echo.Close() })
	go func() {
		for {
			c, err := s.echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	s.start()
	return s
}

func (s *site) start() {
	s.t.Helper()
	p, err := appproxy.New(s.cfg, appproxy.Deps{
		Dial: s.dial, Member: s.m, Log: slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Build: chassis.BuildInfo{Version: "1.2.3"},
	})
	require.NoError(s.t, err)
	s.p = p
	s.group, err = chassis.NewGroup(slog.New(slog.DiscardHandler), p.Services()...)
	require.NoError(s.t, err)
	require.NoError(s.t, s.group.Start(s.t.Context()))
	group := s.group
	s.t.Cleanup(func() { _ = group.Stop(context.Background()) })
	s.eventually(func() bool { return p.Status().Connected }, "the proxy follows the manager")
}

func (s *site) dial(ctx context.Context, _ *circuit.Circuit, t proxy.Target) (net.Conn, error) {
	addr := s.web.Addr().String()
	switch t.Port {
	case 1:
		return nil, fault.Unavailablef("the app does not listen").WithReason("app-away").WithNext("start it")
	case 7:
		addr = s.echo.Addr().String()
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (s *site) eventually(ok func() bool, words string) {
	s.t.Helper()
	require.Eventually(s.t, ok, time.Minute, 5*time.Millisecond, words)
}

// known waits until the proxy has a circuit in its present revision.
func (s *site) known(c proxy.Circuit) proxy.Circuit {
	s.t.Helper()
	s.eventually(func() bool { return appproxy.Revision(s.p, c.ID) >= c.Revision }, "the event of "+c.ID)
	return c
}

func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func labelled(n int, label string) proxy.Circuit {
	return proxy.Circuit{ID: uuid(n), Epoch: 1, Mode: proxy.ModeSubdomain, Label: label, App: "jupyter", Protocol: "http", Session: "s-1",
		Name:    "mine",
		Targets: targets(80)}
}

// targets is one place per port; the port says what answers there.
func targets(ports ...int) (out []proxy.Target) {
	for _, port := range ports {
		out = append(out, proxy.Target{Kernel: "k-1", Port: port, Weight: 1})
	}
	return out
}

func (s *site) ported(n, offset int, protocol string) proxy.Circuit {
	c := labelled(n, "")
	c.Mode, c.Port, c.Protocol = proxy.ModePort, s.cfg.Ports.From+offset, protocol
	if protocol == "tcp" {
		c.App, c.Targets = "sshd", targets(7)
	}
	return c
}

// browser keeps cookies and goes where names below the domain lead: to the proxy.
func (s *site) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	require.NoError(s.t, err)
	return &http.Client{Jar: jar, Timeout: time.Minute, Transport: s.transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (s *site) transport() *http.Transport {
	t := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(addr)
			if net.ParseIP(host) == nil {
				addr = s.p.Addr()
			}
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}
	s.t.Cleanup(t.CloseIdleConnections)
	return t
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &out), a.body)
	return out
}

func (s *site) get(c *http.Client, address string, header ...string) answer {
	s.t.Helper()
	return s.do(c, http.MethodGet, address, "", header...)
}

func (s *site) do(c *http.Client, method, address, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, address, strings.NewReader(body))
	require.NoError(s.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// url is an address at the shared listener.
func (s *site) url(host, path string) string {
	u, err := url.Parse(s.p.URL())
	require.NoError(s.t, err)
	if host != "" {
		u.Host = net.JoinHostPort(host, u.Port())
	}
	return u.Scheme + "://" + u.Host + path
}

var loopbackAddr = netip.MustParseAddr("127.0.0.1")
