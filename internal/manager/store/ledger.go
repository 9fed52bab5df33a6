package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Locked is a session under its row lock, with its kernels as they are at this moment of the transaction. All
// moves of kernels go through it, so that the session's status always follows from them.
type Locked struct {
	tx *Tx
	dbgen.LockSessionsRow
	Kernels []*LockedKernel
}

// LockedKernel is a kernel of a Locked session.
type LockedKernel struct {
	dbgen.KernelsToMoveRow
	s *Locked
}

// Lock locks sessions in the order of their ids (so that no two transactions wait for each other) and loads their kernels.
// Sessions that do not exist are absent from the result.
func (t *Tx) Lock(ctx context.Context, ids ...cluster.SessionID) ([]*Locked, error) {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	rows, err := t.LockSessions(ctx, texts)
	if err != nil {
		return nil, fmt.Errorf("lock sessions: %w", err)
	}
	kernels, err := t.KernelsToMove(ctx, texts)
	if err != nil {
		return nil, fmt.Errorf("load kernels: %w", err)
	}
	out := make([]*Locked, len(rows))
	byID := make(map[string]*Locked, len(rows))
	for i, r := range rows {
		out[i] = &Locked{tx: t, LockSessionsRow: r}
		byID[r.ID] = out[i]
	}
	for _, k := range kernels {
		if l := byID[k.SessionID]; l != nil {
			l.Kernels = append(l.Kernels, &LockedKernel{KernelsToMoveRow: k, s: l})
		}
	}
	return out, nil
}

// LockOne is Lock for one session; a missing one is NotFound.
func (t *Tx) LockOne(ctx context.Context, id cluster.SessionID) (*Locked, error) {
	all, err := t.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fault.NotFoundf("No such session: %s", id)
	}
	return all[0], nil
}

// Kernel finds a kernel; nil when the session has none of that id.
func (l *Locked) Kernel(id cluster.KernelID) *LockedKernel {
	for _, k := range l.Kernels {
		if k.ID == string(id) {
			return k
		}
	}
	return nil
}

// Agent is the kernel's agent, "" while it has none.
func (k *LockedKernel) Agent() cluster.AgentID {
	if k.AgentID == nil {
		return ""
	}
	return cluster.AgentID(*k.AgentID)
}

// Move makes a move from the present status; Kernel, Generation and From are filled in.
func (k *LockedKernel) Move(ctx context.Context, m KernelMove) error {
	m.Kernel, m.Generation, m.From = cluster.KernelID(k.ID), k.Generation, k.Status
	if err := k.s.tx.moveKernel(ctx, cluster.SessionID(k.SessionID), m); err != nil {
		return err
	}
	if m.Agent != "" {
		agent := string(m.Agent)
		k.AgentID = &agent
	}
	agent := k.Agent()
	switch {
	case m.To == cluster.Pending:
		k.Generation++
		k.AgentID, k.Desired, k.StopReason, k.ExitCode = nil, "run", "", nil
		k.s.tx.Wake(TopicSchedule)
	case m.To.Final():
		k.s.tx.Wake(TopicSchedule) // its slots are free
		fallthrough
	case m.To == cluster.Terminating:
		k.Desired = "stop"
		if k.StopReason == "" {
			k.StopReason = string(m.Reason)
		}
	case m.To == cluster.Lost:
		was := string(k.Status)
		k.StatusBeforeLost = &was
	}
	if m.ExitCode != nil {
		k.ExitCode = int32p(m.ExitCode)
	}
	k.Status = m.To
	k.s.tx.Wake(TopicEvents, SessionTopic(k.SessionID))
	if agent != "" && !agentsOwn(m.To) {
		k.s.tx.Wake(AgentTopic(string(agent)))
	}
	return nil
}

// agentsOwn reports whether a status is only ever an agent's own progress: it changes nothing of what
// is wanted of the agent, so nobody has to look.
func agentsOwn(s cluster.Status) bool {
	switch s {
	case cluster.Preparing, cluster.Pulling, cluster.Prepared, cluster.Creating, cluster.Running:
		return true
	}
	return false
}

// End makes a kernel final. The first reason that anybody gave for its end wins. One that was stopped to start again
// later goes back into the queue instead, unless its job has come to a result.
func (k *LockedKernel) End(ctx context.Context, m KernelMove) error {
	if k.rescheduled() && k.s.Result == cluster.ResultUndefined {
		return k.Move(ctx, KernelMove{To: cluster.Pending, Reason: cluster.ReasonRescheduled, Detail: m.Detail})
	}
	if k.StopReason != "" && !k.Doubted() {
		m.Reason = cluster.Reason(k.StopReason)
	}
	if !cluster.KernelMayMove(k.Status, m.To) && cluster.KernelMayMove(k.Status, cluster.Error) {
		m.To = cluster.Error
	}
	return k.Move(ctx, m)
}

