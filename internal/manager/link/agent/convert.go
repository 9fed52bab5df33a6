package agent

import (
	"encoding/json"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// Bounds of what one agent may claim; beyond them the report is refused or cut.
const (
	maxDevices = 4096
	maxImages  = 20000
	maxText    = 4096
	maxLogTail = 1 << 20
	maxName    = 256
	maxLines   = 256 // warnings, and volumes that hang
	maxSlots   = 64
	// maxDescribed bounds the text about all devices, in bytes.
	maxDescribed = 4 << 20
	// maxMetrics bounds the values of one kernel or node in one report.
	maxMetrics = 1024
	// maxAmount bounds what an agent has of one slot: 64 TiB of memory. Sums over many agents stay in range.
	maxAmount = cluster.Amount(1) << 56
)

// device is a device as the agents.devices column and the scheduler read it.
type device struct {
	Slot     string         `json:"Slot"`
	ID       string         `json:"ID"`
	Model    string         `json:"Model,omitempty"`
	NUMA     int            `json:"NUMA"`
	PCI      string         `json:"PCI,omitempty"`
	Capacity int64          `json:"Capacity"`
	Healthy  bool           `json:"Healthy"`
	Links    map[string]int `json:"Links,omitempty"`
	// What the allocator does not look at.
	Problem string `json:"Problem,omitempty"`
	Memory  int64  `json:"Memory,omitempty"`

	Isolation cluster.Isolation `json:"Isolation,omitempty"`
}

func factsOf(f *node.Facts) (cluster.NodeFacts, error) {
	if len(f.Devices) > maxDevices || len(f.Images) > maxImages {
		return cluster.NodeFacts{}, fault.Exhaustedf("the agent reports %d devices and %d images, at most %d and %d are taken",
			len(f.Devices), len(f.Images), maxDevices, maxImages)
	}
	out := cluster.NodeFacts{
		Revision: f.Revision, Architecture: cut(f.Architecture, maxName), Hostname: cut(f.Hostname, maxName),
		Capacity: cluster.Slots{}, SlotKinds: map[cluster.SlotName]cluster.SlotKind{},
		Engine: cut(f.Engine, maxName), EngineOK: f.EngineOk, EngineError: cut(f.EngineError, maxText),
		Warnings: cutAll(f.Warnings, maxText), HungVolumes: cutAll(f.HungVolumes, maxName),
		DiskProblem: cut(f.DiskProblem, maxText), Conditions: conditionsOf(f.Conditions),
	}
	if dataAddress(f.DataAddress) {
		out.DataAddress = f.DataAddress
	}
	if a, err := netip.ParseAddr(f.NetworkAddress); err == nil && node.NetworkAddress(a) {
		out.NetworkAddress = a.String()
	}
	out.TunnelProblem = cut(f.TunnelProblem, maxSentence)
	if node.TunnelKey(f.TunnelKey) && f.TunnelPort > 0 && f.TunnelPort <= 65535 {
		out.TunnelKey, out.TunnelPort = f.TunnelKey, int(f.TunnelPort)
	}
	if node.DataSocket(f.DataSocket) {
		out.DataSocket = f.DataSocket
	}
	if len(f.Slots) > maxSlots {
		return cluster.NodeFacts{}, fault.Exhaustedf("the agent reports %d slots, at most %d are taken", len(f.Slots), maxSlots)
	}
	for slot, text := range f.Slots {
		kind := kindOfSlot(slot, f.SlotKinds[slot])
		// Slots of bytes are plain numbers on this wire.
		v, err := cluster.ParseAmount(kind, text)
		if err != nil || v < 0 || v > maxAmount || !slotName(slot) {
			return cluster.NodeFacts{}, fault.Invalidf("the agent reports %.80q of slot %.80q", text, slot).WithCause(err)
		}
		out.Capacity[cluster.SlotName(slot)] = v
		out.SlotKinds[cluster.SlotName(slot)] = kind
	}
	devices := make([]device, 0, len(f.Devices))
	left := map[string]cluster.Amount{}
	for _, d := range f.Devices {
		if _, known := left[d.Slot]; !known {
			left[d.Slot] = maxAmount
		}
		if d.Capacity < 0 || cluster.Amount(d.Capacity) > left[d.Slot] {
			return cluster.NodeFacts{}, fault.Invalidf("the agent reports a capacity of %d for device %.80q", d.Capacity, d.Id)
		}
		if left[d.Slot] -= cluster.Amount(d.Capacity); len(left) > maxSlots || !slotName(d.Slot) {
			return cluster.NodeFacts{}, fault.Invalidf("the agent reports a device of slot %.80q, or of more than %d slots", d.Slot, maxSlots)
		}
		v := device{Slot: d.Slot, ID: d.Id, Model: d.Model, NUMA: int(d.Numa), PCI: d.Pci, Capacity: d.Capacity, Healthy: d.Healthy,
			Problem: cut(d.Problem, maxSentence), Memory: max(0, d.Memory)}
		v.Isolation, _ = cluster.ParseIsolation(d.Isolation) // what is no level is unknown
		if len(d.Links) > 0 {
			v.Links = make(map[string]int, len(d.Links))
			for id, class := range d.Links {
				v.Links[id] = int(class)
			}
		}
		devices = append(devices, v)
	}
	raw, err := json.Marshal(devices)
	if err != nil {
		return cluster.NodeFacts{}, fault.Invalidf("the agent's devices cannot be stored").WithCause(err)
	}
	if len(raw) > maxDescribed {
		return cluster.NodeFacts{}, fault.Exhaustedf("the agent describes its devices with %d bytes, at most %d are taken", len(raw),
			maxDescribed)
	}
	out.Devices = raw
	// The labels that agents send are left out: managers before decision 22 read them.
	for _, i := range f.Images {
		out.Images = append(out.Images, cluster.NodeImage{
			Reference: i.Reference, Digest: i.Digest, Architecture: i.Architecture, SizeBytes: i.SizeBytes,
		})
	}
	return out, nil
}

// maxSentence bounds the message of a condition, which explanations of waiting sessions repeat.
const maxSentence = 500

// conditionsOf takes what an agent reports of its state. Types that only the manager may give are left out.
func conditionsOf(list []*node.Condition) []cluster.Condition {
	out := make([]cluster.Condition, 0, min(len(list), cluster.MaxConditions))
	for _, c := range list {
		kind := cluster.ConditionType(c.Type)
		if len(out) == cluster.MaxConditions || !kind.Reported() {
			continue
		}
		d := cluster.Condition{Type: kind, Reason: cut(c.Reason, maxName), Message: cut(c.Message, maxSentence), Blocks: c.Blocks}
		if c.SinceUnixMs > 0 {
			d.Since = time.UnixMilli(c.SinceUnixMs).UTC()
		}
		out = append(out, d)
	}
	return out
}

// observationOf reads a kernel report; ok is false for one that names no kernel.
func observationOf(k *node.ObservedKernel) (cluster.KernelObservation, bool) {
	id, ok := cluster.CanonicalUUID(k.KernelId)
	if !ok || k.Phase <= node.Phase_PHASE_UNKNOWN || k.Phase > node.Phase_PHASE_ENDED {
		return cluster.KernelObservation{}, false
	}
	session, _ := cluster.CanonicalUUID(k.SessionId)
	o := cluster.KernelObservation{
		Kernel: cluster.KernelID(id), Session: cluster.SessionID(session), Generation: k.Generation, Phase: cluster.Phase(k.Phase),
		Reason: cluster.Reason(cut(k.Reason, 64)), Detail: cut(k.Detail, maxText), Signal: int(k.Signal), OOMKilled: k.OomKilled,
		Failed: k.Failed, RetryElsewhere: k.RetryElsewhere, AgentsFault: k.AgentsFault,
		StartedAt: fromMS(k.StartedUnixMs), EndedAt: fromMS(k.EndedUnixMs),
		ContainerID: cut(k.ContainerId, 256), Allocation: k.Allocation, Batch: k.Batch, TimedOut: k.TimedOut,
	}
	if at, err := netip.ParseAddrPort(k.HostEndpoint); err == nil && node.NetworkAddress(at.Addr()) && at.Port() >= 1024 {
		o.HostEndpoint = at.String()
	}
	if tail := k.LogTail; len(tail) > maxLogTail {
		o.LogTail = tail[len(tail)-maxLogTail:]
	} else {
		o.LogTail = tail
	}
	if k.ExitCode != nil {
		code := int(*k.ExitCode)
		o.ExitCode = &code
	}
	return o, true
}

func fromMS(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// cut bounds a text of an agent and makes it plain.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	// People read it on terminals, which obey control characters.
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// cutAll bounds a list of texts.
func cutAll(list []string, n int) []string {
	out := make([]string, 0, min(len(list), maxLines))
	for _, text := range list[:min(len(list), maxLines)] {
		out = append(out, cut(text, n))
	}
	return out
}

// kindOfSlot is the kind that an agent reports of a slot, or the only one that the slot can have.
func kindOfSlot(slot, reported string) cluster.SlotKind {
	switch kind := cluster.SlotKind(reported); kind {
	case cluster.SlotCount, cluster.SlotBytes, cluster.SlotUnique:
		return cluster.KindOf(cluster.SlotName(slot), map[cluster.SlotName]cluster.SlotKind{cluster.SlotName(slot): kind})
	}
	return cluster.KindOf(cluster.SlotName(slot), nil)
}

// slotName reports whether a slot may be called that.
func slotName(name string) bool {
	return name != "" && len(name) <= 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == ""
}

func desiredOf(k *cluster.DesiredKernel) *node.DesiredKernel {
	out := &node.DesiredKernel{
		KernelId: string(k.Kernel), SessionId: string(k.Session), Generation: k.Generation,
		Stop: k.Stop, Force: k.Force, GraceMs: k.Grace.Milliseconds(), StopReason: string(k.StopReason),
	}
	if !k.Stop {
		out.AllRun = k.AllRun
		out.Egress = k.Egress.String()
		for _, w := range k.Withheld {
			out.Withheld = append(out.Withheld, &node.Withheld{FolderId: string(w.Folder), Name: w.Name, Scope: w.Scope, ReadOnly: w.ReadOnly})
		}
		if k.AuthorizedKeys != nil {
			out.AuthorizedKeys = &node.AuthorizedKeys{Lines: k.AuthorizedKeys}
		}
		out.Network = networkOf(k.Network)
		for _, h := range k.HostPeers {
			q := &node.HostPeer{Name: h.Name}
			if h.Endpoint.IsValid() {
				q.Endpoint = h.Endpoint.String()
			}
			out.HostPeers = append(out.HostPeers, q)
		}
	}
	if k.Spec != nil {
		out.Spec = specOf(k.Spec)
	}
	return out
}

func networkOf(n *cluster.SessionNetwork) *node.SessionNetwork {
	if n == nil {
		return nil
	}
	out := &node.SessionNetwork{Number: n.Number, Subnet: n.Subnet.String(), Encrypted: n.Encrypted}
	for _, m := range n.Members {
		p := &node.NetworkMember{KernelId: string(m.Kernel), Name: m.Name, AgentId: string(m.Agent)}
		if m.Address.IsValid() {
			p.Address = m.Address.String()
		}
		switch {
		case n.Encrypted && m.Tunnel.Endpoint.IsValid():
			p.TunnelKey, p.TunnelEndpoint = m.Tunnel.Key, m.Tunnel.Endpoint.String()
		case !n.Encrypted && m.Host.IsValid():
			p.Host = m.Host.String()
		}
		out.Members = append(out.Members, p)
	}
	return out
}

func specOf(s *cluster.KernelSpec) *node.KernelSpec {
	out := &node.KernelSpec{
		Image: s.Image, ImageDigest: s.ImageDigest, ImageLabels: s.ImageLabels, RegistryType: s.RegistryType, RegistryAuth: s.RegistryAuth,
		AutoPull: s.AutoPull, Hostname: s.Hostname, Hosts: s.Hosts, Env: s.Env, Slots: s.Slots.Wire(), Allocation: s.Allocation,
		ShmBytes: s.ShmBytes, Uid: int32(s.UID), Gid: int32(s.GID), ExtraGids: int32s(s.ExtraGIDs),
		SessionName: s.SessionName, SessionType: string(s.SessionType), RuntimeType: s.RuntimeType, RuntimePath: s.RuntimePath,
		StartupCommand: s.StartupCommand, BatchTimeoutMs: s.BatchTimeout.Milliseconds(), BootstrapScript: s.BootstrapScript,
		PreopenPorts: int32s(s.PreopenPorts), ServicePorts: s.ServicePorts,
		ClusterRole: s.ClusterRole, ClusterIdx: int32(s.ClusterIdx), LocalRank: int32(s.LocalRank), PeerSecret: s.PeerSecret,
		HostNetwork: s.HostNetwork,
	}
	for _, d := range s.Dotfiles {
		out.Dotfiles = append(out.Dotfiles, &node.Dotfile{Path: d.Path, Perm: d.Perm, Data: []byte(d.Data)})
	}
	for _, m := range s.Mounts {
		out.Mounts = append(out.Mounts, &node.Mount{
			FolderId: string(m.Folder), Name: m.Name, Host: m.Host, Scope: m.Scope, UsageMode: m.Usage, Permission: string(m.Perm),
			Subpath: m.Subpath, Target: m.Target, VolumePath: m.VolumePath, OwnerUid: int32(m.OwnerUID), OwnerGid: int32(m.OwnerGID),
		})
	}
	return out
}

func int32s(list []int) []int32 {
	if list == nil {
		return nil
	}
	out := make([]int32, len(list))
	for i, v := range list {
		out[i] = int32(v)
	}
	return out
}

// dataAddress reports whether an agent's data port can be there. What cannot is left out: apps are then reached over the
// stream connection.
func dataAddress(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	return err == nil && perr == nil && n > 0 && host != "" && len(host) <= 253
}
