// Package alloc chooses devices on one agent: which cores, how much memory, which
// accelerators. It is pure and deterministic; the scheduler runs it on a snapshot of an
// agent, and the agent runs the very same code to confirm, so both always agree.
package alloc

import (
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/cluster"
)

// Device is one allocatable thing of an agent. Cores are one device per logical core
// with capacity 1; memory is one device per NUMA node or a single device "root".
type Device struct {
	Slot cluster.SlotName
	ID   string
	NUMA int // -1 unknown
	PCI  string
	// Model names what an accelerator is, as its vendor does: "A100-SXM4-80GB"; empty is unknown.
	Model    string `json:",omitempty"`
	Capacity cluster.Amount
	Healthy  bool
	// Isolation is how well those who share the device are kept apart; see Device.isolation for what is not told.
	Isolation cluster.Isolation `json:",omitempty"`
	// Links gives the distance class to other devices by id; smaller is nearer, absent is unknown. A network adapter names accelerators by
	// their PCI addresses.
	Links map[string]int
}

// Allocation is a choice: slot -> device id -> amount. Its JSON is compact and stable
// (keys sorted), because it is stored in container labels and compared as text.
type Allocation map[cluster.SlotName]map[string]cluster.Amount

// Text renders the allocation as compact JSON with amounts in thousandths.
func (a Allocation) Text() string {
	if len(a) == 0 {
		return "{}"
	}
	b, err := json.Marshal(a)
	if err != nil {
		panic(fmt.Sprintf("alloc: render allocation: %v", err)) // maps of strings and integers always encode
	}
	return string(b)
}

// Parse reads what Text wrote; the empty text is the empty allocation.
func Parse(text string) (Allocation, error) {
	a := Allocation{}
	if text == "" {
		return a, nil
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf("parse allocation: %w", err)
	}
	return a, nil
}

// Totals sums the allocation per slot.
func (a Allocation) Totals() cluster.Slots {
	out := cluster.Slots{}
	for slot, devices := range a {
		for _, v := range devices {
			out[slot] += v
		}
	}
	return out
}
