package runner_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

func TestBatchSteps(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	r := b.batch("all", run.BatchOptions{Clean: ptr("echo c"), Build: ptr("echo b"), Exec: ptr("echo x; echo oops >&2; exit 5")})
	require.Equal(t, []run.Status{run.StatusCleanFinished, run.StatusBuildFinished, run.StatusFinished}, r.statuses)
	require.Equal(t, "c\nb\nx\n", r.stdout)
	require.Equal(t, "oops\n", r.stderr)
	require.Equal(t, 5, r.exit)
	r = b.batch("failed", run.BatchOptions{Build: ptr("exit 2"), Exec: ptr("echo never")})
	require.Equal(t, 127, r.exit)
	require.Empty(t, r.stdout)
	require.Equal(t, 0, b.batch("nothing", run.BatchOptions{}).exit)
	r = b.batch("star-empty", run.BatchOptions{Clean: ptr("*"), Build: ptr("*"), Exec: ptr("*")})
	require.Equal(t, 127, r.exit)
	require.Contains(t, r.stderr, "nothing to run")

	b.put("one.py", "import sys\nprint('one', sys.argv)")
	require.Equal(t, "one ['one.py']\n", b.batch("only", run.BatchOptions{Build: ptr("*"), Exec: ptr("*")}).stdout)
	b.put("two.py", "print('two')")
	require.Equal(t, "two\n", b.batch("latest", run.BatchOptions{Exec: ptr("*")}).stdout, "of several, the one uploaded last")
	b.put("main.py", "print('main')")
	require.Equal(t, "main\n", b.batch("main", run.BatchOptions{Exec: ptr("*")}).stdout)

	r = b.shell("signal", "kill -TERM $$")
	require.Equal(t, 143, r.exit)
	r = b.shell("background", "sleep 600 & echo started")
	require.Equal(t, "started\n", r.stdout, "a child left behind does not hold up the end")
	require.Equal(t, 127, b.shell("missing", "no-such-program-here").exit)
	require.Contains(t, b.shell("who", "id -u; pwd; echo $HOME $USER $LANG").stdout, b.cfg.User.Home+" work C.UTF-8")
}

func TestBatchInput(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	b.put("ask.py", "import getpass\nprint('before')\nprint('hi', input('name? '))\nprint(getpass.getpass('pw? '))\ntry:\n    input()\n"+
		"except EOFError:\n    print('eof')")
	r := b.shell("ask", "python3 ask.py", "Ada", "secret")
	require.Equal(t, "before\nname? hi Ada\npw? secret\neof\n", r.stdout, r.stderr)
	require.Equal(t, 0, r.exit)
	r = b.shell("file", "echo Bob > name.txt; python3 -c 'print(input())' < name.txt; echo Eve | python3 -c 'print(input())'")
	require.Equal(t, "Bob\nEve\n", r.stdout, "real standard input is read as ever")
	from := int64(0)
	res, err := b.c.Step(ctx(t), "cut", run.StepRequest{Mode: run.ModeBatch, Options: &run.BatchOptions{Exec: ptr("python3 -c 'input()'")},
		From: &from, WaitMS: waitMS})
	require.NoError(t, err)
	require.Equal(t, run.StatusWaitingInput, res.Status)
	_, err = b.c.Interrupt(ctx(t), "")
	require.NoError(t, err)
	res, err = b.c.Step(ctx(t), "cut", run.StepRequest{Mode: run.ModeContinue, WaitMS: waitMS})
	for err == nil && !res.Status.Final() {
		res, err = b.c.Step(ctx(t), "cut", run.StepRequest{Mode: run.ModeContinue, WaitMS: waitMS})
	}
	require.NoError(t, err)
	require.NotZero(t, *res.ExitCode)
}

func TestRecipes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ runtime, code, want string }{
		{"shell", "echo $((6*7)); exit 3", "42\n"},
		{"c", "#include <stdio.h>\nint main(void) { puts(\"42\"); return 3; }", "42\n"},
		{"cpp", "#include <iostream>\nint main() { std::cout << 42 << std::endl; return 3; }", "42\n"},
		{"go", "package main\nimport (\"fmt\"; \"os\")\nfunc main() { fmt.Println(42); os.Exit(3) }", "42\n"},
		{"nodejs", "console.log(42); process.exit(3)", "42\n"},
		{"r", "cat(42, '\\n', sep=''); quit(status=3)", "42\n"},
	} {
		t.Run(c.runtime, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			cfg.Runtime.Type = c.runtime
			if c.runtime == "go" { // the standard library is compiled once per machine, not per test run
				cache := filepath.Join(os.TempDir(), fmt.Sprint("berth-test-gocache-", cfg.User.UID))
				require.NoError(t, os.MkdirAll(cache, 0o755))
				_ = os.Chown(cache, cfg.User.UID, cfg.User.GID) // another than root owns it already
				cfg.Env["PATH"] += ":/usr/local/go/bin"
				cfg.Env["GOCACHE"] = cache
			}
			b := start(t, cfg)
			h, err := b.c.Hello(ctx(t))
			require.NoError(t, err)
			r := b.query("q", c.code)
			if h.Runtime.How == "none" {
				require.Equal(t, 127, r.exit)
				require.Contains(t, r.stderr, "nothing to execute code with")
				return
			}
			require.Equal(t, c.want, r.stdout, r.stderr)
			require.Equal(t, 3, r.exit)
			require.NotZero(t, b.query("bad", "}}} (").exit)
		})
	}
}

