package frame

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/api"
)

// Slots are the kinds of resources that the cluster knows, by name; they say how amounts are written. Amounts of a slot that
// is not known are shown as they come.
type Slots map[string]api.SlotDetails

// SlotsOf asks the manager for its slots. Without an answer none is known: what is shown then is still true.
func SlotsOf(ctx context.Context, c *api.Client) Slots {
	known, err := c.Slots(ctx)
	if err != nil {
		return nil
	}
	return known
}

// Bytes reports whether amounts of a slot are bytes.
func (s Slots) Bytes(name string) bool { return s[name].Format.Binary }

// Text prints amounts per slot, as in "cpu 1, mem 512 MiB".
func (s Slots) Text(t api.JSONText) string { return s.Amounts(t.Map()) }

// Amounts is Text of a map; what is zero is left out.
func (s Slots) Amounts(m map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if v := m[name]; v != "0" && v != "" {
			parts = append(parts, name+" "+s.Amount(name, v))
		}
	}
	return strings.Join(parts, ", ")
}

// Amount prints the amount of one slot.
func (s Slots) Amount(name, v string) string {
	if !s.Bytes(name) {
		return v
	}
	return BytesOf(v)
}

// BytesOf prints a text that is a number of bytes; other texts stay.
func BytesOf(v string) string {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return v
	}
	return BytesText(n)
}