func (k *LockedKernel) rescheduled() bool {
	return k.Status == cluster.Terminating && k.StopReason == string(cluster.ReasonRescheduled)
}

// Remove notes that the kernel's agent must remove what it has of this generation, whatever
// becomes of the row. Call it before the move that takes the agent away.
func (k *LockedKernel) Remove(ctx context.Context, reason cluster.Reason) error {
	if k.AgentID == nil {
		return nil
	}
	err := k.s.tx.RemoveKernel(ctx, dbgen.RemoveKernelParams{KernelID: k.ID, Generation: k.Generation, AgentID: *k.AgentID,
		SessionID: k.SessionID, Reason: string(reason)})
	if err != nil {
		return fmt.Errorf("note removal of kernel %s: %w", k.ID, err)
	}
	k.s.tx.Wake(AgentTopic(*k.AgentID))
	return nil
}

// Fail ends a kernel that could not be brought up or was lost. With retry, a session that never ran goes back into the
// queue while it has placements left, avoiding the agent, and always when the failure was the agent's; otherwise the kernel errs
// and the rest of the session is stopped. gone says that the agent holds nothing of the kernel any more. Settle follows.
func (k *LockedKernel) Fail(ctx context.Context, m KernelMove, retry, gone bool) error {
	l := k.s
	if retry && l.Type == cluster.Batch {
		if done, err := k.failBatch(ctx, m, gone); done || err != nil {
			return err
		}
		retry = false
	}
	if retry && l.mayRequeue(m.charge()) {
		agent := k.Agent()
		var holdsNothing *LockedKernel
		if gone {
			holdsNothing = k
		}
		if err := l.requeue(ctx, m, holdsNothing); err != nil {
			return err
		}
		return l.spend(ctx, agent, m)
	}
	if !gone {
		if err := k.Remove(ctx, m.Reason); err != nil {
			return err
		}
	}
	m.To = cluster.Error
	return k.End(ctx, m)
}

// charge is how many attempts of its session a failure uses up: none when it is the agent's own, or the agent was busy with others or
// not told.
func (m KernelMove) charge() int32 {
	if m.AgentsFault || m.Reason == cluster.ReasonBusy || m.Reason == cluster.ReasonNotDelivered {
		return 0
	}
	return 1
}

// spend notes an agent that failed the session, and counts the attempt.
func (l *Locked) spend(ctx context.Context, agent cluster.AgentID, m KernelMove) error {
	l.Attempts += m.charge()
	if err := l.tx.AddFailedAgent(ctx, m.charge(), string(agent), l.ID); err != nil {
		return fmt.Errorf("note failed agent: %w", err)
	}
	return nil
}

// Untold reports since when a kernel's agent should have been told of it; ok is false when it was told.
func (k *LockedKernel) Untold(ctx context.Context) (since time.Time, ok bool, err error) {
	if k.Status != cluster.Scheduled {
		return since, false, nil
	}
	since, err = k.s.tx.UntoldKernel(ctx, k.ID)
	if Missing(err) {
		return since, false, nil
	}
	if err != nil {
		return since, false, fmt.Errorf("see whether an agent was told of kernel %s: %w", k.ID, err)
	}
	return since, true, nil
}

// GiveBack gives a session that never ran back to the queue, to avoid an agent that was not told of it. It reports whether it could.
// Settle follows.
func (l *Locked) GiveBack(ctx context.Context, agent cluster.AgentID, m KernelMove) (bool, error) {
	if !l.mayRequeue(m.charge()) {
		return false, nil
	}
	if err := l.requeue(ctx, m, nil); err != nil {
		return false, err
	}
	return true, l.spend(ctx, agent, m)
}

// requeue gives all kernels back to the queue. Their agents are told to remove what they may have, but for one kernel of which nothing
// is left.
func (l *Locked) requeue(ctx context.Context, m KernelMove, gone *LockedKernel) error {
	for _, k := range l.Kernels {
		if k.Status == cluster.Pending {
			continue
		}
		if k != gone {
			if err := k.Remove(ctx, m.Reason); err != nil {
				return err
			}
		}
		if err := k.Move(ctx, KernelMove{To: cluster.Pending, Reason: m.Reason, Detail: m.Detail}); err != nil {
			return err
		}
	}
	return nil
}

