// Package e2e tells stories about the real binary and the real container engine, as
// administrator, user, stranger and attacker. It runs only where BERTH_TEST_ENGINE=1 says
// that an engine with our images is there (make test and make e2e set it).
package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait of a story; it is generous because machines are shared: an engine may be ten times slower than usual.
const patience = 4 * time.Minute

// binary is the path of berth, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	if chromium := os.Getenv(browserVariable); chromium != "" {
		fmt.Fprintln(os.Stderr, "e2e: become the browser:", becomeBrowser(chromium))
		os.Exit(1)
	}
	code := func() int {
		if os.Getenv("BERTH_TEST_ENGINE") == "" {
			return m.Run() // every story skips itself and says so
		}
		binary = os.Getenv("BERTH_BIN")
		if binary == "" {
			binary = filepath.Join("..", "bin", "berth")
		}
		abs, err := filepath.Abs(binary)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "e2e: no binary: %v\nrun make build first\n", err)
			return 1
		}
		binary = abs
		// Jobs in the background ignore interrupts, and the programs that they start would. Those of a signal that is caught do not.
		if signal.Ignored(syscall.SIGINT) {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
		}
		return m.Run()
	}()
	os.Exit(code)
}

func needEngine(t testing.TB) {
	t.Helper()
	if os.Getenv("BERTH_TEST_ENGINE") == "" {
		t.Skip("needs a container engine: set BERTH_TEST_ENGINE=1 or run make e2e")
	}
}

// platform is one cluster on this machine, started through the binary.
type platform struct {
	t    testing.TB
	dir  string   // state directory
	more []string // of the environment of every command
	// committers are users whose images are removed from the engine when the cluster has ended.
	committers []string
}

// up starts an all-in-one cluster on an empty state directory and ends it, with its
// sessions, when the test ends. more is added to the environment of every command.
func up(t testing.TB, more ...string) *platform {
	t.Helper()
	needEngine(t)
	dir, err := os.MkdirTemp("", "berth-e2e-") // short: unix sockets live below it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	p := &platform{t: t, dir: dir, more: more}
	t.Cleanup(func() {
		if t.Failed() {
			p.dumpLog()
		}
		p.try("down", "--sessions")
		for _, user := range p.committers {
			images, err := docker("images", "-q", "--filter", "label=ai.backend.customized-image.owner=user:"+user)
			if ids := strings.Fields(images); err == nil && len(ids) > 0 {
				_, _ = docker(append([]string{"rmi", "-f"}, ids...)...)
			}
		}
		_ = os.RemoveAll(dir)
	})
	p.start()
	return p
}

// forgetCommits removes the images that users made of sessions, when no session can use one any more.
func (p *platform) forgetCommits(users ...string) { p.committers = append(p.committers, users...) }

func (p *platform) start() {
	p.t.Helper()
	said := p.must("up", "--detach", "--ports", "auto")
	if strings.Contains(said, "sessions wait until it is back") { // `berth up` waits 20 s for the agent, whose engine may take longer
		p.eventually("the agent is ready", func() bool {
			var status struct {
				Services []struct {
					Name string
					OK   bool
				}
			}
			require.NoError(p.t, json.Unmarshal([]byte(p.must("status", "--json")), &status))
			for _, s := range status.Services {
				if s.Name == "agent" {
					return s.OK
				}
			}
			return false
		})
	}
}

// kill ends the platform's process without any warning, as a crash would.
func (p *platform) kill() {
	p.t.Helper()
	killed(p.t, p.pid())
}

// killed kills a process and waits until it has ended: one that is on its way out still has its ports, sockets and locks.
func killed(t testing.TB, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return zombie(pid) }, patience, time.Millisecond)
}

// zombie reports whether a process has ended, with all its threads: its first thread may end before those that still hold its sockets open.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return strings.HasPrefix(rest, "Z") && (err != nil || len(threads) == 1)
}

func (p *platform) pid() int {
	p.t.Helper()
	var status struct {
		Pid int `json:"pid"`
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.must("status", "--json")), &status))
	require.NotZero(p.t, status.Pid)
	return status.Pid
}

