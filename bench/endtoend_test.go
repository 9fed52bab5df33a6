package bench_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device/devicetest"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/link/ca"
)

// BenchmarkEndToEnd takes short batch sessions from a signed POST /session to SUCCESS. The manager, all agents and the
// clients are three processes, PostgreSQL is the one of `berth up` with its durability, so that the CPU time of each can
// be told apart; Slurm runs beside it as the peer. Every acknowledged session is on disk before its answer. It prints sessions/s
// over the whole, and CPU per session.
//
//	BERTH_BENCH_SESSIONS    how many (8000); BERTH_BENCH_CLIENTS at a time (64); BERTH_BENCH_AGENTS (4)
//	BERTH_BENCH_STATEMENTS  counts statements with pg_stat_statements and prints the dearest; that costs some CPU itself
//	BERTH_BENCH_SLURM_JOBS  how many jobs the peer gets (2000); see slurm.sh
//	BERTH_BENCH_PROFILE     a directory for CPU profiles of the manager and the agents
func BenchmarkEndToEnd(b *testing.B) {
	sessions, clients, agents := setting("SESSIONS", 8000), setting("CLIENTS", 64), setting("AGENTS", 4)
	c := newController(b, agents)
	c.run(b, "warm", 1000, clients)
	var rate, perCPU float64
	for i := 0; b.Loop(); i++ {
		before := c.usage(b)
		took := c.run(b, fmt.Sprintf("run%d", i), sessions, clients)
		after := c.usage(b)
		n := float64(sessions)
		per := func(d time.Duration) float64 { return ms(d) / n }
		m, pg := after.manager-before.manager, after.postgres-before.postgres
		rate, perCPU = n/took.Seconds(), n/(m+pg).Seconds()
		b.ReportMetric(rate, "sessions/s")
		b.ReportMetric(per(m), "manager-cpu-ms/session")
		b.ReportMetric(per(pg), "postgres-cpu-ms/session")
		b.ReportMetric(perCPU, "sessions/controller-cpu-s")
		b.ReportMetric(per(after.agents-before.agents), "agents-cpu-ms/session")
		b.ReportMetric(per(after.clients-before.clients), "clients-cpu-ms/session")
		b.ReportMetric(float64(after.commits-before.commits)/n, "tx/session")
		b.ReportMetric(float64(after.wal-before.wal)/n/1024, "wal-KiB/session")
		if c.counting {
			b.ReportMetric(float64(after.statements-before.statements)/n, "statements/session")
			c.dearest(b)
		}
	}
	if peer := slurm(b); peer != nil {
		b.ReportMetric(peer["jobs-per-second"], "slurm-jobs/s")
		b.ReportMetric(peer["jobs-per-controller-cpu-second"], "slurm-jobs/controller-cpu-s")
		b.ReportMetric(rate/peer["jobs-per-second"], "of-slurm")
		b.ReportMetric(perCPU/peer["jobs-per-controller-cpu-second"], "of-slurm/cpu")
	}
}

// slurm runs the peer in the same circumstances: Slurm launches processes, which its controller's CPU time leaves out. Nil
// where it is not installed.
func slurm(b *testing.B) map[string]float64 {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), "./slurm.sh", strconv.Itoa(setting("SLURM_JOBS", 2000))).Output()
	if e, ok := err.(*exec.ExitError); ok {
		b.Logf("no peer: %s", strings.TrimSpace(string(e.Stderr)))
		return nil
	}
	require.NoError(b, err)
	said := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if said[name], err = strconv.ParseFloat(value, 64); err != nil {
			b.Fatalf("slurm.sh said %q", line)
		}
	}
	return said
}

func setting(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv("BERTH_BENCH_" + name)); err == nil {
		return n
	}
	return def
}

// controller is a manager with its PostgreSQL and simulated agents, each in a process of its own.
type controller struct {
	pg       *embedded.Postgres
	db       *pgx.Conn
	manager  *role
	agents   *role
	counting bool
	api      *api.Client
}

// role is this test binary running as a part of the cluster; see TestRole.
type role struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  map[string]string
}

