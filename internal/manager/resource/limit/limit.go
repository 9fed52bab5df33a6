// Package limit reads the limits of the owners of sessions and what their live sessions hold. What follows of them is decided by package
// scheduler: session/scheduling admits by it, resource tells by it what may still be started.
package limit

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// Quotas reads the limits of owners; an owner without limits is absent from out. listed is set when one of the policies allows only the
// slots that it lists. Its limits for all other names in kinds are then 0.
func Quotas(ctx context.Context, q *dbgen.Queries, scopes map[scheduler.Scope]bool,
	kinds map[cluster.SlotName]bool) (out map[scheduler.Scope]*scheduler.Quota, listed bool, err error) {
	users, keypairs, projects, domains := []string{}, []string{}, []string{}, []string{}
	for s := range scopes {
		switch {
		case s.ID == "":
		case s.Kind == scheduler.ScopeUser:
			users = append(users, s.ID)
		case s.Kind == scheduler.ScopeKeypair:
			keypairs = append(keypairs, s.ID)
		case s.Kind == scheduler.ScopeProject:
			projects = append(projects, s.ID)
		case s.Kind == scheduler.ScopeDomain:
			domains = append(domains, s.ID)
		}
	}
	rows, err := q.QuotaFacts(ctx, users, keypairs, projects, domains)
	if err != nil {
		return nil, false, fmt.Errorf("read limits of owners: %w", err)
	}
	out = map[scheduler.Scope]*scheduler.Quota{}
	for _, r := range rows {
		quota := &scheduler.Quota{Name: r.Name, Slots: cluster.Slots{}, Sessions: -1, Private: -1, Closed: r.Closed}
		if err := json.Unmarshal(r.Slots, &quota.Slots); err != nil {
			return nil, false, fmt.Errorf("read limits of %s %s: %w", r.Kind, r.Name, err)
		}
		if r.ListedOnly {
			listed = true
			for kind := range kinds {
				if _, ok := quota.Slots[kind]; !ok {
					quota.Slots[kind] = 0
				}
			}
		}
		if r.Sessions > 0 {
			quota.Sessions = int(r.Sessions)
		}
		if r.Private > 0 {
			quota.Private = int(r.Private)
		}
		if quota.Closed || len(quota.Slots) > 0 || quota.Sessions >= 0 || quota.Private >= 0 {
			out[scheduler.Scope{Kind: scheduler.ScopeKind(r.Kind), ID: r.ID}] = quota
		}
	}
	return out, listed, nil
}

// Levels are the owners of what one owner starts, from its keypair up to its domain, with their limits and what they hold, and then the
// levels of hierarchical quotas. group is the resource group, "" for any.
func Levels(
	ctx context.Context, q *dbgen.Queries, owner scheduler.Owner, group string, kinds map[cluster.SlotName]bool,
) ([]scheduler.Level, error) {
	scopes := map[scheduler.Scope]bool{}
	levels := make([]scheduler.Level, 0, 4)
	at := map[scheduler.ScopeKind]*scheduler.Usage{}
	for _, s := range owner.Scopes() {
		scopes[s] = true
		levels = append(levels, scheduler.Level{Scope: s, Used: scheduler.Usage{Slots: cluster.Slots{}}})
	}
	for i := range levels {
		at[levels[i].Scope.Kind] = &levels[i].Used
	}
	quotas, _, err := Quotas(ctx, q, scopes, kinds)
	if err != nil {
		return nil, err
	}
	for i := range levels {
		levels[i].Quota = quotas[levels[i].Scope]
	}
	users := []string{string(owner.User)}
	live, err := q.LiveSessionsOfUsers(ctx, users)
	if err != nil {
		return nil, fmt.Errorf("count live sessions: %w", err)
	}
	for _, r := range live {
		for _, u := range ofUser(at, owner, r.AccessKey) {
			u.Sessions += int(r.Sessions)
			u.Private += int(r.Private)
		}
	}
	slots, err := q.LiveSlotsOfUsers(ctx, users)
	if err != nil {
		return nil, fmt.Errorf("sum up what users hold: %w", err)
	}
	for _, r := range slots {
		for _, u := range ofUser(at, owner, r.AccessKey) {
			u.Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
		}
	}
	tenants, err := q.LiveSlotsOfTenants(ctx, []string{string(owner.Project)}, []string{owner.Domain})
	if err != nil {
		return nil, fmt.Errorf("sum up what projects and domains hold: %w", err)
	}
	for _, r := range tenants {
		if r.ProjectID == string(owner.Project) {
			at[scheduler.ScopeProject].Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
		}
		if r.DomainName == owner.Domain {
			at[scheduler.ScopeDomain].Slots[cluster.SlotName(r.Slot)] += cluster.Amount(r.Amount)
		}
	}
	tree, err := treeLevels(ctx, q, owner, group)
	return append(levels, tree...), err
}

// ofUser are the levels for which a session of the owner's user counts that was started with a keypair.
func ofUser(at map[scheduler.ScopeKind]*scheduler.Usage, owner scheduler.Owner, key string) []*scheduler.Usage {
	out := []*scheduler.Usage{at[scheduler.ScopeUser]}
	if key == string(owner.AccessKey) {
		out = append(out, at[scheduler.ScopeKeypair])
	}
	return out
}
