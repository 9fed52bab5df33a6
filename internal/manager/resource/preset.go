package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/scheduler"
)

func orNone(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// Preset is a named amount of resources.
type Preset struct {
	ID            string
	Name          string
	ResourceGroup string // "" is every group
	Slots         cluster.Slots
	SharedMemory  *int64 // bytes
	Allocatable   bool   // only from CheckPresets
}

func presetView(r dbgen.ResourcePreset) Preset {
	return Preset{ID: r.ID, Name: r.Name, ResourceGroup: orNone(r.ResourceGroup), Slots: r.ResourceSlots, SharedMemory: r.SharedMemory}
}

// Presets lists what administrators offer: those for every resource group and those of groups that the actor may use.
func (s *Service) Presets(ctx context.Context, a authz.Actor) ([]Preset, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	groups, err := s.groups(ctx, a, authz.See)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, g := range groups {
		names = append(names, g.Name)
	}
	return s.presets(ctx, false, names)
}

// presets are those for every resource group and those for the given ones, or all.
func (s *Service) presets(ctx context.Context, every bool, groups []string) ([]Preset, error) {
	rows, err := s.d.Store.ListPresets(ctx, every, groups)
	if err != nil {
		return nil, fmt.Errorf("read presets: %w", err)
	}
	out := make([]Preset, len(rows))
	for i, r := range rows {
		out[i] = presetView(r)
	}
	return out, nil
}

// PresetInput is what an administrator writes about a preset; nil leaves a field as it is.
type PresetInput struct {
	Name  *string
	Slots map[string]string // slot to amount as written; nil leaves them
	// SharedMemory is an amount of memory, "" for none.
	SharedMemory *string
	// ResourceGroup "" is every group.
	ResourceGroup *string
}

func (in PresetInput) name() string {
	if in.Name == nil {
		return ""
	}
	return *in.Name
}

const (
	maxPresets    = 500 // bounds what every check looks at
	maxPresetName = 64  // characters
)

// presetName leaves the length to maxPresetName: a count of these classes would be compiled into megabytes.
var presetName = regexp.MustCompile(`^[\p{L}\p{N}][\p{L}\p{N} ._/+:()-]*$`)

// CreatePreset makes a preset (superadmins).
func (s *Service) CreatePreset(ctx context.Context, a authz.Actor, in PresetInput) (_ Preset, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "preset.create", in.name())
	defer end(&err)
	if err := authz.Presets.Need(a, authz.Administer, authz.Object{}, "change resource presets"); err != nil {
		return Preset{}, err
	}
	p := Preset{ID: s.d.IDs()}
	if in.Slots == nil {
		in.Slots = map[string]string{}
	}
	if in.Name == nil {
		in.Name = new("")
	}
	if err := s.fill(ctx, &p, in); err != nil {
		return Preset{}, err
	}
	known, err := s.presets(ctx, true, []string{})
	if err != nil {
		return Preset{}, err
	}
	if len(known) >= maxPresets {
		return Preset{}, fault.Exhaustedf("there are %d presets already", len(known)).WithNext("delete one first")
	}
	err = s.d.Store.AddPreset(ctx, dbgen.AddPresetParams{ID: p.ID, Name: p.Name, ResourceSlots: p.Slots, SharedMemory: p.SharedMemory,
		ResourceGroup: groupOrNil(p)})
	return p, presetStored(err, p)
}

// ModifyPreset changes the preset of that id or name (superadmins).
func (s *Service) ModifyPreset(ctx context.Context, a authz.Actor, ref string, in PresetInput) (_ Preset, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "preset.modify", ref)
	defer end(&err)
	if err := authz.Presets.Need(a, authz.Administer, authz.Object{}, "change resource presets"); err != nil {
		return Preset{}, err
	}
	p, err := s.findPreset(ctx, ref)
	if err != nil {
		return p, err
	}
	if err := s.fill(ctx, &p, in); err != nil {
		return p, err
	}
	n, err := s.d.Store.ChangePreset(ctx, dbgen.ChangePresetParams{ID: p.ID, Name: p.Name, ResourceSlots: p.Slots,
		SharedMemory: p.SharedMemory, ResourceGroup: groupOrNil(p)})
	if err == nil && n == 0 {
		return p, authz.NotFound(presetNoun, ref)
	}
	return p, presetStored(err, p)
}

