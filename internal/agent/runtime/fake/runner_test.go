package fake_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// clock is advanced by hand.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*timer]bool
}

type timer struct {
	at time.Time
	f  func()
}

func newClock() *clock {
	return &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), timers: map[*timer]bool{}}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c.now.Add(d), f}
	c.timers[t] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		was := c.timers[t]
		delete(c.timers, t)
		return was
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	var due []*timer
	for t := range c.timers {
		if !t.at.After(c.now) {
			due = append(due, t)
			delete(c.timers, t)
		}
	}
	c.mu.Unlock()
	for _, t := range due {
		t.f()
	}
}

type host struct {
	*fake.Engine
	rt    *fake.Runtime
	clock *clock
}

func newHost(t *testing.T, opt fake.Options) host {
	c := newClock()
	opt.Now, opt.After = c.Now, c.After
	e := fake.NewEngine(opt)
	t.Cleanup(e.Close)
	e.AddImage(runtime.Image{References: []string{"box:1"}}, nil)
	rt := e.Runtime("c", "i-a")
	t.Cleanup(func() { _ = rt.Close() })
	return host{e, rt, c}
}

func (h host) spec(entry ...string) runtime.Spec {
	return runtime.Spec{
		Identity: runtime.Identity{Cluster: "c", Agent: "i-a", Kernel: cluster.KernelID(uuid.NewString()), Generation: 1, Schema: 1},
		Image:    "box:1", Entry: append([]string{"/runner"}, entry...),
	}
}

func (h host) client(t *testing.T, k cluster.KernelID, token string) *run.Client {
	c := run.NewClient(run.Options{Token: token, Dial: func(ctx context.Context) (net.Conn, error) { return h.rt.DialRunner(ctx, k) }})
	t.Cleanup(c.Close)
	return c
}

// console runs code to its end and returns its standard output and exit code.
func console(t *testing.T, c *run.Client, id, code string) (string, int) {
	t.Helper()
	var out strings.Builder
	req := run.StepRequest{Mode: run.ModeQuery, Code: code, WaitMS: 30_000}
	for {
		res, err := c.Step(t.Context(), id, req)
		require.NoError(t, err)
		for _, item := range res.Console {
			out.WriteString(item.Data)
		}
		if res.Status.Final() {
			require.NotNil(t, res.ExitCode)
			return out.String(), *res.ExitCode
		}
		req = run.StepRequest{Mode: run.ModeContinue, WaitMS: 30_000}
	}
}

func TestRunnerQuery(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec := h.spec()
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	c := h.client(t, spec.Identity.Kernel, "")
	hello, err := c.Hello(t.Context())
	require.NoError(t, err)
	require.Equal(t, string(spec.Identity.Kernel), hello.KernelID)
	out, code := console(t, c, "r1", `print("hi"); print(6*7)`)
	require.Equal(t, "hi\n42\n", out)
	require.Zero(t, code)
	_, code = console(t, c, "r2", "import sys; sys.exit(3)")
	require.Equal(t, 3, code)
	out, code = console(t, c, "r1", `print("again")`)
	require.Equal(t, "again\n", out)
	require.Zero(t, code)
}

func TestRunnerInputAndInterrupt(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec := h.spec()
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	c := h.client(t, spec.Identity.Kernel, "")
	res, err := c.Step(t.Context(), "r", run.StepRequest{Mode: run.ModeQuery, Code: "print(input())", WaitMS: 30_000})
	require.NoError(t, err)
	require.Equal(t, run.StatusWaitingInput, res.Status)
	res, err = c.Step(t.Context(), "r", run.StepRequest{Mode: run.ModeInput, Code: "Ada", WaitMS: 30_000})
	require.NoError(t, err)
	require.Equal(t, run.StatusFinished, res.Status)
	require.Equal(t, []run.Console{{Type: run.Stdout, Data: "Ada\n"}}, res.Console)

	res, err = c.Step(t.Context(), "s", run.StepRequest{Mode: run.ModeQuery, Code: "sleep 60; print(1)"})
	require.NoError(t, err)
	require.Equal(t, run.StatusContinued, res.Status)
	hit, err := c.Interrupt(t.Context(), "")
	require.NoError(t, err)
	require.True(t, hit.Interrupted)
	res, err = c.Step(t.Context(), "s", run.StepRequest{Mode: run.ModeContinue, WaitMS: 30_000})
	require.NoError(t, err)
	require.Equal(t, run.StatusFinished, res.Status)
	require.Equal(t, 130, *res.ExitCode)
}

// TestRunnerCountedSteps loses every answer once and still sees each record once.
func TestRunnerCountedSteps(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec := h.spec()
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	c := h.client(t, spec.Identity.Kernel, "")
	from := int64(0)
	first := run.StepRequest{Mode: run.ModeQuery, Code: "print(1+1); exit 4", WaitMS: 30_000, From: &from}
	lost, err := c.Step(t.Context(), "r", first)
	require.NoError(t, err)
	again, err := c.Step(t.Context(), "r", first)
	require.NoError(t, err)
	require.Equal(t, lost, again)
	require.Equal(t, []run.Console{{Type: run.Stdout, Data: "2\n"}}, again.Console)
}

