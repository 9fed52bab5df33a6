package packing

import (
	"math"
	"slices"

	"berth.dev/berth/internal/fault"
)

// Options tune a policy; the zero value gives the defaults.
type Options struct {
	// Sequences is the number of random series of requests that a node state is tried with.
	Sequences int
	// Length is the number of requests in each.
	Length int
	// CacheSize bounds the number of node states whose value is remembered.
	CacheSize int
	// HostPrice is what a scarce place for a request of several GPUs costs, as a share of its GPUs.
	HostPrice, HostPower, HostMin, HostMax float64
	ModelPrice, ModelPower                 float64
	Safety                                 float64
	// Horizon is the demand to come that calibration assumes, over what is free; Recal the shrinkage of free that calls for it again.
	Horizon, Recal      float64
	CalNodes, CalRounds int
	// Seed of the series.
	Seed uint64
}

func (o Options) withDefaults() Options {
	set := func(x *float64, def float64) {
		if *x == 0 {
			*x = def
		}
	}
	setInt := func(x *int, def int) {
		if *x == 0 {
			*x = def
		}
	}
	setInt(&o.Sequences, 64)
	setInt(&o.Length, 128)
	setInt(&o.CacheSize, 1<<18)
	setInt(&o.CalNodes, 100)
	setInt(&o.CalRounds, 3)
	set(&o.Horizon, 2)
	set(&o.Recal, 0.25)
	set(&o.HostPrice, 0.05)
	set(&o.HostPower, 2)
	set(&o.HostMin, 0.1)
	set(&o.HostMax, 2)
	set(&o.Safety, 1.5)
	set(&o.ModelPrice, 0.6)
	set(&o.ModelPower, 2)
	return o
}

// Policy scores placements. It is not safe for concurrent use.
type Policy struct {
	opt                  Options
	epoch                uint64
	base                 []step    // all drawn steps, Sequences × Length
	steps                []step    // those kept, sequence after sequence
	ends                 []int     // where each sequence ends in steps
	keep                 []float64 // share of a kind's steps that is kept
	leastMilli, leastCPU int32     // the least that a request for a GPU takes
	count                []int64   // placements of each kind in rollouts, while counting
	calibrated           int64     // free GPU thousandths when last calibrated
	memo                 []entry
	mask                 uint64
	kinds                []kind
	gangs                []gang
	model                [64]int64 // price of a free thousandth of a GPU, by model, times 1024
	// scratch
	sorted [MaxGPUs]int32
}

// step is one request of a series, packed: rollouts read little else.
type step struct {
	cpu, mem int32
	milli    int16
	gpus     uint8
	picky    bool // names models
	kind     uint16
	u        uint16 // kept while below the kind's keep × 65,536
}

type entry struct {
	key   uint64
	value int64
}

// New makes a policy from typical requests.
func New(w *Workload, o Options) (*Policy, error) {
	if o.Sequences < 0 || o.Length < 0 || o.CacheSize < 0 {
		return nil, fault.Invalidf("packing options are negative").WithNext("leave them out for the defaults")
	}
	p := &Policy{opt: o.withDefaults()}
	size := 1
	for size < p.opt.CacheSize {
		size *= 2
	}
	p.memo, p.mask = make([]entry, size), uint64(size-1)
	p.Learn(w)
	return p, nil
}

// Learn takes a new workload. Scores of before and after do not compare: Epoch changes.
func (p *Policy) Learn(w *Workload) {
	p.epoch++
	clear(p.memo)
	kinds := w.kinds()
	p.kinds = kinds
	p.findGangs()
	rng := splitmix(p.opt.Seed)
	p.base = p.base[:0]
	if len(kinds) == 0 {
		return
	}
	// Every kind gets its exact share of the steps; only the order is random.
	total := p.opt.Sequences * p.opt.Length
	next, sum := 0, kinds[0].share
	for i := range total {
		u := (float64(i) + 0.5) / float64(total)
		for u > sum && next < len(kinds)-1 {
			next++
			sum += kinds[next].share
		}
		k := &kinds[next]
		p.base = append(p.base, step{cpu: clamp(k.CPU), mem: clamp(k.Mem), milli: int16(k.Milli), gpus: uint8(k.GPUs),
			picky: k.Models != 0 && k.GPUs > 0, kind: uint16(next), u: uint16(rng.next() >> 48)})
	}
	for i := total - 1; i > 0; i-- {
		j := int(rng.next() % uint64(i+1))
		p.base[i], p.base[j] = p.base[j], p.base[i]
	}
	p.keep = make([]float64, len(kinds))
	for i := range p.keep {
		p.keep[i] = 1
	}
	p.leastMilli, p.leastCPU = Whole+1, math.MaxInt32
	for _, k := range kinds {
		if k.GPUs > 0 {
			p.leastMilli, p.leastCPU = min(p.leastMilli, k.Milli), min(p.leastCPU, clamp(k.CPU))
		}
	}
	p.calibrated = 0
	p.thin()
}