// DeletePreset deletes the preset of that id or name (superadmins).
func (s *Service) DeletePreset(ctx context.Context, a authz.Actor, ref string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "preset.delete", ref)
	defer end(&err)
	if err := authz.Presets.Need(a, authz.Administer, authz.Object{}, "change resource presets"); err != nil {
		return err
	}
	p, err := s.findPreset(ctx, ref)
	if err != nil {
		return err
	}
	n, err := s.d.Store.DropPreset(ctx, p.ID)
	if err != nil {
		return fmt.Errorf("delete preset %s: %w", p.Name, err)
	}
	if n == 0 {
		return authz.NotFound(presetNoun, ref)
	}
	return nil
}

func groupOrNil(p Preset) *string {
	if p.ResourceGroup == "" {
		return nil
	}
	return &p.ResourceGroup
}

func presetStored(err error, p Preset) error {
	if store.Duplicate(err, "") {
		return fault.Conflictf("a preset called %s exists already", p.Name).WithReason("generic-bad-request").WithNext("choose another name")
	}
	if err != nil {
		return fmt.Errorf("store preset %s: %w", p.Name, err)
	}
	return nil
}

// findPreset finds a preset by id, or by a name that only one has; of several the one for every group.
func (s *Service) findPreset(ctx context.Context, ref string) (Preset, error) {
	all, err := s.presets(ctx, true, []string{})
	if err != nil {
		return Preset{}, err
	}
	id, _ := cluster.CanonicalUUID(ref)
	for _, p := range all {
		if p.ID == id || p.ID == ref {
			return p, nil
		}
	}
	var named []Preset
	for _, p := range all {
		if p.Name == ref {
			named = append(named, p)
		}
	}
	switch {
	case len(named) == 0:
		return Preset{}, authz.NotFound(presetNoun, ref)
	case len(named) > 1 && named[0].ResourceGroup != "":
		return Preset{}, fault.Invalidf("several presets are called %s", ref).WithNext("name the preset by its id")
	}
	return named[0], nil
}

func (s *Service) fill(ctx context.Context, p *Preset, in PresetInput) error {
	if in.Name != nil {
		if utf8.RuneCountInString(*in.Name) > maxPresetName || !presetName.MatchString(*in.Name) {
			return fault.Invalidf("%.80q is not a name for a preset", *in.Name).WithNext("use 1 to 64 letters, digits, spaces and - . _ / + : ( )")
		}
		p.Name = *in.Name
	}
	if in.ResourceGroup != nil {
		if *in.ResourceGroup != "" {
			if _, err := s.d.Store.GetResourceGroup(ctx, *in.ResourceGroup); store.Missing(err) {
				return authz.NotFound(groupNoun, *in.ResourceGroup)
			} else if err != nil {
				return fmt.Errorf("find resource group %s: %w", *in.ResourceGroup, err)
			}
		}
		p.ResourceGroup = *in.ResourceGroup
	}
	if in.SharedMemory != nil {
		p.SharedMemory = nil
		if *in.SharedMemory != "" {
			n, err := cluster.ParseBytes(*in.SharedMemory)
			if err != nil {
				return err
			}
			p.SharedMemory = &n
		}
	}
	if in.Slots != nil {
		slots, err := s.presetSlots(ctx, in.Slots, p.ResourceGroup)
		if err != nil {
			return err
		}
		p.Slots = slots
	}
	if mem := p.Slots[cluster.SlotMem]; p.SharedMemory != nil && mem > 0 && *p.SharedMemory >= mem.Units() {
		return fault.Invalidf("the shared memory of a preset is part of its memory and must be less").
			WithNext("lower it, or give the preset more mem")
	}
	return nil
}

// usual are slots that a preset may name before an agent has them.
var usual = map[cluster.SlotName]cluster.SlotKind{"cuda.device": cluster.SlotCount, "cuda.shares": cluster.SlotCount}

// presetSlots reads the amounts of a preset. Aliases become the slots that the preset's resource group has, or the whole cluster.
func (s *Service) presetSlots(ctx context.Context, in map[string]string, group string) (cluster.Slots, error) {
	known, err := s.slotKinds(ctx)
	if err != nil {
		return nil, err
	}
	if in, err = s.realSlots(ctx, in, known, group); err != nil {
		return nil, err
	}
	out := cluster.Slots{}
	for name, text := range in {
		kind, there := known[cluster.SlotName(name)]
		if !there {
			kind, there = usual[cluster.SlotName(name)]
		}
		if !there {
			return nil, fault.Invalidf("no agent has a slot called %.80q", name).WithNext("use one of GET /config/resource-slots")
		}
		amount, err := cluster.ParseAmount(kind, text)
		if err != nil {
			return nil, err
		}
		if amount > 0 {
			out[cluster.SlotName(name)] = amount
		}
	}
	for _, must := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
		if out[must] <= 0 {
			return nil, fault.Invalidf("a preset needs some %s", must).WithNext("give it at least cpu and mem")
		}
	}
	return out, nil
}

