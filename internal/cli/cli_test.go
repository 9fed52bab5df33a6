package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// bench is a command line in front of a fake manager.
type bench struct {
	*fakeManager
	app     *frame.Frame
	signals chan os.Signal
	env     map[string]string
	started *fakePrograms
}

func setup(t *testing.T) *bench {
	t.Helper()
	f := newFake(t)
	env := map[string]string{api.EnvEndpoint: f.URL, api.EnvAccessKey: fakeAccess, api.EnvSecretKey: fakeSecret, "MINE": "own value"}
	b := &bench{fakeManager: f, signals: make(chan os.Signal, 2), env: env, started: &fakePrograms{}}
	b.app = &frame.Frame{
		Build:      "test",
		Look:       time.Millisecond,
		Getenv:     func(k string) string { return env[k] },
		Now:        func() time.Time { return time.Date(2026, 11, 20, 8, 5, 0, 0, time.UTC) },
		Interrupts: func() (<-chan os.Signal, func()) { return b.signals, func() {} },
		Programs:   b.started,
	}
	return b
}

func (b *bench) without(name string) *bench {
	old := b.app.Getenv
	b.app.Getenv = func(k string) string {
		if k == name {
			return ""
		}
		return old(k)
	}
	return b
}

type outcome struct {
	out, err string
	code     int
}

// do runs one command line with the given standard input.
func (b *bench) do(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	return b.doWith(t, strings.NewReader(stdin), &bytes.Buffer{}, args...)
}

func (b *bench) doWith(t *testing.T, stdin io.Reader, out io.Writer, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	root := &cobra.Command{Use: "berth"}
	root.AddCommand(commands(b.app)...)
	var errs bytes.Buffer
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(&errs)
	code := frame.Execute(ctx, root)
	text := ""
	if buf, ok := out.(*bytes.Buffer); ok {
		text = buf.String()
	}
	return outcome{out: text, err: errs.String(), code: code}
}

func TestRunPrintsAndRemovesTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(t, "", "run", "python", "-c", "print:42")

	require.Equal(t, "42\n", o.out)
	require.Equal(t, frame.ExitOK, o.code, o.err)
	require.Contains(t, o.err, "queued (no agent has 1 cpu free)")
	require.Contains(t, o.err, "pulling berth/python:3.11")
	require.Contains(t, o.err, "starting")
	require.Len(t, b.destroys, 1)
	require.True(t, b.creates[0].EnqueueOnly)
	require.Equal(t, "default", b.creates[0].Group)
}

func TestRunPassesTheExitCodeThrough(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(t, "", "run", "-q", "python", "-c", "exit:3")

	require.Equal(t, 3, o.code)
	require.Empty(t, o.out)
	require.Equal(t, "leaving\n", o.err)
}

func TestRunPassesStandardInputOn(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		in, out, err string
		code         int
	}{
		"a line":              {"Ada\n", "hi Ada\n", "", 0},
		"a line without end":  {"Ada", "hi Ada\n", "", 0},
		"a line with CR":      {"Ada\r\n", "hi Ada\n", "", 0},
		"an empty line":       {"\n", "hi \n", "", 0},
		"more than is needed": {"Ada\nBob\n", "hi Ada\n", "", 0},
		"nothing":             {"", "", "EOFError: EOF when reading a line\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)

			o := b.do(t, tc.in, "run", "-q", "python", "-c", "hello")

			require.Equal(t, outcome{tc.out, tc.err, tc.code}, o)
		})
	}
}

func TestRunWithANameKeepsTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)

	require.Equal(t, 0, b.do(t, "", "run", "python", "--name", "mylab", "-c", "print:1").code)
	require.Equal(t, 0, b.do(t, "", "run", "python", "--name", "mylab", "-c", "print:2").code)
	require.Empty(t, b.destroys)
	require.Len(t, b.sessions, 1)

	require.Equal(t, 0, b.do(t, "", "run", "python", "--name", "mylab", "--rm", "-c", "print:3").code)
	require.Equal(t, []string{"mylab wait=0"}, b.destroys)
}

func TestRunKeepTellsHowToEndTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(t, "", "run", "--keep", "python", "-c", "print:1")

	require.Empty(t, b.destroys)
	require.Contains(t, o.err, "berth session rm run-")
}

func TestRunFilesUploadsThemAndRunsTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	main, data := dir+"/my prog.py", dir+"/data.csv"
	require.NoError(t, os.WriteFile(main, []byte("print(1)"), 0o600))
	require.NoError(t, os.WriteFile(data, []byte("1,2"), 0o600))

	o := b.do(t, "", "run", "-q", "python", main, data, "--", "--epochs", "3 4")

	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, "python3 'my prog.py' '--epochs' '3 4'\n", o.out)
	require.Equal(t, map[string]string{"my prog.py": "print(1)", "data.csv": "1,2"}, b.uploads)
}

