package meter

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

// Bounds of what is told of single devices: a manager drops whole what has more values or longer names than it takes.
const (
	maxDeviceValues = 768
	maxDeviceName   = 256
)

// devices adds what was measured of accelerators to what is told: each device by itself, their sums to the node, and to each kernel the
// devices that it alone holds. What a kernel used of a device that others hold, too, is not known from the device. It is pure but for the
// maps that it is given.
func devices(u device.Usage, held map[cluster.KernelID]alloc.Allocation) {
	type card struct{ family, id string } // hardware that fills several slots is one; vendors may use the same ids
	cardOf := func(slot cluster.SlotName, id string) card {
		family, _, _ := strings.Cut(string(slot), ".")
		return card{family, id}
	}
	byCard := map[card]map[string]float64{}
	for _, ref := range slices.SortedFunc(maps.Keys(u.Devices), func(a, b device.Ref) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(string(a.Slot), string(b.Slot)))
	}) {
		if ref.Slot == cluster.SlotCPU || ref.Slot == cluster.SlotMem {
			continue
		}
		at := cardOf(ref.Slot, ref.ID)
		if byCard[at] == nil {
			byCard[at] = map[string]float64{}
		}
		maps.Copy(byCard[at], u.Devices[ref])
	}
	holders := map[card][]cluster.KernelID{}
	for id, a := range held {
		for slot, amounts := range a {
			for dev := range amounts {
				if at := cardOf(slot, dev); byCard[at] != nil && !slices.Contains(holders[at], id) {
					holders[at] = append(holders[at], id)
				}
			}
		}
	}
	sums, told := map[string]float64{}, 0
	for _, at := range slices.SortedFunc(maps.Keys(byCard), func(a, b card) int {
		return cmp.Or(strings.Compare(a.family, b.family), strings.Compare(a.id, b.id))
	}) {
		for _, name := range slices.Sorted(maps.Keys(byCard[at])) {
			v := byCard[at][name]
			if strings.HasSuffix(name, node.EndTemperature) {
				sums[name] = max(sums[name], v)
			} else {
				sums[name] += v
			}
			full := node.OfDevice(name, at.id)
			if told == maxDeviceValues || len(full) > maxDeviceName {
				continue
			}
			told++
			u.Node[full] = v
			if of := holders[at]; len(of) == 1 && u.Kernels[of[0]] != nil {
				u.Kernels[of[0]][full] = v
			}
		}
	}
	for name, v := range sums {
		if _, driver := u.Node[name]; !driver {
			u.Node[name] = v
		}
	}
}
