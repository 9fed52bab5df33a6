package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/agent/runtime/testimage"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// newDockerHost is a host with the real engine and the real runner. The test is skipped unless BERTH_TEST_ENGINE=1 says that
// there is an engine, and where it lacks the image.
func newDockerHost(t *testing.T, m *manager) *host {
	testimage.Engine(t)
	var h *host
	t.Cleanup(func() { // after the agent's end
		rt, err := docker.New(docker.Config{Cluster: h.cfg.Scope(), Agent: cluster.AgentID(h.cfg.ID)}, h.log)
		require.NoError(t, err)
		defer rt.Close()
		_, err = agent.EndAll(context.Background(), h.cfg, rt)
		require.NoError(t, err)
	})
	h = newHost(t, m)
	probe, err := docker.New(docker.Config{Cluster: "probe", Agent: "probe"}, h.log)
	require.NoError(t, err)
	defer probe.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := probe.Image(ctx, dockerImage); err != nil {
		t.Skipf("SKIPPED: needs the image %s; make images builds it: %v", dockerImage, err)
	}
	runner := filepath.Join(t.TempDir(), "runner")
	build := exec.Command("go", "build", "-o", runner, "berth.dev/berth/cmd/berth-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	h.runner = runner
	return h
}

const dockerImage = "berth/python:3.11"

func (h *host) startDocker() {
	h.t.Helper()
	rt, err := docker.New(docker.Config{Cluster: h.cfg.Scope(), Agent: cluster.AgentID(h.cfg.ID)}, h.log)
	require.NoError(h.t, err)
	h.agent, err = agent.New(h.cfg, agent.Deps{Runtime: rt, RunnerPath: h.runner, Log: h.log})
	require.NoError(h.t, err)
	h.group, err = chassis.NewGroup(h.log, h.agent.Services()...)
	require.NoError(h.t, err)
	require.NoError(h.t, h.group.Start(context.Background()))
}

func onDocker(i int) cluster.DesiredKernel {
	d := desired(i)
	d.Spec.Image = dockerImage
	d.Spec.Slots[cluster.SlotMem] = cluster.Whole(256 << 20)
	return d
}

func cpuSeconds() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// TestRealEngine takes one kernel through its life on the real engine, with an agent restart in the middle.
func TestRealEngine(t *testing.T) {
	m := newManager(t)
	h := newDockerHost(t, m)
	h.startDocker()
	id := kernelID(1)
	m.until("the engine answers", func() bool { return m.facts.EngineOK })
	d := onDocker(1)
	d.Spec.Env = map[string]string{"GREETING": "hello"}
	began := time.Now()
	m.want(d)
	m.until("it runs", func() bool { return m.phase(id) >= cluster.PhaseRunning })
	t.Logf("running after %s (%+v)", time.Since(began), m.of(id).Phase)
	defer func() {
		m.want(stopped(1))
		began := time.Now()
		m.until("it ends", func() bool { return m.phase(id) == cluster.PhaseEnded })
		t.Logf("ended after %s: %+v", time.Since(began), m.of(id))
		out, err := exec.Command("docker", "ps", "-aq", "--filter", "name=berth").CombinedOutput()
		t.Logf("containers left: %q %v", out, err)
	}()
	code := func(id cluster.KernelID, run1, text string) string {
		var out strings.Builder
		c := m.runner(id)
		req := run.StepRequest{Mode: run.ModeQuery, Code: text, WaitMS: 10_000, FlushMS: 100}
		for {
			res, err := c.Step(t.Context(), run1, req)
			require.NoError(t, err)
			for _, item := range res.Console {
				out.WriteString(item.Data)
			}
			if res.Status.Final() {
				return out.String()
			}
			req = run.StepRequest{Mode: run.ModeContinue, WaitMS: 10_000, FlushMS: 100}
		}
	}
	require.Equal(t, "42\n", code(id, "r1", "x = 6 * 7; print(x)"))
	number := "9001"
	if os.Geteuid() == 0 {
		number = "own"
	}
	require.Equal(t, "hello "+number+" /home/work work\n", code(id, "r2", "import os, pwd; uid = os.getuid(); "+
		"print(os.environ['GREETING'], 'own' if uid >= 2000000 else uid, os.getcwd(), pwd.getpwuid(uid).pw_name)"))
	require.Equal(t, "1\n", code(id, "r3", "print(len(os.sched_getaffinity(0)))"))

	h.stop()
	h.startDocker()
	m.until("it still runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
	require.Eventually(t, func() bool { return h.agent.Ready(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	require.Equal(t, "42\n", code(id, "r4", "print(x)"), "the interpreter outlives the agent")

	stream, err := m.runner(id).Exec(t.Context(), run.ExecStart{Argv: []string{"sh", "-c", "read a; echo got $a; exit 7"}})
	require.NoError(t, err)
	_, err = stream.Write([]byte("this\n"))
	require.NoError(t, err)
	var out strings.Builder
	exit, err := stream.Wait(&out, &out)
	require.NoError(t, err)
	stream.Close()
	require.Equal(t, 7, exit.Code)
	require.Equal(t, "got this\n", out.String())

	const n = 300
	began = time.Now()
	for i := range n {
		require.Equal(t, "1\n", code(id, "c"+strconv.Itoa(i), "print(1)"))
	}
	t.Logf("one cell through manager link and agent: %s", time.Since(began)/n)
	found, err := h.agent.Findings(t.Context())
	require.NoError(t, err)
	require.Empty(t, slicesWithout(found, "deletion"))
}

// TestRealBatch ends with the command's exit code and its log.
func TestRealBatch(t *testing.T) {
	m := newManager(t)
	h := newDockerHost(t, m)
	h.startDocker()
	d := onDocker(2)
	d.Spec.SessionType, d.Spec.StartupCommand = cluster.Batch, "echo out; exit 3"
	m.want(d)
	m.until("it ends", func() bool { return m.phase(kernelID(2)) == cluster.PhaseEnded })
	o := m.of(kernelID(2))
	require.Equal(t, cluster.ReasonTaskFailed, o.Reason, "%+v", o)
	require.Equal(t, 3, *o.ExitCode)
	require.Contains(t, o.LogTail, "out\n")
	t.Logf("log: %q", o.LogTail)
	before := cpuSeconds()
	const n = 5
	for i := range n {
		id := kernelID(10 + i)
		m.want(onDocker(10 + i))
		m.until("it runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
		_, err := m.runner(id).Hello(t.Context())
		require.NoError(t, err)
		m.want(stopped(10 + i))
		m.until("it ends", func() bool { return m.phase(id) == cluster.PhaseEnded })
	}
	t.Logf("CPU of agent and link per session: %.1f ms", (cpuSeconds()-before)/n*1000)
}