func TestRunSendsWhatTheFlagsSay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	script := t.TempDir() + "/boot.sh"
	require.NoError(t, os.WriteFile(script, []byte("echo hi"), 0o600))

	o := b.do(t, "", "run", "python", "-c", "print:1", "-r", "cpu=2", "-r", "mem=256", "-r", "gpu=1", "-e", "A=b=c", "-e", "MINE",
		"--tag", "x", "--bootstrap", script, "--resource-opt", "shmem=64m", "--resource-group", "gpu", "--priority", "0")

	require.Equal(t, 0, o.code, o.err)
	got := b.creates[0]
	require.Equal(t, map[string]string{"cpu": "2", "mem": "256m", "gpu": "1"}, got.Config.Resources,
		"what gpu means is the manager's to say")
	require.Equal(t, map[string]string{"A": "b=c", "MINE": "own value"}, got.Config.Environ)
	require.Equal(t, map[string]string{"shmem": "64m"}, got.Config.ResourceOpts)
	require.Equal(t, "gpu", got.Config.ScalingGroup)
	require.Equal(t, "x", got.Tag)
	require.Equal(t, "echo hi", got.BootstrapScript)
	require.Equal(t, 0, *got.Priority)
}

func TestRunBatchFollowsTheLogAndExitsWithTheResult(t *testing.T) {
	t.Parallel()

	for _, code := range []int{0, 4} {
		b := setup(t)
		b.log, b.exit = "one\ntwo\n", code

		o := b.do(t, "", "run", "-q", "python", "--batch", "python3 job.py")

		require.Equal(t, outcome{"one\ntwo\n", "", code}, o)
		require.Equal(t, "batch", b.creates[0].Type)
		require.Equal(t, "python3 job.py", b.creates[0].StartupCommand)
		require.Empty(t, b.destroys)
	}
}

func TestRunBatchThatEndsBeforeWeLook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.log, b.exit, b.stages = "quick\n", 5, []string{api.StatusPending, api.StatusTerminated}

	o := b.do(t, "", "run", "-q", "python", "--batch", "false")

	require.Equal(t, outcome{"quick\n", "", 5}, o)
}

func TestRunBatchThatIsEndingWhenWeLook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.log, b.exit, b.stages = "quick\n", 5, []string{api.StatusPending, api.StatusTerminating, api.StatusTerminated}

	o := b.do(t, "", "run", "-q", "python", "--batch", "false")

	require.Equal(t, outcome{"quick\n", "", 5}, o)
}

func TestRunTellsWhyASessionDidNotStart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stages = []string{api.StatusPending, api.StatusPulling, api.StatusError}

	o := b.do(t, "", "run", "-q", "python", "-c", "print:1")

	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "is ERROR (image pull failed)")
	require.Contains(t, o.err, "next: berth session info")
}

// onText sends a signal whenever a text is written.
type onText struct{ f func() }

func (w *onText) Write(p []byte) (int, error) {
	w.f()
	return len(p), nil
}

func TestRunCtrlCInterruptsTheCell(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.doWith(t, strings.NewReader(""), &onText{f: func() { b.signals <- os.Interrupt }}, "run", "-q", "python", "-c", "hang")

	require.Equal(t, 130, o.code)
	require.Equal(t, "KeyboardInterrupt\n", o.err)
	require.Len(t, b.destroys, 1)
}

func TestRunSecondCtrlCEndsTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.doWith(
		t, strings.NewReader(""), &onText{f: func() { b.signals <- os.Interrupt; b.signals <- os.Interrupt }}, "run", "-q", "python", "-c",
		"hang:again",
	)

	require.Equal(t, 130, o.code)
	require.Len(t, b.destroys, 1)
}

func TestRunCtrlCWhileWaitingRemovesTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stages = []string{api.StatusPending}
	b.signals <- os.Interrupt

	o := b.do(t, "", "run", "-q", "python", "-c", "print:1")

	require.Equal(t, 130, o.code)
	require.Len(t, b.destroys, 1)
	require.Contains(t, b.destroys[0], "forced=true")
}

func TestRunTimeoutRemovesTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stages = []string{api.StatusPending}

	o := b.do(t, "", "run", "-q", "--timeout", "5s", "python", "-c", "print:1")

	require.Equal(t, frame.ExitUnavailable, o.code, o.err)
	require.Contains(t, o.err, "not done after 5s")
	require.Len(t, b.destroys, 1)
}

func TestRunRemovesASessionWhoseCreationWasNotAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mute = true

	o := b.do(t, "", "run", "-q", "--timeout", "5s", "python", "-c", "print:1")

	require.Equal(t, frame.ExitUnavailable, o.code, o.err)
	require.Len(t, b.destroys, 1)
}

