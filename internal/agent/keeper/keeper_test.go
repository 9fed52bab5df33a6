package keeper_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

func TestLife(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	id := kernelID(1)
	r.want(true)
	r.want(false, desired(1, func(d *cluster.DesiredKernel) {
		d.Spec.Env = map[string]string{"A": "b"}
		d.Spec.ImageLabels = map[string]string{"ai.backend.envs.corecount": "OMP_NUM_THREADS"}
		d.Spec.Dotfiles = []cluster.Dotfile{{Path: ".config/x", Perm: "600", Data: "y"}}
	}))
	o := r.awaitPhase(id, 1, cluster.PhaseRunning)
	require.NotEmpty(t, o.ContainerID)
	require.JSONEq(t, `{"cpu":{"0":1000},"mem":{"root":1073741824000}}`, o.Allocation)
	require.False(t, o.StartedAt.IsZero())

	home := filepath.Join(r.dir, "kernels", string(id))
	conf, err := run.LoadConfig(filepath.Join(home, "private", "config.json"))
	require.NoError(t, err)
	require.Equal(t, "1", conf.Env["OMP_NUM_THREADS"])
	require.Equal(t, "b", conf.Env["A"])
	require.Equal(t, string(id), conf.Env["BACKENDAI_KERNEL_ID"])
	require.Equal(t, "/bin/bash", conf.User.Shell)
	text, err := os.ReadFile(filepath.Join(home, "config", "resource.txt"))
	require.NoError(t, err)
	require.Contains(t, string(text), "CPU_SHARES=0:1\n")
	require.Contains(t, string(text), "CID="+o.ContainerID)
	text, err = os.ReadFile(filepath.Join(home, "etc", "passwd"))
	require.NoError(t, err)
	require.Equal(t, "work:x:9001:9001::/home/work:/bin/bash\nroot:x:0:0:root:/root:/bin/bash\nnode:x:9001:9001::/home/node:/bin/sh\n",
		string(text))
	st, err := os.Stat(filepath.Join(home, "work", ".config", "x"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode())
	st, err = os.Stat(filepath.Join(home, "private", "config.json"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode())

	r.want(false, stopped(1))
	o = r.awaitPhase(id, 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonUserRequested, o.Reason)
	require.False(t, o.Failed)
	require.Zero(t, r.engine.Count(), "an end is told when the container is gone")
	require.Contains(t, r.keeper.LogTail(id), "runner started")
	require.Equal(t, "1 PREPARING, 1 PREPARED, 1 CREATING, 1 RUNNING, 1 TERMINATING, 1 ENDED user-requested", normal(r.phases(id)))
	r.keeper.Ack([]cluster.Tombstone{{Kernel: id, Generation: 1}})
	r.gone(id)

	r.want(false, desired(1))
	r.want(true)
	require.Equal(t, 1, r.engine.Starts(scope, agent, id), "a late message revives nothing")
}

// normal adds the phases that a slow listener may miss, because only the newest is kept.
func normal(path string) string {
	for _, full := range []string{"1 PREPARING, 1 PREPARED, 1 CREATING, 1 RUNNING, 1 TERMINATING, 1 ENDED user-requested"} {
		at := 0
		for i := 0; i < len(path) && at < len(full); at++ {
			if full[at] == path[i] {
				i++
			}
			if i == len(path) {
				return full
			}
		}
	}
	return path
}

// slowLog is a runtime that reads the first log only when reading it was given up.
type slowLog struct {
	runtime.Runtime
	once    sync.Once
	reading chan struct{}
}

func (s *slowLog) Logs(ctx context.Context, id cluster.KernelID, o runtime.LogOptions) (io.ReadCloser, error) {
	first := false
	s.once.Do(func() { first = true })
	if first {
		close(s.reading)
		<-ctx.Done()
		return nil, fault.Unavailablef("the engine does not answer").WithCause(context.Cause(ctx))
	}
	return s.Runtime.Logs(ctx, id, o)
}

// The manager acts on the end of a job while its log is being read.
func TestLogOutlivesAChangeOfPlan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := &slowLog{reading: make(chan struct{})}
	r.wrap = func(rt runtime.Runtime) runtime.Runtime { slow.Runtime = rt; return slow }
	r.start()
	r.want(true, desired(1, batch("print(6*7)")))
	<-slow.reading
	r.want(false, stopped(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonTaskFinished, o.Reason)
	require.Contains(t, r.keeper.LogTail(kernelID(1)), "42")
}

func TestBatchResults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1, batch("print(6*7)")), desired(2, batch("exit 3")), desired(3, batch("sleep 60")))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonTaskFinished, o.Reason)
	require.Equal(t, 0, *o.ExitCode)
	require.True(t, o.Batch)
	require.Contains(t, r.keeper.LogTail(kernelID(1)), "42")
	o = r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonTaskFailed, o.Reason)
	require.Equal(t, 3, *o.ExitCode)
	r.awaitPhase(kernelID(3), 1, cluster.PhaseRunning)
	r.want(false, stopped(3))
	o = r.awaitPhase(kernelID(3), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonUserRequested, o.Reason)
}

func TestEndsByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1), desired(2), desired(3))
	for i := 1; i <= 3; i++ {
		r.awaitPhase(kernelID(i), 1, cluster.PhaseRunning)
	}
	require.NoError(t, r.engine.Exit(kernelID(1), 5))
	require.NoError(t, r.engine.OOM(kernelID(2)))
	require.NoError(t, r.engine.Kill(kernelID(3), 11))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonSelfTerminated, o.Reason)
	require.Equal(t, 5, *o.ExitCode)
	o = r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonOutOfMemory, o.Reason)
	require.True(t, o.OOMKilled)
	o = r.awaitPhase(kernelID(3), 1, cluster.PhaseEnded)
	require.Equal(t, 11, o.Signal)
}

// quick is a runtime whose containers have ended, and the keeper has been told so, before Ensure returns.
type quick struct {
	runtime.Runtime
	again chan runtime.Hint
}

func (q *quick) Watch(ctx context.Context) <-chan runtime.Hint {
	in, out := q.Runtime.Watch(ctx), make(chan runtime.Hint)
	go func() {
		defer close(out)
		for {
			var h runtime.Hint
			select {
			case h = <-in:
			case h = <-q.again:
			case <-ctx.Done():
				return
			}
			select {
			case out <- h:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (q *quick) Ensure(ctx context.Context, spec runtime.Spec) (runtime.Observed, error) {
	o, err := q.Runtime.Ensure(ctx, spec)
	for err == nil && o.Phase == runtime.PhaseRunning {
		now, e := q.Inspect(ctx, spec.Identity.Kernel)
		if err = e; err == nil && now.Phase != runtime.PhaseRunning {
			break
		}
	}
	for range 4 { // the keeper takes one at a time, so that it has acted on the first
		q.again <- runtime.Hint{Kernel: spec.Identity.Kernel}
	}
	return o, err
}

func TestEndBeforeCreationReturnsIsNotMissed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.times.Sweep = time.Hour
	r.wrap = func(rt runtime.Runtime) runtime.Runtime { return &quick{Runtime: rt, again: make(chan runtime.Hint)} }
	r.start()
	r.want(true, desired(1, batch("exit 0")))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonTaskFinished, o.Reason, o.Detail)
	require.False(t, o.Failed)
}

func TestNamedFailures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fault  *fake.Fault
		change func(*cluster.DesiredKernel)
		reason cluster.Reason
		retry  bool
		words  string
	}{
		{"image missing", nil, func(d *cluster.DesiredKernel) { d.Spec.Image = "berth/none:1" }, cluster.ReasonFailedToPull, true,
			"not on this agent"},
		{"pull refused", nil, func(d *cluster.DesiredKernel) { d.Spec.Image, d.Spec.RegistryType = "example.org/none:1", "docker" },
			cluster.ReasonFailedToPull, true, "pull image"},
		{"too many cores", nil, func(d *cluster.DesiredKernel) { d.Spec.Slots[cluster.SlotCPU] = cluster.Whole(9) },
			cluster.ReasonFailedToCreate, false, "slot cpu: 9 asked for"},
		{"cores of others", nil, func(d *cluster.DesiredKernel) {
			d.Spec.Allocation = `{"cpu":{"77":1000},"mem":{"root":1073741824000}}`
		}, cluster.ReasonFailedToCreate, true, "is not a device"},
		{"dotfile of the host", nil, func(d *cluster.DesiredKernel) {
			d.Spec.Dotfiles = []cluster.Dotfile{{Path: "/etc/cron.d/x", Data: "evil"}}
		}, cluster.ReasonFailedToCreate, false, "does not belong into /home/work"},
		{"engine refuses", &fake.Fault{Method: fake.Create, Err: fault.Invalidf("no such device")}, nil, cluster.ReasonFailedToCreate, false,
			"no such device"},
		{"engine's disk is full", &fake.Fault{Method: fake.Create, Err: fault.Exhaustedf("no space left on device")}, nil,
			cluster.ReasonFailedToCreate, true, "no space left"},
		{"start fails after creation", &fake.Fault{Method: fake.Start, Err: fault.Invalidf("exec format error")}, nil,
			cluster.ReasonFailedToCreate, false, "exec format error"},
		{"engine stays away", &fake.Fault{Method: fake.Create, Err: fault.Unavailablef("engine away")}, nil, cluster.ReasonCreateTimeout, true,
			"engine away"},
		{"runner never answers", &fake.Fault{Method: fake.Dial, Err: fault.Unavailablef("refused")}, nil, cluster.ReasonStartTimeout, true,
			"did not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			switch c.reason { // limits of what fails at once would pass while the machine stands still
			case cluster.ReasonCreateTimeout:
				r.times.Create = time.Second
			case cluster.ReasonStartTimeout:
				r.times.Start = 300 * time.Millisecond
			}
			if c.fault != nil {
				r.engine.Inject(*c.fault)
			}
			r.start()
			r.want(true)
			d := desired(1)
			if c.change != nil {
				d = desired(1, c.change)
			}
			r.want(false, d)
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.True(t, o.Failed)
			require.Equal(t, c.reason, o.Reason, o.Detail)
			require.Equal(t, c.retry, o.RetryElsewhere, o.Detail)
			require.Contains(t, o.Detail, c.words)
			require.Zero(t, r.engine.Count())
			r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
			r.gone(kernelID(1))
		})
	}
}

func TestFullScratchDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.Fill()
	r.start()
	r.want(true, desired(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.True(t, o.Failed)
	require.True(t, o.RetryElsewhere)
	require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
	require.Contains(t, o.Detail, "the disk of the agent's scratch directory is full")
	require.Contains(t, o.Detail, "free space")
	r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
	r.gone(kernelID(1))
}

func TestTransientFaultsAreOvercome(t *testing.T) {
	t.Parallel()
	for _, f := range []fake.Fault{
		{Method: fake.Create, Err: fault.Unavailablef("away"), Times: 2},
		{Method: fake.Create, Err: fault.Unavailablef("lost answer"), After: true, Times: 1},
		{Method: fake.Start, Err: fault.Unavailablef("lost answer"), After: true, Times: 1},
		{Method: fake.Stop, Err: fault.Unavailablef("away"), Times: 2},
		{Method: fake.Remove, Err: fault.Unavailablef("away"), Times: 2},
		{Method: fake.Inspect, Err: fault.Unavailablef("away"), Times: 2},
		{Method: fake.List, Err: fault.Unavailablef("away"), Times: 2},
		{Method: fake.Logs, Err: fault.Unavailablef("away"), Times: 1},
		{Method: fake.Images, Err: fault.Unavailablef("away"), Times: 2},
	} {
		t.Run(string(f.Method), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.engine.Inject(f)
			r.start()
			r.want(true)
			r.want(false, desired(1))
			r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
			r.want(false, stopped(1))
			r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.Equal(t, 1, r.engine.Starts(scope, agent, kernelID(1)))
			r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
			r.gone(kernelID(1))
		})
	}
}

