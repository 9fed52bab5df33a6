package login

import "time"

// WaitFor makes the keeper wait so long for Redis: a busy machine is no Redis that is away.
func (r *Redis) WaitFor(d time.Duration) *Redis {
	r.patience = d
	return r
}
