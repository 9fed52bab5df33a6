package administration

import (
	"encoding/json"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
)

// agentWork answers how an agent stands and whose sessions it holds.
func (h *Handlers) agentWork(c route.Call) error {
	agent, sessions, total, err := h.Nodes.Work(c.Context(), c.Actor(), cluster.AgentID(c.Path("a")))
	if err != nil {
		return err
	}
	out := agentState(agent)
	out.SessionCount = total
	for _, s := range sessions {
		out.Sessions = append(out.Sessions, api.AgentSession{ID: string(s.ID), Name: s.Name, Type: string(s.Type), Status: string(s.Status),
			User: s.UserEmail, AccessKey: string(s.AccessKey), CreatedAt: api.TimeText(s.CreatedAt), EndsBy: route.TimeOrNil(s.EndsBy),
			Containers: s.Kernels, Devices: devicesOf(s.Devices)})
	}
	return route.OK(c, out)
}

// devicesOf are amounts as the wire has them; nil where nothing is held.
func devicesOf(a map[cluster.SlotName]map[string]cluster.Amount) map[string]map[string]string {
	var out map[string]map[string]string
	for slot, amounts := range a {
		for device, amount := range amounts {
			if out == nil {
				out = map[string]map[string]string{}
			}
			if out[string(slot)] == nil {
				out[string(slot)] = map[string]string{}
			}
			out[string(slot)][device] = amount.String()
		}
	}
	return out
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

func (h *Handlers) modifyAgent(c route.Call) error {
	p, err := c.Params()
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
	if err := h.Nodes.Modify(c.Context(), c.Actor(), cluster.AgentID(c.Path("a")), change); err != nil {
		return err
	}
	return h.agentWork(c)
}

func (h *Handlers) schedulerStatus(c route.Call) error {
	groups, err := h.Sessions.SchedulerStatus(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	out := api.SchedulerStatus{Manager: h.NodeID, Groups: make([]api.GroupStatus, len(groups)), AsOf: api.TimeText(h.Now())}
	for i, g := range groups {
		if g.Leader {
			out.Leader, out.Drift = true, g.Drift
			if !g.LastPass.IsZero() {
				out.LastPass = api.TimeText(g.LastPass)
			}
		}
		out.Groups[i] = api.GroupStatus{
			Name: g.Name, Active: g.Active, Scheduler: g.Scheduler, Placement: g.Placement, Warning: g.Warning, Pending: g.Pending,
			Reasons: notNull(g.Reasons),
			Running: g.Running, AgentsAlive: g.Alive, AgentsCordoned: g.Cordoned, AgentsLost: g.Lost, Capacity: g.Capacity.Wire(),
			Occupied: g.Occupied.Wire(),
		}
	}
	return route.OK(c, out)
}

// schedulingPolicies are the names that resource groups can choose from.
func (h *Handlers) schedulingPolicies(c route.Call) error {
	orders, placements, err := h.Resources.SchedulingPolicies(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, api.SchedulingPolicies{Orders: orders, Placements: placements})
}

func (h *Handlers) schedulerPolicy(c route.Call) error {
	g, err := h.Resources.GetGroup(c.Context(), c.Actor(), c.Path("sg"))
	if err != nil {
		return err
	}
	return route.OK(c, policyOf(g))
}

func policyOf(g *resource.Group) api.SchedulerPolicy {
	opts, err := json.Marshal(notNull(g.SchedulerOpts))
	if err != nil {
		opts = []byte("{}") // what comes out of jsonb always encodes
	}
	return api.SchedulerPolicy{ResourceGroup: g.Name, Active: g.IsActive, Scheduler: g.Scheduler, Placement: g.Placement, Options: opts}
}

// setSchedulerPolicy takes scheduler and scheduler_opts, the latter as a JSON merge patch. The answer is what is
// then in effect.
func (h *Handlers) setSchedulerPolicy(c route.Call) error {
	p, err := c.Params()
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
	if err := h.Resources.ModifyGroup(c.Context(), c.Actor(), c.Path("sg"), props); err != nil {
		return err
	}
	return h.schedulerPolicy(c)
}

// groupNetwork is what sessions of a resource group may reach.
func (h *Handlers) groupNetwork(c route.Call) error {
	g, err := h.Resources.GetGroup(c.Context(), c.Actor(), c.Path("sg"))
	if err != nil {
		return err
	}
	return route.OK(c, api.GroupNetwork{ResourceGroup: g.Name, Egress: g.Egress, EncryptedNetworks: g.EncryptedNetworks})
}

// setGroupNetwork takes egress; the answer is what then holds.
func (h *Handlers) setGroupNetwork(c route.Call) error {
	p, err := c.Params()
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
	if err := h.Resources.ModifyGroup(c.Context(), c.Actor(), c.Path("sg"), resource.GroupProps{Egress: egress}); err != nil {
		return err
	}
	return h.groupNetwork(c)
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

// notNull is a map that is written as an object, also when it is nil.
func notNull[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func (h *Handlers) setAnnouncement(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	enabled, message := p.Flag("enabled", false), p.Optional("message")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Operations.SetAnnouncement(c.Context(), c.Actor(), enabled, message); err != nil {
		return err
	}
	return c.Nothing()
}

func (h *Handlers) setManagerStatus(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	status, kill := p.Need("status"), p.Flag("force_kill", false)
	if kill && status != "frozen" {
		p.Fail("force_kill", "goes with the status frozen")
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Operations.SetManagerStatus(c.Context(), c.Actor(), status); err != nil {
		return err
	}
	if kill { // after the freeze, so that no new ones come
		if _, err := h.Sessions.EndAll(c.Context(), c.Actor()); err != nil {
			return err
		}
	}
	return c.Nothing()
}

func (h *Handlers) schedulerOperation(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	op, args := p.Need("op"), p.List("args")
	if op != "" && op != "include-agents" && op != "exclude-agents" {
		p.Fail("op", "must be include-agents or exclude-agents")
	}
	if err := p.Err(); err != nil {
		return err
	}
	ids := make([]cluster.AgentID, len(args))
	for i, id := range args {
		ids[i] = cluster.AgentID(id)
	}
	if err := h.Nodes.SetSchedulable(c.Context(), c.Actor(), ids, op == "include-agents"); err != nil {
		return err
	}
	return c.Nothing()
}
