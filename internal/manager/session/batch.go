package session

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
)

// What lists add to their rows is read for all rows of a page at once.
const (
	// maxTogether bounds the dependents of all sessions of a page.
	maxTogether = 5000
	// maxAgentKernels bounds the kernels of one agent.
	maxAgentKernels = 100
)

// StatusTimes are when sessions came to their statuses for the first time, by those of the sessions that the actor may see.
func (s *Service) StatusTimes(ctx context.Context, a authz.Actor, ids []cluster.SessionID) (
	map[cluster.SessionID]map[cluster.Status]time.Time, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	args := []any{store.Texts(ids)}
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	rows, err := s.d.Store.DB().Query(ctx, "SELECT s.id::text, coalesce(e.to_status, ''), coalesce(min(e.at), now()) FROM "+
		facts.Sessions.From+" LEFT JOIN session_events e ON e.session_id = s.id AND e.kernel_id IS NULL AND e.to_status <> '' "+
		"WHERE s.id = ANY($1::uuid[]) AND "+facts.Sessions.Where(a, authz.See, arg)+" GROUP BY s.id, e.to_status", args...)
	if err != nil {
		return nil, fmt.Errorf("read when sessions changed: %w", err)
	}
	out := map[cluster.SessionID]map[cluster.Status]time.Time{}
	var id, status string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &status, &at}, func() error {
		of := out[cluster.SessionID(id)]
		if of == nil {
			of = map[cluster.Status]time.Time{}
			out[cluster.SessionID(id)] = of
		}
		if status != "" {
			of[cluster.Status(status)] = at.UTC()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read when sessions changed: %w", err)
	}
	return out, nil
}

// DependentsOf are the sessions that depend directly on each of some sessions, the oldest first, as far as the actor may see both; those of
// 5,000 at most.
func (s *Service) DependentsOf(ctx context.Context, a authz.Actor, ids []cluster.SessionID) (map[cluster.SessionID][]*Session, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	args := []any{store.Texts(ids)}
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	rows, err := s.d.Store.DB().Query(ctx, "SELECT s.id::text, coalesce(later.id::text, '') FROM "+facts.Sessions.From+
		" LEFT JOIN session_dependencies d ON d.depends_on = s.id LEFT JOIN sessions later ON later.id = d.session_id "+
		"WHERE s.id = ANY($1::uuid[]) AND "+
		facts.Sessions.Where(a, authz.See, arg)+fmt.Sprintf(" ORDER BY later.created_at, later.id LIMIT %d", maxTogether), args...)
	if err != nil {
		return nil, fmt.Errorf("find what depends on sessions: %w", err)
	}
	type pair struct{ Of, ID string }
	pairs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pair])
	if err != nil {
		return nil, fmt.Errorf("find what depends on sessions: %w", err)
	}
	out := map[cluster.SessionID][]*Session{}
	var named []cluster.SessionID
	for _, p := range pairs {
		out[cluster.SessionID(p.Of)] = nil
		if p.ID != "" {
			named = append(named, cluster.SessionID(p.ID))
		}
	}
	if len(named) == 0 {
		return out, nil
	}
	found, err := s.ByID(ctx, a, named)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if v := found[cluster.SessionID(p.ID)]; v != nil {
			out[cluster.SessionID(p.Of)] = append(out[cluster.SessionID(p.Of)], v)
		}
	}
	return out, nil
}

// KernelsOfAgents are the live kernels of each of some agents, of sessions that the actor may see: the newest 100 of each.
func (s *Service) KernelsOfAgents(ctx context.Context, a authz.Actor, agents []cluster.AgentID) (map[cluster.AgentID][]Kernel, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	args := []any{store.Texts(agents)}
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	rows, err := s.d.Store.DB().Query(ctx, "SELECT c.id FROM unnest($1::text[]) AS x(agent) CROSS JOIN LATERAL (SELECT k.id::text AS id FROM "+
		facts.Kernels.From+" WHERE k.agent_id = x.agent AND k.ended_at IS NULL AND "+facts.Kernels.Where(a, authz.See, arg)+
		fmt.Sprintf(" ORDER BY k.created_at DESC, k.local_rank, k.id LIMIT %d) c", maxAgentKernels), args...)
	if err != nil {
		return nil, fmt.Errorf("find the kernels of agents: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find the kernels of agents: %w", err)
	}
	out := map[cluster.AgentID][]Kernel{}
	if len(ids) == 0 {
		return out, nil
	}
	found, err := s.d.Store.KernelViews(ctx, []string{}, ids)
	if err != nil {
		return nil, fmt.Errorf("read kernels: %w", err)
	}
	views := make([]Kernel, len(found))
	byID := map[string]int{}
	for i, r := range found {
		views[i], byID[r.ID] = kernelView(r), i
	}
	s.addLive(ctx, views)
	for _, id := range ids {
		if i, ok := byID[id]; ok {
			out[views[i].Agent] = append(out[views[i].Agent], views[i])
		}
	}
	return out, nil
}
