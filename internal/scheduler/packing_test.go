package scheduler

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/packing"
)

// learning is a group that packs by what it has learnt.
func learning(t *testing.T) (*Cluster, *search, *leastFragmentation) {
	t.Helper()
	c := NewCluster()
	require.NoError(t, c.SetGroup(Group{Name: "g", Placement: "least-fragmentation",
		Rules: map[cluster.SlotName]alloc.Rule{"cuda.shares": alloc.Fraction}}))
	s := c.groups["g"].search
	return c, s, s.strategy.(*leastFragmentation)
}

// accelerated is an agent with 4 cores, 8 GiB and accelerators of some capacities, of which some is held.
func accelerated(id string, slot cluster.SlotName, model string, capacities []cluster.Amount, held ...cluster.Amount) (Agent, Running) {
	a := Agent{ID: cluster.AgentID(id), Alive: true, Schedulable: true}
	for i := range 4 {
		a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), Capacity: 1000, Healthy: true})
	}
	a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotMem, ID: "root", NUMA: -1, Capacity: cluster.Whole(8 << 30), Healthy: true})
	parts := map[string]cluster.Amount{}
	for i, v := range capacities {
		a.Devices = append(a.Devices, alloc.Device{Slot: slot, ID: fmt.Sprint(i), Model: model, Capacity: v, Healthy: true})
		if i < len(held) {
			parts[fmt.Sprint(i)] = held[i]
		}
	}
	r := Running{Session: Session{ID: cluster.SessionID("on-" + id)}, Placements: []Placement{{Kernel: "k", Agent: a.ID,
		Allocation: alloc.Allocation{cluster.SlotCPU: {"0": 1000}, cluster.SlotMem: {"root": cluster.Whole(1 << 30)}, slot: parts}}}}
	return a, r
}

// TestRequestsAsPackingSeesThem: in thousandths of cores, in MiB and in accelerators; what package packing cannot express is refused.
func TestRequestsAsPackingSeesThem(t *testing.T) {
	t.Parallel()
	base := func(more cluster.Slots) cluster.Slots {
		out := cluster.Slots{cluster.SlotCPU: 1500, cluster.SlotMem: cluster.Whole(3 << 20)}
		maps.Copy(out, more)
		return out
	}
	gpus := func(n, milli int) packing.Request {
		return packing.Request{CPU: 1500, Mem: 3, GPUs: n, Milli: int32(milli)}
	}
	cuda := func(v cluster.Amount) cluster.Slots { return base(cluster.Slots{"cuda.shares": v}) }
	twice := func(r packing.Request) packing.Request { r.CPU, r.Mem = 2*r.CPU, 2*r.Mem; return r }
	for name, c := range map[string]struct {
		kernels []cluster.Slots // of one agent
		want    packing.Request
		slot    cluster.SlotName
		refused bool
	}{
		"no accelerator":     {[]cluster.Slots{base(nil)}, gpus(0, 0), "", false},
		"a part of one":      {[]cluster.Slots{cuda(300)}, gpus(1, 300), "cuda.shares", false},
		"nearly one":         {[]cluster.Slots{cuda(999)}, gpus(1, 999), "cuda.shares", false},
		"one":                {[]cluster.Slots{cuda(1000)}, gpus(1, 1000), "cuda.shares", false},
		"one and a part":     {[]cluster.Slots{cuda(1200)}, gpus(2, 1000), "cuda.shares", false},
		"as many as can be":  {[]cluster.Slots{cuda(packing.MaxGPUs * 1000)}, gpus(packing.MaxGPUs, 1000), "cuda.shares", false},
		"one more":           {[]cluster.Slots{cuda(packing.MaxGPUs*1000 + 1)}, packing.Request{}, "", true},
		"two kinds":          {[]cluster.Slots{base(cluster.Slots{"cuda.shares": 1000, "rocm.device": 1000})}, packing.Request{}, "", true},
		"two with whole":     {[]cluster.Slots{cuda(1000), cuda(2000)}, twice(gpus(3, 1000)), "cuda.shares", false},
		"a whole and a part": {[]cluster.Slots{cuda(1000), cuda(500)}, packing.Request{}, "", true},
		"two parts":          {[]cluster.Slots{cuda(500), cuda(400)}, packing.Request{}, "", true},
		"one without":        {[]cluster.Slots{cuda(500), base(nil)}, twice(gpus(1, 500)), "cuda.shares", false},
	} {
		x, in, l := learning(t)
		s := Session{ID: "s", SingleNode: true}
		for i, slots := range c.kernels {
			s.Kernels = append(s.Kernels, Kernel{ID: cluster.KernelID(fmt.Sprint(i)), Slots: slots})
		}
		x.Enqueue("g", s)
		r, slot, ok := l.request(in, x.sessions["s"].waiting.lane.kind.units[0].shape)
		require.Equal(t, !c.refused, ok, name)
		if c.refused {
			continue
		}
		require.Equal(t, c.want, r, name)
		if c.slot == "" {
			require.Negative(t, slot, name)
		} else {
			require.Equal(t, c.slot, x.slots.name[slot], name)
		}
	}
}

