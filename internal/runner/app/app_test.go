package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/app"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

// asApp makes the test binary act as an app; its value says how it behaves.
const asApp = "BERTH_TEST_AS_APP"

func TestMain(m *testing.M) {
	if how := os.Getenv(asApp); how != "" {
		actAsApp(how, os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// actAsApp listens on the port that is its first argument.
func actAsApp(how string, args []string) {
	fmt.Println("app", how, strings.Join(args, " "), "EXTRA="+os.Getenv("EXTRA"))
	switch how {
	case "fails":
		for i := range 20 {
			fmt.Fprintf(os.Stderr, "line %d\x1b[31m\n", i)
		}
		os.Exit(3)
	case "silent":
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		<-told
		return
	case "background":
		child := exec.Command(os.Args[0], args...)
		child.Env = append(os.Environ(), asApp+"=serves")
		if err := child.Start(); err != nil {
			os.Exit(4)
		}
		return
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "parent": // its child keeps the port when it is killed alone
		child := exec.Command(os.Args[0], args...)
		child.Env = append(os.Environ(), asApp+"=large")
		if err := child.Start(); err != nil {
			os.Exit(4)
		}
		_ = child.Wait()
		return
	case "large": // the first one: when it is killed, its memory goes before its port
		if f, err := os.OpenFile(filepath.Join(os.Getenv("HOME"), "first"), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
			const flags = syscall.MAP_PRIVATE | syscall.MAP_ANON | syscall.MAP_POPULATE
			if _, err := syscall.Mmap(-1, 0, 1<<30, syscall.PROT_READ|syscall.PROT_WRITE, flags); err != nil {
				os.Exit(7)
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { os.Exit(5) })
	mux.HandleFunc("/leave", func(http.ResponseWriter, *http.Request) { os.Exit(0) })
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { _, _ = io.WriteString(w, strings.Join(args, " ")) })
	fmt.Println(http.ListenAndServe("127.0.0.1:"+args[0], mux))
	os.Exit(6)
}

// rig is a set with its own definitions and its own clock.
type rig struct {
	*app.Set
	t     *testing.T
	c     app.Config
	table *proc.Table
	mu    sync.Mutex
	time  time.Time
	step  time.Duration // how far the clock goes on with every look
}

// freePort is a port that nobody listens on now, outside those that are given to anybody.
func freePort(t *testing.T) int {
	for i := range 1000 { // these tests have the ports from 64500 to 65499
		port := 64_500 + (os.Getpid()*97+i)%1000
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			require.NoError(t, l.Close())
			if _, taken := taken.LoadOrStore(port, true); !taken {
				return port
			}
		}
	}
	t.Fatal("no port is free")
	return 0
}

var taken sync.Map

func newRig(t *testing.T, apps ...run.AppPort) *rig {
	r := &rig{t: t, table: proc.NewTable(), time: time.Unix(1_800_000_000, 0), step: time.Second}
	dir := t.TempDir()
	r.c = app.Config{Apps: apps, Own: []run.AppPort{{Name: "sshd", Protocol: run.AppTCP, Ports: []int{2200}}}, DefinitionDir: dir,
		LogDir: t.TempDir(),
		NetDir: "/proc/self/net", Dir: dir, Home: dir, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir}, UID: os.Geteuid(),
		RuntimePath: "/usr/bin/true", Table: r.table,
		Log: slog.New(slog.DiscardHandler), Now: r.now, Policy: app.Policy{Pause: time.Millisecond, StopGrace: 5 * time.Second, Restarts: 2}}
	t.Cleanup(func() {
		if r.Set != nil {
			r.Close()
			r.table.EndAll(10*time.Second, syscall.SIGTERM)
			r.Wait()
		}
		r.table.Close()
	})
	return r
}

// now goes on with every look, so that nothing is remembered, unless the test says otherwise.
func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.time = r.time.Add(r.step)
	return r.time
}

// pass lets time pass.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.time = r.time.Add(d)
}

func (r *rig) define(name string, d map[string]any) {
	r.t.Helper()
	b, err := json.Marshal(d)
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.c.DefinitionDir, name+".json"), b, 0o644))
}

// acts defines an app that is this binary.
func (r *rig) acts(name, how string, more map[string]any) {
	exe, err := os.Executable()
	require.NoError(r.t, err)
	d := map[string]any{"command": []string{exe, "{ports[0]}"}, "env": map[string]string{asApp: how}}
	for k, v := range more {
		d[k] = v
	}
	r.define(name, d)
}

