package request

import (
	"berth.dev/berth/internal/cluster"
)

// DefaultPreset is the name of the preset that sessions get whose request names no amounts.
const DefaultPreset = "default"

// Preset are amounts that have a name.
type Preset struct {
	Slots        cluster.Slots
	SharedMemory *int64 // bytes
}

// Usual is what DefaultPreset is where administrators have removed it: enough for an interpreter with numerical libraries.
var Usual = cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(2 << 30)}

// Defaults give a session what its request leaves open.
type Defaults struct {
	// Preset is the one that the request names; the zero value when it names none.
	Preset Preset
	// Usual is DefaultPreset; cpu and mem that it lacks are those of the variable Usual.
	Usual cluster.Slots
	// Most are the amounts that a default stays within, because policies allow no more or the smallest agent has no more. A slot
	// that is absent has no such bound.
	Most cluster.Slots
	// Part is what the variable Usual stays within besides, because other sessions are to have room beside this one. Amounts that
	// somebody chose have no such bound.
	Part cluster.Slots
}

// fill completes what is wanted. A named preset is taken as it is. Else an image's recommendation goes before the usual amount, and
// both are lowered to what the session may have, but never below the least that the image needs.
func (d Defaults) fill(want, recommended, least, most cluster.Slots) {
	for slot, v := range d.Preset.Slots {
		if _, said := want[slot]; !said {
			want[slot] = v
		}
	}
	for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
		if _, said := want[slot]; said {
			continue
		}
		v := Usual[slot]
		if d.Usual[slot] > 0 {
			v = d.Usual[slot]
		}
		if part, ok := d.Part[slot]; ok && v == Usual[slot] { // an administrator who wants another amount has chosen it
			v = min(v, part)
		}
		if recommended[slot] > 0 {
			v = recommended[slot]
		}
		for _, bound := range []cluster.Slots{d.Most, most} {
			if b, ok := bound[slot]; ok && b > 0 {
				v = min(v, b)
			}
		}
		want[slot] = max(v, least[slot])
	}
}

// Share is what each of n equal kernels may have of a bound: whole cores, and memory in whole MiB.
func Share(slot cluster.SlotName, bound cluster.Amount, n int) cluster.Amount {
	unit := cluster.Whole(1)
	if slot == cluster.SlotMem {
		unit = cluster.Whole(1 << 20)
	}
	v := bound / cluster.Amount(max(n, 1))
	return v - v%unit
}

// A session that names no memory leaves room for partsOfAgent-1 others on the smallest agent, as long as each of them gets smallestPart.
const (
	partsOfAgent = 4
	smallestPart = 512 << 20
)

// PartOfAgent is how much memory of an agent the usual amount may be, so that a small agent does not go to the first session that names
// none.
func PartOfAgent(mem cluster.Amount) cluster.Amount {
	return max(Share(cluster.SlotMem, mem, partsOfAgent), cluster.Whole(smallestPart))
}
