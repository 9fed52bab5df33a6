package session

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// endAllPage is how many sessions EndAll ends in one transaction.
const endAllPage = 100

// EndAll ends every live session of the cluster (superadmins) and says how many. Freeze the cluster before, or new ones come. One that
// fails half way has ended some; asking again ends the rest.
func (s *Service) EndAll(ctx context.Context, a authz.Actor) (ended int, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.end-all", "")
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "end the sessions of everybody"); err != nil {
		return 0, err
	}
	defer s.forgetRoutes("")
	for after := uuid.Nil.String(); ; {
		ids, err := s.d.Store.SessionsToEnd(ctx, after, endAllPage)
		if err != nil {
			return ended, fmt.Errorf("find live sessions: %w", err)
		}
		if len(ids) == 0 {
			return ended, nil
		}
		after = ids[len(ids)-1]
		sessions := make([]cluster.SessionID, len(ids))
		for i, id := range ids {
			sessions[i] = cluster.SessionID(id)
		}
		err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			return StopAll(ctx, tx, sessions, "", cluster.ReasonAdministrator, "the cluster was frozen and its sessions ended")
		})
		if err != nil {
			return ended, fmt.Errorf("end the sessions of everybody: %w", err)
		}
		ended += len(ids)
	}
}
