package packing

import (
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"berth.dev/berth/internal/fault"
	"pgregory.net/rapid"
)

// typical is a small workload: shares that pair well and badly, whole GPUs, a gang, CPU alone,
// and requests that insist on a model.
func typical() *Workload {
	w := &Workload{}
	for _, k := range []struct {
		n int
		r Request
	}{
		{30, Request{CPU: 3000, Mem: 6000, GPUs: 1, Milli: 810}},
		{20, Request{CPU: 12000, Mem: 48000, GPUs: 1, Milli: 470}},
		{4, Request{CPU: 4000, Mem: 15000, GPUs: 1, Milli: 160}},
		{40, Request{CPU: 11000, Mem: 48000, GPUs: 1, Milli: Whole}},
		{6, Request{CPU: 20000, Mem: 64000, GPUs: 1, Milli: Whole, Models: 1 << 2}},
		{3, Request{CPU: 64000, Mem: 262144, GPUs: 8, Milli: Whole}},
		{2, Request{CPU: 16000, Mem: 66000, GPUs: 2, Milli: Whole}},
		{15, Request{CPU: 32000, Mem: 49152}},
	} {
		for range k.n {
			w.Add(k.r)
		}
	}
	return w
}

func newPolicy(t interface{ Fatal(...any) }, w *Workload) *Policy {
	p, err := New(w, Options{Sequences: 8, Length: 48, cacheSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func anyNode(t *rapid.T) Node {
	n := Node{
		CPU:   rapid.Int64Range(0, 128000).Draw(t, "cpu"),
		Mem:   rapid.Int64Range(0, 1<<20).Draw(t, "mem"),
		Model: rapid.Uint8Range(0, 4).Draw(t, "model"),
	}
	n.GPUs = rapid.SliceOfN(rapid.SampledFrom([]int32{0, 40, 190, 190, 530, 810, Whole, Whole, Whole}), 0, 10).Draw(t, "gpus")
	return n
}

func anyRequest(t *rapid.T) Request {
	r := Request{
		CPU:  rapid.Int64Range(0, 64000).Draw(t, "cpu asked"),
		Mem:  rapid.Int64Range(0, 1<<18).Draw(t, "mem asked"),
		GPUs: rapid.SampledFrom([]int{0, 1, 1, 1, 2, 4, 8}).Draw(t, "gpus asked"),
	}
	switch {
	case r.GPUs == 1:
		r.Milli = rapid.Int32Range(1, Whole).Draw(t, "milli")
	case r.GPUs > 1:
		r.Milli = Whole
	}
	if r.GPUs > 0 {
		r.Models = Models(rapid.SampledFrom([]uint64{0, 0, 0, 1, 4, 6}).Draw(t, "models"))
	}
	return r
}

func TestScoreChoosesWithinCapacity(t *testing.T) {
	p := newPolicy(t, typical())
	rapid.Check(t, func(t *rapid.T) {
		n, r := anyNode(t), anyRequest(t)
		c, ok := p.Score(&n, &r)
		if ok != n.Fits(&r) {
			t.Fatalf("scored %v, fits %v", ok, n.Fits(&r))
		}
		if !ok {
			return
		}
		share := r.GPUs == 1 && r.Milli < Whole
		if share != (c.GPU >= 0) {
			t.Fatalf("GPU %d for %+v", c.GPU, r)
		}
		if share && n.GPUs[c.GPU] < r.Milli {
			t.Fatalf("GPU %d has %d free, %d asked", c.GPU, n.GPUs[c.GPU], r.Milli)
		}
	})
}

func TestScoreDoesNotDependOnGPUOrderOrHistory(t *testing.T) {
	p := newPolicy(t, typical())
	rapid.Check(t, func(t *rapid.T) {
		n, r := anyNode(t), anyRequest(t)
		c, ok := p.Score(&n, &r)
		other := n
		other.GPUs = rapid.Permutation(n.GPUs).Draw(t, "order")
		// A new policy has an empty memory; the first one's has seen much and lost much.
		again, okAgain := newPolicy(t, typical()).Score(&other, &r)
		if ok != okAgain || c.Loss != again.Loss {
			t.Fatalf("loss %d (%v), in another order %d (%v)", c.Loss, ok, again.Loss, okAgain)
		}
		if c.GPU >= 0 && ok && n.GPUs[c.GPU] != other.GPUs[again.GPU] {
			t.Fatalf("took a GPU with %d free, in another order %d", n.GPUs[c.GPU], other.GPUs[again.GPU])
		}
	})
}

// play places requests on nodes in order, one Survey every few placements, as a scheduler would.
func play(t *testing.T, p *Policy, nodes []Node, requests []Request) (chosen []int, placed int) {
	t.Helper()
	survey := func() {
		p.Survey(func(yield func(*Node) bool) {
			for i := range nodes {
				if !yield(&nodes[i]) {
					return
				}
			}
		})
	}
	for i := range requests {
		if i%20 == 0 {
			survey()
		}
		r := &requests[i]
		win, best := -1, Choice{}
		for j := range nodes {
			if c, ok := p.Score(&nodes[j], r); ok && (win < 0 || c.Loss < best.Loss) {
				win, best = j, c
			}
		}
		chosen = append(chosen, win)
		if win < 0 {
			continue
		}
		placed++
		n := &nodes[win]
		n.CPU, n.Mem = n.CPU-r.CPU, n.Mem-r.Mem
		if best.GPU >= 0 {
			n.GPUs[best.GPU] -= r.Milli
			continue
		}
		for k, left := 0, r.GPUs; left > 0; k++ {
			if n.GPUs[k] == Whole {
				n.GPUs[k] = 0
				left--
			}
		}
	}
	for _, n := range nodes {
		if n.CPU < 0 || n.Mem < 0 || len(n.GPUs) > 0 && slices.Min(n.GPUs) < 0 {
			t.Fatalf("node over its capacity: %+v", n)
		}
	}
	return chosen, placed
}

// trace is a small cluster of three models and requests drawn from the typical ones.
func trace(count int) (nodes []Node, requests []Request) {
	for i := range 40 {
		switch {
		case i < 24:
			nodes = append(nodes, Node{CPU: 96000, Mem: 393216, GPUs: slices.Repeat([]int32{Whole}, 8), Model: 0})
		case i < 34:
			nodes = append(nodes, Node{CPU: 104000, Mem: 524288, GPUs: []int32{Whole, Whole}, Model: 1})
		default:
			nodes = append(nodes, Node{CPU: 64000, Mem: 262144, GPUs: slices.Repeat([]int32{Whole}, 4), Model: 2})
		}
	}
	kinds := typical().kinds()
	random := splitmix(7)
	for range count {
		u := float64(random.next()>>11) / (1 << 53)
		for _, k := range kinds {
			if u -= k.share; u < 0 {
				requests = append(requests, k.Request)
				break
			}
		}
	}
	return nodes, requests
}

func TestGoldenTrace(t *testing.T) {
	nodes, requests := trace(320)
	p, err := New(typical(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	chosen, placed := play(t, p, nodes, requests)
	h := fnv.New32a()
	fmt.Fprint(h, chosen)
	const wantPlaced, wantSum = 250, 2196662931
	if placed != wantPlaced || h.Sum32() != wantSum {
		t.Errorf(
			"placed %d with sum %d, want %d and %d: placements changed; if that is meant, measure again what docs/decisions/0008-packing.md states",
			placed,
			h.Sum32(),
			wantPlaced,
			wantSum,
		)
	}
}

// Without prices, small requests open every node early and no place is left for a gang.
func TestPlacesForGangsAreKept(t *testing.T) {
	nodes, requests := trace(320)
	p := newPolicy(t, typical())
	chosen, _ := play(t, p, nodes, requests)
	var arrived int64
	for i, r := range requests {
		arrived += int64(r.GPUs) * int64(r.Milli)
		if r.GPUs == 8 && chosen[i] < 0 && arrived < 180*Whole { // of 236 GPUs
			t.Fatalf("request %d for 8 GPUs was refused when %d thousandths had arrived", i, arrived)
		}
	}
}

// The scarce model is a tenth of the GPUs here. Without a price for it, the requests that could go
// anywhere fill it early and those that name it are refused.
func TestRequestsThatNameAModelFindItFree(t *testing.T) {
	w := typical()
	for range 6 {
		w.Add(Request{CPU: 8000, Mem: 30000, GPUs: 1, Milli: Whole, Models: 1 << 2})
	}
	nodes, requests := trace(220)
	for i := 9; i < len(requests); i += 10 {
		requests[i] = Request{CPU: 8000, Mem: 30000, GPUs: 1, Milli: Whole, Models: 1 << 2}
	}
	chosen, _ := play(t, newPolicy(t, w), nodes, requests)
	var arrived int64
	for i, r := range requests {
		arrived += int64(r.GPUs) * int64(r.Milli)
		if r.Models != 0 && chosen[i] < 0 && arrived < 120*Whole {
			t.Fatalf("request %d for the scarce model was refused when %d thousandths had arrived", i, arrived)
		}
	}
}

func TestPolicyWithoutWorkloadTakesTheTightestGPU(t *testing.T) {
	p := newPolicy(t, &Workload{})
	p.Survey(func(func(*Node) bool) {})
	n := Node{CPU: 64000, Mem: 9000, GPUs: []int32{Whole, 300, 700}}
	if c, ok := p.Score(&n, &Request{CPU: 1000, Mem: 100, GPUs: 1, Milli: 300}); !ok || c != (Choice{0, 1}) {
		t.Fatalf("%+v %v", c, ok)
	}
}

func TestScoreRefusesWhatItDoesNotUnderstand(t *testing.T) {
	p := newPolicy(t, typical())
	whole := Node{CPU: 1 << 40, Mem: 1 << 40, GPUs: slices.Repeat([]int32{Whole}, MaxGPUs)}
	for _, r := range []Request{
		{CPU: -1}, {GPUs: -1, Milli: 5}, {GPUs: 1}, {GPUs: 1, Milli: Whole + 1}, {GPUs: 2, Milli: 500}, {GPUs: MaxGPUs + 1, Milli: Whole},
	} {
		if _, ok := p.Score(&whole, &r); ok {
			t.Errorf("scored %+v", r)
		}
	}
	r := Request{CPU: 1}
	for _, n := range []Node{{CPU: 5, GPUs: make([]int32, MaxGPUs+1)}, {CPU: 5, Model: MaxModels}} {
		if _, ok := p.Score(&n, &r); ok {
			t.Errorf("scored %+v", n)
		}
	}
	if c, ok := p.Score(&whole, &Request{CPU: 1 << 39, Mem: 1, GPUs: MaxGPUs, Milli: Whole}); !ok || c.GPU != -1 {
		t.Errorf("a huge request on a huge node: %+v %v", c, ok)
	}
}

func TestNewRefusesOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{{Sequences: -1}, {Length: 1 << 20}, {cacheSize: 1 << 40}} {
		if _, err := New(&Workload{}, o); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestWorkloadIsBoundedAndForgets(t *testing.T) {
	w := &Workload{HalfLife: 100}
	for i := range 5000 {
		w.Add(Request{CPU: int64(i), Mem: 1})
	}
	if w.Len() > maxKinds {
		t.Fatalf("remembers %d kinds", w.Len())
	}
	w = &Workload{HalfLife: 100}
	for i := range 10000 {
		w.Add(Request{CPU: int64(i / 9500), Mem: 1})
	}
	if k := w.kinds()[0]; k.CPU != 1 || k.share < 0.9 {
		t.Fatalf("most frequent is %+v", k)
	}
}

func TestWorkloadOrderIsItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arrivals := rapid.SliceOfN(rapid.Custom(anyRequest), 1, 40).Draw(t, "arrivals")
		a, b := &Workload{}, &Workload{}
		for i := range arrivals {
			a.Add(arrivals[i])
			b.Add(arrivals[len(arrivals)-1-i])
		}
		if !slices.Equal(a.kinds(), b.kinds()) {
			t.Fatal("kinds depend on the order of arrival")
		}
	})
}

func TestSpreadLoadsEvenly(t *testing.T) {
	// The second need may only go to the first supply, so the first need leaves it alone.
	load := spread([]float64{6, 4}, []float64{10, 10}, func(i, j int) bool { return i == 0 || j == 0 })
	for j, l := range load {
		if l < 0.49 || l > 0.51 {
			t.Errorf("supply %d is loaded %.3f", j, l)
		}
	}
	if load = spread([]float64{5}, []float64{0, 10}, func(int, int) bool { return true }); load[0] != 0 || load[1] < 0.49 {
		t.Errorf("loads %v", load)
	}
}
