package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/devicetest"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/testkit/address"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

const image = "berth/python:latest"

// manager is the manager's end of the link with a memory in place of its database.
type manager struct {
	t    testing.TB
	link *agentlink.Link
	svc  *chassis.Service
	cfg  agentlink.Config
	// tokenFile holds a join token for agent i-test.
	tokenFile string

	mu        sync.Mutex
	vault     map[string][]byte
	epoch     int64
	forced    int64 // epoch to hand out
	hello     cluster.NodeHello
	greetings int
	facts     cluster.NodeFacts
	wayless   int // facts that told no way to apps
	desired   map[cluster.KernelID]cluster.DesiredKernel
	seen      map[cluster.KernelID]cluster.KernelObservation
	missing   map[cluster.KernelID]int   // full reports in a row without it
	acked     map[cluster.KernelID]int64 // generations whose end was acknowledged
	pulls     int
	metrics   map[cluster.KernelID]map[string]float64
	hold      bool // ends are not acknowledged
	news      chan struct{}
}

func newManager(t testing.TB) *manager {
	m := &manager{t: t, vault: map[string][]byte{}, desired: map[cluster.KernelID]cluster.DesiredKernel{},
		seen: map[cluster.KernelID]cluster.KernelObservation{}, missing: map[cluster.KernelID]int{}, acked: map[cluster.KernelID]int64{},
		news: make(chan struct{})}
	m.cfg = agentlink.DefaultConfig()
	m.cfg.Listen, m.cfg.Heartbeat, m.cfg.Lease = address.Hold(t), 200*time.Millisecond, time.Minute
	m.start()
	t.Cleanup(m.stop)
	m.tokenFile = filepath.Join(t.TempDir(), "join.token")
	require.NoError(t, os.WriteFile(m.tokenFile, []byte(m.token("i-test")), 0o600))
	return m
}

func (m *manager) start() {
	var err error
	m.link, err = agentlink.New(m.cfg, agentlink.Deps{ClusterID: "c1", Sink: m, Vault: m, Live: m, Grants: m, Clock: chassis.RealClock(),
		Random: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	require.NoError(m.t, err)
	m.svc = m.link.Service("agentlink")
	require.NoError(m.t, m.svc.Start(context.Background()))
}

// token makes a join token for a common name.
func (m *manager) token(name string) string {
	m.t.Helper()
	who, err := ca.NodeOf(name)
	require.NoError(m.t, err)
	token, _, err := m.link.Authority().NewToken(context.Background(), ca.TokenRequest{Node: who, By: "a test"})
	require.NoError(m.t, err)
	return token.String()
}

func (m *manager) stop() { require.NoError(m.t, m.svc.Stop(context.Background())) }

func (m *manager) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.news)
	m.news = make(chan struct{})
}

func (m *manager) until(what string, ok func() bool) {
	m.t.Helper()
	m.untilAll(what, 1, func() int {
		if ok() {
			return 1
		}
		return 0
	})
}

// untilAll waits until a number has become n. It waits on for as long as the number grows.
func (m *manager) untilAll(what string, n int, count func() int) {
	m.t.Helper()
	const patience = 2 * time.Minute
	limit, most := time.NewTimer(patience), 0
	defer limit.Stop()
	for {
		m.mu.Lock()
		now, news := count(), m.news
		m.mu.Unlock()
		if now >= n {
			return
		}
		if now > most {
			most = now
			limit.Reset(patience)
		}
		select {
		case <-news:
		case <-limit.C:
			m.t.Fatalf("never happened: %s; seen %s", what, peek(m, func() string { return fmt.Sprintf("%+v", m.seen) }))
		}
	}
}

func (m *manager) want(list ...cluster.DesiredKernel) {
	m.mu.Lock()
	for _, d := range list {
		m.desired[d.Kernel] = d
	}
	m.mu.Unlock()
	m.link.WakeAll()
}

// phase is for conditions of until.
func (m *manager) phase(id cluster.KernelID) cluster.Phase { return m.seen[id].Phase }

// peek reads something of a manager outside of until.
func peek[T any](m *manager, get func() T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return get()
}

