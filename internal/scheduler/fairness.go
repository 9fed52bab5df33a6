package scheduler

import "berth.dev/berth/internal/cluster"

// fairness is what owners hold now and held before in a group: the input of the order policies drf and fair-share.
//
// Invariant: the Dominant of every owner is the dominant share of its usage.
type fairness struct {
	group    *group           // whose it is
	capacity []cluster.Amount // of all agents, by slot number
	decayed  map[Scope]float64
	owners   map[*account]*groupOwner
	usages   map[Scope]*usage
	changed  bool // decayed changed since the last pass
}

// ownerOf finds an owner in a group.
func (f *fairness) ownerOf(a *account) *groupOwner {
	p := f.owners[a]
	if p == nil {
		p = &groupOwner{group: f.group, account: a, ownerShares: ownerShares{Owner: a.owner}, usage: f.usageOf(a.owner)}
		p.usage.owners = append(p.usage.owners, p)
		f.place(p)
		p.Dominant = f.dominant(p.usage)
		f.owners[a] = p
	}
	return p
}

// usageOf finds what a user holds in the group. A keypair without a user stands for itself.
func (f *fairness) usageOf(o Owner) *usage {
	key := Scope{ScopeUser, string(o.User)}
	if o.User == "" {
		key = Scope{ScopeKeypair, string(o.AccessKey)}
	}
	u := f.usages[key]
	if u == nil {
		u = &usage{}
		f.usages[key] = u
	}
	return u
}

// noteShares takes over the decayed shares of an owner. A user has a share of their own in a project where they have a weight there.
func (f *fairness) noteShares(p *groupOwner) {
	o := p.Owner
	of := func(kind ScopeKind, id string) float64 { return f.decayed[Scope{kind, id}] }
	p.Domain, p.Project, p.User = of(ScopeDomain, o.Domain), of(ScopeProject, string(o.Project)), of(ScopeUser, string(o.User))
	p.Line = nil
	tree := f.group.cluster.tree
	if tree == nil {
		return
	}
	if v, weighed := f.decayed[MemberScope(o.Project, o.User)]; weighed {
		p.User = v
	}
	for _, above := range tree.Above(o.Project) {
		p.Line = append(p.Line, of(ScopeProject, string(above)))
	}
	p.Line = append(p.Line, p.Project, p.User)
}

// dominant is a dominant share: the largest part, over slots, of the group's capacity that is held.
func (f *fairness) dominant(u *usage) float64 {
	most := 0.0
	for slot, v := range u.used {
		if c := f.capacityOf(int32(slot)); v > 0 && c > 0 {
			most = max(most, float64(v)/float64(c))
		}
	}
	return most
}

// capacityOf is the group's capacity of a slot. A slot may be newer than the last count of the capacity.
func (f *fairness) capacityOf(slot int32) cluster.Amount {
	if int(slot) < len(f.capacity) {
		return f.capacity[slot]
	}
	return 0
}
