package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxLogTail bounds the kept end of a log.
const maxLogTail = 1 << 20

// Observe stores what an agent saw of its kernels. It is idempotent and safe against reordering. A full report names
// everything the agent has; told are the kernels, with their generations, that the agent had been told of when it reported, and only
// they are missed (nil: none). The result names tombstones that the agent may forget. Reports that come
// at the same time, of whatever agents, share their transactions.
func (n *Reports) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) ([]cluster.Tombstone, error) {
	r := &report{agent: agent, epoch: epoch, list: list}
	if err := n.reporting().Do(ctx, r); err != nil {
		return nil, err
	}
	if r.refused != nil {
		return nil, r.refused
	}
	if full && told != nil {
		r.failed = errors.Join(r.failed, n.missing(ctx, agent, told, list))
	}
	return r.acked, r.failed
}

// quiet reports whether an observation of the present generation says nothing new, without a lock: what
// it compares only moves forward, and whatever is missed here comes with the next report.
func quiet(agent cluster.AgentID, r dbgen.KernelsByIDRow, o cluster.KernelObservation) bool {
	if r.AgentID == nil || *r.AgentID != string(agent) || o.Phase == cluster.PhaseEnded || r.Status.Final() || r.Absences > 0 || o.Batch &&
		o.ExitCode != nil {
		return false
	}
	if o.Detail != "" && store.Text(o.Detail) != r.StatusInfo {
		return false // it waits for something else
	}
	return !cluster.KernelMayMove(r.Status, o.Phase.Status())
}

