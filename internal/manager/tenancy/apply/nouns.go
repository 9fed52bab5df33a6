package apply

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

// values reads properties of a change as the types that nouns take; what is not there is nil. plan.Value has checked the forms.
type values plan.Attrs

func (v values) text(name string) *string {
	t, ok := v[name]
	if !ok {
		return nil
	}
	return &t
}

func (v values) flag(name string) *bool {
	t, ok := v[name]
	if !ok {
		return nil
	}
	return new(t == "true")
}

func (v values) wide(name string) *int64 {
	t, ok := v[name]
	if !ok {
		return nil
	}
	n, _ := strconv.ParseInt(t, 10, 64)
	return &n
}

func (v values) count(name string) *int {
	n := v.wide(name)
	if n == nil {
		return nil
	}
	return new(int(*n))
}

func (v values) list(name string) *[]string {
	t, ok := v[name]
	if !ok {
		return nil
	}
	items, _ := plan.Decode[[]string](t)
	return &items
}

func (v values) slots(name string) map[string]string {
	t, ok := v[name]
	if !ok {
		return nil
	}
	out, _ := plan.Decode[map[string]string](t)
	if out == nil {
		out = map[string]string{}
	}
	return out
}

func (s *Service) hosts(v values) (map[string]any, error) {
	t, ok := v["folder_hosts"]
	if !ok {
		return nil, nil
	}
	of, _ := plan.Decode[map[string][]string](t)
	return s.d.CheckHosts(of)
}

// settled turns "it is as it should be" into no error.
func settled(err error) (already bool, _ error) {
	if errors.Is(err, errAlready) {
		return true, nil
	}
	return false, err
}

// made tells how to go on when something is there already that a change should make.
func made(err error) (bool, error) {
	if fault.Is(err, fault.Conflict) {
		return false, fmt.Errorf("%w (somebody made it since the change was planned, or you do not see it)", err)
	}
	return false, err
}

func (s *Service) policy(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	v := values(c.To)
	if c.Kind != plan.KeypairPolicy {
		p := tenancy.PolicyProps{MaxFolders: v.count("max_folders"), MaxScopeBytes: v.wide("max_folder_bytes"),
			MaxImages: v.count("max_images"), MaxModelSessions: v.count("max_replicas"), MaxNetworks: v.count("max_networks")}
		create, modify := s.d.Tenancy.CreateUserPolicy, s.d.Tenancy.ModifyUserPolicy
		if c.Kind == plan.ProjectPolicy {
			create, modify = s.d.Tenancy.CreateProjectPolicy, s.d.Tenancy.ModifyProjectPolicy
		}
		if c.Make {
			return made(create(ctx, a, c.Name, p))
		}
		p.ExpectUsers = func(_ context.Context, _ *store.Tx, r dbgen.UserResourcePolicy) error {
			return unchanged(c, userPolicy(r))
		}
		p.ExpectProjects = func(_ context.Context, _ *store.Tx, r dbgen.ProjectResourcePolicy) error {
			return unchanged(c, projectPolicy(r))
		}
		return settled(modify(ctx, a, c.Name, p))
	}
	hosts, err := s.hosts(v)
	if err != nil {
		return false, err
	}
	p := tenancy.KeypairPolicyProps{TotalSlots: v.slots("resources"), MaxPendingSlots: v.slots("waiting_resources"),
		MaxConcurrentSessions: v.count("max_sessions"), MaxConcurrentSFTP: v.count("max_sftp_sessions"),
		MaxContainers: v.count("max_containers"), MaxPendingSessions: v.count("max_waiting"), MaxPriority: v.count("max_priority"),
		MaxSessionLifetime: v.count("max_life"), IdleTimeout: v.count("idle_timeout"), AllowedHosts: hosts}
	if unlisted := v.text("unlisted"); unlisted != nil {
		p.DefaultForUnspecified = new(strings.ToUpper(*unlisted))
	}
	if c.Make {
		return made(s.d.Tenancy.CreateKeypairPolicy(ctx, a, c.Name, p))
	}
	p.Expect = func(_ context.Context, _ *store.Tx, r dbgen.KeypairResourcePolicy) error {
		return unchanged(c, keypairPolicy(r))
	}
	return settled(s.d.Tenancy.ModifyKeypairPolicy(ctx, a, c.Name, p))
}

