package data_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/membership/membershiptest"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	kernelID = "00000000-0000-4000-8000-000000000001"
	ended    = "00000000-0000-4000-8000-000000000002"
	// circuitID is what is published of it.
	circuitID = "00000000-0000-4000-8000-0000000000c1"
	path      = "/kernels/" + kernelID + "/ports/8080"
)

// host is a data port with one kernel whose runner connects to one app.
type host struct {
	*data.Port
	manager membershiptest.Manager
	member  *membership.Member
	grants  *data.Grants
	stop    func()
	reg     *prometheus.Registry
	pool    *runners.Pool
	log     *slog.Logger
	clock   chassis.Clock

	mu      sync.Mutex
	kernel  keeper.Kernel
	refusal error // of the runner
}

func (h *host) find(id cluster.KernelID) (keeper.Kernel, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == ended {
		return keeper.Kernel{ID: id, Generation: 3, Phase: cluster.PhaseEnded}, true
	}
	return h.kernel, id == h.kernel.ID && h.kernel.Exists
}

// set changes what is true of the kernel and its runner.
func (h *host) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func newHost(t *testing.T) *host {
	t.Helper()
	j := membershiptest.NewManager(t, nil)
	h := &host{manager: j, member: j.Join(t, "i-a1"), reg: prometheus.NewRegistry()}
	var gerr error
	h.grants, gerr = data.OpenGrants(filepath.Join(t.TempDir(), "grant-keys.json"), chassis.RealClock())
	require.NoError(t, gerr)
	require.NoError(t, h.grants.Set([][]byte{publicOf(t, signing)}, nil, nil))
	h.kernel = keeper.Kernel{ID: kernelID, Generation: 3, Phase: cluster.PhaseRunning, Token: "secret", Exists: true,
		Container: runtime.Observed{Phase: runtime.PhaseRunning}}
	app, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "data")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	sock, err := net.Listen("unix", filepath.Join(dir, "r"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := app.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello\n")
				_, _ = io.Copy(c, c)
				_, _ = io.WriteString(c, "bye\n")
			})
		}
	})
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		err := h.refusal
		h.mu.Unlock()
		if err == nil && (r.URL.RequestURI() != run.PathDial+"?port=8080" || r.Header.Get("Authorization") != "Bearer secret" ||
			r.Header.Get(run.HeaderVersion) == "") {
			err = fault.New(fault.Internal, "%s %v", r.URL, r.Header)
		}
		var c net.Conn
		if err == nil {
			c, err = net.Dial("tcp", app.Addr().String())
		}
		if err != nil {
			run.WriteFailure(w, err)
			return
		}
		_, _, _ = tunnel.Accept(w, r, c)
	})}
	wg.Go(func() { _ = srv.Serve(sock) })
	t.Cleanup(func() { _, _ = app.Close(), srv.Close(); wg.Wait() })
	h.log, h.clock = slog.New(slog.NewTextHandler(t.Output(), nil)), chassis.RealClock()
	h.pool = runners.New(func(ctx context.Context, _ cluster.KernelID) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sock.Addr().String())
	})
	h.Port = data.New(data.Options{
		Find: h.find, Runners: h.pool, Member: h.member, Grants: h.grants,
		Dir:    filepath.Join(dir, strings.Repeat("d", 100)), // longer than a socket's path may be
		Listen: "127.0.0.1:0", Registry: h.reg, Log: h.log, Clock: h.clock,
	})
	svc := h.Service("agent-data")
	require.NoError(t, svc.Start(t.Context()))
	h.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, svc.Stop(ctx))
	})
	t.Cleanup(h.stop)
	return h
}

var signing, forging = ed25519.NewKeyFromSeed(bytes.Repeat([]byte("s"), 32)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte("f"), 32))

func publicOf(t *testing.T, key ed25519.PrivateKey) ed25519.PublicKey {
	t.Helper()
	public, ok := key.Public().(ed25519.PublicKey)
	require.True(t, ok)
	return public
}

// granted is what the manager grants app proxy web: port 8080 of the kernel.
func granted() proxy.Grant {
	return proxy.Grant{Circuit: circuitID, Kernel: kernelID, Generation: 3, Port: 8080, Proxy: "web", Issuer: "c",
		Expires: time.Now().Add(time.Hour)}
}

func signed(t *testing.T, g proxy.Grant, key ed25519.PrivateKey) http.Header {
	t.Helper()
	text, err := proxy.SignGrant(g, key)
	require.NoError(t, err)
	return http.Header{proxy.HeaderGrant: {text}}
}

// open asks for a tunnel with a grant for the very kernel and port of the path.
func (h *host) open(t *testing.T, c net.Conn, path string) (net.Conn, error) {
	t.Helper()
	g := granted()
	parts := strings.Split(path, "/")
	if len(parts) == 5 {
		if id, ok := cluster.CanonicalUUID(parts[2]); ok {
			g.Kernel = cluster.KernelID(id)
		}
		if n, err := strconv.Atoi(parts[4]); err == nil && n > 0 && n <= 65535 {
			g.Port = n
		}
	}
	return tunnel.Open(within(t), c, path, signed(t, g, signing))
}

