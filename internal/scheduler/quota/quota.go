// Package quota is the arithmetic of hierarchical quotas: domain, project, sub-projects, user. It says what a session may add to what is
// used, which level says no, what of a guarantee is lent and what is kept for those who wait for it. It is pure, and knows neither queues
// nor agents: package scheduler asks it during a pass, commits and previews ask it with what the database holds.
package quota

import (
	"cmp"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// ID names a node: a domain, a project (without a domain), or a user within a project.
type ID struct {
	Domain  string
	Project cluster.ProjectID
	User    cluster.UserID
}

// Rule is what a node was given in one resource group, or in all of them together where Group is empty. A slot that is absent from
// Guaranteed has no guarantee, one that is absent from Limit has no limit.
type Rule struct {
	Node              ID
	Group             string
	Guaranteed, Limit cluster.Slots
}

// Place says where a project lies.
type Place struct {
	Name, Domain string
	Parent       cluster.ProjectID // "": directly in the domain
}

// Facts are what a tree is made of.
type Facts struct {
	Rules []Rule
	// Projects are those with a rule, with a parent or with sub-projects, and what lies above them.
	Projects map[cluster.ProjectID]Place
	// Users are the names of users that have a rule.
	Users map[cluster.UserID]string
	// Totals are limits of domains that are kept elsewhere. Check looks at them, the tree does not.
	Totals map[string]cluster.Slots
}

// maxDepth bounds how deep projects lie in each other. The store allows less; it keeps a cycle in broken rows from being followed.
const maxDepth = 64

// Above are the projects above one, the one next to the domain first.
func (f *Facts) Above(project cluster.ProjectID) []cluster.ProjectID {
	var out []cluster.ProjectID
	for p := f.Projects[project].Parent; p != "" && len(out) < maxDepth && p != project; p = f.Projects[p].Parent {
		out = append(out, p)
	}
	slices.Reverse(out)
	return out
}

// line is the way from the domain down to a node.
func (f *Facts) line(domain string, project cluster.ProjectID, user cluster.UserID) []ID {
	out := []ID{{Domain: domain}}
	if project == "" {
		return out
	}
	for _, p := range f.Above(project) {
		out = append(out, ID{Project: p})
	}
	out = append(out, ID{Project: project})
	if user != "" {
		out = append(out, ID{Project: project, User: user})
	}
	return out
}

// Line is the way from the domain down to a node.
func (f *Facts) Line(id ID) []ID {
	if id.Project == "" {
		return []ID{id}
	}
	return f.line(f.Projects[id.Project].Domain, id.Project, id.User)
}

// Path names a node for people: domain/project/sub-project/user:EMAIL.
func (f *Facts) Path(id ID) string {
	out := ""
	for i, n := range f.Line(id) {
		switch {
		case n.User != "":
			out += "user:" + cmp.Or(f.Users[n.User], string(n.User))
		case n.Project != "":
			out += cmp.Or(f.Projects[n.Project].Name, string(n.Project))
		default:
			out += n.Domain
		}
		if i < len(f.Line(id))-1 {
			out += "/"
		}
	}
	return out
}

// Ask is what a session asks for of one slot.
type Ask struct {
	Slot   cluster.SlotName
	Amount cluster.Amount
}

// Asks lists what slots hold, by name, without what asks for nothing.
func Asks(slots cluster.Slots) []Ask {
	out := make([]Ask, 0, len(slots))
	for _, slot := range slots.Names() {
		if v := slots[slot]; v > 0 {
			out = append(out, Ask{slot, v})
		}
	}
	return out
}

// Tree is the nodes of all rules with what is used and waited for below them.
//
// Invariants: a node's used and wanted are the sums of those of its children and of what lies directly in it; kept is what keeps says;
// keptBelow is the sum of kept of its children.
type Tree struct {
	facts Facts
	nodes map[key]*Node
	all   []*Node
	named []string // resource groups with rules
}

type key struct {
	id    ID
	group string
}

// Node is a level of the tree of one resource group, or of all together.
type Node struct {
	ID    ID
	Group string // "": all resource groups together
	Path  string
	// Index counts the nodes of a tree from 0.
	Index  int
	parent *Node
	slots  []level
}

// level is a node's account of one slot.
type level struct {
	slot              cluster.SlotName
	guaranteed, limit cluster.Amount
	assured, limited  bool // there is a guarantee, a limit
	used, wanted      cluster.Amount
	kept, keptBelow   cluster.Amount
}

// New makes a tree in which nothing is used. It is nil where there are neither rules nor sub-projects.
func New(f Facts) *Tree {
	if len(f.Rules) == 0 && len(f.Projects) == 0 {
		return nil
	}
	t := &Tree{facts: f, nodes: map[key]*Node{}}
	for _, r := range f.Rules {
		var above *Node
		for _, id := range f.Line(r.Node) {
			n := t.nodes[key{id, r.Group}]
			if n == nil {
				n = &Node{ID: id, Group: r.Group, Path: f.Path(id), Index: len(t.all), parent: above}
				t.nodes[key{id, r.Group}] = n
				t.all = append(t.all, n)
			}
			above = n
		}
		for slot, v := range r.Guaranteed {
			l := above.at(slot)
			l.guaranteed, l.assured = v, true
		}
		for slot, v := range r.Limit {
			l := above.at(slot)
			l.limit, l.limited = v, true
		}
		if r.Group != "" && !slices.Contains(t.named, r.Group) {
			t.named = append(t.named, r.Group)
		}
	}
	return t
}

// Nodes are all nodes, by their index.
func (t *Tree) Nodes() []*Node { return t.all }

// Above are the projects above one, the one next to the domain first.
func (t *Tree) Above(project cluster.ProjectID) []cluster.ProjectID { return t.facts.Above(project) }

// Groups are the resource groups with rules of their own.
func (t *Tree) Groups() []string { return t.named }

// at finds or makes the account of a slot.
func (n *Node) at(slot cluster.SlotName) *level {
	if l := n.find(slot); l != nil {
		return l
	}
	n.slots = append(n.slots, level{slot: slot})
	return &n.slots[len(n.slots)-1]
}

// find is the account of a slot, nil when there is none.
func (n *Node) find(slot cluster.SlotName) *level {
	for i := range n.slots {
		if n.slots[i].slot == slot {
			return &n.slots[i]
		}
	}
	return nil
}

// Assures reports whether the node guarantees anything.
func (n *Node) Assures() bool {
	return slices.ContainsFunc(n.slots, func(l level) bool { return l.assured })
}

// Chain is the levels that a session counts against: those of all resource groups together and those of its own, each from the domain
// down. A level without a rule on it or below it is absent.
type Chain [2][]*Node

// Chain finds the levels of what somebody starts in a resource group. known is false when there are none.
func (t *Tree) Chain(group, domain string, project cluster.ProjectID, user cluster.UserID) (c Chain, known bool) {
	for _, id := range t.facts.line(domain, project, user) {
		if n := t.nodes[key{id, ""}]; n != nil {
			c[0], known = append(c[0], n), true
		}
		if n := t.nodes[key{id, group}]; n != nil && group != "" {
			c[1], known = append(c[1], n), true
		}
	}
	return c, known
}

// Use adds to what is used at every level; sign -1 takes it off.
func (c *Chain) Use(asks []Ask, sign cluster.Amount) { c.add(asks, sign, 0) }

// Want adds to what is waited for at every level; sign -1 takes it off.
func (c *Chain) Want(asks []Ask, sign cluster.Amount) { c.add(asks, 0, sign) }

func (c *Chain) add(asks []Ask, used, wanted cluster.Amount) {
	for _, line := range c {
		for _, a := range asks {
			change := cluster.Amount(0) // of what is kept below the next level
			for i := len(line) - 1; i >= 0; i-- {
				l := line[i].at(a.Slot)
				l.used += used * a.Amount
				l.wanted += wanted * a.Amount
				l.keptBelow += change
				before := l.kept
				l.kept = l.keeps()
				change = l.kept - before
			}
		}
	}
}

// keeps is what others must leave to a level: of its guarantee what is not used and is waited for. So a guarantee is lent as long as
// nobody waits for it. A level keeps at least what those below it keep.
func (l *level) keeps() cluster.Amount {
	return max(min(l.unused(), l.wanted), l.keptBelow, 0)
}

// unused is what is left of a guarantee.
func (l *level) unused() cluster.Amount {
	if !l.assured {
		return 0
	}
	return l.guaranteed - l.used
}

// Room is what a level of a chain says of one slot.
type Room struct {
	Node        *Node
	Limit, Used cluster.Amount
	// Kept is what is free below the limit, but kept for others who wait for what they are guaranteed.
	Kept cluster.Amount
}

// Left is the most that may still be added: more is over the limit, or takes what is kept for others.
func (r *Room) Left() cluster.Amount { return max(r.Limit-r.Used-r.Kept, 0) }

// Slots are those that a level of a chain limits, by name.
func (c *Chain) Slots() []cluster.SlotName {
	var out []cluster.SlotName
	for _, line := range c {
		for _, n := range line {
			for i := range n.slots {
				if l := &n.slots[i]; l.limited && !slices.Contains(out, l.slot) {
					out = append(out, l.slot)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// Rooms are the levels of a chain that limit a slot, the nearest first.
func (c *Chain) Rooms(slot cluster.SlotName) []Room {
	var out []Room
	for _, line := range c {
		for i := len(line) - 1; i >= 0; i-- {
			if l := line[i].find(slot); l != nil && l.limited {
				out = append(out, room(line[i:], l))
			}
		}
	}
	return out
}

// room is what the first level of a line leaves to a session whose further levels are the rest of the line.
//
// Whoever stays within the guarantee of a level below the limit leaves only what is kept below that level; whoever is beyond all of them
// leaves everything that is kept for others. So the most is one of these, and what is smaller is allowed with it.
func room(line []*Node, top *level) Room {
	free := top.limit - top.used
	// keep is what others keep below the i-th level and outside of the next one.
	keep := cluster.Amount(0)
	most := cluster.Amount(0)
	for i := len(line) - 1; i >= 0; i-- {
		l := line[i].find(top.slot)
		if l != nil {
			keep += l.keptBelow
		}
		if i+1 < len(line) {
			if below := line[i+1].find(top.slot); below != nil {
				keep -= below.kept
			}
		}
		if i == 0 {
			most = max(most, free-keep)
		} else if l != nil {
			most = max(most, min(l.unused(), free-keep))
		}
	}
	return Room{Node: line[0], Limit: top.limit, Used: top.used, Kept: max(free-most, 0)}
}

// Excess is a level that a session would exceed.
type Excess struct {
	Room
	Slot  cluster.SlotName
	Asked cluster.Amount
}

// Over is the nearest level that leaves no room for a session, nil when there is none.
func (c *Chain) Over(asks []Ask) *Excess {
	for _, line := range c {
		for i := len(line) - 1; i >= 0; i-- {
			for _, a := range asks {
				l := line[i].find(a.Slot)
				if l == nil || !l.limited || a.Amount <= 0 {
					continue
				}
				if r := room(line[i:], l); a.Amount > r.Left() {
					return &Excess{Room: r, Slot: a.Slot, Asked: a.Amount}
				}
			}
		}
	}
	return nil
}

// Entitled reports whether a session stays within what one of the levels guarantees.
func (c *Chain) Entitled(asks []Ask) bool {
	for _, line := range c {
		for _, n := range line {
			if n.Within(asks) {
				return true
			}
		}
	}
	return false
}

// Within reports whether a session stays within what the node guarantees: of all slots that it asks for and that are guaranteed.
func (n *Node) Within(asks []Ask) bool {
	some := false
	for _, a := range asks {
		l := n.find(a.Slot)
		if l == nil || !l.assured || a.Amount <= 0 {
			continue
		}
		if a.Amount > l.unused() {
			return false
		}
		some = true
	}
	return some
}

// Covers reports whether sums, which contain what a session holds, are within what the node guarantees of the slots that it holds.
func (n *Node) Covers(asks []Ask, sums map[cluster.SlotName]cluster.Amount) bool {
	some := false
	for _, a := range asks {
		l := n.find(a.Slot)
		if l == nil || !l.assured || a.Amount <= 0 {
			continue
		}
		if sums[a.Slot] > l.guaranteed {
			return false
		}
		some = true
	}
	return some
}

// Empty is a tree of the same rules in which nothing is used.
func (t *Tree) Empty() *Tree { return New(t.facts) }
