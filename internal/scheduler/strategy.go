package scheduler

import (
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
	Settle(s *search)
}

// View is an agent and a request as a strategy sees them. It is valid during the call only.
type View struct {
	agent *agent
	w     Wanted
}

// Wanted is a request as a strategy sees it.
type Wanted struct {
	in *search
	s  *shape
}

// Remaining tells what is left of each class of slot after the request: accelerators in whole
// devices, cores, and memory in bytes, and the kinds of slots that the request has no use for.
func (v *View) Remaining() (unused int, accelerators, cpu, mem cluster.Amount) {
	m := v.agent
	unused = m.kinds
	for i, room := range m.room {
		switch int32(i) {
		case v.w.in.cluster.cpu:
			cpu = room
		case v.w.in.cluster.mem:
			mem = room
		default:
			accelerators += room
		}
	}
	for _, w := range v.w.s.sum {
		unused--
		switch w.slot {
		case v.w.in.cluster.cpu:
			cpu -= w.amount
		case v.w.in.cluster.mem:
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
	make       func(*optionReader) (Strategy, error)
}

// placements lists the placement policies, the default first.
var placements = []placementKind{
	{"pack", "concentrated", func(*optionReader) (Strategy, error) { return pack{}, nil }},
	{"spread", "dispersed", func(*optionReader) (Strategy, error) { return spread{}, nil }},
	{"round-robin", "roundrobin", func(*optionReader) (Strategy, error) { return roundRobin{}, nil }},
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
		o := &optionReader{of: "the placement policy " + name, values: options}
		s, err := k.make(o)
		if err == nil {
			err = o.Done()
		}
		return s, err
	}
	return nil, fault.Invalidf("the placement policy %q does not exist", name).WithNext("use one of %s", strings.Join(Placements(), ", "))
}
