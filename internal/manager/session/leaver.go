package session

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// Who leaves a project has no right to what they run of it: its resources and its folders were the members'. They use what
// belongs to the project, so the sessions end. Triggers of migration 0039 note who left; until leaverSettles has passed, requests that were
// under way then may still make a session, and the loop looks again.

const (
	leaverCalm    = 30 * time.Second
	leaverAgain   = 5 * time.Second
	leaverSettles = time.Minute
	leaverRows    = 100
)

func (s *Service) leaverLoop() reconcile.Loop {
	return reconcile.Loop{
		Name:  "leavers",
		Hears: func(topic string) bool { return topic == store.TopicRights },
		Begin: func(t reconcile.Term) reconcile.Work {
			return reconcile.Work{Pass: func(ctx context.Context) (wait time.Duration, err error) {
				err = t.Commit(ctx, func(ctx context.Context, tx *store.Tx) (err error) { wait, err = endLeavers(ctx, tx); return err })
				return wait, err
			}}
		},
	}
}

// endLeavers ends some sessions of users who left a project: those that run in it, and those that mount its folders.
func endLeavers(ctx context.Context, tx *store.Tx) (wait time.Duration, err error) {
	rows, err := tx.SessionsOfLeavers(ctx, leaverRows)
	if err != nil {
		return 0, fmt.Errorf("find sessions of users who left a project: %w", err)
	}
	for _, r := range rows {
		words := "its owner left project " + r.ProjectName
		if err := StopAll(ctx, tx, []cluster.SessionID{cluster.SessionID(r.ID)}, "", cluster.ReasonRightEnded, words); err != nil {
			return 0, err
		}
	}
	if len(rows) == leaverRows {
		return 0, nil
	}
	left, err := tx.ForgetLeavers(ctx, leaverSettles)
	if err != nil {
		return 0, fmt.Errorf("forget users who left a project: %w", err)
	}
	if left > 0 {
		return leaverAgain, nil
	}
	return leaverCalm, nil
}
