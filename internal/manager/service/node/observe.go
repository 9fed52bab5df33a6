package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxLogTail bounds the kept end of a log.
const maxLogTail = 1 << 20

// Observe stores what an agent saw of its kernels. It is idempotent and safe against reordering. A full report names
// everything the agent has; desiredSeen says that it reflects the agent's newest desired state, and only then
// are missing kernels held against it. The result names tombstones that the agent may forget.
func (n *Nodes) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full, desiredSeen bool, list []cluster.KernelObservation) ([]cluster.Tombstone, error) {
	if err := n.fence(ctx, agent, epoch); err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(list))
	for _, o := range list {
		if id, ok := cluster.CanonicalUUID(string(o.Kernel)); ok && id == string(o.Kernel) {
			ids = append(ids, id)
		}
	}
	rows, err := n.Store.KernelsByID(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read observed kernels: %w", err)
	}
	known := make(map[cluster.KernelID]dbgen.KernelsByIDRow, len(rows))
	for _, r := range rows {
		known[cluster.KernelID(r.ID)] = r
	}
	var acked, replaced []cluster.Tombstone
	bySession := map[cluster.SessionID][]cluster.KernelObservation{}
	for _, o := range list {
		r, ok := known[o.Kernel]
		if ok && o.Generation == r.Generation && o.Generation > 1 {
			// An agent that has the new generation has removed the old ones.
			replaced = append(replaced, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation - 1})
		}
		switch {
		case o.Phase == cluster.PhaseEnded && (!ok || o.Generation < r.Generation || r.Status.Final() && r.HasLog):
			// Nobody waits for this end any more: never heard of, of an earlier life, or told already.
			acked = append(acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
		case !ok, o.Generation > r.Generation:
			// An orphan, or a generation that this database does not know: the agent's desired state says what is right.
		case o.Generation == r.Generation && quiet(agent, r, o):
		default:
			id := cluster.SessionID(r.SessionID)
			bySession[id] = append(bySession[id], o)
		}
	}
	sessions := make([]cluster.SessionID, 0, len(bySession))
	for id := range bySession {
		sessions = append(sessions, id)
	}
	slices.Sort(sessions)
	var failed error
	for chunk := range slices.Chunk(sessions, observeTogether) {
		done, err := n.observeSessions(ctx, agent, chunk, bySession)
		failed = errors.Join(failed, err)
		for _, id := range done {
			for _, o := range bySession[id] {
				if o.Phase == cluster.PhaseEnded {
					acked = append(acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
				}
			}
		}
	}
	if err := n.forgetRemovals(ctx, agent, append(replaced, acked...)); err != nil {
		return nil, err
	}
	if full && desiredSeen {
		failed = errors.Join(failed, n.missing(ctx, agent, list))
	}
	return acked, failed
}

// fence refuses reports of a stream that is not the agent's newest.
func (n *Nodes) fence(ctx context.Context, agent cluster.AgentID, epoch int64) error {
	row, err := n.Store.AgentEpoch(ctx, string(agent))
	if store.Missing(err) {
		return fault.NotFoundf("agent %s is not registered", agent)
	}
	if err != nil {
		return fmt.Errorf("read epoch of agent %s: %w", agent, err)
	}
	if row.Epoch != epoch {
		return fault.Conflictf("the report of agent %s belongs to epoch %d, the newest is %d", agent, epoch, row.Epoch).WithReason("stale-epoch")
	}
	return nil
}

// quiet reports whether an observation of the present generation says nothing new, without a lock: what
// it compares only moves forward, and whatever is missed here comes with the next report.
func quiet(agent cluster.AgentID, r dbgen.KernelsByIDRow, o cluster.KernelObservation) bool {
	if r.AgentID == nil || *r.AgentID != string(agent) || o.Phase == cluster.PhaseEnded || r.Status.Final() || r.Absences > 0 || o.Batch && o.ExitCode != nil {
		return false
	}
	return !cluster.KernelMayMove(r.Status, o.Phase.Status())
}

