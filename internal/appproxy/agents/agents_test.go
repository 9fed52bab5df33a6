package agents_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/appproxy/agents"
	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/membership/membershiptest"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const boot = "00000000-0000-4000-8000-00000000b007"

// agent is a data port whose app says which way it was reached.
type agent struct {
	proxy.AgentAddress
	mu      sync.Mutex
	resumed int
}

func serve(t *testing.T, l net.Listener, h http.HandlerFunc) {
	t.Helper()
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 20 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
}

func says(t *testing.T, word string) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/kernels/k1/ports/8080" || r.Header.Get(proxy.HeaderGrant) != "the grant" {
			run.WriteFailure(w, fault.Unavailablef("nothing listens on this port").WithReason("app-refused").WithNext("start it"))
			return
		}
		near, far := net.Pipe()
		go func() {
			_, _ = io.WriteString(far, word)
			_ = far.Close()
		}()
		_, _, _ = tunnel.Accept(w, r, near)
	}
}

func newAgent(t *testing.T, member *membership.Member, id string) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agents")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &agent{}
	a.ID, a.BootID, a.Socket = "i-a1", boot, filepath.Join(dir, node.DataSocketName)
	u, err := chassis.ListenUnix(a.Socket)
	require.NoError(t, err)
	serve(t, u, says(t, "local"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a.Address = l.Addr().String()
	serve(t, tls.NewListener(l, member.ServeTLS(proxy.NamePrefix, node.ALPNData)), func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		if r.TLS.DidResume {
			a.resumed++
		}
		a.mu.Unlock()
		says(t, "remote")(w, r)
	})
	return a
}

var mine = circuit.New(proxy.Circuit{ID: "c1", Name: "mine"})

func to(a proxy.AgentAddress, port int) proxy.Target {
	return proxy.Target{Kernel: "k1", Port: port, Agent: a, Weight: 1, Grant: "the grant"}
}

func TestDial(t *testing.T) {
	t.Parallel()
	manager := membershiptest.NewManager(t, nil)
	a := newAgent(t, manager.Join(t, "i-a1"), "i-a1")
	web := manager.Join(t, proxy.NamePrefix+"web")
	var log bytes.Buffer
	d := agents.New(agents.Options{Member: web, BootID: boot, Log: slog.New(slog.NewTextHandler(&log, nil)), Clock: chassis.RealClock()})
	change := func(f func(*proxy.AgentAddress)) proxy.AgentAddress {
		x := a.AgentAddress
		f(&x)
		return x
	}
	for name, c := range map[string]struct {
		at   proxy.AgentAddress
		want string
	}{
		"same host":               {a.AgentAddress, "local"},
		"another host":            {change(func(x *proxy.AgentAddress) { x.BootID = "other" }), "remote"},
		"unknown host":            {change(func(x *proxy.AgentAddress) { x.BootID = "" }), "remote"},
		"no such socket here":     {change(func(x *proxy.AgentAddress) { x.Socket = "/nowhere/data.sock" }), "remote"},
		"not a data socket":       {change(func(x *proxy.AgentAddress) { x.Socket = "/run/docker.sock" }), "remote"},
		"socket alone":            {change(func(x *proxy.AgentAddress) { x.Address = "" }), "local"},
		"address alone":           {change(func(x *proxy.AgentAddress) { x.Socket = "" }), "remote"},
		"socket that is no one's": {change(func(x *proxy.AgentAddress) { x.Socket = stale(t) }), "remote"},
	} {
		conn, err := d.Dial(t.Context(), mine, to(c.at, 8080))
		require.NoError(t, err, name)
		got, err := io.ReadAll(conn)
		require.NoError(t, err, name)
		require.Equal(t, c.want, string(got), name)
		require.NoError(t, conn.Close())
	}
	require.Empty(t, log.String())
	// Handshakes after the first are short.
	a.mu.Lock()
	defer a.mu.Unlock()
	require.NotZero(t, a.resumed)
}

// stale is a socket that a killed agent left.
func stale(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), node.DataSocketName)
	l, err := chassis.ListenUnix(path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return path
}

func TestDialFails(t *testing.T) {
	t.Parallel()
	manager := membershiptest.NewManager(t, nil)
	a := newAgent(t, manager.Join(t, "i-a1"), "i-a1")
	web := manager.Join(t, proxy.NamePrefix+"web")
	d := agents.New(agents.Options{Member: web, BootID: boot, Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
	for name, c := range map[string]struct {
		at     proxy.AgentAddress
		port   int
		reason string
	}{
		"the app is not there":        {a.AgentAddress, 9, "app-refused"},
		"and not from elsewhere":      {proxy.AgentAddress{ID: "i-a1", Address: a.Address}, 9, "app-refused"},
		"no way":                      {proxy.AgentAddress{ID: "i-a1"}, 8080, "agent-unreachable"},
		"a socket of another host":    {proxy.AgentAddress{ID: "i-a1", Socket: a.Socket, BootID: "other"}, 8080, "agent-unreachable"},
		"another agent answers":       {proxy.AgentAddress{ID: "i-a2", Address: a.Address}, 8080, "agent-unreachable"},
		"nobody listens":              {proxy.AgentAddress{ID: "i-a1", Socket: stale(t), BootID: boot}, 8080, "agent-unreachable"},
		"not even an address":         {proxy.AgentAddress{ID: "i-a1", Address: "x"}, 8080, "agent-unreachable"},
		"the manager is not an agent": {proxy.AgentAddress{ID: "i-a1", Address: manager.Addr}, 8080, "agent-unreachable"},
	} {
		conn, err := d.Dial(t.Context(), mine, to(c.at, c.port))
		require.Nil(t, conn, name)
		require.Error(t, err, name)
		require.Equal(t, fault.Unavailable, fault.KindOf(err), "%s: %v", name, err)
		require.Equal(t, c.reason, fault.ReasonOf(err), "%s: %v", name, err)
		require.NotEmpty(t, fault.NextOf(err), name)
	}
	// A member of another cluster is refused by the agent, whatever it believes.
	stranger := agents.New(agents.Options{Member: membershiptest.NewManager(t, nil).Join(t, proxy.NamePrefix+"web"),
		Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
	_, err := stranger.Dial(t.Context(), mine, to(a.AgentAddress, 8080))
	require.Error(t, err)
}

// waitClock does something when somebody begins to wait.
type waitClock struct {
	chassis.Clock
	waits func()
}

func (c *waitClock) NewTimer(d time.Duration) chassis.Timer {
	c.waits()
	return c.Clock.NewTimer(d)
}

// TestAnAgentThatComesBack: visitors wait for it.
func TestAnAgentThatComesBack(t *testing.T) {
	t.Parallel()
	path := stale(t)
	back := sync.OnceFunc(func() {
		require.NoError(t, os.Remove(path))
		l, err := chassis.ListenUnix(path)
		require.NoError(t, err)
		serve(t, l, says(t, "back"))
	})
	d := agents.New(agents.Options{BootID: boot, Log: slog.New(slog.DiscardHandler), Clock: &waitClock{chassis.RealClock(), back}})
	conn, err := d.Dial(t.Context(), mine, to(proxy.AgentAddress{ID: "i-a1", Socket: path, BootID: boot}, 8080))
	require.NoError(t, err, "it waited until the agent was back")
	require.NoError(t, conn.Close())
}