// Epoch changes when scores of before no longer compare with scores of now.
func (p *Policy) Epoch() uint64 { return p.epoch }

// Score finds the best way to place r on n; false when it does not fit.
func (p *Policy) Score(n *Node, r *Request) (Choice, bool) {
	if !n.Fits(r) || len(n.GPUs) > MaxGPUs {
		return Choice{}, false
	}
	s := p.sorted[:copy(p.sorted[:], n.GPUs)]
	slices.Sort(s)
	before := p.worth(s, n.CPU, n.Mem, n.Model)
	cpu, mem := n.CPU-r.CPU, n.Mem-r.Mem
	if r.GPUs == 0 {
		return Choice{before - p.worth(s, cpu, mem, n.Model), -1}, true
	}
	if r.GPUs > 1 || r.Milli == Whole {
		for i := range r.GPUs {
			s[len(s)-1-i] = 0
		}
		slices.Sort(s)
		return Choice{before - p.worth(s, cpu, mem, n.Model), -1}, true
	}
	best, found := Choice{}, false
	tried := int32(-1)
	for i := len(n.GPUs) - 1; i >= 0; i-- {
		// equal GPUs are alike
		s = p.sorted[:copy(p.sorted[:], n.GPUs)]
		slices.Sort(s)
		g := s[i]
		if g < r.Milli {
			break
		}
		if g == tried {
			continue
		}
		tried = g
		s[i] -= r.Milli
		slices.Sort(s)
		if l := before - p.worth(s, cpu, mem, n.Model); !found || l <= best.Loss {
			best, found = Choice{l, slices.Index(n.GPUs, g)}, true
		}
	}
	return best, true
}

// worth is the value of a node with prices.
func (p *Policy) worth(gpus []int32, cpu, mem int64, model uint8) int64 {
	v := p.value(gpus, cpu, mem, model) + p.hosting(gpus, cpu, mem, model)
	if m := p.model[model]; m > 0 {
		var free int64
		for _, g := range gpus {
			free += int64(g)
		}
		v += m * free / 1024 * int64(p.opt.Sequences)
	}
	return v
}

// value is what the series would still place on a node, GPUs sorted.
func (p *Policy) value(gpus []int32, cpu, mem int64, model uint8) int64 {
	h := mix(uint64(cpu)*0x9e3779b97f4a7c15 ^ mix(uint64(mem)+uint64(model)<<48))
	for _, g := range gpus {
		h = mix(h ^ uint64(g)*0xd6e8feb86659fd93)
	}
	if h == 0 {
		h = 1
	}
	e := &p.memo[h&p.mask]
	if e.key != h {
		*e = entry{h, p.rollout(gpus, clamp(cpu), clamp(mem), model)}
	}
	return e.value
}

func (p *Policy) rollout(gpus []int32, cpu0, mem0 int32, model uint8) int64 {
	var total int64
	var buf [MaxGPUs]int32
	g := buf[:len(gpus)]
	top0 := int32(0)
	for _, x := range gpus {
		top0 = max(top0, x)
	}
	if top0 < p.leastMilli || cpu0 < p.leastCPU {
		return 0
	}
	from := 0
	for _, end := range p.ends {
		copy(g, gpus)
		cpu, mem, top := cpu0, mem0, top0
		steps := p.steps[from:end]
		from = end
		for i := range steps {
			t := &steps[i]
			if t.cpu > cpu || t.mem > mem {
				continue
			}
			milli := int32(t.milli)
			if milli > top || t.picky && p.kinds[t.kind].Models>>model&1 == 0 {
				continue
			}
			if t.gpus == 1 {
				best, size := 0, int32(Whole+1)
				for j, x := range g {
					if x >= milli && x < size {
						best, size = j, x
					}
				}
				g[best] -= milli
				if size == top {
					top = 0
					for _, x := range g {
						top = max(top, x)
					}
				}
			} else if t.gpus > 1 {
				if wholes(g) < int(t.gpus) {
					continue
				}
				left := t.gpus
				top = 0
				for j, x := range g {
					if x == Whole && left > 0 {
						g[j] = 0
						left--
					}
					top = max(top, g[j])
				}
			}
			cpu -= t.cpu
			mem -= t.mem
			total += int64(milli) * int64(t.gpus)
			if p.count != nil {
				p.count[t.kind]++
			}
			if top < p.leastMilli || cpu < p.leastCPU {
				break
			}
		}
	}
	return total
}

func clamp(x int64) int32 { return int32(min(max(x, 0), 1<<31-1)) }

type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix(uint64(*s))
}

func (s *splitmix) float() float64 { return float64(s.next()>>11) / (1 << 53) }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
