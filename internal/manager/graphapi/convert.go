package graphapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/tunnel"
)

// The official clients decode some JSONString fields unconditionally: those are never
// null here (slots, containers, dependencies, user_info); api-visible enums are upper case.

func jsonText(v any) *string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("graphapi: render JSON text: %v", err)) // only maps of plain values come here
	}
	return new(string(b))
}

// jsonObject is jsonText with nil rendered as an empty object.
func jsonObject[M ~map[string]V, V any](m M) *string {
	if m == nil {
		return new("{}")
	}
	return jsonText(m)
}

func slotsText(s cluster.Slots) *string { return jsonObject(s.Wire()) }

func texts[S ~string](in []S) []*string {
	out := make([]*string, len(in))
	for i, s := range in {
		out[i] = new(string(s))
	}
	return out
}

// optional is nil for the empty text.
func optional[S ~string](s S) *string {
	if s == "" {
		return nil
	}
	return new(string(s))
}

// wirePort is an app in the text of service_ports. No port of a host is ever published.
type wirePort struct {
	Name           string `json:"name"`
	Protocol       string `json:"protocol"`
	ContainerPorts []int  `json:"container_ports"`
	HostPorts      []int  `json:"host_ports"`
	IsInference    bool   `json:"is_inference"`
}

// servicePorts is the JSON text of the apps of a session: those that every session has, then what its image declares.
func servicePorts(declared []session.ServicePort) *string {
	out := []wirePort{
		{
			Name: "sshd", Protocol: "tcp", ContainerPorts: []int{tunnel.PortSSH},
		}, {Name: "sftp", Protocol: "tcp", ContainerPorts: []int{tunnel.PortSFTP}},
		{Name: "ttyd", Protocol: "http", ContainerPorts: []int{tunnel.PortTerminal}},
	}
	for _, p := range declared {
		out = append(out, wirePort{Name: p.Name, Protocol: p.Protocol, ContainerPorts: p.Ports})
	}
	for i := range out {
		out[i].HostPorts = []int{}
	}
	return jsonText(out)
}

func toSession(s *session.Session) *model.ComputeSession {
	m := &model.ComputeSession{
		ID: new(string(s.ID)), Name: &s.Name, Type: new(strings.ToUpper(string(s.Type))), Priority: &s.Priority,
		Tag: s.Tag, Image: &s.Image, Architecture: &s.Architecture, Registry: &s.Registry,
		ClusterMode: &s.ClusterMode, ClusterSize: &s.ClusterSize,
		DomainName: &s.Domain, GroupName: &s.ProjectName, GroupID: new(string(s.ProjectID)),
		AgentIds: texts(s.AgentIDs), Agents: texts(s.AgentIDs),
		UserEmail: &s.UserEmail, FullName: &s.UserFullName, UserID: new(string(s.UserID)),
		CreatedUserEmail: &s.UserEmail, CreatedUserID: new(string(s.UserID)), AccessKey: new(string(s.AccessKey)),
		Status: new(string(s.Status)), StatusInfo: &s.StatusInfo, StatusData: jsonObject(s.StatusData), StatusChanged: &s.StatusChanged,
		CreatedAt: &s.CreatedAt, TerminatedAt: s.EndedAt, StartsAt: s.StartsAt, ScheduledAt: s.ScheduledAt,
		StartupCommand: s.StartupCommand, Result: new(string(s.Result)), CallbackURL: s.CallbackURL,
		ResourceOpts: jsonObject(s.ResourceOpts), ScalingGroup: &s.ResourceGroup,
		ServicePorts: servicePorts(nil), Mounts: []*string{}, VfolderMounts: []*string{},
		OccupyingSlots: slotsText(s.OccupyingSlots), OccupiedSlots: slotsText(s.OccupyingSlots), RequestedSlots: slotsText(s.RequestedSlots),
		NumQueries: &s.NumQueries, Containers: []*model.ComputeContainer{}, AbusingReports: []*string{}, SessionID: new(string(s.ID)),
	}
	if main := s.MainKernel(); main != nil {
		m.MainKernelID, m.MainKernelRole = new(string(main.ID)), new(main.ClusterRole)
		m.ServicePorts = servicePorts(main.ServicePorts)
	}
	seen := map[cluster.FolderID]bool{}
	for _, f := range s.Mounts { // clients put names and ids together by their places
		if !seen[f.Folder] {
			seen[f.Folder] = true
			m.Mounts, m.VfolderMounts = append(m.Mounts, new(f.Name)), append(m.VfolderMounts, new(string(f.Folder)))
		}
	}
	for i := range s.Kernels {
		m.Containers = append(m.Containers, toContainer(&s.Kernels[i]))
	}
	return m
}

