package keeper

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// TestKernelsThatWaitedInVain: a runner that gave up waiting for the session's other kernels says so by its exit code. The same code means
// nothing from a container that crashed or that had started a command.
func TestKernelsThatWaitedInVain(t *testing.T) {
	t.Parallel()
	end := func(batch bool, change func(e *ending)) cluster.KernelObservation {
		e := ending{now: time.Unix(1000, 0), traces: host.Traces{Ended: true},
			record:    &ledger.Record{Kernel: "k", Session: "s", Generation: 1, Running: true, Marks: true, Batch: batch},
			container: &runtime.Observed{ID: "c", Phase: runtime.PhaseExited, ExitCode: run.ExitPeersMissing}}
		change(&e)
		return finalOf(e)
	}
	as := func(e *ending) {}
	for _, batch := range []bool{false, true} {
		o := end(batch, as)
		require.Equal(t, cluster.ReasonPeersMissing, o.Reason)
		require.Contains(t, o.Detail, "other kernels")
		require.Equal(t, []bool{batch, batch, false}, []bool{o.Failed, o.RetryElsewhere, o.Batch}, "only jobs start again")
	}
	for name, change := range map[string]func(e *ending){
		"another exit code":     func(e *ending) { e.container.ExitCode = 1 },
		"no word of the runner": func(e *ending) { e.traces.Ended = false },
		"it had started":        func(e *ending) { e.traces.Started = true },
		"somebody ended it": func(e *ending) {
			e.record.Stopping = &ledger.Stop{Reason: cluster.ReasonUserRequested}
		},
	} {
		require.NotEqual(t, cluster.ReasonPeersMissing, end(true, change).Reason, name)
	}
}
