package httpapi

import (
	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/resource"
)

func (a *API) presetRoutes() {
	a.handle(signedOnly, a.presets, "GET /resource/presets")
	a.handle(signedOnly, a.checkPresets, "POST /resource/check-presets")
	a.handle(signedOnly, a.recalculateUsage, "POST /resource/recalculate-usage")
	a.handle(signedOnly, a.hideProjectResources, "PUT /resource/project-visibility") // ours
}

func presetOf(p resource.Preset) api.Preset {
	o := api.Preset{ID: p.ID, Name: p.Name, Slots: p.Slots.Wire(), ResourceGroup: p.ResourceGroup}
	if p.SharedMemory != nil {
		o.SharedMemory = new(cluster.Whole(*p.SharedMemory).String())
	}
	return o
}

func (a *API) presets(c *call) error {
	presets, err := a.resources.Presets(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	list := make([]api.Preset, 0, len(presets))
	for _, p := range presets {
		list = append(list, presetOf(p))
	}
	return c.ok(api.PresetList{Presets: list})
}

func (a *API) checkPresets(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	project, group := p.Text("group", "default"), p.Text("scaling_group|scalingGroup", "")
	if err := p.Err(); err != nil {
		return err
	}
	slots, err := a.resources.Slots(c.ctx())
	if err != nil {
		return err
	}
	names := make([]cluster.SlotName, len(slots))
	for i, s := range slots {
		names[i] = cluster.SlotName(s.Name)
	}
	ck, err := a.resources.CheckPresets(c.ctx(), c.actor, project, group)
	if err != nil {
		return err
	}
	groups := map[string]api.GroupUse{}
	for name, use := range ck.ResourceGroups {
		groups[name] = api.GroupUse{Using: amounts(names, use.Using), Remaining: amounts(names, use.Remaining)}
	}
	presets := make([]api.Preset, 0, len(ck.Presets))
	for _, pr := range ck.Presets {
		o := presetOf(pr)
		o.Allocatable = &pr.Allocatable
		presets = append(presets, o)
	}
	reply := api.PresetCheck{
		KeypairLimits: limits(names, ck.KeypairLimits), KeypairUsing: amounts(names, ck.KeypairUsing),
		KeypairRemaining: limits(names, ck.KeypairRemaining), ProjectLimits: limits(names, ck.GroupLimits),
		ProjectUsing: amounts(names, ck.GroupUsing), ProjectRemaining: limits(names, ck.GroupRemaining),
		ResourceGroupRemaining: amounts(names, ck.Remaining), ResourceGroups: groups, Presets: presets,
	}
	if ck.GroupHidden {
		secret := all(names, hidden)
		reply.ProjectLimits, reply.ProjectUsing, reply.ProjectRemaining = secret, secret, secret
	}
	return c.ok(reply)
}

// The wire's texts for no limit and for what is not shown.
const (
	infinity = "Infinity"
	hidden   = "NaN"
)

// all is every slot with the same text.
func all(names []cluster.SlotName, text string) map[string]string {
	out := make(map[string]string, len(names))
	for _, n := range names {
		out[string(n)] = text
	}
	return out
}

// amounts is every slot that the cluster knows; what is absent is zero.
func amounts(names []cluster.SlotName, s cluster.Slots) map[string]string {
	return over(all(names, "0"), s)
}

// limits is every slot that the cluster knows; what is absent is unlimited.
func limits(names []cluster.SlotName, s cluster.Slots) map[string]string {
	return over(all(names, infinity), s)
}

// over writes the slots that the cluster knows; clients take others for slots that it has.
func over(out map[string]string, s cluster.Slots) map[string]string {
	for n, v := range s {
		if _, known := out[string(n)]; known {
			out[string(n)] = v.String()
		}
	}
	return out
}

// recalculateUsage finds nothing to do, because occupancy is derived; it looks all the same.
func (a *API) recalculateUsage(c *call) error {
	over, err := a.resources.RecalculateUsage(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.UsageRecalculated{OvercommittedAgents: texts(over)})
}

func (a *API) hideProjectResources(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	visible := p.Flag("group_resource_visibility", true)
	if !p.Has("group_resource_visibility") {
		p.Fail("group_resource_visibility", "is required")
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.resources.SetProjectResourcesHidden(c.ctx(), c.actor, !visible); err != nil {
		return err
	}
	return c.nothing()
}
