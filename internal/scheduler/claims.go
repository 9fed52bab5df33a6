package scheduler

import "slices"

// claim keeps the room that victims will leave to a session. It lasts until the session starts or leaves the queue, or until all
// victims have gone and the session still did not start at its turn.
type claim struct {
	reservation
	victims []*running // that have not gone yet
}

// claimOf finds the claim of a session, nil when it has none.
func (rs *reservations) claimOf(w *waiting) *claim {
	for _, c := range rs.claims {
		if c.w == w {
			return c
		}
	}
	return nil
}

// victimGone notes that a running session has ended, if it was a victim.
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

// settleClaims drops the claim of a session that starts. If it started in the room of a claim of another session of its lane, and
// not in its own, the two change claims before, so that the other one waits for the room that is still being cleared.
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

// nextSpentClaim is the first claim, in the order of the queue, whose victims have all gone; nil when there is none.
func (rs *reservations) nextSpentClaim() *claim {
	var first *claim
	for _, c := range rs.claims {
		if len(c.victims) == 0 && (first == nil || rs.queue.before(c.w, first.w) < 0) {
			first = c
		}
	}
	return first
}

// takenBefore reports whether an agent has a part of another session's claim, or of the reservation of a session before w. Victims
// are not looked for there.
func (rs *reservations) takenBefore(a *agent, w *waiting) bool {
	return slices.ContainsFunc(rs.claims, func(c *claim) bool { return c.w != w && c.on(a) != nil }) ||
		slices.ContainsFunc(rs.reserved, func(r *reservation) bool { return rs.keeps(r, w) && r.on(a) != nil })
}
