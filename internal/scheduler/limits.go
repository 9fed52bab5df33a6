package scheduler

import (
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// scope is somebody with a quota, with what his live sessions hold in all groups.
type scope struct {
	key   Scope
	quota *Quota
	// limits are quota.Slots by number.
	limits   []want
	used     []cluster.Amount // by slot number
	sessions int              // live, without private ones
	private  int
	lanes    map[*lane]struct{} // that wait for this quota
	loosened bool               // use shrank or the quota changed since the last look
}

// account is one owner with his scopes.
type account struct {
	owner  Owner
	scopes []*scope
}

// usage is what one user holds in one group, for dominant shares.
type usage struct {
	used    []cluster.Amount
	parties []*party
}

func (c *Cluster) scopeOf(key Scope) *scope {
	s := c.scopes[key]
	if s == nil {
		s = &scope{key: key, lanes: map[*lane]struct{}{}}
		c.scopes[key] = s
	}
	return s
}

func (c *Cluster) accountOf(o Owner) *account {
	a := c.accounts[o]
	if a == nil {
		a = &account{owner: o}
		for _, key := range o.Scopes() {
			if key.ID != "" {
				a.scopes = append(a.scopes, c.scopeOf(key))
			}
		}
		c.accounts[o] = a
	}
	return a
}

// partyOf finds an owner in a group.
func (g *group) partyOf(a *account) *party {
	p := g.parties[a]
	if p == nil {
		p = &party{account: a, Party: Party{Owner: a.owner}, usage: g.usageOf(a.owner)}
		p.usage.parties = append(p.usage.parties, p)
		p.Domain, p.Project, p.User = g.sharesOf(a.owner)
		p.Dominant = g.dominant(p.usage)
		g.parties[a] = p
	}
	return p
}

// usageOf finds what a user holds in the group; a keypair without a user stands for itself.
func (g *group) usageOf(o Owner) *usage {
	key := Scope{ScopeUser, string(o.User)}
	if o.User == "" {
		key = Scope{ScopeKeypair, string(o.AccessKey)}
	}
	u := g.usages[key]
	if u == nil {
		u = &usage{}
		g.usages[key] = u
	}
	return u
}

func (g *group) sharesOf(o Owner) (domain, project, user float64) {
	return g.shares[Scope{ScopeDomain, o.Domain}], g.shares[Scope{ScopeProject, string(o.Project)}], g.shares[Scope{ScopeUser, string(o.User)}]
}

// dominant is the largest part of the group's capacity of a slot that is held.
func (g *group) dominant(u *usage) float64 {
	most := 0.0
	for slot, v := range u.used {
		if v > 0 && slot < len(g.capacity) && g.capacity[slot] > 0 {
			most = max(most, float64(v)/float64(g.capacity[slot]))
		}
	}
	return most
}

func addTo(sums []cluster.Amount, wants []want, sign cluster.Amount) []cluster.Amount {
	for _, w := range wants {
		for int(w.slot) >= len(sums) {
			sums = append(sums, 0)
		}
		sums[w.slot] += sign * w.amount
	}
	return sums
}

// charge books a live session to its owners; sign -1 gives back.
func (g *group) charge(r *running, sign int) {
	for _, s := range r.account.scopes {
		if r.private {
			s.private += sign
		} else {
			s.sessions += sign
			s.used = addTo(s.used, r.sum, cluster.Amount(sign))
		}
		if sign < 0 {
			g.cluster.loosen(s)
		}
	}
	if r.private {
		return
	}
	u := g.usageOf(r.account.owner)
	u.used = addTo(u.used, r.sum, cluster.Amount(sign))
	share := g.dominant(u)
	if len(u.parties) == 0 || u.parties[0].Dominant == share {
		return
	}
	// Lanes leave the heaps by their old order and return by the new one.
	var moved []*lane
	for _, p := range u.parties {
		for _, l := range p.lanes {
			if g.byShare && l.aside == inTurn {
				g.kinds[l.kind].leave(l)
				moved = append(moved, l)
			}
		}
	}
	for _, p := range u.parties {
		p.Dominant = share
	}
	for _, l := range moved {
		g.kinds[l.kind].enter(l)
	}
}

// loosen notes that sessions that wait for a quota should be looked at again.
func (c *Cluster) loosen(s *scope) {
	if !s.loosened && len(s.lanes) > 0 {
		s.loosened = true
		c.loosened = append(c.loosened, s)
	}
}

// wakeLoosened makes lanes ready whose quota has room again.
func (c *Cluster) wakeLoosened() {
	for _, s := range c.loosened {
		s.loosened = false
		for _, l := range slices.SortedFunc(maps.Keys(s.lanes), byLane) {
			g := l.band.group
			if o := g.over(l.band.party.account, l.kind); o == nil || o.scope != s {
				g.unlimit(l)
			}
		}
	}
	c.loosened = c.loosened[:0]
}

// excess is a quota that a session would exceed.
type excess struct {
	scope *scope
	slot  int32 // -1: the count of sessions
	used  cluster.Amount
	limit cluster.Amount
	asked cluster.Amount
}

// over finds a quota that one more session of the kind would exceed, nil when there is none.
// Only slots that the session asks for are looked at.
func (g *group) over(a *account, k *kind) *excess {
	for _, s := range a.scopes {
		if s.quota == nil {
			continue
		}
		if k.private {
			if n := s.private; s.quota.Private >= 0 && n >= s.quota.Private {
				return &excess{scope: s, slot: -1, used: cluster.Amount(n), limit: cluster.Amount(s.quota.Private), asked: 1}
			}
			continue
		}
		if n := s.sessions; s.quota.Sessions >= 0 && n >= s.quota.Sessions {
			return &excess{scope: s, slot: -1, used: cluster.Amount(n), limit: cluster.Amount(s.quota.Sessions), asked: 1}
		}
		for _, w := range k.sum {
			for _, l := range s.limits {
				if l.slot != w.slot || w.amount <= 0 {
					continue
				}
				used := cluster.Amount(0)
				if int(l.slot) < len(s.used) {
					used = s.used[l.slot]
				}
				if used+w.amount > l.amount {
					return &excess{scope: s, slot: l.slot, used: used, limit: l.amount, asked: w.amount}
				}
			}
		}
	}
	return nil
}

// explain puts an excess into words.
func (o *excess) explain(c *Cluster, k *kind) *Explanation {
	who := o.scope.quota.Name
	if who == "" {
		who = o.scope.key.ID
	}
	who = string(o.scope.key.Kind) + " " + who
	if o.slot < 0 {
		what := "sessions"
		if k.private {
			what = "private sessions"
		}
		return &Explanation{
			Reason:   WaitsForConcurrency,
			Text:     fmt.Sprintf("%s has %d live %s, the limit is %d", who, o.used, what, o.limit),
			Remedies: []string{"end a session of " + who, "ask for a higher limit of sessions for " + who},
		}
	}
	slot := c.slots.name[o.slot]
	e := &Explanation{
		Reason: WaitsForQuota,
		Text: fmt.Sprintf("%s uses %s of its quota of %s, and it asks for %s", who,
			amountText(slot, o.used), amountText(slot, o.limit), amountText(slot, o.asked)),
		Shortfall: cluster.Slots{slot: o.used + o.asked - o.limit},
	}
	if left := o.limit - o.used; left > 0 && k.kernels == 1 {
		e.Remedies = append(e.Remedies, "ask for "+amountText(slot, left)+" at most")
	}
	if o.asked <= o.limit {
		e.Remedies = append(e.Remedies, "end sessions of "+who+" that use "+amountText(slot, o.used+o.asked-o.limit))
	} else {
		e.Text += ", more than the whole quota"
	}
	e.Remedies = append(e.Remedies, "ask for a larger quota of "+who)
	return e
}
