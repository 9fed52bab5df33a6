package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// conditionsOf is what a row keeps of what an agent reports of its state: each condition with the time at which it began.
func conditionsOf(before json.RawMessage, now []cluster.Condition, at time.Time) (json.RawMessage, error) {
	known, err := store.Standing(before, nil)
	if err != nil {
		return nil, err
	}
	reported := make([]cluster.Condition, len(now))
	for i, c := range now {
		c.Reason, c.Message = store.Text(c.Reason), store.Text(c.Message)
		reported[i] = c
	}
	raw, err := json.Marshal(cluster.KeepSince(known.Reported, reported, at.UTC()))
	if err != nil {
		return nil, fmt.Errorf("write conditions: %w", err)
	}
	return raw, nil
}

// trials gathers what some reports say about whether their agents can bring sessions up.
type trials struct {
	suspects map[cluster.AgentID]bool       // sessions failed there before
	started  map[cluster.AgentID]bool       // a session has started there
	failed   map[cluster.AgentID][]reported // kernels that another agent may bring up
}

func (t *trials) suspect(agent cluster.AgentID) {
	if t.suspects == nil {
		t.suspects = map[cluster.AgentID]bool{}
	}
	t.suspects[agent] = true
}

// note adds a report that was stored.
func (t *trials) note(r reported) {
	switch {
	case r.starts:
		if t.started == nil {
			t.started = map[cluster.AgentID]bool{}
		}
		t.started[r.agent] = true
	case r.again && !r.AgentsFault:
		// What a session left in its home may keep it from starting again.
	case r.Reason == cluster.ReasonPeersMissing:
		// Kernels at other agents did not come.
	case r.Phase == cluster.PhaseEnded && r.Failed && r.RetryElsewhere:
		if t.failed == nil {
			t.failed = map[cluster.AgentID][]reported{}
		}
		t.failed[r.agent] = append(t.failed[r.agent], r)
	}
}

// judge updates what is known of the agents of some reports: a session that starts ends a trial, one that fails goes on with it. It has
// transactions of its own, because those of sessions must not wait for the rows of agents. What is lost with a crash in between is
// one mark; the next failure sets it again.
func (n *Reports) judge(ctx context.Context, t *trials) {
	var well []string
	for _, agent := range slices.Sorted(maps.Keys(t.started)) {
		if t.suspects[agent] {
			well = append(well, string(agent))
		}
	}
	if len(well) > 0 {
		ended, err := n.Store.EndTrials(ctx, well)
		if err != nil {
			n.Log.Error("what is held against agents cannot be taken back although sessions start there", "agents", well, "error", err)
		}
		for _, agent := range ended {
			n.Log.Info("an agent on which sessions failed has started one", "agent", agent)
		}
		if len(ended) > 0 {
			n.Store.Wake(store.TopicSchedule)
		}
	}
	for _, agent := range slices.Sorted(maps.Keys(t.failed)) {
		if t.started[agent] {
			continue
		}
		if err := n.holdAgainst(ctx, agent, t.failed[agent]); err != nil {
			n.Log.Error("failures cannot be held against their agent", "agent", agent, "error", err)
		}
	}
}

// holdAgainst notes failures of an agent, and sets it aside when there are too many in a row.
func (n *Reports) holdAgainst(ctx context.Context, agent cluster.AgentID, failed []reported) error {
	failures := make([]cluster.AgentFailure, 0, len(failed))
	for _, r := range failed {
		session, err := n.Store.SessionOfKernel(ctx, string(r.Kernel))
		if store.Missing(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find kernel %s: %w", r.Kernel, err)
		}
		owner, err := n.Store.SessionOwner(ctx, session)
		if store.Missing(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find the owner of session %s: %w", session, err)
		}
		failures = append(failures, cluster.AgentFailure{Session: cluster.SessionID(session), Owner: cluster.UserID(owner.UserID),
			Certain: r.AgentsFault, Message: shorten(store.Text(r.Detail))})
	}
	others, err := n.Store.OtherTrials(ctx, string(agent))
	if err != nil {
		return fmt.Errorf("read the trials of other agents: %w", err)
	}
	blamed := map[cluster.UserID]bool{}
	for _, o := range others {
		trial, err := store.ReadTrial(o.Trial)
		if err != nil {
			return fmt.Errorf("agent %s: %w", o.ID, err)
		}
		for _, f := range trial.Failures {
			if !f.Certain {
				blamed[f.Owner] = true
			}
		}
	}
	var begun cluster.Trial
	err = n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		begun = cluster.Trial{}
		row, err := tx.LockTrial(ctx, string(agent))
		if err != nil {
			return fmt.Errorf("lock the agent: %w", err)
		}
		before, err := store.ReadTrial(row.Trial)
		if err != nil {
			return err
		}
		after := before
		for _, f := range failures {
			after = after.Failed(f, blamed, row.At.UTC())
		}
		raw, err := store.WriteTrial(after)
		if err != nil {
			return err
		}
		if before.Since.IsZero() && !after.Since.IsZero() {
			begun = after
		}
		tx.Wake(store.TopicSchedule)
		return tx.SetTrial(ctx, raw, string(agent))
	})
	if err != nil {
		return err
	}
	if c, ok := begun.Condition(); ok {
		n.Log.Warn("an agent is set aside", "agent", agent, "why", c.Message)
	}
	return nil
}

// maxReason bounds what is kept of the words of a failure; they are shown to whoever waits.
const maxReason = 300

func shorten(s string) string {
	runes := []rune(s)
	if len(runes) <= maxReason {
		return s
	}
	return string(runes[:maxReason]) + "…"
}
