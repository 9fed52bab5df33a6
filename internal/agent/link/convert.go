package link

import (
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// desiredOf reads a kernel of a Desired message. What it cannot read is an error of that
// kernel alone.
func desiredOf(p *node.DesiredKernel) (cluster.DesiredKernel, error) {
	id, ok := cluster.CanonicalUUID(p.GetKernelId())
	if !ok {
		return cluster.DesiredKernel{}, fault.Invalidf("kernel id %q is not a UUID", p.GetKernelId())
	}
	d := cluster.DesiredKernel{
		Kernel: cluster.KernelID(id), Session: cluster.SessionID(p.GetSessionId()), Generation: p.GetGeneration(),
		Stop: p.GetStop(), Force: p.GetForce(), Grace: time.Duration(p.GetGraceMs()) * time.Millisecond,
		StopReason: cluster.Reason(p.GetStopReason()),
	}
	egress, err := cluster.ParseEgress(p.GetEgress())
	if err != nil {
		// A newer manager may know more policies. What is not understood opens nothing.
		egress = cluster.Egress{Mode: cluster.EgressNone}
	}
	d.Egress = egress
	for _, w := range p.GetWithheld() {
		d.Withheld = append(d.Withheld, cluster.Withheld{Folder: cluster.FolderID(w.GetFolderId()), Name: w.GetName(), Scope: w.GetScope(),
			ReadOnly: w.GetReadOnly()})
	}
	if k := p.GetAuthorizedKeys(); k != nil {
		d.AuthorizedKeys = append([]string{}, k.GetLines()...)
	}
	if d.Network, err = networkOf(p.GetNetwork()); err != nil {
		return d, fmt.Errorf("kernel %s: %w", id, err)
	}
	if d.HostPeers, err = hostPeersOf(p.GetHostPeers()); err != nil {
		return d, fmt.Errorf("kernel %s: %w", id, err)
	}
	d.AllRun = p.GetAllRun() && !d.Stop
	s := p.GetSpec()
	if s == nil {
		return d, nil
	}
	slots := cluster.Slots{}
	for name, text := range s.GetSlots() {
		a, err := cluster.ParseAmount(cluster.SlotCount, text) // plain decimals, whatever the slot counts
		if err != nil {
			return d, fmt.Errorf("kernel %s: slot %s: %w", id, name, err)
		}
		if a != 0 {
			slots[cluster.SlotName(name)] = a
		}
	}
	spec := &cluster.KernelSpec{
		Image: s.GetImage(), ImageDigest: s.GetImageDigest(), ImageLabels: s.GetImageLabels(), RegistryType: s.GetRegistryType(),
		RegistryAuth: s.GetRegistryAuth(), AutoPull: s.GetAutoPull(), Hostname: s.GetHostname(), Hosts: s.GetHosts(), Env: s.GetEnv(),
		Slots: slots, Allocation: s.GetAllocation(), ShmBytes: s.GetShmBytes(), UID: int(s.GetUid()), GID: int(s.GetGid()),
		SessionName: s.GetSessionName(), SessionType: cluster.SessionType(s.GetSessionType()), RuntimeType: s.GetRuntimeType(),
		RuntimePath: s.GetRuntimePath(), StartupCommand: s.GetStartupCommand(),
		BatchTimeout:    time.Duration(s.GetBatchTimeoutMs()) * time.Millisecond,
		BootstrapScript: s.GetBootstrapScript(), ServicePorts: s.GetServicePorts(), ClusterRole: s.GetClusterRole(),
		ClusterIdx: int(s.GetClusterIdx()), LocalRank: int(s.GetLocalRank()), PeerSecret: s.GetPeerSecret(),
		HostNetwork: s.GetHostNetwork(),
	}
	for _, g := range s.GetExtraGids() {
		spec.ExtraGIDs = append(spec.ExtraGIDs, int(g))
	}
	for _, f := range s.GetDotfiles() {
		spec.Dotfiles = append(spec.Dotfiles, cluster.Dotfile{Path: f.GetPath(), Perm: f.GetPerm(), Data: string(f.GetData())})
	}
	for _, port := range s.GetPreopenPorts() {
		spec.PreopenPorts = append(spec.PreopenPorts, int(port))
	}
	for _, m := range s.GetMounts() {
		spec.Mounts = append(spec.Mounts, cluster.FolderMount{
			Folder: cluster.FolderID(m.GetFolderId()), Name: m.GetName(), Host: m.GetHost(), Scope: m.GetScope(), Usage: m.GetUsageMode(),
			Perm: cluster.MountPermission(m.GetPermission()), Subpath: m.GetSubpath(), Target: m.GetTarget(), VolumePath: m.GetVolumePath(),
			OwnerUID: int(m.GetOwnerUid()), OwnerGID: int(m.GetOwnerGid()),
		})
	}
	d.Spec = spec
	return d, nil
}

func observedOf(o cluster.KernelObservation, logTail string) *node.ObservedKernel {
	p := &node.ObservedKernel{
		KernelId: string(o.Kernel), SessionId: string(o.Session), Generation: o.Generation, Phase: node.Phase(o.Phase),
		Reason: string(o.Reason), Detail: text(o.Detail), Signal: int32(o.Signal), OomKilled: o.OOMKilled, Failed: o.Failed,
		RetryElsewhere: o.RetryElsewhere, AgentsFault: o.AgentsFault, StartedUnixMs: unixMS(o.StartedAt), EndedUnixMs: unixMS(o.EndedAt),
		ContainerId: o.ContainerID, Allocation: o.Allocation, LogTail: text(logTail), Batch: o.Batch, TimedOut: o.TimedOut,
		HostEndpoint: o.HostEndpoint,
	}
	if o.ExitCode != nil {
		code := int32(*o.ExitCode)
		p.ExitCode = &code
	}
	return p
}

// text replaces what is not UTF-8: a program may print any bytes, and one message that cannot be
// encoded would end the control stream.
func text(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

func texts(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, text(s))
	}
	return out
}

