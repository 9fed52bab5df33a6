package apply

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

// The properties of rows.

func domain(r dbgen.Domain) plan.Attrs {
	return plan.Attrs{"description": store.Value(r.Description), "active": plan.Flag(r.IsActive), "total": plan.Amounts(r.TotalResourceSlots),
		"registries": plan.List(r.AllowedDockerRegistries), "folder_hosts": plan.Hosts(r.AllowedVfolderHosts)}
}

func project(r dbgen.Project) plan.Attrs {
	return plan.Attrs{"type": r.Type, "description": store.Value(r.Description), "active": plan.Flag(r.IsActive),
		"total": plan.Amounts(r.TotalResourceSlots), "folder_hosts": plan.Hosts(r.AllowedVfolderHosts), "policy": r.ResourcePolicy}
}

func user(r dbgen.User) plan.Attrs {
	return plan.Attrs{"username": r.Username, "full_name": r.FullName, "description": r.Description, "role": r.Role, "status": r.Status,
		"policy": r.ResourcePolicy, "allowed_from": plan.List(r.AllowedClientIp)}
}

func group(r dbgen.ResourceGroup) plan.Attrs {
	return plan.Attrs{"description": store.Value(r.Description), "active": plan.Flag(r.IsActive), "public": plan.Flag(r.IsPublic),
		"scheduler": r.Scheduler, "egress": r.Egress}
}

func keypairPolicy(r dbgen.KeypairResourcePolicy) plan.Attrs {
	unlimited := func(n *int32) string {
		if n == nil {
			return "-1"
		}
		return plan.Count(int64(*n))
	}
	return plan.Attrs{"unlisted": strings.ToLower(r.DefaultForUnspecified), "resources": plan.Amounts(r.TotalResourceSlots),
		"waiting_resources": plan.Amounts(r.MaxPendingSessionResourceSlots), "max_sessions": plan.Count(int64(r.MaxConcurrentSessions)),
		"max_sftp_sessions": plan.Count(int64(r.MaxConcurrentSftpSessions)), "max_containers": plan.Count(int64(r.MaxContainersPerSession)),
		"max_waiting": unlimited(r.MaxPendingSessionCount), "max_priority": unlimited(r.MaxPriority),
		"max_life": plan.Count(int64(r.MaxSessionLifetime)), "idle_timeout": plan.Count(r.IdleTimeout),
		"folder_hosts": plan.Hosts(r.AllowedVfolderHosts)}
}

func userPolicy(r dbgen.UserResourcePolicy) plan.Attrs {
	return plan.Attrs{"max_folders": plan.Count(int64(r.MaxVfolderCount)), "max_folder_bytes": plan.Count(r.MaxQuotaScopeSize),
		"max_images": plan.Count(int64(r.MaxCustomizedImageCount)), "max_replicas": plan.Count(int64(r.MaxSessionCountPerModelSession))}
}

func projectPolicy(r dbgen.ProjectResourcePolicy) plan.Attrs {
	return plan.Attrs{"max_folders": plan.Count(int64(r.MaxVfolderCount)), "max_folder_bytes": plan.Count(r.MaxQuotaScopeSize),
		"max_networks": plan.Count(int64(r.MaxNetworkCount))}
}

// look reads rows of a source that the actor may see (or do v with), where more conditions hold.
func look[Row any](ctx context.Context, s *Service, a authz.Actor, v authz.Verb, of facts.Source, columns, join, where string,
	args ...any) ([]Row, error) {
	b := list.Builder{Args: args}
	sql := "SELECT " + columns + " FROM " + of.From + " " + join + " WHERE " + of.Where(a, v, b.Arg) + where
	rows, err := s.d.Store.DB().Query(ctx, sql, b.Args...)
	if err != nil {
		return nil, fmt.Errorf("read the tenancy: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, fmt.Errorf("read the tenancy: %w", err)
	}
	return out, nil
}

// reading is a snapshot that grows.
type reading struct {
	*plan.Snapshot
	// users and projects by their ids
	users, projects map[string]plan.Key
}

func (r *reading) put(k plan.Key, o plan.Object) *plan.Object {
	r.Objects[k] = &o
	return &o
}

// read reads what is there of a domain, or ("") of all. Policies and resource groups are read for whoever may name them.
func (s *Service) read(ctx context.Context, a authz.Actor, only string, policies bool) (*plan.Snapshot, error) {
	r := &reading{Snapshot: &plan.Snapshot{Objects: map[plan.Key]*plan.Object{}, Permissions: s.d.Permissions}, users: map[string]plan.Key{},
		projects: map[string]plan.Key{}}
	kinds, err := s.d.Store.SlotKinds(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kinds of slots: %w", err)
	}
	r.Slots = cluster.AgreedKinds(kinds)
	if r.Orders, _, err = s.d.Resources.SchedulingPolicies(ctx, a); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context, *reading, authz.Actor, string) error{s.readDomains, s.readProjects, s.readUsers,
		s.readMembers, s.readHeld} {
		if err := part(ctx, r, a, only); err != nil {
			return nil, err
		}
	}
	if !policies {
		return r.Snapshot, nil
	}
	if err := s.readPolicies(ctx, r, a); err != nil {
		return nil, err
	}
	if only != "" {
		return r.Snapshot, nil
	}
	return r.Snapshot, s.readGroups(ctx, r, a)
}

