package keeper

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// The command of a batch session must not run twice. An engine that does not answer, a runner that does not greet and an agent that was
// stopped for a while leave it unknown whether the command has started. This file finds out before anything is given up: the runner
// makes a marker durable before it starts the command (host.Traces), and a container that has ended can start nothing any more.

// traces reads the runner's markers. Where they cannot be read, the command counts as started.
func (n *kernel) traces() host.Traces {
	t, err := n.k.o.Host.Traces(n.id, n.record.Generation)
	if err != nil {
		n.k.o.Log.Warn("the markers of a runner cannot be read; it counts as started", "kernel", n.id, "err", err)
		return host.Traces{Started: true, Ended: true}
	}
	return t
}

// mute reports whether missing markers prove nothing: the container of a generation was started whose runner may leave none, or whose
// files are gone, with a disk that was lost.
func mute(r *ledger.Record, t host.Traces, c *runtime.Observed) bool {
	return (!r.Marks || t.Absent) && c != nil && c.Phase != runtime.PhaseCreated
}

// noteStart reports whether the command of the recorded generation has started, and records it: such a kernel is never created again.
func (n *kernel) noteStart() (started bool, err error) {
	r := n.record
	if r == nil || !r.Batch || r.Final != nil {
		return false, nil
	}
	if r.Running {
		return true, nil
	}
	t, err := n.k.o.Host.Traces(n.id, r.Generation)
	if err != nil {
		return false, fault.Unavailablef("the markers of the session's runner cannot be read").WithCause(err)
	}
	n.k.mu.Lock()
	c := n.container
	n.k.mu.Unlock()
	if !t.Started && !mute(r, t, c) {
		return false, nil
	}
	r = r.Clone()
	r.Running = true
	if r.StartedAt.IsZero() {
		r.StartedAt = n.k.o.Clock.Now()
	}
	if err := n.k.o.Ledger.Put(r); err != nil {
		return false, fmt.Errorf("record the start: %w", err)
	}
	n.k.o.Log.Info("the command of a batch session has started, although its creation was not confirmed", "kernel", n.id)
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.record = r
	return true, nil
}

// hasStarted reports whether the command has started, before the container would be created. One that the engine made late, for a request
// that nobody waits for any more, is removed.
func (n *kernel) hasStarted(ctx context.Context) (bool, error) {
	started, err := n.noteStart()
	if err != nil || !started {
		return false, err
	}
	n.k.mu.Lock()
	c := n.container
	n.stale = true
	n.k.mu.Unlock()
	if c == nil || c.Phase != runtime.PhaseCreated {
		return true, nil
	}
	if err := n.k.o.Runtime.Remove(ctx, n.id); err != nil && !fault.Is(err, fault.NotFound) {
		return true, fmt.Errorf("remove the container: %w", err)
	}
	return true, nil
}

// settleStart makes certain whether the command of a batch session has started, before anything of it is given up: a container in which
// it has not started yet is removed, because a request that the engine has not answered may still start it, and then the marker decides.
// An error says that it is not certain yet.
func (n *kernel) settleStart(ctx context.Context, v view) error {
	r := n.record
	if r == nil || !r.Batch || r.Rows == nil || v.desired != nil && v.desired.Generation > r.Generation {
		return nil
	}
	if err := n.look(ctx); err != nil {
		return err
	}
	if started, err := n.noteStart(); err != nil || started {
		return err
	}
	n.k.mu.Lock()
	c := n.container
	n.k.mu.Unlock()
	if c == nil {
		return nil
	}
	n.saveLog(ctx)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := n.k.o.Runtime.Remove(ctx, n.id); err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("remove the container: %w", err)
	}
	if err := n.look(ctx); err != nil {
		return err
	}
	_, err := n.noteStart()
	return err
}

// begun reports whether the generation that is wanted has started its batch command, as far as that is recorded.
func (n *kernel) begun(v view) bool {
	r := n.record
	return r != nil && r.Batch && r.Running && (v.desired == nil || v.desired.Generation <= r.Generation)
}
