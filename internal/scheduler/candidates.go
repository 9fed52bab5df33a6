package scheduler

import (
	"math"
	"slices"
)

// candidates remembers, for one shape, which agents it fits now and how they score. It is brought up to date by the agents that
// changed since, so that a long queue does not look at every agent anew.
type candidates struct {
	scores  []int64 // by agent; noRoom where it does not fit
	version []uint64
	fits    int    // agents with a score
	epoch   uint64 // of the strategy that scored
	seen    int    // search.position when it was brought up to date
	facts   uint64 // search.facts when all agents were scored
	used    uint64 // search.clock at the last use
	// ends is from when on each agent has room, see reservations.fitsFrom.
	ends       []int64
	endVersion []uint64
	endFacts   uint64
	// shortages is what each agent lacks, see reservations.shortage.
	shortages       []float64
	shortageVersion []uint64
}

// noRoom is the score of an agent where a shape does not fit now.
const noRoom = int64(math.MaxInt64)

// maxCached bounds the shapes whose candidates are remembered. Each takes memory for every agent.
const maxCached = 512

// candidatesOf finds the candidates of a shape and brings them up to date.
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
		if cap(b.scores) < n {
			b.scores, b.version = make([]int64, n), make([]uint64, n)
		}
		b.scores, b.version = b.scores[:n], b.version[:n]
		b.fits, b.facts, b.epoch = 0, s.facts, epoch
		for i, a := range s.agents {
			b.scores[i] = s.score(a, sh)
			b.version[i] = a.version
			if b.scores[i] != noRoom {
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
			if b.scores[i] != noRoom {
				b.fits--
			}
			b.scores[i] = s.score(a, sh)
			b.version[i] = a.version
			if b.scores[i] != noRoom {
				b.fits++
			}
			s.steps++
		}
	}
	b.seen = s.position()
	return b
}

// score is the strategy's score of an agent for a shape, smaller is better. An image that is present breaks ties, except where agents
// take turns: there it would draw every session to the agents that have it.
func (s *search) score(a *agent, sh *shape) int64 {
	if a.eligible(nil, sh) != "" || !s.fits(a, a.now(), sh) {
		return noRoom
	}
	s.view = view{agent: a, w: wanted{in: s, s: sh}}
	score := s.strategy.Score(&s.view) << 1
	if sh.image >= 0 && !a.has(sh.image) && !s.strategy.Turns() {
		score++
	}
	return score
}

// forgetCandidates drops the half that was not used for longest.
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

// changed notes that the free vector of an agent changed.
func (s *search) changed(a *agent) {
	if len(s.changes) >= max(1024, 2*len(s.agents)) {
		// Candidates that have not seen the older half are scored anew.
		half := len(s.changes) / 2
		s.changes = append(s.changes[:0], s.changes[half:]...)
		s.forgotten += half
	}
	s.changes = append(s.changes, int32(a.index))
}

// position is the number of changes of agents so far.
func (s *search) position() int { return s.forgotten + len(s.changes) }
