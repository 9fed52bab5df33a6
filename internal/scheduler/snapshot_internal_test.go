package scheduler

import (
	"maps"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// Plan and Snapshot are for tests: the manager keeps a Cluster and tells it what changes. The tests compare the two.

// Snapshot is everything a pass may look at, for one resource group.
type Snapshot struct {
	// Now is the instant of the pass; the scheduler has no clock of its own.
	Now    time.Time
	Group  Group
	Agents []Agent
	// Running are the live sessions of the group; what is left of agents follows from them.
	Running []Running
	Pending []Session
	// Quotas limit owners.
	Quotas map[Scope]Quota
	// Tree are the hierarchical quotas.
	Tree quota.Facts
	// Shares orders owners under fair-share; an owner without an entry has used nothing.
	Shares map[Scope]float64
}

// Plan decides about every pending session of the snapshot: each gets exactly one Decision. First
// come those that start or preempt, in the order in which they were decided, then those that wait,
// with a Hold, in the order of the queue. The result depends only on the snapshot's values.
//
// It is one unbounded pass of a Cluster that is filled from the snapshot.
//
// The error is Invalid for a policy name that is not registered or an option that it does not have.
func Plan(s Snapshot) ([]Decision, error) {
	c := NewCluster()
	if err := c.Fill(s); err != nil {
		return nil, err
	}
	result, err := c.Pass(s.Group.Name, s.Now, Work{})
	if err != nil {
		return nil, err
	}
	decisions := result.Decisions
	g := c.groups[s.Group.Name]
	var queue []*waiting
	for _, x := range s.Pending {
		if w := c.sessions[x.ID].waiting; w != nil && g.reservations.claimOf(w) == nil {
			queue = append(queue, w)
		}
	}
	positions := map[cluster.SessionID]int{}
	all := slices.Clone(queue)
	for _, claim := range g.reservations.claims {
		all = append(all, claim.w)
	}
	slices.SortFunc(all, g.queue.before)
	for i, w := range all {
		positions[w.id] = i + 1
	}
	for _, d := range decisions {
		if d.Hold != nil {
			d.Hold.Position = positions[d.Session]
		}
	}
	slices.SortFunc(queue, g.queue.before)
	known := map[*kind]*Explanation{}
	for _, w := range queue {
		var e *Explanation
		k := w.lane.kind
		// Sessions of a kind have one explanation, apart from those with an estimate of their own or over a limit.
		alike := w.queued && positions[w.id] > len(g.reservations.reserved)+1 && g.reservations.reservationOf(w) == nil &&
			w.lane.band.owner.over(k) == nil
		if alike && known[k] != nil {
			e = known[k].clone()
		} else {
			e = g.explain(w)
			if alike {
				known[k] = e.clone()
			}
		}
		e.Position = positions[w.id]
		decisions = append(decisions, Decision{Session: w.id, Hold: e})
	}
	return decisions, nil
}

// Fill adds what a snapshot holds.
func (c *Cluster) Fill(s Snapshot) error {
	if err := c.SetGroup(s.Group); err != nil {
		return err
	}
	c.SetTree(s.Tree)
	name := s.Group.Name
	c.group(name).queue.now = nanos(s.Now)
	for i := range s.Agents {
		c.SetAgent(name, s.Agents[i])
	}
	for _, key := range sortedScopes(s.Quotas) {
		q := s.Quotas[key]
		c.SetQuota(key, &q)
	}
	for _, key := range sortedScopes(s.Shares) {
		c.SetShare(name, key, s.Shares[key])
	}
	for _, r := range s.Running {
		c.Run(name, r)
	}
	for _, x := range s.Pending {
		c.Enqueue(name, x)
	}
	return nil
}

func sortedScopes[V any](m map[Scope]V) []Scope {
	return slices.SortedFunc(maps.Keys(m), func(a, b Scope) int {
		return strings.Compare(string(a.Kind)+"/"+a.ID, string(b.Kind)+"/"+b.ID)
	})
}

func (e *Explanation) clone() *Explanation {
	out := *e
	out.Rejected, out.Shortfall, out.Remedies = maps.Clone(e.Rejected), e.Shortfall.Clone(), slices.Clone(e.Remedies)
	out.Elsewhere = slices.Clone(e.Elsewhere)
	return &out
}
