package scheduler_test

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
)

// node is a level of the tree of quotas of a group, "" is all groups together. The oracle knows it by the rules alone: what is used, waited
// for and kept is added up anew for each question.
type node struct {
	id    quota.ID
	group string
}

// way is the nodes from the domain of an owner down to the owner, whether or not they have rules.
func (o *oracle) way(owner scheduler.Owner, group string) []node {
	out := []node{{quota.ID{Domain: owner.Domain}, group}}
	var projects []node
	for p := owner.Project; p != ""; p = o.tree.Projects[p].Parent {
		projects = append([]node{{quota.ID{Project: p}, group}}, projects...)
	}
	out = append(out, projects...)
	if owner.User != "" {
		out = append(out, node{quota.ID{Project: owner.Project, User: owner.User}, group})
	}
	return out
}

// rule is the rule of a node, nil when it has none.
func (o *oracle) rule(n node) *quota.Rule {
	for i := range o.tree.Rules {
		if r := &o.tree.Rules[i]; r.Node == n.id && r.Group == n.group {
			return r
		}
	}
	return nil
}

// ownerOf is an owner directly in a node.
func (o *oracle) ownerOf(id quota.ID) scheduler.Owner {
	if id.Project == "" {
		return scheduler.Owner{Domain: id.Domain}
	}
	return scheduler.Owner{Domain: o.tree.Projects[id.Project].Domain, Project: id.Project, User: id.User}
}

// children are the nodes directly below one that have a rule on them or below them.
func (o *oracle) children(n node) (out []node) {
	for _, r := range o.tree.Rules {
		if r.Group != n.group {
			continue
		}
		way := o.way(o.ownerOf(r.Node), n.group)
		if i := slices.Index(way, n); i >= 0 && i+1 < len(way) && !slices.Contains(out, way[i+1]) {
			out = append(out, way[i+1])
		}
	}
	return out
}

// usedIn and wantedIn sum what is held and asked for below a node.
func (o *oracle) usedIn(n node, slot cluster.SlotName) (sum cluster.Amount) {
	for i := range o.running {
		if r := &o.running[i]; !r.Private && slices.Contains(o.way(r.Owner, n.group), n) {
			sum += held(r)[slot]
		}
	}
	return sum
}

func (o *oracle) wantedIn(n node, slot cluster.SlotName) (sum cluster.Amount) {
	for _, s := range o.waiting {
		if !s.Private && s.Waiting == "" && !s.StartsAt.After(o.now) && !o.group.Inactive && slices.Contains(o.way(s.Owner, n.group), n) {
			sum += max(sumOf(s.Kernels)[slot], 0)
		}
	}
	return sum
}

// spare is what is not used of a node's guarantee.
func (o *oracle) spare(n node, slot cluster.SlotName) (left cluster.Amount, assured bool) {
	r := o.rule(n)
	if r == nil {
		return 0, false
	}
	g, assured := r.Guaranteed[slot]
	return g - o.usedIn(n, slot), assured
}

// keptIn is what others must leave to a node.
func (o *oracle) keptIn(n node, slot cluster.SlotName) cluster.Amount {
	below := cluster.Amount(0)
	for _, c := range o.children(n) {
		below += o.keptIn(c, slot)
	}
	own, assured := o.spare(n, slot)
	if !assured {
		own = 0
	}
	return max(min(own, o.wantedIn(n, slot)), below, 0)
}

// overTree reports whether a level leaves no room for a session.
func (o *oracle) overTree(s *scheduler.Session) bool {
	for _, group := range []string{"", o.group.Name} {
		way := o.way(s.Owner, group)
		for i, n := range way {
			r := o.rule(n)
			for slot, v := range sumOf(s.Kernels) {
				if r == nil || v <= 0 {
					continue
				}
				if limit, limited := r.Limit[slot]; limited && !o.leaves(way[i:], slot, v, limit) {
					return true
				}
			}
		}
	}
	return false
}

// leaves reports whether a session leaves, below the limit of the first of some nodes, what is kept for others: all that is kept outside
// of the deepest of these nodes whose guarantee it stays within is no matter to it.
func (o *oracle) leaves(way []node, slot cluster.SlotName, v, limit cluster.Amount) bool {
	deepest := 0
	for i := 1; i < len(way); i++ {
		if left, assured := o.spare(way[i], slot); assured && v <= left {
			deepest = i
		}
	}
	kept := cluster.Amount(0)
	for i := deepest; i < len(way); i++ {
		for _, c := range o.children(way[i]) {
			if !slices.Contains(way, c) {
				kept += o.keptIn(c, slot)
			}
		}
	}
	return o.usedIn(way[0], slot)+v+kept <= limit
}

