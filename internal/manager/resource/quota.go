package resource

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/scheduler/quota"
)

// Bounds of the tree of quotas.
const (
	maxQuotas       = 10_000
	maxProjectDepth = 16 // how deep projects lie in each other
	maxQuotaSlots   = 64 // of one rule
)

// userPrefix marks a user at the end of a path. Names of projects have no colon.
const userPrefix = "user:"

// QuotaNode is a level of the tree: a domain, a project or a user in a project, in one resource group or ("") in all together.
type QuotaNode struct {
	Path, ResourceGroup string
	// Own says that the level has a rule; others are there for what lies below them.
	Own    bool
	Weight *float64
	Slots  []quota.State
	// Problems are promises that cannot be kept any more, because a total or a limit was lowered elsewhere.
	Problems []string
}

// QuotaProps are what administrators give to a level. Absent parts stay as they are; an empty amount takes a slot's away.
type QuotaProps struct {
	ResourceGroup     string
	Guaranteed, Limit map[string]string
	// Weight is of the fair share among what lies beside it; 0 takes it away.
	Weight *float64
	// DryRun checks and tells, and changes nothing.
	DryRun bool
}

// level is what a path names.
type level struct {
	id      quota.ID
	domain  string
	project *dbgen.Project // the project, or that of the user
}

// object are the facts that decide about what may be seen of a level.
func (l *level) object(path string) authz.Object {
	if l.project == nil {
		return authz.Object{Name: path, Domain: l.domain}
	}
	return tenancy.ProjectObject(*l.project, path)
}

// may refuses those who may not set what a level has: superadmins set what domains have; administrators of a domain what projects in it
// and users have; administrators of a project what lies in it.
func (l *level) may(a authz.Actor, path string) error {
	switch {
	case l.project == nil:
		return authz.Domains.Need(a, authz.Administer, l.object(path), "set the quota of domain "+l.domain)
	case l.id.User != "":
		return authz.Projects.Check(a, authz.Divide, l.object(path))
	case l.project.ParentID != nil:
		above := l.object(path)
		above.Project = cluster.ProjectID(*l.project.ParentID)
		return authz.Projects.Check(a, authz.Divide, above)
	}
	return authz.Projects.Check(a, authz.Change, l.object(path))
}

// levelAt finds what a path names, of what the actor may see.
func (s *Service) levelAt(ctx context.Context, q *dbgen.Queries, a authz.Actor, path string) (*level, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	parts := strings.Split(path, "/")
	if store.Text(path) != path || slices.Contains(parts, "") || len(parts) > maxProjectDepth+2 {
		return nil, fault.Invalidf("%.120q is no path of a quota", path).
			WithNext("write domain, domain/project, domain/project/sub-project, and /user:EMAIL behind a project for one user in it")
	}
	l := &level{id: quota.ID{Domain: parts[0]}, domain: parts[0]}
	if len(parts) == 1 && !authz.Domains.May(a, authz.See, l.object(path)) {
		return nil, authz.Domains.Need(a, authz.Administer, l.object(path), "see or set the quota of domain "+parts[0])
	}
	if _, err := q.GetDomain(ctx, parts[0]); store.Missing(err) {
		return nil, authz.NotFound("project", path)
	} else if err != nil {
		return nil, fmt.Errorf("find domain %s: %w", parts[0], err)
	}
	for i, part := range parts[1:] {
		if email, isUser := strings.CutPrefix(part, userPrefix); isUser && l.project != nil && i == len(parts)-2 {
			if err := authz.Projects.Check(a, authz.SeeMembers, l.object(path)); err != nil {
				return nil, err
			}
			u, err := q.UserByRef(ctx, email)
			if store.Missing(err) || err == nil && u.DomainName != l.domain {
				return nil, authz.NotFound("user", email)
			}
			if err != nil {
				return nil, fmt.Errorf("find user %s: %w", email, err)
			}
			l.id = quota.ID{Project: l.id.Project, User: cluster.UserID(u.ID)}
			return l, nil
		}
		var above *string
		if l.project != nil {
			above = &l.project.ID
		}
		p, err := q.ProjectInParent(ctx, l.domain, part, above)
		if store.Missing(err) {
			return nil, authz.NotFound("project", path)
		}
		if err != nil {
			return nil, fmt.Errorf("find project %s: %w", path, err)
		}
		l.project, l.id = &p, quota.ID{Project: cluster.ProjectID(p.ID)}
	}
	if l.project == nil {
		return l, nil
	}
	return l, authz.Projects.Check(a, authz.See, l.object(path))
}