// observe applies reports about one session's kernels under its lock.
func (n *Nodes) observe(ctx context.Context, agent cluster.AgentID, l *store.Locked, list []cluster.KernelObservation) error {
	reason, detail := cluster.Reason(""), ""
	for _, o := range list {
		k := l.Kernel(o.Kernel)
		if k == nil || o.Generation != k.Generation {
			continue // it moved on while we waited for the lock
		}
		switch {
		case k.Agent() != agent:
			// The kernel was taken from this agent within the same generation: that never happens, so trust the row.
			n.Log.Warn("an agent reports a kernel of another agent", "agent", agent, "kernel", k.ID, "owner", k.Agent())
		case k.Status.Final():
			if err := n.afterEnd(ctx, k, o); err != nil {
				return err
			}
		case o.Phase == cluster.PhaseEnded:
			reason, detail = endReason(o), o.Detail
			if err := n.ended(ctx, l, k, o); err != nil {
				return err
			}
		default:
			if err := k.Seen(ctx); err != nil {
				return err
			}
			if err := advance(ctx, k, o); err != nil {
				return err
			}
			if o.Batch && o.ExitCode != nil {
				// The job is done although its container still runs: end the session.
				if err := batchResult(ctx, l, o); err != nil {
					return err
				}
				reason = endReason(o)
				if err := l.Stop(ctx, reason, "", false); err != nil {
					return err
				}
			}
		}
	}
	return l.Settle(ctx, reason, detail)
}

// advance moves a live kernel to the phase that its agent reports, never back.
func advance(ctx context.Context, k *store.LockedKernel, o cluster.KernelObservation) error {
	to := o.Phase.Status()
	if to == "" || !cluster.KernelMayMove(k.Status, to) || to == cluster.Terminating && mayYetGoElsewhere(k) {
		return nil
	}
	m := store.KernelMove{To: to, Reason: o.Reason, Detail: o.Detail, ContainerID: o.ContainerID}
	if to == cluster.Running {
		m.StartedAt = plausible(o.StartedAt)
	}
	return k.Move(ctx, m)
}

// mayYetGoElsewhere reports that nobody asked for the end of a kernel that never ran: its agent cleans up after a failure. Only
// the end itself says what failed and whether another agent may try; TERMINATING would leave no way back to the queue.
func mayYetGoElsewhere(k *store.LockedKernel) bool {
	status := k.Status
	if status == cluster.Lost && k.StatusBeforeLost != nil {
		status = cluster.Status(*k.StatusBeforeLost)
	}
	return k.Desired == "run" && cluster.KernelMayMove(status, cluster.Pending)
}

// ended records the end of a kernel.
func (n *Nodes) ended(ctx context.Context, l *store.Locked, k *store.LockedKernel, o cluster.KernelObservation) error {
	log := o.LogTail
	if len(log) > maxLogTail {
		log = log[len(log)-maxLogTail:]
	}
	m := store.KernelMove{To: cluster.Terminated, Reason: endReason(o), Detail: o.Detail, ExitCode: o.ExitCode, Signal: o.Signal,
		OOMKilled: o.OOMKilled, ContainerID: o.ContainerID, Log: &log}
	if o.Failed && k.StopReason == "" {
		return k.Fail(ctx, m, o.RetryElsewhere, true)
	}
	if k.LocalRank == 0 && (o.Batch || l.Type == cluster.Batch && o.ExitCode != nil && k.StopReason == "") {
		if err := batchResult(ctx, l, o); err != nil {
			return err
		}
	}
	return k.End(ctx, m)
}

func batchResult(ctx context.Context, l *store.Locked, o cluster.KernelObservation) error {
	if l.Type != cluster.Batch || o.ExitCode == nil && !o.TimedOut {
		return nil
	}
	result := cluster.ResultFailure
	if !o.TimedOut && o.ExitCode != nil && *o.ExitCode == 0 {
		result = cluster.ResultSuccess
	}
	return l.SetResult(ctx, result, endReason(o), o.ExitCode)
}