func (s *Service) readDomains(ctx context.Context, r *reading, a authz.Actor, only string) error {
	rows, err := look[dbgen.Domain](ctx, s, a, authz.See, facts.Domains, "d.*", "", " AND ($1 = '' OR d.name = $1)", only)
	for _, d := range rows {
		r.put(plan.Key{Kind: plan.Domain, Name: d.Name}, plan.Object{Attrs: domain(d)})
	}
	return err
}

func (s *Service) readProjects(ctx context.Context, r *reading, a authz.Actor, only string) error {
	rows, err := look[dbgen.Project](ctx, s, a, authz.SeeMembers, facts.Projects, "p.*", "", " AND ($1 = '' OR p.domain_name = $1)", only)
	for _, p := range rows {
		k := plan.Key{Kind: plan.Project, Domain: p.DomainName, Name: p.Name}
		r.projects[p.ID] = k
		r.put(k, plan.Object{Attrs: project(p), Members: map[string]string{}})
	}
	return err
}

func (s *Service) readUsers(ctx context.Context, r *reading, a authz.Actor, only string) error {
	type row struct {
		dbgen.User
		Policy *string
	}
	rows, err := look[row](ctx, s, a, authz.See, facts.Users, "u.*, m.resource_policy",
		"LEFT JOIN keypairs m ON m.access_key = u.main_access_key", " AND ($1 = '' OR u.domain_name = $1) ORDER BY u.email LIMIT $2", only,
		maxUsers+1)
	if err != nil {
		return err
	}
	if len(rows) > maxUsers {
		return fault.Exhaustedf("there are more than %d users", maxUsers).WithNext("work on one domain, as its administrator or with --domain")
	}
	for _, u := range rows {
		k := plan.Key{Kind: plan.User, Name: u.Email}
		o := r.put(k, plan.Object{Attrs: user(u.User), Domain: u.DomainName, MainKey: store.Value(u.MainAccessKey), Service: u.IsService})
		o.Attrs["keypair_policy"] = store.Value(u.Policy)
		r.users[u.ID] = k
	}
	return nil
}

func (s *Service) readMembers(ctx context.Context, r *reading, a authz.Actor, only string) error {
	type row struct {
		Project, User string
		Admin         bool
	}
	rows, err := look[row](ctx, s, a, authz.SeeMembers, facts.Projects, "m.project_id::text, m.user_id::text, m.is_admin",
		"JOIN project_members m ON m.project_id = p.id", " AND ($1 = '' OR p.domain_name = $1)", only)
	for _, m := range rows {
		who, seen := r.users[m.User]
		if p := r.Objects[r.projects[m.Project]]; p != nil && seen { // whom the actor does not see stays
			p.Members[who.Name] = rank(m.Admin)
		}
	}
	return err
}

func (s *Service) readPolicies(ctx context.Context, r *reading, a authz.Actor) error {
	keypairs, err := look[dbgen.KeypairResourcePolicy](ctx, s, a, authz.See, facts.KeypairPolicies, "p.*", "", "")
	if err != nil {
		return err
	}
	for _, p := range keypairs {
		r.put(plan.Key{Kind: plan.KeypairPolicy, Name: p.Name}, plan.Object{Attrs: keypairPolicy(p)})
	}
	users, err := look[dbgen.UserResourcePolicy](ctx, s, a, authz.See, facts.UserPolicies, "p.*", "", "")
	if err != nil {
		return err
	}
	for _, p := range users {
		r.put(plan.Key{Kind: plan.UserPolicy, Name: p.Name}, plan.Object{Attrs: userPolicy(p)})
	}
	projects, err := look[dbgen.ProjectResourcePolicy](ctx, s, a, authz.See, facts.ProjectPolicies, "p.*", "", "")
	for _, p := range projects {
		r.put(plan.Key{Kind: plan.ProjectPolicy, Name: p.Name}, plan.Object{Attrs: projectPolicy(p)})
	}
	return err
}