func (m *manager) of(id cluster.KernelID) cluster.KernelObservation {
	return peek(m, func() cluster.KernelObservation { return m.seen[id] })
}

func (m *manager) serial() string { return peek(m, func() string { return m.hello.Serial }) }

func (m *manager) told() cluster.NodeFacts {
	return peek(m, func() cluster.NodeFacts { return m.facts })
}

func (m *manager) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.vault[key], nil
}

func (m *manager) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := fn(m.vault[key])
	if err == nil && v != nil {
		m.vault[key] = v
	}
	return m.vault[key], err
}

func (m *manager) Register(_ context.Context, h cluster.NodeHello) (epoch int64, _ error) {
	m.change(func() {
		m.epoch = max(m.epoch, h.HighestEpoch) + 1
		if m.forced != 0 {
			m.epoch = m.forced
		}
		m.greetings++
		epoch, m.hello = m.epoch, h
	})
	return epoch, nil
}

func (m *manager) UpdateFacts(_ context.Context, _ cluster.AgentID, _ int64, f cluster.NodeFacts) error {
	m.change(func() {
		m.facts = f
		if f.DataSocket == "" {
			m.wayless++
		}
	})
	return nil
}

func (m *manager) Observe(
	_ context.Context, _ cluster.AgentID, _ int64, full bool, told map[cluster.KernelID]int64, list []cluster.KernelObservation,
) (acked []cluster.Tombstone, _ error) {
	m.change(func() {
		present := map[cluster.KernelID]bool{}
		for _, o := range list {
			present[o.Kernel] = true
			// The agent forgets an end that was acknowledged; a wish that crossed the acknowledgement begins it anew.
			if old := m.seen[o.Kernel]; old.Generation == o.Generation && old.Phase > o.Phase && m.acked[o.Kernel] < o.Generation {
				m.t.Errorf("kernel %s went from %v back to %v", o.Kernel, old.Phase, o.Phase)
			}
			m.seen[o.Kernel] = o
			if o.Phase == cluster.PhaseEnded && !m.hold {
				acked = append(acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
				m.acked[o.Kernel] = o.Generation
				if m.desired[o.Kernel].Generation <= o.Generation {
					delete(m.desired, o.Kernel)
				}
			}
		}
		if full {
			for id, d := range m.desired {
				if told[id] != d.Generation {
					continue
				}
				// Once may be a report that crossed the newest wish; node.Reports, too, believes only the second.
				if m.missing[id]++; present[id] {
					m.missing[id] = 0
				} else if m.missing[id] > 1 {
					m.t.Errorf("kernel %s is missing from full reports that reflect the newest desired state", id)
				}
			}
		}
	})
	return acked, nil
}

func (m *manager) Progress(context.Context, cluster.AgentID, cluster.KernelID, int64, int64, int64, string) error {
	m.change(func() { m.pulls++ })
	return nil
}

func (m *manager) Desired(context.Context, cluster.AgentID, map[cluster.KernelID]int64) (out []cluster.DesiredKernel, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.desired {
		out = append(out, d)
	}
	return out, nil
}

func (m *manager) Delivered(context.Context, []cluster.OrdersAge) error { return nil }

func (m *manager) Touch(context.Context, []cluster.AgentID) error { return nil }

func (m *manager) Disconnected(context.Context, cluster.AgentID, int64) error { return nil }

func (m *manager) Put(_ context.Context, _ cluster.AgentID, _ map[string]float64, kernels map[cluster.KernelID]map[string]float64) {
	m.change(func() { m.metrics = kernels })
}

// host is an engine and a state directory, and one agent at a time on them.
type host struct {
	t      testing.TB
	cfg    agent.Config
	engine *fake.Engine
	cores  int
	agent  *agent.Agent
	group  *chassis.Group
	log    *slog.Logger
	runner string
	times  keeper.Times
	clock  chassis.Clock
	wrap   func(runtime.Runtime) runtime.Runtime
	// drivers are those of other devices than cores and memory.
	drivers []device.Driver
}

func newHost(t testing.TB, m *manager, change ...func(*fake.Options)) *host {
	var opt fake.Options
	for _, c := range change {
		c(&opt)
	}
	h := &host{t: t, cfg: agent.DefaultConfig(), engine: fake.NewEngine(opt), cores: 8, log: slog.New(slog.DiscardHandler),
		times: keeper.Times{Sweep: 50 * time.Millisecond}}
	if testing.Verbose() {
		h.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	h.cfg.ID, h.cfg.StateDir, h.cfg.JoinTokenFile, h.cfg.Manager = "i-test", t.TempDir(), m.tokenFile, m.cfg.Listen
	h.cfg.SampleInterval, h.cfg.MinFree = 100*time.Millisecond, 0
	h.cfg.DataListen = "off"
	h.engine.AddImage(runtime.Image{References: []string{image}, Labels: map[string]string{"x": "y"}},
		map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n")})
	t.Cleanup(h.engine.Close)
	t.Cleanup(h.stop)
	return h
}

func (h *host) start() {
	h.t.Helper()
	var err error
	var rt runtime.Runtime = h.engine.Runtime(h.cfg.Scope(), cluster.AgentID(h.cfg.ID))
	if h.wrap != nil {
		rt = h.wrap(rt)
	}
	h.agent, err = agent.New(h.cfg, agent.Deps{
		Runtime: rt, RunnerPath: "/nonexistent/runner", Log: h.log, Clock: h.clock, Times: h.times,
		Drivers: append(devicetest.Host(h.cores, 4<<40), h.drivers...),
	})
	require.NoError(h.t, err)
	h.group, err = chassis.NewGroup(h.log, h.agent.Services()...)
	require.NoError(h.t, err)
	require.NoError(h.t, h.group.Start(context.Background()))
}

func (h *host) stop() {
	if h.group != nil {
		require.NoError(h.t, h.group.Stop(context.Background()))
		h.group = nil
	}
}

func kernelID(i int) cluster.KernelID {
	return cluster.KernelID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
}

func desired(i int) cluster.DesiredKernel {
	return cluster.DesiredKernel{
		Kernel: kernelID(i), Session: "11111111-0000-4000-8000-000000000000", Generation: 1,
		Spec: &cluster.KernelSpec{
			Image: image, RegistryType: "local", AutoPull: "digest", Hostname: "main1", SessionName: "sess", SessionType: cluster.Interactive,
			Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 30)}, UID: -1, GID: -1,
		},
	}
}

func stopped(i int) cluster.DesiredKernel {
	return cluster.DesiredKernel{Kernel: kernelID(i), Session: "11111111-0000-4000-8000-000000000000", Generation: 1, Stop: true,
		StopReason: cluster.ReasonUserRequested}
}

func TestJoinRunStreamsAndEnd(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.start()
	id := kernelID(1)
	m.want(desired(1))
	m.until("it runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
	facts := m.told()
	require.Equal(t, cluster.Whole(8), facts.Capacity[cluster.SlotCPU])
	require.True(t, facts.EngineOK)
	require.Equal(t, image, facts.Images[0].Reference)
	require.NoError(t, h.agent.Ready(t.Context()))
	st, err := os.Stat(filepath.Join(h.cfg.StateDir, "node", "node.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode())

	c := m.runner(id)
	hello, err := c.Hello(t.Context())
	require.NoError(t, err)
	require.Equal(t, string(id), hello.KernelID)
	res, err := c.Step(t.Context(), "r1", run.StepRequest{Mode: run.ModeQuery, Code: "print(6*7)", WaitMS: 30_000})
	require.NoError(t, err)
	require.Equal(t, "42\n", res.Console[0].Data)

	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent/kernels/"+string(id)+path, nil)
		require.NoError(t, err)
		resp, err := to{m}.RoundTrip(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b)
	}
	code, text := get("/logs")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "runner started")
	code, text = get("/stats")
	require.Equal(t, http.StatusOK, code, text)
	require.Contains(t, text, node.MetricMem)
	m.until("metrics arrive", func() bool { return m.metrics[id][node.MetricMem] > 0 })

	body, _ := json.Marshal(node.CommitRequest{Reference: "me/mine:1"})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/kernels/"+string(id)+"/commit", bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := to{m}.RoundTrip(req)
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, string(b), `"reference":"me/mine:1"`)
	m.until("the new image is reported", func() bool { return len(m.facts.Images) == 2 })

	found, err := agent.Findings(t.Context(), h.cfg, nil)
	require.NoError(t, err)
	require.Empty(t, found)

	m.want(stopped(1))
	m.until("it ends", func() bool { return m.phase(id) == cluster.PhaseEnded })
	require.Contains(t, m.of(id).LogTail, "runner started")
	require.Eventually(t, func() bool {
		_, err := m.runner(id).Hello(t.Context())
		return fault.Is(err, fault.NotFound)
	}, time.Minute, 5*time.Millisecond)
	found, err = h.agent.Findings(t.Context())
	require.NoError(t, err)
	require.Empty(t, slicesWithout(found, "deletion"))
}

func slicesWithout(found []agent.Finding, kind string) (out []agent.Finding) {
	for _, f := range found {
		if f.Kind != kind {
			out = append(out, f)
		}
	}
	return out
}

func TestManagerAndAgentRestart(t *testing.T) {
	t.Parallel()
	const n = 8
	m := newManager(t)
	// The batch's sleep is over when the test says so: while the agent is away.
	wake := make(chan func(), n)
	h := newHost(t, m, func(o *fake.Options) {
		o.After = func(d time.Duration, f func()) (stop func() bool) {
			if d == time.Hour {
				wake <- f
				return func() bool { return true }
			}
			return time.AfterFunc(d, f).Stop
		}
	})
	h.start()
	for i := range n {
		d := desired(i)
		if i == 7 {
			d.Spec.SessionType, d.Spec.StartupCommand = cluster.Batch, "sleep 3600; exit 3"
		}
		m.want(d)
	}
	m.until("all run", func() bool {
		for i := range n {
			if m.phase(kernelID(i)) < cluster.PhaseRunning {
				return false
			}
		}
		return true
	})
	h.stop()
	m.stop()
	require.Equal(t, n, h.engine.Count(), "an agent's end touches no container")
	require.NoError(t, h.engine.Exit(kernelID(0), 9))
	await.Value(t, wake)()
	require.FileExists(t, filepath.Join(h.cfg.StateDir, "kernels", string(kernelID(7)), "private", "result.json"))
	h.start()
	m.start()
	m.until("ends of the time in between", func() bool {
		return m.phase(kernelID(0)) == cluster.PhaseEnded && m.phase(kernelID(7)) == cluster.PhaseEnded
	})
	killed, finished := m.of(kernelID(0)), m.of(kernelID(7))
	require.Equal(t, 9, *killed.ExitCode)
	require.Equal(t, cluster.ReasonSelfTerminated, killed.Reason)
	require.Equal(t, 3, *finished.ExitCode)
	require.Equal(t, cluster.ReasonTaskFailed, finished.Reason)
	for i := range n {
		require.Equal(t, 1, h.engine.Starts(h.cfg.Scope(), "i-test", kernelID(i)), "nothing runs twice")
	}
	for i := 1; i < 7; i++ {
		_, err := m.runner(kernelID(i)).Hello(t.Context())
		require.NoError(t, err)
		m.want(stopped(i))
	}
	m.until("all end", func() bool {
		for i := range n {
			if m.phase(kernelID(i)) != cluster.PhaseEnded {
				return false
			}
		}
		return true
	})
	require.Zero(t, h.engine.Count())
}

func TestStaleManagerIsRefused(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	m.forced = 5
	h := newHost(t, m)
	h.start()
	m.want(desired(1))
	m.until("it runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
	m.stop()
	greeted := 0
	m.change(func() { m.forced, greeted = 3, m.greetings })
	m.want(desired(2), stopped(1))
	m.start()
	m.until("the agent came and went", func() bool { return m.greetings >= greeted+3 })
	require.Equal(t, 1, h.engine.Count(), "a manager of an older epoch is not obeyed")
	require.Error(t, h.agent.Ready(t.Context()))
	m.change(func() { m.forced = 6 })
	m.until("the new one is", func() bool {
		return m.phase(kernelID(1)) == cluster.PhaseEnded && m.phase(kernelID(2)) == cluster.PhaseRunning
	})
}

func TestNodeCertificate(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	good := h.cfg.JoinTokenFile
	h.cfg.JoinTokenFile = filepath.Join(t.TempDir(), "later")
	h.start()
	require.Error(t, h.agent.Ready(t.Context()))
	// The token comes after the agent.
	text, err := os.ReadFile(good)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.cfg.JoinTokenFile, text, 0o600))
	m.until("it joins", func() bool { return m.greetings > 0 })
	serial := m.serial()
	h.stop()

	// With its certificate the agent needs no token any more.
	require.NoError(t, os.Remove(h.cfg.JoinTokenFile))
	n := peek(m, func() int { return m.greetings })
	h.start()
	m.until("it comes again", func() bool { return m.greetings > n })
	require.Equal(t, serial, m.serial())
	h.stop()

	// A damaged certificate is replaced by joining again, by the key.
	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "node", "node.crt"), []byte("x"), 0o600))
	n = peek(m, func() int { return m.greetings })
	h.start()
	m.until("it joins again", func() bool { return m.greetings > n })
	require.NotEqual(t, serial, m.serial())
}