func newController(b *testing.B, agents int) *controller {
	b.Helper()
	dir, err := os.MkdirTemp("", "berth-bench-")
	require.NoError(b, err)
	require.NoError(b, os.Chmod(dir, 0o755))
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &controller{counting: os.Getenv("BERTH_BENCH_STATEMENTS") != ""}
	c.pg = embedded.NewPostgres(embedded.PostgresConfig{StateDir: dir}, slog.New(slog.DiscardHandler))
	require.NoError(b, c.pg.Service().Start(b.Context()))
	b.Cleanup(func() { _ = c.pg.Service().Stop(context.Background()) })
	c.connect(b)
	if c.counting {
		_, err := c.db.Exec(b.Context(), `ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'`)
		require.NoError(b, err)
		require.NoError(b, c.pg.Service().Stop(b.Context()))
		c.pg = embedded.NewPostgres(embedded.PostgresConfig{StateDir: dir}, slog.New(slog.DiscardHandler))
		require.NoError(b, c.pg.Service().Start(b.Context()))
		c.connect(b)
		_, err = c.db.Exec(b.Context(), `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
		require.NoError(b, err)
	}
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var on string
		require.NoError(b, c.db.QueryRow(b.Context(), "SHOW "+name).Scan(&on))
		require.Equal(b, "on", on, "%s: what is acknowledged must be durable", name)
	}
	c.manager = newRole(b, "manager", "DIR="+filepath.Join(dir, "manager"), "DSN="+c.pg.DSN(), "AGENTS="+strconv.Itoa(agents))
	// What agents keep on their own disks is not the controller's; here all of them share one machine, so it goes to memory.
	memory, err := os.MkdirTemp("/dev/shm", "berth-bench-")
	if err != nil {
		memory = b.TempDir()
	}
	b.Cleanup(func() { _ = os.RemoveAll(memory) })
	c.agents = newRole(b, "agents", "DIR="+memory, "MANAGER="+c.manager.said["agents"], "TOKENS="+c.manager.said["tokens"],
		"AGENTS="+strconv.Itoa(agents))
	c.api, err = api.New(api.Config{Endpoint: "http://" + c.manager.said["api"], AccessKey: c.manager.said["access"],
		SecretKey: api.Secret(c.manager.said["secret"])})
	require.NoError(b, err)
	// As an administrator would for somebody who submits in bulk.
	_, err = c.db.Exec(b.Context(), `UPDATE keypair_resource_policies SET max_concurrent_sessions = 1000000; `+
		`UPDATE keypairs SET rate_limit = 100000000`)
	require.NoError(b, err)
	c.until(b, agents, `SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]'`)
	return c
}

func (c *controller) connect(b *testing.B) {
	b.Helper()
	var err error
	c.db, err = pgx.Connect(b.Context(), c.pg.DSN())
	require.NoError(b, err)
	db := c.db
	b.Cleanup(func() { _ = db.Close(context.Background()) })
}

// until looks every few milliseconds; the statement must be cheap.
func (c *controller) until(b *testing.B, want int, count string) {
	b.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		n := -1
		require.NoError(b, c.db.QueryRow(b.Context(), count).Scan(&n))
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s is %d, not %d", count, n, want)
		}
		<-tick.C
	}
}

// run submits n sessions from several clients at a time and waits until all have ended well.
func (c *controller) run(b *testing.B, prefix string, n, clients int) time.Duration {
	b.Helper()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				_, err := c.api.CreateSession(b.Context(), api.CreateSession{
					Name: fmt.Sprintf("%s-%06d", prefix, i), Image: benchImage, Type: "batch", StartupCommand: "exit 0", EnqueueOnly: true,
					Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "128m"}},
				})
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	submitted := time.Since(began)
	c.until(b, 0, `SELECT count(*) FROM sessions WHERE ended_at IS NULL`)
	took := time.Since(began)
	if testing.Verbose() {
		c.timeline(b, prefix)
	}
	var good, started int
	require.NoError(b, c.db.QueryRow(b.Context(),
		`SELECT count(*) FILTER (WHERE result = 'SUCCESS' AND status = 'TERMINATED'), count(*) FILTER (WHERE started_at IS NOT NULL)
		FROM sessions WHERE name LIKE $1`, prefix+"-%").Scan(&good, &started))
	require.Equal(b, n, good, "all end with SUCCESS")
	require.Equal(b, n, started, "all are known to have run")
	b.Logf("%s: %d sessions acknowledged after %s, ended after %s", prefix, n, submitted.Round(time.Millisecond), took.Round(time.Millisecond))
	return took
}