// endReason names an end for which the agent gave no reason.
func endReason(o cluster.KernelObservation) cluster.Reason {
	switch {
	case o.OOMKilled && (o.Reason == "" || o.Reason == cluster.ReasonSelfTerminated):
		return cluster.ReasonOutOfMemory
	case o.Reason != "":
		return o.Reason
	case o.TimedOut:
		return cluster.ReasonTaskTimeout
	case o.Failed:
		return cluster.ReasonFailedToStart
	case o.Batch && o.ExitCode != nil && *o.ExitCode == 0:
		return cluster.ReasonTaskFinished
	case o.Batch:
		return cluster.ReasonTaskFailed
	}
	return cluster.ReasonSelfTerminated
}

// afterEnd handles reports about a kernel that ended by our decision: its log is still
// welcome, and what still runs must go.
func (n *Nodes) afterEnd(ctx context.Context, k *store.LockedKernel, o cluster.KernelObservation) error {
	if o.Phase != cluster.PhaseEnded {
		return k.Remove(ctx, cluster.Reason(k.StopReason))
	}
	return k.KeepLog(ctx, o.LogTail, o.ExitCode, o.Signal, o.OOMKilled)
}

// forgetRemovals drops what the agent no longer has.
func (n *Nodes) forgetRemovals(ctx context.Context, agent cluster.AgentID, acked []cluster.Tombstone) error {
	kernels, generations := []string{}, []int64{}
	for _, t := range acked {
		if id, ok := cluster.CanonicalUUID(string(t.Kernel)); ok {
			kernels, generations = append(kernels, id), append(generations, t.Generation)
		}
	}
	if len(kernels) == 0 {
		return nil
	}
	if err := n.Store.Removed(ctx, kernels, string(agent), generations); err != nil {
		return fmt.Errorf("note removals: %w", err)
	}
	return nil
}

// missing holds absence against kernels that should be on the agent: the first full report without one is counted, the
// second is believed.
func (n *Nodes) missing(ctx context.Context, agent cluster.AgentID, list []cluster.KernelObservation) error {
	present := map[string]bool{}
	names := []string{}
	for _, o := range list {
		if id, ok := cluster.CanonicalUUID(string(o.Kernel)); ok && !present[id] {
			present[id] = true
			names = append(names, id)
		}
	}
	if err := n.Store.MissRemovals(ctx, string(agent), names); err != nil {
		return fmt.Errorf("note removals: %w", err)
	}
	rows, err := n.Store.KernelsOfAgent(ctx, string(agent))
	if err != nil {
		return fmt.Errorf("read kernels of agent %s: %w", agent, err)
	}
	var once, back []string
	gone := map[cluster.SessionID]bool{}
	for _, r := range rows {
		switch {
		case present[r.ID] && r.Absences > 0:
			back = append(back, r.ID)
		case present[r.ID] || r.Status == cluster.Pending:
		case r.Absences == 0:
			once = append(once, r.ID)
		default:
			gone[cluster.SessionID(r.SessionID)] = true
		}
	}
	if len(back) > 0 {
		if err := n.Store.SetAbsences(ctx, 0, back); err != nil {
			return fmt.Errorf("count absences: %w", err)
		}
	}
	if len(once) > 0 {
		if err := n.Store.SetAbsences(ctx, 1, once); err != nil {
			return fmt.Errorf("count absences: %w", err)
		}
	}
	for id := range gone {
		err := n.withSession(ctx, id, func(ctx context.Context, l *store.Locked) error {
			for _, k := range l.Kernels {
				if k.Agent() != agent || k.Status.Final() || k.Status == cluster.Pending || present[k.ID] || k.Absences == 0 {
					continue
				}
				m := store.KernelMove{To: cluster.Terminated, Reason: cluster.ReasonNotFound, Detail: "agent " + string(agent) + " no longer has the container"}
				var err error
				if k.Status == cluster.Terminating {
					err = k.End(ctx, m)
				} else {
					err = k.Fail(ctx, m, true, true)
				}
				if err != nil {
					return err
				}
				if k.Status == cluster.Pending {
					break
				}
			}
			return l.Settle(ctx, cluster.ReasonNotFound, "")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// plausible drops times that an agent with a wrong clock reports.
func plausible(t time.Time) time.Time {
	if d := time.Since(t); d < -time.Minute || d > 24*time.Hour {
		return time.Time{}
	}
	return t
}
