package conformance

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func ensureRuns(w *world) {
	spec := w.spec(w.kernel(), "wait")
	before := time.Now().Add(-time.Minute)
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, spec.Identity, o.Identity, "labels carry the identity there and back")
	require.Equal(w, runtime.PhaseRunning, o.Phase)
	require.NotEmpty(w, o.ID)
	require.Positive(w, o.Pid)
	require.Empty(w, o.Error)
	require.True(w, o.StartedAt.After(before), "started at %s", o.StartedAt)
	require.True(w, o.FinishedAt.IsZero())
	seen, err := w.rt.Inspect(w.ctx, spec.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, o, seen)
}

func ensureTwice(w *world) {
	spec := w.spec(w.kernel(), "wait")
	first, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	again, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, first, again)
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Len(w, all, 1)
}

func ensureConcurrently(w *world) {
	spec := w.spec(w.kernel(), "wait")
	var wg sync.WaitGroup
	got := make([]runtime.Observed, 4)
	errs := make([]error, len(got))
	for i := range got {
		wg.Go(func() { got[i], errs[i] = w.rt.Ensure(w.ctx, spec) })
	}
	wg.Wait()
	for i := range got {
		require.NoError(w, errs[i])
		require.Equal(w, got[0].ID, got[i].ID)
		require.Equal(w, got[0].StartedAt, got[i].StartedAt, "it was started once")
	}
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Len(w, all, 1)
}

func ensureCreated(w *world) {
	repair := w.fix.BreakStart()
	spec := w.spec(w.kernel(), "wait")
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Error(w, err)
	repair()
	created, err := w.rt.Inspect(w.ctx, spec.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseCreated, created.Phase)
	require.Equal(w, spec.Identity, created.Identity)
	require.Zero(w, created.Pid)
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, created.ID, o.ID)
	require.Equal(w, runtime.PhaseRunning, o.Phase)
}

func ensureExited(w *world) {
	spec := w.spec(w.kernel(), "exit", "7")
	_, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	ended := w.untilExited(spec.Identity.Kernel)
	again, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, ended, again, "as it was, not started again")
}

func ensureGeneration(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Identity.Generation = 2
	first, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	for _, g := range []int64{1, 3} {
		other := spec
		other.Identity.Generation = g
		_, err = w.rt.Ensure(w.ctx, other)
		require.Equal(w, fault.Conflict, fault.KindOf(err), "generation %d: %v", g, err)
		require.Equal(w, runtime.ReasonGeneration, fault.ReasonOf(err))
	}
	still, err := w.rt.Inspect(w.ctx, spec.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, first, still)
	require.NoError(w, w.rt.Remove(w.ctx, spec.Identity.Kernel))
	spec.Identity.Generation = 3
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.NotEqual(w, first.ID, o.ID)
	require.EqualValues(w, 3, o.Identity.Generation)
}

func ensureForeign(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Identity.Cluster = "somebody-else"
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
	spec = w.spec(w.kernel(), "wait")
	spec.Identity.Agent = "i-other"
	_, err = w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
}

func ensureMissingImage(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Image = "berth-test/not-there:1"
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonImage, fault.ReasonOf(err))
	require.Contains(w, err.Error(), "berth-test/not-there:1")
	require.NotEmpty(w, fault.NextOf(err))
	_, err = w.rt.Inspect(w.ctx, spec.Identity.Kernel)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "nothing is left behind")
}

func ensureDigest(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Digest = "sha256:" + strings.Repeat("0123456789abcdef", 4)
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonDigest, fault.ReasonOf(err))
	spec.Digest = w.fix.ImageID
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseRunning, o.Phase)
}

func ensureInvalid(w *world) {
	for name, spoil := range map[string]func(*runtime.Spec){
		"no entry":        func(s *runtime.Spec) { s.Entry = nil },
		"absent entry":    func(s *runtime.Spec) { s.Entry = []string{"/no/such/program"} },
		"negative memory": func(s *runtime.Spec) { s.MemoryMax = -1 },
		"bad image name":  func(s *runtime.Spec) { s.Image = "../containers/json?all=1" },
		"empty image":     func(s *runtime.Spec) { s.Image = "" },
	} {
		spec := w.spec(w.kernel(), "wait")
		spoil(&spec)
		_, err := w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
	}
}

