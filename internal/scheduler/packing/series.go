package packing

import "math"

// series are random sequences of typical requests. All nodes are tried with the same ones (common random numbers), because then the
// difference between two node states is more exact than the value of either.
//
// Series as long as needed to fill a node would value small gaps too high: in each of them comes the rare small request that just fills
// the gap, but the cluster has more gaps than such requests. So the series are calibrated: a kind of request that they place more often,
// over the whole cluster, than it will arrive is thinned out, that is, some of its steps are left out.
type series struct {
	kinds []kind
	drawn []step    // all steps, length by length
	keep  []float64 // share of a kind's steps that is kept
	steps []step    // those that are kept, series after series
	ends  []int     // where each series ends in steps
	// The least that any request for GPUs takes. A node with less free is full.
	leastMilli, leastCPU int32
	length               int
}

// step is one request of a series. It is small, because most of the time goes into reading steps.
type step struct {
	cpu, mem int32
	milli    int16
	gpus     uint8
	picky    bool // names models
	kind     uint16
	mark     uint16 // random; the step is kept while it is below keep × 65,536 of its kind
}

// draw makes new series, not thinned.
func (s *series) draw(kinds []kind, o Options) {
	*s = series{
		kinds: kinds, length: o.Length, leastMilli: Whole + 1, leastCPU: math.MaxInt32,
		drawn: s.drawn[:0], steps: s.steps[:0], ends: s.ends[:0],
	}
	if len(kinds) == 0 {
		return
	}
	for _, k := range kinds {
		s.keep = append(s.keep, 1)
		if k.GPUs > 0 {
			s.leastMilli, s.leastCPU = min(s.leastMilli, k.Milli), min(s.leastCPU, clamp(k.CPU))
		}
	}
	// Every kind gets its exact share of the steps. Only their order is random.
	random := splitmix(0)
	total := o.Sequences * o.Length
	next, sum := 0, kinds[0].share
	for i := range total {
		for (float64(i)+0.5)/float64(total) > sum && next < len(kinds)-1 {
			next++
			sum += kinds[next].share
		}
		k := &kinds[next]
		s.drawn = append(s.drawn, step{cpu: clamp(k.CPU), mem: clamp(k.Mem), milli: int16(k.Milli), gpus: uint8(k.GPUs),
			picky: k.Models != 0, kind: uint16(next), mark: uint16(random.next() >> 48)})
	}
	for i := total - 1; i > 0; i-- {
		j := int(random.next() % uint64(i+1))
		s.drawn[i], s.drawn[j] = s.drawn[j], s.drawn[i]
	}
	s.thin()
}

// thin lists the steps that are kept.
func (s *series) thin() {
	s.steps, s.ends = s.steps[:0], s.ends[:0]
	for i, t := range s.drawn {
		if float64(t.mark) < s.keep[t.kind]*65536 {
			s.steps = append(s.steps, t)
		}
		if (i+1)%s.length == 0 {
			s.ends = append(s.ends, len(s.steps))
		}
	}
}

// fill is how many thousandths of GPUs all series together place on a node. Each series begins with the same state of the node and places
// every step that fits, a share on the tightest GPU. Placements are counted by kind in count, unless it is nil.
func (s *series) fill(gpus []int32, cpu0, mem0 int64, model uint8, count []int64) (total int64) {
	var room [MaxGPUs]int32
	g := room[:len(gpus)]
	most0 := int32(0)
	for _, x := range gpus {
		most0 = max(most0, x)
	}
	if most0 < s.leastMilli || clamp(cpu0) < s.leastCPU {
		return 0
	}
	from := 0
	for _, end := range s.ends {
		copy(g, gpus)
		cpu, mem, most := clamp(cpu0), clamp(mem0), most0
		steps := s.steps[from:end]
		from = end
		for i := range steps {
			t := &steps[i]
			if t.cpu > cpu || t.mem > mem {
				continue
			}
			milli := int32(t.milli)
			if milli > most || t.picky && !s.kinds[t.kind].Models.has(model) {
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
				if size == most {
					most = 0
					for _, x := range g {
						most = max(most, x)
					}
				}
			} else if t.gpus > 1 {
				if wholes(g) < int(t.gpus) {
					continue
				}
				left := t.gpus
				most = 0
				for j, x := range g {
					if x == Whole && left > 0 {
						g[j] = 0
						left--
					}
					most = max(most, g[j])
				}
			}
			cpu -= t.cpu
			mem -= t.mem
			total += int64(milli) * int64(t.gpus)
			if count != nil {
				count[t.kind]++
			}
			if most < s.leastMilli || cpu < s.leastCPU {
				break
			}
		}
	}
	return total
}

// horizon is how often, for each arrival of a kind until the cluster is full, the series may place one. It is above 1, because not every
// arrival will be placed. Values between 1.3 and 5 pack alike.
const (
	horizon     = 2.0
	leastKept   = 1.0 / 64
	calmRounds  = 3
	firstRounds = 12
)

// calibrate thins the series. states are a sample of the nodes, one in every; arrivals is the number of requests that would fill what is
// free.
func (s *series) calibrate(states []state, every int, arrivals float64, rounds int) {
	count := make([]int64, len(s.kinds))
	for range rounds {
		clear(count)
		for i := range states {
			n := &states[i]
			s.fill(n.gpus[:n.count], n.cpu, n.mem, n.model, count)
		}
		scale := float64(every) / float64(len(s.ends))
		for k := range s.keep {
			want := arrivals * s.kinds[k].share * horizon
			used := max(float64(count[k])*scale, 1e-9)
			s.keep[k] = min(1, max(leastKept, s.keep[k]*min(2, max(0.5, want/used))))
		}
		s.thin()
	}
}

func clamp(x int64) int32 { return int32(min(max(x, 0), math.MaxInt32)) }

// splitmix is a generator of random numbers.
type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix(uint64(*s))
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
