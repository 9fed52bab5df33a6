package scheduling

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// allowance holds the limits of owners and what they use when a batch is committed. The lock of placements is held, and nothing but a
// placement makes an owner use more, so it stays true until the commit.
type allowance struct {
	quotas map[scheduler.Scope]*scheduler.Quota
	used   map[scheduler.Scope]*scheduler.Usage
}

// freshAllowance reads the limits of the owners of a batch. Where a limit concerns what the batch asks for, it also adds up what the
// owner's live sessions hold. That sum is over few rows, because the limit bounds them.
func freshAllowance(ctx context.Context, q *dbgen.Queries, batch []proposal, kinds map[cluster.SlotName]bool) (*allowance, error) {
	scopes := map[scheduler.Scope]bool{}
	for i := range batch {
		for _, s := range batch[i].owner.Scopes() {
			scopes[s] = true
		}
	}
	quotas, _, err := readQuotas(ctx, q, scopes, kinds)
	if err != nil {
		return nil, err
	}
	a := &allowance{quotas: quotas, used: map[scheduler.Scope]*scheduler.Usage{}}
	users, slotsOf, projects, domains := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range batch {
		p := &batch[i]
		for _, s := range p.owner.Scopes() {
			quota := quotas[s]
			if quota == nil {
				continue
			}
			slots := !p.private && limits(quota, p)
			switch s.Kind {
			case scheduler.ScopeProject:
				if slots {
					projects[s.ID] = true
				}
			case scheduler.ScopeDomain:
				if slots {
					domains[s.ID] = true
				}
			default:
				users[string(p.owner.User)] = true
				if slots {
					slotsOf[string(p.owner.User)] = true
				}
			}
		}
	}
	if len(users) > 0 {
		rows, err := q.LiveSessionsOfUsers(ctx, sorted(users))
		if err != nil {
			return nil, fmt.Errorf("count live sessions of users: %w", err)
		}
		for _, r := range rows {
			for _, u := range a.ofUser(r.UserID, r.AccessKey) {
				u.Sessions += int(r.Sessions)
				u.Private += int(r.Private)
			}
		}
	}
	if len(slotsOf) > 0 {
		rows, err := q.LiveSlotsOfUsers(ctx, sorted(slotsOf))
		if err != nil {
			return nil, fmt.Errorf("sum up what users hold: %w", err)
		}
		for _, r := range rows {
			for _, u := range a.ofUser(r.UserID, r.AccessKey) {
				u.Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
			}
		}
	}
	if len(projects)+len(domains) > 0 {
		rows, err := q.LiveSlotsOfTenants(ctx, sorted(projects), sorted(domains))
		if err != nil {
			return nil, fmt.Errorf("sum up what projects and domains hold: %w", err)
		}
		for _, r := range rows {
			// The query returns the rows of some projects and some domains. For a project that was found only through its domain, the sum
			// would be incomplete; so only those that were asked for are counted.
			if projects[r.ProjectID] {
				a.of(scheduler.Scope{Kind: scheduler.ScopeProject, ID: r.ProjectID}).Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
			}
			if domains[r.DomainName] {
				a.of(scheduler.Scope{Kind: scheduler.ScopeDomain, ID: r.DomainName}).Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
			}
		}
	}
	return a, nil
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// limits reports whether a quota limits any slot that the session asks for.
func limits(quota *scheduler.Quota, p *proposal) bool {
	for i := range p.kernels {
		for slot, v := range p.kernels[i].Slots {
			if _, limited := quota.Slots[slot]; limited && v > 0 {
				return true
			}
		}
	}
	return false
}

func (a *allowance) of(s scheduler.Scope) *scheduler.Usage {
	if a.used[s] == nil {
		a.used[s] = &scheduler.Usage{Slots: cluster.Slots{}}
	}
	return a.used[s]
}

func (a *allowance) ofUser(user, key string) [2]*scheduler.Usage {
	return [2]*scheduler.Usage{a.of(scheduler.Scope{Kind: scheduler.ScopeUser, ID: user}),
		a.of(scheduler.Scope{Kind: scheduler.ScopeKeypair, ID: key})}
}

// asks is what a session adds to the use of its owners when it starts.
func (p *proposal) asks() scheduler.Usage {
	if p.private {
		return scheduler.Usage{Private: 1}
	}
	u := scheduler.Usage{Sessions: 1, Slots: cluster.Slots{}}
	for i := range p.kernels {
		for slot, v := range p.kernels[i].Slots {
			u.Slots[slot] += v
		}
	}
	return u
}

// allows reports whether the limits of every owner leave room for the session. Only slots that the session asks for count. An owner who is
// over the limit of another slot may start it.
func (a *allowance) allows(p *proposal) bool {
	more := p.asks()
	for _, s := range p.owner.Scopes() {
		quota := a.quotas[s]
		if quota == nil {
			continue
		}
		used := a.of(s)
		if more.Sessions > 0 && quota.Sessions >= 0 && used.Sessions+more.Sessions > quota.Sessions ||
			more.Private > 0 && quota.Private >= 0 && used.Private+more.Private > quota.Private {
			return false
		}
		for slot, v := range more.Slots {
			if limit, limited := quota.Slots[slot]; limited && v > 0 && used.Slots[slot]+v > limit {
				return false
			}
		}
	}
	return true
}

// take counts the session as started.
func (a *allowance) take(p *proposal) {
	more := p.asks()
	for _, s := range p.owner.Scopes() {
		used := a.of(s)
		used.Sessions += more.Sessions
		used.Private += more.Private
		for slot, v := range more.Slots {
			used.Slots[slot] += v
		}
	}
}