func (s *Service) domain(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	v := values(c.To)
	hosts, err := s.hosts(v)
	if err != nil {
		return false, err
	}
	p := tenancy.DomainProps{Description: v.text("description"), Active: v.flag("active"), TotalSlots: v.slots("total"), AllowedHosts: hosts,
		AllowedRegistries: v.list("registries")}
	if c.Make {
		_, err := s.d.Tenancy.CreateDomain(ctx, a, c.Name, p)
		return made(err)
	}
	p.Expect = func(_ context.Context, _ *store.Tx, r dbgen.Domain) error { return unchanged(c, domain(r)) }
	return settled(s.d.Tenancy.ModifyDomain(ctx, a, c.Name, p))
}

func (s *Service) group(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	v := values(c.To)
	p := resource.GroupProps{Description: v.text("description"), IsActive: v.flag("active"), IsPublic: v.flag("public"),
		Scheduler: v.text("scheduler"), Egress: v.text("egress")}
	if c.Make {
		return made(s.d.Resources.CreateGroup(ctx, a, c.Name, p))
	}
	p.Expect = func(r dbgen.ResourceGroup) error { return unchanged(c, group(r)) }
	return settled(s.d.Resources.ModifyGroup(ctx, a, c.Name, p))
}

func (s *Service) project(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	v := values(c.To)
	hosts, err := s.hosts(v)
	if err != nil {
		return false, err
	}
	p := tenancy.ProjectProps{Description: v.text("description"), Active: v.flag("active"), Type: v.text("type"), TotalSlots: v.slots("total"),
		AllowedHosts: hosts, ResourcePolicy: v.text("policy")}
	if c.Make {
		p.Domain = &c.Domain
		_, err := s.d.Tenancy.CreateProject(ctx, a, c.Name, p)
		return made(err)
	}
	id, err := s.projectID(ctx, a, c.Domain, c.Name)
	if err != nil {
		return false, err
	}
	p.Expect = func(_ context.Context, _ *store.Tx, r dbgen.Project) error { return unchanged(c, project(r)) }
	return settled(s.d.Tenancy.ModifyProject(ctx, a, string(id), p))
}

// projectID is the id of a project that the actor sees.
func (s *Service) projectID(ctx context.Context, a authz.Actor, domain, name string) (cluster.ProjectID, error) {
	p, err := s.d.Tenancy.VisibleProject(ctx, a, name, domain)
	return cluster.ProjectID(p.ID), err
}

func (s *Service) user(ctx context.Context, a authz.Actor, st Step) (bool, error) {
	c, v := st.Change, values(st.To)
	p := tenancy.UserProps{Username: v.text("username"), FullName: v.text("full_name"), Description: v.text("description"),
		Status: v.text("status"), ResourcePolicy: v.text("policy"), AllowedClientIP: v.list("allowed_from")}
	if r := v.text("role"); r != nil {
		p.Role = new(authz.Role(*r))
	}
	if c.Make {
		p.Domain, p.KeypairPolicy = &c.Domain, v.text("keypair_policy")
		p.Password, p.WithoutPassword = st.Password, st.Password == nil
		if st.Letter {
			if s.d.Letters == nil {
				return false, fault.Conflictf("this cluster sends no e-mail").WithNext("leave out --letters")
			}
			if err := s.d.Letters.Ready(); err != nil {
				return false, err
			}
		}
		if _, err := s.d.Tenancy.CreateUser(ctx, a, c.Name, p); err != nil {
			return made(err)
		}
		if st.Letter {
			return false, s.d.Letters.Welcome(ctx, c.Name)
		}
		return false, nil
	}
	row := plan.Change{Kind: c.Kind, Name: c.Name, From: c.From, To: plan.Attrs{}}
	for name, to := range c.To {
		if name != "keypair_policy" {
			row.To[name] = to
		}
	}
	already := true
	if len(row.To) > 0 {
		var err error
		p.Expect = func(_ context.Context, _ *store.Tx, r dbgen.User) error {
			if r.IsService {
				return fault.Conflictf("%s is a service account, which files do not change", c.Name)
			}
			return unchanged(row, user(r))
		}
		if already, err = settled(s.d.Tenancy.ModifyUser(ctx, a, c.Name, p)); err != nil {
			return false, err
		}
	}
	if _, ok := c.To["keypair_policy"]; !ok {
		return already, nil
	}
	same, err := s.keypair(ctx, a, c)
	return same && already, err
}

