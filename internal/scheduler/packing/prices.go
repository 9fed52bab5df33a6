package packing

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// maxGroups bounds the groups of nodes and of requests that prices tell apart.
const maxGroups = 256

// gang is a kind of request for several GPUs of one node.
type gang struct {
	kind
	price int64 // of one place, in units of value
}

func (p *Policy) findGangs() {
	p.gangs = p.gangs[:0]
	for _, k := range p.kinds {
		if k.GPUs > 1 && len(p.gangs) < 64 {
			p.gangs = append(p.gangs, gang{kind: k})
		}
	}
	slices.SortStableFunc(p.gangs, func(a, b gang) int { return cmp.Compare(a.GPUs, b.GPUs) })
}

// places is how many of a gang a node with so many wholly free GPUs can host.
func (g *gang) places(whole int, cpu, mem int64, model uint8) int64 {
	if whole < g.GPUs || cpu < g.CPU || mem < g.Mem || g.Models != 0 && g.Models>>model&1 == 0 {
		return 0
	}
	n := int64(whole / g.GPUs)
	if n > 1 && g.CPU > 0 {
		n = min(n, cpu/g.CPU)
	}
	if n > 1 && g.Mem > 0 {
		n = min(n, mem/g.Mem)
	}
	return n
}

// hosting is the price of the places for gangs that a node has, GPUs sorted.
func (p *Policy) hosting(gpus []int32, cpu, mem int64, model uint8) (v int64) {
	whole := wholes(gpus)
	if whole < 2 {
		return 0
	}
	size, best := 0, int64(0)
	for i := range p.gangs { // sorted by GPUs
		g := &p.gangs[i]
		if g.GPUs != size {
			v += best
			size, best = g.GPUs, 0
		}
		if g.price > 0 {
			best = max(best, g.price*g.places(whole, cpu, mem, model))
		}
	}
	return v + best
}

// wholes counts the wholly free GPUs.
func wholes(gpus []int32) (n int) {
	for _, g := range gpus {
		if g == Whole {
			n++
		}
	}
	return n
}

// group is the nodes that can host the same gangs.
type group struct {
	can    uint64 // bit per gang
	places [MaxGPUs + 1]float64
}

// Survey looks at all nodes and sets the prices of what is scarce. Epoch changes when they do.
func (p *Policy) Survey(nodes iter.Seq[*Node]) {
	var free int64
	var byModel [64]float64
	var groups []group
	for n := range nodes {
		for _, g := range n.GPUs {
			free += int64(g)
			byModel[n.Model] += float64(g)
		}
		whole := wholes(n.GPUs)
		if whole < 2 {
			continue
		}
		var here group
		for i := range p.gangs {
			g := &p.gangs[i]
			if x := g.places(whole, n.CPU, n.Mem, n.Model); x > 0 {
				here.can |= 1 << i
				here.places[g.GPUs] = max(here.places[g.GPUs], float64(x))
			}
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.can == here.can })
		if i < 0 {
			if len(groups) == maxGroups {
				continue
			}
			i = len(groups)
			groups = append(groups, group{can: here.can})
		}
		for size, x := range here.places {
			groups[i].places[size] += x
		}
	}
	var mean float64
	for _, k := range p.kinds {
		mean += k.share * float64(k.Milli) * float64(k.GPUs)
	}
	if mean == 0 {
		return
	}
	changed := false
	arrivals := float64(free) / mean
	if p.opt.Horizon > 0 && (p.calibrated == 0 || float64(free) < p.opt.Recal*float64(p.calibrated) || p.opt.Recal*float64(free) > float64(p.calibrated)) {
		p.calibrate(nodes, arrivals)
		p.calibrated = free
		changed = true
	}
	for lo := 0; lo < len(p.gangs); {
		size, hi := p.gangs[lo].GPUs, lo
		for hi < len(p.gangs) && p.gangs[hi].GPUs == size {
			hi++
		}
		need := make([]float64, hi-lo)
		for i := range need {
			need[i] = arrivals * p.gangs[lo+i].share
			need[i] += p.opt.Safety * math.Sqrt(need[i])
		}
		supply := make([]float64, len(groups))
		for j := range groups {
			supply[j] = groups[j].places[size]
		}
		level := spread(need, supply, func(i, j int) bool { return groups[j].can>>(lo+i)&1 == 1 })
		for i := range need {
			least := math.Inf(1)
			for j := range groups {
				if groups[j].can>>(lo+i)&1 == 1 {
					least = min(least, level[j])
				}
			}
			g := &p.gangs[lo+i]
			price := step2(math.Pow(min(p.opt.HostMax, max(least, p.opt.HostMin)), p.opt.HostPower))
			x := int64(price * p.opt.HostPrice * float64(size) * Whole * float64(p.opt.Sequences))
			if x != g.price {
				g.price, changed = x, true
			}
		}
		lo = hi
	}
	if p.priceModels(byModel, arrivals) || changed {
		p.epoch++
	}
}

