package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/run"
)

// eachPython runs a test with the shim, and with ipykernel where BERTH_TEST_IPYKERNEL names a
// Python that has it (make test sets it).
func eachPython(t *testing.T, fn func(t *testing.T, b *box, how string)) {
	t.Run("shim", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		cfg.Env["BERTH_NO_IPYKERNEL"] = "1"
		fn(t, start(t, cfg), "shim")
	})
	kernel := os.Getenv("BERTH_TEST_IPYKERNEL")
	if kernel == "" && exec.Command("/usr/bin/python3", "-c", "import ipykernel").Run() == nil {
		kernel = "/usr/bin/python3"
	}
	if kernel == "" {
		t.Log("ipykernel is not tested here: set BERTH_TEST_IPYKERNEL to a python3 that has it")
		return
	}
	t.Run("ipykernel", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		cfg.Runtime = run.RuntimeConfig{Type: "python", Path: kernel}
		fn(t, start(t, cfg), "ipykernel")
	})
}

func TestQueryPython(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, b *box, how string) {
		r := b.query("answer", "print(6*7)")
		require.Equal(t, "42\n", r.stdout)
		require.Equal(t, 0, r.exit)
		require.Equal(t, []run.Status{run.StatusFinished}, r.statuses, "a finished cell is answered in one round trip")
		h, err := b.c.Hello(ctx(t))
		require.NoError(t, err)
		require.Equal(t, how, h.Runtime.How)
		require.Equal(t, run.KernelIdle, h.Kernel.State)

		require.Equal(t, "", b.query("set", "x = 'kept'").stdout)
		require.Equal(t, "'kept'", b.query("get", "x").stdout, "variables live on and the last expression is shown as it is")

		r = b.query("exit3", "import sys\nsys.exit(3)")
		require.Equal(t, 3, r.exit)
		require.Equal(t, "SystemExit: 3\n", r.stderr)
		require.Equal(t, 0, b.query("exit0", "sys.exit()").exit)
		require.Equal(t, 4, b.query("exit4", "exit(4)").exit)
		r = b.query("exitmsg", "sys.exit('no luck')")
		require.Equal(t, 1, r.exit)
		require.Equal(t, "no luck\n", r.stderr)

		r = b.query("error", "def f():\n    return 1/0\nf()")
		require.Equal(t, 1, r.exit)
		require.Contains(t, r.stderr, "ZeroDivisionError: division by zero")
		require.Contains(t, r.stderr, "return 1/0")
		require.NotContains(t, r.stderr, "\x1b")
		require.NotContains(t, r.stderr, "launcher.py")
		require.Equal(t, 1, b.query("syntax", "def (").exit)

		r = b.query("input", "print('before')\nname = input('name? ')\nprint('hi', name)", "Ada")
		require.Equal(t, "before\nname? hi Ada\n", r.stdout)
		require.Contains(t, r.statuses, run.StatusWaitingInput)
		r = b.query("eof", "try:\n    input()\nexcept EOFError:\n    print('end')")
		require.Equal(t, "end\n", r.stdout)
		r = b.query("stdin", "import sys\nprint(sys.stdin.read().upper())", "one", "two")
		require.Equal(t, "ONE\nTWO\n\n", r.stdout)
		r = b.query("secret", "import getpass\nprint(getpass.getpass('pw: ')[::-1])", "abc")
		require.Contains(t, r.stdout, "cba")

		r = b.query("order", "import sys\nfor i in range(3):\n    print('o', i)\n    print('e', i, file=sys.stderr)")
		require.Equal(t, "o 0\no 1\no 2\n", r.stdout)
		require.Equal(t, "e 0\ne 1\ne 2\n", r.stderr)
		if how == "shim" {
			require.Len(t, r.console, 6, "the order of both streams is kept")
			require.Equal(t, "from a child\n", b.query("child", "import os\nx = os.system('echo from a child')").stdout)
		}
		r = b.query("unicode", "print('häßlich 漢字 🎈' * 20000, end='')")
		require.Equal(t, strings.Repeat("häßlich 漢字 🎈", 20000), r.stdout)

		// The first completion loads what finds them, for which it may run out of time.
		require.Eventually(t, func() bool {
			res, err := b.c.Complete(ctx(t), run.CompleteRequest{Code: "import os; os.path.isab"})
			return err == nil && strings.Contains(strings.Join(res.Completions, " "), "isabs")
		}, patience, 5*time.Millisecond)
		require.Contains(t, b.query("uid", "import os; print(os.getuid(), os.getcwd(), os.environ['HOME'])").stdout,
			fmt.Sprint(b.cfg.User.UID, " ", b.cfg.User.Home, " ", b.cfg.User.Home))
		require.Equal(t, "7", b.query("await", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()").stdout)
	})
}