// shortDir is a directory whose sockets have short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "data")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// local and remote are the two ways to the port.
func (h *host) local(t *testing.T) net.Conn {
	t.Helper()
	c, err := chassis.DialUnix(within(t), h.Socket())
	require.NoError(t, err)
	return c
}

func (h *host) remote(t *testing.T, m *membership.Member) (net.Conn, error) {
	t.Helper()
	conf, err := m.DialTLS("i-a1", node.ALPNData, nil)
	require.NoError(t, err)
	return (&tls.Dialer{Config: conf}).DialContext(within(t), "tcp", h.Address(t.Context()))
}

func talk(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	sent := strings.Repeat("0123456789", 50000)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = io.WriteString(c, sent)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	})
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.True(t, string(got) == "hello\n"+sent+"bye\n", "%d bytes", len(got))
	_ = c.Close()
}

func TestLocalAndRemote(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	st, err := os.Stat(h.Socket())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	st, err = os.Stat(filepath.Dir(h.Socket()))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())

	c, err := h.open(t, h.local(t), path)
	require.NoError(t, err)
	require.IsType(t, &tunnel.Lent{}, c)
	talk(t, c)

	web := h.manager.Join(t, proxy.NamePrefix+"web")
	for range 2 {
		r, err := h.remote(t, web)
		require.NoError(t, err)
		r, err = h.open(t, r, path)
		require.NoError(t, err)
		talk(t, r)
	}

	// What was lent lives on without the agent, what is carried does not.
	kept, err := h.open(t, h.local(t), path)
	require.NoError(t, err)
	r, err := h.remote(t, web)
	require.NoError(t, err)
	r, err = h.open(t, r, path)
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 6))
	require.NoError(t, err)
	h.stop()
	_, err = r.Read(make([]byte, 1))
	require.Error(t, err)
	_ = r.Close()
	talk(t, kept)
	families, err := h.reg.Gather()
	require.NoError(t, err)
	seen := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			seen[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.InDelta(t, 5, seen["berth_agent_tunnels_total"], 0)
	require.Zero(t, seen["berth_agent_tunnels_open"])
	require.Zero(t, seen["berth_agent_tunnels_lent"])
	require.Greater(t, seen["berth_agent_tunnel_bytes_total"], 2e6)
}

func TestOnlyAppProxiesOfTheClusterAreServed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	refused := func(what string, c net.Conn, err error) {
		t.Helper()
		if err == nil { // in TLS 1.3 the refusal comes after the client's handshake
			_, err = h.open(t, c, path)
		}
		require.Error(t, err, what)
	}
	c, err := h.remote(t, h.manager.Join(t, "i-a2"))
	refused("another agent", c, err)
	c, err = h.remote(t, h.member)
	refused("itself", c, err)
	stranger := membershiptest.NewManager(t, nil).Join(t, proxy.NamePrefix+"web")
	c, err = h.remote(t, stranger)
	refused("an app proxy of another cluster", c, err)
	c, err = tls.Dial("tcp", h.Address(t.Context()), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{node.ALPNData}})
	refused("nobody", c, err)
	c, err = net.Dial("tcp", h.Address(t.Context()))
	refused("plain bytes", c, err)
	// Nor does an app proxy speak to an agent of another name.
	conf, err := h.manager.Join(t, proxy.NamePrefix+"web").DialTLS("i-a2", node.ALPNData, nil)
	require.NoError(t, err)
	_, err = (&tls.Dialer{Config: conf}).DialContext(within(t), "tcp", h.Address(t.Context()))
	require.ErrorContains(t, err, "not expected")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for p, kind := range map[string]fault.Kind{
		"/kernels/" + ended + "/ports/8080":                        fault.Conflict,
		"/kernels/00000000-0000-4000-8000-000000000009/ports/8080": fault.NotFound,
		"/kernels/x/ports/8080":                                    fault.Denied,
		"/kernels/" + kernelID + "/ports/0":                        fault.Invalid,
		"/kernels/" + kernelID + "/ports/65536":                    fault.Invalid,
		"/kernels/" + kernelID + "/ports/8080%3Fhost=1":            fault.Invalid,
		"/kernels/" + kernelID + "/runner/v1/hello":                fault.NotFound,
		"/findings": fault.NotFound,
		"/kernels/" + kernelID + "/ports/8080/../../../kernels/x/ports/80": fault.Internal, // sent elsewhere, which is no answer to a caller
	} {
		_, err := h.open(t, h.local(t), p)
		require.Error(t, err, p)
		if kind != fault.Internal {
			require.Equal(t, kind, fault.KindOf(err), "%s: %v", p, err)
		}
	}
	h.set(func() {
		h.refusal = fault.Unavailablef("nothing listens on port 8080").WithReason("app-refused").WithNext("start it")
	})
	_, err := h.open(t, h.local(t), path)
	require.Equal(t, "app-refused", fault.ReasonOf(err))
	require.Equal(t, "start it", fault.NextOf(err))
	h.set(func() { h.refusal = fault.NotFoundf("no route") })
	_, err = h.open(t, h.local(t), path)
	require.Equal(t, "runner-too-old", fault.ReasonOf(err))

	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return chassis.DialUnix(ctx, h.Socket())
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://agent"+path, "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

