package node

import (
	"context"
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Change is what administrators set of an agent; nil means no change.
type Change struct {
	// Schedulable false cordons the agent: what runs there goes on, nothing new comes.
	Schedulable *bool
	// ResourceGroup moves an agent that holds nothing.
	ResourceGroup *string
}

// Modify changes an agent (superadmins).
func (s *Service) Modify(ctx context.Context, a authz.Actor, id cluster.AgentID, c Change) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "agent.modify", string(id))
	defer end(&err)
	if err := authz.Agents.Need(a, authz.Administer, authz.Object{}, "change agents"); err != nil {
		return err
	}
	if c.Schedulable == nil && c.ResourceGroup == nil {
		return fault.Invalidf("nothing is said that should change about agent %s", id).
			WithNext("name whether it is schedulable, or its resource group")
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if c.Schedulable != nil {
			if err := setSchedulable(ctx, tx, []cluster.AgentID{id}, *c.Schedulable); err != nil {
				return err
			}
		}
		if c.ResourceGroup == nil {
			return nil
		}
		// The row's lock keeps placements away until the move is committed.
		known, err := tx.LockAgents(ctx, []string{string(id)})
		if err != nil {
			return fmt.Errorf("find agent %s: %w", id, err)
		}
		if len(known) == 0 {
			return authz.NotFound(agentNoun, string(id))
		}
		n, err := tx.CountLiveSessionsOnAgent(ctx, string(id))
		if err != nil {
			return fmt.Errorf("count the sessions of agent %s: %w", id, err)
		}
		if n > 0 {
			return fault.Conflictf("agent %s holds %d sessions of its resource group", id, n).WithNext("drain it first: berth agent drain %s", id)
		}
		if _, err = tx.MoveAgentToGroup(ctx, *c.ResourceGroup, string(id)); store.Dangling(err) {
			return authz.NotFound(groupNoun, *c.ResourceGroup)
		}
		if err != nil {
			return fmt.Errorf("move agent %s: %w", id, err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
}

// SetSchedulable includes or excludes agents from scheduling (superadmins).
func (s *Service) SetSchedulable(ctx context.Context, a authz.Actor, ids []cluster.AgentID, schedulable bool) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "agent.set-schedulable", strings.Join(store.Texts(ids), " "))
	defer end(&err)
	if err := authz.Agents.Need(a, authz.Administer, authz.Object{}, "change agents"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return setSchedulable(ctx, tx, ids, schedulable) })
}

func setSchedulable(ctx context.Context, tx *store.Tx, ids []cluster.AgentID, schedulable bool) error {
	known, err := tx.LockAgents(ctx, store.Texts(ids))
	if err != nil {
		return fmt.Errorf("find agents: %w", err)
	}
	there := map[cluster.AgentID]bool{}
	for _, k := range known {
		there[cluster.AgentID(k.ID)] = true
	}
	for _, id := range ids {
		if !there[id] {
			return authz.NotFound(agentNoun, string(id))
		}
	}
	if _, err := tx.SetSchedulable(ctx, schedulable, store.Texts(ids)); err != nil {
		return fmt.Errorf("change agents: %w", err)
	}
	tx.Wake(store.TopicSchedule)
	return nil
}