func ensureStartFails(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Entry = []string{"/no/such/program"}
	for range 2 { // asking again is no other answer
		_, err := w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
		require.Contains(w, err.Error(), string(spec.Identity.Kernel))
	}
	o, err := w.rt.Inspect(w.ctx, spec.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseCreated, o.Phase)
	require.Contains(w, o.Error, "/no/such/program")
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Equal(w, []runtime.Observed{o}, all)
}

// ensureLimits looks from inside the container at everything a spec promises.
func ensureLimits(w *world) {
	if !w.fix.Real {
		w.Skip("SKIPPED: a fake container has no limits to look at")
	}
	dir := w.TempDir()
	spec := w.spec(w.kernel(), "facts")
	spec.Env = []string{"COLOUR=green"}
	spec.WorkingDir = "/data"
	spec.CPUSet = []int{0}
	spec.ShmSize = 32 << 20
	spec.Tmpfs = map[string]string{"/run/t": "size=1m"}
	spec.Mounts = []runtime.Mount{{Source: dir, Target: "/mnt/rw"}, {Source: dir, Target: "/mnt/ro", ReadOnly: true}}
	// Far above what any engine gives: it must be lowered, not refused.
	spec.Ulimits = []runtime.Ulimit{{Name: "nofile", Soft: 1 << 40, Hard: 1 << 40}, {Name: "memlock", Soft: -1, Hard: -1}}
	_, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	o := w.untilExited(spec.Identity.Kernel)
	text := w.wholeLog(spec.Identity.Kernel, runtime.LogOptions{})
	require.Zero(w, o.ExitCode, text)
	lines := strings.Split(text, "\n")
	for _, want := range []string{
		"hostname main1", "dir /data", "uid 0", "env COLOUR=green",
		"status NoNewPrivs: 1", "status Seccomp: 2", "status Cpus_allowed_list: 0",
		// CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID
		"status CapEff: 00000000000000eb", "status CapBnd: 00000000000000eb",
	} {
		require.Contains(w, lines, want)
	}
	mount := func(target string) string {
		i := slices.IndexFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, "mounts ") && strings.Contains(l, " "+target+" ")
		})
		require.GreaterOrEqual(w, i, 0, "no mount at %s in:\n%s", target, text)
		return lines[i]
	}
	require.Contains(w, mount("/dev/shm"), "size=32768k")
	require.Contains(w, mount("/run/t"), "size=1024k")
	require.Contains(w, mount("/mnt/rw"), " rw")
	require.Contains(w, mount("/mnt/ro"), " ro")
}

// mountsHold writes to a mount, to one that must not be written and to one inside another.
func mountsHold(w *world) {
	if !w.fix.Real {
		w.Skip("SKIPPED: a fake container has no files behind its mounts")
	}
	outer, inner := w.TempDir(), w.TempDir()
	mounts := []runtime.Mount{
		{Source: outer, Target: "/mnt/rw"}, {Source: outer, Target: "/mnt/ro", ReadOnly: true}, {Source: inner, Target: "/mnt/rw/inner"},
	}
	write := func(path string) runtime.Spec {
		spec := w.spec(w.kernel(), "write", path, "text")
		spec.Mounts = mounts
		_, err := w.rt.Ensure(w.ctx, spec)
		require.NoError(w, err)
		return spec
	}
	for path, file := range map[string]string{"/mnt/rw/a": filepath.Join(outer, "a"), "/mnt/rw/inner/b": filepath.Join(inner, "b")} {
		write(path)
		require.Eventually(w, func() bool { text, err := os.ReadFile(file); return err == nil && string(text) == "text" }, patience,
			10*time.Millisecond, path)
	}
	refused := write("/mnt/ro/c")
	o := w.untilExited(refused.Identity.Kernel)
	require.Equal(w, 2, o.ExitCode)
	require.Contains(w, w.wholeLog(refused.Identity.Kernel, runtime.LogOptions{}), "read-only file system")
	require.NoFileExists(w, filepath.Join(outer, "c"))
}

func listExited(w *world) {
	running := w.ensure("wait")
	gone := w.ensure("exit", "3")
	gone = w.untilExited(gone.Identity.Kernel)
	for range 2 { // the second time from what is remembered
		all, err := w.rt.List(w.ctx)
		require.NoError(w, err)
		require.ElementsMatch(w, []runtime.Observed{running, gone}, all)
	}
}

