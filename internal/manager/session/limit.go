package session

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// Limits are checked once, when what they count would grow. What a session may be (priority, containers, its type) and
// how many may wait is checked here, when it is created; what live sessions hold together when the
// scheduler's plan is committed: such a session waits and says why.
//
// The policy of a user's main keypair limits the user with all keypairs together. Another keypair's policy limits in
// addition what is created with that keypair.

func quota(format string, args ...any) *fault.Error {
	return fault.Exhaustedf(format, args...).WithNext("ask an administrator for a larger limit")
}

// limits are the policies that hold for an owner.
type limits []dbgen.PoliciesOfOwnerRow

func (s *Service) limitsOf(ctx context.Context, key string) (limits, error) {
	rows, err := s.d.Store.PoliciesOfOwner(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read resource policies of keypair %s: %w", key, err)
	}
	return rows, nil
}

// containers checks the size of one session.
func (l limits) containers(n int) error {
	for _, r := range l {
		p := r.KeypairResourcePolicy
		if most := int(p.MaxContainersPerSession); most > 0 && n > most {
			return quota("a session may have %d containers under policy %s, not %d", most, p.Name, n).
				WithNext("ask for %d or less, those of roles included, or an administrator for a larger limit", most)
		}
	}
	return nil
}

// priority checks the one that the actor asks for; nil is the default, as far as it is allowed. A policy that names no highest one
// binds everybody but superadmins to request.DefaultMaxPriority.
func (l limits) priority(a authz.Actor, asked *int) (int, error) {
	out := request.DefaultPriority
	if asked != nil {
		out = *asked
	}
	for _, r := range l {
		p := r.KeypairResourcePolicy
		most := request.DefaultMaxPriority
		switch {
		case p.MaxPriority != nil:
			most = int(*p.MaxPriority)
		case a.Superadmin():
			continue
		}
		if out <= most {
			continue
		}
		if asked != nil {
			return 0, quota("priority %d is above %d, the highest that policy %s allows", out, most, p.Name).
				WithNext("ask for a priority of %d or less, or an administrator for a larger limit", most)
		}
		out = most
	}
	return out, nil
}

// ofWaiting reports whether waiting sessions are limited.
func (l limits) ofWaiting() bool {
	return slices.ContainsFunc(l, func(r dbgen.PoliciesOfOwnerRow) bool {
		return r.KeypairResourcePolicy.MaxPendingSessionCount != nil || len(r.KeypairResourcePolicy.MaxPendingSessionResourceSlots) > 0
	})
}

// waiting checks one more session with the given slots against what waits already, as q sees it. Only slots that it asks for
// count.
func (l limits) waiting(ctx context.Context, q *dbgen.Queries, user, key string, more cluster.Slots) error {
	for _, r := range l {
		p := r.KeypairResourcePolicy
		arg, whose := &key, "keypair "+key
		if r.OfUser {
			arg, whose = nil, "you"
		}
		level := scheduler.Level{Quota: resource.WaitingQuota(p)}
		if limit := p.MaxPendingSessionCount; limit != nil {
			n, err := q.WaitingOf(ctx, user, arg)
			if err != nil {
				return fmt.Errorf("count waiting sessions: %w", err)
			}
			level.Used.Sessions = int(n)
			if refused, _ := scheduler.Admit([]scheduler.Level{level}, scheduler.Usage{Sessions: 1}); refused != nil {
				return quota("%d sessions of %s are waiting already, policy %s allows %d", n, whose, p.Name, *limit).
					WithNext("wait until one has started, destroy one that waits, or ask an administrator for a larger limit")
			}
		}
		if len(p.MaxPendingSessionResourceSlots) == 0 {
			continue
		}
		rows, err := q.WaitingSlotsOf(ctx, user, arg)
		if err != nil {
			return fmt.Errorf("sum up waiting sessions: %w", err)
		}
		used := cluster.Slots{}
		for _, r := range rows {
			used[cluster.SlotName(r.Slot)] = cluster.Amount(r.Amount)
		}
		level.Used.Slots = used
		if refused, what := scheduler.Admit([]scheduler.Level{level}, scheduler.Usage{Slots: more}); refused != nil {
			slot := cluster.SlotName(what)
			return quota("waiting sessions of %s hold %s of %s, this one asks for %s, policy %s allows %s together",
				whose, cluster.FormatAmount(slot, used[slot]), slot, cluster.FormatAmount(slot, more[slot]), p.Name,
				cluster.FormatAmount(slot, p.MaxPendingSessionResourceSlots[slot])).
				WithNext("wait until one has started, ask for less, or ask an administrator for a larger limit")
		}
	}
	return nil
}

// fits refuses what a level of the hierarchical quotas never allows, whatever else ends.
func fits(tree *limit.Tree, owner scheduler.Owner, group string, asks cluster.Slots) error {
	never := tree.Never(owner, group, asks)
	if never == nil {
		return nil
	}
	where := never.Node.Path
	if never.Node.Group != "" {
		where += " in resource group " + never.Node.Group
	}
	return quota("quota: %s limit %s, and the session asks for %s", where, never.Slot.Text(never.Limit), never.Slot.Text(never.Asked)).
		WithNext("ask for less, or ask an administrator for a higher limit of %s", where)
}