func toContainer(k *session.Kernel) *model.ComputeContainer {
	m := &model.ComputeContainer{
		ID: new(string(k.ID)), KernelID: new(string(k.ID)), SessionID: new(string(k.SessionID)),
		Idx: &k.ClusterIdx, ClusterIdx: &k.ClusterIdx, Role: &k.ClusterRole, ClusterRole: &k.ClusterRole,
		Hostname: &k.ClusterHostname, ClusterHostname: &k.ClusterHostname, LocalRank: &k.LocalRank,
		Image: &k.Image, Architecture: &k.Architecture, Registry: &k.Registry,
		Status: new(string(k.Status)), StatusChanged: &k.StatusChanged, StatusInfo: &k.StatusInfo, StatusData: jsonObject(k.StatusData),
		CreatedAt: &k.CreatedAt, TerminatedAt: k.EndedAt, ScheduledAt: k.ScheduledAt,
		Agent: optional(k.Agent), AgentAddr: optional(k.AgentAddr), ContainerID: optional(k.ContainerID),
		ExitCode: k.ExitCode, ResourceOpts: jsonObject(k.ResourceOpts), OccupiedSlots: slotsText(k.OccupiedSlots), PreopenPorts: []*int{},
	}
	for i := range k.PreopenPorts {
		m.PreopenPorts = append(m.PreopenPorts, &k.PreopenPorts[i])
	}
	if k.LiveStat != nil {
		m.LiveStat = jsonText(kernelStat(k))
	}
	if k.LastStat != nil {
		m.LastStat = jsonText(k.LastStat)
	}
	return m
}

