// Package device holds the verbs that show devices: what a worker host has and who holds it, what sessions hold and how much they use.
package device

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/device"
	"berth.dev/berth/internal/cli/frame"
)

// NewTopology makes berth agent topology.
func NewTopology(f *frame.Frame) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "topology AGENT",
		Short: "Draw the devices of a worker host and who holds them",
		Long: "Draw a worker host: its NUMA nodes with their cores, memory and accelerators, who holds what, which devices are broken, and\n" +
			"how near the accelerators are to each other.",
		Example: "  berth agent topology i-worker1",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: f.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			m, err := device.OfAgent(ctx, c, args[0])
			if err != nil {
				if api.IsNotFound(err) {
					return frame.Hint(err, "berth agent list")
				}
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), m)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), Draw(m, frame.SlotsOf(ctx, c)))
			return err
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// card is a piece of hardware that is neither a core nor memory; it may fill several slots.
type card struct {
	device.Device // of its first slot
	label         string
	slots         []device.Device
}

const (
	cpu  = "cpu"
	mem  = "mem"
	free = "free"
)

// machine is a device.Machine sorted for drawing.
type machine struct {
	device.Machine
	units frame.Slots
	nodes []int // -1, what is on no known node, last
	cards []card
	only  int // the one node that is known, else -1
}

func sorted(m device.Machine, units frame.Slots) machine {
	out := machine{Machine: m, units: units, only: -1}
	at, nodes := map[string]int{}, map[int]bool{}
	devices := slices.SortedStableFunc(slices.Values(m.Devices), func(a, b device.Device) int {
		return cmp.Or(strings.Compare(a.PCI, b.PCI), natural(a.ID, b.ID), strings.Compare(a.Slot, b.Slot))
	})
	for _, d := range devices {
		nodes[d.NUMA] = true
		if d.Slot == cpu || d.Slot == mem {
			continue
		}
		key := kindOf(d.Slot) + "\x1f" + d.ID // vendors may use the same ids
		i, known := at[key]
		if !known {
			i = len(out.cards)
			at[key], out.cards = i, append(out.cards, card{Device: d})
		}
		out.cards[i].slots = append(out.cards[i].slots, d)
		if !d.Healthy {
			out.cards[i].Healthy, out.cards[i].Problem = false, d.Problem
		}
	}
	counts := map[string]int{}
	for i := range out.cards {
		name := kindOf(out.cards[i].Slot)
		out.cards[i].label = clean(name) + strconv.Itoa(counts[name])
		counts[name]++
	}
	delete(nodes, -1)
	out.nodes = slices.Sorted(maps.Keys(nodes))
	if len(out.nodes) == 1 {
		out.only = out.nodes[0] // where there is one, all is on it
	} else if slices.ContainsFunc(m.Devices, func(d device.Device) bool { return d.NUMA < 0 }) {
		out.nodes = append(out.nodes, -1)
	}
	return out
}

// kindOf is what people call the devices of a slot.
func kindOf(slot string) string {
	family, _, _ := strings.Cut(slot, ".")
	if family == "cuda" || family == "rocm" {
		return "GPU"
	}
	return strings.ToUpper(family)
}

