package limit

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
)

// Tree is the rules of hierarchical quotas with what only those need who look at them from outside of the scheduler.
type Tree struct {
	quota.Facts
	// Weights are those of the fair share, of nodes that have one.
	Weights map[quota.ID]float64
	// RuleIDs are the keys of the rows of Facts.Rules.
	RuleIDs []string
}

// ReadTree reads the rules of all quotas and where projects lie. It is two short queries where there are none.
func ReadTree(ctx context.Context, q *dbgen.Queries) (*Tree, error) {
	t := &Tree{Facts: quota.Facts{Projects: map[cluster.ProjectID]quota.Place{}, Users: map[cluster.UserID]string{}},
		Weights: map[quota.ID]float64{}}
	rules, err := q.QuotaRules(ctx)
	if err != nil {
		return nil, fmt.Errorf("read quotas: %w", err)
	}
	places, err := q.QuotaPlaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("read where projects lie: %w", err)
	}
	for _, p := range places {
		t.Projects[cluster.ProjectID(p.ID)] = quota.Place{Name: p.Name, Domain: p.DomainName, Parent: cluster.ProjectID(deref(p.ParentID))}
	}
	for _, r := range rules {
		id := quota.ID{Project: cluster.ProjectID(deref(r.Quota.ProjectID)), User: cluster.UserID(deref(r.Quota.UserID))}
		if id.Project == "" {
			id.Domain = r.Quota.DomainName
		}
		if id.User != "" {
			t.Users[id.User] = r.Email
		}
		if r.Quota.Weight != nil {
			t.Weights[id] = *r.Quota.Weight
		}
		t.RuleIDs = append(t.RuleIDs, r.Quota.ID)
		t.Rules = append(t.Rules, quota.Rule{Node: id, Group: deref(r.Quota.ResourceGroup), Guaranteed: r.Quota.Guaranteed, Limit: r.Quota.Most})
	}
	return t, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Domains are those with rules.
func (t *Tree) Domains() []string {
	out := []string{}
	for _, r := range t.Rules {
		if d := t.Line(r.Node)[0].Domain; !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}

// Count makes the tree of some domains, with what their live sessions hold and, where wanted, what waiting ones ask for. It is nil where
// there are no rules.
func (t *Tree) Count(ctx context.Context, q *dbgen.Queries, domains []string, wanted bool) (*quota.Tree, error) {
	tree := quota.New(t.Facts)
	if tree == nil || len(domains) == 0 {
		return tree, nil
	}
	add := func(r dbgen.LiveSlotsOfDomainsRow, to func(*quota.Chain, []quota.Ask, cluster.Amount)) {
		chain, known := tree.Chain(r.ResourceGroup, r.DomainName, cluster.ProjectID(r.ProjectID), cluster.UserID(r.UserID))
		if known {
			to(&chain, []quota.Ask{{Slot: cluster.SlotName(r.Slot), Amount: cluster.Amount(r.Amount)}}, 1)
		}
	}
	live, err := q.LiveSlotsOfDomains(ctx, domains)
	if err != nil {
		return nil, fmt.Errorf("sum up what domains hold: %w", err)
	}
	for _, r := range live {
		add(r, (*quota.Chain).Use)
	}
	if !wanted {
		return tree, nil
	}
	waiting, err := q.WaitingSlotsOfDomains(ctx, domains)
	if err != nil {
		return nil, fmt.Errorf("sum up what waits in domains: %w", err)
	}
	for _, r := range waiting {
		add(dbgen.LiveSlotsOfDomainsRow(r), (*quota.Chain).Want)
	}
	return tree, nil
}

// Never finds the level whose limit a session exceeds even when nothing else runs, nil when there is none.
func (t *Tree) Never(owner scheduler.Owner, group string, asks cluster.Slots) *quota.Excess {
	tree := quota.New(t.Facts)
	if tree == nil {
		return nil
	}
	chain, known := tree.Chain(group, owner.Domain, owner.Project, owner.User)
	if !known {
		return nil
	}
	return chain.Over(quota.Asks(asks))
}

// treeLevels are the levels of the tree that limit what an owner starts, from the nearest up. group is "" where it is not known in which
// resource group: then those of all groups together are told.
func treeLevels(ctx context.Context, q *dbgen.Queries, owner scheduler.Owner, group string) ([]scheduler.Level, error) {
	t, err := ReadTree(ctx, q)
	if err != nil {
		return nil, err
	}
	tree, err := t.Count(ctx, q, []string{owner.Domain}, true)
	if tree == nil || err != nil {
		return nil, err
	}
	chain, _ := tree.Chain(group, owner.Domain, owner.Project, owner.User)
	var out []scheduler.Level
	at := map[*quota.Node]int{}
	for _, slot := range chain.Slots() {
		for _, r := range chain.Rooms(slot) {
			i, known := at[r.Node]
			if !known {
				i = len(out)
				at[r.Node] = i
				name := r.Node.Path
				if r.Node.Group != "" {
					name += " in " + r.Node.Group
				}
				out = append(out, scheduler.Level{Scope: scheduler.Scope{Kind: scheduler.ScopeLevel, ID: name}, Kept: cluster.Slots{},
					Quota: &scheduler.Quota{Name: name, Slots: cluster.Slots{}, Sessions: -1, Private: -1},
					Used:  scheduler.Usage{Slots: cluster.Slots{}}})
			}
			out[i].Quota.Slots[slot], out[i].Used.Slots[slot], out[i].Kept[slot] = r.Limit, r.Used, r.Kept
		}
	}
	return out, nil
}
