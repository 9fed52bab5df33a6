package mps_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/mps"
	"berth.dev/berth/internal/cluster"
)

// TestOnAGPU runs NVIDIA's own daemon. BERTH_TEST_CUDA_CLIENT is a shell command that prints "ready" when it has begun to compute, and then
// computes without end.
func TestOnAGPU(t *testing.T) {
	control := mps.Program{Path: "nvidia-cuda-mps-control"}
	if err := control.Ready(); err != nil {
		t.Skipf("SKIPPED: MPS cannot be used here: %v", err)
	}
	client := os.Getenv("BERTH_TEST_CUDA_CLIENT")
	if client == "" {
		t.Skip("SKIPPED: BERTH_TEST_CUDA_CLIENT names no program that computes")
	}
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").Output()
	require.NoError(t, err)
	card := strings.Fields(string(out))[0]
	dir, err := os.MkdirTemp("", "berth-mps-") // one that users of containers may pass through
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	var ours atomic.Bool
	m, err := mps.New(mps.Options{Control: control, Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Owner: func(int) (cluster.KernelID, bool) { return "k1", ours.Load() }})
	require.NoError(t, err)
	t.Cleanup(func() { m.Keep(t.Context()) })
	require.NoError(t, m.Prepare(t.Context(), "k1", map[string]cuda.Limit{card: {MemoryMiB: 3000, Compute: 400}}))
	pipe := m.Dir([]string{card})
	d := mps.Daemon{Cards: []string{card}, Pipe: pipe, Log: filepath.Join(filepath.Dir(pipe), "log")}

	cmd := exec.CommandContext(t.Context(), "sh", "-c", client)
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipe, "CUDA_VISIBLE_DEVICES="+card,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=64G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=90")
	said, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	var text strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(text.String(), "ready") {
		n, err := said.Read(b)
		text.Write(b[:n])
		require.NoError(t, err, text.String())
	}
	t.Log(text.String())
	servers, err := control.Ask(t.Context(), d, "get_server_list")
	require.NoError(t, err)
	server, err := strconv.Atoi(strings.TrimSpace(servers))
	require.NoError(t, err)

	// A larger kernel widens what the server that runs allows, its end narrows it.
	limit := func() string {
		answer, err := control.Ask(t.Context(), d, "get_device_pinned_mem_limit "+strconv.Itoa(server)+" 0")
		require.NoError(t, err)
		return strings.TrimSpace(answer)
	}
	require.NoError(t, m.Prepare(t.Context(), "k2", map[string]cuda.Limit{card: {MemoryMiB: 8192, Compute: 500}}))
	require.Equal(t, "8G", limit())
	require.NoError(t, m.Release(t.Context(), "k2"))
	t.Log("after the larger kernel's end: " + limit())

	ours.Store(true)
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.Empty(t, m.Problem(card))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.Error(t, err, "its work was ended")
	case <-time.After(time.Minute):
		require.NoError(t, cmd.Process.Kill())
		require.Fail(t, "the program goes on")
	}
	require.Eventually(t, func() bool { m.Keep(t.Context()); _, err := os.Stat(pipe); return err != nil }, time.Minute, 100*time.Millisecond,
		"the daemon of nobody ends")
}