// shows reports whether the actor sees what a level has: those who administer it or what it lies in, and monitors.
func shows(a authz.Actor, f *quota.Facts, id quota.ID) bool {
	domain := f.Line(id)[0].Domain
	if id.Project == "" {
		return authz.Domains.May(a, authz.Change, authz.Object{Domain: domain}) || authz.Cluster.May(a, authz.See, authz.Object{})
	}
	return authz.Projects.May(a, authz.SeeMembers, authz.Object{Project: id.Project, Domain: domain})
}

// QuotaTree lists the levels that the actor administers, with what is used and waited for: all, or that of a path and those below it.
func (s *Service) QuotaTree(ctx context.Context, a authz.Actor, path string) ([]QuotaNode, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if path != "" {
		l, err := s.levelAt(ctx, s.d.Store.Queries, a, path)
		if err != nil {
			return nil, err
		}
		if l.project != nil {
			if err := authz.Projects.Check(a, authz.SeeMembers, l.object(path)); err != nil {
				return nil, err
			}
		}
	}
	t, err := limit.ReadTree(ctx, s.d.Store.Queries)
	if err != nil {
		return nil, err
	}
	return s.quotaNodes(ctx, s.d.Store.Queries, a, t, path)
}

func (s *Service) quotaNodes(ctx context.Context, q *dbgen.Queries, a authz.Actor, t *limit.Tree, path string) ([]QuotaNode, error) {
	out := []QuotaNode{}
	tree, err := t.Count(ctx, q, t.Domains(), true)
	if tree == nil || err != nil {
		return out, err
	}
	if err := s.readTotals(ctx, q, t); err != nil {
		return nil, err
	}
	problems := quota.Check(t.Facts)
	for _, n := range tree.Nodes() {
		if path != "" && n.Path != path && !strings.HasPrefix(n.Path, path+"/") || !shows(a, &t.Facts, n.ID) {
			continue
		}
		v := QuotaNode{Path: n.Path, ResourceGroup: n.Group, Slots: n.States()}
		v.Own = slices.ContainsFunc(t.Rules, func(r quota.Rule) bool { return r.Node == n.ID && r.Group == n.Group })
		if w, weighed := t.Weights[n.ID]; weighed && n.Group == "" {
			v.Weight = &w
		}
		for _, p := range problems {
			if p.Node == n.ID && p.Group == n.Group {
				v.Problems = append(v.Problems, p.Words(cluster.SlotName.Text))
			}
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b QuotaNode) int {
		return slices.Compare([]string{a.Path, a.ResourceGroup}, []string{b.Path, b.ResourceGroup})
	})
	return out, nil
}

// readTotals adds the totals of domains, which are limits of theirs.
func (s *Service) readTotals(ctx context.Context, q *dbgen.Queries, t *limit.Tree) error {
	rows, err := q.DomainTotals(ctx)
	if err != nil {
		return fmt.Errorf("read totals of domains: %w", err)
	}
	t.Totals = map[string]cluster.Slots{}
	for _, r := range rows {
		t.Totals[r.Name] = r.TotalResourceSlots
	}
	return nil
}

