package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// maxGroupOptions bounds the options of a group in bytes of JSON.
const maxGroupOptions = 16 << 10

// GroupProps are what administrators set of a resource group; nil means the default when it is created
// and no change when it is modified.
type GroupProps struct {
	Description     *string
	IsActive        *bool
	IsPublic        *bool
	WsproxyAddr     *string
	WsproxyAPIToken *seal.Secret // "" removes it
	Driver          *string
	DriverOpts      map[string]any
	Scheduler       *string
	// SchedulerOpts replaces all options. SchedulerPatch changes some: a JSON merge patch, in which null removes.
	SchedulerOpts, SchedulerPatch map[string]any
	UseHostNetwork                *bool
	// EncryptedNetworks holds for sessions that are placed from then on.
	EncryptedNetworks *bool
	// Egress is what sessions may reach from inside, as cluster.ParseEgress reads it.
	Egress *string
	// Expect looks at the row before it is changed, while it is locked; its error ends the change.
	Expect func(dbgen.ResourceGroup) error
}

// CreateGroup adds a group (superadmins). It has no agents, and nobody may use it before it is associated.
func (s *Service) CreateGroup(ctx context.Context, a authz.Actor, name string, p GroupProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "resource-group.create", name)
	defer end(&err)
	if err := authz.ResourceGroups.Need(a, authz.Administer, authz.Object{}, "create resource groups"); err != nil {
		return err
	}
	if name == "" || len(name) > 64 || strings.ContainsFunc(name,
		func(r rune) bool { return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return fault.Invalidf("%q cannot be the name of a resource group", name).WithNext("use 1 to 64 characters without spaces and slashes")
	}
	return s.write(ctx, name, true, p)
}

// ModifyGroup changes a group (superadmins). A changed policy holds from the next scheduling pass on;
// sessions that run or wait stay. A changed egress policy holds for sessions that run as soon as their agents hear of it.
func (s *Service) ModifyGroup(ctx context.Context, a authz.Actor, name string, p GroupProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "resource-group.modify", name)
	defer end(&err)
	if err := authz.ResourceGroups.Need(a, authz.Administer, authz.Object{}, "change resource groups"); err != nil {
		return err
	}
	return s.write(ctx, name, false, p)
}

