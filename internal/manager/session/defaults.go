package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// defaults are what a request gets for the amounts that it does not name. Presets are read only when something is open.
func (q *lookups) defaults(ctx context.Context, r request.Session, groups []string, l limits, project dbgen.Project, architecture string,
	agents []dbgen.AgentShapesRow) (request.Defaults, error) {
	candidates := slices.DeleteFunc(slices.Clone(agents), func(a dbgen.AgentShapesRow) bool {
		return a.Status != cluster.AgentAlive || !a.Schedulable || architecture != "" && a.Architecture != architecture
	})
	d := request.Defaults{Most: defaultBounds(r, l, project, candidates), Part: defaultPart(candidates)}
	_, cpu := r.Resources[string(cluster.SlotCPU)]
	_, mem := r.Resources[string(cluster.SlotMem)]
	if cpu && mem && r.Preset == "" {
		return d, nil
	}
	presets, err := q.presets.get(strings.Join(groups, "\x1f"), func() ([]dbgen.ResourcePreset, error) {
		return q.s.d.Store.ListPresets(ctx, false, groups)
	})
	if err != nil {
		return d, fmt.Errorf("read presets: %w", err)
	}
	if p, ok := presetNamed(presets, request.DefaultPreset); ok {
		d.Usual = p.ResourceSlots
	}
	if r.Preset == "" {
		return d, nil
	}
	p, ok := presetNamed(presets, r.Preset)
	if !ok {
		names := make([]string, len(presets))
		for i, p := range presets {
			names[i] = p.Name
		}
		return d, fault.NotFoundf("there is no preset %.80s", r.Preset).WithData(map[string]string{"object": "preset"}).
			WithNext("use one of: %s", strings.Join(slices.Compact(names), ", "))
	}
	d.Preset = request.Preset{Slots: p.ResourceSlots, SharedMemory: p.SharedMemory}
	return d, nil
}

// presetNamed finds a preset by name or id; of several of one name that of a resource group goes before the one for all.
func presetNamed(presets []dbgen.ResourcePreset, ref string) (found dbgen.ResourcePreset, ok bool) {
	id, _ := cluster.CanonicalUUID(ref)
	for _, p := range presets {
		if p.ID == id && id != "" || p.Name == ref {
			found, ok = p, true
		}
	}
	return found, ok
}

// defaultBounds are the amounts that a kernel's defaults stay within, so that a session that names no amounts can start: what
// policies and the project allow, and what the smallest agent that could run it has.
func defaultBounds(r request.Session, l limits, project dbgen.Project, agents []dbgen.AgentShapesRow) cluster.Slots {
	out := cluster.Slots{}
	lower := func(all cluster.Slots, n int) {
		for _, slot := range []cluster.SlotName{cluster.SlotCPU, cluster.SlotMem} {
			v := request.Share(slot, all[slot], n)
			if had, ok := out[slot]; v > 0 && (!ok || v < had) {
				out[slot] = v
			}
		}
	}
	for _, row := range l {
		lower(row.KeypairResourcePolicy.TotalResourceSlots, r.Containers())
		lower(row.KeypairResourcePolicy.MaxPendingSessionResourceSlots, r.Containers())
	}
	lower(project.TotalResourceSlots, r.Containers())
	together := 1
	if r.ClusterMode == "single-node" {
		together = r.Containers()
	}
	for _, a := range agents {
		lower(a.Capacity, together)
	}
	return out
}

// defaultPart is the memory of a kernel that names none, so that the smallest agent has room for others.
func defaultPart(agents []dbgen.AgentShapesRow) cluster.Slots {
	out := cluster.Slots{}
	for _, a := range agents {
		mem, had := a.Capacity[cluster.SlotMem], out[cluster.SlotMem]
		if part := request.PartOfAgent(mem); mem > 0 && (had == 0 || part < had) {
			out[cluster.SlotMem] = part
		}
	}
	return out
}
