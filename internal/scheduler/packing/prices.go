package packing

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// The series look at one node only. They do not see that the whole cluster has few nodes left for a request of eight GPUs, or few GPUs of
// a model that some requests name. So these two things have prices, and a placement that uses them up has a larger loss:
//
//   - a place for a gang (here: a request for several GPUs of one node), for each size of gang;
//   - a free GPU of a model that requests name.
//
// A price follows from a load: the demand that is still to come, divided by what is free for it. It is proportional to the square of the
// load. Where much is free, the price is almost zero; where little is free, it outweighs the value that the series see.
const (
	// hostPrice is the price of a place for a gang at load 1, as a part of the GPUs of the gang.
	hostPrice = 0.05
	// Loads of places are limited to this range. mostLoad is above 1, because a place that is wanted four times over must cost more than
	// one that is wanted twice.
	leastLoad, mostLoad = 0.1, 4
	// safety is the number of standard deviations that are added to the expected demand for a gang.
	safety = 1.5
	// Prices are old by the time they are used: small requests may have taken places since the survey. So one place for every hasty
	// nodes of the cluster is counted as gone already, but at most half of the places of a group.
	hasty = 75
	// modelPrice is the price of using a free GPU of a named model at load 1, as a part of what is used of it.
	modelPrice = 0.6
	// The series are calibrated again when the free amount has shrunk or grown by this factor.
	recalibrate = 4
	// The number of nodes that calibration looks at; it may be up to twice as many.
	sampled = 100

	maxGangs  = 64  // bits of group.can
	maxGroups = 256 // groups of nodes, and sets of models
)

// gang is a kind of request for several GPUs of one node.
type gang struct {
	kind
	price int64 // of one place, in units of value
}

// group is all nodes that can host the same gangs.
type group struct {
	can    uint64               // a bit for each gang
	places [MaxGPUs + 1]float64 // by number of GPUs of a gang
}

// state is a copy of a node.
type state struct {
	gpus     [MaxGPUs]int32
	count    int
	cpu, mem int64
	model    uint8
}

// findGangs lists the most frequent gangs without prices, those of fewer GPUs first.
func (p *Policy) findGangs() {
	p.gangs = p.gangs[:0]
	for _, k := range p.kinds {
		if k.GPUs > 1 && len(p.gangs) < maxGangs {
			p.gangs = append(p.gangs, gang{kind: k})
		}
	}
	slices.SortStableFunc(p.gangs, func(a, b gang) int { return cmp.Compare(a.GPUs, b.GPUs) })
}