func TestBootstrap(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Bootstrap = "echo from bootstrap\nid -u > marker\nexit 7\n"
	b := start(t, cfg)
	require.Contains(t, b.shell("x", "cat marker").stdout, "\n")
	// What it writes reaches us a moment later.
	require.Eventually(t, func() bool {
		return strings.Contains(b.log(), "from bootstrap") && strings.Contains(b.log(), "exit_code=7")
	}, patience, 2*time.Millisecond, "the log of the bootstrap script")
}

func batchConfig(t *testing.T, command string) run.Config {
	cfg := config(t)
	cfg.SessionType, cfg.Batch = "batch", &run.BatchCommand{Command: command}
	return cfg
}

func (b *box) wait() int {
	select {
	case <-b.exit:
		return b.code
	case <-time.After(patience):
		b.t.Fatal("the runner did not end")
		return -1
	}
}

func TestBatchJob(t *testing.T) {
	t.Parallel()
	b := launch(t, batchConfig(t, "echo out; echo err >&2; echo $_BACKEND_BATCH_MODE; exit 3"))
	require.Equal(t, 3, b.wait(), "the container ends with the command's exit code")
	res := readResult(t, b.cfg)
	require.Equal(t, 3, res.ExitCode)
	require.Equal(t, b.cfg.KernelID, res.KernelID)
	require.False(t, res.EndedAt.Before(res.StartedAt))
	require.Contains(t, b.log(), "out\n")
	require.Contains(t, b.log(), "err\n")
	text, err := os.ReadFile(filepath.Join(b.cfg.User.Home, ".logs/task/0a/1b/2c3d000000000000000000000000.log"))
	require.NoError(t, err)
	require.Equal(t, runner.TaskLogPath(b.cfg.KernelID), ".logs/task/0a/1b/2c3d000000000000000000000000.log")
	for _, line := range []string{"out\n", "err\n", "1\n"} {
		require.Contains(t, string(text), line)
	}
	// The same container started again must not run the command twice.
	again := launch(t, b.cfg)
	require.Equal(t, 3, again.wait())
	require.Equal(t, res, readResult(t, b.cfg))
}

// TestBatchJobRunsOnce: a command whose start was recorded and whose end was not is never started again.
func TestBatchJobRunsOnce(t *testing.T) {
	t.Parallel()
	b := launch(t, batchConfig(t, "echo run >> $HOME/runs; exit 0"))
	require.Equal(t, 0, b.wait())
	require.FileExists(t, b.cfg.StartedFile())
	require.FileExists(t, b.cfg.EndedFile())
	require.NoError(t, os.Remove(b.cfg.ResultFile)) // as if the runner had been killed before it wrote the result
	again := launch(t, b.cfg)
	require.Equal(t, 125, again.wait())
	require.Contains(t, readResult(t, b.cfg).Error, "it was started before")
	runs, err := os.ReadFile(filepath.Join(b.cfg.User.Home, "runs"))
	require.NoError(t, err)
	require.Equal(t, "run\n", string(runs))
}

// TestBatchResultOnAFullDisk: a job that fills the disk of its result and succeeds has succeeded.
func TestBatchResultOnAFullDisk(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	small := filepath.Join(cfg.User.Home, "small")
	require.NoError(t, os.MkdirAll(small, 0o777))
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, 0) })
	cfg.SessionType = "batch"
	cfg.Batch = &run.BatchCommand{Command: "dd if=/dev/zero of=$HOME/small/filler bs=4k 2>/dev/null; exit 0"}
	cfg.ResultFile = filepath.Join(small, "result.json")
	b := launch(t, cfg)
	require.Equal(t, 0, b.wait(), "%s", b.log())
	require.Equal(t, 0, readResult(t, cfg).ExitCode)
	require.NoError(t, os.Remove(filepath.Join(small, "filler")))

	// A start that cannot be recorded is none.
	require.NoError(t, os.WriteFile(filepath.Join(small, "filler"), make([]byte, 40<<10), 0o644))
	cfg = batchConfig(t, "echo run >> $HOME/runs")
	cfg.ResultFile = filepath.Join(small, "deep", "result.json")
	require.Equal(t, 75, launch(t, cfg).wait())
	require.NoFileExists(t, filepath.Join(cfg.User.Home, "runs"))
}

