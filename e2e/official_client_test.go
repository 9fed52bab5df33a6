package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// official is the official Backend.AI command line, talking to one cluster.
type official struct {
	t    testing.TB
	venv string
	env  []string
	dir  string // where it runs; holds the files it uploads
	// owner is the test that the client lives as long as; t may be a part of it.
	owner testing.TB
	load  *loaded
}

// loaded is a process that runs one command at a time.
type loaded struct {
	turn    sync.Mutex
	process *driven // nil before the first command
}

// officialVenv makes the virtual environment once per run; BERTH_OFFICIAL_VENV names a ready one.
var officialVenv = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("BERTH_OFFICIAL_VENV"); dir != "" {
		return dir, nil
	}
	cmd := exec.Command("../scripts/official-client.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// newOfficial talks to the cluster that the environment env, as in client.env, names.
func newOfficial(t *testing.T, env []string) *official {
	t.Helper()
	venv, err := officialVenv()
	require.NoError(t, err, "make the official client's environment")
	return officialOf(t, venv, env)
}

// officialOf is the official client of an environment that a script made.
func officialOf(t *testing.T, venv string, env []string) *official {
	t.Helper()
	home := t.TempDir()
	return &official{t: t, owner: t, venv: venv, dir: t.TempDir(), load: &loaded{}, env: append([]string{
		"HOME=" + home, "PATH=" + filepath.Join(venv, "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "TERM=dumb", "COLUMNS=200",
	}, env...)}
}

func (o *official) command(ctx context.Context, stdin string, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, filepath.Join(o.venv, "bin", "backend.ai"), args...)
	cmd.Env, cmd.Dir, cmd.Stdin = o.env, o.dir, strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return cmd, &stdout, &stderr
}

// run runs a command in a fork of a process that loaded the client; in a process of its own when it starts others, or beside another
// command.
func (o *official) run(stdin string, args ...string) result {
	o.t.Helper()
	if r, ok := o.fork(driverAsk{Args: args, Stdin: stdin, Dir: o.dir}); ok {
		return r
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, stdout, stderr := o.command(ctx, stdin, args...)
	require.NoError(o.t, cmd.Start())
	ended := make(chan struct{})
	var watched sync.WaitGroup
	watched.Go(func() { interruptAgain(ended, cmd.Process.Pid) })
	_ = cmd.Wait()
	close(ended)
	watched.Wait()
	require.NoError(o.t, ctx.Err(), "backend.ai %s did not end: %s%s", strings.Join(args, " "), stdout, stderr)
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// startOthers are the commands that run programs and wait for them.
var startOthers = []string{"ssh", "scp", "app"}

func (o *official) fork(q driverAsk) (r result, ok bool) {
	o.t.Helper()
	others := q.Python == "" && slices.Contains(startOthers, q.Args[0])
	if others || inRoot(o.venv) || !o.load.turn.TryLock() {
		return result{}, false
	}
	defer o.load.turn.Unlock()
	if o.load.process == nil {
		o.load.process = loadClient(o.owner, "backend.ai", o.venv, o.env)
	}
	process := *o.load.process
	process.t = o.t
	reply := process.ask(q)
	return result{reply.Stdout, reply.Stderr, reply.Code}, true
}

// python runs a program that uses the client's library.
func (o *official) python(program string, args ...string) string {
	o.t.Helper()
	r, ok := o.fork(driverAsk{Python: program, Args: args, Dir: o.dir})
	if !ok {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(o.venv, "bin", "python"), append([]string{"-W", "ignore", "-c", program}, args...)...)
		cmd.Env, cmd.Dir = o.env, o.dir
		out, err := cmd.CombinedOutput()
		require.NoError(o.t, err, string(out))
		return string(out)
	}
	require.Zero(o.t, r.code, r.stdout+r.stderr)
	return r.stdout
}

// interruptAgain helps the client's ssh and scp to end. They interrupt a proxy of their own when their program has ended and
// wait for it, and that interrupt gets lost when it meets the manager's last words: the library that reads them (aiohttp)
// takes every exception, KeyboardInterrupt too, for a failure of the connection. People press Ctrl-C again; so does this, when
// nothing but the proxy is left for a while: a long one where the program was not seen, because the proxy alone comes first.
func interruptAgain(ended <-chan struct{}, client int) {
	for alone, seen := 0, false; ; {
		select {
		case <-ended:
			return
		case <-time.After(500 * time.Millisecond):
		}
		children := childrenOf(client)
		seen = seen || len(children) > 1
		if len(children) != 1 || !strings.Contains(children[0].command, "ai.backend.cli app ") {
			alone = 0
			continue
		}
		if alone++; alone%4 == 0 && (alone > 160 || seen && alone > 32) {
			_ = syscall.Kill(children[0].pid, syscall.SIGINT)
		}
	}
}

type childProcess struct {
	pid     int
	command string
}

func childrenOf(parent int) (out []childProcess) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		text, err := os.ReadFile(f)
		_, rest, ok := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); err != nil || !ok || len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		out = append(out, childProcess{pid, strings.ReplaceAll(string(line), "\x00", " ")})
	}
	return out
}

