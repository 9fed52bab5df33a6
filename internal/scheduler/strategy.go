package scheduler

import (
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler/option"
)

// strategy is what differs between placement policies: it scores candidate agents. Preferences of the session (companions, agents that
// failed it) come before the score. Equal scores go by images that are present, and then by the agents' ids.
type strategy interface {
	// Score scores the agent for the request; smaller is better, and its absolute value is below 1<<62 - 1. It is called only where the
	// request fits, and again only when the agent or Epoch changed.
	Score(v *view) int64
	// Epoch changes when earlier scores no longer compare with new ones.
	Epoch() uint64
	// Turns reports that agents take turns: those with ids after the last one chosen go first, whatever the scores.
	Turns() bool
}

// picker is a strategy that also says which accelerator a share goes to.
type picker interface {
	// Pick is the number of the device, -1 to leave it to the devices' topology.
	Pick(v *view) int
}

// learner is a strategy that learns what typical requests are.
type learner interface {
	// Learn counts a request that arrived. typical: it comes from a list; from then on arrivals do not count.
	Learn(v *wanted, typical bool)
	// Settle uses what was learnt. It is called before a pass and may change Epoch.
	Settle(s *search)
}

// view is an agent and a request as a strategy sees them. It is valid during the call only.
type view struct {
	agent *agent
	w     wanted
}

// wanted is a request as a strategy sees it.
type wanted struct {
	in *search
	s  *shape
}

// Remaining is what the agent has left after the request: accelerators, cores, memory, and the number of its slots that the request
// does not ask for.
func (v *view) Remaining() (unused int, accelerators, cpu, mem cluster.Amount) {
	unused = v.agent.kinds
	for i, room := range v.agent.room {
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

// fill orders what is left by accelerators, then cores, then memory, in one number of 58 bits.
func fill(accelerators, cpu, mem cluster.Amount) int64 {
	a := min(int64(accelerators)/10, 1<<19-1)
	c := min(int64(cpu)/100, 1<<19-1)
	b := min(int64(mem/cluster.Milli)>>24, 1<<20-1)
	return a<<39 | c<<20 | b
}

// pack takes the agent with the fewest unused slots, and of these the fullest, so that others stay free for large requests.
type pack struct{}

func (pack) Score(v *view) int64 {
	unused, a, c, m := v.Remaining()
	return int64(min(unused, 7))<<58 | fill(a, c, m)
}
func (pack) Epoch() uint64 { return 0 }
func (pack) Turns() bool   { return false }

// spread takes the agent with the fewest unused slots, and of these the emptiest, so that sessions do not disturb each other.
type spread struct{}

func (spread) Score(v *view) int64 {
	unused, a, c, m := v.Remaining()
	return int64(min(unused, 7))<<58 - fill(a, c, m)
}
func (spread) Epoch() uint64 { return 0 }
func (spread) Turns() bool   { return false }

// roundRobin takes the agents in turn.
type roundRobin struct{}

func (roundRobin) Score(*view) int64 { return 0 }
func (roundRobin) Epoch() uint64     { return 0 }
func (roundRobin) Turns() bool       { return true }

// placementKind is a registered placement policy. wire is its name in scheduler_opts.
type placementKind struct {
	name, wire string
	make       func(*option.Reader) (strategy, error)
}

// placements lists the placement policies, the default first.
var placements = []placementKind{
	{"pack", "concentrated", func(*option.Reader) (strategy, error) { return pack{}, nil }},
	{"spread", "dispersed", func(*option.Reader) (strategy, error) { return spread{}, nil }},
	{"round-robin", "roundrobin", func(*option.Reader) (strategy, error) { return roundRobin{}, nil }},
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

func newPlacement(name string, options map[string]any) (strategy, error) {
	if name == "" {
		name = placements[0].name
	}
	for _, k := range placements {
		if k.name != name {
			continue
		}
		o := &option.Reader{Of: "the placement policy " + name, Values: options}
		s, err := k.make(o)
		if err == nil {
			err = o.Done()
		}
		return s, err
	}
	return nil, fault.Invalidf("the placement policy %q does not exist", name).WithNext("use one of %s", strings.Join(Placements(), ", "))
}
