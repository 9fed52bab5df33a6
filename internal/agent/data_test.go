package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/appproxy/agents"
	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// appProxy is a member of the manager's cluster.
func (m *manager) appProxy() *membership.Member {
	m.t.Helper()
	token := m.token(proxy.NamePrefix + "web")
	p, err := membership.Open(membership.Options{Dir: filepath.Join(m.t.TempDir(), "node"), Name: proxy.NamePrefix + "web",
		Log:   slog.New(slog.DiscardHandler),
		Clock: chassis.RealClock(), Token: func() (chassis.Secret, error) { return chassis.NewSecret(token), nil }})
	require.NoError(m.t, err)
	require.NoError(m.t, p.EnsureJoined(m.t.Context(), m.cfg.Listen))
	return p
}

// grantKey signs what the manager of these tests grants.
var grantKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte("g"), ed25519.SeedSize))

// GrantKeys and EndedCircuits satisfy link/agent.Grants.
func (m *manager) GrantKeys(context.Context) ([][]byte, error) {
	public, ok := grantKey.Public().(ed25519.PublicKey)
	require.True(m.t, ok)
	return [][]byte{public}, nil
}

func (m *manager) EndedCircuits(cluster.AgentID) ([]string, bool) { return nil, true }

// dialApp connects to an app as an app proxy does, on the agent's host or elsewhere.
func (m *manager) dialApp(member *membership.Member, local bool, id cluster.KernelID, port int) (net.Conn, error) {
	boot := ""
	if local {
		boot = chassis.BootID()
	}
	m.mu.Lock()
	at := proxy.AgentAddress{ID: m.hello.Agent, BootID: m.hello.BootID, Address: m.facts.DataAddress, Socket: m.facts.DataSocket}
	m.mu.Unlock()
	d := agents.New(agents.Options{Member: member, BootID: boot, Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	grant, err := proxy.SignGrant(proxy.Grant{Circuit: "00000000-0000-4000-8000-0000000000c1", Kernel: id, Generation: 1, Port: port,
		Proxy: "web", Issuer: "c1", Expires: time.Now().Add(time.Hour)}, grantKey)
	require.NoError(m.t, err)
	target := proxy.Target{Kernel: id, Port: port, Agent: at, Weight: 1, Generation: 1, Grant: grant}
	conn, err := d.Dial(ctx, circuit.New(proxy.Circuit{ID: "c", Name: "sess", Targets: []proxy.Target{target}}), target)
	if err == nil {
		m.t.Cleanup(func() { _ = conn.Close() })
		require.NoError(m.t, conn.SetDeadline(time.Now().Add(5*time.Minute)))
	}
	return conn, err
}

// both sends text and reads what comes back until the end of both directions.
func both(t *testing.T, c io.ReadWriter, text string) string {
	t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.WriteString(c, text)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	})
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(got)
}

func TestAppsAreReachedEveryWay(t *testing.T) {
	t.Parallel()
	for name, sockets := range map[string]bool{"in memory": false, "sockets": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			h := newHost(t, m)
			h.engine = fake.NewEngine(fake.Options{Sockets: sockets})
			h.engine.AddImage(runtime.Image{References: []string{image}}, map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n")})
			t.Cleanup(h.engine.Close)
			h.cfg.DataListen = "127.0.0.1:0"
			h.start()
			id := kernelID(1)
			m.want(desired(1))
			m.until("it runs", func() bool { return m.phase(id) == cluster.PhaseRunning && m.facts.DataAddress != "" })
			require.Equal(t, filepath.Join(h.cfg.StateDir, "data", "data.sock"), m.told().DataSocket)
			stop, err := h.engine.Listen(id, 7000, run.AppTCP, func(c net.Conn) {
				_, _ = io.WriteString(c, "hello\n")
				_, _ = io.Copy(c, c)
			})
			require.NoError(t, err)
			defer stop()
			web := m.appProxy()
			text := strings.Repeat("0123456789", 30_000)

			path := "/kernels/" + string(id) + "/ports/"
			for range 2 {
				s, err := m.upgrade(t.Context(), path+"7000", nil)
				require.NoError(t, err)
				require.True(t, both(t, s, text) == "hello\n"+text)
				require.NoError(t, s.Close())
				for _, local := range []bool{true, false} {
					c, err := m.dialApp(web, local, id, 7000)
					require.NoError(t, err)
					require.True(t, both(t, c, text) == "hello\n"+text)
				}
			}

			// Refusals keep their words on every way.
			for _, c := range []struct {
				id     cluster.KernelID
				port   string
				n      int
				reason string
			}{{id, "7001", 7001, "app-refused"}, {kernelID(9), "7000", 7000, "kernel-not-found"}} {
				_, err := m.upgrade(t.Context(), "/kernels/"+string(c.id)+"/ports/"+c.port, nil)
				require.Equal(t, c.reason, fault.ReasonOf(err), "%v", err)
				for _, local := range []bool{true, false} {
					_, err := m.dialApp(web, local, c.id, c.n)
					require.Equal(t, c.reason, fault.ReasonOf(err), "%v", err)
				}
			}
			for _, port := range []string{"0", "65536", "x", "-1", "127.0.0.1:80"} {
				_, err := m.upgrade(t.Context(), path+port, nil)
				require.True(t, fault.Is(err, fault.Invalid), "%s: %v", port, err)
			}

			// A visitor of the manager who leaves, or whose app does.
			left, err := m.upgrade(t.Context(), path+"7000", nil)
			require.NoError(t, err)
			_, err = io.ReadFull(left, make([]byte, 6))
			require.NoError(t, err)
			require.NoError(t, left.Close())
			stays, err := m.upgrade(t.Context(), path+"7000", nil)
			require.NoError(t, err)
			_, err = io.ReadFull(stays, make([]byte, 6))
			require.NoError(t, err)
			over, err := m.dialApp(web, false, id, 7000)
			require.NoError(t, err)
			_, err = io.ReadFull(over, make([]byte, 6))
			require.NoError(t, err)
			require.NoError(t, h.engine.Exit(id, 0))
			_, err = io.ReadAll(stays)
			require.NoError(t, err)
			_, _ = io.ReadAll(over) // ends, in whatever way
			_ = stays.Close()
		})
	}
}

