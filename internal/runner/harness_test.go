package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	rt "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner"
	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

// asRunner makes the test binary act as the runner itself: the tests drive the real process.
const asRunner = "BERTH_TEST_AS_RUNNER"

func TestMain(m *testing.M) {
	if code, ok := sshd.FileServer(os.Args); ok { // as children of the runner
		os.Exit(code)
	}
	if os.Getenv(asRunner) != "" {
		os.Unsetenv(asRunner)
		os.Exit(runner.Main(os.Args))
	}
	code := m.Run()
	if static.dir != "" {
		_ = os.RemoveAll(static.dir)
	}
	os.Exit(code)
}

const token = "test-token-0123456789"

// patience bounds what a test waits for: more than anything takes on a machine that is busy with other tests.
const patience = time.Minute

// box is a running runner with a home of its own.
type box struct {
	t    *testing.T
	cfg  run.Config
	c    *run.Client
	cmd  *exec.Cmd
	out  *buffer
	exit chan struct{}
	code int
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shortDir keeps socket paths short.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "bt")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// config is a configuration with python from the system; as root commands run as another user.
func config(t *testing.T) run.Config {
	dir := shortDir(t)
	cfg := run.Config{Version: run.Version, Token: token, KernelID: "0a1b2c3d-0000-0000-0000-000000000000", Dir: dir,
		Env:    map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
		Limits: run.Limits{OutputMemory: 256 << 10, OutputSpill: 4 << 20},
		User:   run.User{UID: os.Getuid(), GID: os.Getgid(), Home: filepath.Join(dir, "home")}}
	if os.Getuid() == 0 {
		cfg.User.UID, cfg.User.GID = 4242, 4243
	}
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		cfg.Env["PATH"] = os.Getenv("PATH")
	}
	return cfg
}

// launch starts the runner and returns before it serves.
func launch(t *testing.T, cfg run.Config, change ...func(*exec.Cmd)) *box {
	file := filepath.Join(cfg.Dir, "config.json")
	require.NoError(t, run.WriteConfig(file, cfg))
	b := &box{t: t, cfg: cfg.WithDefaults(), out: &buffer{}, exit: make(chan struct{})}
	exe, err := os.Executable()
	require.NoError(t, err)
	b.cmd = exec.Command(exe, file)
	b.cmd.Env = append(os.Environ(), asRunner+"=1")
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	for _, c := range change {
		c(b.cmd)
	}
	began := make(chan error)
	go func() {
		rt.LockOSThread() // the signal comes when the starting thread ends
		defer rt.UnlockOSThread()
		err := b.cmd.Start()
		began <- err
		if err != nil {
			return
		}
		_ = b.cmd.Wait()
		b.code = b.cmd.ProcessState.ExitCode()
		close(b.exit)
	}()
	require.NoError(t, await.Value(t, began))
	b.c = run.NewClient(run.Options{Dial: run.UnixDialer(b.cfg.Socket), Token: cfg.Token})
	t.Cleanup(func() {
		_ = b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-b.exit:
		case <-time.After(patience):
			_ = b.cmd.Process.Kill()
			await.Value(t, b.exit)
			t.Error("the runner did not end in time")
		}
		b.c.Close()
		if strings.Contains(b.out.String(), "DATA RACE") {
			t.Error("the race detector found something in the runner")
		}
		if t.Failed() {
			text := b.out.String()
			t.Logf("end of the runner's log:\n%s", text[max(0, len(text)-2000):])
		}
	})
	return b
}

// start launches the runner and waits until it serves.
func start(t *testing.T, cfg run.Config, change ...func(*exec.Cmd)) *box {
	b := launch(t, cfg, change...)
	require.Eventually(t, func() bool {
		_, err := b.c.Hello(ctx(t))
		return err == nil
	}, patience, 2*time.Millisecond, "the runner does not serve: %s", b.out)
	return b
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return c
}

// result is a whole run as its reader saw it.
type result struct {
	exit     int
	stdout   string
	stderr   string
	console  []run.Console
	statuses []run.Status
}

// waitMS lets a step wait as long as one may: an interpreter that starts on a busy machine takes its time.
const waitMS = int(run.MaxWait / time.Millisecond)

// play steps through a run until it ends, answering questions in turn; no answer left means EOF.
func (b *box) play(id string, req run.StepRequest, answers ...string) result {
	b.t.Helper()
	var r result
	req.WaitMS = waitMS
	var from int64
	req.From = &from
	for {
		res, err := b.c.Step(ctx(b.t), id, req)
		require.NoError(b.t, err)
		r.statuses = append(r.statuses, res.Status)
		r.console = append(r.console, res.Console...)
		for _, c := range res.Console {
			switch c.Type {
			case run.Stdout:
				r.stdout += c.Data
			case run.Stderr:
				r.stderr += c.Data
			}
		}
		from = res.Seq
		req = run.StepRequest{Mode: run.ModeContinue, WaitMS: waitMS, From: &from}
		switch {
		case res.Status.Final():
			require.NotNil(b.t, res.ExitCode)
			r.exit = *res.ExitCode
			return r
		case res.Status == run.StatusWaitingInput:
			req.Mode, req.InputSeq = run.ModeInput, res.Seq-1
			if len(answers) == 0 {
				req.EOF = true
				continue
			}
			req.Code, answers = answers[0], answers[1:]
		}
	}
}

func (b *box) query(id, code string, answers ...string) result {
	b.t.Helper()
	return b.play(id, run.StepRequest{Mode: run.ModeQuery, Code: code}, answers...)
}

func (b *box) batch(id string, o run.BatchOptions, answers ...string) result {
	b.t.Helper()
	return b.play(id, run.StepRequest{Mode: run.ModeBatch, Options: &o}, answers...)
}

func (b *box) shell(id, line string, answers ...string) result {
	b.t.Helper()
	return b.batch(id, run.BatchOptions{Exec: &line}, answers...)
}

func ptr[T any](v T) *T { return &v }

func readResult(t *testing.T, cfg run.Config) run.BatchResult {
	data, err := os.ReadFile(cfg.WithDefaults().ResultFile)
	require.NoError(t, err)
	var res run.BatchResult
	require.NoError(t, json.Unmarshal(data, &res))
	return res
}

// put writes a file into the home as the session's user would.
func (b *box) put(name, text string) {
	b.t.Helper()
	_, err := b.c.Upload(ctx(b.t), run.ContentTar, tarOf(b.t, name, text))
	require.NoError(b.t, err)
}

func (b *box) log() string { return strings.ReplaceAll(b.out.String(), "\r", "") }

var _ io.Writer = (*buffer)(nil)
