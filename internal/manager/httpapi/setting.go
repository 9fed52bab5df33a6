package httpapi

import (
	"strconv"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/authz"
)

func (a *API) settingRoutes() {
	// Every command of official clients asks for it.
	a.handle(probed, a.announcement, "GET /manager/announcement")
	a.handle(signedOnly, a.managerStatus, "GET /manager/status")
	a.handle(signedOnly, a.doctor, "GET /manager/doctor")
	a.handle(signedOnly, a.resourceSlots, "GET /config/resource-slots")
	a.handle(signedOnly, a.resourceSlotDetails, "GET /config/resource-slots/details")
	a.handle(signedOnly, func(c *call) error { return c.ok([]string{"user", "group"}) }, "GET /config/vfolder-types")
	a.handle(
		signedOnly, func(c *call) error { return c.ok(api.Empty{}) }, "GET /resource/container-registries", "GET /config/docker-registries",
	)
	a.handle(signedOnly, a.resourceGroups, "GET /scaling-groups")
}

func (a *API) announcement(c *call) error {
	enabled, message, err := a.operations.Announcement(c.ctx())
	if err != nil {
		return err
	}
	return c.ok(api.Announcement{Enabled: enabled, Message: message})
}

func (a *API) managerStatus(c *call) error {
	st, err := a.operations.ManagerStatus(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	major, date, _ := strings.Cut(strings.TrimPrefix(a.info.APIVersion, "v"), ".")
	number, _ := strconv.Atoi(major) // 0 for a version that is none
	node := api.ManagerNode{
		ID: "manager", Processes: 1, HeartbeatTimeout: 30, SSL: c.r.TLS != nil,
		ActiveSessions: st.ActiveSessions, Status: st.Status, Version: a.info.ManagerVersion,
		APIVersion: api.VersionParts{Major: number, Date: date},
	}
	if authz.Cluster.May(c.actor, authz.Administer, authz.Object{}) { // names and addresses of hosts are nothing for users
		node.ID, node.ServiceAddr = a.info.NodeID, c.r.Host
	}
	return c.ok(api.ManagerStatus{Nodes: []api.ManagerNode{node}, Status: st.Status, ActiveSessions: st.ActiveSessions})
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
	list := make([]admin.Finding, 0, len(found))
	for _, f := range found {
		list = append(list, admin.Finding{Severity: f.Severity, Kind: f.Kind, Object: f.Object, Detail: f.Detail, Next: f.Next})
	}
	return c.ok(admin.FindingList{Findings: list})
}

func (a *API) resourceSlots(c *call) error {
	slots, err := a.resources.Slots(c.ctx())
	if err != nil {
		return err
	}
	reply := map[string]string{}
	for _, s := range slots {
		reply[s.Name] = string(s.Kind)
	}
	return c.ok(reply)
}

func (a *API) resourceSlotDetails(c *call) error {
	slots, err := a.resources.Slots(c.ctx())
	if err != nil {
		return err
	}
	reply := map[string]api.SlotDetails{}
	for _, s := range slots {
		reply[s.Name] = api.SlotDetails{
			Name: s.Name, Description: s.Description, HumanName: s.HumanName, DisplayUnit: s.DisplayUnit,
			Format: api.NumberFormat{Binary: s.Binary, RoundLength: s.RoundLength}, DisplayIcon: s.DisplayIcon,
		}
	}
	return c.ok(reply)
}

func (a *API) resourceGroups(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	project := p.Text("group|group_id|group_name", "")
	if err := p.Err(); err != nil {
		return err
	}
	groups, err := a.resources.AllowedGroups(c.ctx(), c.actor, project)
	if err != nil {
		return err
	}
	list := make([]api.ResourceGroupName, 0, len(groups))
	for _, g := range groups {
		list = append(list, api.ResourceGroupName{Name: g.Name})
	}
	return c.ok(api.ResourceGroupNames{Groups: list})
}
