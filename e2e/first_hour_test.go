package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
)

// TestFirstHour: what a new user meets who names no amounts, uses up the memory and leaves.
func TestFirstHour(t *testing.T) {
	t.Parallel()
	needEngine(t)
	quiet := quietImage(t)
	p := up(t)
	memory := func(session string) string {
		t.Helper()
		var rows []struct {
			Name  string
			Slots map[string]string `json:"occupying_slots"`
		}
		require.NoError(t, json.Unmarshal([]byte(p.must("session", "list", "--json")), &rows))
		for _, r := range rows {
			if r.Name == session {
				return r.Slots["mem"]
			}
		}
		t.Fatalf("session %s is not listed", session)
		return ""
	}

	t.Run("a session that names no memory has enough for numpy", func(t *testing.T) {
		p.must("session", "create", "python", "--name", "plain")
		has, err := strconv.ParseInt(memory("plain"), 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, has, int64(512<<20), "a small machine gives less than a large one, but not less than this")
		require.LessOrEqual(t, has, int64(2<<30))
		array := min(512<<20, has/2)
		code := fmt.Sprintf("import numpy; print(numpy.ones(%d).nbytes)", array/8)
		require.Equal(t, fmt.Sprintln(array), p.must("session", "exec", "plain", "--", "python3", "-c", code))
		p.must("session", "rm", "-y", "plain")
	})
	t.Run("presets are named", func(t *testing.T) {
		p.must("preset", "create", "tiny", "-r", "cpu=1", "-r", "mem=256m")
		p.must("session", "create", "python", "--name", "tiny", "--preset", "tiny")
		require.Equal(t, fmt.Sprint(256<<20), memory("tiny"))
		r := p.run("", "session", "create", "python", "--preset", "no-such-preset")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "use one of: default, large, medium, small, tiny")
	})
	t.Run("the interpreter starts with its session, unless the image says otherwise", func(t *testing.T) {
		interpreter := func(session string) bool {
			ids := containers(t, "label=berth.session="+p.sessions()[session].ID)
			require.Len(t, ids, 1)
			processes, err := docker("top", ids[0], "-eo", "pid,args")
			require.NoError(t, err)
			return strings.Contains(processes, "launcher.py")
		}
		p.must("session", "create", quiet, "--name", "quiet", "-r", "mem=256m")
		p.must("session", "create", "python", "--name", "ready", "-r", "mem=256m")
		p.eventually("an interpreter waits for the first cell", func() bool { return interpreter("ready") })
		require.False(t, interpreter("quiet"))
		require.Equal(t, "42\n", p.must("run", quiet, "--name", "quiet", "-c", "print(6*7)"))
		require.True(t, interpreter("quiet"))
		// What the interpreter left out at its start is there for whoever asks.
		const asks = "from IPython import embed; import IPython, debugpy; print(embed.__module__, hasattr(IPython, 'nothing'))"
		require.Equal(t, "IPython.terminal.embed False\n", p.must("run", quiet, "--name", "quiet", "-c", asks))
		const completes = "import gc, sys, warnings; warnings.simplefilter('ignore'); early = 'jedi' in sys.modules\n" +
			"found = [c.text for c in get_ipython().Completer.completions('import json\\njson.dum', 20)]\n" +
			"import jedi, IPython.core.completer as c\n" +
			"print(early, 'dumps' in found, c.jedi is jedi, jedi.settings.case_insensitive_completion, gc.isenabled())"
		require.Equal(t, "False True True False True\n", p.must("run", quiet, "--name", "quiet", "-c", completes))
		p.must("session", "rm", "-y", "quiet", "ready")
	})
	const words = "killed: out of memory at 256 MiB; try -r mem=512m"
	const greedy = "x = bytearray(400 << 20)"
	t.Run("run out of memory", func(t *testing.T) {
		r := p.run("", "run", "python", "-r", "mem=256m", "-c", greedy)
		require.NotZero(t, r.code)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		require.Contains(t, lines[len(lines)-1], words)
	})
	t.Run("a program in a session that goes on", func(t *testing.T) {
		r := p.run("", "session", "exec", "tiny", "--", "python3", "-c", greedy)
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, words)
		p.eventually("the session's line names it", func() bool { return strings.Contains(p.must("session", "list"), words) })
		require.Equal(t, "RUNNING", p.sessions()["tiny"].Status)
		require.Contains(t, p.must("session", "info", "tiny"), words)
		require.Contains(t, p.must("session", "events", "tiny"), "kernel_out_of_memory  main1  out-of-memory  a process was "+words)
		p.must("session", "rm", "-y", "tiny")
	})
	t.Run("a client that is gone leaves no session behind", func(t *testing.T) {
		c, err := p.client()
		require.NoError(t, err)
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// What `berth run` does, with a lease that does not take minutes. It lasts until the code begins, because it runs from now on.
		s, err := c.CreateSession(ctx, api.CreateSession{Name: "abandoned", Image: "python", LeaseSeconds: 45,
			Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "256m"}}})
		require.NoError(t, err)
		require.Equal(t, api.StatusRunning, s.Status)
		code := api.Execute{Mode: api.ModeQuery, Code: "print('began'); import time; time.sleep(3600)"}
		running, _, err := follow.Execute(ctx, c, s.ID, code, nil)
		require.NoError(t, err)
		select {
		case <-running.Results():
		case <-ctx.Done():
			t.Fatal("the code does not begin")
		}
		require.NoError(t, running.Close())
		p.eventually("the session has ended", func() bool { return p.sessions()["abandoned"].Status == "TERMINATED" })
		require.Contains(t, p.sessions()["abandoned"].Info, "client-gone")
		p.eventually("its slots are free", func() bool {
			var agents []struct {
				Held map[string]string `json:"occupied_slots"`
			}
			require.NoError(t, json.Unmarshal([]byte(p.must("agent", "list", "--json")), &agents))
			return len(agents) == 1 && strings.Trim(agents[0].Held["cpu"], "0.") == ""
		})
	})
	p.clean()
}