// observe applies reports about one session's kernels under its lock.
func (n *Reports) observe(ctx context.Context, l *store.Locked, list []reported) error {
	reason, detail := cluster.Reason(""), ""
	for _, r := range list {
		agent, o := r.agent, r.KernelObservation
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
			if len(l.Kernels) > 1 && k.StopReason == "" { // the others end because of it
				detail = fmt.Sprintf("kernel %s ended: %s", k.ClusterHostname, cmp.Or(o.Detail, string(reason)))
			}
			if err := n.ended(ctx, l, k, o, r.quarantined); err != nil {
				return err
			}
		default:
			if err := k.Seen(ctx); err != nil {
				return err
			}
			if err := advance(ctx, k, o); err != nil {
				return err
			}
			if o.Detail != "" {
				if err := k.Wait(ctx, o.Detail); err != nil {
					return err
				}
			}
			if o.OOMKilled {
				if err := k.OutOfMemory(ctx, o.Detail); err != nil {
					return err
				}
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
	m := store.KernelMove{To: to, Reason: o.Reason, Detail: o.Detail, ContainerID: o.ContainerID, HostEndpoint: o.HostEndpoint}
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

// ended records the end of a kernel. blamed: its agent is known to fail, so a failure says nothing about the session.
func (n *Reports) ended(ctx context.Context, l *store.Locked, k *store.LockedKernel, o cluster.KernelObservation, blamed bool) error {
	log := o.LogTail
	if len(log) > maxLogTail {
		log = log[len(log)-maxLogTail:]
	}
	m := store.KernelMove{To: cluster.Terminated, Reason: endReason(o), Detail: o.Detail, ExitCode: o.ExitCode, Signal: o.Signal,
		OOMKilled: o.OOMKilled, ContainerID: o.ContainerID, Log: &log}
	if m.Reason == cluster.ReasonPeersMissing {
		m.Detail += missing(l, k)
	}
	switch {
	case k.Doubted() && o.Failed && o.RetryElsewhere:
		return k.Deny(ctx, o.Detail)
	case k.Doubted() && m.Reason == cluster.ReasonStartUnknown: // it had started, and our question ended it
		m.Reason, m.Detail = cluster.ReasonStartTimeout, "its command had started, but its agent could not say so in time"
		if k.LocalRank == 0 {
			if err := l.SetResult(ctx, cluster.ResultFailure, m.Reason, o.ExitCode); err != nil {
				return err
			}
		}
	}
	if o.Failed && k.StopReason == "" {
		m.AgentsFault = o.RetryElsewhere && (o.AgentsFault || blamed)
		return k.Fail(ctx, m, o.RetryElsewhere, true)
	}
	if err := hasRun(ctx, l, k, o); err != nil {
		return err
	}
	if k.LocalRank == 0 && (o.Batch || l.Type == cluster.Batch && o.ExitCode != nil && k.StopReason == "") {
		if err := batchResult(ctx, l, o); err != nil {
			return err
		}
	}
	return k.End(ctx, m)
}

// missing names the other kernels of a session that do not run, as the manager knows it, for words about a kernel that waited for them.
func missing(l *store.Locked, k *store.LockedKernel) string {
	const most = 10
	var names []string
	for _, other := range l.Kernels {
		if other.ID != k.ID && other.Status != cluster.Running && len(names) < most {
			names = append(names, fmt.Sprintf("%s is %s", other.ClusterHostname, other.Status))
		}
	}
	if len(names) == 0 {
		return "; all of them run now"
	}
	return "; " + strings.Join(names, ", ")
}

// hasRun tells the history that a kernel ran whose agent had no time to say so before its end.
func hasRun(ctx context.Context, l *store.Locked, k *store.LockedKernel, o cluster.KernelObservation) error {
	switch k.Status {
	case cluster.Scheduled, cluster.Preparing, cluster.Pulling, cluster.Prepared, cluster.Creating:
	default:
		return nil
	}
	if o.Failed || plausible(o.StartedAt).IsZero() {
		return nil
	}
	if err := k.Move(ctx, store.KernelMove{To: cluster.Running, ContainerID: o.ContainerID, StartedAt: plausible(o.StartedAt)}); err != nil {
		return err
	}
	return l.Settle(ctx, "", "")
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
func (n *Reports) afterEnd(ctx context.Context, k *store.LockedKernel, o cluster.KernelObservation) error {
	if o.Phase != cluster.PhaseEnded {
		return k.Remove(ctx, cluster.Reason(k.StopReason))
	}
	return k.KeepLog(ctx, o.LogTail, o.ExitCode, o.Signal, o.OOMKilled)
}

// missing holds absence against kernels that the agent had been told of when it reported: the first full report without one is counted,
// the second is believed. A kernel of which it was told later is not missing.
func (n *Reports) missing(ctx context.Context, agent cluster.AgentID, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) error {
	present := map[string]bool{}
	for _, o := range list {
		if id, ok := cluster.CanonicalUUID(string(o.Kernel)); ok {
			present[id] = true
		}
	}
	absent := []string{}
	for id := range told {
		if !present[string(id)] {
			absent = append(absent, string(id))
		}
	}
	slices.Sort(absent)
	if err := n.Store.MissRemovals(ctx, string(agent), absent); err != nil {
		return fmt.Errorf("note removals: %w", err)
	}
	n.Store.Wake(store.TopicSchedule) // what was removed holds nothing any more
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
		case present[r.ID] || r.Status == cluster.Pending || told[cluster.KernelID(r.ID)] != r.Generation:
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
				if k.Agent() != agent || k.Status.Final() || k.Status == cluster.Pending || present[k.ID] || k.Absences == 0 ||
					told[cluster.KernelID(k.ID)] != k.Generation {
					continue
				}
				m := store.KernelMove{To: cluster.Terminated, Reason: cluster.ReasonNotFound,
					Detail: "agent " + string(agent) + " no longer has the container"}
				var err error
				switch {
				case k.Status == cluster.Terminating:
					err = k.End(ctx, m)
				default:
					// An agent that has told of the kernel before and knows nothing of it now has lost its records: that denies nothing.
					err = k.Fail(ctx, m, l.Type != cluster.Batch || k.Status == cluster.Scheduled, true)
				}
				if err != nil {
					return err
				}
				if k.Status == cluster.Pending && l.Type != cluster.Batch {
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