func (s *Service) readGroups(ctx context.Context, r *reading, a authz.Actor) error {
	groups, err := look[dbgen.ResourceGroup](ctx, s, a, authz.See, facts.ResourceGroups, "g.*", "", "")
	if err != nil {
		return err
	}
	for _, g := range groups {
		r.put(plan.Key{Kind: plan.ResourceGroup, Name: g.Name}, plan.Object{Attrs: group(g), Allowed: map[string]bool{}})
	}
	type row struct{ Group, Who string }
	domains, err := look[row](ctx, s, a, authz.See, facts.ResourceGroups, "g.name, x.domain_name",
		"JOIN resource_groups_for_domains x ON x.resource_group = g.name", "")
	if err != nil {
		return err
	}
	for _, x := range domains {
		r.Objects[plan.Key{Kind: plan.ResourceGroup, Name: x.Group}].Allowed["domain:"+x.Who] = true
	}
	projects, err := look[row](ctx, s, a, authz.See, facts.ResourceGroups, "g.name, x.project_id::text",
		"JOIN resource_groups_for_projects x ON x.resource_group = g.name", "")
	for _, x := range projects {
		if p, ok := r.projects[x.Who]; ok {
			r.Objects[plan.Key{Kind: plan.ResourceGroup, Name: x.Group}].Allowed["project:"+p.Domain+"/"+p.Name] = true
		}
	}
	return err
}

// readHeld reads what is held of limits.
func (s *Service) readHeld(ctx context.Context, r *reading, _ authz.Actor, _ string) error {
	var users, projects, domains []string
	for id := range r.users {
		users = append(users, id)
	}
	for id, p := range r.projects {
		projects, domains = append(projects, id), append(domains, p.Domain)
	}
	hold := func(k plan.Key, slot string, amount int64) {
		if o := r.Objects[k]; o != nil {
			o.Held = o.Held.Add(cluster.Slots{cluster.SlotName(slot): cluster.Amount(amount)})
		}
	}
	slots, err := s.d.Store.LiveSlotsOfUsers(ctx, users)
	if err != nil {
		return fmt.Errorf("read what users hold: %w", err)
	}
	for _, h := range slots {
		hold(r.users[h.UserID], h.Slot, h.Amount)
	}
	tenants, err := s.d.Store.LiveSlotsOfTenants(ctx, projects, domains)
	if err != nil {
		return fmt.Errorf("read what projects hold: %w", err)
	}
	for _, h := range tenants {
		hold(r.projects[h.ProjectID], h.Slot, h.Amount)
		hold(plan.Key{Kind: plan.Domain, Name: h.DomainName}, h.Slot, h.Amount)
	}
	sessions, err := s.d.Store.LiveSessionsOfUsers(ctx, users)
	if err != nil {
		return fmt.Errorf("read the sessions of users: %w", err)
	}
	for _, h := range sessions {
		if o := r.Objects[r.users[h.UserID]]; o != nil {
			o.Sessions += int(h.Sessions)
		}
	}
	waiting, err := s.d.Store.WaitingSessionsOfOwners(ctx, users, projects, domains)
	if err != nil {
		return fmt.Errorf("count waiting sessions: %w", err)
	}
	for _, w := range waiting {
		for _, k := range []plan.Key{r.users[w.UserID], r.projects[w.ProjectID], {Kind: plan.Domain, Name: w.DomainName}} {
			if o := r.Objects[k]; o != nil {
				o.Waiting += int(w.Waiting)
			}
		}
	}
	folders, err := s.d.Store.FoldersOfOwners(ctx, append(users, projects...))
	if err != nil {
		return fmt.Errorf("count folders: %w", err)
	}
	for _, f := range folders {
		for _, k := range []plan.Key{r.users[f.Owner], r.projects[f.Owner]} {
			if o := r.Objects[k]; o != nil {
				o.Folders = int(f.N)
			}
		}
	}
	return nil
}