func (s *Service) write(ctx context.Context, name string, create bool, p GroupProps) error {
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if create {
			n, err := tx.InsertResourceGroup(ctx, name)
			if err != nil {
				return fmt.Errorf("create resource group %s: %w", name, err)
			}
			if n == 0 {
				return fault.Conflictf("resource group %s exists already", name).WithNext("choose another name, or modify it")
			}
		}
		row, err := tx.LockResourceGroup(ctx, name)
		if store.Missing(err) {
			return authz.NotFound(groupNoun, name)
		}
		if err != nil {
			return fmt.Errorf("find resource group %s: %w", name, err)
		}
		egress := row.Egress
		if p.Expect != nil {
			if err := p.Expect(row); err != nil {
				return err
			}
		}
		if err := s.setGroup(&row, p); err != nil {
			return err
		}
		err = tx.UpdateResourceGroup(ctx, dbgen.UpdateResourceGroupParams{
			Name: row.Name, Description: row.Description, IsActive: row.IsActive, IsPublic: row.IsPublic, Driver: row.Driver,
			DriverOpts: row.DriverOpts,
			Scheduler:  row.Scheduler, SchedulerOpts: row.SchedulerOpts, UseHostNetwork: row.UseHostNetwork, WsproxyAddr: row.WsproxyAddr,
			WsproxyApiTokenSealed: row.WsproxyApiTokenSealed, Egress: row.Egress,
			EncryptedNetworks: row.EncryptedNetworks,
		})
		if err != nil {
			return fmt.Errorf("change resource group %s: %w", name, err)
		}
		if row.Egress != egress { // for sessions that run, too
			agents, err := tx.AgentsOfGroupSessions(ctx, name)
			if err != nil {
				return fmt.Errorf("look for agents with sessions of resource group %s: %w", name, err)
			}
			for _, a := range agents {
				tx.Wake(store.AgentTopic(a))
			}
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
}

// setGroup applies the properties to a row after checking them.
func (s *Service) setGroup(g *dbgen.ResourceGroup, p GroupProps) error {
	store.Set(&g.IsActive, p.IsActive)
	store.Set(&g.IsPublic, p.IsPublic)
	store.Set(&g.UseHostNetwork, p.UseHostNetwork)
	store.Set(&g.EncryptedNetworks, p.EncryptedNetworks)
	store.Set(&g.Driver, p.Driver)
	if p.Egress != nil {
		e, err := cluster.ParseEgress(*p.Egress)
		if err != nil {
			return fmt.Errorf("check the egress policy of resource group %s: %w", g.Name, err)
		}
		g.Egress = e.String()
	}
	if g.UseHostNetwork && g.Egress != "open" {
		return fault.Invalidf("sessions of resource group %s cannot run in the network of their hosts and have the egress policy %s",
			g.Name, g.Egress).
			WithNext("choose one: no rule of an agent holds what runs in its host's network")
	}
	if g.UseHostNetwork && g.EncryptedNetworks {
		return fault.Invalidf("sessions of resource group %s cannot run in the network of their hosts and have encrypted networks", g.Name).
			WithNext("choose one: nothing is encrypted in the network of hosts")
	}
	if err := setPolicy(g, p); err != nil {
		return err
	}
	if p.Description != nil {
		g.Description = p.Description
	}
	if g.Description != nil && len(*g.Description) > 512 {
		return fault.Invalidf("the description has more than 512 bytes")
	}
	if g.Driver != "static" {
		return fault.Invalidf("%q is not a driver of resource groups", g.Driver).WithNext("use static")
	}
	if p.WsproxyAddr != nil {
		if g.WsproxyAddr = store.Optional(*p.WsproxyAddr); g.WsproxyAddr != nil {
			u, err := url.Parse(*g.WsproxyAddr)
			if err != nil || len(*g.WsproxyAddr) > 2048 || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil {
				return fault.Invalidf("wsproxy_addr %q is not an address", *g.WsproxyAddr).WithNext("use an http or https address without a user name")
			}
		}
	}
	if p.WsproxyAPIToken != nil {
		g.WsproxyApiTokenSealed = nil
		if p.WsproxyAPIToken.Reveal() != "" {
			sealed, err := s.d.Seal.Seal(*p.WsproxyAPIToken, tokenPurpose(g.Name))
			if err != nil {
				return fmt.Errorf("seal the token of resource group %s: %w", g.Name, err)
			}
			g.WsproxyApiTokenSealed = sealed
		}
	}
	if p.DriverOpts != nil {
		g.DriverOpts = p.DriverOpts
	}
	for name, opts := range map[string]map[string]any{"driver_opts": g.DriverOpts, "scheduler_opts": g.SchedulerOpts} {
		raw, err := json.Marshal(opts)
		if err != nil || len(raw) > maxGroupOptions {
			return fault.Invalidf("%s is larger than %d KiB", name, maxGroupOptions>>10)
		}
	}
	return nil
}

// The members of scheduler_opts that hold the options of a policy.
const (
	orderOptions     = "config"
	placement        = "agent_selection_strategy"
	placementOptions = "agent_selector_config"
)

// setPolicy applies what the properties say about scheduling. Options of a policy that the next one does not know go
// with it; what an earlier version took does not keep the rest of a group from being changed.
func setPolicy(g *dbgen.ResourceGroup, p GroupProps) error {
	if p.Scheduler == nil && p.SchedulerOpts == nil && p.SchedulerPatch == nil {
		return nil
	}
	base := maps.Clone(map[string]any(g.SchedulerOpts))
	if p.SchedulerOpts != nil {
		base = p.SchedulerOpts
	}
	var leaving []string
	if p.Scheduler != nil && *p.Scheduler != g.Scheduler && p.SchedulerOpts == nil {
		leaving = append(leaving, orderOptions)
	}
	if next, ok := p.SchedulerPatch[placement]; ok && next != base[placement] {
		leaving = append(leaving, placementOptions)
	}
	store.Set(&g.Scheduler, p.Scheduler)
	g.SchedulerOpts = mergePatch(base, p.SchedulerPatch)
	parsed, err := scheduler.ParseGroup(g.Name, g.Scheduler, g.SchedulerOpts)
	for _, name := range leaving {
		if err != nil {
			delete(base, name)
			g.SchedulerOpts = mergePatch(base, p.SchedulerPatch)
			parsed, err = scheduler.ParseGroup(g.Name, g.Scheduler, g.SchedulerOpts)
		}
	}
	if slices.Contains(leaving, orderOptions) { // those of the order before go with it
		if delete(g.SchedulerOpts, orderOptions); len(parsed.OrderOptions) > 0 {
			g.SchedulerOpts[orderOptions] = parsed.OrderOptions
		}
	}
	if err != nil {
		return fmt.Errorf("check the scheduling policy of resource group %s: %w", g.Name, err)
	}
	return nil
}

// mergePatch applies a JSON merge patch (RFC 7396) and changes neither argument.
func mergePatch(old, patch map[string]any) map[string]any {
	out := make(map[string]any, len(old)+len(patch))
	for k, v := range old {
		out[k] = v
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case map[string]any:
			inner, _ := out[k].(map[string]any)
			out[k] = mergePatch(inner, v)
		default:
			out[k] = v
		}
	}
	return out
}

