package node

import (
	"context"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// maxSummaries is the largest page of summaries: clients add them up.
const maxSummaries = 1000

// Summary is what whoever may use a resource group sees of its agents.
type Summary struct {
	ID            cluster.AgentID
	Status        cluster.AgentStatus
	Architecture  string
	ResourceGroup string
	Schedulable   bool
	// Capacity is what sessions may have, Occupied what they have.
	Capacity, Occupied cluster.Slots
}

// summaryFields are those of agents that summaries tell.
var summaryFields = func() list.Fields {
	out := list.Fields{}
	for _, name := range []string{"id", "status", "scaling_group", "schedulable", "architecture", "available_slots", "occupied_slots"} {
		out[name] = agentFields[name]
	}
	return out
}()

// Summaries lists the agents of the active resource groups that the actor may use, all for superadmins and monitors. A page has 1,000
// at most.
func (s *Service) Summaries(ctx context.Context, a authz.Actor, f Filter) (list.Page[Summary], error) {
	var none list.Page[Summary]
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	l := &list.Spec{From: facts.AgentSummaries.From, Key: facts.AgentSummaries.Key, Fields: summaryFields, Order: "a.first_contact",
		Most: maxSummaries}
	l.Where(facts.AgentSummaries.Where(a, authz.See, l.Arg))
	if f.Status != "" {
		l.And("a.status = %s", f.Status)
	}
	if f.ResourceGroup != "" {
		l.And("a.resource_group = %s", f.ResourceGroup)
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return none, err
	}
	views, err := s.agentViews(ctx, keys)
	if err != nil {
		return none, err
	}
	out := list.Page[Summary]{Items: []Summary{}, Total: total}
	for _, v := range list.InOrder(keys, views) {
		out.Items = append(out.Items, Summary{ID: v.ID, Status: v.Status, Architecture: v.Architecture, ResourceGroup: v.ResourceGroup,
			Schedulable: v.Schedulable, Capacity: v.Capacity, Occupied: v.Occupied})
	}
	return out, nil
}
