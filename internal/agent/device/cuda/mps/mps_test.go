package mps_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/mps"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// control is NVIDIA's program in memory. Its answers are those that the program gave on an H100 with driver 580.
type control struct {
	mu      sync.Mutex
	daemons map[string]*daemon // by directory
	refuse  error              // of starts
	hangs   string             // commands with this prefix get no answer
	starts  int
}

type daemon struct {
	cards   []string
	clients map[int][]int // by server
	limits  []string      // commands that set something, in order
	ended   []string
}

func newControl() *control { return &control{daemons: map[string]*daemon{}} }

func (c *control) Ready() error { return nil }

func (c *control) Start(_ context.Context, d mps.Daemon) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return c.refuse
	}
	if _, err := os.Stat(d.Pipe); err != nil {
		return err
	}
	if c.daemons[d.Pipe] != nil {
		return errors.New("An instance of this daemon is already running")
	}
	c.starts++
	c.daemons[d.Pipe] = &daemon{cards: d.Cards, clients: map[int][]int{}}
	return nil
}

func (c *control) Ask(ctx context.Context, d mps.Daemon, command string) (string, error) {
	c.mu.Lock()
	hang := c.hangs != "" && strings.HasPrefix(command, c.hangs)
	c.mu.Unlock()
	if hang {
		<-ctx.Done()
		return "", fault.Unavailablef("no answer").WithCause(ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.daemons[d.Pipe]
	if x == nil {
		return "", fault.Unavailablef("no daemon")
	}
	words := strings.Fields(command)
	switch {
	case command == "get_server_list":
		var out string
		for s := range x.clients {
			out += fmt.Sprintln(s)
		}
		return out, nil
	case command == "quit":
		delete(c.daemons, d.Pipe)
		return "", nil
	case words[0] == "get_client_list":
		var out string
		for s, list := range x.clients {
			if fmt.Sprint(s) == words[1] {
				for _, pid := range list {
					out += fmt.Sprintln(pid)
				}
			}
		}
		return out, nil
	case words[0] == "terminate_client":
		x.ended = append(x.ended, words[2])
		return "0\n", nil
	case words[0] == "set_default_active_thread_percentage":
		x.limits = append(x.limits, command)
		return words[1] + ".0\n", nil
	case strings.HasPrefix(words[0], "set_"):
		x.limits = append(x.limits, command)
		return "", nil
	}
	return fmt.Sprintf("Unknown command %q\n", command), nil
}

// at returns the only daemon.
func (c *control) at(t *testing.T) *daemon {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.daemons, 1)
	for _, d := range c.daemons {
		return d
	}
	return nil
}

// newest are the last n commands that set something.
func (c *control) newest(t *testing.T, n int) []string {
	t.Helper()
	d := c.at(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.GreaterOrEqual(t, len(d.limits), n)
	return slices.Clone(d.limits[len(d.limits)-n:])
}

func (c *control) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

var owners = map[int]cluster.KernelID{11: "k1", 12: "k1", 21: "k2"}

func open(t *testing.T, c mps.Control, dir string) *mps.Manager {
	t.Helper()
	m, err := mps.New(mps.Options{Control: c, Dir: dir, Log: slog.New(slog.DiscardHandler), AskLimit: 50 * time.Millisecond,
		Owner: func(pid int) (cluster.KernelID, bool) { id, ok := owners[pid]; return id, ok }})
	require.NoError(t, err)
	return m
}

func share(memory, compute int64, cards ...string) map[string]cuda.Limit {
	out := map[string]cuda.Limit{}
	for _, c := range cards {
		out[c] = cuda.Limit{MemoryMiB: memory, Compute: compute}
	}
	return out
}

// TestOneCard: one daemon serves all kernels of a card, allows each program what the largest of them has, and ends with the last one.
func TestOneCard(t *testing.T) {
	t.Parallel()
	c, dir := newControl(), t.TempDir()
	m := open(t, c, dir)
	require.NoError(t, m.Ready())
	require.Equal(t, filepath.Join(dir, "GPU-a", "pipe"), m.Dir([]string{"GPU-a"}))
	for range 2 {
		require.NoError(t, m.Prepare(t.Context(), "k1", share(4096, 250, "GPU-a")))
	}
	require.Equal(t, 1, c.starts)
	require.Equal(t, []string{"GPU-a"}, c.at(t).cards)
	require.Equal(t, []string{"set_default_device_pinned_mem_limit GPU-a 4096M", "set_default_active_thread_percentage 25"}, c.newest(t, 2))
	c.change(func() { c.daemons[m.Dir([]string{"GPU-a"})].clients[70] = []int{11, 21, 99} })
	require.NoError(t, m.Prepare(t.Context(), "k2", share(8192, 505, "GPU-a")))
	require.Equal(t, []string{"set_default_device_pinned_mem_limit GPU-a 8192M", "set_device_pinned_mem_limit 70 GPU-a 8192M",
		"set_default_active_thread_percentage 51", "set_active_thread_percentage 70 51"}, c.newest(t, 4))
	require.Equal(t, []cluster.KernelID{"k1", "k2"}, m.Prepared())

	require.NoError(t, m.Release(t.Context(), "k2"))
	require.Equal(t, []string{"21"}, c.at(t).ended, "other kernels' programs go on")
	require.Equal(t, []string{"set_default_device_pinned_mem_limit GPU-a 4096M", "set_device_pinned_mem_limit 70 GPU-a 4096M",
		"set_default_active_thread_percentage 25", "set_active_thread_percentage 70 25"}, c.newest(t, 4))
	require.NoError(t, m.Release(t.Context(), "k2"), "again")
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.Equal(t, []string{"21", "11"}, c.at(t).ended)
	require.Empty(t, m.Prepared())
	require.Len(t, c.daemons, 1, "a daemon is not ended under programs")
	m.Keep(t.Context())
	require.Len(t, c.daemons, 1)
	c.change(func() { c.daemons[m.Dir([]string{"GPU-a"})].clients[70] = nil })
	m.Keep(t.Context())
	require.Empty(t, c.daemons)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestLogsAreBounded: daemons write a line for every connection, and programs may make many.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	c := newControl()
	m := open(t, c, t.TempDir())
	require.NoError(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")))
	dir := filepath.Join(filepath.Dir(m.Dir([]string{"GPU-a"})), "log")
	size := func(name string) int64 {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		return st.Size()
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "control.log"), bytes.Repeat([]byte("x"), 5<<20), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server.log"), []byte("short"), 0o600))
	m.Keep(t.Context())
	require.Zero(t, size("control.log"))
	require.EqualValues(t, 5, size("server.log"))
}

// TestSetsOfCards: kernels with shares of several cards have a daemon of their own, whose name does not depend on the order.
func TestSetsOfCards(t *testing.T) {
	t.Parallel()
	c, dir := newControl(), t.TempDir()
	m := open(t, c, dir)
	require.NoError(t, m.Prepare(t.Context(), "k1", share(4096, 250, "GPU-a")))
	require.NoError(t, m.Prepare(t.Context(), "k2", share(4096, 250, "GPU-b", "GPU-a")))
	require.Equal(t, m.Dir([]string{"GPU-a", "GPU-b"}), m.Dir([]string{"GPU-b", "GPU-a"}))
	require.Len(t, c.daemons, 2)
	// In its next generation a kernel has another card.
	require.NoError(t, m.Prepare(t.Context(), "k1", share(1024, 250, "GPU-c")))
	require.Nil(t, c.daemons[m.Dir([]string{"GPU-a"})])
	require.NotNil(t, c.daemons[m.Dir([]string{"GPU-c"})])
	require.Equal(t, []cluster.KernelID{"k1", "k2"}, m.Prepared())
	require.Error(t, m.Prepare(t.Context(), "../x", share(1024, 250, "GPU-c")))
}

// TestTheNextProcess: what a killed process made is found, with its limits, and can be released.
func TestTheNextProcess(t *testing.T) {
	t.Parallel()
	c, dir := newControl(), t.TempDir()
	m := open(t, c, dir)
	require.NoError(t, m.Prepare(t.Context(), "k1", share(8192, 500, "GPU-a", "GPU-b")))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(m.Dir([]string{"GPU-a", "GPU-b"})), "kernels", "k9.json"), []byte("{"), 0o600))
	m = open(t, c, dir)
	require.Equal(t, []cluster.KernelID{"k1"}, m.Prepared())
	require.NoError(t, m.Prepare(t.Context(), "k2", share(1024, 100, "GPU-b", "GPU-a")))
	require.Equal(t, 1, c.starts, "its daemon goes on")
	require.Equal(t, []string{"set_default_device_pinned_mem_limit GPU-a 8192M", "set_default_device_pinned_mem_limit GPU-b 8192M",
		"set_default_active_thread_percentage 50"}, c.newest(t, 3))
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.NoError(t, m.Release(t.Context(), "k2"))
	require.Empty(t, c.daemons)
	require.Empty(t, open(t, c, dir).Prepared())

	// One that was killed between the record and the start: the record is there, the daemon is not.
	c.change(func() { c.refuse = errors.New("killed") })
	require.Error(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")))
	m = open(t, c, dir)
	require.Equal(t, []cluster.KernelID{"k1"}, m.Prepared())
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.Empty(t, m.Prepared())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestADaemonThatEnded is started again while kernels have shares of its cards.
func TestADaemonThatEnded(t *testing.T) {
	t.Parallel()
	c := newControl()
	m := open(t, c, t.TempDir())
	require.NoError(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")))
	m.Keep(t.Context())
	require.Equal(t, 1, c.starts)
	c.change(func() { clear(c.daemons); c.refuse = errors.New("no card") })
	m.Keep(t.Context())
	require.Contains(t, m.Problem("GPU-a"), "does not answer")
	require.Empty(t, m.Problem("GPU-b"))
	c.change(func() { c.refuse = nil })
	m.Keep(t.Context())
	require.Empty(t, m.Problem("GPU-a"))
	require.Equal(t, 2, c.starts)
	require.Equal(t, []string{"set_default_device_pinned_mem_limit GPU-a 1024M", "set_default_active_thread_percentage 10"}, c.newest(t, 2))
}

// TestAProgramThatDoesNotLetGo makes its card suspect until all programs have ended; nobody waits for it without bound.
func TestAProgramThatDoesNotLetGo(t *testing.T) {
	t.Parallel()
	c := newControl()
	m := open(t, c, t.TempDir())
	require.NoError(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")))
	require.NoError(t, m.Prepare(t.Context(), "k2", share(1024, 100, "GPU-a")))
	pipe := m.Dir([]string{"GPU-a"})
	c.change(func() { c.daemons[pipe].clients[70] = []int{11, 21}; c.hangs = "terminate_client" })
	require.NoError(t, m.Release(t.Context(), "k1"))
	require.Contains(t, m.Problem("GPU-a"), "did not let go")
	err := m.Prepare(t.Context(), "k3", share(1024, 100, "GPU-a"))
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.NoError(t, m.Release(t.Context(), "k3"))
	c.change(func() { c.hangs = "" })
	require.NoError(t, m.Release(t.Context(), "k2"))
	require.Contains(t, m.Problem("GPU-a"), "did not let go", "its programs are there")
	c.change(func() { c.daemons[pipe].clients[70] = nil })
	m.Keep(t.Context())
	require.Empty(t, m.Problem("GPU-a"))
	require.Empty(t, c.daemons)
}

// TestWordsAreFailures: the program reports failures in words and as success.
func TestWordsAreFailures(t *testing.T) {
	t.Parallel()
	m := open(t, words{newControl()}, t.TempDir())
	require.ErrorContains(t, m.Prepare(t.Context(), "k1", share(1024, 100, "GPU-a")), "Server 70 not found")
}

type words struct{ *control }

func (w words) Ask(ctx context.Context, d mps.Daemon, command string) (string, error) {
	if strings.HasPrefix(command, "set_") {
		return "Server 70 not found\n", nil
	}
	return w.control.Ask(ctx, d, command)
}
