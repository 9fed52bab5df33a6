package bench_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	agentruntime "berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager"
	catalogue "berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
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
	dir      string
	manager  *role
	agents   *role
	nodes    *role // simulated agents; nil without
	grown    int   // how many of them there are
	counting bool
	api      *api.Client
}

// role is this test binary running as a part of the cluster; see TestRole.
type role struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	said    map[string]string
	answers chan string
	ended   chan struct{}
}

// newController starts a manager and real agents over engines in memory.
func newController(b *testing.B, agents int) *controller {
	b.Helper()
	c := newManager(b)
	c.agents = c.newAgents(b, "agents")
	var tokens []string
	c.manager.ask(b, &tokens, "tokens", 0, agents)
	c.agents.ask(b, nil, append([]any{"add", 0}, anys(tokens)...)...)
	c.until(b, agents, `SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]'`)
	c.importImages(b)
	return c
}

// newManager starts a manager that has no agents.
func newManager(b *testing.B) *controller {
	b.Helper()
	dir, err := os.MkdirTemp("", "berth-bench-")
	require.NoError(b, err)
	require.NoError(b, os.Chmod(dir, 0o755))
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &controller{dir: dir, counting: os.Getenv("BERTH_BENCH_STATEMENTS") != ""}
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
	c.manager = newRole(b, "manager", "DIR="+filepath.Join(dir, "manager"), "DSN="+c.pg.DSN())
	c.api, err = api.New(api.Config{Endpoint: "http://" + c.manager.said["api"], AccessKey: c.manager.said["access"],
		SecretKey: api.Secret(c.manager.said["secret"])})
	require.NoError(b, err)
	// As an administrator would for somebody who submits in bulk.
	_, err = c.db.Exec(b.Context(), `UPDATE keypair_resource_policies SET max_concurrent_sessions = 1000000; `+
		`UPDATE keypairs SET rate_limit = 100000000`)
	require.NoError(b, err)
	return c
}

// newAgents starts a process for agents.
func (c *controller) newAgents(b *testing.B, name string) *role {
	b.Helper()
	// What agents keep on their own disks is not the controller's; here all of them share one machine, so it goes to memory.
	memory, err := os.MkdirTemp("/dev/shm", "berth-bench-")
	if err != nil {
		memory = b.TempDir()
	}
	b.Cleanup(func() { _ = os.RemoveAll(memory) })
	return newRole(b, name, "DIR="+memory, "MANAGER="+c.manager.said["agents"])
}

// importImages takes the images that agents report into the catalogue.
func (c *controller) importImages(b *testing.B) {
	b.Helper()
	var reference, digest string
	c.until(b, 1, `SELECT count(DISTINCT digest) FROM agent_images`)
	require.NoError(b, c.db.QueryRow(b.Context(), `SELECT reference, digest FROM agent_images LIMIT 1`).Scan(&reference, &digest))
	c.manager.ask(b, nil, "import", reference, digest)
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

// run submits n sessions from several clients at a time, waits until all have ended and sees that they ended well.
func (c *controller) run(b *testing.B, prefix string, n, clients int) time.Duration {
	b.Helper()
	took := c.pass(b, prefix, n, clients)
	c.verify(b, prefix, n)
	return took
}

// pass submits n sessions from several clients at a time and waits until all have ended.
func (c *controller) pass(b *testing.B, prefix string, n, clients int) time.Duration {
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
	b.Logf("%s: %d sessions acknowledged after %s, ended after %s", prefix, n, submitted.Round(time.Millisecond), took.Round(time.Millisecond))
	return took
}

// verify sees that the sessions of a run ended well.
func (c *controller) verify(b *testing.B, prefix string, n int) {
	b.Helper()
	if testing.Verbose() {
		c.timeline(b, prefix)
	}
	var good, started int
	require.NoError(b, c.db.QueryRow(b.Context(),
		`SELECT count(*) FILTER (WHERE result = 'SUCCESS' AND status = 'TERMINATED'), count(*) FILTER (WHERE started_at IS NOT NULL)
		FROM sessions WHERE name LIKE $1`, prefix+"-%").Scan(&good, &started))
	require.Equal(b, n, good, "all end with SUCCESS")
	require.Equal(b, n, started, "all are known to have run")
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
	s.manager, s.clients = cpuOf(c.manager.cmd.Process.Pid, false), usage()
	for _, r := range []*role{c.agents, c.nodes} {
		if r != nil {
			s.agents += cpuOf(r.cmd.Process.Pid, false)
		}
	}
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
	r := &role{cmd: exec.Command(self, "-test.run", "^TestRole$", "-test.v", "-test.timeout", "0"), said: map[string]string{},
		answers: make(chan string, 1), ended: make(chan struct{})}
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
	go func() {
		defer close(r.ended)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "READY "); ok {
				_ = json.Unmarshal([]byte(text), &r.said)
				close(said)
			} else if text, ok := strings.CutPrefix(lines.Text(), "ANSWER "); ok {
				r.answers <- text
			} else if testing.Verbose() {
				fmt.Println(name+":", lines.Text())
			}
		}
	}()
	b.Cleanup(func() {
		_ = r.stdin.Close()
		<-r.ended
		_ = r.cmd.Wait()
	})
	select {
	case <-said:
	case <-r.ended:
		b.Fatalf("%s did not start", name)
	}
	return r
}

