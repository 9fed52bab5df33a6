package scheduler

import (
	"math"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Strategy values agents for requests: it is the part of a placement policy that differs.
// Wishes of the session (designated agents, companions, agents that failed it) come before it,
// an image that is present breaks its ties, and then the agents' ids do.
type Strategy interface {
	// Score values the agent for the request; smaller is better. It is called only where the
	// request fits, and again only when the agent or Epoch changed.
	Score(v *View) int64
	// Epoch changes when scores of before no longer hold.
	Epoch() uint64
	// Turns reports that of the agents that fit, those after the last one chosen go first.
	Turns() bool
}

// picker is a strategy that also says which accelerator a share goes to.
type picker interface {
	// Pick is the number of the device, -1 to leave it to the devices' topology.
	Pick(v *View) int
}

// learner is a strategy that learns from what is asked for.
type learner interface {
	// Learn counts a request that arrived; typical says that it comes from a list that replaces arrivals.
	Learn(v *Wanted, typical bool)
	// Settle takes over what was learnt; it is called before a pass and may change Epoch.
	Settle(g *group)
}

// View is an agent and a request as a strategy sees them. It is valid during the call only.
type View struct {
	m *machine
	w Wanted
}

// Wanted is a request as a strategy sees it.
type Wanted struct {
	g *group
	s *shape
}

// Remaining tells what is left of each class of slot after the request: accelerators in whole
// devices, cores, and memory in bytes, and the kinds of slots that the request has no use for.
func (v *View) Remaining() (unused int, accelerators, cpu, mem cluster.Amount) {
	m := v.m
	unused = m.kinds
	for i, room := range m.room {
		switch int32(i) {
		case v.w.g.cluster.cpu:
			cpu = room
		case v.w.g.cluster.mem:
			mem = room
		default:
			accelerators += room
		}
	}
	for _, w := range v.w.s.sum {
		unused--
		switch w.slot {
		case v.w.g.cluster.cpu:
			cpu -= w.amount
		case v.w.g.cluster.mem:
			mem -= w.amount
		default:
			accelerators -= w.amount
		}
	}
	return max(unused, 0), accelerators, cpu, mem
}

// fill values what is left: accelerators before cores before memory, in 58 bits.
func fill(accelerators, cpu, mem cluster.Amount) int64 {
	a := min(int64(accelerators)/10, 1<<19-1)
	c := min(int64(cpu)/100, 1<<19-1)
	b := min(int64(mem/cluster.Milli)>>24, 1<<20-1)
	return a<<39 | c<<20 | b
}

// pack takes the fullest agent, so that others stay free for large requests.
type pack struct{}

func (pack) Score(v *View) int64 {
	unused, a, c, m := v.Remaining()
	return int64(min(unused, 7))<<58 | fill(a, c, m)
}
func (pack) Epoch() uint64 { return 0 }
func (pack) Turns() bool   { return false }

// spread takes the emptiest agent, so that sessions do not disturb each other.
type spread struct{}

func (spread) Score(v *View) int64 {
	unused, a, c, m := v.Remaining()
	return int64(min(unused, 7))<<58 | (1<<58 - 1 - fill(a, c, m))
}
func (spread) Epoch() uint64 { return 0 }
func (spread) Turns() bool   { return false }

// roundRobin takes the agents in turn.
type roundRobin struct{}

func (roundRobin) Score(*View) int64 { return 0 }
func (roundRobin) Epoch() uint64     { return 0 }
func (roundRobin) Turns() bool       { return true }

// placementKind is a registered placement policy. wire is its name in scheduler_opts.
type placementKind struct {
	name, wire string
	make       func(*Options) (Strategy, error)
}

// placements lists the placement policies, the default first.
var placements = []placementKind{
	{"pack", "concentrated", func(*Options) (Strategy, error) { return pack{}, nil }},
	{"spread", "dispersed", func(*Options) (Strategy, error) { return spread{}, nil }},
	{"round-robin", "roundrobin", func(*Options) (Strategy, error) { return roundRobin{}, nil }},
	{"least-fragmentation", "least-fragmentation", newLeastFragmentation},
}

// Placements lists the registered placement policies, the default first.
func Placements() []string {
	out := make([]string, len(placements))
	for i, k := range placements {
		out[i] = k.name
	}
	return out
}

func newPlacement(name string, options map[string]any) (Strategy, error) {
	if name == "" {
		name = placements[0].name
	}
	for _, k := range placements {
		if k.name != name {
			continue
		}
		o := &Options{of: "the placement policy " + name, values: options}
		s, err := k.make(o)
		if err == nil {
			err = o.Done()
		}
		return s, err
	}
	return nil, fault.Invalidf("the placement policy %q does not exist", name).WithNext("use one of %s", strings.Join(Placements(), ", "))
}

// board remembers for one shape what each machine of a group is worth to it.
type board struct {
	keys    []int64 // by machine; nowhere where it does not fit
	version []uint64
	fits    int
	epoch   uint64
	seen    int    // position in group.changes
	facts   uint64 // group.facts when last computed in full
	used    uint64 // group.clock of the last use, for eviction
	// ends is when each machine will have room, see horizon.
	ends       []int64
	endVersion []uint64
	endFacts   uint64
	// lacks is what each machine is short of, see group.lack.
	lacks       []float64
	lackVersion []uint64
}

const nowhere = int64(math.MaxInt64)

// maxBoards bounds the boards of a group, whose size is that of its agents.
const maxBoards = 512

// boardOf brings the board of a shape up to date, looking only at machines that changed.
func (g *group) boardOf(sh *shape) *board {
	g.clock++
	b := g.boards[sh]
	if b == nil {
		if len(g.boards) >= maxBoards {
			g.evict()
		}
		b = &board{facts: ^uint64(0)}
		g.boards[sh] = b
	}
	b.used = g.clock
	if epoch := g.strategy.Epoch(); b.facts != g.facts || b.epoch != epoch || b.seen < g.forgotten {
		n := len(g.machines)
		if cap(b.keys) < n {
			b.keys, b.version = make([]int64, n), make([]uint64, n)
		}
		b.keys, b.version = b.keys[:n], b.version[:n]
		b.fits, b.facts, b.epoch = 0, g.facts, epoch
		for i, m := range g.machines {
			b.keys[i] = g.key(m, sh)
			b.version[i] = m.version
			if b.keys[i] != nowhere {
				b.fits++
			}
		}
		if _, slow := g.strategy.(learner); slow {
			n *= 8
		}
		g.steps += n
	} else {
		for _, i := range g.changes[b.seen-g.forgotten:] {
			m := g.machines[i]
			if b.version[i] == m.version {
				continue
			}
			if b.keys[i] != nowhere {
				b.fits--
			}
			b.keys[i] = g.key(m, sh)
			b.version[i] = m.version
			if b.keys[i] != nowhere {
				b.fits++
			}
			g.steps++
		}
	}
	b.seen = g.forgotten + len(g.changes)
	return b
}

// key is the worth of a machine for a shape: the strategy's score, images break ties.
func (g *group) key(m *machine, sh *shape) int64 {
	if m.eligible(nil, sh) != "" || !g.fits(m, m.now(), sh) {
		return nowhere
	}
	g.view = View{m: m, w: Wanted{g: g, s: sh}}
	score := min(max(g.strategy.Score(&g.view), -1<<62+1), 1<<62-2) << 1
	if sh.image >= 0 && !m.has(sh.image) && !g.strategy.Turns() {
		score++
	}
	return score
}

// evict drops the half of the boards that were not used for longest.
func (g *group) evict() {
	var times []uint64
	for _, b := range g.boards {
		times = append(times, b.used)
	}
	slices.Sort(times)
	limit := times[len(times)/2]
	for sh, b := range g.boards {
		if b.used <= limit {
			delete(g.boards, sh)
		}
	}
}

// changed notes that a machine's state changed, for the boards.
func (g *group) changed(m *machine) {
	if len(g.changes) >= max(1024, 2*len(g.machines)) {
		// Boards that have not seen the older half are computed anew.
		half := len(g.changes) / 2
		g.changes = append(g.changes[:0], g.changes[half:]...)
		g.forgotten += half
	}
	g.changes = append(g.changes, int32(m.index))
}