// mayRequeue: nothing of the session ever ran or is being stopped, and it has placements left when that many more were used.
func (l *Locked) mayRequeue(used int32) bool {
	if int(l.Attempts+used) >= cluster.MaxPlacements || l.StartedAt != nil {
		return false
	}
	for _, k := range l.Kernels {
		if k.Desired != "run" || k.Status != cluster.Pending && !cluster.KernelMayMove(k.Status, cluster.Pending) {
			return false
		}
	}
	return true
}

// Stop asks for the end of every live kernel: waiting ones are cancelled, others become TERMINATING. Force makes
// everything final at once and leaves the removal to the agents. Settle follows.
func (l *Locked) Stop(ctx context.Context, reason cluster.Reason, detail string, force bool) error {
	for _, k := range l.Kernels {
		var err error
		// Now it ends for good.
		if k.rescheduled() && reason != cluster.ReasonRescheduled || k.Doubted() && reason != cluster.ReasonStartUnknown {
			if err := l.tx.OverrideStop(ctx, string(reason), k.ID); err != nil {
				return fmt.Errorf("stop kernel %s for good: %w", k.ID, err)
			}
			k.StopReason = string(reason)
		}
		switch {
		case k.Status.Final():
		case k.Status == cluster.Pending:
			err = k.End(ctx, KernelMove{To: cluster.Cancelled, Reason: reason, Detail: detail})
		case force:
			if err = k.Remove(ctx, reason); err == nil {
				err = k.End(ctx, KernelMove{To: cluster.Terminated, Reason: reason, Detail: detail, Force: true})
			}
		case k.Status != cluster.Terminating:
			err = k.Move(ctx, KernelMove{To: cluster.Terminating, Reason: reason, Detail: detail})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Settle makes the session's status follow from its kernels': it stops the rest when one kernel has ended, records the
// result of a batch session and moves the session. It does nothing when nothing changed.
func (l *Locked) Settle(ctx context.Context, reason cluster.Reason, detail string) error {
	if len(l.Kernels) == 0 || l.Status.Final() {
		return nil
	}
	if ended := slices.IndexFunc(l.Kernels, func(k *LockedKernel) bool { return k.Status.Final() }); ended >= 0 {
		if r := l.Kernels[ended].StopReason; r != "" {
			reason = cluster.Reason(r)
		}
		if err := l.Stop(ctx, reason, detail, false); err != nil {
			return err
		}
	}
	to := cluster.SessionStatus(l.statuses())
	if to.Final() {
		if err := l.finishBatch(ctx); err != nil {
			return err
		}
	}
	if to == l.Status {
		return nil
	}
	m := SessionMove{Session: cluster.SessionID(l.ID), From: l.Status, To: to, Reason: reason, Detail: detail}
	main := l.Kernels[0]
	if to.Final() && main.ExitCode != nil {
		code := int(*main.ExitCode)
		m.ExitCode = &code
		m.Data = map[string]any{"kernel": map[string]any{"exit_code": code}, "session": map[string]any{"status": "terminating"}}
	}
	if to == cluster.Error {
		m.Data = map[string]any{"error": map[string]any{"name": string(reason), "repr": Text(detail), "src": "agent"}}
	}
	if err := l.tx.MoveSession(ctx, m); err != nil {
		return err
	}
	if to == cluster.Running && l.StartedAt == nil {
		now := time.Now()
		l.StartedAt = &now
	}
	if to == cluster.Pending {
		l.StartedAt = nil
	}
	if to.Final() || to == cluster.Pending {
		l.tx.Wake(TopicSchedule)
	}
	l.Status = to
	if to == cluster.Running && len(l.Kernels) > 1 {
		for _, k := range l.Kernels { // their commands wait for each other
			if a := k.Agent(); a != "" {
				l.tx.Wake(AgentTopic(string(a)))
			}
		}
	}
	return nil
}

// statuses are those that the session's follows from: a lost kernel counts as what it was, so that losing
// it neither starts nor stops anything.
func (l *Locked) statuses() []cluster.Status {
	out := make([]cluster.Status, len(l.Kernels))
	for i, k := range l.Kernels {
		if out[i] = k.Status; k.Status == cluster.Lost && k.StatusBeforeLost != nil {
			out[i] = cluster.Status(*k.StatusBeforeLost)
		}
	}
	return out
}

// finishBatch gives an ended batch session that ran its result where its agent did not report one.
func (l *Locked) finishBatch(ctx context.Context) error {
	if l.Type != cluster.Batch || l.Result != cluster.ResultUndefined || l.StartedAt == nil {
		return nil
	}
	main := l.Kernels[0]
	reason := cluster.ReasonTaskCancelled
	if main.StopReason != "" {
		reason = cluster.Reason(main.StopReason)
	}
	return l.SetResult(ctx, cluster.ResultFailure, reason, nil)
}

// SetResult records the result of a batch session, once.
func (l *Locked) SetResult(_ context.Context, result cluster.Result, reason cluster.Reason, exitCode *int) error {
	if l.Result != cluster.ResultUndefined || result == cluster.ResultFailure && l.Kernels[0].rescheduled() {
		return nil // a job that starts again has no result yet
	}
	event := cluster.SessionFailure
	if result == cluster.ResultSuccess {
		event = cluster.SessionSuccess
	}
	if err := l.tx.writes.addResult(cluster.SessionID(l.ID), l.Status, result, event, reason, exitCode); err != nil {
		return err
	}
	l.Result = result
	l.tx.Wake(TopicEvents, TopicSchedule, SessionTopic(l.ID))
	return nil
}

// Restart asks the kernel's agent for a fresh container of the next generation, on the same devices.
func (k *LockedKernel) Restart(ctx context.Context) error {
	if err := k.Move(ctx, KernelMove{To: cluster.Restarting, Reason: cluster.ReasonRestarting}); err != nil {
		return err
	}
	n, err := k.s.tx.NextGeneration(ctx, k.ID, k.Generation)
	if err != nil {
		return fmt.Errorf("restart kernel %s: %w", k.ID, err)
	}
	if n != 1 {
		return fault.Conflictf("kernel %s is being changed by others", k.ID)
	}
	k.Generation++
	return nil
}

// Insist asks for the end of a TERMINATING kernel again, now without grace.
func (k *LockedKernel) Insist(ctx context.Context, deadline time.Duration) error {
	if _, err := k.s.tx.StopKernel(ctx, deadline, k.ID); err != nil {
		return fmt.Errorf("stop kernel %s by force: %w", k.ID, err)
	}
	k.ForceStop = true
	if k.AgentID != nil {
		k.s.tx.Wake(AgentTopic(*k.AgentID))
	}
	return nil
}

// KeepLog stores the end of the log of a kernel that was made final before its agent reported.
func (k *LockedKernel) KeepLog(ctx context.Context, log string, exitCode *int, signal int, oom bool) error {
	text := Text(log)
	arg := dbgen.KeepLogParams{ID: k.ID, Log: &text, ExitCode: int32p(exitCode), OomKilled: oom}
	if signal != 0 {
		arg.Signal = int32p(&signal)
	}
	if err := k.s.tx.Queries.KeepLog(ctx, arg); err != nil {
		return fmt.Errorf("keep log of kernel %s: %w", k.ID, err)
	}
	return nil
}

// Wait notes what a kernel on its way waits for, in words.
func (k *LockedKernel) Wait(ctx context.Context, what string) error {
	if err := k.s.tx.NoteWait(ctx, Text(what), k.ID); err != nil {
		return fmt.Errorf("note what kernel %s waits for: %w", k.ID, err)
	}
	return nil
}

// OutOfMemory notes, once in each generation, that processes of a kernel that runs were killed for want of memory, and tells of it.
func (k *LockedKernel) OutOfMemory(ctx context.Context, detail string) error {
	if k.OomKilled || k.Status != cluster.Running {
		return nil
	}
	if err := k.s.tx.NoteOutOfMemory(ctx, k.ID); err != nil {
		return fmt.Errorf("note that kernel %s is short of memory: %w", k.ID, err)
	}
	k.OomKilled = true
	k.s.tx.writes.addEvent(cluster.SessionID(k.SessionID), cluster.KernelID(k.ID), cluster.KernelOutOfMemory, k.Status,
		cluster.ReasonOutOfMemory, detail)
	k.s.tx.Wake(TopicEvents, SessionTopic(k.SessionID))
	return nil
}

// Seen forgets that full reports lacked the kernel.
func (k *LockedKernel) Seen(ctx context.Context) error {
	if k.Absences == 0 {
		return nil
	}
	k.Absences = 0
	if err := k.s.tx.SetAbsences(ctx, 0, []string{k.ID}); err != nil {
		return fmt.Errorf("note that kernel %s was seen: %w", k.ID, err)
	}
	return nil
}