func adopt(w *world) {
	running := w.ensure("wait")
	gone := w.ensure("exit", "3")
	gone = w.untilExited(gone.Identity.Kernel)
	second := w.fix.Open(w.T, w.fix.Cluster, w.fix.Agent)
	all, err := second.List(w.ctx)
	require.NoError(w, err)
	require.ElementsMatch(w, []runtime.Observed{running, gone}, all)
	require.NoError(w, second.Stop(w.ctx, running.Identity.Kernel, patience))
	o, err := second.Inspect(w.ctx, running.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseExited, o.Phase)
	all, err = w.rt.List(w.ctx)
	require.NoError(w, err)
	require.ElementsMatch(w, []runtime.Observed{o, gone}, all, "the first runtime sees what the second did")
	require.NoError(w, second.Remove(w.ctx, running.Identity.Kernel))
	require.NoError(w, second.Remove(w.ctx, gone.Identity.Kernel))
	all, err = w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Empty(w, all)
}

func invisible(w *world) {
	o := w.ensure("wait")
	k := o.Identity.Kernel
	for _, other := range []runtime.Runtime{
		w.fix.Open(w.T, w.fix.Cluster+"-other", w.fix.Agent),
		w.fix.Open(w.T, w.fix.Cluster, w.fix.Agent+"-other"),
	} {
		all, err := other.List(w.ctx)
		require.NoError(w, err)
		require.Empty(w, all)
		_, err = other.Inspect(w.ctx, k)
		require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
		require.Equal(w, fault.NotFound, fault.KindOf(other.Stop(w.ctx, k, 0)))
		require.NoError(w, other.Remove(w.ctx, k), "for them it is absent")
	}
	still, err := w.rt.Inspect(w.ctx, k)
	require.NoError(w, err)
	require.Equal(w, o, still)
}

func inspectAbsent(w *world) {
	_, err := w.rt.Inspect(w.ctx, cluster.KernelID(uuid.NewString()))
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonContainer, fault.ReasonOf(err))
}

func stopAsks(w *world) {
	o := w.ensure("wait")
	k := o.Identity.Kernel
	w.untilLine(k, "waiting")
	require.NoError(w, w.rt.Stop(w.ctx, k, patience))
	o, err := w.rt.Inspect(w.ctx, k)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseExited, o.Phase, "stopped when Stop returns")
	require.Zero(w, o.ExitCode)
	require.Zero(w, o.Signal)
	require.False(w, o.FinishedAt.IsZero())
	require.Contains(w, w.wholeLog(k, runtime.LogOptions{}), "asked to end\n")
}

func stopKills(w *world) {
	o := w.ensure("stubborn")
	k := o.Identity.Kernel
	w.untilLine(k, "staying")
	require.NoError(w, w.rt.Stop(w.ctx, k, 100*time.Millisecond))
	w.wasKilled(k)
}

func stopNow(w *world) {
	o := w.ensure("wait")
	k := o.Identity.Kernel
	require.NoError(w, w.rt.Stop(w.ctx, k, 0))
	w.wasKilled(k)
}

func (w *world) wasKilled(k cluster.KernelID) {
	w.Helper()
	o, err := w.rt.Inspect(w.ctx, k)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseExited, o.Phase)
	require.Equal(w, 137, o.ExitCode)
	require.Equal(w, 9, o.Signal)
	require.False(w, o.OOMKilled)
}

func stopTwice(w *world) {
	o := w.ensure("exit", "0")
	k := o.Identity.Kernel
	ended := w.untilExited(k)
	require.NoError(w, w.rt.Stop(w.ctx, k, 0))
	require.NoError(w, w.rt.Stop(w.ctx, k, time.Second))
	again, err := w.rt.Inspect(w.ctx, k)
	require.NoError(w, err)
	require.Equal(w, ended, again)
	require.Equal(w, fault.NotFound, fault.KindOf(w.rt.Stop(w.ctx, cluster.KernelID(uuid.NewString()), time.Second)))
}

