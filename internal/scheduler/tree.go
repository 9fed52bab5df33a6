package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// treeLevel is what the scheduler keeps of a node of the tree of quotas.
//
// Invariant: within[k] says whether one more session of kind k stays within what the node guarantees, for every kind in lanes.
type treeLevel struct {
	node   *quota.Node
	scope  *scope                       // with the lanes that wait for the node's limit
	lanes  map[*kind]map[*lane]struct{} // below it, where it guarantees anything
	within map[*kind]bool
}

// SetTree replaces the tree of quotas. It looks at every session, so it is for when rules change.
func (c *Cluster) SetTree(f quota.Facts) {
	if c.tree = quota.New(f); c.tree == nil && c.levels == nil {
		return
	}
	c.rebuildLevels()
}

// rebuildLevels adds up anew what is used and waited for at all levels.
func (c *Cluster) rebuildLevels() {
	if c.tree == nil && c.levels == nil {
		return
	}
	c.levels = nil
	if c.tree != nil {
		c.tree = c.tree.Empty()
		c.levels = []*treeLevel{}
		for _, n := range c.tree.Nodes() {
			l := &treeLevel{node: n, scope: &scope{key: Scope{ScopeLevel, n.Path}, lanes: map[*lane]struct{}{}}}
			if n.Assures() {
				l.lanes, l.within = map[*kind]map[*lane]struct{}{}, map[*kind]bool{}
			}
			c.levels = append(c.levels, l)
		}
	}
	for _, g := range c.groups {
		for _, p := range g.fairness.owners {
			g.fairness.place(p)
			p.entitled = 0
		}
	}
	for _, e := range c.sessions {
		switch {
		case e.running != nil && !e.running.private:
			if p := e.running.group.fairness.ownerOf(e.running.account); p.levels != nil {
				p.levels.Use(e.running.asks(), 1)
			}
		case e.waiting != nil && e.waiting.queued:
			e.waiting.lane.want(1)
		}
	}
	for _, g := range c.groups {
		for _, l := range g.queue.lanes {
			l.entitled = false
			if l.register(); l.standing == limited && l.scope.key.Kind == ScopeLevel {
				g.queue.unlimit(l)
			}
		}
	}
	for _, g := range c.groups {
		g.queue.reorder()
		g.reservations.released = true
	}
}

// place notes the levels and shares of an owner.
func (f *fairness) place(p *groupOwner) {
	p.levels = nil
	if tree := f.group.cluster.tree; tree != nil {
		if levels, known := tree.Chain(f.group.policy.Name, p.Owner.Domain, p.Owner.Project, p.Owner.User); known {
			p.levels = &levels
		}
	}
	f.noteShares(p)
}

// asks is what a live session holds.
func (r *running) asks() []quota.Ask {
	out := make([]quota.Ask, 0, len(r.sum))
	for _, w := range r.sum {
		out = append(out, quota.Ask{Slot: r.group.cluster.slots.name[w.slot], Amount: w.amount})
	}
	return out
}

// over finds a quota that one more session of a kind would exceed, nil when there is none.
func (p *groupOwner) over(k *kind) *excess {
	if o := p.account.over(k); o != nil || p.levels == nil || k.private {
		return o
	}
	if o := p.levels.Over(k.asks); o != nil {
		return &excess{scope: p.group.cluster.levels[o.Node.Index].scope, level: o}
	}
	return nil
}

// isEntitled reports whether one more session of a kind stays within a guarantee.
func (p *groupOwner) isEntitled(k *kind) bool {
	return p.levels != nil && !k.private && p.levels.Entitled(k.asks)
}

// want notes that one session more, or less, of a lane waits.
func (l *lane) want(sign cluster.Amount) {
	p, g := l.band.owner, l.band.group
	if p.levels == nil || l.kind.private || g.policy.Inactive || p.account.closed() != nil {
		return
	}
	if p.levels.Want(l.kind.asks, sign); sign < 0 {
		g.cluster.loosenLevels(p)
	}
}

// loosenLevels notes that lanes that wait for a level of an owner are to be looked at again.
func (c *Cluster) loosenLevels(p *groupOwner) {
	for _, line := range p.levels {
		for _, n := range line {
			c.loosen(c.levels[n.Index].scope)
		}
	}
}

// register adds a lane to the levels that guarantee its owner anything.
func (l *lane) register() {
	p, c := l.band.owner, l.band.group.cluster
	if p.levels == nil || l.kind.private {
		return
	}
	for _, line := range p.levels {
		for _, n := range line {
			t := c.levels[n.Index]
			if t.lanes == nil {
				continue
			}
			if t.lanes[l.kind] == nil {
				t.lanes[l.kind], t.within[l.kind] = map[*lane]struct{}{}, n.Within(l.kind.asks)
			}
			t.lanes[l.kind][l] = struct{}{}
			l.entitled = l.entitled || t.within[l.kind]
		}
	}
	if l.entitled {
		p.entitled++
	}
}

