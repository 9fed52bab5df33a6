package keeper

import (
	"fmt"
	"time"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// ending is everything known about how a kernel ended.
type ending struct {
	record    *ledger.Record
	container *runtime.Observed // nil: there is none
	result    *run.BatchResult  // nil: the runner recorded nothing
	traces    host.Traces       // of the runner
	oom       bool              // a hint of the engine
	desired   *cluster.DesiredKernel
	absent    bool // the manager does not know the kernel
	now       time.Time
}

// finalOf decides what is reported, once. The runner's own record of a batch job is the
// truth about it; then what the engine saw; then why it was told to stop.
func finalOf(e ending) cluster.KernelObservation {
	r, c := e.record, e.container
	o := cluster.KernelObservation{
		Kernel: r.Kernel, Session: r.Session, Generation: r.Generation, Phase: cluster.PhaseEnded,
		Allocation: r.Allocation, StartedAt: r.StartedAt, EndedAt: e.now,
	}
	stop := stopReason(e)
	if c != nil {
		o.ContainerID = c.ID
		o.OOMKilled = c.OOMKilled || e.oom || e.result != nil && e.result.OOM
		if o.StartedAt.IsZero() {
			o.StartedAt = c.StartedAt
		}
		if c.Phase == runtime.PhaseExited {
			code := c.ExitCode
			o.ExitCode, o.Signal = &code, c.Signal
			if !c.FinishedAt.IsZero() {
				o.EndedAt = c.FinishedAt
			}
		}
	}
	if res := e.result; res != nil && !(res.Cancelled && stop != "") {
		code := res.ExitCode
		o.Batch, o.ExitCode, o.Signal, o.TimedOut = true, &code, res.Signal, res.TimedOut
		if !res.EndedAt.IsZero() {
			o.EndedAt = res.EndedAt
		}
		if !res.StartedAt.IsZero() {
			o.StartedAt = res.StartedAt
		}
		switch {
		case res.Cancelled:
			o.Reason, o.Detail = cluster.ReasonTaskCancelled, "the command was cancelled"
		case res.TimedOut:
			o.Reason, o.Detail = cluster.ReasonTaskTimeout, "the command ran out of its time"
		case res.Error != "":
			o.Reason, o.Detail = cluster.ReasonTaskFailed, "the command could not be started: "+res.Error
		case code != 0:
			o.Reason, o.Detail = cluster.ReasonTaskFailed, exitText("the command", code, res.Signal)
			if o.OOMKilled {
				o.Detail += "; " + outOfMemory(r)
			}
		default:
			o.Reason = cluster.ReasonTaskFinished
		}
		return o
	}
	// started: the command of a batch session may have been executed.
	started := e.traces.Started || mute(r, e.traces, c) || r.Running && (!r.Marks || e.traces.Absent)
	switch {
	case stop != "":
		o.Reason = stop
		if stop == cluster.ReasonStartUnknown && !started {
			o.Failed, o.RetryElsewhere = true, true
		}
		if r.Stopping != nil && r.Stopping.Reason == stop {
			o.Detail = r.Stopping.Detail
		}
		if c == nil && !r.Running {
			o.ExitCode = nil
		}
	case c == nil && r.Running:
		o.Reason, o.Detail = cluster.ReasonNotFound, "the container disappeared from the engine"
	case r.Batch && c == nil && started:
		o.Batch, o.Reason, o.Detail = true, cluster.ReasonNotFound, "the container disappeared from the engine after its command had started"
	case lonely(e):
		// What failed is not this agent's. The command of a batch session did not start, and may start elsewhere.
		o.Reason, o.Detail = cluster.ReasonPeersMissing, "it waited in vain for the session's other kernels; nothing of the session's was started"
		o.Failed, o.RetryElsewhere = r.Batch, r.Batch
	case r.Batch && c != nil && c.Phase == runtime.PhaseExited && !started:
		o.Reason, o.Failed, o.RetryElsewhere = cluster.ReasonFailedToStart, true, true
		o.Detail = exitText("the runner", c.ExitCode, c.Signal) + " before it started the command"
	case c == nil || c.Phase != runtime.PhaseExited:
		o.Reason, o.Detail, o.Failed, o.RetryElsewhere = cluster.ReasonFailedToStart, "the container never started", true, true
		if c != nil && c.Error != "" {
			o.Detail = "the container could not be started: " + c.Error
		}
	case o.OOMKilled && !r.Batch:
		o.Reason, o.Detail = cluster.ReasonOutOfMemory, outOfMemory(r)
	case r.Batch && e.traces.Started && e.traces.Ended:
		// The runner could not record the result. Its own exit code is the command's.
		o.Batch = true
		if o.Reason = cluster.ReasonTaskFinished; c.ExitCode != 0 {
			o.Reason, o.Detail = cluster.ReasonTaskFailed, exitText("the command", c.ExitCode, c.Signal)
		}
	case r.Batch:
		// The runner died before it could record the result, most likely by force or for want of memory.
		o.Batch = true
		o.Reason, o.Detail = cluster.ReasonTaskFailed, exitText("the runner", c.ExitCode, c.Signal)
		if o.OOMKilled {
			o.Detail = outOfMemory(r)
		}
		if c.ExitCode == 0 && c.Signal == 0 {
			failed := 1
			o.ExitCode = &failed
		}
	case !r.Running:
		o.Reason, o.Failed = cluster.ReasonFailedToStart, true
		o.Detail = exitText("the runner", c.ExitCode, c.Signal) + " before it answered"
		if c.Error != "" {
			o.Detail += ": " + c.Error
		}
	case r.Marks && !e.traces.Ended:
		o.Reason = cluster.ReasonCrashed
		o.Detail = "the container engine, its shim or the session's runner crashed: " + exitText("the container", c.ExitCode, c.Signal) +
			" and the runner left no word"
	default:
		o.Reason, o.Detail = cluster.ReasonSelfTerminated, exitText("the container", c.ExitCode, c.Signal)
	}
	return o
}

// lonely reports that a runner ended because the other kernels of its session did not run in time. Its exit code says so when it ended in
// good order and had started nothing.
func lonely(e ending) bool {
	return e.container != nil && e.container.Phase == runtime.PhaseExited && e.container.Signal == 0 &&
		e.container.ExitCode == run.ExitPeersMissing && e.traces.Ended && !e.traces.Started && e.result == nil
}

// stopReason is why somebody wanted the end; "" when nobody did.
func stopReason(e ending) cluster.Reason {
	switch d := e.desired; {
	case e.record.Stopping != nil && !e.record.Stopping.Restart:
		return e.record.Stopping.Reason
	case d != nil && d.Stop && d.Generation >= e.record.Generation && (e.container == nil || e.container.Phase == runtime.PhaseCreated):
		return wantedReason(d)
	case e.absent:
		return cluster.ReasonNotFound
	}
	return ""
}

// wantedReason is the manager's reason for a stop.
func wantedReason(d *cluster.DesiredKernel) cluster.Reason {
	switch {
	case d == nil:
		return cluster.ReasonNotFound // the manager has forgotten it
	case d.StopReason != "":
		return d.StopReason
	case d.Force:
		return cluster.ReasonForced
	}
	return cluster.ReasonUserRequested
}

func exitText(what string, code, signal int) string {
	if signal != 0 {
		return fmt.Sprintf("%s was ended by signal %d", what, signal)
	}
	return fmt.Sprintf("%s ended with exit code %d", what, code)
}

// outOfMemory are the words for a kernel that was killed for want of memory.
func outOfMemory(r *ledger.Record) string {
	chosen, err := alloc.Parse(r.Allocation)
	if err != nil {
		return cluster.OutOfMemoryWords(0)
	}
	return cluster.OutOfMemoryWords(int64(chosen.Totals()[cluster.SlotMem] / cluster.Milli))
}
