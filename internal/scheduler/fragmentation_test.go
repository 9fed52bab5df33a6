package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/packing"
)

// packer asks package packing itself where each request should go, with nodes that the test keeps.
type packer struct {
	t        *testing.T
	policy   *packing.Policy
	workload packing.Workload
	nodes    []packing.Node // by agent
	names    []string       // models of the agents
	models   map[string]uint8
}

func (p *packer) model(name string) uint8 {
	n, ok := p.models[name]
	if !ok {
		n = uint8(len(p.models))
		p.models[name] = n
	}
	return n
}

func (p *packer) request(k *scheduler.Kernel) packing.Request {
	r := packing.Request{CPU: int64(k.Slots[cluster.SlotCPU]), Mem: int64(k.Slots[cluster.SlotMem]/1000) >> 20}
	if v := k.Slots["cuda.shares"]; v > 0 {
		r.GPUs, r.Milli = int((v+999)/1000), int32(min(v, 1000))
	}
	for _, m := range k.Models {
		r.Models |= 1 << p.model(m)
	}
	return r
}

func (p *packer) survey() {
	for i := range p.nodes {
		p.nodes[i].Model = 0
		if len(p.nodes[i].GPUs) > 0 {
			p.nodes[i].Model = p.model(p.names[i])
		}
	}
	p.policy.Survey(func(yield func(*packing.Node) bool) {
		for i := range p.nodes {
			if !yield(&p.nodes[i]) {
				return
			}
		}
	})
}

// best is the node with the smallest loss, and the GPU that a share goes to; -1 where it fits nowhere.
func (p *packer) best(r packing.Request) (node, gpu int) {
	node, gpu = -1, -1
	var least int64
	for i := range p.nodes {
		if c, ok := p.policy.Score(&p.nodes[i], &r); ok && (node < 0 || c.Loss < least) {
			node, gpu, least = i, c.GPU, c.Loss
		}
	}
	return node, gpu
}

// TestLeastFragmentationPlacesAsPackingSays places requests one after the other, and each goes where package packing has the least
// loss. The typical requests are learnt from a list or from what arrives.
func TestLeastFragmentationPlacesAsPackingSays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		for _, listed := range []int{30, 1, 0} {
			t.Run(fmt.Sprint(seed, listed), func(t *testing.T) { packs(t, rand.New(rand.NewPCG(seed, 1)), listed) })
		}
	}
}