// isEntitled reports whether a session stays within the guarantee of a level, in all slots that it asks for and the level guarantees.
func (o *oracle) isEntitled(s *scheduler.Session) bool {
	if s.Private {
		return false
	}
	for _, group := range []string{"", o.group.Name} {
		for _, n := range o.way(s.Owner, group) {
			some, all := false, true
			for slot, v := range sumOf(s.Kernels) {
				if left, assured := o.spare(n, slot); assured && v > 0 {
					some, all = true, all && v <= left
				}
			}
			if some && all {
				return true
			}
		}
	}
	return false
}

// borrows reports whether a running session stands beyond the guarantees of its levels, which go to those that started first.
func (o *oracle) borrows(r *scheduler.Running) bool {
	for _, group := range []string{"", o.group.Name} {
		for _, n := range o.way(r.Owner, group) {
			rule := o.rule(n)
			if rule == nil {
				continue
			}
			some, all := false, true
			for slot, v := range held(r) {
				g, assured := rule.Guaranteed[slot]
				if !assured || v <= 0 {
					continue
				}
				sum := cluster.Amount(0)
				for i := range o.running {
					x := &o.running[i]
					first := cmp.Or(x.StartedAt.Compare(r.StartedAt), cmp.Compare(x.ID, r.ID)) <= 0
					if !x.Private && first && slices.Contains(o.way(x.Owner, group), n) {
						sum += held(x)[slot]
					}
				}
				some, all = true, all && sum <= g
			}
			if some && all {
				return false
			}
		}
	}
	return true
}

// shareLine is the decayed shares of an owner, from the topmost project down to the user.
func (o *oracle) shareLine(owner scheduler.Owner) (out []float64) {
	user := o.shares[scheduler.Scope{Kind: scheduler.ScopeUser, ID: string(owner.User)}]
	if v, weighed := o.shares[scheduler.MemberScope(owner.Project, owner.User)]; weighed && len(o.tree.Projects) > 0 {
		user = v
	}
	for _, n := range o.way(scheduler.Owner{Domain: owner.Domain, Project: owner.Project}, "")[1:] {
		out = append(out, o.shares[scheduler.Scope{Kind: scheduler.ScopeProject, ID: string(n.id.Project)}])
	}
	return append(out, user)
}

// setTree draws a tree of quotas: of domain d with the projects p and q, s in p, t in s, and of domain e with r.
func (w *trial) setTree() {
	f := quota.Facts{Projects: map[cluster.ProjectID]quota.Place{"p": {Name: "p", Domain: "d"}, "q": {Name: "q", Domain: "d"},
		"s": {Name: "s", Domain: "d", Parent: "p"}, "t": {Name: "t", Domain: "d", Parent: "s"}, "r": {Name: "r", Domain: "e"}}}
	for _, id := range []quota.ID{{Domain: "d"}, {Project: "p"}, {Project: "q"}, {Project: "s"}, {Project: "t"},
		{Project: "s", User: "ada"}, {Project: "s", User: "bob"}, {Project: "q", User: "cyd"}, {Domain: "e"}} {
		for _, group := range []string{"", "g"} {
			if !w.chance(45) || group != "" && !w.chance(30) {
				continue
			}
			r := quota.Rule{Node: id, Group: group, Guaranteed: cluster.Slots{}, Limit: cluster.Slots{}}
			for _, slot := range []cluster.SlotName{cluster.SlotCPU, w.gpu} {
				if w.chance(45) {
					r.Guaranteed[slot] = cluster.Whole(one[int64](w, 0, 1, 2, 2, 4))
				}
				if w.chance(35) {
					r.Limit[slot] = cluster.Whole(one[int64](w, 1, 2, 4, 6))
				}
			}
			f.Rules = append(f.Rules, r)
		}
	}
	if w.chance(10) {
		f = quota.Facts{}
	}
	w.o.tree = f
	w.c.SetTree(f)
	w.log("tree %+v", f)
}
