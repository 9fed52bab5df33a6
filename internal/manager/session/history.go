package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Move is one step of a session's history.
type Move struct {
	Seq      int64
	Kernel   cluster.KernelID // "" for the session itself
	Event    cluster.EventName
	From, To cluster.Status
	Reason   cluster.Reason
	Detail   string
	ExitCode *int
	At       time.Time
}

// History returns a session and all its moves and those of its kernels, oldest first.
func (s *Service) History(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*Session, []Move, error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return nil, nil, err
	}
	rows, err := s.d.Store.HistoryOf(ctx, o.ID)
	if err != nil {
		return nil, nil, fmt.Errorf("read history of session %s: %w", o.ID, err)
	}
	out := make([]Move, len(rows))
	for i, r := range rows {
		out[i] = Move{Seq: r.Seq, Event: cluster.EventName(r.Event), From: cluster.Status(r.FromStatus), To: cluster.Status(r.ToStatus),
			Reason: cluster.Reason(r.Reason), Detail: r.Detail, ExitCode: store.Int(r.ExitCode), At: r.At.UTC()}
		if r.KernelID != nil {
			out[i].Kernel = cluster.KernelID(*r.KernelID)
		}
	}
	return v, out, nil
}

// DependencyNode is a session with those that it depends on.
type DependencyNode struct {
	ID            cluster.SessionID
	Name          string
	Status        cluster.Status
	StatusChanged time.Time
	DependsOn     []*DependencyNode
}

// Dependents returns the sessions that depend directly on a session and that the actor may see.
func (s *Service) Dependents(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) ([]*Session, error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	ids, err := s.d.Store.DirectDependents(ctx, o.ID)
	if err != nil {
		return nil, fmt.Errorf("find what depends on session %s: %w", o.ID, err)
	}
	named := make([]cluster.SessionID, len(ids))
	for i, id := range ids {
		named[i] = cluster.SessionID(id)
	}
	found, err := s.ByID(ctx, a, named)
	if err != nil {
		return nil, err
	}
	out := make([]*Session, 0, len(named))
	for _, id := range named {
		if v := found[id]; v != nil {
			out = append(out, v)
		}
	}
	return out, nil
}

// maxGraph bounds a dependency graph.
const maxGraph = 1000

// DependencyGraph returns a session with everything that it waits for, directly or not.
func (s *Service) DependencyGraph(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*DependencyNode, error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return nil, err
	}
	root := &DependencyNode{ID: v.ID, Name: v.Name, Status: v.Status, StatusChanged: v.StatusChanged, DependsOn: []*DependencyNode{}}
	seen := map[cluster.SessionID]*DependencyNode{v.ID: root}
	for level := []string{string(v.ID)}; len(level) > 0 && len(seen) < maxGraph; {
		rows, err := s.d.Store.DependenciesOf(ctx, level)
		if err != nil {
			return nil, fmt.Errorf("read dependencies: %w", err)
		}
		level = nil
		for _, r := range rows {
			id := cluster.SessionID(r.ID)
			n := seen[id]
			if n == nil {
				n = &DependencyNode{ID: id, Name: r.Name, Status: r.Status, StatusChanged: r.StatusChanged.UTC(), DependsOn: []*DependencyNode{}}
				seen[id] = n
				level = append(level, r.ID)
			}
			from := seen[cluster.SessionID(r.SessionID)]
			from.DependsOn = append(from.DependsOn, n)
		}
	}
	return root, nil
}
