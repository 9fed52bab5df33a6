package scheduler

import (
	"math"
	"slices"
)

// board remembers for one shape what each agent of a group is worth to it.
type candidates struct {
	keys    []int64 // by agent; noRoom where it does not fit
	version []uint64
	fits    int
	epoch   uint64
	seen    int    // position in group.changes
	facts   uint64 // group.facts when last computed in full
	used    uint64 // group.clock of the last use, for eviction
	// ends is when each agent will have room, see horizon.
	ends       []int64
	endVersion []uint64
	endFacts   uint64
	// shortages is what each agent is short of, see group.lack.
	shortages       []float64
	shortageVersion []uint64
}

const noRoom = int64(math.MaxInt64)

// maxCached bounds the boards of a group, whose size is that of its agents.
const maxCached = 512

// candidatesOf brings the board of a shape up to date, looking only at agents that changed.
func (s *search) candidatesOf(sh *shape) *candidates {
	s.clock++
	b := s.cache[sh]
	if b == nil {
		if len(s.cache) >= maxCached {
			s.forgetCandidates()
		}
		b = &candidates{facts: ^uint64(0)}
		s.cache[sh] = b
	}
	b.used = s.clock
	if epoch := s.strategy.Epoch(); b.facts != s.facts || b.epoch != epoch || b.seen < s.forgotten {
		n := len(s.agents)
		if cap(b.keys) < n {
			b.keys, b.version = make([]int64, n), make([]uint64, n)
		}
		b.keys, b.version = b.keys[:n], b.version[:n]
		b.fits, b.facts, b.epoch = 0, s.facts, epoch
		for i, a := range s.agents {
			b.keys[i] = s.key(a, sh)
			b.version[i] = a.version
			if b.keys[i] != noRoom {
				b.fits++
			}
		}
		if _, slow := s.strategy.(learner); slow {
			n *= 8
		}
		s.steps += n
	} else {
		for _, i := range s.changes[b.seen-s.forgotten:] {
			a := s.agents[i]
			if b.version[i] == a.version {
				continue
			}
			if b.keys[i] != noRoom {
				b.fits--
			}
			b.keys[i] = s.key(a, sh)
			b.version[i] = a.version
			if b.keys[i] != noRoom {
				b.fits++
			}
			s.steps++
		}
	}
	b.seen = s.position()
	return b
}

// key is the worth of a agent for a shape: the strategy's score, images break ties.
func (s *search) key(a *agent, sh *shape) int64 {
	if a.eligible(nil, sh) != "" || !s.fits(a, a.now(), sh) {
		return noRoom
	}
	s.view = View{agent: a, w: Wanted{in: s, s: sh}}
	score := min(max(s.strategy.Score(&s.view), -1<<62+1), 1<<62-2) << 1
	if sh.image >= 0 && !a.has(sh.image) && !s.strategy.Turns() {
		score++
	}
	return score
}

// forgetCandidates drops the half of the boards that were not used for longest.
func (s *search) forgetCandidates() {
	var times []uint64
	for _, b := range s.cache {
		times = append(times, b.used)
	}
	slices.Sort(times)
	limit := times[len(times)/2]
	for sh, b := range s.cache {
		if b.used <= limit {
			delete(s.cache, sh)
		}
	}
}

// changed notes that a agent's freeVector changed, for the boards.
func (s *search) changed(a *agent) {
	if len(s.changes) >= max(1024, 2*len(s.agents)) {
		// Boards that have not seen the older half are computed anew.
		half := len(s.changes) / 2
		s.changes = append(s.changes[:0], s.changes[half:]...)
		s.forgotten += half
	}
	s.changes = append(s.changes, int32(a.index))
}

// position is the number of changes of agents so far.
func (s *search) position() int { return s.forgotten + len(s.changes) }
