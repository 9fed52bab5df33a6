package throttle

import "time"

// WaitFor makes the limiter wait so long for Redis: a busy machine is no Redis that is away.
func (l *RedisLimiter) WaitFor(d time.Duration) *RedisLimiter {
	l.patience = d
	return l
}