// timeline prints when the moves happened, in seconds since the first session was created.
func (c *controller) timeline(b *testing.B, prefix string) {
	b.Helper()
	rows, err := c.db.Query(b.Context(), `
		SELECT CASE WHEN e.kernel_id IS NULL THEN 'session' ELSE 'kernel' END || ' ' || e.from_status || '->' ||
			e.to_status || ' ' || e.reason AS move, count(*),
			percentile_cont(ARRAY[0, 0.1, 0.5, 0.9, 1]) WITHIN GROUP (ORDER BY
				extract(epoch FROM e.at - (SELECT min(created_at) FROM sessions WHERE name LIKE $1)))::text
		FROM session_events e JOIN sessions s ON s.id = e.session_id WHERE s.name LIKE $1 GROUP BY 1 ORDER BY min(e.seq)`, prefix+"-%")
	require.NoError(b, err)
	defer rows.Close()
	for rows.Next() {
		var move, at string
		var n int64
		require.NoError(b, rows.Scan(&move, &n, &at))
		fmt.Printf("%6d %-50s %s\n", n, move, at)
	}
}

// spent is CPU time by process, and what PostgreSQL counted.
type spent struct {
	manager, postgres, agents, clients time.Duration
	commits, statements, wal           int64
}

func (c *controller) usage(b *testing.B) (s spent) {
	b.Helper()
	s.manager, s.agents, s.clients = cpuOf(c.manager.cmd.Process.Pid, false), cpuOf(c.agents.cmd.Process.Pid, false), usage()
	s.postgres = cpuOf(c.pg.Pid(), true)
	for _, pid := range childrenOf(c.pg.Pid()) {
		s.postgres += cpuOf(pid, false)
	}
	_, err := c.db.Exec(b.Context(), `SELECT pg_stat_force_next_flush()`)
	require.NoError(b, err)
	require.NoError(b, c.db.QueryRow(b.Context(),
		`SELECT xact_commit, (pg_current_wal_insert_lsn() - '0/0')::bigint FROM pg_stat_database WHERE datname = current_database()`).
		Scan(&s.commits, &s.wal))
	if c.counting {
		require.NoError(b, c.db.QueryRow(b.Context(), `SELECT sum(calls)::bigint FROM pg_stat_statements`).Scan(&s.statements))
	}
	return s
}

// dearest prints the statements that cost most.
func (c *controller) dearest(b *testing.B) {
	b.Helper()
	rows, err := c.db.Query(b.Context(), `
		SELECT calls, round(total_exec_time)::bigint, round((total_exec_time / calls)::numeric, 3)::text, rows,
			left(regexp_replace(query, '\s+', ' ', 'g'), 90)
		FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 25`)
	require.NoError(b, err)
	defer rows.Close()
	for rows.Next() {
		var calls, total, n int64
		var mean, text string
		require.NoError(b, rows.Scan(&calls, &total, &mean, &n, &text))
		fmt.Printf("%8d calls %7d ms %8s ms/call %8d rows  %s\n", calls, total, mean, n, text)
	}
}

const ticksPerSecond = 100 // USER_HZ of Linux

// cpuOf is the CPU time of a process, with that of its ended children when asked for.
func cpuOf(pid int, children bool) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest) // f[0] is the third field of proc(5)
	last := 13
	if children {
		last = 15
	}
	var ticks int64
	for _, v := range f[11:last] {
		n, _ := strconv.ParseInt(v, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

func childrenOf(pid int) []int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var out []int
	for _, f := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(f); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func newRole(b *testing.B, name string, env ...string) *role {
	b.Helper()
	self, err := os.Executable()
	require.NoError(b, err)
	r := &role{cmd: exec.Command(self, "-test.run", "^TestRole$", "-test.v"), said: map[string]string{}}
	r.cmd.Env = append(os.Environ(), "BERTH_ROLE="+name)
	for _, e := range env {
		r.cmd.Env = append(r.cmd.Env, "BERTH_ROLE_"+e)
	}
	r.cmd.Stderr = os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.stdin, err = r.cmd.StdinPipe()
	require.NoError(b, err)
	out, err := r.cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, r.cmd.Start())
	said := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "READY "); ok {
				_ = json.Unmarshal([]byte(text), &r.said)
				close(said)
			} else if testing.Verbose() {
				fmt.Println(name+":", lines.Text())
			}
		}
	}()
	b.Cleanup(func() {
		_ = r.stdin.Close()
		<-ended
		_ = r.cmd.Wait()
	})
	select {
	case <-said:
	case <-ended:
		b.Fatalf("%s did not start", name)
	}
	return r
}