// realSlots replaces aliases in the amounts of a preset.
func (s *Service) realSlots(ctx context.Context, in map[string]string, known map[cluster.SlotName]cluster.SlotKind,
	group string) (map[string]string, error) {
	aliases, err := ReadAliases(ctx, s.d.Store)
	if err != nil {
		return nil, err
	}
	o := Offer{Group: group, Slots: known}
	if group != "" && len(aliases.Named(o, slices.Collect(maps.Keys(in)))) > 0 {
		agents, err := s.d.Store.LargestAgents(ctx, []string{group})
		if err != nil {
			return nil, fmt.Errorf("read agents of resource group %s: %w", group, err)
		}
		kinds := make([]map[string]string, len(agents))
		for i, a := range agents {
			kinds[i] = a.SlotKinds
		}
		o.Slots = cluster.AgreedKinds(kinds)
	}
	return aliases.Real(in, o)
}

// GroupUse is the use of one resource group. Remaining is what the actor could still have there.
type GroupUse struct{ Using, Remaining cluster.Slots }

// PresetCheck tells what the actor could start. Absent slots of limits and of what remains below them are unlimited.
type PresetCheck struct {
	KeypairLimits, KeypairUsing, KeypairRemaining cluster.Slots
	// GroupLimits and the like are the project's; hidden tells not to show them.
	GroupLimits, GroupUsing, GroupRemaining cluster.Slots
	GroupHidden                             bool
	// Remaining is of the chosen resource groups together.
	Remaining      cluster.Slots
	ResourceGroups map[string]GroupUse
	Presets        []Preset
}

// settingHideProjects hides from members what their projects together may use and do use.
const settingHideProjects = "hide-project-resources"

// SetProjectResourcesHidden shows or hides the totals of projects in preset checks of those who do not administrate them (superadmins).
func (s *Service) SetProjectResourcesHidden(ctx context.Context, a authz.Actor, hidden bool) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "cluster.hide-project-resources", "")
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "hide the resources of projects"); err != nil {
		return err
	}
	raw, _ := json.Marshal(hidden) // a boolean always encodes
	if err := s.d.Store.SetSetting(ctx, settingHideProjects, raw); err != nil {
		return fmt.Errorf("store setting %s: %w", settingHideProjects, err)
	}
	return nil
}

// CheckPresets tells which presets would fit now, for a project and a resource group ("" is every allowed one): within what remains of the
// keypair's, the user's, the project's and the domain's limits, and on one agent.
func (s *Service) CheckPresets(ctx context.Context, a authz.Actor, project, resourceGroup string) (PresetCheck, error) {
	if err := authz.Authenticated(a); err != nil {
		return PresetCheck{}, err
	}
	if project == "" {
		project = tenancy.Default
	}
	p, err := s.d.Tenancy.FindProject(ctx, project, a.Domain)
	if err != nil {
		return PresetCheck{}, err
	}
	if err := authz.Projects.Check(a, authz.See, tenancy.ProjectObject(p, project)); err != nil {
		return PresetCheck{}, err
	}
	groups, err := s.Usable(ctx, a, cluster.ProjectID(p.ID))
	if err != nil {
		return PresetCheck{}, err
	}
	names, whole := []string{}, map[string]bool{}
	for _, g := range groups {
		if resourceGroup == "" || g.Name == resourceGroup {
			names = append(names, g.Name)
			policy, err := scheduler.ParseGroup(g.Name, g.Scheduler, g.SchedulerOpts)
			whole[g.Name] = err == nil && policy.WholeDevices
		}
	}
	if resourceGroup != "" && len(names) == 0 {
		return PresetCheck{}, authz.NotFound(groupNoun, resourceGroup)
	}
	c := PresetCheck{ResourceGroups: map[string]GroupUse{}}
	if c.GroupHidden, err = s.hidesProjects(ctx, a, p, project); err != nil {
		return c, err
	}
	if err := s.checkLimits(ctx, a, p, &c); err != nil {
		return c, err
	}
	rooms, err := s.checkRooms(ctx, names, &c)
	if err != nil {
		return c, err
	}
	offered := []string{}
	if resourceGroup != "" {
		offered = names
	}
	if c.Presets, err = s.presets(ctx, false, offered); err != nil {
		return c, err
	}
	for i := range c.Presets {
		preset := &c.Presets[i]
		if !within(preset.Slots, c.KeypairRemaining) {
			continue
		}
		if preset.Allocatable, err = s.fitsOne(ctx, preset.Slots, rooms, whole); err != nil {
			return c, err
		}
	}
	return c, nil
}

