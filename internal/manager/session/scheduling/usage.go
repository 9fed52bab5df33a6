package scheduling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/fairshare"
	"berth.dev/berth/internal/scheduler/quota"
)

const (
	usageEvery = time.Minute
	// usageLag is how long the loop stays behind the present, so that what agents report of an instant is stored before it is added up.
	usageLag = 30 * time.Second
	// usageBack is how far back use is added up when that has never been done.
	usageBack = 60 * 24 * time.Hour
	// sharesEvery is how often fair shares are computed. A changed policy of a group makes it happen at once.
	sharesEvery = 5 * time.Minute
	usageKey    = "usage"
)

// account adds up what owners used in one period of at most a day. The end of the period is stored in the transaction that stores the sums.
// So every instant counts exactly once, also when leaders change or die. more says that there are later periods to add up now.
func account(ctx context.Context, term reconcile.Term) (more bool, err error) {
	err = term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		more = false
		now, err := tx.SessionNow(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		var until struct {
			Until time.Time `json:"until"`
		}
		raw, err := tx.GetSetting(ctx, usageKey)
		switch {
		case store.Missing(err):
			if until.Until, err = tx.FirstUse(ctx, usageBack); err != nil {
				return fmt.Errorf("find the first use: %w", err)
			}
		case err != nil:
			return fmt.Errorf("read how far use is added up: %w", err)
		default:
			if err := json.Unmarshal(raw, &until); err != nil {
				return fmt.Errorf("read how far use is added up: %w", err)
			}
		}
		from := until.Until.UTC()
		midnight := from.Truncate(24 * time.Hour).Add(24 * time.Hour)
		to := now.Add(-usageLag).UTC()
		if more = midnight.Before(to); more {
			to = midnight
		}
		if !from.Before(to) {
			return nil
		}
		if err := tx.AddUsage(ctx, from, to); err != nil {
			return fmt.Errorf("add up use: %w", err)
		}
		until.Until = to
		if raw, err = json.Marshal(until); err != nil {
			return fmt.Errorf("note how far use is added up: %w", err)
		}
		if err := tx.SetSetting(ctx, usageKey, raw); err != nil {
			return fmt.Errorf("note how far use is added up: %w", err)
		}
		if more {
			return nil
		}
		return errors.Join(tx.ForgetUsage(ctx), tx.ForgetChanges(ctx))
	})
	return more, err
}

// readShares computes the shares of owners in groups with the order fair-share from what they used, when that is due.
func (m *memory) readShares(ctx context.Context, q *dbgen.Queries, now time.Time) error {
	if now.Before(m.sharesAt) {
		return nil
	}
	decays := map[string]fairshare.Decay{}
	var names []string
	since := now
	for name, g := range m.groups {
		if g.policy.Order != "fair-share" {
			continue
		}
		decay, err := fairshare.Parse(g.policy.OrderOptions)
		if err != nil {
			return fmt.Errorf("read options of resource group %s: %w", name, err)
		}
		decays[name], names = decay, append(names, name)
		if t := now.Add(-decay.Lookback - decay.Unit); t.Before(since) {
			since = t
		}
	}
	m.sharesAt = now.Add(sharesEvery)
	if len(names) == 0 {
		return nil
	}
	rows, err := q.UsageSince(ctx, names, since)
	if err != nil {
		return fmt.Errorf("read past use: %w", err)
	}
	type owner struct {
		group string
		scope scheduler.Scope
	}
	used := map[owner]map[time.Time]map[cluster.SlotName]float64{}
	for _, r := range rows {
		scopes := []scheduler.Scope{{Kind: scheduler.ScopeUser, ID: r.UserID}, {Kind: scheduler.ScopeProject, ID: r.ProjectID},
			{Kind: scheduler.ScopeDomain, ID: r.DomainName}}
		for _, above := range m.tree.Above(cluster.ProjectID(r.ProjectID)) { // what is used in a project counts for those that it lies in
			scopes = append(scopes, scheduler.Scope{Kind: scheduler.ScopeProject, ID: string(above)})
		}
		for _, scope := range scopes {
			o := owner{r.ResourceGroup, scope}
			if used[o] == nil {
				used[o] = map[time.Time]map[cluster.SlotName]float64{}
			}
			if used[o][r.Day] == nil {
				used[o][r.Day] = map[cluster.SlotName]float64{}
			}
			used[o][r.Day][cluster.SlotName(r.Slot)] += r.Amount
		}
	}
	for id := range m.tree.Weights {
		m.weighed[id] = true
	}
	capacity := map[string]cluster.Slots{}
	for _, a := range m.agents {
		capacity[a.group] = capacity[a.group].Add(a.capacity)
	}
	for o, days := range used {
		buckets := make([]fairshare.Bucket, 0, len(days))
		for day, slots := range days {
			buckets = append(buckets, fairshare.Bucket{Start: day, Used: slots})
		}
		share := func(weight float64) float64 { return decays[o.group].Share(now, capacity[o.group], buckets, weight) }
		id := quota.ID{}
		switch o.scope.Kind {
		case scheduler.ScopeDomain:
			id.Domain = o.scope.ID
		case scheduler.ScopeProject:
			id.Project = cluster.ProjectID(o.scope.ID)
		}
		m.cluster.SetShare(o.group, o.scope, share(m.tree.Weights[id]))
		if o.scope.Kind != scheduler.ScopeUser {
			continue
		}
		for id := range m.weighed { // one that has no weight any more has the default one
			if string(id.User) == o.scope.ID {
				m.cluster.SetShare(o.group, scheduler.MemberScope(id.Project, id.User), share(m.tree.Weights[id]))
			}
		}
	}
	return nil
}