// TestHandedOverConnectionsOutliveTheAgent: the agent stops and comes back; who talks to an app notices nothing, and new
// connections work as soon as it listens again.
func TestHandedOverConnectionsOutliveTheAgent(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.engine = fake.NewEngine(fake.Options{Sockets: true})
	h.engine.AddImage(runtime.Image{References: []string{image}}, map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n")})
	t.Cleanup(h.engine.Close)
	h.start()
	id := kernelID(1)
	m.want(desired(1))
	m.until("it runs", func() bool { return m.phase(id) == cluster.PhaseRunning && m.facts.DataSocket != "" })
	require.Empty(t, m.told().DataAddress, "the TCP port is off")
	stop, err := h.engine.Listen(id, 7000, run.AppTCP, fake.Echo)
	require.NoError(t, err)
	defer stop()
	c, err := m.dialApp(nil, true, id, 7000)
	require.NoError(t, err)
	say := func(c net.Conn) {
		t.Helper()
		_, err := io.WriteString(c, "word\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "word\n", line)
	}
	say(c)
	h.stop()
	say(c)
	_, err = m.dialApp(nil, true, id, 7000)
	require.Equal(t, "agent-unreachable", fault.ReasonOf(err), "%v", err)
	answer := h.engine.Inject(fake.Fault{Method: fake.Info, Hang: true})
	greeted := peek(m, func() int { return m.greetings })
	h.start()
	m.until("it is back", func() bool { return m.greetings > greeted && !m.facts.EngineOK })
	answer()
	again, err := m.dialApp(nil, true, id, 7000)
	require.NoError(t, err)
	say(again)
	say(c)
	require.Zero(t, peek(m, func() int { return m.wayless }),
		"an agent that comes back tells the way to its apps at once, whatever its engine does")
}

// TestRealApp reaches a web server in a real container on all three ways, across a restart of the agent.
func TestRealApp(t *testing.T) {
	m := newManager(t)
	h := newDockerHost(t, m)
	h.cfg.DataListen = "127.0.0.1:0"
	h.startDocker()
	id := kernelID(1)
	m.until("the engine answers", func() bool { return m.facts.EngineOK })
	m.want(onDocker(1))
	m.until("it runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
	defer func() {
		m.want(stopped(1))
		m.until("it ends", func() bool { return m.phase(id) == cluster.PhaseEnded })
	}()
	// A child of the session's interpreter, which lives as long as the session.
	req := run.StepRequest{Mode: run.ModeQuery, WaitMS: 10_000, Code: `import subprocess
open('/tmp/x', 'w').write('from inside')
server = """import http.server, os; os.chdir('/tmp')
h = http.server.SimpleHTTPRequestHandler
h.protocol_version = 'HTTP/1.1'
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), h).serve_forever()"""
p = subprocess.Popen(['python3', '-c', server], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
	stderr=subprocess.DEVNULL)`}
	for {
		res, err := m.runner(id).Step(t.Context(), "r1", req)
		require.NoError(t, err)
		if res.Status.Final() {
			break
		}
		req = run.StepRequest{Mode: run.ModeContinue, WaitMS: 10_000}
	}
	web := m.appProxy()
	var conn net.Conn
	var err error
	require.Eventually(t, func() bool {
		conn, err = m.dialApp(web, true, id, 8000)
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	require.IsType(t, &tunnel.Lent{}, conn, "the app's own socket")
	require.Equal(t, "127.0.0.1:8000", conn.RemoteAddr().String())
	get := func(c io.ReadWriter) {
		t.Helper()
		_, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "from inside", string(body))
	}
	get(conn)
	remote, err := m.dialApp(web, false, id, 8000)
	require.NoError(t, err)
	get(remote)
	s, err := m.upgrade(t.Context(), "/kernels/"+string(id)+"/ports/8000", nil)
	require.NoError(t, err)
	get(s)
	require.NoError(t, s.Close())
	const n = 200
	began := time.Now()
	for range n {
		c, err := m.dialApp(web, true, id, 8000)
		require.NoError(t, err)
		_ = c.Close()
	}
	t.Logf("one connection to an app on this host: %s", time.Since(began)/n)

	h.stop()
	get(conn)
	h.startDocker()
	m.until("it still runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
	var again net.Conn
	require.Eventually(t, func() bool { // until the keeper has seen the container
		again, err = m.dialApp(web, true, id, 8000)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	get(again)
	get(conn)
	_, err = m.dialApp(web, true, id, 8001)
	require.Equal(t, "app-refused", fault.ReasonOf(err), "%v", err)
}