// checkLimits fills in limits and use of the owner and of the tenants above.
func (s *Service) checkLimits(ctx context.Context, a authz.Actor, p dbgen.Project, c *PresetCheck) error {
	limits, err := s.d.Store.OwnerLimits(ctx, string(a.AccessKey))
	if err != nil {
		return fmt.Errorf("read limits of keypair %s: %w", a.AccessKey, err)
	}
	domain, err := s.d.Store.GetDomain(ctx, p.DomainName)
	if err != nil {
		return fmt.Errorf("read domain %s: %w", p.DomainName, err)
	}
	slots, err := s.slotKinds(ctx)
	if err != nil {
		return err
	}
	use, err := s.d.Store.LiveUse(ctx, string(a.UserID), string(a.AccessKey), p.ID, p.DomainName)
	if err != nil {
		return fmt.Errorf("sum up use: %w", err)
	}
	byUser, byKeypair, byProject, byDomain := cluster.Slots{}, cluster.Slots{}, cluster.Slots{}, cluster.Slots{}
	for _, r := range use {
		for _, x := range []struct {
			to     cluster.Slots
			amount int64
		}{{byUser, r.ByUser}, {byKeypair, r.ByKeypair}, {byProject, r.ByProject}, {byDomain, r.ByDomain}} {
			if x.amount != 0 {
				x.to[cluster.SlotName(r.Slot)] = cluster.Amount(x.amount)
			}
		}
	}
	listed := func(limit cluster.Slots, only bool) cluster.Slots {
		out := limit.Clone()
		if out == nil {
			out = cluster.Slots{}
		}
		if only { // what such a policy does not list is not allowed at all
			for name := range slots {
				if _, ok := out[name]; !ok {
					out[name] = 0
				}
			}
		}
		return out
	}
	user, keypair := listed(limits.UserSlots, limits.UserListedOnly), listed(limits.KeypairSlots, limits.KeypairListedOnly)
	c.KeypairLimits, c.KeypairUsing = keypair, byKeypair
	if limits.IsMain {
		c.KeypairLimits, c.KeypairUsing = user, byUser
	}
	c.GroupLimits, c.GroupUsing = listed(p.TotalResourceSlots, false), byProject
	c.GroupRemaining = less(left(c.GroupLimits, byProject), left(domain.TotalResourceSlots, byDomain))
	c.KeypairRemaining = less(left(user, byUser), c.GroupRemaining)
	if !limits.IsMain {
		c.KeypairRemaining = less(c.KeypairRemaining, left(keypair, byKeypair))
	}
	return nil
}

// left is what remains below limits; slots without a limit are absent.
func left(limits, using cluster.Slots) cluster.Slots {
	out := cluster.Slots{}
	for slot, limit := range limits {
		out[slot] = scheduler.Left(limit, using[slot])
	}
	return out
}

// less is the smaller of two remainders, where an absent slot is unlimited.
func less(a, b cluster.Slots) cluster.Slots {
	out := a.Clone()
	for slot, v := range b {
		if had, ok := out[slot]; !ok || v < had {
			out[slot] = v
		}
	}
	return out
}

// within reports whether the slots stay within what remains; an absent slot is unlimited.
func within(want, remaining cluster.Slots) bool {
	for slot, v := range remaining {
		if scheduler.Exceeds(v, 0, want[slot]) {
			return false
		}
	}
	return true
}

// room is what an agent has left.
type room struct {
	agent, group string
	free         cluster.Slots
}