// TestWhatWasLentEnds: an app proxy of this host has the app's own socket, and loses it with the right to it. So does whoever else has
// a descriptor of that socket.
func TestWhatWasLentEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*host) error{
		"the circuit": func(h *host) error { return h.grants.Set(nil, []string{circuitID}, nil) },
		"the app proxy's certificates": func(h *host) error {
			return h.grants.Set(nil, nil, []proxy.Revocation{proxy.Revoke("web", time.Now())})
		},
		"the kernel":     func(h *host) error { h.set(func() { h.kernel.Exists = false }); return nil },
		"its generation": func(h *host) error { h.set(func() { h.kernel.Generation++ }); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			c, err := h.open(t, h.local(t), path)
			require.NoError(t, err)
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, 6))
			require.NoError(t, err)
			_, err = io.WriteString(c, "more")
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, 4))
			require.NoError(t, err, "it is used")
			require.NoError(t, end(h))
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			_, err = io.Copy(io.Discard, c)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			_, err = io.WriteString(c, "more")
			require.Error(t, err, "nothing more reaches the app")
		})
	}
}

// TestCallersThatCannotReturnWhatTheyAreLent are app proxies of earlier versions: the bytes pass through the agent.
func TestCallersThatCannotReturnWhatTheyAreLent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.local(t)
	defer c.Close()
	q, err := http.NewRequest(http.MethodPost, "http://berth"+path, http.NoBody)
	require.NoError(t, err)
	q.Header = signed(t, granted(), signing)
	q.Header.Set("Connection", "Upgrade")
	q.Header.Set("Upgrade", tunnel.Protocol)
	q.Header.Set(tunnel.HeaderHandOver, tunnel.HandOverFD)
	require.NoError(t, q.Write(c))
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	from := bufio.NewReader(c)
	reply, err := http.ReadResponse(from, q)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, reply.StatusCode)
	text := make([]byte, len("Shello"))
	_, err = io.ReadFull(from, text)
	require.NoError(t, err)
	require.Equal(t, "Shello", string(text))
	require.NoError(t, h.grants.Set(nil, []string{circuitID}, nil))
	_, err = io.Copy(io.Discard, from)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// TestTheKernelsEndEndsWhatIsCarried: the app's side of a connection may have gone without a word.
func TestTheKernelsEndEndsWhatIsCarried(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*keeper.Kernel){
		"gone":               func(k *keeper.Kernel) { k.Exists = false },
		"another generation": func(k *keeper.Kernel) { k.Generation++ },
		"not running":        func(k *keeper.Kernel) { k.Container.Phase = runtime.PhaseExited },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			r, err := h.remote(t, h.manager.Join(t, proxy.NamePrefix+"web"))
			require.NoError(t, err)
			r, err = h.open(t, r, path)
			require.NoError(t, err)
			defer r.Close()
			_, err = io.ReadFull(r, make([]byte, 6))
			require.NoError(t, err)
			h.set(func() { change(&h.kernel) })
			require.NoError(t, r.SetDeadline(time.Now().Add(patience)))
			_, err = r.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ listen, advertise, manager, want string }{
		{"127.0.0.1:0", "", "127.0.0.1:1", "127.0.0.1:PORT"},
		{"127.0.0.1:0", "worker-1", "127.0.0.1:1", "worker-1:PORT"},
		{"127.0.0.1:0", "worker-1:6010", "127.0.0.1:1", "worker-1:6010"},
		{"127.0.0.1:0", "fd00::1", "127.0.0.1:1", "[fd00::1]:PORT"},
		{":0", "", "127.0.0.1:1", "127.0.0.1:PORT"},
		{data.Off, "worker-1", "127.0.0.1:1", ""},
		{"", "", "127.0.0.1:1", ""},
	} {
		p := data.New(data.Options{Dir: t.TempDir(), Listen: c.listen, Advertise: c.advertise, Manager: c.manager,
			Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
		svc := p.Service("agent-data")
		require.NoError(t, svc.Start(t.Context()))
		got := p.Address(t.Context())
		require.NoError(t, svc.Stop(context.Background()))
		if want, ok := strings.CutSuffix(c.want, "PORT"); ok {
			require.Regexp(t, `^\Q`+want+`\E[0-9]+$`, got)
		} else {
			require.Equal(t, c.want, got)
		}
	}
}
