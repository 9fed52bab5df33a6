package e2e_test

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tickEngine is how often the container's count is looked at.
const tickEngine = 20 * time.Millisecond

// counter is a program that counts, in a file, for as long as it runs.
const counter = `package main

import (
	"os"
	"strconv"
	"time"
)

func main() {
	for n := 1; ; n++ {
		if os.WriteFile("/out/next", []byte(strconv.Itoa(n)), 0o644) == nil {
			_ = os.Rename("/out/next", "/out/count")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
`

// ownEngine is a container engine that scripts/engine.sh starts beside the one of this machine, with nothing in common but the kernel: its
// files are in a directory of its own and it sees no network.
type ownEngine struct {
	t   testing.TB
	dir string
	env []string
	// inside is put before what runs in the engine's network.
	inside []string
	// flags are those of the engine.
	flags string
}

// newOwnEngine prepares an engine. inside is the command that its processes are started by, such as one that enters a network namespace;
// without one the engine sees no network.
func newOwnEngine(t testing.TB, inside ...string) *ownEngine {
	t.Helper()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root may start a container engine")
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("systemd starts the container engine on this machine, scripts/engine.sh does not")
	}
	if err := exec.Command("unshare", "--net", "true").Run(); err != nil {
		t.Skip("this machine allows no network namespaces, and two engines must not share a network")
	}
	dir, err := os.MkdirTemp("", "berth-eng-") // short: unix sockets live below it
	require.NoError(t, err)
	driver := "overlay2"
	if len(inside) == 0 {
		inside, driver = []string{"unshare", "--net"}, "vfs"
	}
	e := &ownEngine{t: t, dir: dir, inside: inside}
	e.flags = "--data-root " + dir + "/data --exec-root " + dir + "/exec --bridge=none --iptables=false --ip6tables=false " +
		"--storage-driver=" + driver
	e.env = append(os.Environ(), "DOCKER_HOST=unix://"+dir+"/sock", "BERTH_ENGINE_DIR="+dir+"/state", "BERTH_ENGINE_FLAGS="+e.flags)
	t.Cleanup(func() {
		_, _ = e.command(nil, "docker", "rm", "-f", "counter")
		_, _ = e.script("stop")
		for _, pid := range e.processes() { // what a failed test left
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = exec.Command("sh", "-c", `grep -o "`+dir+`[^ ]*" /proc/mounts | sort -r | xargs -r umount -l`).Run()
		_ = os.RemoveAll(dir)
	})
	return e
}

func (e *ownEngine) command(stdin []byte, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin = e.env, bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (e *ownEngine) must(argv ...string) string {
	e.t.Helper()
	out, err := e.command(nil, argv...)
	require.NoError(e.t, err, "%s: %s", strings.Join(argv, " "), out)
	return out
}

// script runs scripts/engine.sh in the engine's network.
func (e *ownEngine) script(verb string) (string, error) {
	return e.command(nil, append(slices.Clone(e.inside), "../scripts/engine.sh", verb)...)
}

func (e *ownEngine) ensure() {
	e.t.Helper()
	out, err := e.script("ensure")
	require.NoError(e.t, err, out)
}

// pid reads the number of a process from a file below the engine's directory.
func (e *ownEngine) pid(file string) int {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join(e.dir, file))
	require.NoError(e.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(e.t, err)
	return pid
}

// processes are those that have the engine's directory in their command line.
func (e *ownEngine) processes() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && pid != os.Getpid() && bytes.Contains(text, []byte(e.dir)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// image makes an image of one program.
func (e *ownEngine) image(name, source string) {
	e.t.Helper()
	file := filepath.Join(e.dir, "main.go")
	require.NoError(e.t, os.WriteFile(file, []byte(source), 0o600))
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(e.dir, "program"), file)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	out, err := build.CombinedOutput()
	require.NoError(e.t, err, string(out))
	program, err := os.ReadFile(filepath.Join(e.dir, "program"))
	require.NoError(e.t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(e.t, w.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	require.NoError(e.t, err)
	require.NoError(e.t, w.Close())
	text, err := e.command(archive.Bytes(), "docker", "import", "-", name)
	require.NoError(e.t, err, text)
}

// TestContainersOutliveTheEngine: the engine that scripts/engine.sh starts lets containers run on when it is killed and when it is stopped,
// and takes them over again.
func TestContainersOutliveTheEngine(t *testing.T) {
	t.Parallel()
	e := newOwnEngine(t)
	e.ensure()
	require.Equal(t, "true", e.must("docker", "info", "--format", "{{.LiveRestoreEnabled}}"))
	e.image("counter", counter)
	require.NoError(t, os.Mkdir(filepath.Join(e.dir, "out"), 0o755))
	e.must("docker", "run", "--detach", "--name", "counter", "--network", "none", "--volume", e.dir+"/out:/out", "counter", "/program")
	count := func() int {
		text, _ := os.ReadFile(filepath.Join(e.dir, "out", "count"))
		n, _ := strconv.Atoi(string(text))
		return n
	}
	counts := func(when string) {
		t.Helper()
		last := 0 // a program that began anew would count from 1
		require.Eventually(t, func() bool { last = max(last, count()); return last > 0 }, patience, tickEngine)
		require.Eventually(t, func() bool { return count() > last+5 }, patience, tickEngine, when)
	}
	counts("before")
	state := func() string {
		return e.must("docker", "inspect", "--format", "{{.State.Running}} {{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}", "counter")
	}
	before := state()
	require.True(t, strings.HasPrefix(before, "true "), before)

	for _, how := range []string{"killed", "stopped"} {
		pid, child, seen := e.pid("state/dockerd.pid"), e.pid("exec/containerd/containerd.pid"), count()
		if how == "killed" {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) // containerd dies with it
		} else {
			out, err := e.script("stop")
			require.NoError(t, err, out)
		}
		// Both are waited for by init; the next engine would take one that nobody has waited for yet for a living one.
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil && syscall.Kill(child, 0) != nil }, patience, tickEngine)
		_, err := e.command(nil, "docker", "version")
		require.Error(t, err, "nobody answers while the engine is %s", how)
		counts("the container runs on while the engine is " + how)
		e.ensure()
		require.NotEqual(t, pid, e.pid("state/dockerd.pid"))
		require.Equal(t, before, state(), "it is the same process, and the engine has it back")
		require.Greater(t, count(), seen)
	}
	e.must("docker", "rm", "-f", "counter")
	last := count()
	require.Eventually(t, func() bool { n := count(); ended := n == last; last = n; return ended }, patience, 10*tickEngine)
}
