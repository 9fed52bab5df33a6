package alloc

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// Describe says in one sentence without a full stop what an allocation is and how near its devices are to each other: "two GPUs joined by
// NVLink on NUMA node 0, cores 0-7 beside them". It is "" for an allocation of nothing. Devices that are not in the list are counted and
// nothing else is said of them.
func Describe(devices []Device, a Allocation) string {
	at := map[cluster.SlotName]map[string]Device{}
	for _, d := range devices {
		if at[d.Slot] == nil {
			at[d.Slot] = map[string]Device{}
		}
		at[d.Slot][d.ID] = d
	}
	var parts []string
	near := map[int]bool{} // NUMA nodes of the accelerators
	many := 0
	for _, slot := range slices.SortedFunc(maps.Keys(a), func(x, y cluster.SlotName) int { return strings.Compare(string(x), string(y)) }) {
		if slot == cluster.SlotCPU || slot == cluster.SlotMem || len(a[slot]) == 0 {
			continue
		}
		held, unknown := those(at[slot], a[slot])
		text := counted(slot, a[slot])
		if link := joined(held); link != "" && unknown == 0 {
			text += " " + link
		}
		nodes := nodesOf(held)
		if where := nodeText(nodes); where != "" && unknown == 0 {
			text += " on " + where
		}
		if unknown > 0 {
			text += fmt.Sprintf(" (%d of them the agent does not list any more)", unknown)
		}
		for _, n := range nodes {
			near[n] = true
		}
		many += len(a[slot])
		parts = append(parts, text)
	}
	if text := coresText(at[cluster.SlotCPU], a[cluster.SlotCPU], near, many); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// those are the devices of a slot that are held, in order, and how many of them are not known.
func those(known map[string]Device, held map[string]cluster.Amount) (out []Device, unknown int) {
	for _, id := range slices.SortedFunc(maps.Keys(held), natural) {
		if d, ok := known[id]; ok {
			out = append(out, d)
		} else {
			unknown++
		}
	}
	return out, unknown
}

var numbers = []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight"}

func number(n int) string {
	if n < len(numbers) {
		return numbers[n]
	}
	return strconv.Itoa(n)
}

// counted is the number of devices of a slot, or the amount where parts of them are held.
func counted(slot cluster.SlotName, held map[string]cluster.Amount) string {
	family, _, _ := strings.Cut(string(slot), ".")
	word := family + " device"
	if family == "cuda" || family == "rocm" {
		word = "GPU"
	}
	if adapter(slot) {
		word = "network adapter"
	}
	if len(held) > 1 {
		word += "s"
	}
	var sum cluster.Amount
	parts := false
	for _, v := range held {
		sum += v
		parts = parts || v%cluster.Milli != 0
	}
	if parts {
		return sum.String() + " of " + number(len(held)) + " " + word
	}
	return number(len(held)) + " " + word
}

// joined says by what several devices are joined: the slowest way between any two of them.
func joined(held []Device) string {
	worst := 0
	for i, d := range held {
		for _, e := range held[i+1:] {
			class, known := d.Links[e.ID]
			if other, ok := e.Links[d.ID]; ok && (!known || other < class) {
				class, known = other, true
			}
			if !known {
				class = DistanceFar
				if d.NUMA >= 0 && d.NUMA == e.NUMA {
					class = DistanceNode
				}
			}
			worst = max(worst, class)
		}
	}
	switch {
	case worst == 0 || worst > DistanceSwitch:
		return ""
	case worst <= DistanceSibling:
		return "of one card"
	case worst <= DistanceFast:
		family, _, _ := strings.Cut(string(held[0].Slot), ".")
		if name := map[string]string{"cuda": "NVLink", "rocm": "xGMI"}[family]; name != "" {
			return "joined by " + name
		}
		return "joined by a direct link"
	}
	return "on one PCIe switch"
}

// nodesOf are the NUMA nodes of devices, in order; nil where one of them is not known.
func nodesOf(held []Device) []int {
	seen := map[int]bool{}
	for _, d := range held {
		if d.NUMA < 0 {
			return nil
		}
		seen[d.NUMA] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func nodeText(nodes []int) string {
	switch len(nodes) {
	case 0:
		return ""
	case 1:
		return "NUMA node " + strconv.Itoa(nodes[0])
	}
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		texts[i] = strconv.Itoa(n)
	}
	return "NUMA nodes " + strings.Join(texts[:len(texts)-1], ", ") + " and " + texts[len(texts)-1]
}

// coresText says which cores are held and where, beside the accelerators or not.
func coresText(known map[string]Device, cores map[string]cluster.Amount, near map[int]bool, accelerators int) string {
	if len(cores) == 0 {
		return ""
	}
	ids := slices.SortedFunc(maps.Keys(cores), natural)
	text := "core " + ids[0]
	if len(ids) > 1 {
		text = "cores " + Ranges(ids)
	}
	held, unknown := those(known, cores)
	nodes := nodesOf(held)
	if unknown > 0 || len(nodes) == 0 {
		return text
	}
	away := slices.DeleteFunc(slices.Clone(nodes), func(n int) bool { return near[n] })
	them := "it"
	if accelerators > 1 {
		them = "them"
	}
	switch {
	case len(near) == 0:
		return text + " on " + nodeText(nodes)
	case len(away) == 0:
		return text + " beside " + them
	case len(away) == len(nodes):
		return text + " on " + nodeText(nodes) + ", not beside " + them
	}
	return text + " on " + nodeText(nodes) + ", not all of them beside " + them
}

// Ranges writes sorted ids shorter: 0-3,8.
func Ranges(ids []string) string {
	var out []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && follows(ids[j], ids[j+1]) {
			j++
		}
		if j > i {
			out = append(out, ids[i]+"-"+ids[j])
		} else {
			out = append(out, ids[i])
		}
		i = j + 1
	}
	return strings.Join(out, ",")
}

func follows(a, b string) bool {
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	return err1 == nil && err2 == nil && y == x+1
}
