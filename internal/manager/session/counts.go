package session

import (
	"context"
	"sync"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// counts gathers how often sessions were queried, so that a query costs no write of its own. What
// is gathered when the process dies is lost: the numbers are for charts.
type counts struct {
	mu       sync.Mutex
	sessions map[cluster.SessionID]int64
	keys     map[cluster.AccessKey]int64
}

const maxCounts = 10_000

func (c *counts) add(key cluster.AccessKey, session cluster.SessionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions == nil || len(c.sessions) > maxCounts {
		c.sessions, c.keys = map[cluster.SessionID]int64{}, map[cluster.AccessKey]int64{}
	}
	c.sessions[session]++
	c.keys[key]++
}

// flush writes what was gathered.
func (c *counts) flush(ctx context.Context, s *store.Store) error {
	c.mu.Lock()
	sessions, keys := c.sessions, c.keys
	c.sessions, c.keys = nil, nil
	c.mu.Unlock()
	for id, n := range sessions {
		if err := s.CountQueries(ctx, n, string(id)); err != nil {
			return err
		}
	}
	for key, n := range keys {
		if err := s.TouchKeypair(ctx, n, string(key)); err != nil {
			return err
		}
	}
	return nil
}
