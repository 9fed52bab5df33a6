package httpapi

import (
	"strings"

	"berth.dev/berth/internal/cluster"
)

func (a *API) settingRoutes() {
	a.handle(public, a.announcement, "GET /manager/announcement")
	a.handle(signedOnly, a.setAnnouncement, "POST /manager/announcement")
	a.handle(signedOnly, a.managerStatus, "GET /manager/status")
	a.handle(signedOnly, a.setManagerStatus, "PUT /manager/status")
	a.handle(signedOnly, a.schedulerOperation, "POST /manager/scheduler/operation")
	a.handle(signedOnly, a.doctor, "GET /manager/doctor")
	a.handle(signedOnly, a.resourceSlots, "GET /config/resource-slots")
	a.handle(signedOnly, a.resourceSlotDetails, "GET /config/resource-slots/details")
	a.handle(signedOnly, func(c *call) error { return c.ok([]string{"user", "group"}) }, "GET /config/vfolder-types")
	a.handle(signedOnly, func(c *call) error { return c.ok(object{}) }, "GET /resource/container-registries", "GET /config/docker-registries")
	a.handle(signedOnly, a.resourceGroups, "GET /scaling-groups")
	// Errors of clients are not kept: the list is empty and reports are taken and dropped.
	a.handle(signedOnly, func(c *call) error { return c.ok(object{"logs": []any{}, "count": 0}) }, "GET /logs/error")
	a.handle(signedOnly, func(c *call) error { return c.ok(object{"success": true}) }, "POST /logs/error", "POST /logs/error/{id}/clear")
}

func (a *API) announcement(c *call) error {
	enabled, message, err := a.operations.Announcement(c.ctx())
	if err != nil {
		return err
	}
	return c.ok(object{"enabled": enabled, "message": message})
}

func (a *API) setAnnouncement(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	enabled, message := p.flag("enabled", false), p.optional("message")
	if err := p.err(); err != nil {
		return err
	}
	if err := a.operations.SetAnnouncement(c.ctx(), c.actor, enabled, message); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) managerStatus(c *call) error {
	st, err := a.operations.ManagerStatus(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	major, date, _ := strings.Cut(strings.TrimPrefix(a.info.APIVersion, "v"), ".")
	m := &params{body: map[string]any{"major": major}, bad: map[string]string{}}
	node := object{
		"id": a.info.NodeID, "num_proc": 1, "service_addr": c.r.Host, "heartbeat_timeout": 30, "ssl_enabled": c.r.TLS != nil,
		"active_sessions": st.ActiveSessions, "status": st.Status, "version": a.info.ManagerVersion,
		"api_version": []any{m.number("major", 0, 0, 1000), date},
	}
	return c.ok(object{"nodes": []object{node}, "status": st.Status, "active_sessions": st.ActiveSessions})
}

func (a *API) setManagerStatus(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	status := p.need("status")
	p.flag("force_kill", false)
	if err := p.err(); err != nil {
		return err
	}
	if err := a.operations.SetManagerStatus(c.ctx(), c.actor, status); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) schedulerOperation(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	op, args := p.need("op"), p.list("args")
	if op != "" && op != "include-agents" && op != "exclude-agents" {
		p.fail("op", "must be include-agents or exclude-agents")
	}
	if err := p.err(); err != nil {
		return err
	}
	ids := make([]cluster.AgentID, len(args))
	for i, id := range args {
		ids[i] = cluster.AgentID(id)
	}
	if err := a.nodes.SetSchedulable(c.ctx(), c.actor, ids, op == "include-agents"); err != nil {
		return err
	}
	return c.nothing()
}

// doctor is our extension: what the rows of the cluster say that should not be.
func (a *API) doctor(c *call) error {
	found, err := a.operations.Doctor(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	if a.apps != nil {
		apps, err := a.apps.Findings(c.ctx())
		if err != nil {
			return err
		}
		found = append(found, apps...)
	}
	list := make([]object, 0, len(found))
	for _, f := range found {
		list = append(list, object{"severity": f.Severity, "kind": f.Kind, "object": f.Object, "detail": f.Detail, "next": f.Next})
	}
	return c.ok(object{"findings": list})
}

func (a *API) resourceSlots(c *call) error {
	slots, err := a.resources.Slots(c.ctx())
	if err != nil {
		return err
	}
	reply := object{}
	for _, s := range slots {
		reply[s.Name] = s.Kind
	}
	return c.ok(reply)
}

func (a *API) resourceSlotDetails(c *call) error {
	slots, err := a.resources.Slots(c.ctx())
	if err != nil {
		return err
	}
	reply := object{}
	for _, s := range slots {
		reply[s.Name] = object{
			"slot_name": s.Name, "description": s.Description, "human_readable_name": s.HumanName, "display_unit": s.DisplayUnit,
			"number_format": object{"binary": s.Binary, "round_length": s.RoundLength}, "display_icon": s.DisplayIcon,
		}
	}
	return c.ok(reply)
}

func (a *API) resourceGroups(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	project := p.text("group|group_id|group_name", "")
	if err := p.err(); err != nil {
		return err
	}
	groups, err := a.resources.AllowedGroups(c.ctx(), c.actor, project)
	if err != nil {
		return err
	}
	list := make([]object, 0, len(groups))
	for _, g := range groups {
		list = append(list, object{"name": g.Name})
	}
	return c.ok(object{"scaling_groups": list})
}