// checkRooms fills in the use of resource groups and returns what every usable agent has left. What remains of a group is shown within the
// limits: nobody can have more.
func (s *Service) checkRooms(ctx context.Context, names []string, c *PresetCheck) ([]room, error) {
	rows, err := s.d.Store.RoomOfAgents(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	for _, n := range names {
		c.ResourceGroups[n] = GroupUse{Using: cluster.Slots{}, Remaining: cluster.Slots{}}
	}
	c.Remaining = cluster.Slots{}
	rooms := make([]room, 0, len(rows))
	for _, r := range rows {
		var occupied cluster.Slots
		if err := json.Unmarshal(r.Occupied, &occupied); err != nil {
			return nil, fmt.Errorf("read what agent %s holds: %w", r.ID, err)
		}
		u := c.ResourceGroups[r.ResourceGroup]
		for slot, v := range occupied {
			u.Using[slot] += v
		}
		if !r.Usable {
			continue
		}
		free := make(cluster.Slots, len(r.Capacity))
		for slot, v := range r.Capacity {
			free[slot] = max(v-occupied[slot], 0)
			u.Remaining[slot] += free[slot]
			c.Remaining[slot] += free[slot]
		}
		rooms = append(rooms, room{r.ID, r.ResourceGroup, free})
	}
	bound := func(s cluster.Slots) {
		for slot, v := range s {
			if most, limited := c.KeypairRemaining[slot]; limited && most < v {
				s[slot] = most
			}
		}
	}
	bound(c.Remaining)
	for _, u := range c.ResourceGroups {
		bound(u.Remaining)
	}
	return rooms, nil
}

// deviceBatch is the number of agents whose devices are read at once.
const deviceBatch = 100

// fitsOne reports whether one agent has room. Where devices are more than a sum (fractions, shares), they are asked; in groups of
// whole, a fraction lies on one device.
func (s *Service) fitsOne(ctx context.Context, want cluster.Slots, rooms []room, whole map[string]bool) (bool, error) {
	var roomy []string
	uncut := map[string]bool{}
	for _, r := range rooms {
		if !r.free.Covers(want) {
			continue
		}
		if !needsDevices(want) {
			return true, nil
		}
		roomy = append(roomy, r.agent)
		uncut[r.agent] = whole[r.group]
	}
	for batch := range slices.Chunk(roomy, deviceBatch) {
		rows, err := s.d.Store.DevicesOfAgents(ctx, batch)
		if err != nil {
			return false, fmt.Errorf("read devices: %w", err)
		}
		for _, r := range rows {
			var devices []alloc.Device
			var held []alloc.Allocation
			if err := json.Unmarshal(r.Devices, &devices); err != nil {
				return false, fmt.Errorf("read devices of agent %s: %w", r.ID, err)
			}
			if err := json.Unmarshal(r.Allocations, &held); err != nil {
				return false, fmt.Errorf("read what kernels hold on agent %s: %w", r.ID, err)
			}
			var used alloc.Allocation
			for _, one := range held {
				used = used.Add(one)
			}
			if _, err := alloc.Fit(devices, used, want, alloc.Policy{NoFragment: uncut[r.ID]}); err == nil {
				return true, nil
			}
		}
	}
	return false, nil
}

// needsDevices reports whether free amounts do not add up: parts of devices may lie on several.
func needsDevices(want cluster.Slots) bool {
	for slot, v := range want {
		if slot != cluster.SlotCPU && slot != cluster.SlotMem && (v%cluster.Milli != 0 || strings.HasSuffix(string(slot), ".shares")) {
			return true
		}
	}
	return false
}

// RecalculateUsage compares what agents hold with what they have (superadmins). Occupancy is derived from live kernels at
// every look, so there is nothing to correct; it returns the agents that hold more than they have, which would be a fault.
func (s *Service) RecalculateUsage(ctx context.Context, a authz.Actor) ([]cluster.AgentID, error) {
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "recalculate usage"); err != nil {
		return nil, err
	}
	groups, err := s.d.Store.ListResourceGroups(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	names := make([]string, len(groups))
	for i, g := range groups {
		names[i] = g.Name
	}
	rows, err := s.d.Store.RoomOfAgents(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	over := []cluster.AgentID{}
	for _, r := range rows {
		var occupied cluster.Slots
		if err := json.Unmarshal(r.Occupied, &occupied); err != nil {
			return nil, fmt.Errorf("read what agent %s holds: %w", r.ID, err)
		}
		if short := r.Capacity.Shortfall(occupied); len(short) > 0 {
			s.d.Log.Error("an agent holds more than it has", "agent", r.ID, "over", short.Wire())
			over = append(over, cluster.AgentID(r.ID))
		}
	}
	return over, nil
}
