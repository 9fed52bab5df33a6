package e2e_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/storetest"
)

// chaos is a cluster of roles apart, under load, that is broken in rounds. docs/proving-ground.md describes it.
type chaos struct {
	*apart
	link, database *relay
	began          time.Time
	rand           *rand.Rand

	round   int
	jobs    []string // names
	stream  net.Conn
	lines   *bufio.Reader
	gateway string
	sent    int
	writer  string // the process that writes numbers
	// well and tried count rounds by fault and load; notes tell what was not well.
	well, tried map[string]map[string]int
	notes       []string
}

const chaosAgent = "i-chaos"

// disturbance breaks something and mends it; it returns when that is done.
type disturbance struct {
	name   string
	strike func(c *chaos)
}

func disturbances() []disturbance {
	stopped := func(role string) func(c *chaos) {
		return func(c *chaos) {
			require.NoError(c.t, c.processes[role].Process.Signal(syscall.SIGSTOP))
			c.rest(20 * time.Second)
			require.NoError(c.t, c.processes[role].Process.Signal(syscall.SIGCONT))
		}
	}
	killed := func(role string) func(c *chaos) {
		return func(c *chaos) {
			c.kill(role)
			c.rest(3 * time.Second)
			c.begin(role)
		}
	}
	during := func(d time.Duration, on, off func(c *chaos)) func(c *chaos) {
		return func(c *chaos) {
			on(c)
			c.rest(d)
			off(c)
		}
	}
	return []disturbance{
		{"kill manager", killed("manager")},
		{"kill agent", killed("agent")},
		{"stop manager", stopped("manager")},
		{"stop agent", stopped("agent")},
		{"cut link", func(c *chaos) { c.link.cut() }},
		{"hang link", during(45*time.Second, func(c *chaos) { c.link.hang(true) }, func(c *chaos) { c.link.hang(false) })},
		{"refuse database", during(20*time.Second, func(c *chaos) { c.database.refuse(true) }, func(c *chaos) { c.database.refuse(false) })},
		{"hang database", during(20*time.Second, func(c *chaos) { c.database.hang(true) }, func(c *chaos) { c.database.hang(false) })},
	}
}

var chaosLoads = []string{"kernel", "writer", "jobs", "uploads", "stream"}

