package store

import (
	"context"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// Place is where one kernel of a waiting session is to run.
type Place struct {
	Session    cluster.SessionID
	Kernel     cluster.KernelID
	Generation int64 // of the kernel, as the plan saw it
	Agent      cluster.AgentID
	Allocation string // alloc.Allocation as JSON
}

// PlaceBatch makes the kernels of waiting sessions SCHEDULED on their agents, and the sessions with them, with a fixed number
// of statements. A session is placed with all its kernels or not at all: refused are those that ended, changed
// or gained kernels since the plan. Whether the agents have room the caller has checked, under their locks.
func (t *Tx) PlaceBatch(ctx context.Context, places []Place) (refused []cluster.SessionID, err error) {
	var ids []cluster.SessionID
	of := map[cluster.SessionID][]Place{}
	for _, p := range places {
		if _, known := of[p.Session]; !known {
			ids = append(ids, p.Session)
		}
		of[p.Session] = append(of[p.Session], p)
	}
	locked, err := t.Lock(ctx, ids...)
	if err != nil {
		return nil, err
	}
	placed := make(map[cluster.SessionID]bool, len(locked))
	for _, l := range locked {
		id := cluster.SessionID(l.ID)
		if !l.fits(of[id]) {
			continue
		}
		for _, p := range of[id] {
			if err := l.Kernel(p.Kernel).Move(ctx, KernelMove{To: cluster.Scheduled, Agent: p.Agent, Allocation: p.Allocation}); err != nil {
				return nil, err
			}
		}
		if err := l.Settle(ctx, "", ""); err != nil {
			return nil, err
		}
		placed[id] = true
	}
	for _, id := range ids {
		if !placed[id] {
			refused = append(refused, id)
		}
	}
	return refused, nil
}

// fits reports whether the plan is about the session as it is: waiting, with these kernels and no others.
func (l *Locked) fits(places []Place) bool {
	if l.Status != cluster.Pending || len(places) != len(l.Kernels) {
		return false
	}
	for i, p := range places {
		k := l.Kernel(p.Kernel)
		twice := slices.ContainsFunc(places[:i], func(q Place) bool { return q.Kernel == p.Kernel })
		if k == nil || twice || k.Status != cluster.Pending || k.Generation != p.Generation {
			return false
		}
	}
	return true
}