func (r *rig) open() *rig {
	r.Set = app.New(r.c)
	return r
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) state(name string) run.App {
	for _, a := range r.List(within(r.t)).Apps {
		if a.Name == name {
			return a
		}
	}
	return run.App{}
}

func (r *rig) until(name string, what string, ok func(run.App) bool) run.App {
	r.t.Helper()
	var last run.App
	require.Eventually(r.t, func() bool { last = r.state(name); return ok(last) }, time.Minute, 2*time.Millisecond, "%s: %+v", what, &last)
	return last
}

// logged waits until what an app wrote has come to its log: that it answers is seen elsewhere.
func (r *rig) logged(name, text string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		log, err := r.Log(name, 1<<20)
		return err == nil && strings.Contains(string(log), text)
	}, time.Minute, 2*time.Millisecond, text)
}

func get(port int, path string) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestAnAppIsStartedOnceAndStopped(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port, port + 1}})
	r.acts("web", "serves", map[string]any{"allowed_envs": []string{"EXTRA"}, "allowed_arguments": []string{"--more"},
		"default_arguments": map[string]any{"--flag": nil}, "url_template": "x"})
	r.open()
	require.Equal(t, run.AppStopped, r.state("web").State)
	require.Equal(t, "x", r.state("web").URLTemplate)
	// Many ask at once; one process comes of it.
	var wait sync.WaitGroup
	results := make([]run.AppStartResult, 8)
	for i := range results {
		wait.Go(func() {
			var err error
			results[i], err = r.Start(within(t), "web", run.AppStartRequest{Envs: map[string]string{"EXTRA": "e"},
				Arguments: map[string]any{"--more": "m"}})
			require.NoError(t, err)
		})
	}
	wait.Wait()
	for _, res := range results {
		require.Equal(t, run.AppReady, res.App.State)
		require.Equal(t, port, res.Port)
		require.Equal(t, results[0].App.PID, res.App.PID)
		require.NotNil(t, res.App.StartedAt)
	}
	body, err := get(port, "/")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d --flag --more m", port), body)
	res, err := r.Start(within(t), "web", run.AppStartRequest{Port: port + 1, Arguments: map[string]any{"--bad": 1}})
	require.NoError(t, err, "an app that is ready stays as it is")
	require.Equal(t, port+1, res.Port)
	r.logged("web", "EXTRA=e")

	a, err := r.Stop(within(t), "web")
	require.NoError(t, err)
	require.Equal(t, run.AppStopped, a.State)
	require.Zero(t, a.PID)
	_, err = get(port, "/")
	require.Error(t, err)
	a, err = r.Stop(within(t), "web")
	require.NoError(t, err)
	require.Equal(t, run.AppStopped, a.State)
	_, err = r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err, "it can be started again")
}

func TestStartRefusesWhatTheDefinitionDoesNotAllow(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("web", "serves", nil)
	r.open()
	for _, req := range []run.AppStartRequest{{Port: 1}, {WaitMS: -1}, {Envs: map[string]string{"A": "b"}},
		{Arguments: map[string]any{"--x": nil}}} {
		_, err := r.Start(within(t), "web", req)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", req, err)
	}
	_, err := r.Start(within(t), "nothing", run.AppStartRequest{})
	require.True(t, fault.Is(err, fault.NotFound))
	require.Contains(t, fault.NextOf(err), "web")
	require.Contains(t, fault.NextOf(err), "sshd")
	res, err := r.Start(within(t), "sshd", run.AppStartRequest{})
	require.NoError(t, err)
	require.Equal(t, 2200, res.Port)
	_, err = r.Stop(within(t), "sshd")
	require.True(t, fault.Is(err, fault.Conflict))
}

