package node

import (
	"context"
	"errors"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/service/callback"
	"berth.dev/berth/internal/manager/store"
)

// observeTogether is how many sessions one transaction takes. When they come and go in crowds, most
// of the cost is in the number of transactions.
const observeTogether = 16

// observeSessions applies reports about some sessions, together when all goes well. Otherwise each is
// taken alone, so that one that cannot be stored does not hold up the others. done are those that were stored.
func (n *Nodes) observeSessions(ctx context.Context, agent cluster.AgentID, ids []cluster.SessionID,
	reports map[cluster.SessionID][]cluster.KernelObservation) (done []cluster.SessionID, err error) {
	if len(ids) > 1 {
		err := n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			locked, err := tx.Lock(ctx, ids...)
			if err != nil {
				return err
			}
			for _, l := range locked {
				if l.CallbackUrl != nil {
					tx.Wake(callback.Topic)
				}
				if err := n.observe(ctx, agent, l, reports[cluster.SessionID(l.ID)]); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			return ids, nil
		}
	}
	for _, id := range ids {
		stored := false
		e := n.withSession(ctx, id, func(ctx context.Context, l *store.Locked) error {
			e := n.observe(ctx, agent, l, reports[id])
			stored = e == nil
			return e
		})
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		if stored {
			done = append(done, id)
		}
	}
	return done, err
}
