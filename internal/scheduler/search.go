package scheduler

import (
	"slices"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// search finds where sessions fit, and which of these agents is best.
//
// What an agent is worth to a shape is remembered in boards, which are brought up to date by the agents that changed since.
// Invariants, between passes: machines is sorted by id and every machine knows its index; changes holds the index of each machine
// whose free vector changed, the oldest ones forgotten.
type search struct {
	cluster      *Cluster // for the numbers of slots
	wholeDevices bool
	strategy     Strategy
	machines     []*machine // by id
	unsorted     bool       // machines was added to or taken from
	companions   map[string]map[*machine]int
	cursor       cluster.AgentID // chosen last; the turns of round-robin begin after it
	steps        int             // work done in this pass, see Work

	boards    map[*shape]*board
	changes   []int32
	forgotten int    // changes dropped from the front
	clock     uint64 // counts uses of boards
	facts     uint64 // counts changes of the set of agents and of what they are

	view      View // scratch
	chooser   alloc.Chooser
	asked     []alloc.Want
	takes     []alloc.Take
	scratch   freeVector
	skip      []int32
	sequenced []int
}

// shortfall is what a state is short of for a shape.
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

// plain reports whether a kind's wishes rule nothing out in this group: volumes are one only while some hang.
func (s *search) plain(k *kind) bool {
	return k.plain() && (len(k.session.Volumes) == 0 || !slices.ContainsFunc(s.machines, func(m *machine) bool { return len(m.facts.Hung) > 0 }))
}

// fits reports whether a state of an eligible machine has room for a shape.
func (s *search) fits(m *machine, v freeVector, sh *shape) bool {
	if sh.negative {
		return false
	}
	for _, w := range sh.sum {
		if int(w.slot) >= len(v.room) || v.room[w.slot] < w.amount {
			return false
		}
	}
	if len(sh.requests) > 1 {
		return s.trial(m, v, sh)
	}
	r := &sh.requests[0]
	for _, w := range r.wants {
		section := m.section[w.slot]
		_, rule, _, _ := m.topo.Slot(int(section))
		if w.amount%m.units[section] != 0 {
			return false
		}
		if len(r.models) == 0 && (rule != alloc.Fraction || !s.wholeDevices) && rule != alloc.Unique {
			continue
		}
		p := alloc.Policy{NoFragment: s.wholeDevices, Models: r.models}
		if !m.topo.Holds(v.free, alloc.Want{Slot: int(section), Amount: w.amount}, &p) {
			return false
		}
	}
	return true
}

// trial tries to choose devices for all requests of a shape one after the other.
func (s *search) trial(m *machine, v freeVector, sh *shape) bool {
	s.scratch.free = append(s.scratch.free[:0], v.free...)
	s.scratch.room = append(s.scratch.room[:0], v.room...)
	for i := range sh.requests {
		var ok bool
		if s.takes, ok = s.choose(m, s.scratch.free, &sh.requests[i], 0, s.takes[:0]); !ok {
			return false
		}
		m.give(&s.scratch, s.takes, -1)
	}
	return true
}

// choose picks devices for one request among those that are free; on restricts shares to one
// device, 1 + its number.
func (s *search) choose(m *machine, free []cluster.Amount, r *request, on int32, takes []alloc.Take) ([]alloc.Take, bool) {
	s.asked = s.asked[:0]
	for _, w := range r.wants {
		section := m.sectionOf(w.slot)
		if section < 0 || w.amount < 0 {
			return takes, false
		}
		a := alloc.Want{Slot: section, Amount: w.amount}
		if _, _, from, to := m.topo.Slot(section); on > 0 && int(on) > from && int(on) <= to {
			a.On = on
		}
		s.asked = append(s.asked, a)
	}
	slices.SortFunc(s.asked, func(a, b alloc.Want) int { return a.Slot - b.Slot })
	p := alloc.Policy{NoFragment: s.wholeDevices, Models: r.models}
	return s.chooser.Choose(m.topo, free, s.asked, &p, takes)
}

// sequence is the order in which the units of a kind are placed: those with the fewest machines
// to choose from first, then the largest.
func (s *search) sequence(k *kind) []int {
	s.sequenced = s.sequenced[:0]
	for i := range k.units {
		s.sequenced = append(s.sequenced, i)
	}
	if first := k.units[0].shape; slices.ContainsFunc(k.units, func(u unit) bool { return u.shape != first }) {
		slices.SortStableFunc(s.sequenced, func(a, b int) int {
			return s.boardOf(k.units[a].shape).fits - s.boardOf(k.units[b].shape).fits
		})
	}
	return s.sequenced
}

// devices chooses devices for each request of a shape in a state of a machine.
func (s *search) devices(m *machine, v freeVector, sh *shape) [][]alloc.Take {
	on := int32(0)
	if p, ok := s.strategy.(picker); ok {
		on = int32(1 + p.Pick(&View{m: m, w: Wanted{in: s, s: sh}}))
	}
	if len(sh.requests) == 1 {
		takes, ok := s.choose(m, v.free, &sh.requests[0], on, make([]alloc.Take, 0, 8))
		if !ok && on > 0 {
			takes, ok = s.choose(m, v.free, &sh.requests[0], 0, takes[:0])
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
		takes, ok := s.choose(m, s.scratch.free, &sh.requests[i], 0, nil)
		if !ok {
			return nil
		}
		m.give(&s.scratch, takes, -1)
		out[i] = takes
	}
	return out
}

// best is the machine with the best worth that is not skipped or barred, -1 when none is left.
// Wishes of the session come first: companions, then agents that did not just fail it.
func (s *search) best(b *board, k *kind, barred []bool) int {
	s.steps += 1 + len(b.keys)/64
	if b.fits == 0 {
		return -1
	}
	from := 0
	if s.strategy.Turns() {
		from, _ = slices.BinarySearchFunc(s.machines, s.cursor, func(m *machine, id cluster.AgentID) int {
			if m.id <= id {
				return -1
			}
			return 1
		})
	}
	plain := s.plain(k) && barred == nil && len(s.skip) == 0
	best, bestKey, bestTier := -1, nowhere, 0
	for n := range b.keys {
		i := n + from
		if i >= len(b.keys) {
			i -= len(b.keys)
		}
		key := b.keys[i]
		if key == nowhere || plain && key >= bestKey {
			continue
		}
		if !plain {
			tier := s.tier(k, s.machines[i])
			if tier < 0 || barred != nil && barred[i] || slices.Contains(s.skip, int32(i)) {
				continue
			}
			if best >= 0 && (tier > bestTier || tier == bestTier && key >= bestKey) {
				continue
			}
			bestTier = tier
		}
		best, bestKey = i, key
		if plain && s.strategy.Turns() {
			break
		}
	}
	return best
}

// tier is how well a machine suits the wishes of a session, smaller first; -1 excludes it.
func (s *search) tier(k *kind, m *machine) int {
	want := &k.session
	if len(want.Designated) > 0 && !slices.Contains(want.Designated, m.id) || m.hangs(k) {
		return -1
	}
	tier := 0
	if at := s.companions[want.Companions.Name]; want.Companions.Name != "" && len(at) > 0 {
		if (at[m] > 0) == want.Companions.Apart {
			if want.Companions.Strict {
				return -1
			}
			tier += 2
		}
	}
	if slices.Contains(want.Failed, m.id) {
		tier++
	}
	return tier
}

// diagnose finds out why a kind has no room: whether it ever could have.
func (s *search) diagnose(k *kind) (place, Reason) {
	usable, fitsSums := false, false
	for _, u := range k.units {
		for _, m := range s.machines {
			if m.eligible(k, u.shape) != "" {
				continue
			}
			usable = true
			if short, _ := s.shortOf(m, m.now(), u.shape); !short {
				fitsSums = true
			}
		}
	}
	s.steps += len(s.machines)
	switch {
	case !usable:
		return hopeless, WaitsForAgent
	case !s.couldEver(k, false):
		if s.couldEver(k, true) {
			return hopeless, WaitsForAgent
		}
		return hopeless, TooBig
	case fitsSums && s.plain(k) && len(k.units) == 1:
		return blocked, WaitsForDevices
	}
	return blocked, WaitsForCapacity
}

// shortOf reports whether sums alone keep a shape from fitting, and the first slot that is short.
func (s *search) shortOf(m *machine, v freeVector, sh *shape) (bool, int32) {
	for _, w := range sh.sum {
		if w.amount > 0 && (int(w.slot) >= len(v.room) || v.room[w.slot] < w.amount) {
			return true, w.slot
		}
	}
	return false, -1
}

// couldEver reports whether a kind fits when nothing runs, counting also lost and unschedulable
// agents when away is set.
func (s *search) couldEver(k *kind, away bool) bool {
	usable := func(m *machine, sh *shape) bool {
		f := m.eligible(k, sh)
		return f == "" || away && (f == filterLost || f == filterNotSchedulable || f == filterVolume)
	}
	if len(k.units) == 1 {
		sh := k.units[0].shape
		return slices.ContainsFunc(s.machines, func(m *machine) bool { return usable(m, sh) && s.fits(m, m.empty(), sh) })
	}
	// Whether many kernels of different sizes can be arranged is a puzzle; that they cannot must be
	// certain. So look at each shape by itself, and at the sums.
	var sum []cluster.Amount
	for _, m := range s.machines {
		if slices.ContainsFunc(k.units, func(u unit) bool { return usable(m, u.shape) }) {
			for slot, v := range m.total {
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
		for _, m := range s.machines {
			if need > 0 && usable(m, u.shape) && s.fits(m, m.empty(), u.shape) {
				need -= m.copies(u.shape)
			}
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// copies is at most how many of a shape that fits an empty machine it holds together.
func (m *machine) copies(sh *shape) int {
	n := int64(1) << 30
	for _, w := range sh.sum {
		if w.amount > 0 {
			n = min(n, int64(m.totalOf(w.slot)/w.amount))
		}
	}
	return int(n)
}

// learn tells the strategy what is asked for.
func (s *search) learn(k *kind, typical bool) {
	if l, ok := s.strategy.(learner); ok {
		for i := range k.units {
			l.Learn(&Wanted{in: s, s: k.units[i].shape}, typical)
		}
	}
}

func (s *search) accelerates(slot int32) bool { return slot != s.cluster.cpu && slot != s.cluster.mem }
