package session

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/wire/node"
)

// HeldDevice is a device of an agent, as far as a kernel holds it.
type HeldDevice struct {
	alloc.Device
	Amount cluster.Amount
	// Known is false when the agent does not list the device any more; it has a slot, an id and an amount then.
	Known bool
	// Use is what was measured of the device last, while the kernel alone holds it. What is not known is absent.
	Use map[string]float64
}

// KernelDevices are the devices of a kernel.
type KernelDevices struct {
	Kernel
	Devices []HeldDevice
	// Why says in one sentence how the devices lie to each other; "" where there are none.
	Why string
}

// SessionDevices are the devices of a session's kernels.
type SessionDevices struct {
	Session *Session
	Kernels []KernelDevices
}

// MaxTop is how many sessions Top tells of.
const MaxTop = 64

// Devices tells what the kernels of a session hold and how much they use (who may see it).
func (s *Service) Devices(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (SessionDevices, error) {
	found, err := s.Find(ctx, a, ref, owner)
	if err != nil {
		return SessionDevices{}, err
	}
	out, err := s.devices(ctx, []*Session{found})
	if err != nil {
		return SessionDevices{}, err
	}
	return out[0], nil
}

// Top tells what running sessions that the actor may see hold and use, the newest first and at most MaxTop; total counts all.
func (s *Service) Top(ctx context.Context, a authz.Actor, f Filter) (sessions []SessionDevices, total int, err error) {
	f.Statuses, f.Limit, f.Offset = []string{string(cluster.Running)}, MaxTop, 0
	page, err := s.List(ctx, a, f)
	if err != nil {
		return nil, 0, err
	}
	out, err := s.devices(ctx, page.Items)
	return out, page.Total, err
}

func (s *Service) devices(ctx context.Context, sessions []*Session) ([]SessionDevices, error) {
	var kernels, agents []string
	for _, x := range sessions {
		for _, k := range x.Kernels {
			if k.Agent != "" && !k.Status.Final() {
				kernels, agents = append(kernels, string(k.ID)), append(agents, string(k.Agent))
			}
		}
	}
	held, machines := map[cluster.KernelID]alloc.Allocation{}, map[cluster.AgentID][]alloc.Device{}
	if len(kernels) > 0 {
		rows, err := s.d.Store.AllocationsOfKernels(ctx, kernels)
		if err != nil {
			return nil, fmt.Errorf("read what kernels hold: %w", err)
		}
		for _, r := range rows {
			if held[cluster.KernelID(r.ID)], err = alloc.Parse(string(r.Allocation)); err != nil {
				return nil, fmt.Errorf("read what kernel %s holds: %w", r.ID, err)
			}
		}
		slices.Sort(agents)
		known, err := s.d.Store.DevicesOfAgents(ctx, slices.Compact(agents))
		if err != nil {
			return nil, fmt.Errorf("read devices of agents: %w", err)
		}
		for _, r := range known {
			var list []alloc.Device
			if err := json.Unmarshal(r.Devices, &list); err != nil {
				return nil, fmt.Errorf("read devices of agent %s: %w", r.ID, err)
			}
			machines[cluster.AgentID(r.ID)] = list
		}
	}
	out := make([]SessionDevices, len(sessions))
	for i, x := range sessions {
		out[i] = SessionDevices{Session: x, Kernels: make([]KernelDevices, len(x.Kernels))}
		for j, k := range x.Kernels {
			a, machine := held[k.ID], machines[k.Agent]
			out[i].Kernels[j] = KernelDevices{Kernel: k, Devices: heldDevices(machine, a, k.LiveStat), Why: alloc.Describe(machine, a)}
		}
	}
	return out, nil
}

// heldDevices are the devices of an allocation: accelerators first, then cores and memory. It is pure.
func heldDevices(machine []alloc.Device, a alloc.Allocation, live map[string]float64) []HeldDevice {
	at := map[string]alloc.Device{}
	for _, d := range machine {
		at[string(d.Slot)+"\x1f"+d.ID] = d
	}
	measured := node.Devices(live)
	out := []HeldDevice{}
	for _, slot := range slices.Sorted(maps.Keys(a)) {
		for id, amount := range a[slot] {
			d, known := at[string(slot)+"\x1f"+id]
			if !known {
				d = alloc.Device{Slot: slot, ID: id, NUMA: -1}
			}
			h := HeldDevice{Device: d, Amount: amount, Known: known}
			if slot != cluster.SlotCPU && slot != cluster.SlotMem {
				family, _, _ := strings.Cut(string(slot), ".")
				h.Use = maps.Clone(measured[id])
				maps.DeleteFunc(h.Use, func(name string, _ float64) bool { return !strings.HasPrefix(name, family+"_") })
			}
			out = append(out, h)
		}
	}
	basic := func(slot cluster.SlotName) int {
		return slices.Index([]cluster.SlotName{cluster.SlotCPU, cluster.SlotMem}, slot)
	}
	slices.SortFunc(out, func(x, y HeldDevice) int {
		return cmp.Or(cmp.Compare(basic(x.Slot), basic(y.Slot)), strings.Compare(string(x.Slot), string(y.Slot)),
			cmp.Compare(len(x.ID), len(y.ID)), strings.Compare(x.ID, y.ID))
	})
	return out
}
