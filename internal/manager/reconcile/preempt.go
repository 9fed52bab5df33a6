package reconcile

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// eviction clears the place of a waiting session.
type eviction struct {
	preemptor cluster.SessionID
	victims   []cluster.SessionID
}

// evict ends the victims, all or none for each place: only while the session that wants it still waits. Its place is kept by the
// scheduler, which counts victims as running until they have ended.
func (d *desk) evict(ctx context.Context, group string, all []eviction) error {
	var ended []cluster.SessionID
	err := d.fenced(ctx, d.token, func(ctx context.Context, tx *store.Tx) error {
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
				if err := s.Stop(ctx, cluster.ReasonPreempted, detail, false); err != nil {
					return fmt.Errorf("stop session %s: %w", v, err)
				}
				if err := s.Settle(ctx, cluster.ReasonPreempted, detail); err != nil {
					return fmt.Errorf("settle session %s: %w", v, err)
				}
				ended = append(ended, v)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.metrics.preempted.Add(float64(len(ended)))
	if len(ended) > 0 {
		d.deps.Log.Info("cleared places for sessions of higher priority", "group", group, "ended", ended)
	}
	return nil
}
