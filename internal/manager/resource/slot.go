package resource

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
)

// SlotInfo describes a resource slot.
type SlotInfo struct {
	Name, Description, HumanName, DisplayUnit, DisplayIcon string
	Kind                                                   cluster.SlotKind
	Binary                                                 bool
	RoundLength                                            int
}

// knownSlots are described better than agents could.
var knownSlots = []SlotInfo{
	{Name: "cpu", Description: "CPU", HumanName: "CPU", DisplayUnit: "Core", DisplayIcon: "cpu", Kind: cluster.SlotCount},
	{Name: "mem", Description: "Memory", HumanName: "RAM", DisplayUnit: "GiB", DisplayIcon: "ram", Kind: cluster.SlotBytes, Binary: true,
		RoundLength: 2},
	{Name: "cuda.device", Description: "CUDA-capable GPU", HumanName: "GPU", DisplayUnit: "GPU", DisplayIcon: "gpu1", Kind: cluster.SlotCount},
	{Name: "cuda.shares", Description: "CUDA-capable GPU (fractional)", HumanName: "fGPU", DisplayUnit: "fGPU", DisplayIcon: "gpu1",
		Kind: cluster.SlotCount, RoundLength: 2},
}

// Slots lists the slots that the cluster knows: the intrinsic ones and what agents have (public).
func (s *Service) Slots(ctx context.Context) ([]SlotInfo, error) {
	rows, err := s.d.Store.SlotKinds(ctx)
	if err != nil {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	out := []SlotInfo{}
	for slot, kind := range cluster.AgreedKinds(rows) {
		name := string(slot)
		info := SlotInfo{Name: name, Description: name, HumanName: name, DisplayUnit: name, DisplayIcon: "mem"}
		if i := slices.IndexFunc(knownSlots, func(k SlotInfo) bool { return k.Name == name }); i >= 0 {
			info = knownSlots[i]
		}
		info.Kind = kind
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b SlotInfo) int {
		if ai, bi := rankOf(a.Name), rankOf(b.Name); ai != bi {
			return ai - bi
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out, nil
}

func (s *Service) slotKinds(ctx context.Context) (map[cluster.SlotName]cluster.SlotKind, error) {
	slots, err := s.Slots(ctx)
	out := make(map[cluster.SlotName]cluster.SlotKind, len(slots))
	for _, k := range slots {
		out[cluster.SlotName(k.Name)] = k.Kind
	}
	return out, err
}

func rankOf(name string) int {
	if i := slices.IndexFunc(knownSlots, func(k SlotInfo) bool { return k.Name == name }); i >= 0 {
		return i
	}
	return len(knownSlots)
}