// TestChaos breaks a real cluster again and again, for as long as BERTH_CHAOS_TIME says; without it nothing is done.
func TestChaos(t *testing.T) {
	needEngine(t)
	limit, err := time.ParseDuration(os.Getenv("BERTH_CHAOS_TIME"))
	if err != nil {
		t.Skip("set BERTH_CHAOS_TIME, or run make chaos")
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("BERTH_CHAOS_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("BERTH_CHAOS_SEED=%d", seed)
	c := newChaos(t, seed)
	all := disturbances()
	for end := time.Now().Add(limit); time.Now().Before(end); c.round++ {
		if c.round%len(all) == 0 { // every one once, in an order of its own
			c.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		d := all[c.round%len(all)]
		c.startJobs()
		began := time.Now()
		d.strike(c)
		c.startJobs() // some come while the cluster finds its feet
		c.judge(d.name)
		t.Logf("round %d: %s, %s", c.round, d.name, time.Since(began).Round(time.Second))
	}
	t.Log(c.table())
	for _, n := range c.notes {
		t.Error(n)
	}
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	dsn, err := pgx.ParseConfig(storetest.DSN(t))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "berth-pgr-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const socket = ".s.PGSQL.5432"
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	require.NoError(t, err)
	database := newRelay(t, listener, "unix", filepath.Join(dsn.Host, socket))
	hub := "127.0.0.1:" + freePort(t)
	link := tcpRelay(t, hub)
	// The file of newApart names the places themselves; these go through the relays.
	t.Setenv("BERTH_MANAGER__POSTGRES__DSN", fmt.Sprintf("host='%s' user='%s' dbname=%s sslmode=disable", dir, dsn.User, dsn.Database))
	t.Setenv("BERTH_MANAGER__AGENTS__LISTEN", hub)
	t.Setenv("BERTH_MANAGER__AGENTS__ADVERTISE", link.addr())
	t.Setenv("BERTH_AGENT__MANAGER", link.addr())
	listen := freePort(t)
	first := 22000 + os.Getpid()%8000
	a := newApart(t, chaosAgent, "", fmt.Sprintf(`
[appproxy]
name = "one"
managers = ["%s"]
join_token_file = "DIR/appproxy.token"
state_dir = "DIR/appproxy"
listen = "127.0.0.1:%s"
url = "http://127.0.0.1:%s"
domain = "apps.localhost"
[appproxy.ports]
from = %d
to = %d
`, hub, listen, listen, first, first+20))
	a.begin("appproxy")
	c := &chaos{apart: a, link: link, database: database, began: time.Now(), rand: rand.New(rand.NewPCG(seed, 1)),
		well: map[string]map[string]int{}, tried: map[string]map[string]int{}}
	c.must("run", "python", "--name", "kernel", "-r", "cpu=1", "-r", "mem=512m", "-c", "x = 4711")
	c.must("session", "create", "python", "--name", "writer", "-r", "cpu=1", "-r", "mem=256m")
	r := c.run(numbers, "session", "exec", "-i", "writer", "--", "sh", "-c", "cat > numbers.py && (setsid python3 numbers.py & echo $! > pid)")
	require.Zero(t, r.code, r.stderr)
	c.writer = strings.TrimSpace(c.must("session", "exec", "writer", "--", "cat", "pid"))
	c.gateway = newConsole(t, a.env()).gateway(a.demo("demo"), "echo")
	return c
}

// numbers writes one number after the other, each safe on disk before the next.
const numbers = `
import os, time
n = 0
with open("numbers", "a") as f:
    while True:
        n += 1
        f.write(f"{n}\n"); f.flush(); os.fsync(f.fileno())
        time.sleep(0.05)
`

// rest lets a fault last.
func (c *chaos) rest(d time.Duration) { <-time.After(d) }

// startJobs starts batch jobs; the manager may be away, and then there are none. A job that it refused after all may be there.
func (c *chaos) startJobs() {
	for i := range 2 {
		name := fmt.Sprintf("job-%d-%d-%d", c.round, len(c.jobs), i)
		seconds := c.rand.IntN(20)
		r := c.run("", "session", "create", "python", "--detach", "--name", name, "--batch", fmt.Sprintf("sleep %d; echo done", seconds),
			"-r", "cpu=1", "-r", "mem=128m")
		if r.code == 0 {
			c.jobs = append(c.jobs, name)
		}
	}
}

// judge looks whether every load kept its promise, once the cluster has had time to be well again.
func (c *chaos) judge(fault string) {
	checks := map[string]func() string{
		"kernel": c.kernelWell, "writer": c.writerWell, "jobs": c.jobsWell, "uploads": c.uploadsWell, "stream": c.streamWell,
	}
	if c.tried[fault] == nil {
		c.tried[fault], c.well[fault] = map[string]int{}, map[string]int{}
	}
	for _, load := range chaosLoads {
		why := ""
		for deadline := time.Now().Add(patience); ; {
			if why = checks[load](); why == "" || time.Now().After(deadline) {
				break
			}
			<-time.After(500 * time.Millisecond)
		}
		c.tried[fault][load]++
		if why == "" {
			c.well[fault][load]++
			continue
		}
		c.notes = append(c.notes, fmt.Sprintf("round %d, %s, %s: %s", c.round, fault, load, why))
	}
}

func (c *chaos) kernelWell() string {
	r := c.run("", "run", "python", "--name", "kernel", "-c", "print(x)")
	if r.code != 0 || strings.TrimSpace(r.stdout) != "4711" {
		return fmt.Sprintf("the kernel answered %q %q", r.stdout, r.stderr)
	}
	return ""
}

func (c *chaos) writerWell() string {
	r := c.run("", "session", "exec", "writer", "--", "sh", "-c", "kill -0 "+c.writer+" && cat numbers")
	if r.code != 0 {
		return "the writer is gone: " + r.stderr
	}
	for i, line := range strings.Fields(r.stdout) {
		if line != strconv.Itoa(i+1) {
			return fmt.Sprintf("line %d of the writer is %q", i+1, line)
		}
	}
	return ""
}

// jobsWell: every job that was acknowledged has ended, and no container of any kernel was started twice.
func (c *chaos) jobsWell() string {
	r := c.run("", "session", "list")
	if r.code != 0 {
		return r.stderr
	}
	rows := c.sessions()
	for _, name := range c.jobs {
		s, ok := rows[name]
		switch {
		case !ok:
			return "job " + name + " is gone"
		case s.Status != "TERMINATED" && s.Status != "ERROR" && s.Status != "CANCELLED":
			return fmt.Sprintf("job %s is %s", name, s.Status)
		case s.Result != "SUCCESS" && s.Info == "":
			return fmt.Sprintf("job %s is %s %s without a word", name, s.Status, s.Result)
		}
	}
	out, err := docker("events", "--since", strconv.FormatInt(c.began.Unix(), 10), "--until", strconv.FormatInt(time.Now().Unix(), 10),
		"--filter", "event=start", "--filter", "label=berth.agent="+chaosAgent, "--format", `{{index .Actor.Attributes "berth.kernel"}}`)
	if err != nil {
		return err.Error()
	}
	starts := map[string]int{}
	for _, kernel := range strings.Fields(out) {
		if starts[kernel]++; starts[kernel] > 1 {
			return fmt.Sprintf("a container of kernel %s was started %d times", kernel, starts[kernel])
		}
	}
	return ""
}

func (c *chaos) uploadsWell() string {
	name := fmt.Sprintf("upload-%d", c.round)
	file := filepath.Join(filepath.Dir(c.config), name)
	text := strings.Repeat(name+"\n", 20_000)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err.Error()
	}
	if r := c.run("", "session", "upload", "writer", file); r.code != 0 {
		return "the upload failed: " + r.stderr
	}
	for i := range c.round + 1 { // what was acknowledged in earlier rounds, too
		r := c.run("", "session", "exec", "writer", "--", "sh", "-c", fmt.Sprintf("wc -l < upload-%d", i))
		if r.code != 0 || strings.TrimSpace(r.stdout) != "20000" {
			return fmt.Sprintf("upload %d has %q lines: %s", i, r.stdout, r.stderr)
		}
	}
	return ""
}

// streamWell: the stream goes on, or it broke and can be opened again.
func (c *chaos) streamWell() string {
	if c.stream == nil {
		var err error
		if c.stream, err = net.Dial("tcp", c.gateway); err != nil {
			c.stream = nil
			return "no stream can be opened: " + err.Error()
		}
		c.lines = bufio.NewReader(c.stream)
	}
	c.sent++
	_ = c.stream.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := fmt.Fprintf(c.stream, "line %d\n", c.sent)
	got := ""
	if err == nil {
		got, err = c.lines.ReadString('\n')
	}
	if err != nil {
		_ = c.stream.Close()
		c.stream = nil
		return "the stream broke: " + err.Error()
	}
	if want := fmt.Sprintf("line %d\n", c.sent); got != want {
		return fmt.Sprintf("the stream said %q after %q", got, want)
	}
	return ""
}

// table is the report: a row for each fault, a column for each load.
func (c *chaos) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-16s", "rounds well")
	for _, load := range chaosLoads {
		fmt.Fprintf(&b, " %8s", load)
	}
	for _, d := range disturbances() {
		fmt.Fprintf(&b, "\n%-16s", d.name)
		for _, load := range chaosLoads {
			fmt.Fprintf(&b, " %8s", fmt.Sprintf("%d/%d", c.well[d.name][load], c.tried[d.name][load]))
		}
	}
	fmt.Fprintf(&b, "\n%d rounds, %d jobs\n", c.round, len(c.jobs))
	return b.String()
}