func TestStopDuringEveryStep(t *testing.T) {
	t.Parallel()
	for _, m := range []fake.Method{fake.Images, fake.Pull, fake.Create, fake.Start, fake.Dial} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.engine.AddRemote("example.org/slow:1", fake.Remote{})
			takeBack := r.engine.Inject(fake.Fault{Method: m, Kernel: "", Hang: true})
			defer takeBack()
			r.start()
			r.want(true)
			r.want(false, desired(1, func(d *cluster.DesiredKernel) {
				if m == fake.Pull {
					d.Spec.Image, d.Spec.RegistryType = "example.org/slow:1", "docker"
				}
			}))
			r.awaitPhase(kernelID(1), 1, map[fake.Method]cluster.Phase{
				fake.Images: cluster.PhasePreparing, fake.Pull: cluster.PhasePulling, fake.Create: cluster.PhaseCreating,
				fake.Start: cluster.PhaseCreating, fake.Dial: cluster.PhaseCreating}[m])
			r.want(false, stopped(1))
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.Equal(t, cluster.ReasonUserRequested, o.Reason)
			require.False(t, o.Failed)
			r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
			r.gone(kernelID(1))
		})
	}
}

func TestStopOfAKernelThatNeverWas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, stopped(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonUserRequested, o.Reason)
	r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
	r.gone(kernelID(1))
}

func TestRestartKeepsTheHome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1))
	first := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	note := filepath.Join(r.dir, "kernels", string(kernelID(1)), "work", "note")
	require.NoError(t, os.WriteFile(note, []byte("kept"), 0o644))
	private := filepath.Join(r.dir, "kernels", string(kernelID(1)), "private", "result.json")
	require.NoError(t, os.WriteFile(private, []byte("{}"), 0o644))
	r.want(false, desired(1, func(d *cluster.DesiredKernel) { d.Generation = 2 }))
	second := r.awaitPhase(kernelID(1), 2, cluster.PhaseRunning)
	require.NotEqual(t, first.ContainerID, second.ContainerID)
	require.FileExists(t, note)
	require.NoFileExists(t, private, "the private directory is new")
	require.Equal(t, 1, r.engine.Count())
}

func TestOrphansGoAfterTwoLooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.times.Sweep = time.Hour
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	stray := filepath.Join(r.dir, "kernels", string(kernelID(9)), "work")
	require.NoError(t, os.MkdirAll(stray, 0o755))
	r.want(true)
	r.want(false) // nothing happens: one look is not enough
	k, ok := r.keeper.Find(kernelID(1))
	require.True(t, ok)
	require.Equal(t, cluster.PhaseRunning, k.Phase)
	r.want(true)
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonNotFound, o.Reason)
	require.DirExists(t, stray)
	r.kill()

	r.times.Sweep = 10 * time.Millisecond
	r.start()
	r.want(true)
	r.eventually("the directory without an owner stays", func() bool {
		_, err := os.Stat(stray)
		return os.IsNotExist(err)
	})
}

func TestVanishedContainerIsReportedAfterTwoLooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.NoError(t, r.engine.Runtime(scope, agent).Remove(t.Context(), kernelID(1)))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonNotFound, o.Reason)
	require.Equal(t, 1, r.engine.Starts(scope, agent, kernelID(1)))
}

func TestLostLedgerIsRebuiltFromLabels(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1))
	before := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	token := tokenOf(r)
	r.kill()
	require.NoError(t, os.Remove(filepath.Join(r.dir, "ledger.db")))
	r.start()
	r.want(true, desired(1))
	after := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, before.ContainerID, after.ContainerID)
	require.Equal(t, before.Allocation, after.Allocation)
	r.eventually("it is not adopted", func() bool { return tokenOf(r) == token })
	require.Equal(t, 1, r.engine.Starts(scope, agent, kernelID(1)))
}

