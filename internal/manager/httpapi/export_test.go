package httpapi

import (
	"context"
	"time"
)

// WaitFor makes the limiter wait so long for Redis: a busy machine is no Redis that is away.
func (l *RedisLimiter) WaitFor(d time.Duration) *RedisLimiter {
	l.patience = d
	return l
}

// CheckRights examines the requests that last, as Run does.
func CheckRights(ctx context.Context, a *API) bool { return a.checkRights(ctx) }