// ahead is a clock that is fast by some days.
type ahead struct {
	chassis.Clock
	by time.Duration
}

func (a ahead) Now() time.Time { return a.Clock.Now().Add(a.by) }

func TestCertificateIsRenewedWithoutToken(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.start()
	m.until("it joins", func() bool { return m.greetings > 0 })
	serial := m.serial()
	h.stop()
	h.cfg.JoinTokenFile = ""
	h.clock = ahead{chassis.RealClock(), 275 * 24 * time.Hour}
	h.start()
	m.until("it comes with a new certificate", func() bool { return m.hello.Serial != serial })
}

func TestMoveToANewCluster(t *testing.T) {
	t.Parallel()
	first, second := newManager(t), newManager(t)
	h := newHost(t, first)
	h.start()
	first.want(desired(1))
	first.until("it runs", func() bool { return first.phase(kernelID(1)) == cluster.PhaseRunning })
	h.stop()
	h.cfg.Manager, h.cfg.JoinTokenFile = second.cfg.Listen, second.tokenFile
	h.start()
	second.until("the kernel of the other cluster ends", func() bool { return second.phase(kernelID(1)) == cluster.PhaseEnded })
	require.Zero(t, h.engine.Count())
}

// TestStreams checks that bytes flow both ways at once and that ends are seen on the other side.
func TestStreams(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	echo := echoRunner{}
	h.wrap = func(rt runtime.Runtime) runtime.Runtime { return dialed{rt, &echo} }
	echo.start(t)
	h.start()
	m.want(desired(1))
	m.until("it runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
	path := "/kernels/" + string(kernelID(1)) + "/runner/echo?x=%2F"
	for range 3 {
		s, err := m.upgrade(t.Context(), path, http.Header{"Authorization": {"Bearer mine"}, "X-Mine": {"kept"}})
		require.NoError(t, err)
		for _, word := range []string{"one", "two", strings.Repeat("x", 100_000)} {
			_, err := s.Write([]byte(word))
			require.NoError(t, err)
			got := make([]byte, len(word))
			_, err = io.ReadFull(s, got)
			require.NoError(t, err)
			require.Equal(t, word, string(got))
		}
		require.NoError(t, s.Close())
	}
	require.Eventually(t, func() bool { return echo.ended.Load() == 3 }, time.Minute, 5*time.Millisecond,
		"the runner sees that the callers left")
	require.Equal(t, "/echo?x=%2F", echo.uri.Load())
	require.Equal(t, "kept", echo.mine.Load())
	require.NotEqual(t, "Bearer mine", echo.auth.Load(), "the agent adds the token, whatever the caller says")

	code := func(method, path string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, nil)
		require.NoError(t, err)
		resp, err := to{m}.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusNotFound, code("GET", "/kernels/"+string(kernelID(9))+"/runner/v1/hello"))
	require.Equal(t, http.StatusNotFound, code("GET", "/kernels/..%2f..%2fetc/runner/v1/hello"))
	require.Equal(t, http.StatusBadRequest, code("GET", "/kernels/"+string(kernelID(1))+"/logs?tail=-1"))
	require.Equal(t, http.StatusBadRequest, code("POST", "/kernels/"+string(kernelID(1))+"/commit"))
	require.Equal(t, http.StatusOK, code("GET", "/healthz"))

	// A log that is followed ends when the caller leaves and when the container does.
	ctx, leave := context.WithCancel(t.Context())
	follow := func(ctx context.Context) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/kernels/"+string(kernelID(1))+"/logs?follow=true", nil)
		require.NoError(t, err)
		resp, err := to{m}.RoundTrip(req)
		require.NoError(t, err)
		return resp
	}
	left, stays := follow(ctx), follow(t.Context())
	leave()
	_, err := io.ReadAll(left.Body)
	require.Error(t, err)
	_ = left.Body.Close()
	h.engine.Print(kernelID(1), "a late line\n")
	require.NoError(t, h.engine.Exit(kernelID(1), 0))
	all, err := io.ReadAll(stays.Body)
	require.NoError(t, err)
	require.NoError(t, stays.Body.Close())
	require.Contains(t, string(all), "a late line")
}