// TestRole is a part of a benchmark in a process of its own; it ends with its standard input.
func TestRole(t *testing.T) {
	said := map[string]string{}
	switch os.Getenv("BERTH_ROLE") {
	case "manager":
		runManager(t, said)
	case "agents":
		runAgents(t)
	case "transfers":
		runTransfers(t, said)
	case "storage":
		runStorage(t, said)
	case "proxy":
		runProxy(t, said)
	case "echo":
		runEcho(t, said)
	case "reverse":
		runReverse(t, said)
	default:
		t.Skip("a part of a benchmark")
	}
	if dir := os.Getenv("BERTH_BENCH_PROFILE"); dir != "" {
		f, err := os.Create(filepath.Join(dir, os.Getenv("BERTH_ROLE")+".pprof"))
		require.NoError(t, err)
		require.NoError(t, pprof.StartCPUProfile(f))
		t.Cleanup(func() { pprof.StopCPUProfile(); _ = f.Close() })
	}
	text, err := json.Marshal(said)
	require.NoError(t, err)
	fmt.Printf("\nREADY %s\n", text)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("role", os.Getenv("BERTH_ROLE"))
}

func runManager(t *testing.T, said map[string]string) {
	cfg := manager.DefaultConfig()
	cfg.ID, cfg.Listen, cfg.Agents.Listen = "bench", "127.0.0.1:0", "127.0.0.1:0"
	cfg.StateDir = os.Getenv("BERTH_ROLE_DIR")
	cfg.Postgres.DSN = chassis.NewSecret(os.Getenv("BERTH_ROLE_DSN"))
	m, err := manager.New(t.Context(), cfg, manager.Deps{Random: rand.Reader, Build: chassis.Build(), Log: quiet()})
	require.NoError(t, err)
	start(t, m.Services()...)
	cred, _ := m.Admin()
	said["api"], said["agents"] = m.APIAddr(), m.AgentAddr()
	count, err := strconv.Atoi(os.Getenv("BERTH_ROLE_AGENTS"))
	require.NoError(t, err)
	var tokens []string
	for i := range count {
		token, _, err := m.Authority().NewToken(t.Context(), ca.TokenRequest{Node: ca.Node{Role: ca.RoleAgent, Name: agentID(i)}})
		require.NoError(t, err)
		tokens = append(tokens, token.String())
	}
	said["tokens"] = strings.Join(tokens, " ")
	said["access"], said["secret"] = string(cred.AccessKey), cred.SecretKey.Reveal()
}

const (
	benchImage = "berth/python:latest"
	benchCores = 128 // per agent
)

func agentID(i int) string { return fmt.Sprintf("i-%02d", i) }

func runAgents(t *testing.T) {
	tokens := strings.Fields(os.Getenv("BERTH_ROLE_TOKENS"))
	count, err := strconv.Atoi(os.Getenv("BERTH_ROLE_AGENTS"))
	require.NoError(t, err)
	for i := range count {
		engine := fake.NewEngine(fake.Options{})
		t.Cleanup(engine.Close)
		engine.AddImage(runtime.Image{References: []string{benchImage}, Architecture: "x86_64", Labels: map[string]string{}},
			map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n"), "/etc/group": []byte("root:x:0:\n")})
		cfg := agent.DefaultConfig()
		cfg.ID, cfg.Manager, cfg.JoinToken = agentID(i), os.Getenv("BERTH_ROLE_MANAGER"), chassis.NewSecret(tokens[i])
		cfg.StateDir, cfg.MinFree = filepath.Join(os.Getenv("BERTH_ROLE_DIR"), cfg.ID), 0
		a, err := agent.New(cfg, agent.Deps{
			Runtime: engine.Runtime(cfg.Scope(), cluster.AgentID(cfg.ID)), RunnerPath: "/nonexistent/runner", Log: quiet(),
			Drivers: devicetest.Host(benchCores, 512<<30),
		})
		require.NoError(t, err)
		start(t, a.Services()...)
	}
}

func start(t *testing.T, services ...*chassis.Service) {
	group, err := chassis.NewGroup(slog.New(slog.DiscardHandler), services...)
	require.NoError(t, err)
	require.NoError(t, group.Start(context.Background()))
	t.Cleanup(func() { _ = group.Stop(context.Background()) })
}
