package service

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// maxAgentSessions bounds what AgentWork lists of one agent.
const maxAgentSessions = 1000

// AgentChange is what administrators set of an agent; nil means no change.
type AgentChange struct {
	// Schedulable false cordons the agent: what runs there goes on, nothing new comes.
	Schedulable *bool
	// ResourceGroup moves an agent that holds nothing.
	ResourceGroup *string
}

// ModifyAgent changes an agent (superadmins).
func (s *Service) ModifyAgent(ctx context.Context, a Actor, id cluster.AgentID, c AgentChange) (*Agent, error) {
	if err := authz.NeedSuperadmin(a, "change agents"); err != nil {
		return nil, err
	}
	if c.Schedulable == nil && c.ResourceGroup == nil {
		return nil, invalid("nothing is said that should change about agent %s", id).WithNext("pass schedulable or scaling_group")
	}
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if c.Schedulable != nil {
			if err := s.SetAgentsSchedulable(ctx, a, []cluster.AgentID{id}, *c.Schedulable); err != nil {
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
	if err != nil {
		return nil, err
	}
	return s.GetAgent(ctx, a, id)
}

// AgentSession is a session that holds something on an agent.
type AgentSession struct {
	ID        cluster.SessionID
	Name      string
	Type      cluster.SessionType
	Status    cluster.Status
	UserEmail string
	AccessKey cluster.AccessKey
	CreatedAt time.Time
	// EndsBy is when a batch session's timeout ends it; nil: not known.
	EndsBy *time.Time
	// Kernels of the session on this agent.
	Kernels int
}

// AgentWork lists the sessions that an agent still holds, the oldest first and at most 1,000 (superadmins and monitors);
// total counts all.
func (s *Service) AgentWork(ctx context.Context, a Actor, id cluster.AgentID) (agent *Agent, sessions []AgentSession, total int, err error) {
	if agent, err = s.GetAgent(ctx, a, id); err != nil {
		return nil, nil, 0, err
	}
	rows, err := s.d.Store.LiveSessionsOnAgent(ctx, string(id), maxAgentSessions)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("read the sessions of agent %s: %w", id, err)
	}
	total = len(rows)
	if total == maxAgentSessions {
		n, err := s.d.Store.CountLiveSessionsOnAgent(ctx, string(id))
		if err != nil {
			return nil, nil, 0, fmt.Errorf("count the sessions of agent %s: %w", id, err)
		}
		total = int(n)
	}
	sessions = make([]AgentSession, len(rows))
	for i, r := range rows {
		sessions[i] = AgentSession{ID: cluster.SessionID(r.ID), Name: r.Name, Type: r.Type, Status: r.Status, UserEmail: r.UserEmail,
			AccessKey: cluster.AccessKey(r.AccessKey), CreatedAt: r.CreatedAt.UTC(), Kernels: int(r.Kernels)}
		if r.StartedAt != nil && r.BatchTimeoutMs != nil && *r.BatchTimeoutMs > 0 {
			at := r.StartedAt.Add(time.Duration(*r.BatchTimeoutMs) * time.Millisecond).UTC()
			sessions[i].EndsBy = &at
		}
	}
	return agent, sessions, total, nil
}