func TestQueryInterrupt(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, b *box, how string) {
		require.Equal(t, 0, b.query("warm", "pass").exit)
		for i, code := range []string{"print('go', flush=True)\nwhile True: pass", "print('go', flush=True)\nimport time\ntime.sleep(1000)",
			"print('go', flush=True)\ninput()"} {
			id := fmt.Sprint("loop", i)
			from := int64(0)
			res, err := b.c.Step(ctx(t), id, run.StepRequest{Mode: run.ModeQuery, Code: code, From: &from, WaitMS: waitMS, FlushMS: 1})
			require.NoError(t, err)
			require.Equal(t, "go\n", res.Console[0].Data)
			got, err := b.c.Interrupt(ctx(t), id)
			require.NoError(t, err)
			require.True(t, got.Interrupted)
			r := b.query(id, code)
			require.Equal(t, 130, r.exit)
			require.Contains(t, r.stderr, "KeyboardInterrupt")
		}
		require.Equal(t, "alive\n", b.query("after", "print('alive')").stdout)
		got, err := b.c.Interrupt(ctx(t), "")
		require.NoError(t, err)
		require.False(t, got.Interrupted, "nothing runs")
		require.Equal(t, "still\n", b.query("after2", "print('still')").stdout)
	})
}

func TestQueryInterpreterDies(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, b *box, how string) {
		r := b.query("die", "import os\nprint('last words', flush=True)\nimport time; time.sleep(2)\nos._exit(9)")
		require.Equal(t, 9, r.exit)
		require.Equal(t, "last words\n", r.stdout)
		require.Equal(t, run.Log, r.console[len(r.console)-1].Type)
		r = b.query("kill", "import os\nos.kill(os.getpid(), 9)")
		require.Equal(t, 137, r.exit)
		require.Equal(t, "back\n", b.query("back", "print('back')").stdout)
	})
}

func TestQueryRepeatsAndResumes(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	b := start(t, cfg)
	from := int64(0)
	req := run.StepRequest{Mode: run.ModeQuery, Code: "n = globals().get('n', 0) + 1\nfor i in range(1000): print(i)\nprint('n', n)",
		From: &from, WaitMS: waitMS, MaxBytes: 100}
	var out string
	var last run.StepResult
	for {
		res, err := b.c.Step(ctx(t), "r", req) // always the starting request, as after lost replies
		require.NoError(t, err)
		again, err := b.c.Step(ctx(t), "r", req)
		require.NoError(t, err)
		if len(res.Console) > 0 {
			require.True(t, strings.HasPrefix(again.Console[0].Data, res.Console[0].Data), "what was not acknowledged comes again")
		}
		for _, c := range res.Console {
			out += c.Data
		}
		from, last = res.Seq, res
		if res.Status.Final() {
			break
		}
	}
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&want, i)
	}
	require.Equal(t, want.String()+"n 1\n", out, "no byte is lost or doubled, and the code ran once")
	require.Equal(t, 0, *last.ExitCode)

	// A caller that does not count starts anew after the end was delivered.
	plain := run.StepRequest{Mode: run.ModeQuery, Code: "n = n + 1; print(n)", WaitMS: waitMS}
	for i := range 3 {
		res, err := b.c.Step(ctx(t), "same-id", plain)
		require.NoError(t, err)
		require.Equal(t, run.StatusFinished, res.Status)
		require.Equal(t, fmt.Sprint(i+2, "\n"), res.Console[0].Data)
	}
	res, err := b.c.Step(ctx(t), "same-id", run.StepRequest{Mode: run.ModeContinue, WaitMS: waitMS})
	require.NoError(t, err)
	require.Equal(t, run.StatusFinished, res.Status, "asking again after the end tells the end again")
	require.Empty(t, res.Console)
	_, err = b.c.Step(ctx(t), "unknown", run.StepRequest{Mode: run.ModeContinue})
	require.ErrorContains(t, err, "there is no run unknown")
	_, err = b.c.Step(ctx(t), "same-id", run.StepRequest{Mode: "dance"})
	require.ErrorContains(t, err, "none of query")
}

