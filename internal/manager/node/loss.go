package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// broken is an accelerator that is not healthy, as agents.broken_devices holds it.
type broken struct {
	Slot    cluster.SlotName `json:"slot"`
	ID      string           `json:"id"`
	Problem string           `json:"problem"`
}

// maxBroken bounds what is kept of one agent.
const maxBroken = 256

// brokenOf finds the accelerators among an agent's devices that are not healthy, as JSON. Cores and memory that cannot be looked at say
// nothing about what runs on them.
func brokenOf(devices json.RawMessage) (json.RawMessage, error) {
	var known []struct {
		Slot    cluster.SlotName
		ID      string
		Healthy bool
		Problem string
	}
	if err := json.Unmarshal(devices, &known); err != nil {
		return nil, fault.Invalidf("the agent's devices cannot be read").WithCause(err)
	}
	out := []broken{}
	for _, d := range known {
		if !d.Healthy && d.Slot != cluster.SlotCPU && d.Slot != cluster.SlotMem && len(out) < maxBroken {
			out = append(out, broken{Slot: d.Slot, ID: d.ID, Problem: store.Text(d.Problem)})
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode broken devices: %w", err)
	}
	return text, nil
}

// lossOf says in words which of the broken devices an allocation has; "" when it has none.
func lossOf(agent cluster.AgentID, hostname string, held alloc.Allocation, gone []broken) string {
	i := slices.IndexFunc(gone, func(b broken) bool { return held[b.Slot][b.ID] > 0 })
	if i < 0 {
		return ""
	}
	problem := gone[i].Problem
	if problem == "" {
		problem = "its agent does not say why"
	}
	text := fmt.Sprintf("device %s (%s) of kernel %s on agent %s broke: %s", gone[i].ID, gone[i].Slot, hostname, agent, problem)
	more := 0
	for _, b := range gone[i+1:] {
		if held[b.Slot][b.ID] > 0 {
			more++
		}
	}
	if more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// maxLosses bounds one pass.
const maxLosses = 200

// TellLosses tells the owners of running kernels that a device of theirs broke, once for each start of a kernel. Batch sessions with
// retries left stop and start again elsewhere; all others go on. It returns how many kernels it told of. Whether something is to be told
// follows from what is stored, so that it does not matter when a manager dies.
func (n *Reports) TellLosses(ctx context.Context) (int, error) {
	rows, err := n.Store.LostDevices(ctx, maxLosses)
	if err != nil {
		return 0, fmt.Errorf("look for kernels with broken devices: %w", err)
	}
	count := 0
	for _, r := range rows {
		var gone []broken
		if err := json.Unmarshal(r.BrokenDevices, &gone); err != nil {
			return count, fmt.Errorf("read broken devices of agent %s: %w", r.AgentID, err)
		}
		held, err := alloc.Parse(string(r.Allocation))
		if err != nil {
			return count, fmt.Errorf("read allocation of kernel %s: %w", r.ID, err)
		}
		told := false
		err = n.withSession(ctx, cluster.SessionID(r.SessionID), func(ctx context.Context, l *store.Locked) error {
			k := l.Kernel(cluster.KernelID(r.ID))
			if k == nil || k.Status != cluster.Running || string(k.Agent()) != r.AgentID {
				return nil
			}
			if words := lossOf(k.Agent(), k.ClusterHostname, held, gone); words != "" {
				told, err = k.LoseDevice(ctx, words)
			}
			return err
		})
		if err != nil {
			return count, err
		}
		if told {
			count++
		}
	}
	return count, nil
}
