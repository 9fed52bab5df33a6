package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/authz"
	proxylink "berth.dev/berth/internal/manager/link/proxy"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// sessions stands for the use cases of sessions, which proxies never reach.
type sessions struct{}

func (sessions) Find(context.Context, authz.Actor, string, cluster.AccessKey) (*session.Session, error) {
	return nil, fault.NotFoundf("no sessions here")
}

func (sessions) Uses() *session.Uses { return &session.Uses{} }

func (sessions) Runner(context.Context, authz.Actor, string, cluster.AccessKey) (*session.Runner, error) {
	return nil, fault.NotFoundf("no sessions here")
}

// vault keeps secrets in memory.
type vault struct {
	mu   sync.Mutex
	kept map[string][]byte
}

func (v *vault) Get(_ context.Context, key string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kept[key], nil
}

func (v *vault) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fresh, err := fn(v.kept[key])
	if fresh != nil {
		if v.kept == nil {
			v.kept = map[string][]byte{}
		}
		v.kept[key] = fresh
	}
	return v.kept[key], err
}

// beating is a clock whose tickers tick when the test says so.
type beating struct {
	chassis.Clock
	ticks chan time.Time
}

// tick ticks once a ticker's owner waits for it.
func (b beating) tick(t *testing.T) {
	t.Helper()
	select {
	case b.ticks <- time.Time{}:
	case <-time.After(time.Minute):
		require.FailNow(t, "nobody waits for the next tick")
	}
}

func (b beating) NewTicker(time.Duration) chassis.Ticker { return ticker{b.ticks} }

type ticker struct{ c chan time.Time }

func (t ticker) C() <-chan time.Time { return t.c }
func (ticker) Stop()                 {}
func (ticker) Reset(time.Duration)   {}

