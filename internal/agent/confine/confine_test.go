package confine_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/confine"
)

const (
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

// host writes files below a directory that stands for a host.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	return dir
}

func read(t *testing.T, elem ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

// TestVersion2 looks at what is written where; a kernel would answer to it.
func TestVersion2(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	dir := "sys/fs/cgroup/system.slice/docker-" + id + ".scope"
	files := map[string]string{
		"proc/77/cgroup":                 "0::/system.slice/docker-" + id + ".scope\n",
		"proc/self/mountinfo":            "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
		dir + "/cgroup.controllers":      "cpuset cpu io memory pids\n",
		dir + "/cgroup.subtree_control":  "",
		dir + "/pids.max":                "4096\n",
		dir + "/memory.max":              strconv.Itoa(4<<30) + "\n",
		dir + "/berth-user/pids.max":     "max\n",
		dir + "/berth-user/memory.max":   "max\n",
		dir + "/berth-user/cgroup.procs": "", dir + "/berth-user/memory.events": "oom_kill 0\n", dir + "/berth-runner/cgroup.procs": "",
	}
	root := host(t, files)
	m := confine.New(root, slog.New(slog.DiscardHandler))
	f := m.Make(id, 77)
	defer f.Close()
	require.Empty(t, m.Warnings())
	require.Len(t, f.Procs, 1)
	require.NotNil(t, f.OOM)
	require.Equal(t, "77", read(t, root, dir, "berth-runner/cgroup.procs"))
	require.Equal(t, "+pids +memory +cpu", read(t, root, dir, "cgroup.subtree_control"))
	require.Equal(t, "3840", read(t, root, dir, "berth-user/pids.max"))
	require.Equal(t, strconv.Itoa(4<<30-64<<20), read(t, root, dir, "berth-user/memory.max"))
}

func TestWithoutGroups(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	m := confine.New(host(t, map[string]string{
		"proc/77/cgroup": "0::/docker/" + id + "\n", "proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/docker/" + id + "/cgroup.controllers": "\n",
	}), slog.New(slog.DiscardHandler))
	require.Empty(t, m.Make(id, 78).Procs)
	require.Empty(t, m.Warnings(), "a process that is not of this host")
	f := m.Make(id, 77)
	require.Empty(t, f.Procs)
	require.Nil(t, f.OOM)
	require.Len(t, m.Warnings(), 1)
	require.Contains(t, m.Warnings()[0], "a session's processes share their limits with its runner")
}

// container makes control groups as an engine does, of which a sleeping process is the first member, and returns its name.
func container(t *testing.T) (id string, pid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	id = "berthtest" + strings.ReplaceAll(uuid.NewString(), "-", "")
	limits := map[string]map[string]string{
		"pids": {"pids.max": "64"}, "memory": {"memory.limit_in_bytes": strconv.Itoa(256 << 20)}, "cpu": nil,
	}
	for controller := range limits {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", controller, "cgroup.procs")); err != nil {
			t.Skip("this host has no control groups of version 1; version 2 is tested with the engine")
		}
	}
	c := exec.Command("sleep", "600")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for controller, files := range limits {
		dir := filepath.Join("/sys/fs/cgroup", controller, id)
		require.NoError(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			require.Eventually(t, func() bool {
				_ = os.Remove(filepath.Join(dir, "berth-user"))
				return os.Remove(dir) == nil
			}, patience, tick)
		})
		t.Cleanup(func() { _ = c.Process.Kill(); _, _ = c.Process.Wait() })
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(c.Process.Pid)), 0o644))
	}
	return id, c.Process.Pid
}

// inGroup runs a script as a member of the groups.
func inGroup(t *testing.T, f confine.Files, script string) string {
	t.Helper()
	in, w, err := os.Pipe()
	require.NoError(t, err)
	c := exec.Command("/bin/bash", "-c", "read -r; "+script)
	c.Stdin = in
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	require.NoError(t, c.Start())
	for _, p := range f.Procs {
		_, err := p.WriteAt([]byte(strconv.Itoa(c.Process.Pid)), 0)
		require.NoError(t, err)
	}
	_, err = fmt.Fprintln(w)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_ = c.Wait()
	return out.String()
}

// TestTheUsersLimitsAreLower: what the user's processes may take leaves room for the runner, in the same container.
func TestTheUsersLimitsAreLower(t *testing.T) {
	t.Parallel()
	id, pid := container(t)
	m := confine.New("/", slog.New(slog.DiscardHandler))
	for range 2 { // it finds what it made
		f := m.Make(id, pid)
		require.Empty(t, m.Warnings())
		require.Len(t, f.Procs, 3)
		f.Close()
	}
	f := m.Make(id, pid)
	defer f.Close()
	require.Equal(t, "48", read(t, "/sys/fs/cgroup/pids", id, "berth-user/pids.max"))
	require.Equal(t, strconv.Itoa(224<<20), read(t, "/sys/fs/cgroup/memory", id, "berth-user/memory.limit_in_bytes"))
	require.Contains(t, inGroup(t, f, "cat /proc/self/cgroup"), ":cpu:/"+id+"/berth-user\n", "its processes share one part of the time")
	// All of them live until the one that is refused was counted, however long that takes. A shell would try again for seconds.
	const forks = `exec perl -e 'for (1..100) { my $p = fork; print("$!\n"), last if !defined $p; sleep(600), exit if !$p; push @p, $p }` +
		` kill KILL => @p; waitpid $_, 0 for @p'`
	require.Contains(t, inGroup(t, f, forks), "Resource temporarily unavailable")
	require.Equal(t, "0", strings.Fields(read(t, "/sys/fs/cgroup/memory", id, "berth-user/memory.oom_control"))[5])
	inGroup(t, f, `exec perl -e '$x = "x" x (1<<30)'`)
	require.NotEqual(t, "0", strings.Fields(read(t, "/sys/fs/cgroup/memory", id, "berth-user/memory.oom_control"))[5], "it was killed")
	require.NoError(t, syscall.Kill(pid, 0), "the first process of the container was not")
}