// maxLine bounds what a part of a benchmark is asked and answers.
const maxLine = 1 << 20

// reply is what a part of a benchmark answers.
type reply struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// ask has a part of the benchmark do something, and decodes its answer unless answer is nil. Words have no spaces.
func (r *role) ask(b *testing.B, answer any, words ...any) {
	b.Helper()
	_, err := fmt.Fprintln(r.stdin, words...)
	require.NoError(b, err)
	select {
	case text := <-r.answers:
		var said reply
		require.NoError(b, json.Unmarshal([]byte(text), &said))
		require.Empty(b, said.Error, "%v", words[0])
		if answer != nil {
			require.NoError(b, json.Unmarshal(said.Value, answer))
		}
	case <-r.ended:
		b.Fatal("a part of the benchmark has ended")
	}
}

// TestRole is a part of a benchmark in a process of its own; it does what its standard input asks and ends with that.
func TestRole(t *testing.T) {
	said := map[string]string{}
	var asked map[string]func([]string) (any, error)
	if os.Getenv("BERTH_BENCH_PROFILE") != "" {
		runtime.MemProfileRate = 1024
	}
	switch os.Getenv("BERTH_ROLE") {
	case "manager":
		asked = runManager(t, said)
	case "agents":
		asked = runAgents(t)
	case "nodes":
		asked = runNodes(t)
	case "logins":
		asked = runLogins(t)
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
		_, err := profile([]string{filepath.Join(dir, os.Getenv("BERTH_ROLE")+".pprof")})
		require.NoError(t, err)
		t.Cleanup(pprof.StopCPUProfile)
	}
	text, err := json.Marshal(said)
	require.NoError(t, err)
	fmt.Printf("\nREADY %s\n", text)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		fmt.Printf("\nANSWER %s\n", answerOf(words, asked))
	}
}

func answerOf(words []string, asked map[string]func([]string) (any, error)) []byte {
	var said reply
	value, err := any(nil), errors.New("nobody knows what to do")
	if len(words) > 0 && words[0] == "memory" {
		value, err = memory(words[1:])
	} else if len(words) > 0 && words[0] == "profile" {
		value, err = profile(words[1:])
	} else if len(words) > 0 && asked[words[0]] != nil {
		value, err = asked[words[0]](words[1:])
	}
	if err != nil {
		said.Error = err.Error()
	} else {
		said.Value, err = json.Marshal(value)
	}
	text, merr := json.Marshal(said)
	if err := errors.Join(err, merr); err != nil && said.Error == "" {
		return []byte(`{"error":"the answer cannot be written"}`)
	}
	return text
}

// profile writes the profile of CPU from now on to a file of that name. What was begun before ends.
func profile(args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("a profile needs the name of its file")
	}
	pprof.StopCPUProfile()
	f, err := os.Create(args[0])
	if err != nil {
		return nil, err
	}
	return nil, pprof.StartCPUProfile(f)
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("role", os.Getenv("BERTH_ROLE"))
}