// priceModels spreads the demand that names models over them.
func (p *Policy) priceModels(free [64]float64, arrivals float64) bool {
	var sets []Models
	var need []float64
	for _, k := range p.kinds {
		if k.Models == 0 || k.GPUs == 0 {
			continue
		}
		i := slices.Index(sets, k.Models)
		if i < 0 {
			if i = len(sets); i == maxGroups {
				continue
			}
			sets, need = append(sets, k.Models), append(need, 0)
		}
		need[i] += arrivals * k.share * float64(k.Milli) * float64(k.GPUs)
	}
	level := spread(need, free[:], func(i, j int) bool { return sets[i]>>j&1 == 1 })
	changed := false
	for m := range level {
		price := step2(math.Pow(min(1, level[m]), p.opt.ModelPower))
		x := int64(price * p.opt.ModelPrice * 1024)
		if x != p.model[m] {
			p.model[m], changed = x, true
		}
	}
	return changed
}

// spread divides needs among the supplies that may serve them so that the most loaded supply is
// as little loaded as can be, and returns each supply's load over its size; 0 where it has none.
func spread(need, supply []float64, may func(need, supply int) bool) []float64 {
	load := make([]float64, len(supply))
	flow := make([]float64, len(need)*len(supply))
	for range 8 {
		for i, d := range need {
			mine := flow[i*len(supply) : (i+1)*len(supply)]
			for j := range load {
				load[j] -= mine[j]
			}
			// Raise all supplies that may serve it to one level.
			lo, hi := 0.0, 1.0
			fill := func(level float64) (sum float64) {
				for j, s := range supply {
					mine[j] = 0
					if s > 0 && may(i, j) {
						mine[j] = max(0, level*s-load[j])
						sum += mine[j]
					}
				}
				return sum
			}
			for hi < 1<<20 && fill(hi) < d {
				hi *= 2
			}
			for range 24 {
				if mid := (lo + hi) / 2; fill(mid) < d {
					lo = mid
				} else {
					hi = mid
				}
			}
			fill(hi)
			for j := range load {
				load[j] += mine[j]
			}
		}
	}
	for j, s := range supply {
		if s > 0 {
			load[j] /= s
		} else {
			load[j] = 0
		}
	}
	return load
}

// thin keeps of every kind the share of steps that keep says.
func (p *Policy) thin() {
	p.steps, p.ends = p.steps[:0], p.ends[:0]
	for i, s := range p.base {
		if float64(s.u) < p.keep[s.kind]*65536 {
			p.steps = append(p.steps, s)
		}
		if (i+1)%p.opt.Length == 0 {
			p.ends = append(p.ends, len(p.steps))
		}
	}
	clear(p.memo)
}

// calibrate thins out the kinds that the series would place more often than they will arrive.
func (p *Policy) calibrate(nodes iter.Seq[*Node], arrivals float64) {
	total := 0
	for n := range nodes {
		if wholes(n.GPUs) >= 0 {
			total++
		}
	}
	stride := max(1, total/p.opt.CalNodes)
	rounds := p.opt.CalRounds
	if p.calibrated == 0 {
		rounds *= 4
	}
	p.count = make([]int64, len(p.kinds))
	for range rounds {
		clear(p.count)
		i, looked := 0, 0
		for n := range nodes {
			if i++; i%stride != 0 {
				continue
			}
			looked++
			p.rollout(n.GPUs, clamp(n.CPU), clamp(n.Mem), n.Model)
		}
		scale := float64(total) / float64(looked) / float64(len(p.ends))
		for k := range p.keep {
			want := arrivals * p.kinds[k].share * p.opt.Horizon
			got := max(float64(p.count[k])*scale, 1e-9)
			p.keep[k] = min(1, max(p.keep[k]*min(2, max(0.5, want/got)), 1.0/64))
		}
		p.thin()
	}
	p.count = nil
}

// step2 rounds to a power of √2, so that prices, and with them all scores, change seldom.
func step2(x float64) float64 {
	if x < 1e-4 {
		return 0
	}
	return math.Exp2(math.Round(2*math.Log2(x)) / 2)
}
