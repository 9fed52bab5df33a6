package service

import (
	"context"
	"fmt"
	"time"
)

// pruneBatch is how many events one statement looks at.
const pruneBatch = 1000

// PruneEvents forgets the history of sessions that ended longer ago than age, one small batch after the position; it returns
// where the next batch begins, 0 when all old events were looked at, and how many events are gone (internal: the leader calls it
// until it answers 0, then begins anew much later).
func (s *Service) PruneEvents(ctx context.Context, age time.Duration, after int64) (next int64, removed int, err error) {
	row, err := s.d.Store.PruneEvents(ctx, after, pruneBatch, age)
	if err != nil {
		return 0, 0, fmt.Errorf("forget old events: %w", err)
	}
	return row.Next, int(row.Removed), nil
}