func runManager(t *testing.T, said map[string]string) map[string]func([]string) (any, error) {
	cfg := manager.DefaultConfig()
	cfg.ID, cfg.Listen, cfg.Agents.Listen = "bench", "127.0.0.1:0", "127.0.0.1:0"
	cfg.StateDir = os.Getenv("BERTH_ROLE_DIR")
	cfg.Postgres.DSN = chassis.NewSecret(os.Getenv("BERTH_ROLE_DSN"))
	m, err := manager.New(t.Context(), cfg, manager.Deps{Random: rand.Reader, Build: chassis.Build(), Log: quiet()})
	require.NoError(t, err)
	start(t, m.Services()...)
	cred, _ := m.Admin()
	said["api"], said["agents"] = m.APIAddr(), m.AgentAddr()
	said["access"], said["secret"] = string(cred.AccessKey), cred.SecretKey.Reveal()
	return map[string]func([]string) (any, error){
		// tokens makes join tokens: for the agents from a number on, so many.
		"tokens": func(args []string) (any, error) {
			first, err := strconv.Atoi(args[0])
			if err != nil {
				return nil, err
			}
			count, err := strconv.Atoi(args[1])
			if err != nil {
				return nil, err
			}
			tokens := []string{}
			for i := range count {
				n := ca.Node{Role: ca.RoleAgent, Name: agentID(first + i)}
				token, _, err := m.Authority().NewToken(t.Context(), ca.TokenRequest{Node: n})
				if err != nil {
					return nil, err
				}
				tokens = append(tokens, token.String())
			}
			return tokens, nil
		},
		// import takes an image into the catalogue, for everybody.
		"import": func(args []string) (any, error) {
			s, err := store.Open(t.Context(), store.Config{DSN: os.Getenv("BERTH_ROLE_DSN"), MaxConns: 2}, quiet())
			if err != nil {
				return nil, err
			}
			defer s.Close()
			images, err := catalogue.New(catalogue.Deps{Store: s, IDs: tenancy.RandomIDs(rand.Reader), Log: quiet()})
			if err != nil {
				return nil, err
			}
			return nil, images.ImportOwn(t.Context(), []cluster.NodeImage{{Reference: args[0], Digest: args[1], Architecture: "x86_64",
				SizeBytes: 1, Labels: map[string]string{}}})
		},
	}
}

const (
	benchImage  = "berth/python:latest"
	benchCores  = 128 // per agent
	benchMemory = 512 << 30
)

func agentID(i int) string { return fmt.Sprintf("i-%02d", i) }

func runAgents(t *testing.T) map[string]func([]string) (any, error) {
	// add starts agents: the number of the first one, then a join token for each.
	return map[string]func([]string) (any, error){"add": func(args []string) (any, error) {
		first, err := strconv.Atoi(args[0])
		if err != nil {
			return nil, err
		}
		for i, token := range args[1:] {
			engine := fake.NewEngine(fake.Options{})
			t.Cleanup(engine.Close)
			engine.AddImage(agentruntime.Image{References: []string{benchImage}, Architecture: "x86_64", Labels: map[string]string{}},
				map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n"), "/etc/group": []byte("root:x:0:\n")})
			cfg := agent.DefaultConfig()
			cfg.ID, cfg.Manager, cfg.JoinToken = agentID(first+i), os.Getenv("BERTH_ROLE_MANAGER"), chassis.NewSecret(token)
			cfg.StateDir, cfg.MinFree = filepath.Join(os.Getenv("BERTH_ROLE_DIR"), cfg.ID), 0
			a, err := agent.New(cfg, agent.Deps{
				Runtime: engine.Runtime(cfg.Scope(), cluster.AgentID(cfg.ID)), RunnerPath: "/nonexistent/runner", Log: quiet(),
				Drivers: devicetest.Host(benchCores, benchMemory),
			})
			if err != nil {
				return nil, err
			}
			start(t, a.Services()...)
		}
		return len(args) - 1, nil
	}}
}

func start(t *testing.T, services ...*chassis.Service) {
	group, err := chassis.NewGroup(slog.New(slog.DiscardHandler), services...)
	require.NoError(t, err)
	require.NoError(t, group.Start(context.Background()))
	t.Cleanup(func() { _ = group.Stop(context.Background()) })
}
