package mps_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device/cuda/mps"
	"berth.dev/berth/internal/fault"
)

// played has this program play nvidia-cuda-mps-control: a file in the pipe directory is its daemon.
const played = "BERTH_TEST_PLAYS_MPS"

func TestMain(m *testing.M) {
	if how := os.Getenv(played); how != "" {
		os.Exit(play(how))
	}
	os.Exit(m.Run())
}

func play(how string) int {
	file := filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control")
	if len(os.Args) > 1 && os.Args[1] == "-d" {
		if os.WriteFile(file, []byte(os.Getenv("CUDA_VISIBLE_DEVICES")), 0o600) != nil {
			return 1
		}
		return 0
	}
	line := bufio.NewScanner(os.Stdin)
	line.Scan()
	if how == "hangs" {
		_ = unix.Pause()
	}
	if _, err := os.Stat(file); err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		return 1
	}
	switch line.Text() {
	case "get_server_list":
	case "quit":
		if os.Remove(file) != nil {
			return 1
		}
	case "set_default_active_thread_percentage 10":
		fmt.Println("10.0")
	case "set_default_device_pinned_mem_limit GPU-a 1024M":
	case "flood":
		for range 1 << 16 {
			fmt.Println("0123456789012345678901234567890123456789")
		}
	default:
		fmt.Printf("Unknown command %q\n", line.Text())
	}
	return 0
}

func TestProgram(t *testing.T) {
	t.Parallel()
	p := mps.Program{Path: os.Args[0], Env: []string{played + "=well"}}
	dir := t.TempDir()
	m, err := mps.New(mps.Options{Control: p, Dir: dir, Log: slog.New(slog.DiscardHandler), AskLimit: time.Minute})
	require.NoError(t, err)
	require.NoError(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")))
	cards, err := os.ReadFile(filepath.Join(dir, "GPU-a", "pipe", "control"))
	require.NoError(t, err)
	require.Equal(t, "GPU-a", string(cards))
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.NoDirExists(t, filepath.Join(dir, "GPU-a"))

	d := mps.Daemon{Cards: []string{"GPU-a"}, Pipe: t.TempDir(), Log: t.TempDir()}
	_, err = p.Ask(t.Context(), d, "get_server_list")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "Cannot find MPS control daemon")
	require.NoError(t, p.Start(t.Context(), d))
	answer, err := p.Ask(t.Context(), d, "flood")
	require.NoError(t, err)
	require.LessOrEqual(t, len(answer), 1<<20)
	p.Env = []string{played + "=hangs"}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = p.Ask(ctx, d, "get_server_list")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	p.Path = filepath.Join(dir, "none")
	require.True(t, fault.Is(p.Ready(), fault.NotFound))
	require.True(t, fault.Is(p.Start(t.Context(), d), fault.Unavailable))
}
