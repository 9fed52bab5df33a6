package scheduler

import "slices"

// claim is the room that victims are to leave to a session. It is kept until the session starts
// or leaves the queue, or until it does not fit although all victims have gone.
type claim struct {
	reservation
	victims []*running // that have not gone yet
}

func (rs *reservations) claimOf(w *waiting) *claim {
	for _, c := range rs.claims {
		if c.w == w {
			return c
		}
	}
	return nil
}

// victimGone notes that a victim has gone.
func (rs *reservations) victimGone(r *running) {
	if c := r.victimOf; c != nil {
		c.victims = slices.DeleteFunc(c.victims, func(x *running) bool { return x == r })
		r.victimOf = nil
	}
}

// dropClaim drops a claim; its victims may be asked for again.
func (rs *reservations) dropClaim(c *claim) {
	for _, r := range c.victims {
		r.victimOf = nil
	}
	rs.claims = slices.DeleteFunc(rs.claims, func(x *claim) bool { return x == c })
	rs.released = true
	rs.queue.events++ // its place and its victims are there for others
}

// settleClaims settles claims when a session starts: its own is done, unless it took the room that
// was cleared for a later one like it, which then waits for the room of this one.
func (rs *reservations) settleClaims(w *waiting, r *running) {
	if len(rs.claims) == 0 {
		return
	}
	own := rs.claimOf(w)
	for _, c := range slices.Clone(rs.claims) {
		if c == own || c.w.lane != w.lane || !slices.ContainsFunc(r.holds, func(h *hold) bool { return c.on(h.agent) != nil }) {
			continue
		}
		if own != nil && !slices.ContainsFunc(r.holds, func(h *hold) bool { return own.on(h.agent) != nil }) {
			own.w, c.w = c.w, own.w
			own = c
		}
		break
	}
	if own != nil {
		rs.dropClaim(own)
	}
}

// nextSpentClaim is the first claim whose victims have gone, in the order of the queue, nil when there is none.
func (rs *reservations) nextSpentClaim() *claim {
	var first *claim
	for _, c := range rs.claims {
		if len(c.victims) == 0 && (first == nil || rs.queue.before(c.w, first.w) < 0) {
			first = c
		}
	}
	return first
}

// takenBefore reports whether a agent is kept for a session that comes before w.
func (rs *reservations) takenBefore(a *agent, w *waiting) bool {
	return slices.ContainsFunc(rs.claims, func(c *claim) bool { return c.w != w && c.on(a) != nil }) ||
		slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return rs.keeps(r, w) && r.on(a) != nil })
}