func TestQueryQueue(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Limits.MaxRuns = 2
	b := start(t, cfg)
	from := int64(0)
	begin := func(id string) (run.StepResult, error) {
		return b.c.Step(ctx(t), id, run.StepRequest{Mode: run.ModeQuery, Code: "print(input())", From: &from, WaitMS: 0})
	}
	require.Eventually(t, func() bool { res, err := begin("first"); return err == nil && res.Status == run.StatusWaitingInput },
		patience, 5*time.Millisecond)
	for _, id := range []string{"second", "third"} {
		res, err := begin(id)
		require.NoError(t, err)
		require.Equal(t, run.StatusContinued, res.Status)
	}
	_, err := begin("fourth")
	require.ErrorContains(t, err, "wait for their turn")
	_, err = b.c.Interrupt(ctx(t), "second")
	require.NoError(t, err)
	res, err := b.c.Step(ctx(t), "second", run.StepRequest{Mode: run.ModeContinue, WaitMS: waitMS})
	require.NoError(t, err)
	require.Equal(t, 130, *res.ExitCode)
	require.Equal(t, "one\n", b.query("first", "print(input())", "one").stdout)
	require.Equal(t, "three\n", b.query("third", "print(input())", "three").stdout)
}

func TestQueryAbandoned(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Limits.AbandonMS = 100
	b := start(t, cfg)
	for i, code := range []string{"input()", "while True: print('z' * 9999)"} {
		from := int64(0)
		_, err := b.c.Step(ctx(t), fmt.Sprint("left", i), run.StepRequest{Mode: run.ModeQuery, Code: code, From: &from})
		require.NoError(t, err)
		require.Equal(t, "mine\n", b.query(fmt.Sprint("next", i), "print('mine')").stdout,
			"a run whose reader left does not hold up others for ever")
		res, err := b.c.Step(ctx(t), fmt.Sprint("left", i), run.StepRequest{Mode: run.ModeContinue, From: &from})
		for err == nil && !res.Status.Final() {
			from = res.Seq
			res, err = b.c.Step(ctx(t), fmt.Sprint("left", i), run.StepRequest{Mode: run.ModeContinue, From: &from, WaitMS: 5000})
		}
		require.NoError(t, err)
		require.Equal(t, 130, *res.ExitCode)
	}
}

func TestQueryBackPressure(t *testing.T) {
	t.Parallel()
	eachPython(t, func(t *testing.T, b *box, how string) {
		// 16 MB is more than memory and spill hold, so the code is made to wait for its reader.
		code := "line = 'x' * 999\nfor i in range(16000): print(line)\nprint('end')"
		from := int64(0)
		_, err := b.c.Step(ctx(t), "big", run.StepRequest{Mode: run.ModeQuery, Code: code, From: &from})
		require.NoError(t, err)
		r := b.query("big", code)
		require.Equal(t, 0, r.exit)
		require.Equal(t, 16000*1000+4, len(r.stdout))
		require.Equal(t, "x\nend\n", r.stdout[len(r.stdout)-6:])
		require.Empty(t, r.stderr)
		// Many small messages: a kernel would drop some of them when its reader is late.
		require.Equal(t, 48890, len(b.query("small", "for i in range(10000): print(i, flush=True)").stdout))
		// An interrupt ends code that waits for a reader who never comes.
		_, err = b.c.Step(ctx(t), "endless", run.StepRequest{Mode: run.ModeQuery, Code: "while True: print('y' * 9999)", From: &from, WaitMS: 500,
			MaxBytes: 1})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid))
			require.NoError(t, err)
			for _, f := range files {
				if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", b.cmd.Process.Pid, f.Name())); strings.Contains(to, "spill") {
					return true
				}
			}
			return false
		}, patience, 5*time.Millisecond)
		_, err = b.c.Interrupt(ctx(t), "endless")
		require.NoError(t, err)
		require.Equal(t, 130, b.query("endless", "while True: print('y' * 9999)").exit)
		require.Equal(t, "on\n", b.query("on", "print('on')").stdout)
	})
}
