package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	run := func(gen int64) *cluster.DesiredKernel {
		return &cluster.DesiredKernel{Generation: gen, Spec: &cluster.KernelSpec{}}
	}
	stop := func(gen int64) *cluster.DesiredKernel {
		return &cluster.DesiredKernel{Generation: gen, Stop: true}
	}
	record := func(gen int64, change ...func(*ledger.Record)) *ledger.Record {
		r := &ledger.Record{Generation: gen}
		for _, c := range change {
			c(r)
		}
		return r
	}
	ran := func(r *ledger.Record) { r.Running = true }
	final := func(r *ledger.Record) { r.Final = &cluster.KernelObservation{} }
	stopping := func(r *ledger.Record) { r.Stopping = &ledger.Stop{Reason: cluster.ReasonUserRequested} }
	restarting := func(r *ledger.Record) { r.Stopping = &ledger.Stop{Restart: true} }
	box := func(gen int64, p runtime.Phase) *runtime.Observed {
		return &runtime.Observed{Identity: runtime.Identity{Generation: gen}, Phase: p}
	}
	running := box(1, runtime.PhaseRunning)
	exited := box(1, runtime.PhaseExited)
	created := box(1, runtime.PhaseCreated)

	for _, c := range []struct {
		name string
		view view
		want []Step
	}{
		{"nothing", view{}, nil},
		{"a new kernel", view{desired: run(1)}, creation},
		{"a kernel to stop that never was", view{desired: stop(1)}, []Step{StepBury}},
		{"a container without record", view{container: running}, []Step{StepAdopt}},
		{"reserved, then crashed", view{desired: run(1), record: record(1)}, creation[1:]},
		{"reserved, manager away", view{record: record(1)}, nil},
		{"created, then crashed", view{desired: run(1), record: record(1), container: created}, []Step{StepCreate, StepAwait}},
		{"started, then crashed", view{desired: run(1), record: record(1), container: running}, []Step{StepAwait}},
		{"runs", view{desired: run(1), record: record(1, ran), container: running}, nil},
		{"runs, manager away", view{record: record(1, ran), container: running}, nil},
		{"runs, seen absent once", view{absent: 1, record: record(1, ran), container: running}, nil},
		{"runs, seen absent twice", view{absent: 2, record: record(1, ran), container: running},
			[]Step{StepStop, StepCollect, StepRemove, StepRelease}},
		{"evicted", view{desired: run(1), evicted: true, record: record(1, ran), container: running},
			[]Step{StepStop, StepCollect, StepRemove, StepRelease}},
		{"evicted, manager away", view{evicted: true, record: record(1, ran), container: exited}, []Step{StepCollect, StepRemove, StepRelease}},
		{"an old message to stop", view{desired: stop(1), record: record(2, ran), container: box(2, runtime.PhaseRunning)}, nil},
		{"told to stop", view{desired: stop(1), record: record(1, ran), container: running},
			[]Step{StepStop, StepCollect, StepRemove, StepRelease}},
		{"told to stop before it was created", view{desired: stop(1), record: record(1)}, []Step{StepCollect, StepRelease}},
		{"stopping, then crashed, manager away", view{record: record(1, ran, stopping), container: running},
			[]Step{StepStop, StepCollect, StepRemove, StepRelease}},
		{"stopping, wanted again by an old message", view{desired: run(1), record: record(1, ran, stopping), container: running},
			[]Step{StepStop, StepCollect, StepRemove, StepRelease}},
		{"stopped, then crashed", view{desired: stop(1), record: record(1, ran, stopping), container: exited},
			[]Step{StepCollect, StepRemove, StepRelease}},
		{"exited by itself", view{desired: run(1), record: record(1, ran), container: exited}, []Step{StepCollect, StepRemove, StepRelease}},
		{"exited by itself, manager away", view{record: record(1, ran), container: exited}, []Step{StepCollect, StepRemove, StepRelease}},
		{"ended, container still there", view{record: record(1, final), container: exited, scratch: true}, []Step{StepRemove, StepRelease}},
		{"ended, directory still there", view{record: record(1, final), scratch: true}, []Step{StepRelease}},
		{"ended, not acknowledged", view{desired: run(1), record: record(1, final)}, nil},
		{"ended and acknowledged", view{record: record(1, final), acked: true}, []Step{StepForget}},
		{"ended and wanted again as a new generation", view{desired: run(2), record: record(1, final)}, creation},
		{"vanished, seen once", view{desired: run(1), record: record(1, ran)}, []Step{StepLook}},
		{"vanished, seen twice", view{desired: run(1), record: record(1, ran), missing: 2}, []Step{StepCollect, StepRelease}},
		{"restart of a running one", view{desired: run(2), record: record(1, ran), container: running},
			append([]Step{StepStop, StepRemove}, creation...)},
		{"restart, stopped, crashed", view{desired: run(2), record: record(1, ran, restarting), container: exited},
			append([]Step{StepRemove}, creation...)},
		{"restart, stopped, crashed, manager away", view{record: record(1, ran, restarting), container: exited}, nil},
		{"restart, removed, crashed", view{desired: run(2), record: record(1, ran, restarting)}, creation},
		{"restart, removed, crashed, manager away", view{record: record(1, ran, restarting)}, nil},
		{"restart, then destroyed", view{desired: stop(2), record: record(1, ran, restarting), container: exited},
			[]Step{StepCollect, StepRemove, StepRelease}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, plan(c.view))
		})
	}
}

// TestPlanNeverDestroysOnOneLook: whatever is known, a running container is stopped or
// removed only when its end is recorded, when the manager says so, or after two looks.
func TestPlanNeverDestroysOnOneLook(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := view{
			absent: rapid.IntRange(0, 3).Draw(t, "absent"), missing: rapid.IntRange(0, 3).Draw(t, "missing"),
			scratch: rapid.Bool().Draw(t, "scratch"), acked: rapid.Bool().Draw(t, "acked"),
			container: &runtime.Observed{Phase: runtime.PhaseRunning, Identity: runtime.Identity{Generation: rapid.Int64Range(1, 3).Draw(t, "box")}},
		}
		if rapid.Bool().Draw(t, "known") {
			v.record = &ledger.Record{Generation: v.container.Identity.Generation, Running: rapid.Bool().Draw(t, "running")}
			if rapid.Bool().Draw(t, "stopping") {
				v.record.Stopping = &ledger.Stop{Restart: rapid.Bool().Draw(t, "restart")}
			}
		}
		if rapid.Bool().Draw(t, "desired") {
			v.absent = 0
			v.desired = &cluster.DesiredKernel{Generation: rapid.Int64Range(1, 3).Draw(t, "gen"), Stop: rapid.Bool().Draw(t, "stop")}
		}
		told := v.desired != nil && v.record != nil && (v.desired.Generation > v.record.Generation ||
			v.desired.Stop && v.desired.Generation == v.record.Generation)
		stopping := v.record != nil && v.record.Stopping != nil && !v.record.Stopping.Restart
		if told || stopping || v.absent >= looks {
			return
		}
		for _, s := range plan(v) {
			if s == StepStop || s == StepRemove || s == StepCollect || s == StepRelease {
				t.Fatalf("plan %v for %+v", plan(v), v)
			}
		}
	})
}