func TestAStartThatFailsSaysWhy(t *testing.T) {
	port := freePort(t)
	apps := []run.AppPort{}
	for i, name := range []string{"fails", "missing", "broken", "jupyter", "custom", "prestart"} {
		apps = append(apps, run.AppPort{Name: name, Protocol: run.AppHTTP, Ports: []int{port + i}})
	}
	r := newRig(t, apps...)
	r.acts("fails", "fails", nil)
	r.define("missing", map[string]any{"command": []string{"no-such-program"}})
	require.NoError(t, os.WriteFile(filepath.Join(r.c.DefinitionDir, "broken.json"), []byte(`{"command`), 0o644))
	r.define("prestart", map[string]any{"command": "true",
		"prestart": []any{map[string]any{"action": "write_file", "args": map[string]any{"filename": "/nowhere/at/all", "body": "x"}}}})
	r.open()
	for name, want := range map[string]struct {
		reason string
		state  run.AppState
		text   string
	}{
		"fails":    {"app-failed", run.AppFailed, "ended with code 3"},
		"missing":  {"app-missing", run.AppMissing, "no-such-program"},
		"broken":   {"app-definition", run.AppFailed, "broken.json"},
		"jupyter":  {"app-missing", run.AppMissing, "jupyter"},
		"custom":   {"app-missing", run.AppMissing, "custom"},
		"prestart": {"app-definition", run.AppFailed, "/nowhere/at/all"},
	} {
		_, err := r.Start(within(t), name, run.AppStartRequest{})
		require.Error(t, err, name)
		require.Equal(t, want.reason, fault.ReasonOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, want.text)
		require.NotEmpty(t, fault.NextOf(err), name)
		a := r.until(name, "its state", func(a run.App) bool { return a.State == want.state })
		require.Contains(t, a.Detail, want.text)
	}
	_, err := r.Start(within(t), "fails", run.AppStartRequest{})
	require.ErrorContains(t, err, "line 19")
	require.NotContains(t, err.Error(), "line 2\n", "only the last lines")
	require.NotContains(t, err.Error(), "\x1b")
	a, err := r.Stop(within(t), "fails")
	require.NoError(t, err)
	require.Equal(t, run.AppStopped, a.State, "a stop settles a failure")
}

func TestWhoWaitsShortlyIsToldHowFarItIs(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "silent", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("silent", "silent", nil)
	r.c.Policy.ReadyWithin = time.Hour
	r.open()
	res, err := r.Start(within(t), "silent", run.AppStartRequest{WaitMS: 1})
	require.NoError(t, err)
	require.Equal(t, run.AppStarting, res.App.State)
}

func TestAnAppThatDoesNotAnswerIsEnded(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "silent", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("silent", "silent", nil)
	r.c.Policy.ReadyWithin = 300 * time.Millisecond
	r.open()
	_, err := r.Start(within(t), "silent", run.AppStartRequest{WaitMS: 30_000})
	require.Equal(t, "app-failed", fault.ReasonOf(err), "%v", err)
	require.ErrorContains(t, err, "did not answer")
	require.Eventually(t, func() bool { return r.table.Len() == 0 }, 30*time.Second, time.Millisecond)
}

func TestAFailingAppIsRestartedWithinReason(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("web", "serves", nil)
	r.step = 0 // however often the test looks: no failure leaves the window meanwhile
	r.open()
	_, err := r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	for i := range 2 {
		_, err = get(port, "/crash")
		require.Error(t, err)
		r.until("web", "it is started again", func(a run.App) bool { return a.State == run.AppReady && a.Restarts == i+1 && a.PID > 0 })
	}
	_, err = get(port, "/crash")
	require.Error(t, err)
	a := r.until("web", "it is given up", func(a run.App) bool { return a.State == run.AppFailed })
	require.Contains(t, a.Detail, "2 times")
	_, err = r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err, "a person may try again")
	require.Zero(t, r.state("web").Restarts)
	// Failures that lie further apart than the window do not count together.
	for range 4 {
		r.pass(time.Hour)
		before := r.state("web").Restarts
		_, err = get(port, "/crash")
		require.Error(t, err)
		r.until("web", "it is started again", func(a run.App) bool { return a.State == run.AppReady && a.Restarts == before+1 })
	}
	_, err = get(port, "/leave")
	require.Error(t, err)
	a = r.until("web", "it may leave", func(a run.App) bool { return a.State == run.AppStopped })
	require.Contains(t, a.Detail, "by itself")
}

func TestWhatKillsTheLeaderLeavesNothing(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("web", "parent", nil)
	r.open()
	res, err := r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(res.App.PID, syscall.SIGKILL))
	a := r.until("web", "its child goes too, and it is started again",
		func(a run.App) bool { return a.State == run.AppReady && a.PID != res.App.PID && a.PID > 0 })
	require.Equal(t, 1, a.Restarts)
}

