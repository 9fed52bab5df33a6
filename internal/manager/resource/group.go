package resource

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/scheduler"
)

// Group is a set of agents with one scheduling policy.
type Group struct {
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
	// Egress is what sessions may reach from inside, as cluster.Egress writes it.
	Egress string
	// EncryptedNetworks: networks of sessions that begin are carried in encrypted tunnels between agents.
	EncryptedNetworks bool
}

// AllSchedulerOpts are SchedulerOpts with the defaults of the options that they leave out.
func (g *Group) AllSchedulerOpts() map[string]any {
	all := scheduler.DefaultOptions()
	maps.Copy(all, g.SchedulerOpts)
	return all
}

func groupView(r dbgen.ResourceGroup) *Group {
	placement := ""
	if p, err := scheduler.ParseGroup(r.Name, r.Scheduler, r.SchedulerOpts); err == nil {
		placement = cmp.Or(p.Placement, scheduler.Placements()[0])
	}
	return &Group{Placement: placement, Name: r.Name, Description: r.Description, IsActive: r.IsActive, IsPublic: r.IsPublic,
		CreatedAt:   r.CreatedAt.UTC(),
		WsproxyAddr: r.WsproxyAddr, Driver: r.Driver, DriverOpts: r.DriverOpts, Scheduler: r.Scheduler, SchedulerOpts: r.SchedulerOpts,
		UseHostNetwork: r.UseHostNetwork, Egress: r.Egress, EncryptedNetworks: r.EncryptedNetworks}
}

// AllowedGroups lists the active groups that the actor may use with a project (name or id; "" is any of the actor's).
func (s *Service) AllowedGroups(ctx context.Context, a authz.Actor, project string) ([]*Group, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if project != "" {
		p, err := s.d.Tenancy.FindProject(ctx, project, a.Domain)
		if err != nil {
			return nil, err
		}
		if err := authz.Projects.Check(a, authz.See, tenancy.ProjectObject(p, project)); err != nil {
			return nil, err
		}
		a.Projects = []cluster.ProjectID{cluster.ProjectID(p.ID)}
	}
	rows, err := s.groups(ctx, a, authz.Use)
	if err != nil {
		return nil, err
	}
	out := make([]*Group, len(rows))
	for i, r := range rows {
		out[i] = groupView(r)
	}
	return out, nil
}

// ListGroups lists all groups for superadmins and monitors, allowed ones otherwise; active nil means both.
func (s *Service) ListGroups(ctx context.Context, a authz.Actor, active *bool) ([]*Group, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	rows, err := s.groups(ctx, a, authz.See)
	if err != nil {
		return nil, err
	}
	out := []*Group{}
	for _, r := range rows {
		if active == nil || r.IsActive == *active {
			out = append(out, groupView(r))
		}
	}
	return out, nil
}

// Usable are the groups that sessions of an owner may use with the project that is the owner's only one here.
func (s *Service) Usable(ctx context.Context, owner authz.Actor, project cluster.ProjectID) ([]dbgen.ResourceGroup, error) {
	if err := authz.Authenticated(owner); err != nil {
		return nil, err
	}
	owner.Projects = []cluster.ProjectID{project}
	return s.groups(ctx, owner, authz.Use)
}

// groups are those with which the actor may do it, by name.
func (s *Service) groups(ctx context.Context, a authz.Actor, v authz.Verb) ([]dbgen.ResourceGroup, error) {
	var args []any
	arg := func(x any) string { args = append(args, x); return fmt.Sprintf("$%d", len(args)) }
	sql := "SELECT g.* FROM " + facts.ResourceGroups.From + " WHERE " + facts.ResourceGroups.Where(a, v, arg) + " ORDER BY g.name"
	rows, err := s.d.Store.DB().Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dbgen.ResourceGroup])
	if err != nil {
		return nil, fmt.Errorf("read resource groups: %w", err)
	}
	return out, nil
}

// GetGroup returns a group that the actor may use or administrate.
func (s *Service) GetGroup(ctx context.Context, a authz.Actor, name string) (*Group, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	all, err := s.ListGroups(ctx, a, nil)
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

// Takes reports whether a resource group runs sessions of a type.
func Takes(g dbgen.ResourceGroup, t cluster.SessionType) bool {
	return slices.Contains(SessionTypes(g), t)
}

// SessionTypes are the session types that a resource group runs.
func SessionTypes(g dbgen.ResourceGroup) []cluster.SessionType {
	policy, err := scheduler.ParseGroup(g.Name, g.Scheduler, g.SchedulerOpts)
	if err != nil || len(policy.Types) == 0 { // the scheduler goes on with an earlier policy then, and says so
		return []cluster.SessionType{cluster.Interactive, cluster.Batch, cluster.Inference}
	}
	return policy.Types
}

// SchedulingPolicies are the names that resource groups can choose from, for everybody who is known.
func (s *Service) SchedulingPolicies(_ context.Context, a authz.Actor) (orders, placements []string, err error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, nil, err
	}
	return scheduler.Orders(), scheduler.Placements(), nil
}

// HostNetwork reports whether sessions of a group may run in the network of their hosts. No egress policy could be kept there.
func HostNetwork(g dbgen.ResourceGroup) bool { return g.UseHostNetwork && g.Egress == "open" }
