package service

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// ResourceGroup is a set of agents with one scheduling policy.
type ResourceGroup struct {
	Name          string
	Description   *string
	IsActive      bool
	IsPublic      bool
	CreatedAt     time.Time
	WsproxyAddr   *string
	Driver        string
	DriverOpts    map[string]any
	Scheduler     string
	SchedulerOpts map[string]any
	// Placement is the policy that SchedulerOpts mean; "" when they cannot be used.
	Placement      string
	UseHostNetwork bool
}

const groupNoun = "scaling group"

func groupView(r dbgen.ResourceGroup) *ResourceGroup {
	placement := ""
	if p, err := scheduler.ParseGroup(r.Name, r.Scheduler, r.SchedulerOpts); err == nil {
		placement = cmp.Or(p.Placement, scheduler.Placements()[0])
	}
	return &ResourceGroup{Placement: placement, Name: r.Name, Description: r.Description, IsActive: r.IsActive, IsPublic: r.IsPublic, CreatedAt: r.CreatedAt.UTC(),
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