// quietImage is the Python image with the word that its interpreter starts with the first cell only; it is taken away in the end.
func quietImage(t *testing.T) (reference string) {
	t.Helper()
	reference = fmt.Sprintf("berth-e2e/quiet:%x", time.Now().UnixNano()&0xffffff)
	container, err := docker("create", "berth/python:3.11")
	require.NoError(t, err)
	container = strings.TrimSpace(container)
	defer func() { _, _ = docker("rm", "-f", container) }()
	_, err = docker("commit", "--change", `LABEL dev.berth.prewarm="false"`, container, reference)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = docker("rmi", "-f", reference) })
	return reference
}

// TestWorkIsUse: a program that computes alone keeps its session; one that nobody uses and that does nothing is warned on its terminals
// and ends.
func TestWorkIsUse(t *testing.T) {
	t.Parallel()
	p := up(t)
	notes := p.onDisk("notes")
	start := func(session, command string) {
		t.Helper()
		p.must("session", "create", "python", "--name", session, "-r", "cpu=2", "-r", "mem=256m", "-v", "notes")
		p.must("session", "exec", session, "--", "sh", "-c", "setsid "+command+" </dev/null >/dev/null 2>&1 &")
	}
	// Two loops on two cores: a machine that is busy with other things leaves each of them little.
	start("busy", "python3 -c 'import os; os.fork()\nwhile True: pass'")
	// A loop that gets a twentieth of a core, as on an agent that promised too much: less than what counts as work.
	start("starved", "python3 -c 'while True: pass'")
	ids := containers(t, "label=berth.session="+p.sessions()["starved"].ID)
	require.Len(t, ids, 1)
	_, err := docker("update", "--cpu-period", "100000", "--cpu-quota", "5000", ids[0])
	require.NoError(t, err)
	// A terminal that nobody is connected to, as tmux has them; what it shows goes to the folder.
	start("silent", "script -qfc 'sleep 3600' /home/work/notes/shown")
	// Work is written every 20 s, and gathered for up to 10.
	p.must("idle", "set", "short", "--max-inactivity", "80s", "--warn-before", "10s", "--everywhere")
	p.eventually("the silent session is warned on its terminal", func() bool {
		shown, _ := os.ReadFile(filepath.Join(notes, "shown"))
		return strings.Contains(string(shown), "berth session keep-alive silent")
	})
	require.Contains(t, p.must("session", "events", "silent"), "session_idle_warning")
	p.reaches("silent", "TERMINATED")
	require.Contains(t, p.sessions()["silent"].Info, "idle")
	require.Equal(t, "RUNNING", p.sessions()["busy"].Status)
	require.Equal(t, "RUNNING", p.sessions()["starved"].Status)
	p.must("idle", "remove", "short")
	p.must("session", "rm", "-y", "busy", "starved")
	p.clean()
}

