package runner_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// groupFile stands for a file of a control group that takes the numbers of processes.
func groupFile(t *testing.T, dir, name, text string) *os.File {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func pool(cfg run.Config) *runners.Pool {
	return runners.New(func(ctx context.Context, _ cluster.KernelID) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", cfg.WithDefaults().Socket)
	})
}

// TestProcessesJoinTheirGroups: nothing starts before the agent has sent the groups; then the number of every process is in them before
// its program runs, and what the kernel killed in them is told.
func TestProcessesJoinTheirGroups(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Confine = true
	cfg.SessionType, cfg.Batch = "batch", &run.BatchCommand{Command: "echo $$; cat " + filepath.Join(cfg.Dir, "pids") + " " +
		filepath.Join(cfg.Dir, "memory") + "; cat /proc/$$/oom_score_adj; grep TracerPid /proc/$$/status; kill -TRAP $$"}
	pids, memory := groupFile(t, cfg.Dir, "pids", ""), groupFile(t, cfg.Dir, "memory", "")
	oom := groupFile(t, cfg.Dir, "oom", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	b := start(t, cfg)
	hello, err := b.c.Hello(ctx(t))
	require.NoError(t, err)
	require.Contains(t, hello.Capabilities, run.CanConfine)
	require.NoFileExists(t, b.cfg.ResultFile)
	require.Zero(t, len(must(os.ReadFile(pids.Name()))), "it started before it was confined")

	require.Error(t, pool(cfg).Confine(ctx(t), cluster.KernelID(cfg.KernelID), "wrong-token-0123456789", nil, nil))
	require.NoError(t, pool(cfg).Confine(ctx(t), cluster.KernelID(cfg.KernelID), token, []*os.File{pids, memory}, oom))
	require.Eventually(t, func() bool {
		st, err := os.Stat(b.cfg.ResultFile)
		return err == nil && st.Size() > 0
	}, patience, 2*time.Millisecond)
	res := readResult(t, cfg)
	require.Equal(t, 133, res.ExitCode, "a signal that tracers use is the process's own")
	require.True(t, res.OOM)
	var lines []string
	require.Eventually(t, func() bool {
		text := b.log()
		if i := strings.Index(text, "TracerPid"); i < 0 {
			return false
		}
		lines = strings.Fields(text)
		return true
	}, patience, 2*time.Millisecond)
	joined := strings.Join(lines, " ")
	pid := string(must(os.ReadFile(pids.Name())))
	require.Contains(t, joined, pid+" "+pid+pid, "the number was in both groups before the program ran")
	require.Contains(t, joined, "TracerPid: 0")
}

// TestGroupsThatAreNone: an agent that can make no groups lets the runner go on.
func TestGroupsThatAreNone(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Confine = true
	b := start(t, cfg)
	for range 2 {
		require.NoError(t, pool(cfg).Confine(ctx(t), cluster.KernelID(cfg.KernelID), token, nil, nil))
	}
	require.Equal(t, "hi\n", b.shell("one", "echo hi").stdout)
	// A group that is gone takes nobody; no process runs outside of it.
	gone, err := os.Open(cfg.Dir)
	require.NoError(t, err)
	defer gone.Close()
	require.NoError(t, pool(cfg).Confine(ctx(t), cluster.KernelID(cfg.KernelID), token, []*os.File{gone}, nil))
	r := b.shell("two", "echo hi > "+filepath.Join(cfg.Dir, "user", "made"))
	require.NotZero(t, r.exit)
	require.NoFileExists(t, filepath.Join(cfg.Dir, "user", "made"))
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