func tokenOf(r *rig) string {
	k, _ := r.keeper.Find(kernelID(1))
	return k.Token
}

func TestResistingContainerIsFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.times.Stop = 200 * time.Millisecond
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	takeStop := r.engine.Inject(fake.Fault{Method: fake.Stop, Err: fault.Unavailablef("stuck")})
	takeRemove := r.engine.Inject(fake.Fault{Method: fake.Remove, Err: fault.Unavailablef("stuck")})
	d := stopped(1)
	d.Force = true
	r.want(false, d)
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Contains(t, o.Detail, "could not be removed")
	require.Equal(t, []cluster.KernelID{kernelID(1)}, r.keeper.Fenced())
	r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
	require.Equal(t, 1, r.engine.Count())
	takeStop()
	takeRemove()
	r.gone(kernelID(1))
}

func TestDeadEngineAtStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.Lose()
	r.start()
	r.want(true, desired(1))
	_, known := r.keeper.Find(kernelID(1))
	require.True(t, known)
	r.engine.Restore()
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
}

func TestPullsAreSharedAndReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.AddRemote("example.org/new:1", fake.Remote{Image: runtime.Image{}})
	r.start()
	pulled := func(d *cluster.DesiredKernel) { d.Spec.Image, d.Spec.RegistryType = "example.org/new:1", "docker" }
	r.want(true, desired(1, pulled), desired(2, pulled))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
}

// TestWhenImagesArePulled: an image of a registry is pulled where its content is missing, where its name is missing, or never; what a
// kernel runs is the content that was resolved, or nothing.
func TestWhenImagesArePulled(t *testing.T) {
	t.Parallel()
	const reference = "example.org/tool:1"
	content := "sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct{ policy, host, words string }{
		{cluster.PullDigest, "", ""}, {cluster.PullDigest, "other", ""}, {cluster.PullDigest, "same", ""},
		{cluster.PullTag, "", ""}, {cluster.PullTag, "other", "tags that are there are not pulled"}, {cluster.PullTag, "same", ""},
		{cluster.PullNone, "", "is not on this agent and pulling is switched off"},
		{cluster.PullNone, "other", "pulling is switched off"}, {cluster.PullNone, "same", ""},
	} {
		t.Run(c.policy+" "+c.host, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.engine.AddRemote(reference, fake.Remote{Image: runtime.Image{ID: content}})
			switch c.host {
			case "other":
				r.engine.AddImage(runtime.Image{References: []string{reference}}, nil)
			case "same":
				r.engine.AddImage(runtime.Image{ID: content, References: []string{reference}}, nil)
			}
			r.start()
			r.want(true, desired(1, func(d *cluster.DesiredKernel) {
				d.Spec.Image, d.Spec.ImageDigest, d.Spec.RegistryType, d.Spec.AutoPull = reference, content, "docker", c.policy
			}))
			if c.words == "" {
				r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
				return
			}
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.True(t, o.Failed)
			require.Equal(t, cluster.ReasonFailedToPull, o.Reason)
			require.Contains(t, o.Detail, c.words)
		})
	}
}

// TestTheCommandRunsInTheMainKernelAlone: the other kernels of a batch session run until they are stopped, and have no result.
func TestTheCommandRunsInTheMainKernelAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	role := func(role string) func(*cluster.DesiredKernel) {
		return func(d *cluster.DesiredKernel) { d.Spec.ClusterRole = role }
	}
	r.want(true, desired(1, batch("exit 3"), role(cluster.RoleMain)), desired(2, batch("exit 3"), role("sub")))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	conf, err := r.host.Runner(kernelID(2))
	require.NoError(t, err)
	require.Nil(t, conf.Batch)
	require.Equal(t, string(cluster.Interactive), conf.SessionType)
	r.want(false, stopped(2))
	r.await(kernelID(2), "its end", func(o cluster.KernelObservation) bool { return o.Phase == cluster.PhaseEnded && !o.Batch })
}
