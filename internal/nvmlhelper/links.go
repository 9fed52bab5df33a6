//go:build cgo

package nvmlhelper

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth.dev/berth/internal/alloc"
)

// wires are the NVLinks of one card: to which cards, and whether any of them ends at a switch, which joins all that it has.
type wires struct {
	to  map[bus]bool
	hub bool
}

// link fills in how near the cards are to each other.
func (l *library) link(cards []*card) {
	ends := make([]wires, len(cards))
	for i, c := range cards {
		if c != nil {
			ends[i] = l.wires(c.device)
		}
	}
	for i, a := range cards {
		for j := range i {
			b := cards[j]
			if a == nil || b == nil {
				continue
			}
			class, known := alloc.DistanceFast, true
			if !ends[i].to[b.bus] && !ends[j].to[a.bus] && !(ends[i].hub && ends[j].hub) {
				class, known = ancestor(a, b)
			}
			if !known {
				continue
			}
			for _, pair := range [][2]*card{{a, b}, {b, a}} {
				if pair[0].gpu.Links == nil {
					pair[0].gpu.Links = map[string]int{}
				}
				pair[0].gpu.Links[pair[1].gpu.UUID] = class
			}
		}
	}
}

// wires asks a card for the NVLinks that are up.
func (l *library) wires(d nvml.Device) wires {
	out := wires{to: map[bus]bool{}}
	typed := l.has("nvmlDeviceGetNvLinkRemoteDeviceType")
	for n := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(n)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // it has no more of them
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue // some cards tell nothing of links that are not used
		}
		if typed {
			if kind, ret := d.GetNvLinkRemoteDeviceType(n); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				out.hub = true
				continue
			}
		}
		if far, ret := d.GetNvLinkRemotePciInfo(n); ret == nvml.SUCCESS {
			out.to[busOf(far)] = true
		}
	}
	return out
}

// ancestor is the distance over PCIe: by what the driver says, else by the NUMA nodes; unknown when neither is known.
func ancestor(a, b *card) (class int, known bool) {
	level, ret := a.device.GetTopologyCommonAncestor(b.device)
	if ret == nvml.SUCCESS {
		switch level {
		case nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE, nvml.TOPOLOGY_MULTIPLE:
			return alloc.DistanceSwitch, true
		case nvml.TOPOLOGY_HOSTBRIDGE, nvml.TOPOLOGY_NODE:
			return alloc.DistanceNode, true
		case nvml.TOPOLOGY_SYSTEM:
			return alloc.DistanceFar, true
		}
	}
	switch {
	case a.gpu.NUMA < 0 || b.gpu.NUMA < 0:
		return 0, false
	case a.gpu.NUMA == b.gpu.NUMA:
		return alloc.DistanceNode, true
	}
	return alloc.DistanceFar, true
}