// packs compares placements. listed is how many typical requests are listed; 0: they are learnt from what arrives.
func packs(t *testing.T, r *rand.Rand, listed int) {
	p := &packer{t: t, models: map[string]uint8{}}
	p.workload.HalfLife = 100
	policy, err := packing.New(&p.workload, packing.Options{Sequences: 8, Length: 24})
	require.NoError(t, err)
	p.policy = policy
	c := scheduler.NewCluster()
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "g", Placement: "least-fragmentation", WholeDevices: true,
		PlacementOptions: map[string]any{"memory": 100.0, "sequences": 8.0, "length": 24.0}}))
	for i := range 6 {
		cores, gib := 8+8*r.IntN(3), 8+8*r.Int64N(4)
		gpus, name := []int{0, 1, 2, 4, 4}[r.IntN(5)], []string{"A100", "T4"}[r.IntN(2)]
		a := agent(fmt.Sprintf("a%d", i), cores, gib)
		n := packing.Node{CPU: int64(cores) * 1000, Mem: gib << 10}
		for g := range gpus {
			a.Devices = append(a.Devices, alloc.Device{
				Slot: "cuda.shares", ID: fmt.Sprintf("g%d", g), Model: name, Capacity: 1000, Healthy: true,
			})
			n.GPUs = append(n.GPUs, packing.Whole)
		}
		c.SetAgent("g", a)
		p.nodes, p.names = append(p.nodes, n), append(p.names, name)
	}
	draw := func(n int) scheduler.Session {
		s := job(n, 10, 0, ask(1+r.Int64N(4), r.Int64N(9)))
		if v := []cluster.Amount{0, 200, 300, 500, 700, 1000, 2000}[r.IntN(7)]; v > 0 {
			s.Kernels[0].Slots["cuda.shares"] = v
			if r.IntN(4) == 0 {
				s.Kernels[0].Models = []string{[]string{"A100", "T4"}[r.IntN(2)]}
			}
		}
		return s
	}
	if listed > 0 {
		var list []scheduler.Session
		p.workload = packing.Workload{}
		for n := range listed {
			s := draw(n)
			list = append(list, s)
			p.workload.Add(p.request(&s.Kernels[0]))
		}
		require.NoError(t, c.Learn("g", list))
		p.policy.Learn(&p.workload)
	}
	changes, learnt, arrived, surveyed := 0, 0, 0, -1
	for n := range 60 {
		s := draw(n)
		c.Enqueue("g", s)
		q := p.request(&s.Kernels[0])
		if listed == 0 {
			p.workload.Add(q)
			if arrived++; arrived >= max(16, learnt/2) {
				learnt, arrived, surveyed = learnt+arrived, 0, -1
				p.policy.Learn(&p.workload)
			}
		}
		if p.workload.Len() > 0 && (surveyed < 0 || changes-surveyed >= 8) {
			surveyed = changes
			p.survey()
		}
		node, gpu := p.best(q)
		got := pass(t, c, now.Add(time.Duration(n)*time.Minute))
		if node < 0 {
			require.Empty(t, got, "request %d fits nowhere", n)
			c.Remove(s.ID)
			continue
		}
		require.Len(t, got, 1, "request %d", n)
		held := got[0].Placements[0]
		require.Equal(t, cluster.AgentID(fmt.Sprintf("a%d", node)), held.Agent, "request %d: %+v", n, q)
		if gpu >= 0 {
			require.Contains(t, held.Allocation["cuda.shares"], fmt.Sprintf("g%d", gpu), "request %d", n)
		}
		changes++
		x := &p.nodes[node]
		x.CPU, x.Mem = x.CPU-q.CPU, x.Mem-q.Mem
		for id, v := range held.Allocation["cuda.shares"] {
			i := slices.IndexFunc([]string{"g0", "g1", "g2", "g3"}, func(name string) bool { return name == id })
			x.GPUs[i] -= int32(v)
		}
	}
}

// TestLeastFragmentationOfOddDevices: devices count by the part of them that is free, whatever their capacity.
func TestLeastFragmentationOfOddDevices(t *testing.T) {
	t.Parallel()
	with := func(id string, slot cluster.SlotName, capacities ...cluster.Amount) func(a scheduler.Agent) scheduler.Agent {
		return func(a scheduler.Agent) scheduler.Agent {
			a.ID = cluster.AgentID(id)
			for i, v := range capacities {
				a.Devices = append(a.Devices, alloc.Device{Slot: slot, ID: fmt.Sprintf("g%d", i), Capacity: v, Healthy: true})
			}
			return a
		}
	}
	shares := func(milli cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.shares"] = milli
		return s
	}
	quarter := holding("a", alloc.Allocation{"cuda.shares": {"g0": 250}})
	for name, c := range map[string]struct {
		agents  []scheduler.Agent
		running []scheduler.Running
		typical []cluster.Amount
		asks    cluster.Amount
		agent   cluster.AgentID
		device  string
	}{
		"a small device is a whole one": {
			[]scheduler.Agent{with("a", "cuda.shares", 1000)(agent("", 8, 16)), with("b", "cuda.shares", 500)(agent("", 8, 16))},
			nil, []cluster.Amount{1000}, 500, "a", "g0"},
		"a device without capacity": {
			[]scheduler.Agent{with("a", "cuda.shares", 0, 1000)(agent("", 8, 16))}, nil, []cluster.Amount{500}, 500, "a", "g1"},
		"half of a small device is too little": {
			[]scheduler.Agent{with("a", "cuda.shares", 500, 1000)(agent("", 8, 16))}, []scheduler.Running{quarter},
			[]cluster.Amount{1000}, 400, "a", "g1"},
		"of the asked kind rather than as many": {
			[]scheduler.Agent{
				with("a", "rocm.shares", 500, 500)(with("a", "cuda.shares", 1000)(agent("", 8, 16))),
				with("b", "rocm.shares", 1000)(with("b", "cuda.shares", 500, 500)(agent("", 8, 16))),
			}, nil, []cluster.Amount{500}, 500, "b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{Placement: "least-fragmentation"})
			for _, a := range c.agents {
				x.SetAgent("g", a)
			}
			for _, r := range c.running {
				x.Run("g", r)
			}
			var typical []scheduler.Session
			for n, v := range c.typical {
				typical = append(typical, job(n, 10, 0, shares(v)))
			}
			require.NoError(t, x.Learn("g", typical))
			require.Empty(t, pass(t, x, now))
			d := x.Probe("g", now, job(30, 10, 0, shares(c.asks)))
			require.Nil(t, d.Hold)
			require.Equal(t, c.agent, d.Placements[0].Agent)
			require.Equal(t, shares(c.asks), d.Placements[0].Allocation.Totals())
			if c.device != "" {
				require.Equal(t, map[string]cluster.Amount{c.device: c.asks}, d.Placements[0].Allocation["cuda.shares"])
			}
		})
	}
}