// natural orders ids so that 2 comes before 10.
func natural(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

func (m machine) on(node int, d device.Device) bool {
	return d.NUMA == node || d.NUMA < 0 && m.only == node
}

// Draw is the picture of a machine as text.
func Draw(told device.Machine, units frame.Slots) string {
	m := sorted(told, units)
	var b strings.Builder
	state := m.Status
	if !m.Schedulable {
		state += ", takes no new sessions"
	}
	fmt.Fprintf(&b, "%s  %s  resource group %s\n", clean(m.Agent), clean(state), clean(m.ResourceGroup))
	if len(m.Devices) == 0 {
		b.WriteString("it tells of no devices\n")
	}
	for _, node := range m.nodes {
		if node < 0 {
			b.WriteString("\non no known NUMA node\n")
		} else {
			fmt.Fprintf(&b, "\nNUMA node %d\n", node)
		}
		m.drawNode(&b, node)
	}
	m.drawLinks(&b)
	if more := m.SessionCount - len(m.Sessions); more > 0 {
		fmt.Fprintf(&b, "\nmore sessions: %d\n", more)
	}
	return b.String()
}

func (m machine) drawNode(b *strings.Builder, node int) {
	var cores, memories []device.Device
	for _, d := range m.Devices {
		switch {
		case !m.on(node, d):
		case d.Slot == cpu:
			cores = append(cores, d)
		case d.Slot == mem:
			memories = append(memories, d)
		}
	}
	var lines [][]string
	if len(cores) > 0 {
		lines = append(lines, []string{"cores", ranges(ids(cores)), m.held(cores, func(of []device.Device) string { return ranges(ids(of)) })})
	}
	if len(memories) > 0 {
		total := int64(0)
		for _, d := range memories {
			total += d.Capacity
		}
		lines = append(lines, []string{"memory", frame.BytesText(float64(total) / 1000), m.amounts(memories)})
	}
	for _, c := range m.cards {
		if !m.on(node, c.Device) {
			continue
		}
		health, held := "ok", m.amounts(c.slots)
		if !c.Healthy {
			if health = "broken"; c.Problem != "" {
				health += ": " + c.Problem
			}
			if held == free {
				held = "" // nobody can have it
			}
		}
		memory := ""
		if c.Memory > 0 {
			memory = frame.BytesText(float64(c.Memory))
		}
		what := strings.Join(slices.DeleteFunc([]string{c.ID, c.Model, memory, c.PCI, health}, func(s string) bool { return s == "" }), "  ")
		lines = append(lines, []string{c.label, what, held})
	}
	columns(b, lines)
}

// columns writes lines whose cells stand below each other.
func columns(b *strings.Builder, lines [][]string) {
	var widths [3]int
	for _, l := range lines {
		for i, cell := range l {
			l[i] = clean(cell)
			cell = l[i]
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, l := range lines {
		text := " "
		for i, cell := range l {
			text += " " + cell + strings.Repeat(" ", widths[i]-len([]rune(cell))+1)
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
}

func who(s api.AgentSession) string {
	if s.User == "" {
		return s.Name
	}
	return s.Name + " (" + s.User + ")"
}

// held tells who holds which of some devices; show names those of one session.
func (m machine) held(of []device.Device, show func([]device.Device) string) string {
	var parts []string
	taken := map[string]bool{}
	for _, s := range m.Sessions {
		var his []device.Device
		for _, d := range of {
			if _, ok := s.Devices[d.Slot][d.ID]; ok {
				his = append(his, d)
				taken[d.ID] = true
			}
		}
		if len(his) > 0 {
			parts = append(parts, show(his)+" "+who(s))
		}
	}
	if left := len(of) - len(taken); left > 0 {
		parts = append(parts, strconv.Itoa(left)+" "+free)
	}
	return strings.Join(parts, ", ")
}

// amounts tells who holds how much of some devices.
func (m machine) amounts(of []device.Device) string {
	var parts []string
	for _, s := range m.Sessions {
		sums := map[string][]string{}
		for _, d := range of {
			if v, ok := s.Devices[d.Slot][d.ID]; ok {
				if d.Slot == mem {
					v = frame.BytesOf(v)
				} else {
					v = m.units.Amount(d.Slot, v)
				}
				sums[d.Slot] = append(sums[d.Slot], v)
			}
		}
		for _, slot := range slices.Sorted(maps.Keys(sums)) {
			parts = append(parts, slot+" "+strings.Join(sums[slot], "+")+" "+who(s))
		}
	}
	if len(parts) == 0 {
		return free
	}
	return strings.Join(parts, ", ")
}

func ids(of []device.Device) []string {
	out := make([]string, len(of))
	for i, d := range of {
		out[i] = d.ID
	}
	slices.SortFunc(out, natural)
	return out
}

// ranges writes sorted ids shorter: 0-3,8.
func ranges(ids []string) string {
	var out []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) {
			x, err1 := strconv.Atoi(ids[j])
			y, err2 := strconv.Atoi(ids[j+1])
			if err1 != nil || err2 != nil || y != x+1 {
				break
			}
			j++
		}
		text := ids[i]
		if j > i {
			text += "-" + ids[j]
		}
		out, i = append(out, text), j+1
	}
	return strings.Join(out, ",")
}

// drawLinks draws how near the cards are to each other.
func (m machine) drawLinks(b *strings.Builder) {
	if len(m.cards) < 2 {
		return
	}
	b.WriteString("\nlinks\n")
	width := 0
	for _, c := range m.cards {
		width = max(width, len(c.label), len("sibling"))
	}
	line := func(first string, cells []string) {
		text := fmt.Sprintf("  %-*s", width, first)
		for _, cell := range cells {
			text += fmt.Sprintf("  %-*s", width, cell)
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	var titles []string
	for _, c := range m.cards {
		titles = append(titles, c.label)
	}
	line("", titles)
	seen := map[string]bool{}
	for i, c := range m.cards {
		cells := make([]string, len(m.cards))
		for j, d := range m.cards {
			cells[j] = "-"
			if i != j {
				cells[j] = m.between(c, d)
				seen[cells[j]] = true
			}
		}
		line(c.label, cells)
	}
	for _, legend := range legends {
		if seen[legend[0]] {
			fmt.Fprintf(b, "  %s: %s\n", legend[0], legend[1])
		}
	}
}

var legends = [][2]string{{"sibling", "parts of one card"}, {"nvlink", "a direct link such as NVLink"}, {"switch", "one PCIe switch"},
	{"node", "one NUMA node"}, {"far", "across NUMA nodes"}, {"?", "not known"}}

// between is the way from one card to another.
func (m machine) between(a, b card) string {
	class, known := a.Links[b.ID]
	if other, ok := b.Links[a.ID]; ok && (!known || other < class) {
		class, known = other, true
	}
	switch {
	case !known && (m.only >= 0 || a.NUMA >= 0 && a.NUMA == b.NUMA):
		return "node"
	case !known && (a.NUMA < 0 || b.NUMA < 0):
		return "?"
	case !known || class > device.Node:
		return "far"
	case class <= device.Sibling:
		return "sibling"
	case class <= device.Fast:
		return "nvlink"
	case class <= device.Switch:
		return "switch"
	}
	return "node"
}

// clean replaces what terminals obey: agents choose many of these texts.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
