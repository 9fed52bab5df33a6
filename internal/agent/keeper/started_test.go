package keeper_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// TestAStartedCommandIsNoFailedCreation: whatever fails after the engine has started a batch command, its result counts and no other
// agent is asked to run it again.
func TestAStartedCommandIsNoFailedCreation(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fake.Fault{
		"the engine's answer is lost":     {Method: fake.Start, Err: fault.New(fault.Timeout, "no answer"), After: true},
		"the engine's answer makes sense": {Method: fake.Start, Err: fault.Invalidf("no such thing"), After: true},
		"the runner cannot be reached":    {Method: fake.Dial, Err: fault.Deniedf("no way")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.times.Start = 200 * time.Millisecond
			t.Cleanup(r.engine.Inject(f))
			r.start()
			r.want(true, desired(1, batch(`sleep 0.5; print("done")`)))
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.False(t, o.Failed, "%+v", o)
			require.Equal(t, cluster.ReasonTaskFinished, o.Reason)
			require.Equal(t, 0, *o.ExitCode)
			require.Equal(t, 1, r.engine.Runs(scope, agent, kernelID(1)))
		})
	}
}

// TestACommandThatDidNotStartMayGoElsewhere: the agent denies the start only when nothing can start it any more.
func TestACommandThatDidNotStartMayGoElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	takeBack := r.engine.Inject(fake.Fault{Method: fake.Start, Err: fault.New(fault.Timeout, "no answer")})
	defer takeBack()
	silent := r.engine.Inject(fake.Fault{Method: fake.Inspect, Err: fault.Unavailablef("the engine is stopped")})
	r.times.Create = time.Second
	r.start()
	r.want(true, desired(1, batch("exit 0")))
	r.await(kernelID(1), "waiting for the engine", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	require.NotContains(t, r.phases(kernelID(1)), "ENDED", "while the engine is silent, nothing is certain")
	silent()
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.True(t, o.Failed && o.RetryElsewhere, "%+v", o)
	require.Zero(t, r.engine.Runs(scope, agent, kernelID(1)))
}

// TestAQuestionIsAnswered: a manager that cannot tell whether the command started stops the kernel with a reason of its own.
func TestAQuestionIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	ask := func(i int) cluster.DesiredKernel {
		d := stopped(i)
		d.StopReason = cluster.ReasonStartUnknown
		return d
	}
	r.want(true, desired(1, batch("sleep 60")))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.want(false, ask(1), ask(2))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.False(t, o.Failed, "it had started: %+v", o)
	o = r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.True(t, o.Failed && o.RetryElsewhere, "it never was here: %+v", o)
}

// TestAContainerThatWasRemovedIsNotStartedAgain: the engine loses the container of a command that ran, before the agent knew that it did.
func TestAContainerThatWasRemovedIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reached := make(chan struct{}, 1)
	r.before = func(ctx context.Context, _ cluster.KernelID, point string) error {
		if point != "await:before" {
			return nil
		}
		reached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	r.start()
	r.want(true, desired(1, batch("sleep 60")))
	await.Value(t, reached)
	r.kill()
	require.NoError(t, r.engine.Runtime(scope, agent).Remove(t.Context(), kernelID(1)))
	r.before = nil
	r.start()
	r.want(true, desired(1, batch("sleep 60")))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonNotFound, o.Reason)
	require.False(t, o.Failed)
	require.Equal(t, 1, r.engine.Runs(scope, agent, kernelID(1)))
}

// TestLostMarkersDenyNothing: the disk with the runner's files is lost, the container of a command that ran is not.
func TestLostMarkersDenyNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reached := make(chan struct{}, 1)
	r.before = func(ctx context.Context, _ cluster.KernelID, point string) error {
		if point != "await:before" {
			return nil
		}
		reached <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	r.start()
	r.want(true, desired(1, batch("sleep 60")))
	await.Value(t, reached)
	r.kill()
	require.NoError(t, os.RemoveAll(r.host.Path(kernelID(1))))
	require.NoError(t, r.engine.Exit(kernelID(1), 1))
	r.before = nil
	r.start()
	ask := stopped(1)
	ask.StopReason = cluster.ReasonStartUnknown
	r.want(true, ask)
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.False(t, o.Failed, "%+v", o)
	require.Equal(t, 1, r.engine.Runs(scope, agent, kernelID(1)))
}

// TestBusyDevicesAreWaitedFor: devices that another kernel still holds are no reason to fail.
func TestBusyDevicesAreWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.cores = 1
	r.start()
	r.want(true, desired(1), desired(2))
	r.eventually("one runs", func() bool { return len(r.keeper.Running()) == 1 })
	first, second := 1, 2
	if r.keeper.Running()[0].ID == kernelID(2) {
		first, second = 2, 1
	}
	r.want(false, stopped(first))
	r.awaitPhase(kernelID(second), 1, cluster.PhaseRunning)

	r.kill()
	r.times.Busy = 50 * time.Millisecond
	r.start()
	r.want(true, desired(second), desired(3))
	o := r.awaitPhase(kernelID(3), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonBusy, o.Reason)
	require.True(t, o.Failed && o.RetryElsewhere)
}

// TestACrashIsNamed: a container that ends without its runner's word did not end itself.
func TestACrashIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1), desired(2))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	require.NoError(t, r.engine.Crash(kernelID(1)))
	require.NoError(t, r.engine.Exit(kernelID(2), 0))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonCrashed, o.Reason, o.Detail)
	require.Contains(t, o.Detail, "crashed")
	require.Equal(t, cluster.ReasonSelfTerminated, r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded).Reason)
}

// TestAContainerStaysWhileItsEndCannotBeRecorded: with neither container nor record, the next agent would start the kernel once more.
func TestAContainerStaysWhileItsEndCannotBeRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	removals := make(chan struct{}, 100)
	r.before = func(_ context.Context, _ cluster.KernelID, point string) error {
		switch point {
		case "running:before":
			r.full.Store(true) // from now on the ledger cannot be written
		case string(keeper.StepRemove) + ":before":
			removals <- struct{}{}
		}
		return nil
	}
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.NoError(t, r.engine.Exit(kernelID(1), 0))
	for range 2 { // the second attempt shows that the first one was refused
		await.Value(t, removals)
	}
	require.Equal(t, 1, r.engine.Count(), "the container is the only proof of its start")
	r.kill()
	r.before = nil
	r.full.Store(false)
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, 1, r.engine.Starts(scope, agent, kernelID(1)))
}

// TestAnOldOrderRevivesNothing: a desired state that the manager read before it stored the end may be sent after the acknowledgement. It
// finds the kernel at any point of being forgotten, and starts its command no second time.
func TestAnOldOrderRevivesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"acknowledged", "forget:before", "forget:after", "forgotten"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			old := desired(1, batch("exit 2"))
			late := make(chan struct{})
			r.before = func(_ context.Context, _ cluster.KernelID, at string) error {
				if at == point {
					r.want(false, old)
					close(late)
				}
				return nil
			}
			r.start()
			r.want(true, old)
			r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
			switch point {
			case "acknowledged":
				r.want(false, old)
			case "forgotten":
				r.gone(kernelID(1))
				r.want(false, old)
			default:
				await.Value(t, late)
			}
			r.gone(kernelID(1))
			r.want(false, desired(2, batch("exit 0"))) // whatever the old order caused comes before the end of this one
			r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
			require.Equal(t, 1, r.engine.Runs(scope, agent, kernelID(1)))
		})
	}
}