// SetQuota gives something to a level. It ends no session: where more is used than it allows, new ones wait. It is refused where a
// promise could not be kept: what is guaranteed below a level is at most what the level is guaranteed and may have.
func (s *Service) SetQuota(ctx context.Context, a authz.Actor, path string, p QuotaProps) (out *QuotaNode, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.set", path)
	defer end(&err)
	err = s.changeTree(ctx, func(ctx context.Context, tx *store.Tx) error {
		l, err := s.levelAt(ctx, tx.Queries, a, path)
		if err == nil {
			err = l.may(a, path)
		}
		if err != nil {
			return err
		}
		t, err := s.treeToChange(ctx, tx)
		if err != nil {
			return err
		}
		before := t.Facts
		before.Rules = slices.Clone(t.Rules)
		rule, at, err := s.newRule(ctx, tx, t, l, p)
		if err != nil {
			return err
		}
		params := dbgen.SetQuotaRuleParams{ID: s.d.IDs(), DomainName: l.domain, ProjectID: optional(string(l.id.Project)),
			UserID: optional(string(l.id.User)), ResourceGroup: optional(p.ResourceGroup), Guaranteed: rule.Guaranteed, Most: rule.Limit}
		if w, weighed := t.Weights[l.id]; weighed && p.ResourceGroup == "" {
			params.Weight = &w
		}
		if at < 0 {
			if len(t.Rules) >= maxQuotas {
				return fault.Exhaustedf("there are %d quotas already", len(t.Rules)).WithNext("remove one")
			}
			t.Rules = append(t.Rules, rule)
		} else {
			t.Rules[at] = rule
		}
		if l.project != nil && t.Projects[cluster.ProjectID(l.project.ID)].Name == "" {
			t.Projects[cluster.ProjectID(l.project.ID)] = quota.Place{Name: l.project.Name, Domain: l.domain}
		}
		if l.id.User != "" {
			t.Users[l.id.User] = path[strings.LastIndex(path, userPrefix)+len(userPrefix):]
		}
		if broken := quota.Worse(before, t.Facts); broken != nil {
			return refusePromise(broken)
		}
		if !p.DryRun {
			if err := tx.SetQuotaRule(ctx, params); store.Dangling(err) {
				return authz.NotFound(groupNoun, p.ResourceGroup)
			} else if err != nil {
				return fmt.Errorf("store the quota of %s: %w", path, err)
			}
			tx.Wake(store.TopicSchedule)
		}
		nodes, err := s.quotaNodes(ctx, tx.Queries, authz.Actor{Role: authz.RoleSuperadmin, UserID: a.UserID, Domain: a.Domain,
			AccessKey: a.AccessKey}, t, path)
		for i := range nodes {
			if nodes[i].Path == path && nodes[i].ResourceGroup == p.ResourceGroup {
				out = &nodes[i]
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("set the quota of %s: %w", path, err)
	}
	return out, nil
}

// newRule is the rule of a level with some properties changed, and its place among the rules, -1 for a new one.
func (s *Service) newRule(ctx context.Context, tx *store.Tx, t *limit.Tree, l *level, p QuotaProps) (quota.Rule, int, error) {
	out := quota.Rule{Node: l.id, Group: p.ResourceGroup, Guaranteed: cluster.Slots{}, Limit: cluster.Slots{}}
	at := slices.IndexFunc(t.Rules, func(r quota.Rule) bool { return r.Node == l.id && r.Group == p.ResourceGroup })
	if at >= 0 {
		out.Guaranteed, out.Limit = t.Rules[at].Guaranteed.Clone(), t.Rules[at].Limit.Clone()
	}
	if at < 0 && len(p.Guaranteed)+len(p.Limit) == 0 && p.Weight == nil {
		return out, at, fault.Invalidf("nothing is said of the quota").WithNext("give guaranteed, limit or weight")
	}
	reports, err := tx.SlotKinds(ctx)
	if err != nil {
		return out, at, fmt.Errorf("read the kinds of slots: %w", err)
	}
	kinds := cluster.AgreedKinds(reports)
	for _, part := range []struct {
		name string
		from map[string]string
		to   cluster.Slots
	}{{"guaranteed", p.Guaranteed, out.Guaranteed}, {"limit", p.Limit, out.Limit}} {
		for slot, text := range part.from {
			name := cluster.SlotName(slot)
			if slot == "" || len(slot) > 64 || store.Text(slot) != slot || strings.ContainsAny(slot, " /") {
				return out, at, fault.Invalidf("%s: %.80q is no name of a slot", part.name, slot)
			}
			if text == "" || text == "Infinity" {
				delete(part.to, name)
				continue
			}
			v, err := cluster.ParseAmount(cluster.KindOf(name, kinds), text)
			if err != nil {
				return out, at, fmt.Errorf("%s of %s: %w", part.name, slot, err)
			}
			if v < 0 {
				return out, at, fault.Invalidf("%s of %s is below 0", part.name, slot)
			}
			part.to[name] = v
		}
		if len(part.to) > maxQuotaSlots {
			return out, at, fault.Invalidf("%s names %d slots; %d are the most", part.name, len(part.to), maxQuotaSlots)
		}
	}
	if w := p.Weight; w != nil {
		switch {
		case p.ResourceGroup != "":
			return out, at, fault.Invalidf("a weight is of all resource groups").WithNext("set it without a resource group")
		case *w == 0:
			delete(t.Weights, l.id)
		case !(*w >= 0.001 && *w <= 1e6):
			return out, at, fault.Invalidf("the weight %v is not from 0.001 to 1000000", *w)
		default:
			t.Weights[l.id] = *w
		}
	}
	return out, at, nil
}

// refusePromise says which promise cannot be kept, with numbers.
func refusePromise(p *quota.Problem) error {
	return fault.Conflictf("%s", p.Words(cluster.SlotName.Text)).
		WithNext("guarantee less by %s, or raise the %s of %s", p.Slot.Text(p.Sum-p.Bound), p.By, p.Path)
}

// UnsetQuota takes the rule of a level away (those who may set it).
func (s *Service) UnsetQuota(ctx context.Context, a authz.Actor, path, resourceGroup string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.unset", path)
	defer end(&err)
	err = s.changeTree(ctx, func(ctx context.Context, tx *store.Tx) error {
		l, err := s.levelAt(ctx, tx.Queries, a, path)
		if err == nil {
			err = l.may(a, path)
		}
		if err != nil {
			return err
		}
		t, err := s.treeToChange(ctx, tx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(t.Rules, func(r quota.Rule) bool { return r.Node == l.id && r.Group == resourceGroup })
		if at < 0 {
			return fault.NotFoundf("%s has no quota of its own there", path).WithNext("berth quota tree shows which levels have one")
		}
		after := t.Facts
		after.Rules = slices.Delete(slices.Clone(t.Rules), at, at+1)
		if broken := quota.Worse(t.Facts, after); broken != nil {
			return refusePromise(broken)
		}
		if _, err := tx.UnsetQuotaRule(ctx, t.RuleIDs[at]); err != nil {
			return fmt.Errorf("remove the quota of %s: %w", path, err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
	if err != nil {
		return fmt.Errorf("unset the quota of %s: %w", path, err)
	}
	return nil
}

// PlaceProject puts a project under another one of its domain, or ("") directly in the domain (superadmins and administrators of the
// domain). Members, totals and folders stay its own. Whoever administers a project administers what lies in it.
func (s *Service) PlaceProject(ctx context.Context, a authz.Actor, project, parent string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project.place", project)
	defer end(&err)
	p, err := s.d.Tenancy.VisibleProject(ctx, a, project, a.Domain)
	if err != nil {
		return err
	}
	if err := authz.Projects.Check(a, authz.Change, tenancy.ProjectObject(p, project)); err != nil {
		return err
	}
	var above *dbgen.Project
	if parent != "" {
		found, err := s.d.Tenancy.VisibleProject(ctx, a, parent, p.DomainName)
		if err != nil {
			return err
		}
		if above = &found; found.DomainName != p.DomainName {
			return fault.Conflictf("project %s belongs to domain %s, and %s to %s", p.Name, p.DomainName, found.Name, found.DomainName).
				WithNext("choose a project of domain %s", p.DomainName)
		}
	}
	err = s.changeTree(ctx, func(ctx context.Context, tx *store.Tx) error {
		t, err := s.treeToChange(ctx, tx)
		if err != nil {
			return err
		}
		after := t.Facts
		after.Projects = map[cluster.ProjectID]quota.Place{}
		for id, place := range t.Projects {
			after.Projects[id] = place
		}
		id, place := cluster.ProjectID(p.ID), quota.Place{Name: p.Name, Domain: p.DomainName}
		var to *string
		if above != nil {
			to, place.Parent = &above.ID, cluster.ProjectID(above.ID)
			if _, known := after.Projects[place.Parent]; !known {
				after.Projects[place.Parent] = quota.Place{Name: above.Name, Domain: above.DomainName}
			}
			if place.Parent == id || slices.Contains(t.Above(place.Parent), id) {
				return fault.Conflictf("project %s lies in project %s", above.Name, p.Name).WithNext("move %s out of it first", above.Name)
			}
		}
		after.Projects[id] = place
		for other := range after.Projects {
			if n := len(after.Above(other)); n >= maxProjectDepth {
				return fault.Conflictf("project %s would lie %d deep, %d is the most", after.Projects[other].Name, n+1, maxProjectDepth)
			}
		}
		if broken := quota.Worse(t.Facts, after); broken != nil {
			return refusePromise(broken)
		}
		if err := tx.PlaceProject(ctx, to, p.ID); err != nil {
			return fmt.Errorf("store where the project lies: %w", err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
	if err != nil {
		return fmt.Errorf("move project %s: %w", project, err)
	}
	return nil
}

// changeTree runs a change of the tree alone: promises are checked against all others.
func (s *Service) changeTree(ctx context.Context, change func(context.Context, *store.Tx) error) error {
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockQuotas(ctx); err != nil {
			return fmt.Errorf("wait for other changes of quotas: %w", err)
		}
		return change(ctx, tx)
	})
}

func (s *Service) treeToChange(ctx context.Context, tx *store.Tx) (*limit.Tree, error) {
	t, err := limit.ReadTree(ctx, tx.Queries)
	if err != nil {
		return nil, err
	}
	return t, s.readTotals(ctx, tx.Queries, t)
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
