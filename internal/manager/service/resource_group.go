package service

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// ResourceGroup is a set of agents with one scheduling policy.
type ResourceGroup struct {
	Name           string
	Description    *string
	IsActive       bool
	IsPublic       bool
	CreatedAt      time.Time
	WsproxyAddr    *string
	Driver         string
	DriverOpts     map[string]any
	Scheduler      string
	SchedulerOpts  map[string]any
	UseHostNetwork bool
}

const groupNoun = "scaling group"

func groupView(r dbgen.ResourceGroup) *ResourceGroup {
	return &ResourceGroup{Name: r.Name, Description: r.Description, IsActive: r.IsActive, IsPublic: r.IsPublic, CreatedAt: r.CreatedAt.UTC(),
		WsproxyAddr: r.WsproxyAddr, Driver: r.Driver, DriverOpts: r.DriverOpts, Scheduler: r.Scheduler, SchedulerOpts: r.SchedulerOpts, UseHostNetwork: r.UseHostNetwork}
}

// AllowedResourceGroups lists the active groups that the actor may use with a project (name or id; "" is any of the actor's).
func (s *Service) AllowedResourceGroups(ctx context.Context, a Actor, project string) ([]*ResourceGroup, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	projects := texts(a.Projects)
	if project != "" {
		p, err := s.findProject(ctx, project, a.Domain)
		if err != nil {
			return nil, err
		}
		if !a.Member(cluster.ProjectID(p.ID)) && !a.DomainAdmin(p.DomainName) {
			return nil, authz.NotFound("user group (or project)", project)
		}
		projects = []string{p.ID}
	}
	rows, err := s.d.Store.AllowedResourceGroups(ctx, a.Domain, projects, string(a.AccessKey))
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	out := make([]*ResourceGroup, len(rows))
	for i, r := range rows {
		out[i] = groupView(r)
	}
	return out, nil
}

// ListResourceGroups lists all groups for superadmins and monitors, allowed ones otherwise; active nil means both.
func (s *Service) ListResourceGroups(ctx context.Context, a Actor, active *bool) ([]*ResourceGroup, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if authz.NeedReadAll(a, "list resource groups") != nil {
		if active != nil && !*active {
			return []*ResourceGroup{}, nil
		}
		return s.AllowedResourceGroups(ctx, a, "")
	}
	rows, err := s.d.Store.ListResourceGroups(ctx, active)
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	out := make([]*ResourceGroup, len(rows))
	for i, r := range rows {
		out[i] = groupView(r)
	}
	return out, nil
}

// GetResourceGroup returns a group that the actor may use or administrate.
func (s *Service) GetResourceGroup(ctx context.Context, a Actor, name string) (*ResourceGroup, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	all, err := s.ListResourceGroups(ctx, a, nil)
	if err != nil {
		return nil, err
	}
	for _, g := range all {
		if g.Name == name {
			return g, nil
		}
	}
	return nil, authz.NotFound(groupNoun, name)
}

// Preset is a named amount of resources.
type Preset struct {
	Name         string
	Slots        cluster.Slots
	SharedMemory *int64
	Allocatable  bool // only from CheckPresets
}

// Presets lists what administrators offer.
func (s *Service) Presets(ctx context.Context, a Actor) ([]Preset, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.presets(ctx, nil)
}

func (s *Service) presets(ctx context.Context, group *string) ([]Preset, error) {
	rows, err := s.d.Store.ListPresets(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("read presets: %w", err)
	}
	out := make([]Preset, len(rows))
	for i, r := range rows {
		out[i] = Preset{Name: r.Name, Slots: r.ResourceSlots, SharedMemory: r.SharedMemory}
	}
	return out, nil
}

// GroupUse is the use of one resource group.
type GroupUse struct{ Using, Remaining cluster.Slots }

// PresetCheck tells what the actor could start. Absent slots of limits are unlimited.
type PresetCheck struct {
	KeypairLimits, KeypairUsing cluster.Slots
	GroupLimits, GroupUsing     cluster.Slots
	GroupRemaining              cluster.Slots // of the chosen resource groups together
	ResourceGroups              map[string]GroupUse
	Presets                     []Preset
}

