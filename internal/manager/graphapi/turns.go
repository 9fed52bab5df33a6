package graphapi

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// reasonRateLimit is the wire's word for requests that come too fast.
const reasonRateLimit = "rate-limit-exceeded"

// maxTurnWait is how long an operation waits for its turn.
const maxTurnWait = 10 * time.Second

// turns bounds the operations of each user that run at one time. As many again wait for their turn.
type turns struct {
	most int

	mu sync.Mutex
	m  map[cluster.UserID]*queue
}

// queue is what one user does. It exists only while there is something.
type queue struct {
	places chan struct{}
	inside int // running or waiting
}

func (t *turns) enter(ctx context.Context, user cluster.UserID) (leave func(), err error) {
	t.mu.Lock()
	if t.m == nil {
		t.m = map[cluster.UserID]*queue{}
	}
	q := t.m[user]
	if q == nil {
		q = &queue{places: make(chan struct{}, t.most)}
		t.m[user] = q
	}
	if q.inside >= 2*t.most {
		t.mu.Unlock()
		return nil, t.busy()
	}
	q.inside++
	t.mu.Unlock()
	gone := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.inside--; q.inside == 0 {
			delete(t.m, user)
		}
	}
	wait, cancel := context.WithTimeout(ctx, maxTurnWait)
	defer cancel()
	select {
	case q.places <- struct{}{}:
		return func() { <-q.places; gone() }, nil
	case <-wait.Done():
		gone()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, t.busy()
	}
}

func (t *turns) busy() error {
	return fault.Exhaustedf("you have %d GraphQL operations running and %d waiting, which is all that one user may have", t.most, t.most).
		WithReason(reasonRateLimit).
		WithNext("wait for some of them, or ask an administrator to raise manager.graphql.max_concurrent")
}
