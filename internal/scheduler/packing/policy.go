package packing

import (
	"slices"

	"berth.dev/berth/internal/fault"
)

// Options tune a policy; the zero value gives the defaults, which are good for every workload
// that was tried.
type Options struct {
	// Sequences is the number of random series that a node state is tried with; 96 by default.
	// More cost more and judge finer.
	Sequences int
	// Length is the number of requests in each series before thinning; 128 by default.
	Length int
	// cacheSize is the number of node states whose value is remembered, rounded up to a power of
	// two, 16 bytes each; 262,144 by default.
	cacheSize int
}

func (o Options) withDefaults() Options {
	if o.Sequences == 0 {
		o.Sequences = 96
	}
	if o.Length == 0 {
		o.Length = 128
	}
	if o.cacheSize == 0 {
		o.cacheSize = 1 << 18
	}
	return o
}

// Policy scores placements. It is not safe for concurrent use.
type Policy struct {
	opt    Options
	epoch  uint64
	kinds  []kind
	mean   float64 // GPU thousandths of an arrival
	series series
	gangs  []gang
	// scarce is the price of a free thousandth of a GPU of each model, in 1/1,024 of its use.
	scarce [MaxModels]int64
	// surveyed is what was free when the series were last calibrated, 0 before.
	surveyed int64

	memo   []memory
	sorted [MaxGPUs]int32 // scratch
}

// memory is the value of one node state; key 0 is an empty place.
type memory struct {
	key   uint64
	value int64
}

// New makes a policy from typical requests.
func New(w *Workload, o Options) (*Policy, error) {
	o = o.withDefaults()
	if min(o.Sequences, o.Length, o.cacheSize) < 0 || max(o.Sequences, o.Length) > 1<<12 || o.cacheSize > 1<<26 {
		return nil, fault.Invalidf("packing policy: %d sequences of length %d with %d remembered states is out of range",
			o.Sequences, o.Length, o.cacheSize).
			WithNext("leave the options out for the defaults; at most 4,096 sequences, length 4,096, 67,108,864 states")
	}
	size := 1
	for size < o.cacheSize {
		size *= 2
	}
	p := &Policy{opt: o, memo: make([]memory, size)}
	p.Learn(w)
	return p, nil
}

// Learn takes a new workload for typical. What Survey found is forgotten: call it next.
func (p *Policy) Learn(w *Workload) {
	p.epoch++
	p.kinds = w.kinds()
	p.mean = 0
	for _, k := range p.kinds {
		p.mean += k.share * float64(k.Milli) * float64(k.GPUs)
	}
	p.surveyed = 0
	p.scarce = [MaxModels]int64{}
	p.findGangs()
	p.series.draw(p.kinds, p.opt)
	clear(p.memo)
}

// Epoch changes when losses of before no longer compare with losses of now.
func (p *Policy) Epoch() uint64 { return p.epoch }

// Score finds the best way to place r on n; false when it does not fit. It allocates nothing.
// Before anything is typical all losses are 0: the caller's order decides, and a share goes to the
// tightest GPU. (The tightest node would be worse: it strands GPUs where CPU is short.)
func (p *Policy) Score(n *Node, r *Request) (Choice, bool) {
	if len(n.GPUs) > MaxGPUs || n.Model >= MaxModels || !r.valid() || !n.Fits(r) {
		return Choice{}, false
	}
	before := p.value(p.sort(n), n.CPU, n.Mem, n.Model)
	s := p.sort(n)
	cpu, mem := n.CPU-r.CPU, n.Mem-r.Mem
	if r.GPUs != 1 || r.Milli == Whole {
		// Wholly free GPUs are at the end; taken, they are the smallest.
		for i := range r.GPUs {
			s[len(s)-1-i] = 0
		}
		slices.Sort(s)
		return Choice{before - p.value(s, cpu, mem, n.Model), -1}, true
	}
	best, tried := Choice{GPU: -1}, int32(-1)
	for i := range s {
		// From the tightest; equal GPUs are alike.
		s = p.sort(n)
		g := s[i]
		if g < r.Milli || g == tried {
			continue
		}
		tried = g
		s[i] -= r.Milli
		slices.Sort(s)
		if loss := before - p.value(s, cpu, mem, n.Model); best.GPU < 0 || loss < best.Loss {
			best = Choice{loss, slices.Index(n.GPUs, g)}
		}
	}
	return best, true
}

// sort copies the node's GPUs in ascending order into scratch.
func (p *Policy) sort(n *Node) []int32 {
	s := p.sorted[:copy(p.sorted[:], n.GPUs)]
	slices.Sort(s)
	return s
}

// value is the worth of a node state, in GPU thousandths times Sequences; gpus ascend.
func (p *Policy) value(gpus []int32, cpu, mem int64, model uint8) int64 {
	if len(p.kinds) == 0 {
		return 0
	}
	var free int64
	for _, g := range gpus {
		free += int64(g)
	}
	v := p.filling(gpus, cpu, mem, model) + p.hosting(gpus, cpu, mem, model)
	return v + p.scarce[model]*free*int64(p.opt.Sequences)/1024
}

// filling is what the series would still fill, remembered.
func (p *Policy) filling(gpus []int32, cpu, mem int64, model uint8) int64 {
	h := mix(uint64(cpu)*0x9e3779b97f4a7c15 ^ mix(uint64(mem)+uint64(model)<<48))
	for _, g := range gpus {
		h = mix(h ^ uint64(g)*0xd6e8feb86659fd93)
	}
	h = max(h, 1)
	e := &p.memo[h&uint64(len(p.memo)-1)]
	if e.key != h {
		*e = memory{h, p.series.fill(gpus, cpu, mem, model, nil)}
	}
	return e.value
}
