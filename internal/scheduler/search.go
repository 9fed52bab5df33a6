package scheduler

import (
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// search finds where sessions fit, and which of these agents is best.
//
// Candidates are remembered by shape and brought up to date by the agents that changed since.
// Invariants, between passes: agents is sorted by id and every agent knows its index; changes holds the index of each agent
// whose free vector changed, the oldest ones forgotten.
type search struct {
	cluster      *Cluster // for the numbers of slots
	wholeDevices bool
	strategy     strategy
	agents       []*agent // by id
	unsorted     bool     // agents was added to or taken from
	companions   map[string]map[*agent]int
	cursor       cluster.AgentID // chosen last; round-robin goes on after it
	steps        int             // work done in this pass, see Work

	cache     map[*shape]*candidates
	changes   []int32
	forgotten int    // changes dropped from the front
	clock     uint64 // counts uses of cache
	facts     uint64 // counts changes of the set of agents and of what they are

	view      view // scratch
	chooser   alloc.Chooser
	asked     []alloc.Want
	takes     []alloc.Take
	scratch   freeVector
	skip      []int32
	sequenced []int
}

// shortfall is what a free vector lacks for a shape, by slot.
func (s *search) shortfall(v freeVector, sh *shape) cluster.Slots {
	out := cluster.Slots{}
	for _, w := range sh.sum {
		have := cluster.Amount(0)
		if int(w.slot) < len(v.room) {
			have = v.room[w.slot]
		}
		if w.amount > have {
			out[s.cluster.slots.name[w.slot]] = w.amount - have
		}
	}
	return out
}

// plain reports whether sessions of a kind have no wishes about agents. Volumes are a wish only while one hangs somewhere, and encryption
// only where an agent cannot.
func (s *search) plain(k *kind) bool {
	return k.plain() &&
		(len(k.session.Volumes) == 0 || !slices.ContainsFunc(s.agents, func(a *agent) bool { return len(a.facts.Hung) > 0 })) &&
		(!k.session.Connected || !slices.ContainsFunc(s.agents, func(a *agent) bool { return a.exposes(k) }))
}

// fits reports whether a free vector of an eligible agent has room for a shape.
func (s *search) fits(a *agent, v freeVector, sh *shape) bool {
	if sh.negative {
		return false
	}
	for _, w := range sh.sum {
		if int(w.slot) >= len(v.room) || v.room[w.slot] < w.amount {
			return false
		}
	}
	r := &sh.requests[0]
	if len(sh.requests) > 1 || a.topo.Exclusive() && s.kinds(r) > 1 {
		return s.trial(a, v, sh)
	}
	for _, w := range r.wants {
		section := a.section[w.slot]
		_, rule, _, _ := a.topo.Slot(int(section))
		if w.amount%a.units[section] != 0 {
			return false
		}
		if !r.choosy() && (rule != alloc.Fraction || !s.wholeDevices) && rule != alloc.Unique {
			continue
		}
		p := s.policy(r)
		if !a.topo.Holds(v.free, alloc.Want{Slot: int(section), Amount: w.amount}, &p) {
			return false
		}
	}
	return true
}

// policy is what the devices of a request must be.
func (s *search) policy(r *request) alloc.Policy {
	return alloc.Policy{NoFragment: s.wholeDevices, Models: r.models, Isolation: r.isolation}
}

// kinds is how many slots of accelerators a request asks for.
func (s *search) kinds(r *request) int {
	n := 0
	for _, w := range r.wants {
		if w.amount > 0 && s.accelerates(w.slot) {
			n++
		}
	}
	return n
}

// trial reports whether devices can be chosen for all requests of a shape, one after the other.
func (s *search) trial(a *agent, v freeVector, sh *shape) bool {
	s.scratch.free = append(s.scratch.free[:0], v.free...)
	s.scratch.room = append(s.scratch.room[:0], v.room...)
	for i := range sh.requests {
		var ok bool
		if s.takes, ok = s.choose(a, s.scratch.free, &sh.requests[i], 0, s.takes[:0]); !ok {
			return false
		}
		a.give(&s.scratch, s.takes, -1)
	}
	return true
}

// choose chooses devices for one request among those that are free. on restricts a share to one device: it is 1 + its number, 0 for
// any.
func (s *search) choose(a *agent, free []cluster.Amount, r *request, on int32, takes []alloc.Take) ([]alloc.Take, bool) {
	s.asked = s.asked[:0]
	for _, w := range r.wants {
		section := a.sectionOf(w.slot)
		if section < 0 || w.amount < 0 {
			return takes, false
		}
		ask := alloc.Want{Slot: section, Amount: w.amount}
		if _, _, from, to := a.topo.Slot(section); on > 0 && int(on) > from && int(on) <= to {
			ask.On = on
		}
		s.asked = append(s.asked, ask)
	}
	slices.SortFunc(s.asked, func(x, y alloc.Want) int { return x.Slot - y.Slot })
	p := s.policy(r)
	return s.chooser.Choose(a.topo, free, s.asked, &p, takes)
}

// placementOrder is the order in which the units of a kind are placed: those with the fewest candidates first, then the largest.
func (s *search) placementOrder(k *kind) []int {
	s.sequenced = s.sequenced[:0]
	for i := range k.units {
		s.sequenced = append(s.sequenced, i)
	}
	if first := k.units[0].shape; slices.ContainsFunc(k.units, func(u unit) bool { return u.shape != first }) {
		slices.SortStableFunc(s.sequenced, func(a, b int) int {
			return s.candidatesOf(k.units[a].shape).fits - s.candidatesOf(k.units[b].shape).fits
		})
	}
	return s.sequenced
}

// devices chooses devices for each request of a shape in a free vector of an agent; nil when that fails.
func (s *search) devices(a *agent, v freeVector, sh *shape) [][]alloc.Take {
	on := int32(0)
	if p, ok := s.strategy.(picker); ok {
		on = int32(1 + p.Pick(&view{agent: a, w: wanted{in: s, s: sh}}))
	}
	if len(sh.requests) == 1 {
		takes, ok := s.choose(a, v.free, &sh.requests[0], on, make([]alloc.Take, 0, 8))
		if !ok && on > 0 {
			takes, ok = s.choose(a, v.free, &sh.requests[0], 0, takes[:0])
		}
		if !ok {
			return nil
		}
		return [][]alloc.Take{takes}
	}
	out := make([][]alloc.Take, len(sh.requests))
	s.scratch.free = append(s.scratch.free[:0], v.free...)
	s.scratch.room = append(s.scratch.room[:0], v.room...)
	for i := range sh.requests {
		takes, ok := s.choose(a, s.scratch.free, &sh.requests[i], 0, nil)
		if !ok {
			return nil
		}
		a.give(&s.scratch, takes, -1)
		out[i] = takes
	}
	return out
}

// best is the index of the candidate with the best preference and then the best score that is not skipped or closed, -1 when none is
// left.
func (s *search) best(b *candidates, k *kind, closed []bool) int {
	s.steps += 1 + len(b.scores)/64
	if b.fits == 0 {
		return -1
	}
	from := 0
	if s.strategy.Turns() {
		from, _ = slices.BinarySearchFunc(s.agents, s.cursor, func(a *agent, id cluster.AgentID) int {
			if a.id <= id {
				return -1
			}
			return 1
		})
	}
	plain := s.plain(k) && closed == nil && len(s.skip) == 0
	best, bestScore, bestPreference := -1, noRoom, 0
	for n := range b.scores {
		i := n + from
		if i >= len(b.scores) {
			i -= len(b.scores)
		}
		score := b.scores[i]
		if score == noRoom || plain && score >= bestScore {
			continue
		}
		if !plain {
			preference := s.preference(k, s.agents[i])
			if preference < 0 || closed != nil && closed[i] || slices.Contains(s.skip, int32(i)) {
				continue
			}
			if best >= 0 && (preference > bestPreference || preference == bestPreference && score >= bestScore) {
				continue
			}
			bestPreference = preference
		}
		best, bestScore = i, score
		if plain && s.strategy.Turns() {
			break
		}
	}
	return best
}

// preference is how well an agent suits the wishes of a session, smaller is better; -1 rules it out. Companions weigh more than agents
// that just failed the session.
func (s *search) preference(k *kind, a *agent) int {
	want := &k.session
	if len(want.Designated) > 0 && !slices.Contains(want.Designated, a.id) || a.hangs(k) || a.exposes(k) || a.spares(k) {
		return -1
	}
	preference := 0
	if at := s.companions[want.Companions.Name]; want.Companions.Name != "" && len(at) > 0 {
		if (at[a] > 0) == want.Companions.Apart {
			if want.Companions.Strict {
				return -1
			}
			preference += 2
		}
	}
	if slices.Contains(want.Failed, a.id) {
		preference++
	}
	return preference
}

// whyNoRoom finds out whether a kind without room could ever have room, and what it waits for.
func (s *search) whyNoRoom(k *kind) (standing, Reason) {
	usable, fitsSums := false, false
	for _, u := range k.units {
		for _, a := range s.agents {
			if a.eligible(k, u.shape) != "" {
				continue
			}
			usable = true
			fitsSums = fitsSums || !lacksSums(a.now(), u.shape)
		}
	}
	s.steps += len(s.agents)
	switch {
	case !usable:
		return impossible, WaitsForAgent
	case !s.fitsEver(k, false):
		if s.fitsEver(k, true) {
			return impossible, WaitsForAgent
		}
		return impossible, TooBig
	case fitsSums && s.plain(k) && len(k.units) == 1:
		return blocked, WaitsForDevices
	}
	return blocked, WaitsForCapacity
}

// lacksSums reports whether sums of slots alone keep a shape from fitting a free vector.
func lacksSums(v freeVector, sh *shape) bool {
	for _, w := range sh.sum {
		if w.amount > 0 && (int(w.slot) >= len(v.room) || v.room[w.slot] < w.amount) {
			return true
		}
	}
	return false
}

// fitsEver reports whether a kind may fit when nothing runs. With away, agents that are lost, not schedulable, without a needed
// volume or image, or with a problem count too.
func (s *search) fitsEver(k *kind, away bool) bool {
	usable := func(a *agent, sh *shape) bool {
		f := a.eligible(k, sh)
		return f == "" || away && (f == filterLost || f == filterNotSchedulable || f == filterVolume || f == filterCondition ||
			f == filterImage)
	}
	if len(k.units) == 1 {
		sh := k.units[0].shape
		return slices.ContainsFunc(s.agents, func(a *agent) bool { return usable(a, sh) && s.fits(a, a.empty(), sh) })
	}
	// Finding out whether units of different sizes can be arranged on agents may take too long, and false must be certain. So each
	// shape is looked at by itself, and then the sums.
	var sum []cluster.Amount
	for _, a := range s.agents {
		if slices.ContainsFunc(k.units, func(u unit) bool { return usable(a, u.shape) }) {
			for slot, v := range a.total {
				sum = addTo(sum, []want{{int32(slot), v}}, 1)
			}
		}
	}
	for _, w := range k.sum {
		if int(w.slot) >= len(sum) || sum[w.slot] < w.amount {
			return false
		}
	}
	for i, u := range k.units {
		if slices.ContainsFunc(k.units[:i], func(v unit) bool { return v.shape == u.shape }) {
			continue
		}
		need := 0
		for _, v := range k.units[i:] {
			if v.shape == u.shape {
				need++
			}
		}
		for _, a := range s.agents {
			if need > 0 && usable(a, u.shape) && s.fits(a, a.empty(), u.shape) {
				need -= a.copies(u.shape)
			}
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// copies is an upper bound of how many units of a shape an empty agent holds, if it holds one.
func (a *agent) copies(sh *shape) int {
	n := int64(1) << 30
	for _, w := range sh.sum {
		if w.amount > 0 {
			n = min(n, int64(a.total[w.slot]/w.amount))
		}
	}
	return int(n)
}

// learn tells the strategy what is asked for.
func (s *search) learn(k *kind, typical bool) {
	if l, ok := s.strategy.(learner); ok {
		for i := range k.units {
			l.Learn(&wanted{in: s, s: k.units[i].shape}, typical)
		}
	}
}

// accelerates reports whether a slot is of accelerators: neither cores nor memory.
func (s *search) accelerates(slot int32) bool { return slot != s.cluster.cpu && slot != s.cluster.mem }