func TestStartWhileStoppingWaitsForTheEnd(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	r.acts("web", "stubborn", nil)
	r.c.Policy.StopGrace = 300 * time.Millisecond
	r.open()
	first, err := r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { _, err := r.Stop(within(t), "web"); stopped <- err }()
	var again run.AppStartResult
	require.Eventually(t, func() bool {
		again, err = r.Start(within(t), "web", run.AppStartRequest{})
		return err == nil && again.App.PID != first.App.PID
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, await.Value(t, stopped))
	require.Equal(t, run.AppReady, again.App.State)
}

func TestStopEndsAStart(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "silent", Protocol: run.AppTCP, Ports: []int{port}})
	r.define("silent", map[string]any{"command": "sleep 1000",
		"prestart": []any{map[string]any{"action": "run_command", "args": map[string]any{"command": "sleep 1000"}}}})
	r.open()
	started := make(chan error, 1)
	go func() { _, err := r.Start(within(t), "silent", run.AppStartRequest{}); started <- err }()
	r.until("silent", "it starts", func(a run.App) bool { return a.State == run.AppStarting })
	_, err := r.Stop(within(t), "silent")
	require.NoError(t, err)
	require.Equal(t, "app-stopped", fault.ReasonOf(await.Value(t, started)))
	require.Zero(t, r.table.Len())
}

// TestAFloodHoldsUpNoEnd: what an app or a command leaves behind may write without a pause.
func TestAFloodHoldsUpNoEnd(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	const flood = "yes & echo $! >>floods; yes >&2 & echo $! >>floods"
	r.define("web", map[string]any{"command": flood,
		"prestart": []any{map[string]any{"action": "run_command", "args": map[string]any{"command": flood}}}})
	r.c.Policy.DetachedIn = 50 * time.Millisecond
	t.Cleanup(func() {
		text, err := os.ReadFile(filepath.Join(r.c.Dir, "floods"))
		require.NoError(t, err)
		for _, w := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(w)
			require.NoError(t, err)
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended with its pipe
		}
	})
	r.open()
	_, err := r.Start(within(t), "web", run.AppStartRequest{WaitMS: 30_000})
	require.ErrorContains(t, err, "left nothing that listens")
	_, err = r.Stop(within(t), "web")
	require.NoError(t, err)
}

func TestAppsThatListenByThemselves(t *testing.T) {
	port := freePort(t)
	own := freePort(t)
	r := newRig(t, run.AppPort{Name: "pre", Protocol: run.AppPreopen, Ports: []int{port}},
		run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{own}})
	r.acts("web", "background", nil)
	r.c.Policy.DetachedIn = time.Minute
	r.open()
	require.Equal(t, run.AppStopped, r.state("pre").State)
	require.NotEmpty(t, r.state("pre").Detail)
	_, err := r.Start(within(t), "pre", run.AppStartRequest{WaitMS: 1})
	require.Equal(t, "app-refused", fault.ReasonOf(err), "%v", err)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, run.AppReady, r.state("pre").State)
	res, err := r.Start(within(t), "pre", run.AppStartRequest{})
	require.NoError(t, err)
	require.Equal(t, run.AppReady, res.App.State)
	_, err = r.Stop(within(t), "pre")
	require.Equal(t, "not-ours", fault.ReasonOf(err))

	res, err = r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	require.Equal(t, run.AppReady, res.App.State, "what it left in the background answers")
	r.until("web", "it goes on in the background", func(a run.App) bool { return a.State == run.AppReady && a.PID == 0 })
	_, err = get(own, "/leave")
	require.Error(t, err)
	r.until("web", "it is gone", func(a run.App) bool { return a.State == run.AppStopped })
}

