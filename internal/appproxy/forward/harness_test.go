package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; a busy machine may need much of it.
const patience = 60 * time.Second

// rig is an engine on a port of its own, with the circuits app-0, app-1... behind host names of the same name.
type rig struct {
	t    *testing.T
	e    *Engine
	addr string
	stop context.CancelFunc

	mu       sync.Mutex
	circuits map[string]*circuit.Circuit
	apps     map[string]string         // circuit -> address
	targets  map[proxy.TargetID]string // target -> address, where it is not the circuit's
	handler  http.Handler              // of the host "own"
	routed   int
	key      uint64 // of all visitors
	onRoute  func(Head)
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.RequestsPerAddress, cfg.RequestsPerCircuit, cfg.RequestsPerUser = 0, 0, 0
	r := &rig{t: t, circuits: map[string]*circuit.Circuit{}, apps: map[string]string{}}
	if change != nil {
		change(&cfg)
	}
	r.e = New(cfg, r.route, r.dial, chassis.RealClock(), slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = r.e.Run(ctx) })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.e.ServeConn(ctx, c, Listener{}) })
		}
	})
	r.stop = func() { cancel(); _ = l.Close(); all.Wait() }
	t.Cleanup(r.stop)
	return r
}

func (r *rig) route(h Head) Route {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routed++
	if r.onRoute != nil {
		r.onRoute(h)
	}
	name := hostname(h.Host)
	if name == "own" {
		return Route{Handler: r.handler}
	}
	return Route{Circuit: r.circuits[name], User: h.Header.Get("Test-User"), Key: r.key}
}

func (r *rig) dial(ctx context.Context, c *circuit.Circuit, t proxy.Target) (net.Conn, error) {
	r.mu.Lock()
	addr := r.apps[c.ID]
	if other := r.targets[t.ID()]; other != "" {
		addr = other
	}
	r.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fault.Unavailablef("the app does not listen").WithReason("app-away").WithNext("start it again").WithCause(err)
	}
	return conn, nil
}

// app adds a circuit whose app each(conn) is.
func (r *rig) app(name string, each func(net.Conn)) *circuit.Circuit {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				each(c)
			})
		}
	})
	// After the engine's end, which ends the connections.
	r.t.Cleanup(func() { r.stop(); _ = l.Close(); all.Wait() })
	return r.circuit(name, "http", l.Addr().String())
}

func (r *rig) circuit(name, protocol, addr string) *circuit.Circuit {
	c := &circuit.Circuit{Circuit: proxy.Circuit{ID: name, Revision: 1, Protocol: protocol, Mode: proxy.ModeSubdomain, Label: name,
		Targets: []proxy.Target{{Kernel: "k-1", Port: 80, Weight: 1}}}}
	r.mu.Lock()
	r.circuits[name], r.apps[name] = c, addr
	r.mu.Unlock()
	return c
}

// server adds a circuit whose app is a server of net/http.
func (r *rig) server(name string, handler http.Handler) *circuit.Circuit {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	s := &http.Server{Handler: handler}
	var all sync.WaitGroup
	all.Go(func() { _ = s.Serve(l) })
	r.t.Cleanup(func() { r.stop(); _ = s.Close(); all.Wait() })
	return r.circuit(name, "http", l.Addr().String())
}

func (r *rig) conn() net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	require.NoError(r.t, err)
	require.NoError(r.t, c.SetDeadline(time.Now().Add(patience)))
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// say sends raw text on a connection of its own and returns everything until its end.
func (r *rig) say(text string) string {
	r.t.Helper()
	c := r.conn()
	_, err := io.WriteString(c, text)
	require.NoError(r.t, err)
	all, _ := io.ReadAll(c)
	_ = c.Close()
	return string(all)
}

// client follows no redirects and keeps connections until the test's end.
func (r *rig) client() *http.Client {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
	}, DisableCompression: true}
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// readHeadOf reads a head and returns it, with what was read ahead in the reader.
func readHeadOf(t *testing.T, b *bufio.Reader) string {
	t.Helper()
	var head strings.Builder
	for {
		line, err := b.ReadString('\n')
		require.NoError(t, err, "after %q", head.String())
		head.WriteString(line)
		if line == "\r\n" {
			return head.String()
		}
	}
}

// canned answers every request of a connection with the same text; requests must have no body.
func canned(text string) func(net.Conn) {
	return func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
			if strings.Contains(text, "Connection: close") {
				return
			}
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, time.Millisecond, "does not come true: %s", what)
}

func status(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	_, rest, _ := strings.Cut(line, " ")
	return rest
}

func get(host, path string, fields ...string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", path, host, strings.Join(fields, ""))
}