// CheckPresets tells which presets would fit now, for a project and a resource group ("" is every allowed one).
func (s *Service) CheckPresets(ctx context.Context, a Actor, project, resourceGroup string) (PresetCheck, error) {
	if err := authz.Authenticated(a); err != nil {
		return PresetCheck{}, err
	}
	if project == "" {
		project = first
	}
	p, err := s.findProject(ctx, project, a.Domain)
	if err != nil {
		return PresetCheck{}, err
	}
	groups, err := s.AllowedResourceGroups(ctx, a, p.ID)
	if err != nil {
		return PresetCheck{}, err
	}
	names := []string{}
	for _, g := range groups {
		if resourceGroup == "" || g.Name == resourceGroup {
			names = append(names, g.Name)
		}
	}
	if resourceGroup != "" && len(names) == 0 {
		return PresetCheck{}, authz.NotFound(groupNoun, resourceGroup)
	}
	policy, err := s.keypairPolicyOf(ctx, a.AccessKey)
	if err != nil {
		return PresetCheck{}, err
	}
	c := PresetCheck{KeypairLimits: policy.TotalResourceSlots, KeypairUsing: cluster.Slots{}, GroupLimits: p.TotalResourceSlots, GroupUsing: cluster.Slots{},
		GroupRemaining: cluster.Slots{}, ResourceGroups: map[string]GroupUse{}}
	mine, err := s.d.Store.UsingByKeypair(ctx, string(a.AccessKey))
	if err != nil {
		return c, fmt.Errorf("sum up use: %w", err)
	}
	for _, r := range mine {
		c.KeypairUsing[cluster.SlotName(r.Slot)] = cluster.Amount(r.Amount)
	}
	theirs, err := s.d.Store.UsingByProject(ctx, p.ID)
	if err != nil {
		return c, fmt.Errorf("sum up use: %w", err)
	}
	for _, r := range theirs {
		c.GroupUsing[cluster.SlotName(r.Slot)] = cluster.Amount(r.Amount)
	}
	free, err := s.freeOfGroups(ctx, names, &c)
	if err != nil {
		return c, err
	}
	var group *string
	if resourceGroup != "" {
		group = &resourceGroup
	}
	if c.Presets, err = s.presets(ctx, group); err != nil {
		return c, err
	}
	for i := range c.Presets {
		c.Presets[i].Allocatable = within(c.Presets[i].Slots, c.KeypairUsing, c.KeypairLimits) && within(c.Presets[i].Slots, c.GroupUsing, c.GroupLimits) &&
			fitsOne(c.Presets[i].Slots, free)
	}
	return c, nil
}

// freeOfGroups fills in the use per resource group and returns what every usable agent has left.
func (s *Service) freeOfGroups(ctx context.Context, names []string, c *PresetCheck) ([]cluster.Slots, error) {
	agents, err := s.d.Store.LargestAgents(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	ids := make([]string, len(agents))
	for i, g := range agents {
		ids[i] = g.ID
	}
	rows, err := s.d.Store.OccupiedByAgent(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("sum up what agents hold: %w", err)
	}
	occupied := map[string]cluster.Slots{}
	for _, r := range rows {
		if occupied[r.AgentID] == nil {
			occupied[r.AgentID] = cluster.Slots{}
		}
		occupied[r.AgentID][cluster.SlotName(r.Slot)] = cluster.Amount(r.Amount)
	}
	for _, n := range names {
		c.ResourceGroups[n] = GroupUse{Using: cluster.Slots{}, Remaining: cluster.Slots{}}
	}
	var free []cluster.Slots
	for _, g := range agents {
		u := c.ResourceGroups[g.ResourceGroup]
		u.Using = u.Using.Add(occupied[g.ID])
		if g.Status == cluster.AgentAlive && g.Schedulable {
			left := g.Capacity.Sub(occupied[g.ID])
			u.Remaining = u.Remaining.Add(left)
			c.GroupRemaining = c.GroupRemaining.Add(left)
			free = append(free, left)
		}
		c.ResourceGroups[g.ResourceGroup] = u
	}
	return free, nil
}

// within reports whether more of the slots would stay below the limits; an absent limit is none.
func within(more, using, limits cluster.Slots) bool {
	for slot, limit := range limits {
		if more[slot] > 0 && using[slot]+more[slot] > limit {
			return false
		}
	}
	return true
}

func fitsOne(want cluster.Slots, free []cluster.Slots) bool {
	for _, f := range free {
		if f.Covers(want) {
			return true
		}
	}
	return false
}

func (s *Service) keypairPolicyOf(ctx context.Context, key cluster.AccessKey) (dbgen.KeypairResourcePolicy, error) {
	row, err := s.d.Store.ActorByKey(ctx, string(key))
	if store.Missing(err) {
		return dbgen.KeypairResourcePolicy{}, authz.NotFound("keypair", string(key))
	}
	if err != nil {
		return dbgen.KeypairResourcePolicy{}, fmt.Errorf("find keypair: %w", err)
	}
	p, err := s.d.Store.GetKeypairPolicy(ctx, row.ResourcePolicy)
	if err != nil {
		return p, fmt.Errorf("read resource policy %s: %w", row.ResourcePolicy, err)
	}
	return p, nil
}