func TestPrestartPreparesTheCommand(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	exe, err := os.Executable()
	require.NoError(t, err)
	action := func(do, ref string, args map[string]any) map[string]any {
		return map[string]any{"action": do, "ref": ref, "args": args}
	}
	r.define("web", map[string]any{
		"prestart": []any{
			action("mkdir", "", map[string]any{"path": "made/deep"}),
			action("write_file", "script", map[string]any{"filename": "made/{ports[0]}.sh", "mode": "755",
				"body": []string{"#!/bin/sh", "echo \"port {ports[0]} $1\""}}),
			action("write_file", "", map[string]any{"filename": "made/{ports[0]}.sh", "mode": "755", "append": true, "body": "echo again >&2"}),
			action("run_command", "answer", map[string]any{"command": []string{"{script}", "x y"}, "echo": true}),
			action("write_tempfile", "config", map[string]any{"body": []string{"{answer[out]}", "${{ answer.err }}"}}),
			action("run_command", "", map[string]any{"command": "exit 3"}),
			action("log", "", map[string]any{"message": "prepared {config}"}),
		},
		"command": exe + " {ports[0]} {config} ${X}", "env": map[string]string{asApp: "serves", "X": "from ${{ runtime_path }}"},
	})
	r.open()
	_, err = r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	body, err := get(port, "/")
	require.NoError(t, err)
	words := strings.Fields(body)
	require.Len(t, words, 4)
	require.Equal(t, "/usr/bin/true", words[3])
	require.True(t, strings.HasSuffix(words[1], ".py"), body)
	text, err := os.ReadFile(words[1])
	require.NoError(t, err)
	require.NoError(t, os.Remove(words[1]))
	require.Equal(t, fmt.Sprintf("port %d x y\nagain\n", port), string(text))
	log, err := r.Log("web", 1<<20)
	require.NoError(t, err)
	require.Contains(t, string(log), "prepared "+words[1])
	require.Contains(t, string(log), "ended with code 3")
	fi, err := os.Stat(filepath.Join(r.c.Home, "made", fmt.Sprintf("%d.sh", port)))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), fi.Mode().Perm())
}

func TestPortsOfTheSessionAreNoticed(t *testing.T) {
	declared, port := freePort(t), freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{declared}})
	r.open()
	name := fmt.Sprintf("port-%d", port)
	require.Empty(t, r.state(name).Name)
	_, err := r.Start(within(t), name, run.AppStartRequest{})
	require.Equal(t, "app-refused", fault.ReasonOf(err))
	for _, p := range []int{declared, port} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		require.NoError(t, err)
		srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
	}
	// A server that is slow to answer is listed as TCP until it is asked again.
	a := r.until(name, "it is listed as HTTP", func(a run.App) bool { return a.Protocol == run.AppHTTP })
	require.Equal(t, run.App{AppPort: run.AppPort{Name: name, Protocol: run.AppHTTP, Ports: []int{port}}, Origin: run.AppNoticed,
		State: run.AppReady}, a)
	require.Empty(t, r.state(fmt.Sprintf("port-%d", declared)).Name, "declared ports are listed once")
	require.Equal(t, run.AppReady, r.state("web").State, "what listens on a declared port is the app")
	res, err := r.Start(within(t), name, run.AppStartRequest{})
	require.NoError(t, err)
	require.Equal(t, port, res.Port)
	require.Equal(t, run.AppHTTP, res.App.Protocol)
	_, err = r.Stop(within(t), name)
	require.Equal(t, "not-ours", fault.ReasonOf(err))
}

func TestTheLogIsBounded(t *testing.T) {
	port := freePort(t)
	r := newRig(t, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{port}})
	exe, err := os.Executable()
	require.NoError(t, err)
	r.define("web", map[string]any{"command": "i=0; while [ $i -lt 40000 ]; do echo \"$i: a line that is long enough to fill a log of a " +
		"megabyte with some thousands of them, it says nothing\"; i=$((i+1)); done; exec " + exe + " {ports[0]}",
		"env": map[string]string{asApp: "serves"}})
	r.open()
	_, err = r.Start(within(t), "web", run.AppStartRequest{})
	require.NoError(t, err)
	r.logged("web", "39999: a line")
	var size int64
	files, err := os.ReadDir(r.c.LogDir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, f := range files {
		fi, err := f.Info()
		require.NoError(t, err)
		size += fi.Size()
	}
	require.Less(t, size, int64(2<<20+1))
	require.Greater(t, size, int64(1<<20))
	log, err := r.Log("web", 1500<<10)
	require.NoError(t, err)
	require.Greater(t, len(log), 1<<20)
	require.Regexp(t, `^\d+: a line`, string(log[:40]))
	log, err = r.Log("web", 300)
	require.NoError(t, err)
	require.LessOrEqual(t, len(log), 300)
	_, err = r.Log("nothing", 1)
	require.True(t, fault.Is(err, fault.NotFound))
}
