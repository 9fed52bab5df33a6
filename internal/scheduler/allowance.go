package scheduler

import "berth.dev/berth/internal/cluster"

// Limited is what a limit is about: a slot by its name, or one of the counts.
type Limited string

// The counts. Slots have names without spaces.
const (
	LiveSessions    Limited = "live sessions"
	PrivateSessions Limited = "private sessions"
)

// Level is an owner whose quota counts, with what its live sessions hold.
type Level struct {
	Scope Scope
	Quota *Quota // nil: it has none
	Used  Usage
	Kept  cluster.Slots // that is free, but not for this owner
}

// Exceeds reports whether more is too much. It is the one rule of all limits: what is asked for counts, so that who is over a limit may
// still have what asks for nothing of it.
func Exceeds(limit, used, more cluster.Amount) bool { return more > 0 && used+more > limit }

// Left is what may still be had of a limit: what Exceeds does not refuse.
func Left(limit, used cluster.Amount) cluster.Amount { return max(limit-used, 0) }

// limit is what a level allows and uses of something; limited is false where it has no limit.
func (l Level) limit(what Limited) (limit, used cluster.Amount, limited bool) {
	switch what {
	case LiveSessions:
		used = cluster.Amount(l.Used.Sessions)
		if l.Quota != nil && l.Quota.Sessions >= 0 && !l.Quota.Closed {
			return cluster.Amount(l.Quota.Sessions), used, true
		}
	case PrivateSessions:
		used = cluster.Amount(l.Used.Private)
		if l.Quota != nil && l.Quota.Private >= 0 && !l.Quota.Closed {
			return cluster.Amount(l.Quota.Private), used, true
		}
	default:
		used = l.Used.Slots[cluster.SlotName(what)]
		if l.Quota != nil {
			limit, limited = l.Quota.Slots[cluster.SlotName(what)]
		}
	}
	if l.Quota != nil && l.Quota.Closed {
		limit, limited = 0, true
	}
	return limit, used, limited
}

// Admit reports whether every level leaves room for more. Of several that do not, the first is named by refused.
func Admit(levels []Level, more Usage) (refused *Level, what Limited) {
	for i := range levels {
		l := &levels[i]
		over := func(what Limited, more cluster.Amount) bool {
			limit, used, limited := l.limit(what)
			return limited && Exceeds(limit, used+l.Kept[cluster.SlotName(what)], more)
		}
		if over(LiveSessions, cluster.Amount(more.Sessions)) {
			return l, LiveSessions
		}
		if over(PrivateSessions, cluster.Amount(more.Private)) {
			return l, PrivateSessions
		}
		for _, slot := range more.Slots.Names() {
			if over(Limited(slot), more.Slots[slot]) {
				return l, Limited(slot)
			}
		}
	}
	return nil, ""
}

// Bound is what may be had of one thing at every level, in the order of the levels.
type Bound struct {
	What   Limited
	Levels []BoundLevel
	// Binds is the index of the level that leaves least, the first of several; -1 where no level has a limit.
	Binds int
}

// BoundLevel is one level of a Bound. Limit and Left mean something where Limited is true.
type BoundLevel struct {
	Level
	Limited           bool
	Limit, Used, Left cluster.Amount
}

// Bounds tells of each thing what Admit will say: as much as the binding level leaves is admitted, more is not.
func Bounds(levels []Level, of []Limited) []Bound {
	out := make([]Bound, len(of))
	for i, what := range of {
		b := Bound{What: what, Binds: -1, Levels: make([]BoundLevel, len(levels))}
		for j, l := range levels {
			limit, used, limited := l.limit(what)
			b.Levels[j] = BoundLevel{Level: l, Limited: limited, Limit: limit, Used: used}
			if !limited {
				continue
			}
			b.Levels[j].Left = Left(limit, used+l.Kept[cluster.SlotName(what)])
			if b.Binds < 0 || b.Levels[j].Left < b.Levels[b.Binds].Left {
				b.Binds = j
			}
		}
		out[i] = b
	}
	return out
}
