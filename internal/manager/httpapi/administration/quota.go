package administration

import (
	"math"

	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/resource"
)

func quotaOf(n resource.QuotaNode) admin.Quota {
	out := admin.Quota{Path: n.Path, ResourceGroup: n.ResourceGroup, Own: n.Own, Weight: n.Weight, Problems: n.Problems,
		Slots: make([]admin.QuotaSlot, len(n.Slots))}
	given := func(v cluster.Amount, is bool) string {
		if !is {
			return ""
		}
		return v.String()
	}
	for i, s := range n.Slots {
		out.Slots[i] = admin.QuotaSlot{Slot: string(s.Slot), Guaranteed: given(s.Guaranteed, s.Assured), Limit: given(s.Limit, s.Limited),
			Effective: given(s.Effective, s.Bounded), EffectiveBy: s.EffectiveBy, Used: s.Used.String(), Waiting: s.Waiting.String(),
			Borrowed: s.Borrowed.String(), Lent: s.Lent.String()}
	}
	return out
}

func (h *Handlers) quotaTree(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	path := p.Text("path", "")
	if err := p.Err(); err != nil {
		return err
	}
	nodes, err := h.Resources.QuotaTree(c.Context(), c.Actor(), path)
	if err != nil {
		return err
	}
	out := admin.Quotas{Items: make([]admin.Quota, len(nodes))}
	for i, n := range nodes {
		out.Items[i] = quotaOf(n)
	}
	return route.OK(c, out)
}

func (h *Handlers) setQuota(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	path := p.Need("path")
	props := resource.QuotaProps{ResourceGroup: p.Text("scaling_group|resource_group", ""), Guaranteed: p.Texts("guaranteed"),
		Limit: p.Texts("limit"), DryRun: p.Flag("dry_run", false)}
	if p.Has("weight") {
		w, ok := p.Real("weight")
		if !ok || math.IsNaN(w) {
			p.Fail("weight", "must be a number from 0.001 to 1000000, or 0 for none")
		}
		props.Weight = &w
	}
	if err := p.Err(); err != nil {
		return err
	}
	n, err := h.Resources.SetQuota(c.Context(), c.Actor(), path, props)
	if err != nil {
		return err
	}
	return route.OK(c, quotaOf(*n))
}

func (h *Handlers) unsetQuota(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	path, group := p.Need("path"), p.Text("scaling_group|resource_group", "")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Resources.UnsetQuota(c.Context(), c.Actor(), path, group); err != nil {
		return err
	}
	return c.Nothing()
}

func (h *Handlers) placeProject(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	project, parent := p.Need("group|project"), p.Text("parent", "")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Resources.PlaceProject(c.Context(), c.Actor(), project, parent); err != nil {
		return err
	}
	return c.Nothing()
}
