package scheduler

import (
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Cluster is the scheduler's memory of all resource groups: agents, running and waiting
// sessions, quotas. It is updated in place by what changed, and a pass costs what changed
// since the one before. It is not safe for concurrent use, and it is pure: the same calls in
// the same order give the same decisions.
type Cluster struct {
	groups map[string]*Snapshot
	quotas map[Scope]Quota
	where  map[cluster.SessionID]string // session to group
}

// Work bounds one pass, so that it stays short and others are heard in between.
type Work struct {
	// Placements is the most sessions one pass starts; 0: no bound.
	Placements int
	// Steps bounds the looks at agents, in units of one request compared with one agent; 0: no bound.
	Steps int
}

// Result is what one pass over a group decided.
type Result struct {
	// Decisions are the sessions that start or preempt, in queue order.
	Decisions []Decision
	// More is set when the bound on work ended the pass: call again at once.
	More bool
	// Wake is when time alone changes something: a start time, the end of a reservation. Zero: never.
	Wake time.Time
}

// Depth describes a group's queue.
type Depth struct {
	Pending int
	Reasons map[Reason]int
}

// NewCluster returns an empty cluster.
func NewCluster() *Cluster {
	return &Cluster{groups: map[string]*Snapshot{}, quotas: map[Scope]Quota{}, where: map[cluster.SessionID]string{}}
}

// SetGroup adds a resource group or changes its policy at once; its queue and agents stay.
// The error is Invalid for a policy that is not registered.
func (c *Cluster) SetGroup(g Group) error {
	if _, err := orderOf(g.Order); err != nil {
		return err
	}
	c.group(g.Name).Group = g
	return nil
}

func (c *Cluster) group(name string) *Snapshot {
	if c.groups[name] == nil {
		c.groups[name] = &Snapshot{Group: Group{Name: name}}
	}
	return c.groups[name]
}

// RemoveGroup forgets a group with its agents and sessions.
func (c *Cluster) RemoveGroup(name string) {
	delete(c.groups, name)
	maps.DeleteFunc(c.where, func(_ cluster.SessionID, g string) bool { return g == name })
}

// SetAgent adds an agent to a group or replaces its facts. What it runs stays.
func (c *Cluster) SetAgent(group string, a Agent) {
	c.RemoveAgent(a.ID)
	s := c.group(group)
	s.Agents = append(s.Agents, a)
}

// RemoveAgent forgets an agent; sessions that run there stay known and count against quotas.
func (c *Cluster) RemoveAgent(id cluster.AgentID) {
	for _, s := range c.groups {
		s.Agents = slices.DeleteFunc(s.Agents, func(a Agent) bool { return a.ID == id })
	}
}

// SetQuota limits an owner; nil lifts the limit.
func (c *Cluster) SetQuota(scope Scope, q *Quota) {
	if q == nil {
		delete(c.quotas, scope)
		return
	}
	c.quotas[scope] = *q
}

// SetShare records an owner's decayed use in a group for fair-share, as a part of what the
// group could give, divided by the owner's weight; smaller goes first.
func (c *Cluster) SetShare(group string, scope Scope, share float64) {
	s := c.group(group)
	if s.Shares == nil {
		s.Shares = map[Scope]float64{}
	}
	s.Shares[scope] = share
}

// Learn gives placement policies that value agents by what typical requests could still use a
// list to learn from; without it they learn from what is enqueued. The error is Invalid for a
// group that does not exist.
func (c *Cluster) Learn(group string, typical []Session) error {
	if c.groups[group] == nil {
		return fault.Invalidf("resource group %s does not exist", group)
	}
	return nil
}

// Enqueue adds a waiting session or replaces what is known of it, also when it ran before.
func (c *Cluster) Enqueue(group string, session Session) {
	c.Remove(session.ID)
	s := c.group(group)
	s.Pending = append(s.Pending, session)
	c.where[session.ID] = group
}

// Run records that a session is live and what its kernels hold, also when it waited before.
// Call it again when one of its kernels ends.
func (c *Cluster) Run(group string, r Running) {
	c.Remove(r.ID)
	s := c.group(group)
	s.Running = append(s.Running, r)
	c.where[r.ID] = group
}

// Remove forgets a session that ended or was withdrawn.
func (c *Cluster) Remove(id cluster.SessionID) {
	s := c.groups[c.where[id]]
	if s == nil {
		return
	}
	delete(c.where, id)
	s.Pending = slices.DeleteFunc(s.Pending, func(x Session) bool { return x.ID == id })
	s.Running = slices.DeleteFunc(s.Running, func(x Running) bool { return x.ID == id })
}

// Pass decides about a group at an instant. Sessions that it starts count as running from
// then on: a caller that could not commit one says so by Enqueue, with fresher facts of its
// agents by SetAgent and Run. Victims count as running until the caller removes them.
func (c *Cluster) Pass(group string, now time.Time, work Work) (Result, error) {
	s := c.group(group)
	s.Now, s.Quotas = now, c.quotas
	decisions, err := Plan(*s)
	if err != nil {
		return Result{}, err
	}
	var out Result
	for _, d := range decisions {
		if d.Hold != nil {
			continue
		}
		if work.Placements > 0 && len(out.Decisions) == work.Placements {
			out.More = true
			break
		}
		out.Decisions = append(out.Decisions, d)
	}
	for _, d := range out.Decisions {
		i := slices.IndexFunc(s.Pending, func(x Session) bool { return x.ID == d.Session })
		c.Run(group, Running{Session: s.Pending[i], StartedAt: now, Placements: d.Placements})
	}
	return out, nil
}

// Explain says why a waiting session waits, as of the last pass; ok is false when it does not wait.
// It looks at one session, whatever the length of the queue.
func (c *Cluster) Explain(id cluster.SessionID) (e Explanation, ok bool) {
	s := c.groups[c.where[id]]
	if s == nil {
		return Explanation{}, false
	}
	decisions, err := Plan(*s)
	if err != nil {
		return Explanation{}, false
	}
	for _, d := range decisions {
		if d.Session == id && d.Hold != nil {
			return *d.Hold, true
		}
	}
	return Explanation{}, false
}

// Probe plans one more session, without adding it: its placements when it would start now, else why not.
func (c *Cluster) Probe(group string, now time.Time, session Session) Decision {
	s := *c.group(group)
	s.Now, s.Pending = now, append(slices.Clone(s.Pending), session)
	decisions, err := Plan(s)
	if err == nil {
		for _, d := range decisions {
			if d.Session == session.ID {
				return d
			}
		}
	}
	return Decision{Session: session.ID, Hold: &Explanation{Reason: WaitsForAgent, Text: "its resource group cannot plan"}}
}

// Queue describes the group's waiting sessions by reason, as of the last pass.
func (c *Cluster) Queue(group string) Depth {
	d := Depth{Reasons: map[Reason]int{}}
	s := c.groups[group]
	if s == nil {
		return d
	}
	d.Pending = len(s.Pending)
	for _, x := range s.Pending {
		if e, ok := c.Explain(x.ID); ok {
			d.Reasons[e.Reason]++
		}
	}
	return d
}