// keypair gives the main keypair of a user another policy.
func (s *Service) keypair(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	u, err := s.d.Tenancy.GetUser(ctx, a, c.Name)
	if err != nil {
		return false, err
	}
	if u.MainAccessKey == "" {
		return false, fault.Conflictf("%s has no main keypair", c.Name).WithNext("make one: berth keypair create %s", c.Name)
	}
	is := plan.Change{Kind: c.Kind, Name: c.Name, From: c.From, To: plan.Attrs{"keypair_policy": c.To["keypair_policy"]}}
	return settled(s.d.Tenancy.ModifyKeypair(ctx, a, u.MainAccessKey, tenancy.KeypairProps{ResourcePolicy: values(c.To).text("keypair_policy"),
		Expect: func(_ context.Context, _ *store.Tx, k dbgen.Keypair) error {
			return unchanged(is, plan.Attrs{"keypair_policy": k.ResourcePolicy})
		}}))
}

// members moves members of a project, those who become the same together: four use cases of the noun at most.
func (s *Service) members(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	id, err := s.projectID(ctx, a, c.Domain, c.Name)
	if err != nil {
		return false, err
	}
	already := true
	for _, step := range []struct {
		mode tenancy.MemberMode
		is   func(from, to string) bool
	}{
		{tenancy.AddMembers, func(from, to string) bool { return from == plan.Nobody && to == plan.Member }},
		{tenancy.AppointAdmins, func(_, to string) bool { return to == plan.Admin }},
		{tenancy.DismissAdmins, func(from, to string) bool { return from == plan.Admin && to == plan.Member }},
		{tenancy.RemoveMembers, func(_, to string) bool { return to == plan.Nobody }},
	} {
		part := plan.Change{Kind: c.Kind, Domain: c.Domain, Name: c.Name, From: c.From, To: plan.Attrs{}}
		move := &tenancy.MemberChange{Mode: step.mode}
		for who, to := range c.To {
			if step.is(c.From[who], to) {
				if !strings.Contains(who, "@") {
					return false, fault.Invalidf("%.80q is no email address", who)
				}
				part.To[who] = to
				move.Users = append(move.Users, who)
			}
		}
		if len(move.Users) == 0 {
			continue
		}
		same, err := settled(s.d.Tenancy.ModifyProject(ctx, a, string(id), tenancy.ProjectProps{Members: move,
			Expect: func(ctx context.Context, tx *store.Tx, p dbgen.Project) error {
				is, err := membersAmong(ctx, tx, p.ID, move.Users)
				if err != nil {
					return err
				}
				return unchanged(part, is)
			}}))
		if err != nil {
			return false, err
		}
		already = already && same
	}
	return already, nil
}

// membersAmong is what some users are in a project.
func membersAmong(ctx context.Context, tx *store.Tx, project string, users []string) (plan.Attrs, error) {
	out := plan.Attrs{}
	for _, u := range users {
		out[u] = plan.Nobody
	}
	rows, err := tx.MembersAmong(ctx, project, users)
	if err != nil {
		return nil, fmt.Errorf("look for members: %w", err)
	}
	for _, r := range rows {
		out[r.Email] = rank(r.IsAdmin)
	}
	return out, nil
}

func rank(admin bool) string {
	if admin {
		return plan.Admin
	}
	return plan.Member
}

func (s *Service) access(ctx context.Context, a authz.Actor, c plan.Change) (bool, error) {
	already := true
	for who, to := range c.To {
		var u resource.GroupUser
		if name, ok := strings.CutPrefix(who, "domain:"); ok {
			u.Domain = name
		} else {
			domain, name, ok := strings.Cut(strings.TrimPrefix(who, "project:"), "/")
			if !ok || !strings.HasPrefix(who, "project:") {
				return false, fault.Invalidf("%.80q is neither a domain nor a project", who)
			}
			id, err := s.projectID(ctx, a, domain, name)
			if err != nil {
				return false, err
			}
			u.Project = id
		}
		err := s.d.Resources.AssociateGroup
		if to != plan.Admitted {
			err = s.d.Resources.DisassociateGroup
		}
		done := err(ctx, a, c.Name, u)
		if _, named := fault.DataOf(done).(map[string]string); to != plan.Admitted && fault.Is(done, fault.NotFound) && !named {
			continue // nobody uses it by now
		}
		if done != nil {
			return false, done
		}
		already = false
	}
	return already, nil
}