// DeleteGroup removes a group that nothing names any more (superadmins).
func (s *Service) DeleteGroup(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "resource-group.delete", name)
	defer end(&err)
	if err := authz.ResourceGroups.Need(a, authz.Administer, authz.Object{}, "delete resource groups"); err != nil {
		return err
	}
	if name == DefaultGroup {
		return fault.Conflictf("resource group %s is where new agents come to and stays", name).WithNext("make it inactive instead")
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.LockResourceGroup(ctx, name); err != nil {
			if store.Missing(err) {
				return authz.NotFound(groupNoun, name)
			}
			return fmt.Errorf("find resource group %s: %w", name, err)
		}
		uses, err := tx.ResourceGroupUses(ctx, name)
		if err != nil {
			return fmt.Errorf("look who uses resource group %s: %w", name, err)
		}
		if uses.Agents+uses.LiveSessions+uses.EndedSessions > 0 {
			return fault.Conflictf("resource group %s is named by %d agents, %d live and %d ended sessions", name, uses.Agents, uses.LiveSessions,
				uses.EndedSessions).
				WithNext("make it inactive instead; what is recorded about ended sessions keeps its name")
		}
		if _, err := tx.DeleteResourceGroup(ctx, name); err != nil {
			return fmt.Errorf("delete resource group %s: %w", name, err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
}

// GroupUser is who may use a resource group: exactly one of the fields.
type GroupUser struct {
	Domain  string
	Project cluster.ProjectID
	Keypair cluster.AccessKey
}

// AssociateGroup lets somebody use a group (superadmins). It may be done twice.
func (s *Service) AssociateGroup(ctx context.Context, a authz.Actor, name string, u GroupUser) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "resource-group.associate", name)
	defer end(&err)
	if err := authz.ResourceGroups.Need(a, authz.Administer, authz.Object{}, "associate resource groups"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.LockResourceGroup(ctx, name); err != nil {
			if store.Missing(err) {
				return authz.NotFound(groupNoun, name)
			}
			return fmt.Errorf("find resource group %s: %w", name, err)
		}
		var err error
		switch {
		case u.Domain != "":
			err = associated(tx.AllowGroupForDomain(ctx, name, u.Domain), "domain", u.Domain)
		case u.Project != "":
			err = associated(tx.AllowGroupForProject(ctx, name, string(u.Project)), projectNoun, string(u.Project))
		case u.Keypair != "":
			err = associated(tx.AllowGroupForKeypair(ctx, name, string(u.Keypair)), "keypair", string(u.Keypair))
		default:
			return fault.Invalidf("nobody is named whom the resource group is for")
		}
		tx.Wake(store.TopicSchedule)
		return err
	})
}

// associated turns a reference to somebody unknown into NotFound.
func associated(err error, noun, name string) error {
	switch {
	case store.Dangling(err):
		return authz.NotFound(noun, name)
	case err != nil:
		return fmt.Errorf("associate %s %s: %w", noun, name, err)
	}
	return nil
}

// DisassociateGroup takes a group, or with an empty name all groups, away from somebody (superadmins). What
// runs or waits there goes on.
func (s *Service) DisassociateGroup(ctx context.Context, a authz.Actor, name string, u GroupUser) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "resource-group.disassociate", name)
	defer end(&err)
	if err := authz.ResourceGroups.Need(a, authz.Administer, authz.Object{}, "associate resource groups"); err != nil {
		return err
	}
	var n int64
	var who string
	switch group := store.Optional(name); {
	case u.Domain != "":
		who = "domain " + u.Domain
		n, err = s.d.Store.DisallowGroupForDomain(ctx, u.Domain, group)
	case u.Project != "":
		who = "project " + string(u.Project)
		n, err = s.d.Store.DisallowGroupForProject(ctx, string(u.Project), group)
	case u.Keypair != "":
		who = "keypair " + string(u.Keypair)
		n, err = s.d.Store.DisallowGroupForKeypair(ctx, string(u.Keypair), group)
	default:
		return fault.Invalidf("nobody is named whom the resource group is taken from")
	}
	if err != nil {
		return fmt.Errorf("take resource groups from %s: %w", who, err)
	}
	if n == 0 && name != "" {
		return fault.NotFoundf("resource group %s is not associated with %s", name, who)
	}
	s.d.Store.Wake(store.TopicSchedule)
	return nil
}