func TestRunShowsOrSavesMedia(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cell = func(c *fakeCellConn, _ string) {
		c.send(api.ExecuteResult{Status: api.ExecContinued, Console: []api.ConsoleItem{
			api.ConsoleMedia("image/png", "iVBORw0KGgo="),
			api.ConsoleMedia("image/svg+xml", "<svg/>"),
			api.ConsoleText("html", "<b>hi</b>"),
		}})
		c.finish(0)
	}
	dir := t.TempDir()

	o := b.do(t, "", "run", "--name", "mylab", "python", "-c", "plot")
	require.Contains(t, o.err, "[image/png, 8 B; --save-media DIR keeps it]")

	o = b.do(t, "", "run", "--name", "mylab", "python", "-c", "plot", "--save-media", dir)
	require.Equal(t, 0, o.code, o.err)
	for name, want := range map[string]string{"media-1.png": "\x89PNG\r\n\x1a\n", "media-2.svg": "<svg/>", "media-3.html": "<b>hi</b>"} {
		got, err := os.ReadFile(dir + "/" + name)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

func TestRunSaysWhenTheStreamBreaks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cell = func(c *fakeCellConn, _ string) { _ = c.conn.CloseNow() }

	o := b.do(t, "", "run", "-q", "python", "-c", "x")

	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "the stream broke")
	require.Contains(t, o.err, "next: berth session logs")
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()

	for _, line := range []string{
		"run", "run python", "run python -c x file.py", "run python --batch x -c y", "run python --batch x file.py",
		"run python -c x -r cpu", "run python -c x --nope", "session", "session nope", "session create", "session rename mylab",
		"session wait mylab --for ever", "session create python --starts-at 10m", "session exec mylab", "session exec -t mylab -- sh",
		"image alias x", "session list --all --status RUNNING", "session events --scope moon", "agent info",
	} {
		b := setup(t)
		o := b.do(t, "", strings.Fields(line)...)
		if line == "session" {
			require.Equal(t, frame.ExitOK, o.code)
			continue
		}
		require.Equal(t, frame.ExitUsage, o.code, line+": "+o.err)
		require.Contains(t, o.err, "next: ", line)
		require.Empty(t, b.creates, line)
	}
}

func TestErrorsHaveExitCodesAndNextSteps(t *testing.T) {
	t.Parallel()
	mylab := func(t *testing.T) *bench { return setup(t) }

	for name, tc := range map[string]struct {
		prepare func(t *testing.T) *bench
		line    string
		code    int
		says    string
		next    string
	}{
		"unknown session":     {mylab, "session info nope", frame.ExitNotFound, "session nope does not exist", "berth session list --all"},
		"unknown agent":       {mylab, "agent info nope", frame.ExitNotFound, "agent nope does not exist", "berth agent list"},
		"unknown image":       {mylab, "image inspect nope", frame.ExitNotFound, "image nope does not exist", "berth image list"},
		"server's own advice": {mylab, "run nope -c x", frame.ExitNotFound, "image nope does not exist", "berth image list"},
		"no permission":       {mylab, "image alias forbidden python", frame.ExitDenied, "no permission", "berth whoami"},
		"wrong secret": {func(t *testing.T) *bench {
			b := setup(t)
			old := b.app.Getenv
			b.app.Getenv = func(k string) string {
				if k == api.EnvSecretKey {
					return "wrong"
				}
				return old(k)
			}
			return b
		}, "session list", frame.ExitDenied, "signature does not match", "check BACKEND_ACCESS_KEY"},
		"nobody listens": {func(t *testing.T) *bench {
			b := setup(t)
			b.Close()
			return b
		}, "session list", frame.ExitUnavailable, "connection refused", "berth up"},
		"half a configuration": {func(t *testing.T) *bench { return setup(t).without(api.EnvSecretKey) }, "session list", frame.ExitFailure,
			"must be set together", ""},
		"no configuration": {func(t *testing.T) *bench {
			b := setup(t)
			dir := t.TempDir()
			b.app.Getenv = func(k string) string { return map[string]string{api.EnvStateDir: dir}[k] }
			return b
		}, "session list", frame.ExitFailure, "no cluster is configured", "berth up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tc.prepare(t).do(t, "", strings.Fields(tc.line)...)

			require.Equal(t, tc.code, o.code, o.err)
			require.Contains(t, o.err, tc.says)
			if tc.next != "" {
				require.Contains(t, o.err, "next: ")
				require.Contains(t, o.err, tc.next)
			}
			require.Empty(t, o.out)
		})
	}
}

func TestConfigurationFromTheStateDirectory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	env := "# written by berth up\nexport BACKEND_ENDPOINT=" + b.URL + "\nBACKEND_ENDPOINT_TYPE=api\nBACKEND_ACCESS_KEY='" +
		fakeAccess + "'\nBACKEND_SECRET_KEY=\"" + fakeSecret + "\"\n"
	require.NoError(t, os.WriteFile(dir+"/client.env", []byte(env), 0o600))
	b.app.Getenv = func(string) string { return "" }

	o := b.do(t, "", "run", "-q", "--state-dir", dir, "python", "-c", "print:42")

	require.Equal(t, outcome{"42\n", "", 0}, o)
}