// rig is a manager's side with a running session.
type rig struct {
	t                     *testing.T
	store                 *store.Store
	app                   *app.Service
	clock                 beating
	address               string
	user, session, kernel string
	managers              atomic.Pointer[[]string]
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: storetest.New(t), clock: beating{chassis.RealClock(), make(chan time.Time)}, user: uuid.NewString(),
		session: uuid.NewString(), kernel: uuid.NewString()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	r.app, err = app.New(app.Deps{Store: r.store, Sessions: sessions{}, Vault: &vault{}, Clock: r.clock.Now, Log: log})
	require.NoError(t, err)
	r.sql(`INSERT INTO domains (name) VALUES ('d')`)
	require.NoError(t, r.store.AddDefaultPolicies(t.Context()))
	r.sql(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, 'u', 'u@x', 'd', 'default')`, r.user)
	r.sql(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('K', '', $1, 'default')`, r.user)
	project := uuid.NewString()
	require.NoError(t, r.store.AddProject(t.Context(), project, "proj", nil, "d"))
	r.sql(`INSERT INTO resource_groups (name) VALUES ('g')`)
	r.sql(`INSERT INTO agents (id, status, resource_group, boot_id, data_address) VALUES ('a1', 'ALIVE', 'g', 'boot', '10.0.0.1:7000')`)
	r.sql(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
		VALUES ($1, 'lab', 'interactive', 'd', $2, $3, 'K', 'g', 'img', 'RUNNING', '{}')`, r.session, project, r.user)
	r.sql(`INSERT INTO kernels (id, session_id, image, architecture, agent_id, status, requested_slots)
		VALUES ($1, $2, 'img', 'x86_64', 'a1', 'RUNNING', '{}')`, r.kernel, r.session)
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = r.app.Run(ctx) })
	link := proxylink.New(proxylink.Deps{App: r.app, Managers: func() []string {
		if list := r.managers.Load(); list != nil {
			return *list
		}
		return nil
	}, Clock: r.clock, Log: log})
	listener, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS(t))
	require.NoError(t, err)
	r.address = listener.Addr().String()
	parts.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			parts.Go(func() {
				if c := conn.(*tls.Conn); c.HandshakeContext(ctx) == nil { // as the agent port does
					link.Serve(ctx, strings.TrimSuffix(c.ConnectionState().ServerName, ".test"), conn)
				}
			})
		}
	})
	t.Cleanup(func() { stop(); _ = listener.Close(); parts.Wait() })
	return r
}

func serverTLS(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{proxy.ALPN},
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func (r *rig) sql(text string, args ...any) {
	r.t.Helper()
	_, err := r.store.Pool().Exec(r.t.Context(), text, args...)
	require.NoError(r.t, err)
}

// circuits publishes n apps at once, past the use cases.
func (r *rig) circuits(n int) {
	r.t.Helper()
	r.sql(`INSERT INTO circuits (id, proxy, mode, label, session_id, kernel_id, app, protocol, target, path, user_id, created_by,
			public, allowed, created_at)
		SELECT gen_random_uuid(), 'p', 'subdomain', 'app-' || i || '-' || substr(md5(random()::text), 1, 6), $1, $2, 'web', 'http', 8000, '/',
			$3, $3, false, '{}', now() FROM generate_series(1, $4) i`,
		r.session, r.kernel, r.user, n)
	r.store.Wake(store.TopicCircuits)
}

// peer is a proxy's connection.
type peer struct {
	t    *testing.T
	http *http.Client
	conn net.Conn
}

func (r *rig) dial() *peer { return r.dialAs("p") }

// dialAs connects as an app proxy of that name. Its certificate would say so; here the name that it asks for does.
func (r *rig) dialAs(name string) *peer {
	r.t.Helper()
	conn, err := tls.Dial("tcp", r.address, &tls.Config{InsecureSkipVerify: true, ServerName: name + ".test",
		NextProtos: []string{proxy.ALPN}}) //nolint:gosec // the test's own server
	require.NoError(r.t, err)
	require.NoError(r.t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	h2, err := (&http2.Transport{}).NewClientConn(conn)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return &peer{t: r.t, http: &http.Client{Transport: h2}, conn: conn}
}

func (p *peer) post(path string, body any) *http.Response {
	p.t.Helper()
	b, ok := body.([]byte)
	if !ok {
		var err error
		b, err = json.Marshal(body)
		require.NoError(p.t, err)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, "https://manager"+path, bytes.NewReader(b))
	require.NoError(p.t, err)
	resp, err := p.http.Do(req)
	require.NoError(p.t, err)
	return resp
}

// fails asks and returns the fault that came back.
func (p *peer) fails(path string, body any) error {
	p.t.Helper()
	resp := p.post(path, body)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.NotEqual(p.t, http.StatusOK, resp.StatusCode, string(b))
	return run.FaultOf(resp.StatusCode, b)
}

// stream is an open watch with what was heard on it.
type stream struct {
	t     *testing.T
	body  io.ReadCloser
	lines *bufio.Reader
	known map[string]proxy.Circuit
	keys  [][]byte
	full  bool
	beats int
	sizes []int
}

func (p *peer) watch(i proxy.Instance) *stream {
	p.t.Helper()
	resp := p.post(proxy.PathWatch, proxy.WatchRequest{Instance: i})
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return &stream{t: p.t, body: resp.Body, lines: bufio.NewReaderSize(resp.Body, proxy.MaxLine), known: map[string]proxy.Circuit{}}
}

func (s *stream) next() proxy.Event {
	s.t.Helper()
	line, err := s.lines.ReadBytes('\n')
	require.NoError(s.t, err)
	require.LessOrEqual(s.t, len(line), proxy.MaxLine)
	s.sizes = append(s.sizes, len(line))
	var e proxy.Event
	require.NoError(s.t, json.Unmarshal(line, &e))
	require.LessOrEqual(s.t, len(e.Circuits), proxy.MaxCircuits)
	for _, c := range e.Circuits {
		s.known[c.ID] = c
	}
	for _, id := range e.Gone {
		delete(s.known, id)
	}
	if e.Keys != nil {
		s.keys = e.Keys
	}
	if !e.Snapshot && len(e.Circuits)+len(e.Gone)+len(e.Keys) == 0 {
		s.beats++
	}
	s.full = s.full || e.Complete
	return e
}

func (s *stream) until(ok func() bool) {
	s.t.Helper()
	for !ok() {
		s.next()
	}
}

func instance(node string) proxy.Instance {
	return proxy.Instance{Name: "p", Node: node, Version: 1, URL: "https://apps.example.org", Domain: "apps.example.org",
		DomainURL: "https://apps.example.org"}
}

// TestWatch: a snapshot in bounded parts, changes, keys and beats; the replica is known for as long as it watches.
func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.circuits(700)
	s := r.dial().watch(instance("n1"))
	s.until(func() bool { return s.full })
	if len(s.known) < 700 { // the watch may have begun before the rows were seen
		s.until(func() bool { return len(s.known) == 700 })
	}
	require.Len(t, s.keys, 1)
	known, err := r.app.Proxies(t.Context())
	require.NoError(t, err)
	require.Len(t, known, 1)
	require.True(t, known[0].Connected)

	var id string
	require.NoError(t, r.store.Pool().QueryRow(t.Context(),
		`UPDATE circuits SET epoch = 2 WHERE id = (SELECT id FROM circuits LIMIT 1) RETURNING id`).Scan(&id))
	r.store.Wake(store.TopicCircuits)
	s.until(func() bool { return s.known[id].Epoch == 2 })
	r.sql(`UPDATE kernels SET status = 'TERMINATING' WHERE id = $1`, r.kernel)
	r.store.Wake(store.SessionTopic(r.session))
	s.until(func() bool { return len(s.known) == 0 })

	for beats := s.beats; s.beats < beats+2; {
		r.clock.tick(t)
		s.next()
	}
	_ = s.body.Close()
	require.Eventually(t, func() bool {
		known, err := r.app.Proxies(t.Context())
		return err == nil && len(known) == 0
	}, time.Minute, 5*time.Millisecond, "who left is not connected")
}

// A proxy learns of its own circuits alone, whatever it asks: by its watch, by look-ups and from what ends; and its keys are its own.
func TestAProxyLearnsItsOwnCircuitsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.circuits(3)
	mine := r.dial().watch(instance("n1"))
	mine.until(func() bool { return mine.full })
	if len(mine.known) < 3 {
		mine.until(func() bool { return len(mine.known) == 3 })
	}
	other := instance("n2")
	other.Name, other.URL, other.Domain, other.PortHost = "q", "https://q.example.org", "q.example.org", "q.example.org"
	evil := r.dialAs("q")
	s := evil.watch(other)
	s.until(func() bool { return s.full })
	require.Empty(t, s.known)
	require.NotEmpty(t, s.keys)
	require.NotEqual(t, mine.keys, s.keys)

	var one proxy.Circuit
	for _, one = range mine.known {
		break
	}
	require.NotEmpty(t, one.Targets[0].Grant)
	ask := func(req proxy.LookupRequest) (reply proxy.LookupReply) {
		resp := evil.post(proxy.PathLookup, req)
		defer resp.Body.Close()
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&reply))
		return reply
	}
	require.Nil(t, ask(proxy.LookupRequest{Label: one.Label}).Circuit)
	require.Nil(t, ask(proxy.LookupRequest{Proxy: "p", Label: one.Label}).Circuit, "it may not say who it is")
	claims := evil.post(proxy.PathWatch, proxy.WatchRequest{Instance: instance("n3")})
	require.Equal(t, http.StatusForbidden, claims.StatusCode, "nor in a watch")
	_ = claims.Body.Close()

	// Changes and ends of others' circuits are no events for it.
	r.sql(`UPDATE circuits SET epoch = 2 WHERE id = $1`, one.ID)
	r.store.Wake(store.TopicCircuits)
	mine.until(func() bool { return mine.known[one.ID].Epoch == 2 })
	r.sql(`UPDATE kernels SET status = 'TERMINATING' WHERE id = $1`, r.kernel)
	r.store.Wake(store.SessionTopic(r.session))
	mine.until(func() bool { return len(mine.known) == 0 })
	r.sql(`UPDATE kernels SET status = 'RUNNING' WHERE id = $1`, r.kernel)
	r.sql(`INSERT INTO circuits (id, proxy, mode, label, session_id, kernel_id, app, protocol, target, path, user_id, created_by,
			public, allowed, created_at)
		VALUES (gen_random_uuid(), 'q', 'subdomain', 'own', $1, $2, 'web', 'http', 8000, '/', $3, $3, false, '{}', now())`,
		r.session, r.kernel, r.user)
	r.store.Wake(store.TopicCircuits)
	for len(s.known) == 0 { // its own circuit is the first that it hears of
		e := s.next()
		require.Empty(t, e.Gone)
	}
	require.Len(t, s.known, 1)
	for _, c := range s.known {
		g, err := proxy.ReadGrant(c.Targets[0].Grant)
		require.NoError(t, err)
		require.Equal(t, "q", g.Proxy)
	}
}

// A proxy hears which version its manager speaks.
func TestVersionOfTheManager(t *testing.T) {
	t.Parallel()
	s := newRig(t).dial().watch(instance("n1"))
	for {
		if e := s.next(); e.Version != 0 {
			require.Equal(t, proxy.Version, e.Version)
			require.True(t, s.full, "after the snapshot")
			return
		}
	}
}

// TestManagers: a proxy hears after the snapshot where managers are, and with the next beat when that changes.
func TestManagers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.managers.Store(&[]string{"m1:8082", "m2:8082"})
	s := r.dial().watch(instance("n1"))
	s.until(func() bool { return s.full })
	require.Equal(t, []string{"m1:8082", "m2:8082"}, s.next().Managers)
	r.clock.tick(t)
	require.Empty(t, s.next().Managers, "nothing changed")
	r.managers.Store(&[]string{"m2:8082"})
	r.clock.tick(t)
	require.Equal(t, []string{"m2:8082"}, s.next().Managers)
}

// TestTenThousand: with ten thousand circuits a change still reads only itself.
func TestTenThousand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.circuits(10000)
	s := r.dial().watch(instance("n1"))
	s.until(func() bool { return s.full && len(s.known) == 10000 })
	var id string
	require.NoError(t, r.store.Pool().QueryRow(t.Context(), `SELECT id FROM circuits LIMIT 1`).Scan(&id))
	s.sizes = nil
	began := time.Now()
	r.sql(`DELETE FROM circuits WHERE id = $1`, id)
	r.store.Wake(store.TopicCircuits)
	s.until(func() bool { return len(s.known) == 9999 })
	t.Logf("a removal among 10,000 circuits arrived after %s", time.Since(began))
	total := 0
	for _, n := range s.sizes {
		total += n
	}
	require.Less(t, total, 1000, "nothing else was sent")
}

// TestQuestions: proxies answer for themselves, and nonsense is refused with words.
func TestQuestions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.circuits(1)
	p := r.dial()
	var label string
	require.NoError(t, r.store.Pool().QueryRow(t.Context(), `SELECT label FROM circuits`).Scan(&label))
	look := func(req proxy.LookupRequest) *proxy.Circuit {
		resp := p.post(proxy.PathLookup, req)
		defer resp.Body.Close()
		var reply proxy.LookupReply
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&reply))
		return reply.Circuit
	}
	require.Equal(t, label, look(proxy.LookupRequest{Label: label}).Label)
	require.Nil(t, look(proxy.LookupRequest{Label: "nothing"}))
	require.Nil(t, look(proxy.LookupRequest{Port: 99999}))
	require.Nil(t, look(proxy.LookupRequest{}))

	for name, c := range map[string]struct {
		path string
		body any
		kind fault.Kind
	}{
		"a wrong token":    {proxy.PathLaunch, proxy.LaunchRequest{Token: "x", Session: r.session, App: "web"}, fault.Denied},
		"a wrong code":     {proxy.PathRedeem, proxy.RedeemRequest{Circuit: r.session, Code: "x"}, fault.Denied},
		"a closing token":  {proxy.PathClose, proxy.CloseRequest{Token: "x", Session: r.session}, fault.Denied},
		"a stranger's key": {proxy.PathConf, proxy.ConfRequest{Session: r.session, AccessKey: "other"}, fault.NotFound},
		"no JSON":          {proxy.PathRedeem, []byte("{"), fault.Invalid},
		"too much":         {proxy.PathLaunch, bytes.Repeat([]byte("x"), proxy.MaxRequest+1), fault.Exhausted},
		"an unknown route": {"/v1/nothing", struct{}{}, fault.NotFound},
		"another's name": {proxy.PathWatch, proxy.WatchRequest{Instance: proxy.Instance{Name: "q", Node: "n", URL: "https://a"}},
			fault.Denied},
		"a bad address": {proxy.PathWatch, proxy.WatchRequest{Instance: proxy.Instance{Node: "n", URL: "javascript:alert(1)"}},
			fault.Invalid},
		"too many activities": {proxy.PathActivity, proxy.Activity{Circuits: make([]proxy.CircuitActivity, proxy.MaxCircuits+1)}, fault.Invalid},
	} {
		err := p.fails(c.path, c.body)
		require.Equal(t, c.kind, fault.KindOf(err), "%s: %v", name, err)
	}
	resp := p.post(proxy.PathActivity, proxy.Activity{})
	require.Equal(t, http.StatusOK, resp.StatusCode)
	_ = resp.Body.Close()
	get, err := p.http.Get("https://manager" + proxy.PathLookup)
	require.NoError(t, err)
	_ = get.Body.Close()
	require.Equal(t, http.StatusNotFound, get.StatusCode)
}

// TestConnectionEnds: a proxy that dies is forgotten, and the manager's end closes its connections.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.dial()
	s := p.watch(instance("n1"))
	s.until(func() bool { return s.full })
	two := r.dial().watch(instance("n2"))
	two.until(func() bool { return two.full })
	_ = p.conn.Close()
	require.Eventually(t, func() bool {
		known, err := r.app.Proxies(t.Context())
		return err == nil && len(known) == 1 && known[0].Replicas == 1
	}, time.Minute, 5*time.Millisecond, "its other replica stays")
}
