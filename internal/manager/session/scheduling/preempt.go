package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// eviction names the victims that must end so that a waiting session (the preemptor) gets their place.
type eviction struct {
	preemptor cluster.SessionID
	victims   []cluster.SessionID
	reason    cluster.Reason // preempted, or rescheduled: back into the queue
}

// evict stops the victims of each preemptor that still waits; if it no longer waits, none of them. The scheduler counts victims as running
// until they have stopped, and keeps their place for the preemptor. Where the policy of the group says so, victims then go back into
// the queue with their old age.
func (d *desk) evict(ctx context.Context, group string, all []eviction) error {
	var ended []cluster.SessionID
	err := d.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		ended = nil
		var ids []cluster.SessionID
		for _, e := range all {
			ids = append(append(ids, e.preemptor), e.victims...)
		}
		slices.Sort(ids)
		locked, err := tx.Lock(ctx, slices.Compact(ids)...)
		if err != nil {
			return err
		}
		byID := map[cluster.SessionID]*store.Locked{}
		for _, s := range locked {
			byID[cluster.SessionID(s.ID)] = s
		}
		for _, e := range all {
			waits := byID[e.preemptor]
			if waits == nil || waits.Status != cluster.Pending {
				continue
			}
			detail := fmt.Sprintf("session %s (%s) has a higher priority and took its place in resource group %s", waits.Name, waits.ID, group)
			for _, v := range e.victims {
				s := byID[v]
				if s == nil || s.Status.Final() || s.Status == cluster.Terminating || s.Status == cluster.Pending {
					continue
				}
				if err := s.Stop(ctx, e.reason, detail, false); err != nil {
					return fmt.Errorf("stop session %s: %w", v, err)
				}
				if err := s.Settle(ctx, e.reason, detail); err != nil {
					return fmt.Errorf("settle session %s: %w", v, err)
				}
				ended = append(ended, v)
			}
		}
		return nil
	})
	if err != nil || len(ended) == 0 {
		// The scheduler takes the victims for ending, but they go on: read all of them again, so that it decides anew.
		return errors.Join(err, d.kept.with(context.WithoutCancel(ctx), func(m *memory) error {
			for _, e := range all {
				m.stale[e.preemptor] = struct{}{}
				for _, v := range e.victims {
					m.stale[v] = struct{}{}
				}
			}
			return nil
		}))
	}
	d.metrics.preempted.Add(float64(len(ended)))
	d.deps.Log.Info("clearing places for sessions of higher priority", "group", group, "stopped", ended)
	return nil
}