// places is how many requests of a gang a node can host at once; whole is its number of wholly free GPUs.
func (g *gang) places(whole int, cpu, mem int64, model uint8) int64 {
	if whole < g.GPUs || cpu < g.CPU || mem < g.Mem || g.Models != 0 && !g.Models.has(model) {
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

// hosting is the price of the places that a node has. Places for gangs of one size are the same places: the dearest gang counts.
func (p *Policy) hosting(gpus []int32, cpu, mem int64, model uint8) (v int64) {
	whole := wholes(gpus)
	if whole < 2 {
		return 0
	}
	size, best := 0, int64(0)
	for i := range p.gangs {
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

// Survey looks once at all nodes and sets prices. It does not keep the nodes. Call it before the first score, after Learn, and again when
// some per cent of the nodes have changed. Epoch changes when a price does. Prices move in steps, so mostly it stays.
func (p *Policy) Survey(nodes iter.Seq[*Node]) {
	if p.mean == 0 {
		return
	}
	var free [MaxModels]float64
	var all int64
	var groups []group
	var sample []state
	every, seen := 1, 0
	for n := range nodes {
		if len(n.GPUs) > MaxGPUs || n.Model >= MaxModels {
			continue
		}
		for _, g := range n.GPUs {
			all += int64(g)
			free[n.Model] += float64(g)
		}
		groups = p.addPlaces(groups, n)
		// The sample takes every n-th node, of a number of nodes that is not known beforehand: whenever it is twice too large, every
		// other node is dropped and n doubles.
		if seen++; seen%every == 0 {
			if len(sample) == 2*sampled {
				for i := range sampled {
					sample[i] = sample[2*i+1]
				}
				sample = sample[:sampled]
				if every *= 2; seen%every != 0 {
					continue
				}
			}
			s := state{count: len(n.GPUs), cpu: n.CPU, mem: n.Mem, model: n.Model}
			copy(s.gpus[:], n.GPUs)
			sample = append(sample, s)
		}
	}
	arrivals := float64(all) / p.mean
	changed := p.priceModels(free[:], arrivals)
	if p.priceGangs(groups, arrivals, seen) {
		changed = true
	}
	if all > 0 && (p.surveyed == 0 || all < p.surveyed/recalibrate || p.surveyed < all/recalibrate) {
		rounds := calmRounds
		if p.surveyed == 0 {
			rounds = firstRounds
		}
		p.series.calibrate(sample, every, arrivals, rounds)
		clear(p.memo)
		p.surveyed, changed = all, true
	}
	if changed {
		p.epoch++
	}
}

// addPlaces adds the places of a node to those of its group.
func (p *Policy) addPlaces(groups []group, n *Node) []group {
	whole := wholes(n.GPUs)
	if whole < 2 {
		return groups
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
		if here.can == 0 || len(groups) == maxGroups {
			return groups
		}
		i = len(groups)
		groups = append(groups, group{can: here.can})
	}
	for size, x := range here.places {
		groups[i].places[size] += x
	}
	return groups
}

// priceGangs sets the prices of places and reports whether one changed.
func (p *Policy) priceGangs(groups []group, arrivals float64, nodes int) (changed bool) {
	supply := make([]float64, len(groups))
	for lo, hi := 0, 0; lo < len(p.gangs); lo = hi {
		size := p.gangs[lo].GPUs
		for hi < len(p.gangs) && p.gangs[hi].GPUs == size {
			hi++
		}
		same := p.gangs[lo:hi]
		need := make([]float64, len(same))
		for i := range same {
			need[i] = arrivals * same[i].share
			need[i] += safety * math.Sqrt(need[i])
		}
		for j := range groups {
			supply[j] = groups[j].places[size]
			supply[j] -= min(float64(nodes/hasty), supply[j]/2)
		}
		can := func(i, j int) bool { return groups[j].can>>(lo+i)&1 == 1 }
		load := spread(need, supply, can)
		for i := range same {
			least := math.Inf(1) // the load of the group where its demand would go
			for j := range groups {
				if can(i, j) {
					least = min(least, load[j])
				}
			}
			least = min(mostLoad, max(leastLoad, least))
			x := int64(hostPrice * stepped(least*least) * float64(size*Whole*p.opt.Sequences))
			changed = changed || x != same[i].price
			same[i].price = x
		}
	}
	return changed
}

// priceModels sets the prices of models and reports whether one changed.
func (p *Policy) priceModels(free []float64, arrivals float64) (changed bool) {
	var sets []Models
	var need []float64
	for _, k := range p.kinds {
		if k.Models == 0 {
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
	load := spread(need, free, func(i, j int) bool { return sets[i].has(uint8(j)) })
	for m, l := range load {
		l = min(1, l)
		x := int64(1024 * modelPrice * stepped(l*l))
		changed = changed || x != p.scarce[m]
		p.scarce[m] = x
	}
	return changed
}

// stepped rounds to a power of √2, so that prices change seldom. Every change makes all earlier scores useless.
func stepped(x float64) float64 {
	if x < 1e-4 {
		return 0
	}
	return math.Exp2(math.Round(2*math.Log2(x)) / 2)
}

// spread divides every need among the supplies that may serve it, so that the highest load is about as low as can be. It gives the load
// of each supply: what it serves, divided by its size; 0 for an empty one.
func spread(need, supply []float64, may func(need, supply int) bool) []float64 {
	load := make([]float64, len(supply))
	flow := make([]float64, len(need)*len(supply))
	for range 8 {
		for i, want := range need {
			mine := flow[i*len(supply) : (i+1)*len(supply)]
			for j := range load {
				load[j] -= mine[j]
			}
			// Fill the supplies that may serve this need to one level of load. Bisection finds the level at which it is served.
			fillTo := func(level float64) (sum float64) {
				for j, s := range supply {
					mine[j] = 0
					if s > 0 && may(i, j) {
						mine[j] = max(0, level*s-load[j])
						sum += mine[j]
					}
				}
				return sum
			}
			lo, hi := 0.0, 1.0
			for hi < 1<<20 && fillTo(hi) < want {
				hi *= 2
			}
			for range 24 {
				if mid := (lo + hi) / 2; fillTo(mid) < want {
					lo = mid
				} else {
					hi = mid
				}
			}
			fillTo(hi)
			for j := range load {
				load[j] += mine[j]
			}
		}
	}
	for j, s := range supply {
		if s > 0 {
			load[j] /= s
		}
	}
	return load
}
