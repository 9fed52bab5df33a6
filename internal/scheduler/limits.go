package scheduler

import (
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// scope is an owner with a quota (a keypair, user, project or domain) and what its live sessions hold in all groups.
type scope struct {
	key      Scope
	quota    *Quota
	limits   []want           // quota.Slots, by slot number
	used     []cluster.Amount // by slot number
	sessions int              // live, without private ones
	private  int
	lanes    map[*lane]struct{} // that wait for this quota
	loosened bool               // it holds less, or the quota changed, since lanes were looked at
}

func (s *scope) closed() bool { return s.quota != nil && s.quota.Closed }

// account is one owner of sessions with its scopes.
type account struct {
	owner  Owner
	scopes []*scope
}

// usage is what one user holds in one group: its dominant share is made of it.
type usage struct {
	used   []cluster.Amount
	owners []*groupOwner
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

func addTo(sums []cluster.Amount, wants []want, sign cluster.Amount) []cluster.Amount {
	for _, w := range wants {
		for int(w.slot) >= len(sums) {
			sums = append(sums, 0)
		}
		sums[w.slot] += sign * w.amount
	}
	return sums
}

// loosen notes that lanes that wait for a quota are to be looked at again.
func (c *Cluster) loosen(s *scope) {
	if !s.loosened && len(s.lanes) > 0 {
		s.loosened = true
		c.loosened = append(c.loosened, s)
	}
}

// wakeLoosened puts lanes back into their heaps that the quota does not keep any more.
func (c *Cluster) wakeLoosened() {
	for _, s := range c.loosened {
		s.loosened = false
		for _, l := range slices.SortedFunc(maps.Keys(s.lanes), byLane) {
			g := l.band.group
			if o := l.band.owner.over(l.kind); o == nil || o.scope != s {
				g.queue.unlimit(l)
			}
		}
	}
	c.loosened = c.loosened[:0]
}

const slotSessions, slotClosed int32 = -1, -2 // what an excess may be about that is no slot

// excess is a quota that a session would exceed.
type excess struct {
	scope *scope
	slot  int32 // slotSessions: the count of sessions; slotClosed: the owner starts nothing
	used  cluster.Amount
	limit cluster.Amount
	asked cluster.Amount
	level *quota.Excess // where it is one of the tree
}

// closed finds an owner that starts nothing, nil when there is none.
func (a *account) closed() *scope {
	if i := slices.IndexFunc(a.scopes, (*scope).closed); i >= 0 {
		return a.scopes[i]
	}
	return nil
}

// over finds a quota that one more session of a kind would exceed, nil when there is none. Only slots that the session asks for count.
func (a *account) over(k *kind) *excess {
	if s := a.closed(); s != nil {
		return &excess{scope: s, slot: slotClosed}
	}
	for _, s := range a.scopes {
		if s.quota == nil {
			continue
		}
		if k.private {
			if n := s.private; s.quota.Private >= 0 && Exceeds(cluster.Amount(s.quota.Private), cluster.Amount(n), 1) {
				return &excess{scope: s, slot: slotSessions, used: cluster.Amount(n), limit: cluster.Amount(s.quota.Private)}
			}
			continue
		}
		if n := s.sessions; s.quota.Sessions >= 0 && Exceeds(cluster.Amount(s.quota.Sessions), cluster.Amount(n), 1) {
			return &excess{scope: s, slot: slotSessions, used: cluster.Amount(n), limit: cluster.Amount(s.quota.Sessions)}
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
				if Exceeds(l.amount, used, w.amount) {
					return &excess{scope: s, slot: l.slot, used: used, limit: l.amount, asked: w.amount}
				}
			}
		}
	}
	return nil
}

// explain puts an excess into words.
func (o *excess) explain(c *Cluster, k *kind) *Explanation {
	if o.level != nil {
		return explainLevel(o.level)
	}
	who := o.scope.quota.Name
	if who == "" {
		who = o.scope.key.ID
	}
	who = string(o.scope.key.Kind) + " " + who
	if o.slot == slotClosed {
		return &Explanation{Reason: WaitsForOwner, Text: who + " is not active",
			Remedies: []string{"wait until an administrator makes " + who + " active again", "end the session"}}
	}
	if o.slot == slotSessions {
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
			slot.Text(o.used), slot.Text(o.limit), slot.Text(o.asked)),
		Shortfall: cluster.Slots{slot: o.used + o.asked - o.limit},
	}
	if left := o.limit - o.used; left > 0 && k.kernels == 1 {
		e.Remedies = append(e.Remedies, "ask for "+slot.Text(left)+" at most")
	}
	if o.asked <= o.limit {
		e.Remedies = append(e.Remedies, "end sessions of "+who+" that use "+slot.Text(o.used+o.asked-o.limit))
	} else {
		e.Text += ", more than the whole quota"
	}
	e.Remedies = append(e.Remedies, "ask for a larger quota of "+who)
	return e
}
