package scheduler

import (
	"math"
	"slices"
)

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
func (s *search) boardOf(sh *shape) *board {
	s.clock++
	b := s.boards[sh]
	if b == nil {
		if len(s.boards) >= maxBoards {
			s.evict()
		}
		b = &board{facts: ^uint64(0)}
		s.boards[sh] = b
	}
	b.used = s.clock
	if epoch := s.strategy.Epoch(); b.facts != s.facts || b.epoch != epoch || b.seen < s.forgotten {
		n := len(s.machines)
		if cap(b.keys) < n {
			b.keys, b.version = make([]int64, n), make([]uint64, n)
		}
		b.keys, b.version = b.keys[:n], b.version[:n]
		b.fits, b.facts, b.epoch = 0, s.facts, epoch
		for i, m := range s.machines {
			b.keys[i] = s.key(m, sh)
			b.version[i] = m.version
			if b.keys[i] != nowhere {
				b.fits++
			}
		}
		if _, slow := s.strategy.(learner); slow {
			n *= 8
		}
		s.steps += n
	} else {
		for _, i := range s.changes[b.seen-s.forgotten:] {
			m := s.machines[i]
			if b.version[i] == m.version {
				continue
			}
			if b.keys[i] != nowhere {
				b.fits--
			}
			b.keys[i] = s.key(m, sh)
			b.version[i] = m.version
			if b.keys[i] != nowhere {
				b.fits++
			}
			s.steps++
		}
	}
	b.seen = s.position()
	return b
}

// key is the worth of a machine for a shape: the strategy's score, images break ties.
func (s *search) key(m *machine, sh *shape) int64 {
	if m.eligible(nil, sh) != "" || !s.fits(m, m.now(), sh) {
		return nowhere
	}
	s.view = View{m: m, w: Wanted{in: s, s: sh}}
	score := min(max(s.strategy.Score(&s.view), -1<<62+1), 1<<62-2) << 1
	if sh.image >= 0 && !m.has(sh.image) && !s.strategy.Turns() {
		score++
	}
	return score
}

// evict drops the half of the boards that were not used for longest.
func (s *search) evict() {
	var times []uint64
	for _, b := range s.boards {
		times = append(times, b.used)
	}
	slices.Sort(times)
	limit := times[len(times)/2]
	for sh, b := range s.boards {
		if b.used <= limit {
			delete(s.boards, sh)
		}
	}
}

// changed notes that a machine's freeVector changed, for the boards.
func (s *search) changed(m *machine) {
	if len(s.changes) >= max(1024, 2*len(s.machines)) {
		// Boards that have not seen the older half are computed anew.
		half := len(s.changes) / 2
		s.changes = append(s.changes[:0], s.changes[half:]...)
		s.forgotten += half
	}
	s.changes = append(s.changes, int32(m.index))
}

// position is the number of changes of agents so far.
func (s *search) position() int { return s.forgotten + len(s.changes) }