// background is a command of ours that runs beside the test.
type background struct {
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
	ended          chan struct{}
}

// background starts a command that patience ends at the latest.
func (p *platform) background(args ...string) *background {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b := &background{t: p.t, cmd: exec.CommandContext(ctx, binary, args...), ended: make(chan struct{})}
	b.cmd.Env, b.cmd.Stdout, b.cmd.Stderr = p.environ(), &b.stdout, &b.stderr
	require.NoError(p.t, b.cmd.Start())
	go func() {
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	p.t.Cleanup(func() { cancel(); <-b.ended })
	return b
}

// shows waits for a text on standard output.
func (b *background) shows(text string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return strings.Contains(b.stdout.String(), text) }, patience, 50*time.Millisecond,
		"%v shows %q", b.cmd.Args[1:], text)
}

// exits waits for the end and returns what came to standard output.
func (b *background) exits(code int) string {
	b.t.Helper()
	<-b.ended
	require.Equal(b.t, code, b.cmd.ProcessState.ExitCode(), "%v: %s%s", b.cmd.Args[1:], b.stdout.String(), b.stderr.String())
	return b.stdout.String()
}

// TestStreamsOutliveManagers: whoever follows something goes on where it was when the manager was killed and came back: no line is lost
// or comes twice, and exit codes are those of the programs.
func TestStreamsOutliveManagers(t *testing.T) {
	t.Parallel()
	p := up(t)
	const n = 60
	lines := func(word string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s %d\n", word, i)
		}
		return b.String()
	}
	job := func(word string, code int) string {
		return fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo %s $i; i=$((i+1)); sleep 0.3; done; exit %d", n, word, code)
	}
	cell := fmt.Sprintf("import time\nfor i in range(%d):\n    print('cell', i, flush=True)\n    time.sleep(0.3)\nraise SystemExit(4)", n)
	p.must("session", "create", "python", "--name", "followed", "-r", "mem=256m", "--detach", "--batch", job("log", 7))
	p.must("session", "wait", "followed")

	code := p.background("run", "python", "-r", "mem=256m", "-c", cell)
	batch := p.background("run", "python", "-r", "mem=256m", "--batch", job("batch", 5))
	logs := p.background("session", "logs", "-f", "followed")
	wait := p.background("session", "wait", "followed", "--for", "ended")
	events := p.background("session", "events", "-f", "followed")
	code.shows("cell 3\n")
	batch.shows("batch 3\n")
	logs.shows("log 3\n")
	events.shows("session_started")

	p.kill()
	p.start()

	require.Equal(t, lines("cell"), code.exits(4))
	require.Equal(t, lines("batch"), batch.exits(5))
	require.Equal(t, lines("log"), logs.exits(0))
	require.Equal(t, "TERMINATED\n", wait.exits(7))
	said := events.exits(0)
	for _, event := range []string{"session_enqueued", "session_started", "session_failure", "session_terminated"} {
		require.Equal(t, 1, strings.Count(said, "  "+event), "%s in\n%s", event, said)
	}
	p.clean()
}