// unregister is the opposite of register, for a lane without sessions.
func (l *lane) unregister() {
	p, c := l.band.owner, l.band.group.cluster
	if p.levels == nil || l.kind.private {
		return
	}
	for _, line := range p.levels {
		for _, n := range line {
			t := c.levels[n.Index]
			if delete(t.lanes[l.kind], l); t.lanes != nil && len(t.lanes[l.kind]) == 0 {
				delete(t.lanes, l.kind)
				delete(t.within, l.kind)
			}
		}
	}
	if l.entitled {
		p.entitled--
	}
}

// chargeLevels adds what a live session holds to the levels of its owner; sign -1 takes it off.
func (g *group) chargeLevels(r *running, sign int) {
	p := g.fairness.ownerOf(r.account)
	if p.levels == nil {
		return
	}
	p.levels.Use(r.asks(), cluster.Amount(sign))
	if sign < 0 {
		g.cluster.loosenLevels(p)
	}
	for _, line := range p.levels {
		for _, n := range line {
			t := g.cluster.levels[n.Index]
			for k, lanes := range t.lanes {
				if now := n.Within(k.asks); now != t.within[k] {
					t.within[k] = now
					for l := range lanes {
						l.entitle()
					}
				}
			}
		}
	}
}

// entitle looks again whether a lane stays within a guarantee, and restores its place in the queue.
func (l *lane) entitle() {
	p, g := l.band.owner, l.band.group
	now := p.isEntitled(l.kind)
	if now == l.entitled {
		return
	}
	t := g.queue.kinds[l.kind]
	if l.standing == mayStart { // it leaves the heap by its old place and returns by the new one
		t.leave(l)
	}
	if l.entitled = now; now {
		p.entitled++
		g.queue.events++ // it may find victims
		g.reservations.released = true
	} else {
		p.entitled--
	}
	if l.standing == mayStart {
		t.enter(l)
	}
}

// aheadIn counts the sessions of a band that come before w, one by one: its lanes have different places.
func (q *queue) aheadIn(b *band, w *waiting) int {
	n := 0
	if w.lane.entitled && b.owner.entitled == 0 {
		return 0
	}
	for _, c := range b.all.chunks {
		for _, x := range c {
			if x != w && q.before(x, w) < 0 {
				n++
			}
		}
	}
	return n
}

// explainLevel puts an excess at a level of the tree into words.
func explainLevel(o *quota.Excess) *Explanation {
	text := func(v cluster.Amount) string { return o.Slot.Text(v) }
	where := o.Node.Path
	if o.Node.Group != "" {
		where += " in resource group " + o.Node.Group
	}
	e := &Explanation{Reason: WaitsForQuota, Shortfall: cluster.Slots{o.Slot: o.Asked - o.Left()},
		Text: fmt.Sprintf("%s limit %s, %s in use", where, text(o.Limit), text(o.Used))}
	if o.Kept > 0 {
		e.Text += fmt.Sprintf(", %s kept for those who wait for what they are guaranteed", text(o.Kept))
	}
	e.Text += ", and it asks for " + text(o.Asked)
	if left := o.Left(); left > 0 {
		e.Remedies = append(e.Remedies, "ask for "+text(left)+" at most")
	}
	if o.Asked > o.Limit {
		e.Text += ", more than the whole limit"
	} else {
		e.Remedies = append(e.Remedies, "wait until sessions in "+where+" end")
	}
	e.Remedies = append(e.Remedies, "ask for a higher limit of "+where)
	return e
}

// borrowed finds the live sessions that stand beyond the guarantees of all their levels: of the sessions below a level, the first that
// started are within its guarantee, as far as it reaches. Whoever ends some of these takes nothing that is guaranteed.
func (c *Cluster) borrowed() map[*running]bool {
	out := map[*running]bool{}
	if c.tree == nil {
		return out
	}
	var all []*running
	for _, e := range c.sessions {
		if e.running != nil && !e.running.private {
			all = append(all, e.running)
		}
	}
	slices.SortFunc(all, func(a, b *running) int {
		return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.id, b.id))
	})
	sums := map[*quota.Node]map[cluster.SlotName]cluster.Amount{}
	for _, r := range all {
		p := r.group.fairness.ownerOf(r.account)
		if p.levels == nil {
			out[r] = true
			continue
		}
		covered, asks := false, r.asks()
		for _, n := range slices.Concat(p.levels[0], p.levels[1]) {
			if sums[n] == nil {
				sums[n] = map[cluster.SlotName]cluster.Amount{}
			}
			for _, a := range asks {
				sums[n][a.Slot] += a.Amount
			}
			covered = covered || n.Covers(asks, sums[n])
		}
		out[r] = !covered
	}
	maps.DeleteFunc(out, func(_ *running, b bool) bool { return !b })
	return out
}
