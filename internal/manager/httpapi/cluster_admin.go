package httpapi

import (
	"encoding/json"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
)

// clusterAdminRoutes are our extensions for those who run the cluster.
func (a *API) clusterAdminRoutes() {
	a.handle(signedOnly, a.agentWork, "GET /resource/agents/{a}")
	a.handle(signedOnly, a.modifyAgent, "PATCH /resource/agents/{a}")
	a.handle(signedOnly, a.schedulerStatus, "GET /manager/scheduler")
	a.handle(signedOnly, a.schedulingPolicies, "GET /config/scheduling-policies")
	a.handle(signedOnly, a.schedulerPolicy, "GET /scaling-groups/{sg}/scheduler")
	a.handle(signedOnly, a.setSchedulerPolicy, "PATCH /scaling-groups/{sg}/scheduler")
	a.handle(signedOnly, a.groupNetwork, "GET /scaling-groups/{sg}/network")
	a.handle(signedOnly, a.setGroupNetwork, "PATCH /scaling-groups/{sg}/network")
}

// agentWork answers how an agent stands and whose sessions it holds.
func (a *API) agentWork(c *call) error {
	agent, sessions, total, err := a.nodes.Work(c.ctx(), c.actor, cluster.AgentID(c.r.PathValue("a")))
	if err != nil {
		return err
	}
	out := agentState(agent)
	out.SessionCount = total
	for _, s := range sessions {
		out.Sessions = append(out.Sessions, api.AgentSession{ID: string(s.ID), Name: s.Name, Type: string(s.Type), Status: string(s.Status),
			User: s.UserEmail, AccessKey: string(s.AccessKey), CreatedAt: isoTime(s.CreatedAt), EndsBy: isoTimeOrNil(s.EndsBy),
			Containers: s.Kernels})
	}
	return c.ok(out)
}

func agentState(a *node.Agent) api.AgentWork {
	out := api.AgentWork{
		ID: string(a.ID), Status: string(a.Status), Schedulable: a.Schedulable, ResourceGroup: a.ResourceGroup,
		Sessions: []api.AgentSession{},
	}
	for _, c := range a.Conditions {
		out.Conditions = append(out.Conditions, api.AgentCondition{Type: string(c.Type), Reason: c.Reason, Message: c.Message, Since: c.Since,
			Blocks: c.Blocks})
	}
	return out
}

func (a *API) modifyAgent(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	change := node.Change{ResourceGroup: p.Optional("scaling_group|scalingGroup")}
	if p.Has("schedulable") {
		change.Schedulable = new(p.Flag("schedulable", true))
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.nodes.Modify(c.ctx(), c.actor, cluster.AgentID(c.r.PathValue("a")), change); err != nil {
		return err
	}
	return a.agentWork(c)
}

func (a *API) schedulerStatus(c *call) error {
	groups, err := a.sessions.SchedulerStatus(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	out := api.SchedulerStatus{Manager: a.info.NodeID, Groups: make([]api.GroupStatus, len(groups)), AsOf: isoTime(a.now())}
	for i, g := range groups {
		if g.Leader {
			out.Leader, out.Drift = true, g.Drift
			if !g.LastPass.IsZero() {
				out.LastPass = isoTime(g.LastPass)
			}
		}
		out.Groups[i] = api.GroupStatus{
			Name: g.Name, Active: g.Active, Scheduler: g.Scheduler, Placement: g.Placement, Warning: g.Warning, Pending: g.Pending,
			Reasons: orEmpty(g.Reasons),
			Running: g.Running, AgentsAlive: g.Alive, AgentsCordoned: g.Cordoned, AgentsLost: g.Lost, Capacity: g.Capacity.Wire(),
			Occupied: g.Occupied.Wire(),
		}
	}
	return c.ok(out)
}

// schedulingPolicies are the names that resource groups can choose from.
func (a *API) schedulingPolicies(c *call) error {
	orders, placements, err := a.resources.SchedulingPolicies(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.SchedulingPolicies{Orders: orders, Placements: placements})
}

func (a *API) schedulerPolicy(c *call) error {
	g, err := a.resources.GetGroup(c.ctx(), c.actor, c.r.PathValue("sg"))
	if err != nil {
		return err
	}
	return c.ok(policyOf(g))
}

func policyOf(g *resource.Group) api.SchedulerPolicy {
	opts, err := json.Marshal(orEmpty(g.SchedulerOpts))
	if err != nil {
		opts = []byte("{}") // what comes out of jsonb always encodes
	}
	return api.SchedulerPolicy{ResourceGroup: g.Name, Active: g.IsActive, Scheduler: g.Scheduler, Placement: g.Placement, Options: opts}
}

// setSchedulerPolicy takes scheduler and scheduler_opts, the latter as a JSON merge patch. The answer is what is
// then in effect.
func (a *API) setSchedulerPolicy(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	props := resource.GroupProps{Scheduler: p.Optional("scheduler")}
	if v, ok := p.Get("scheduler_opts|schedulerOpts"); ok {
		if props.SchedulerPatch, ok = plain(v).(map[string]any); !ok {
			p.Fail("scheduler_opts", "must be an object")
		}
	}
	if err := p.Err(); err != nil {
		return err
	}
	if props.Scheduler == nil && props.SchedulerPatch == nil {
		return fault.Invalidf("nothing is said that should change").WithNext("pass scheduler or scheduler_opts")
	}
	if err := a.resources.ModifyGroup(c.ctx(), c.actor, c.r.PathValue("sg"), props); err != nil {
		return err
	}
	return a.schedulerPolicy(c)
}

// groupNetwork is what sessions of a resource group may reach.
func (a *API) groupNetwork(c *call) error {
	g, err := a.resources.GetGroup(c.ctx(), c.actor, c.r.PathValue("sg"))
	if err != nil {
		return err
	}
	return c.ok(api.GroupNetwork{ResourceGroup: g.Name, Egress: g.Egress})
}

// setGroupNetwork takes egress; the answer is what then holds.
func (a *API) setGroupNetwork(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	egress := p.Optional("egress")
	if err := p.Err(); err != nil {
		return err
	}
	if egress == nil || *egress == "" {
		return fault.Invalidf("nothing is said that should change").WithNext("pass egress: open, none or proxy:ADDRESS:PORT")
	}
	if err := a.resources.ModifyGroup(c.ctx(), c.actor, c.r.PathValue("sg"), resource.GroupProps{Egress: egress}); err != nil {
		return err
	}
	return a.groupNetwork(c)
}

// plain turns the numbers of a decoded body into float64, as a reader of stored JSON sees them.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = plain(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = plain(item)
		}
		return out
	}
	return v
}