func TestBatchJobLargeOutput(t *testing.T) {
	t.Parallel()
	b := launch(t, batchConfig(t, "head -c 20000000 /dev/zero | tr '\\0' x"))
	require.Equal(t, 0, b.wait(), "nobody has to read the output of a batch session")
	require.GreaterOrEqual(t, strings.Count(b.log(), "x"), 20000000)
	fi, err := os.Stat(filepath.Join(b.cfg.User.Home, runner.TaskLogPath(b.cfg.KernelID)))
	require.NoError(t, err)
	require.EqualValues(t, 20000000, fi.Size())
}

func TestBatchJobTimeout(t *testing.T) {
	t.Parallel()
	cfg := batchConfig(t, "sleep 600")
	cfg.Batch.TimeoutMS = 100
	b := launch(t, cfg)
	require.Equal(t, 124, b.wait())
	res := readResult(t, cfg)
	require.True(t, res.TimedOut)
	require.Equal(t, int(syscall.SIGTERM), res.Signal)
}

func TestBatchJobCancelled(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"signal", "shutdown"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cfg := batchConfig(t, "trap 'echo stopping; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
			cfg.Limits.GraceMS = int(patience.Milliseconds())
			b := start(t, cfg)
			require.Eventually(t, func() bool { return bytes.Contains([]byte(b.log()), []byte("ready")) }, patience, 5*time.Millisecond)
			st, err := b.c.Batch(ctx(t))
			require.NoError(t, err)
			require.Equal(t, run.BatchRunning, st.Phase)
			if how == "signal" {
				require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
			} else {
				require.NoError(t, b.c.Shutdown(ctx(t), patience))
			}
			require.Equal(t, 9, b.wait())
			res := readResult(t, cfg)
			require.True(t, res.Cancelled)
			require.Equal(t, 9, res.ExitCode)
			require.Contains(t, b.log(), "stopping")
		})
	}
}

// held waits for a while, and fails if the runner ended meanwhile.
func (b *box) held(d time.Duration, what string) {
	select {
	case <-b.exit:
		b.t.Fatalf("the runner ended with code %d before %s", b.code, what)
	case <-time.After(d):
	}
}

// TestBatchJobWhoseResultIsWrittenLate: a session that is told to end waits for the disk, and its container has the command's exit code.
func TestBatchJobWhoseResultIsWrittenLate(t *testing.T) {
	t.Parallel()
	cfg := batchConfig(t, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	b := start(t, cfg)
	require.Eventually(t, func() bool { return strings.Contains(b.log(), "ready") }, patience, 5*time.Millisecond)
	// Whoever opens a pipe to write waits for a reader.
	written := b.cfg.ResultFile + ".new"
	require.NoError(t, os.Remove(written))
	require.NoError(t, syscall.Mkfifo(written, 0o600))
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	b.held(3*time.Second, "the result was recorded") // it waited for 2 s once
	read := make(chan []byte, 1)
	go func() {
		text, _ := os.ReadFile(written) // nothing where nobody writes any more
		read <- text
	}()
	require.Contains(t, string(await.Value(t, read)), `"exit_code": 9`)
	require.Equal(t, 9, b.wait())
}

// TestBatchJobWhoseLogIsReadLate: what a command wrote last is in the log of its container, although the engine was slow.
func TestBatchJobWhoseLogIsReadLate(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	b := launch(t, batchConfig(t, "head -c 500000 /dev/zero | tr '\\0' x; exit 3"), func(c *exec.Cmd) { c.Stdout = write })
	require.NoError(t, write.Close())
	require.Eventually(t, func() bool { return strings.Contains(b.log(), "the batch command ended") }, patience, 5*time.Millisecond)
	b.held(3*time.Second/2, "its log was read") // it waited for 1 s once
	text, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, 500_000, strings.Count(string(text), "x"))
	require.Equal(t, 3, b.wait())
}

func TestBatchJobCannotStart(t *testing.T) {
	t.Parallel()
	b := launch(t, batchConfig(t, "/no/such/program"))
	require.Equal(t, 127, b.wait())
	require.Equal(t, 127, readResult(t, b.cfg).ExitCode)
}