func removeRunning(w *world) {
	o := w.ensure("stubborn")
	k := o.Identity.Kernel
	require.NoError(w, w.rt.Remove(w.ctx, k))
	_, err := w.rt.Inspect(w.ctx, k)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Empty(w, all)
}

func removeAbsent(w *world) {
	require.NoError(w, w.rt.Remove(w.ctx, cluster.KernelID(uuid.NewString())))
	k := w.ensure("wait").Identity.Kernel
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wg.Go(func() { errs[i] = w.rt.Remove(w.ctx, k) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(w, err, "removing at the same time is no error either")
	}
}

func badKernelID(w *world) {
	for _, k := range []cluster.KernelID{"", "../x", "a/b", "a b", cluster.KernelID(strings.Repeat("a", 65))} {
		spec := w.spec(k, "wait")
		_, err := w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.Invalid, fault.KindOf(err), "%q: %v", k, err)
	}
}

func exitCode(w *world) {
	o := w.untilExited(w.ensure("exit", "3").Identity.Kernel)
	require.Equal(w, 3, o.ExitCode)
	require.Zero(w, o.Signal)
	require.False(w, o.OOMKilled)
	require.False(w, o.FinishedAt.Before(o.StartedAt))
}

func outOfMemory(w *world) {
	// Engines watch a container for this only from shortly after its start on.
	dir := w.TempDir()
	spec := w.spec(w.kernel(), "eat", "/mnt/go")
	spec.MemoryMax = 32 << 20
	spec.Mounts = []runtime.Mount{{Source: dir, Target: "/mnt"}}
	_, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.NoError(w, os.WriteFile(filepath.Join(dir, "go"), nil, 0o644))
	o := w.until(spec.Identity.Kernel, "out of memory", func(o runtime.Observed) bool { return o.OOMKilled })
	require.Equal(w, runtime.PhaseExited, o.Phase)
	require.Equal(w, 137, o.ExitCode)
	require.Equal(w, 9, o.Signal)
}

func lostEngine(w *world) {
	k := w.ensure("wait").Identity.Kernel
	restore := w.fix.Lose()
	_, err := w.rt.List(w.ctx)
	w.unavailable("list", err)
	_, err = w.rt.Inspect(w.ctx, k)
	w.unavailable("inspect", err)
	_, err = w.rt.Ensure(w.ctx, w.spec(w.kernel(), "wait"))
	w.unavailable("ensure", err)
	w.unavailable("stop", w.rt.Stop(w.ctx, k, time.Second))
	w.unavailable("remove", w.rt.Remove(w.ctx, k))
	_, err = w.rt.Images(w.ctx)
	w.unavailable("images", err)
	_, err = w.rt.Pull(w.ctx, w.fix.Remote, "", nil)
	w.unavailable("pull", err)
	_, err = w.rt.Info(w.ctx)
	w.unavailable("info", err)
	restore()
	o, err := w.rt.Inspect(w.ctx, k)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseRunning, o.Phase, "the container went on")
}

func (w *world) unavailable(what string, err error) {
	w.Helper()
	require.Equal(w, fault.Unavailable, fault.KindOf(err), "%s: %v", what, err)
	require.Equal(w, runtime.ReasonEngine, fault.ReasonOf(err), what)
	require.NotEmpty(w, fault.NextOf(err), what)
}

func cancelled(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := w.rt.List(ctx)
	require.ErrorIs(w, err, context.Canceled)
	_, err = w.rt.Ensure(ctx, w.spec(w.kernel(), "wait"))
	require.ErrorIs(w, err, context.Canceled)
}

func closing(w *world) {
	second := w.fix.Open(w.T, w.fix.Cluster, w.fix.Agent)
	hints := second.Watch(w.ctx)
	o := w.ensure("wait")
	require.NoError(w, second.Close())
	for range hints { // must be closed
	}
	still, err := w.rt.Inspect(w.ctx, o.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, o, still)
}

func info(w *world) {
	in, err := w.rt.Info(w.ctx)
	require.NoError(w, err)
	require.NotEmpty(w, in.Name)
	require.NotEmpty(w, in.Version)
	require.NotEmpty(w, in.APIVersion)
	require.Contains(w, []string{"x86_64", "aarch64"}, in.Architecture)
	require.Contains(w, []int{1, 2}, in.CgroupVersion)
}