// echoRunner stands for the runner of a kernel.
type echoRunner struct {
	addr            string
	ended           atomic.Int64
	uri, mine, auth atomic.Value
}

func (e *echoRunner) start(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc(run.PathHello, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		e.uri.Store(r.RequestURI)
		e.mine.Store(r.Header.Get("X-Mine"))
		e.auth.Store(r.Header.Get("Authorization"))
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = rc.Flush()
		b := make([]byte, 4096)
		for {
			n, err := r.Body.Read(b)
			_, _ = w.Write(b[:n])
			_ = rc.Flush()
			if err != nil {
				e.ended.Add(1)
				return
			}
		}
	})
	e.addr = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", e.addr)
	require.NoError(t, err)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = srv.Close() })
}

// dialed is a runtime whose runners are all one.
type dialed struct {
	runtime.Runtime
	echo *echoRunner
}

func (d dialed) DialRunner(ctx context.Context, _ cluster.KernelID) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", d.echo.addr)
}

func TestEndsWithStrangeLogs(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.start()
	m.change(func() { m.hold = true })
	for i := range 8 {
		m.want(desired(i))
	}
	m.until("all run", func() bool {
		for i := range 8 {
			if m.phase(kernelID(i)) < cluster.PhaseRunning {
				return false
			}
		}
		return true
	})
	for i := range 8 {
		h.engine.Print(kernelID(i), "\xff\xfe"+strings.Repeat("x", 200<<10))
		m.want(stopped(i))
	}
	ended := func() bool {
		for i := range 8 {
			if o := m.seen[kernelID(i)]; o.Phase != cluster.PhaseEnded || len(o.LogTail) < 100<<10 {
				return false
			}
		}
		return true
	}
	m.until("all end", ended)
	// Not acknowledged: after a restart the ends are told again, logs and all.
	h.stop()
	m.change(func() { clear(m.seen); m.hold = false })
	h.start()
	m.until("all ends are told again", ended)
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(filepath.Join(h.cfg.StateDir, "logs"))
		return err == nil && len(entries) == 0
	}, time.Minute, 5*time.Millisecond)
}

func TestSecondAgentOnOneState(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.start()
	_, err := agent.New(h.cfg, agent.Deps{Runtime: h.engine.Runtime("x", "y"), RunnerPath: "/x", Log: h.log})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// TestTwoHundred brings 200 kernels up and down.
func TestTwoHundred(t *testing.T) {
	m := newManager(t)
	h := newHost(t, m)
	h.cores = 200
	h.start()
	began := time.Now()
	var list, ends []cluster.DesiredKernel
	for i := range 200 {
		list, ends = append(list, desired(i)), append(ends, stopped(i))
	}
	in := func(p cluster.Phase) func() int {
		return func() (n int) {
			for i := range 200 {
				if m.phase(kernelID(i)) == p {
					n++
				}
			}
			return n
		}
	}
	m.want(list...)
	m.untilAll("all run", 200, in(cluster.PhaseRunning))
	up := time.Since(began)
	m.want(ends...)
	m.untilAll("all end", 200, in(cluster.PhaseEnded))
	t.Logf("200 kernels: up in %s, gone in %s", up, time.Since(began)-up)
	require.Zero(t, h.engine.Count())
}