func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func progressOf(p keeper.Progress) *node.Up {
	return &node.Up{Kind: &node.Up_Progress{Progress: &node.Progress{
		KernelId: string(p.Kernel), Generation: p.Generation, Current: p.Current, Total: p.Total, Message: text(p.Message)}}}
}

func metricsOf(s meter.Sample) *node.Up {
	m := &node.Metrics{AtUnixMs: s.At.UnixMilli(), Node: s.Node}
	for id, v := range s.Kernels {
		m.Kernels = append(m.Kernels, &node.KernelMetrics{KernelId: string(id), Values: v})
	}
	return &node.Up{Kind: &node.Up_Metrics{Metrics: m}}
}

func conditionsOf(list []cluster.Condition) []*node.Condition {
	out := make([]*node.Condition, 0, len(list))
	for _, c := range list[:min(len(list), cluster.MaxConditions)] {
		out = append(out, &node.Condition{Type: string(c.Type), Reason: text(c.Reason), Message: text(c.Message), SinceUnixMs: unixMS(c.Since),
			Blocks: c.Blocks})
	}
	return out
}

func factsOf(f Facts) *node.Up {
	p := &node.Facts{
		Architecture: f.Architecture, Hostname: f.Hostname, Slots: f.Capacity.Wire(), SlotKinds: map[string]string{},
		Engine: f.Engine, EngineOk: f.EngineOK, EngineError: text(f.EngineError), Warnings: texts(f.Warnings), Revision: f.Revision,
		Conditions:  conditionsOf(f.Conditions),
		HungVolumes: f.HungVolumes, DiskProblem: text(f.DiskProblem), DataAddress: f.DataAddress, DataSocket: f.DataSocket,
		NetworkAddress: f.NetworkAddress,
		TunnelKey:      f.TunnelKey, TunnelPort: int32(f.TunnelPort), TunnelProblem: text(f.TunnelProblem),
	}
	for name, kind := range f.SlotKinds {
		p.SlotKinds[string(name)] = string(kind)
	}
	for _, d := range f.Devices {
		q := &node.Device{Slot: string(d.Slot), Id: d.ID, Model: text(d.Model), Numa: int32(d.NUMA), Pci: d.PCI,
			Capacity: int64(d.Capacity), Healthy: d.Healthy, Problem: text(d.Problem), Memory: d.Memory, Isolation: string(d.Isolation)}
		for id, distance := range d.Links {
			if q.Links == nil {
				q.Links = map[string]int32{}
			}
			q.Links[id] = int32(distance)
		}
		p.Devices = append(p.Devices, q)
	}
	for _, i := range f.Images {
		p.Images = append(p.Images, &node.Image{
			Reference: i.Reference, Digest: i.Digest, Architecture: i.Architecture, SizeBytes: i.SizeBytes, Labels: i.Labels,
		})
	}
	return &node.Up{Kind: &node.Up_Facts{Facts: p}}
}

// revocationsOf reads which app proxies were revoked.
func revocationsOf(g *node.Grants) []proxy.Revocation {
	list := g.GetRevocations()
	list = list[:min(len(list), proxy.MaxRevocations)]
	out := make([]proxy.Revocation, 0, len(list))
	for _, r := range list {
		out = append(out, proxy.Revocation{Proxy: r.GetProxy(), Until: time.Unix(r.GetUntilUnix(), 0).UTC()})
	}
	return out
}