func number(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

func toAgent(a *node.Agent) *model.Agent {
	m := &model.Agent{
		ID: new(string(a.ID)), Status: new(string(a.Status)), StatusChanged: &a.StatusChanged, Region: &a.Region,
		Architecture: &a.Architecture, ScalingGroup: &a.ResourceGroup, Schedulable: &a.Schedulable,
		AvailableSlots: slotsText(a.Capacity), OccupiedSlots: slotsText(a.Occupied), Addr: &a.Addr,
		FirstContact: &a.FirstContact, LostAt: a.LostAt, Version: &a.Version, NotDeliveredSince: a.NotDeliveredSince,
		ComputePlugins: new("{}"),
		LocalConfig:    new("{}"),
		HardwareMetadata: jsonText(map[string]any{"engine": a.Engine, "engine_ok": a.EngineOK, "engine_error": a.EngineError,
			"warnings": a.Warnings, "devices": a.Devices}),
		Conditions: jsonText(a.Conditions),
	}
	if a.Live != nil {
		m.LiveStat = jsonText(agentStat(a))
		if v, ok := a.Live["cpu_util"]; ok {
			m.CPUCurPct = &v
		}
		if v, ok := a.Live["mem"]; ok {
			m.MemCurBytes = &v
		}
	}
	if m.MemCurBytes == nil {
		m.MemCurBytes = new(float64) // the official client's agent list divides it without asking
	}
	return m
}

func toImage(im *image.Image) *model.Image {
	name := im.Name // on the wire with its project
	if im.Project != "" {
		name = im.Project + "/" + im.Name
	}
	m := &model.Image{
		ID: new(string(im.ID)), Name: &name, HumanizedName: &im.Name, Project: &im.Project, Registry: &im.Registry,
		Architecture: &im.Architecture, Tag: &im.Tag, Digest: &im.Digest, SizeBytes: &im.SizeBytes, Status: &im.Status,
		IsLocal: new(im.RegistryType == "local"), Installed: new(len(im.Agents) > 0), InstalledAgents: texts(im.Agents),
		Aliases: texts(im.Aliases), CreatedAt: &im.CreatedAt, LastUsedAt: im.LastUsedAt,
		Labels: []*model.KVPair{}, ResourceLimits: []*model.ResourceLimit{}, SupportedAccelerators: []*string{},
	}
	for _, key := range sortedKeys(im.Labels) {
		value := im.Labels[key]
		m.Labels = append(m.Labels, &model.KVPair{Key: &key, Value: &value})
	}
	for _, slot := range im.Min.Add(im.Max).Names() {
		limit := &model.ResourceLimit{Key: new(string(slot)), Min: new(im.Min[slot].String())}
		if upper, ok := im.Max[slot]; ok {
			limit.Max = new(upper.String())
		}
		m.ResourceLimits = append(m.ResourceLimits, limit)
	}
	for _, name := range strings.Split(im.Labels["ai.backend.accelerators"], ",") {
		if name = strings.TrimSpace(name); name != "" {
			m.SupportedAccelerators = append(m.SupportedAccelerators, &name)
		}
	}
	return m
}

func toKeypair(k *tenancy.Keypair) *model.KeyPair {
	m := &model.KeyPair{
		ID: new(globalID("KeyPairNode", string(k.AccessKey))), UserID: &k.UserEmail, User: new(string(k.UserID)),
		UserInfo: &model.UserInfo{Email: &k.UserEmail, FullName: &k.UserFullName},
		Projects: texts(k.Projects), AccessKey: new(string(k.AccessKey)), IsActive: &k.IsActive, IsAdmin: &k.IsAdmin,
		ResourcePolicy: &k.ResourcePolicy, CreatedAt: &k.CreatedAt, ModifiedAt: &k.ModifiedAt, LastUsed: k.LastUsed,
		RateLimit: &k.RateLimit, NumQueries: new(int(k.NumQueries)), ConcurrencyUsed: &k.ConcurrencyUsed,
		SSHPublicKey: optional(k.SSHPublicKey), Dotfiles: jsonText(k.Dotfiles), BootstrapScript: &k.BootstrapScript,
		ConcurrencyLimit: &k.ConcurrencyLimit, IsMain: &k.IsMain, ExpiresAt: k.ExpiresAt, ReplacedBy: optional(k.ReplacedBy),
	}
	if secret := k.SecretKey.Reveal(); secret != "" {
		m.SecretKey = &secret
	}
	return m
}

func toResourceGroup(g *resource.Group) *model.ScalingGroup {
	return &model.ScalingGroup{
		Name: &g.Name, Description: g.Description, IsActive: &g.IsActive, IsPublic: &g.IsPublic, CreatedAt: &g.CreatedAt,
		WsproxyAddr: g.WsproxyAddr, Driver: &g.Driver, DriverOpts: jsonObject(g.DriverOpts),
		Scheduler: &g.Scheduler, SchedulerOpts: jsonObject(g.AllSchedulerOpts()), UseHostNetwork: &g.UseHostNetwork, Egress: &g.Egress,
		EncryptedNetworks: &g.EncryptedNetworks,
	}
}

// statusHistory is the wire's map of status to the time of its first arrival.
func statusHistory(times map[cluster.Status]time.Time) *string {
	at := map[string]string{}
	for status, t := range times {
		at[string(status)] = t.Format(time.RFC3339Nano)
	}
	return jsonText(at)
}