// must runs a command that has to succeed and returns both of its outputs: the client talks on either.
func (o *official) must(args ...string) string {
	o.t.Helper()
	r := o.run("", args...)
	require.Zero(o.t, r.code, "backend.ai %s:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	require.NotContains(o.t, r.stderr, "Traceback", "backend.ai %s", strings.Join(args, " "))
	return r.stdout + r.stderr
}

// json runs a command with JSON output.
func (o *official) json(into any, args ...string) {
	o.t.Helper()
	r := o.run("", append([]string{"--output=json"}, args...)...)
	require.Zero(o.t, r.code, "backend.ai %s:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	// The client prints its warnings before the document, on the same output.
	document := r.stdout[max(0, strings.IndexAny(r.stdout, "{[")):]
	require.NoError(o.t, json.Unmarshal([]byte(document), into), "backend.ai %s answered:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
}

func (o *official) write(name, text string) {
	o.t.Helper()
	file := filepath.Join(o.dir, name)
	require.NoError(o.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(o.t, os.WriteFile(file, []byte(text), 0o644))
}

type officialSession struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Status string `json:"status"`
	Result string `json:"result"`
	Type   string `json:"type"`
}

// session finds one session in the client's list, ended ones too.
func (o *official) session(name string) (officialSession, bool) {
	o.t.Helper()
	var list struct {
		Items []struct {
			ID     string `json:"session_id"`
			Name   string `json:"name"`
			Status string `json:"status"`
			Result string `json:"result"`
			Type   string `json:"type"`
		} `json:"items"`
	}
	for _, which := range []string{"--running", "--dead"} {
		o.json(&list, "session", "list", which)
		for _, i := range list.Items {
			if i.Name == name {
				return officialSession{i.ID, i.Name, i.Status, i.Result, i.Type}, true
			}
		}
	}
	return officialSession{}, false
}

// commitReady asks through the SDK whether no commit of the session is going on.
func (o *official) commitReady(name string) bool {
	o.t.Helper()
	return strings.TrimSpace(o.python(`
import sys
from ai.backend.client.request import Request
from ai.backend.client.session import AsyncSession
import asyncio
async def main():
    async with AsyncSession():
        async with Request("GET", f"/session/{sys.argv[1]}/commit").fetch() as r:
            print((await r.json())["status"])
asyncio.run(main())`, name)) == "ready"
}

// TestOfficialClient walks on a cluster of its own, or on that of BERTH_E2E_CLIENT_ENV, the path of a client.env.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	if file := os.Getenv("BERTH_E2E_CLIENT_ENV"); file != "" {
		walk(t, newOfficial(t, readEnv(t, file)))
		return
	}
	p := up(t)
	walk(t, newOfficial(t, p.env()))
	p.clean()
}

// walk goes through the commands of the unmodified official command line, along the life of an interactive and
// of a batch session.
func walk(t *testing.T, o *official) {
	t.Helper()
	tag := fmt.Sprintf("%x", time.Now().UnixNano()&0xffffff)
	name := "official-" + tag

	t.Run("config and version", func(t *testing.T) {
		require.Contains(t, o.must("config"), "24.09")
	})
	t.Run("run -c", func(t *testing.T) {
		require.Contains(t, o.must("run", "--rm", "python", "-c", "print(6*7)"), "42\n")
	})
	t.Run("run -c shows errors of the code", func(t *testing.T) {
		r := o.run("", "run", "--rm", "python", "-c", "1/0")
		require.Contains(t, r.stdout+r.stderr, "ZeroDivisionError")
	})
	t.Run("run -c reads standard input", func(t *testing.T) {
		r := o.run("Ada\n", "run", "--rm", "python", "-c", `print("hi", input())`)
		require.Contains(t, r.stdout, "hi Ada\n", r.stderr)
	})
	t.Run("run with files", func(t *testing.T) {
		o.write("main.py", "import helper\nprint('files:', helper.answer)\n")
		o.write("helper.py", "answer = 42\n")
		require.Contains(t, o.must("run", "--rm", "python", "main.py", "helper.py", "--exec", "python3 main.py"), "files: 42\n")
	})
	t.Run("run one file", func(t *testing.T) {
		o.write("alone.py", "print('alone')\n")
		require.Contains(t, o.must("run", "--rm", "python", "alone.py"), "alone\n")
	})
	t.Run("an unknown image is a clear error", func(t *testing.T) {
		r := o.run("", "run", "--rm", "no-such-image-"+tag, "-c", "1")
		require.Contains(t, r.stdout+r.stderr, "no-such-image-"+tag)
		require.NotContains(t, r.stderr, "Traceback")
	})
	t.Run("session create", func(t *testing.T) {
		require.Contains(t, o.must("session", "create", "--name", name, "-r", "cpu=1", "-r", "mem=512m", "-e", "GREETING=hello", "python"),
			"is created and ready")
	})
	s, found := o.session(name)
	require.True(t, found, "the created session is listed")
	require.Equal(t, "RUNNING", s.Status)

	t.Run("ps", func(t *testing.T) {
		require.Contains(t, o.must("ps"), name)
	})
	t.Run("session info", func(t *testing.T) {
		out := o.must("session", "info", s.ID)
		require.Contains(t, out, name)
		require.Contains(t, out, "RUNNING")
	})
	t.Run("run in the same session keeps its state", func(t *testing.T) {
		o.must("run", "--name", name, "python", "-c", "kept = 'still here'")
		require.Contains(t, o.must("run", "--name", name, "python", "-c", "import os; print(kept, os.environ['GREETING'])"), "still here hello\n")
	})
	t.Run("upload, ls and download", func(t *testing.T) {
		o.write("up/deep/data.txt", "forty-two\n")
		o.must("session", "upload", name, "up/deep/data.txt")
		require.Contains(t, o.must("session", "ls", name, "up/deep"), "data.txt")
		o.must("session", "download", name, "up/deep/data.txt", "--dest", "down")
		var got []byte
		require.NoError(t, filepath.WalkDir(filepath.Join(o.dir, "down"), func(p string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "data.txt" {
				got, err = os.ReadFile(p)
			}
			return err
		}))
		require.Equal(t, "forty-two\n", string(got))
	})
	t.Run("downloads cannot leave the home directory", func(t *testing.T) {
		r := o.run("", "session", "download", name, "../../etc/passwd", "--dest", "escaped")
		require.NotContains(t, r.stderr, "Traceback")
		_, err := os.Stat(filepath.Join(o.dir, "escaped", "passwd"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("session logs", func(t *testing.T) {
		o.must("session", "logs", name)
	})
	t.Run("session status-history", func(t *testing.T) {
		require.Contains(t, o.must("session", "status-history", name), "Actual Resource Allocation Time")
	})
	t.Run("session rename", func(t *testing.T) {
		o.must("session", "rename", name, name+"-b")
		name += "-b"
		require.Contains(t, o.must("ps"), name)
	})
	t.Run("session restart", func(t *testing.T) {
		o.must("session", "restart", name)
		require.Contains(t, o.must("run", "--name", name, "python", "-c", "print('kept' in globals())"), "False\n")
	})
	t.Run("session commit", func(t *testing.T) {
		require.Contains(t, o.must("session", "commit", name), "Request to commit")
		t.Cleanup(func() { // what the story leaves on the engine
			images, err := docker("images", "-q", "local/*/"+name)
			if ids := strings.Fields(images); err == nil && len(ids) > 0 {
				_, _ = docker(append([]string{"rmi", "-f"}, ids...)...)
			}
		})
		require.Eventually(t, func() bool { return o.commitReady(name) }, patience, time.Second, "the commit ends")
	})
	t.Run("session apps", func(t *testing.T) {
		o.must("apps", name)
	})
	t.Run("session events and destroy", func(t *testing.T) {
		ended := o.followEvents(t, name)
		o.must("session", "restart", name)
		o.must("session", "destroy", name)
		text := ended()
		require.Contains(t, text, "kernel_started")
		require.Contains(t, text, "session_terminated")
	})
	t.Run("a destroyed session is gone from ps", func(t *testing.T) {
		// The client calls an empty list an error.
		require.Eventually(t, func() bool { return !strings.Contains(o.run("", "ps").stdout, name) }, patience, time.Second)
	})
	t.Run("a batch session has a result", func(t *testing.T) {
		for job, want := range map[string]string{"echo from the job": "SUCCESS", "exit 3": "FAILURE"} {
			batch := fmt.Sprintf("batch-%s-%s", tag, strings.ToLower(want))
			o.must("session", "create", "--name", batch, "--type", "batch", "-c", job, "--enqueue-only", "python")
			require.Eventually(t, func() bool {
				s, found := o.session(batch)
				return found && s.Result == want && s.Status == "TERMINATED"
			}, patience, time.Second, batch)
		}
	})
	t.Run("the log of an ended batch session stays", func(t *testing.T) {
		s, found := o.session("batch-" + tag + "-success")
		require.True(t, found)
		require.Contains(t, o.must("session", "logs", s.ID), "from the job")
	})
	t.Run("agent list", func(t *testing.T) {
		require.Contains(t, o.must("admin", "agent", "list"), "ALIVE")
	})
	t.Run("image list", func(t *testing.T) {
		require.Regexp(t, regexp.MustCompile(`berth/python|\bpython\b`), o.must("admin", "image", "list"))
	})
	t.Run("keypairs and resource groups", func(t *testing.T) {
		o.must("admin", "scaling-group", "list")
		o.must("admin", "keypair", "list")
	})
	t.Run("a wrong secret is a clear error", func(t *testing.T) {
		r := officialOf(t, o.venv, append(slices.Clone(o.env), "BACKEND_SECRET_KEY=wrong")).run("", "ps")
		require.NotZero(t, r.code)
		require.Contains(t, r.stdout+r.stderr, "signature")
	})
}

// lockedBuffer takes the output of a process that is still running.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
