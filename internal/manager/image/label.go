package image

import (
	"encoding/json"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Labels of images that the manager reads.
const (
	LabelServicePorts = "ai.backend.service-ports"
	LabelRuntimeType  = "ai.backend.runtime-type"
	LabelRuntimePath  = "ai.backend.runtime-path"
	// LabelShmem is the shared memory that the image wants.
	LabelShmem = "ai.backend.resource.preferred.shmem"

	// labelPreferred names what a session of the image should get when it asks for nothing.
	labelPreferred = "ai.backend.resource.preferred."

	labelMin = "ai.backend.resource.min."
	labelMax = "ai.backend.resource.max."
)

// Bounds reads the least and the most that a kernel of the image may get: labels, overridden by administrators.
func Bounds(i dbgen.Image, kinds map[cluster.SlotName]cluster.SlotKind) (least, most cluster.Slots) {
	least, most = cluster.Slots{}, cluster.Slots{}
	set := func(to cluster.Slots, slot, text string) {
		name := cluster.SlotName(slot)
		if v, err := cluster.ParseAmount(cluster.KindOf(name, kinds), text); err == nil {
			to[name] = v
		}
	}
	for label, text := range i.Labels {
		if slot, ok := strings.CutPrefix(label, labelMin); ok {
			set(least, slot, text)
		}
		if slot, ok := strings.CutPrefix(label, labelMax); ok {
			set(most, slot, text)
		}
	}
	var over map[string]struct {
		Min, Max *string
	}
	if json.Unmarshal(i.Resources, &over) == nil {
		for slot, b := range over {
			if b.Min != nil {
				set(least, slot, *b.Min)
			}
			if b.Max != nil {
				set(most, slot, *b.Max)
			}
		}
	}
	return least, most
}

// Recommended are the cores and the memory that the image wants for a session that asks for none.
func Recommended(i dbgen.Image) cluster.Slots {
	out := cluster.Slots{}
	for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
		if v, err := cluster.ParseAmount(cluster.KindOf(slot, nil), i.Labels[labelPreferred+string(slot)]); err == nil && v > 0 {
			out[slot] = v
		}
	}
	return out
}