// TestAgentsAsPackingSeesThem: what is left of cores, of memory in MiB and of each accelerator in thousandths of it. Where an agent has
// two kinds, the larger one counts, and requests for the other one are no matter for package packing.
func TestAgentsAsPackingSeesThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		capacities []cluster.Amount
		held       []cluster.Amount
		ask        cluster.SlotName // "" for none
		gpus       []int32
		refused    bool
	}{
		"none":                    {nil, nil, "", []int32{}, false},
		"none of what is asked":   {nil, nil, "cuda.shares", nil, true},
		"free":                    {[]cluster.Amount{1000, 1000}, nil, "", []int32{1000, 1000}, false},
		"some held":               {[]cluster.Amount{1000, 1000, 1000}, []cluster.Amount{300, 1000}, "cuda.shares", []int32{700, 0, 1000}, false},
		"larger than one":         {[]cluster.Amount{4000, 4000}, []cluster.Amount{1000}, "cuda.shares", []int32{750, 1000}, false},
		"nothing can be had":      {[]cluster.Amount{0, 1000}, nil, "cuda.shares", []int32{0, 1000}, false},
		"of another kind":         {[]cluster.Amount{1000}, nil, "rocm.device", nil, true},
		"as many as can be":       {make([]cluster.Amount, packing.MaxGPUs), nil, "cuda.shares", make([]int32, packing.MaxGPUs), false},
		"more than package packs": {make([]cluster.Amount, packing.MaxGPUs+1), nil, "cuda.shares", nil, true},
	} {
		x, in, l := learning(t)
		a, r := accelerated("a", "cuda.shares", "T4", c.capacities, c.held...)
		x.SetAgent("g", a)
		x.Run("g", r)
		slot := int32(-1)
		if c.ask != "" {
			slot = x.slots.of(c.ask)
		}
		ok := l.describe(in, x.agent("a"), slot)
		require.Equal(t, !c.refused, ok, name)
		if c.refused {
			continue
		}
		require.Equal(t, []int64{3000, 7 << 10}, []int64{l.node.CPU, l.node.Mem}, name)
		require.ElementsMatch(t, c.gpus, l.node.GPUs, name)
	}
}

// TestAgentsThatAreAlikeShareAScore: with equal devices of which equally much is left, whatever their names are, and no others.
func TestAgentsThatAreAlikeShareAScore(t *testing.T) {
	t.Parallel()
	x, _, _ := learning(t)
	print := func(id, model string, capacities []cluster.Amount, held ...cluster.Amount) uint64 {
		a, r := accelerated(id, "cuda.shares", model, capacities, held...)
		x.SetAgent("g", a)
		x.Run("g", r)
		f := x.agent(a.ID).fingerprint()
		require.Equal(t, f, x.agent(a.ID).fingerprint(), "remembered")
		return f
	}
	two := []cluster.Amount{1000, 1000}
	same := print("a", "T4", two, 300)
	require.Equal(t, same, print("b", "T4", two, 300))
	for name, other := range map[string]uint64{
		"another model": print("c", "A100", two, 300), "more held": print("d", "T4", two, 400), "the other device": print("e", "T4", two, 0, 300),
		"fewer devices": print("f", "T4", two[:1], 300), "another share of the same sum": print("h", "T4", two, 200, 100),
		"none": print("i", "T4", nil),
	} {
		require.NotEqual(t, same, other, name)
	}
	a := x.agent("a")
	before := a.fingerprint()
	x.Remove("on-a")
	require.NotEqual(t, before, a.fingerprint(), "what ended is noticed")
}
