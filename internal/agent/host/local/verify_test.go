package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host/local"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// TestVerify compares what a process executes with the runner. The name of this test's own control group stands for a container's.
func TestVerify(t *testing.T) {
	t.Parallel()
	groups, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	id := ""
	for line := range strings.Lines(string(groups)) {
		if base := filepath.Base(strings.TrimSpace(line)); len(base) > len(id) && !strings.Contains(base, ":") {
			id = base
		}
	}
	if id == "" {
		t.Skip("this process is in no control group with a name")
	}
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	c := exec.Command(sleep, "600")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	other := filepath.Join(t.TempDir(), "runner")
	require.NoError(t, os.WriteFile(other, []byte("another file"), 0o755))

	pid := c.Process.Pid
	require.NoError(t, (&local.Host{RunnerPath: sleep}).Verify(runtime.Observed{ID: id, Pid: pid}))
	h := &local.Host{RunnerPath: other}
	require.Equal(t, fault.Denied, fault.KindOf(h.Verify(runtime.Observed{ID: id, Pid: pid})))
	require.NoError(t, h.Verify(runtime.Observed{ID: "other", Pid: pid}), "a process of something else, where the engine is on another host")
	require.NoError(t, h.Verify(runtime.Observed{ID: id}))
}