// TestKernelsTogetherAreOneRequest: kernels on one agent that ask for whole accelerators are one typical request for several.
func TestKernelsTogetherAreOneRequest(t *testing.T) {
	t.Parallel()
	gpus := func(n cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.device"] = n * 1000
		return s
	}
	x := filled(t, scheduler.Group{Placement: "least-fragmentation"})
	x.SetAgent("g", withGPUs(agent("a", 16, 32), "cuda.device", 4))
	x.SetAgent("g", withGPUs(agent("b", 16, 32), "cuda.device", 6))
	require.NoError(t, x.Learn("g", []scheduler.Session{job(1, 10, 0, gpus(4))}))
	require.Empty(t, pass(t, x, now))
	s := job(2, 10, 0, gpus(1), gpus(1))
	s.SingleNode = true
	d := x.Probe("g", now, s)
	require.Len(t, d.Placements, 2)
	require.Equal(t, cluster.AgentID("b"), d.Placements[0].Agent, "a can still serve who asks for four")
}

// TestLearntRequestsStayWithTheirOptions: what a placement policy learnt is kept while its options are the same, and only then.
func TestLearntRequestsStayWithTheirOptions(t *testing.T) {
	t.Parallel()
	gpus := func(n cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.device"] = n * 1000
		return s
	}
	x := filled(t, scheduler.Group{Placement: "least-fragmentation"})
	x.SetAgent("g", withGPUs(agent("a", 16, 32), "cuda.device", 4))
	x.SetAgent("g", withGPUs(agent("b", 16, 32), "cuda.device", 6))
	// With the list, b is taken, because a can still serve who asks for four. Without it, the fullest one is taken.
	check := func(options map[string]any, want cluster.AgentID) {
		require.NoError(t, x.SetGroup(scheduler.Group{Name: "g", Placement: "least-fragmentation", PlacementOptions: options}))
		require.Empty(t, pass(t, x, now))
		require.Equal(t, want, x.Probe("g", now, job(2, 10, 0, gpus(2))).Placements[0].Agent, "%v", options)
	}
	learn := func() { require.NoError(t, x.Learn("g", []scheduler.Session{job(1, 10, 0, gpus(4))})) }
	check(nil, "a")
	learn()
	check(map[string]any{}, "b")
	check(nil, "b")
	check(map[string]any{"length": 24.0}, "a")
	learn()
	check(map[string]any{"length": 24.0}, "b")
	check(nil, "a")
}