func (p *platform) dumpLog() {
	log, err := os.ReadFile(filepath.Join(p.dir, "berth.log"))
	if err != nil {
		return
	}
	if len(log) > 20_000 {
		log = log[len(log)-20_000:]
	}
	p.t.Logf("end of berth.log:\n%s", log)
}

// env is the environment of client.env.
func (p *platform) env() []string {
	p.t.Helper()
	file := filepath.Join(p.dir, "client.env")
	info, err := os.Stat(file)
	require.NoError(p.t, err)
	require.Equal(p.t, os.FileMode(0o600), info.Mode().Perm(), "client.env holds secrets")
	return readEnv(p.t, file)
}

// readEnv reads lines NAME=value as a shell would.
func readEnv(t testing.TB, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		if ok && !strings.HasPrefix(name, "#") {
			out = append(out, name+"="+strings.Trim(value, `'"`))
		}
	}
	return out
}

// environ is the environment of every command: this cluster's, with cores shared by many
// sessions, because test machines are small.
func (p *platform) environ() []string {
	return append(append(os.Environ(), "BERTH_STATE_DIR="+p.dir, "NO_COLOR=1", "BERTH_AGENT__CPU_OVERCOMMIT=16"), p.more...)
}

// result is what a command did.
type result struct {
	stdout, stderr string
	code           int
}

// run runs berth with the given standard input.
func (p *platform) run(stdin string, args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = p.environ()
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(p.t, err)
	}
	require.NoError(p.t, ctx.Err(), "berth %s did not end: %s", strings.Join(args, " "), stderr.String())
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must runs berth and returns its standard output; anything but success fails the test.
func (p *platform) must(args ...string) string {
	p.t.Helper()
	r := p.run("", args...)
	require.Zero(p.t, r.code, "berth %s: %s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

// try runs berth for cleaning up, whatever comes of it.
func (p *platform) try(args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = p.environ()
	_ = cmd.Run()
}

// sessionRow is a line of `berth session list --json`.
type sessionRow struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Type     string `json:"type"`
	Status   string `json:"status"`
	Result   string `json:"result"`
	Info     string `json:"status_info"`
	ExitCode *int   `json:"exit_code"`
}

func (p *platform) sessions() map[string]sessionRow {
	p.t.Helper()
	var rows []sessionRow
	require.NoError(p.t, json.Unmarshal([]byte(p.must("session", "list", "--all", "--json")), &rows))
	out := map[string]sessionRow{}
	for _, r := range rows {
		out[r.Name] = r
	}
	return out
}

func (p *platform) eventually(what string, ok func() bool) {
	p.t.Helper()
	require.True(p.t, settles(ok), "still not so after %s: %s", patience, what)
}

// settles waits until something is so. Who asks with a program asks less and less often: several stories run at a time on a small machine.
func settles(ok func() bool) bool {
	end := time.Now().Add(patience)
	for pause := 50 * time.Millisecond; ; pause = min(pause*3/2, time.Second) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		<-time.After(pause)
	}
}

// clean asserts that doctor, with the given flags, finds nothing to complain about, once what is being removed is gone.
func (p *platform) clean(flags ...string) {
	p.t.Helper()
	var r result
	settles(func() bool {
		r = p.run("", append([]string{"doctor"}, flags...)...)
		return r.code == 0
	})
	require.Zero(p.t, r.code, "doctor: %s%s", r.stdout, r.stderr)
}

// containers lists the engine's containers of this cluster, exited ones too.
func containers(t testing.TB, filter string) []string {
	t.Helper()
	out, err := docker("ps", "-aq", "--no-trunc", "--filter", filter)
	require.NoError(t, err)
	return strings.Fields(out)
}

// freePort is a port that nobody listens on and no other story was told, below those that the kernel gives to connections and to the
// clusters of `berth up`.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1950 {
		port := 8100 + (os.Getpid()*37+int(portsTold.Add(1)))%1950
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err == nil {
			require.NoError(t, l.Close())
			return strconv.Itoa(port)
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

var portsTold atomic.Int64
