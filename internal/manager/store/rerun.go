package store

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
)

// The command of a batch session must not run twice. Once a kernel is on an agent, its command may have started, whatever the row says:
// the agent's reports may be late or lost. Such a session goes back to the queue only after its agents have denied the start, or after
// the loss of its agent where its owner allowed that (rerun_on_agent_loss). Otherwise it ends.

// failBatch decides about a kernel of a batch session that failed and may be tried elsewhere. denied says that the kernel's agent has
// denied the start. done is false when the session must end.
func (k *LockedKernel) failBatch(ctx context.Context, m KernelMove, denied bool) (done bool, err error) {
	l := k.s
	agent := k.Agent()
	switch {
	case denied && l.mayRequeue(m.charge()):
		if err := k.Move(ctx, KernelMove{To: cluster.Pending, Reason: m.Reason, Detail: m.Detail}); err != nil {
			return false, err
		}
		if err := l.stopPlaced(ctx, cluster.ReasonStartUnknown, m.Detail); err != nil {
			return false, err
		}
	case !denied && l.RerunOnAgentLoss && l.Result == cluster.ResultUndefined && int(l.Attempts)+1 < cluster.MaxPlacements:
		if err := l.stopPlaced(ctx, cluster.ReasonRescheduled, m.Detail); err != nil {
			return false, err
		}
		if err := l.Settle(ctx, cluster.ReasonRescheduled, m.Detail); err != nil { // it stops, and then it waits
			return false, err
		}
		if err := k.Abandon(ctx, m); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	return true, l.spend(ctx, agent, m)
}

// LoseDevice tells a session that a device of this running kernel broke, once for each start of the kernel. A batch session whose owner
// allowed that stops, and starts again elsewhere once it has stopped.
func (k *LockedKernel) LoseDevice(ctx context.Context, detail string) (told bool, err error) {
	l, agent := k.s, k.Agent()
	again := l.Type == cluster.Batch && l.Retried < l.Retries && l.Result == cluster.ResultUndefined && l.Status == cluster.Running
	what := detail + "; it goes on, what uses the device may fail"
	if again {
		what = fmt.Sprintf("%s; it starts again elsewhere, retry %d of %d", detail, l.Retried+1, l.Retries)
	}
	n, err := l.tx.TellDeviceLost(ctx, what, k.ID, k.Generation)
	if err != nil {
		return false, fmt.Errorf("tell session %s of a broken device: %w", l.ID, err)
	}
	if n == 0 || !again {
		return n > 0, nil
	}
	if _, err := l.tx.UseRetry(ctx, string(agent), l.ID); err != nil {
		return false, fmt.Errorf("count a retry of session %s: %w", l.ID, err)
	}
	l.Retried++
	if err := l.stopPlaced(ctx, cluster.ReasonRescheduled, what); err != nil {
		return false, err
	}
	return true, l.Settle(ctx, cluster.ReasonRescheduled, what)
}

// stopPlaced stops those kernels of the session that are on agents; the others go on waiting.
func (l *Locked) stopPlaced(ctx context.Context, reason cluster.Reason, detail string) error {
	for _, k := range l.Kernels {
		if k.Status == cluster.Pending || k.Status == cluster.Terminating || k.Status.Final() {
			continue
		}
		if err := k.Move(ctx, KernelMove{To: cluster.Terminating, Reason: reason, Detail: detail}); err != nil {
			return err
		}
	}
	return nil
}

// Doubt asks the agents of a batch session that missed a deadline whether its command has started, by stopping it: those who deny it
// give their kernels back to the queue (Deny). It reports false for a session that is to fail without a question. Settle follows.
func (k *LockedKernel) Doubt(ctx context.Context, m KernelMove) (asked bool, err error) {
	l := k.s
	if l.Type != cluster.Batch || !l.mayRequeue(m.charge()) {
		return false, nil
	}
	if err := l.stopPlaced(ctx, cluster.ReasonStartUnknown, m.Detail); err != nil {
		return false, err
	}
	return true, l.spend(ctx, k.Agent(), m)
}

// Doubted reports whether the kernel's agent was asked whether the command has started.
func (k *LockedKernel) Doubted() bool {
	return k.Status == cluster.Terminating && k.StopReason == string(cluster.ReasonStartUnknown)
}

// Deny gives a doubted kernel back to the queue: its agent says that nothing was started.
func (k *LockedKernel) Deny(ctx context.Context, detail string) error {
	return k.Move(ctx, KernelMove{To: cluster.Pending, Reason: cluster.ReasonStartUnknown, Detail: detail})
}

// Abandon ends a TERMINATING kernel whose agent gives no answer; the agent must remove what it may still have. A batch session is not
// placed again for that, unless its owner allowed it.
func (k *LockedKernel) Abandon(ctx context.Context, m KernelMove) error {
	if err := k.Remove(ctx, m.Reason); err != nil {
		return err
	}
	again := k.rescheduled() || k.Doubted()
	if k.s.Type == cluster.Batch && again {
		if k.s.RerunOnAgentLoss && k.s.Result == cluster.ResultUndefined {
			return k.Move(ctx, KernelMove{To: cluster.Pending, Reason: m.Reason, Detail: m.Detail})
		}
		if err := k.s.tx.OverrideStop(ctx, string(m.Reason), k.ID); err != nil {
			return fmt.Errorf("stop kernel %s for good: %w", k.ID, err)
		}
		k.StopReason = string(m.Reason)
	}
	return k.End(ctx, m)
}