// batchSpec is a container with a mounted runner configuration, as the agent makes it.
func (h host) batchSpec(t *testing.T, command string) (spec runtime.Spec, result string) {
	dir := t.TempDir()
	spec = h.spec("/.berth/config.json")
	require.NoError(t, run.WriteConfig(filepath.Join(dir, "config.json"), run.Config{
		Version: run.Version, Token: "0123456789abcdef", KernelID: string(spec.Identity.Kernel), Dir: "/.berth",
		SessionType: "batch", Batch: &run.BatchCommand{Command: command},
	}))
	spec.Mounts = []runtime.Mount{{Source: dir, Target: "/.berth"}}
	return spec, filepath.Join(dir, "result.json")
}

func readResult(t *testing.T, file string) run.BatchResult {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var res run.BatchResult
	require.NoError(t, json.Unmarshal(b, &res))
	return res
}

func TestRunnerBatch(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec, result := h.batchSpec(t, `print("working"); sleep 90; exit 5`)
	k := spec.Identity.Kernel
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	c := h.client(t, k, "0123456789abcdef")
	state, err := c.Batch(t.Context())
	require.NoError(t, err)
	require.Equal(t, run.BatchRunning, state.Phase)
	_, err = h.client(t, k, "wrong").Batch(t.Context())
	require.Equal(t, fault.Unauthenticated, fault.KindOf(err), "%v", err)
	require.NoFileExists(t, result)
	h.clock.advance(91 * time.Second)
	o, err := h.rt.Inspect(t.Context(), k)
	require.NoError(t, err)
	require.Equal(t, runtime.PhaseExited, o.Phase)
	require.Equal(t, 5, o.ExitCode)
	require.Equal(t, 5, readResult(t, result).ExitCode)
	again, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, o, again)
	require.Equal(t, 1, h.Starts("c", "i-a", k))
}

func TestRunnerBatchCancelled(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec, result := h.batchSpec(t, "sleep 90")
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	require.NoError(t, h.rt.Stop(t.Context(), spec.Identity.Kernel, time.Second))
	o, err := h.rt.Inspect(t.Context(), spec.Identity.Kernel)
	require.NoError(t, err)
	require.Equal(t, 143, o.ExitCode)
	require.True(t, readResult(t, result).Cancelled)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec := h.spec()
	k := spec.Identity.Kernel

	// An answer that is lost: the work is done all the same.
	lost := fault.Unavailablef("lost")
	h.Inject(fake.Fault{Method: fake.Start, Kernel: k, Err: lost, After: true, Times: 1})
	_, err := h.rt.Ensure(t.Context(), spec)
	require.ErrorIs(t, err, lost)
	o, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, runtime.PhaseRunning, o.Phase)
	require.Equal(t, 1, h.Starts("c", "i-a", k))

	// A call that hangs ends with its context, another kernel's does not hang.
	takeBack := h.Inject(fake.Fault{Method: fake.Stop, Kernel: k, Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- h.rt.Stop(ctx, k, time.Second) }()
	other := h.spec()
	_, err = h.rt.Ensure(t.Context(), other)
	require.NoError(t, err)
	require.NoError(t, h.rt.Stop(t.Context(), other.Identity.Kernel, time.Second))
	cancel()
	require.ErrorIs(t, <-stopped, context.Canceled)
	takeBack()
	require.NoError(t, h.rt.Stop(t.Context(), k, time.Second))
	require.NoError(t, h.rt.Remove(t.Context(), k))
	require.NoError(t, h.rt.Remove(t.Context(), other.Identity.Kernel))
	require.Zero(t, h.Count())
}

// TestEngineSurvivesItsRuntime kills the agent between create and start.
func TestEngineSurvivesItsRuntime(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	spec := h.spec()
	defer h.Inject(fake.Fault{Method: fake.Start, Err: context.DeadlineExceeded, Times: 1})()
	_, err := h.rt.Ensure(t.Context(), spec)
	require.Error(t, err)
	require.NoError(t, h.rt.Close())
	second := h.Runtime("c", "i-a")
	defer second.Close()
	all, err := second.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, runtime.PhaseCreated, all[0].Phase)
	o, err := second.Ensure(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, all[0].ID, o.ID)
}

// TestManySessions starts, uses and removes 2,000 sessions and leaves nothing behind.
func TestManySessions(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{})
	for range 2000 {
		spec := h.spec()
		_, err := h.rt.Ensure(t.Context(), spec)
		require.NoError(t, err)
		c := run.NewClient(run.Options{Dial: func(ctx context.Context) (net.Conn, error) {
			return h.rt.DialRunner(ctx, spec.Identity.Kernel)
		}})
		_, code := console(t, c, "r", "print(1)")
		require.Zero(t, code)
		c.Close()
		require.NoError(t, h.rt.Stop(t.Context(), spec.Identity.Kernel, time.Second))
		require.NoError(t, h.rt.Remove(t.Context(), spec.Identity.Kernel))
	}
	require.Zero(t, h.Count())
}
