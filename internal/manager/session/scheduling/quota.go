package scheduling

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
)

// allowance holds the limits of owners and what they use when a batch is committed. The lock of placements is held, and nothing but a
// placement makes an owner use more, so it stays true until the commit.
type allowance struct {
	quotas map[scheduler.Scope]*scheduler.Quota
	used   map[scheduler.Scope]*scheduler.Usage
	tree   *quota.Tree // of hierarchical quotas; nil: none
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
	quotas, _, err := limit.Quotas(ctx, q, scopes, kinds)
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
	a.tree, err = freshTree(ctx, q, batch)
	return a, err
}

// freshTree reads the hierarchical quotas, with what is used of those that a batch counts against. What is kept for those who wait is the
// scheduler's to decide; a commit only makes sure that no level gets more than its limit.
func freshTree(ctx context.Context, q *dbgen.Queries, batch []proposal) (*quota.Tree, error) {
	t, err := limit.ReadTree(ctx, q)
	if err != nil || len(t.Rules) == 0 {
		return nil, err
	}
	ruled, domains := t.Domains(), map[string]bool{}
	for i := range batch {
		if d := batch[i].owner.Domain; !batch[i].private && slices.Contains(ruled, d) {
			domains[d] = true
		}
	}
	return t.Count(ctx, q, sorted(domains), false)
}

// levels are the levels of the tree that a session counts against, nil where there are none.
func (a *allowance) levels(p *proposal) *quota.Chain {
	if a.tree == nil || p.private {
		return nil
	}
	chain, known := a.tree.Chain(p.group, p.owner.Domain, p.owner.Project, p.owner.User)
	if !known {
		return nil
	}
	return &chain
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
	var levels []scheduler.Level
	for _, s := range p.owner.Scopes() {
		if quota := a.quotas[s]; quota != nil {
			levels = append(levels, scheduler.Level{Scope: s, Quota: quota, Used: *a.of(s)})
		}
	}
	refused, _ := scheduler.Admit(levels, p.asks())
	tree := a.levels(p)
	return refused == nil && (tree == nil || tree.Over(quota.Asks(p.asks().Slots)) == nil)
}

// take counts the session as started.
func (a *allowance) take(p *proposal) {
	more := p.asks()
	if tree := a.levels(p); tree != nil {
		tree.Use(quota.Asks(more.Slots), 1)
	}
	for _, s := range p.owner.Scopes() {
		used := a.of(s)
		used.Sessions += more.Sessions
		used.Private += more.Private
		for slot, v := range more.Slots {
			used.Slots[slot] += v
		}
	}
}
