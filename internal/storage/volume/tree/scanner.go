package tree

import (
	"context"
	"os"
	"sync"
	"time"

	"berth.dev/berth/internal/storage/volume"
)

// Bounds of a scanner.
const (
	maxResults = 16 << 10 // trees whose last result is kept, about 100 bytes each
	maxPaused  = 32       // counts that wait to go on, at most a few MiB each
	// A paused count that nobody asked for within this time starts again, and so does one that takes longer
	// than maxCountAge in all: its parts would tell of too different times.
	maxPauseAge = 15 * time.Minute
	maxCountAge = 6 * time.Hour
)

// Scanner counts trees that are too large for one deadline: a count that was cut short goes on at the next
// call exactly where it stopped, and the last complete result is kept. Its memory is bounded. Safe for
// concurrent use; callers that ask for the same tree at once share one count.
type Scanner struct {
	now     func() time.Time
	ttl     time.Duration
	workers int

	mu    sync.Mutex
	scans map[string]*scan
}

// scan is what is known of one tree. Its fields belong to whoever holds turn; last, used and paused are under
// the scanner's mutex.
type scan struct {
	turn    chan struct{} // holds one element while nobody counts
	count   *count
	started time.Time

	last   volume.Usage
	known  bool
	used   time.Time
	paused bool
}

// NewScanner makes a scanner. A complete result younger than ttl is given again without looking; 0 always looks.
func NewScanner(now func() time.Time, ttl time.Duration, workers int) *Scanner {
	return &Scanner{now: now, ttl: ttl, workers: workers, scans: map[string]*scan{}}
}

// Usage counts below root, known as key, until ctx ends. A lower bound grows from call to call until one
// completes the count.
func (s *Scanner) Usage(ctx context.Context, key string, root *os.Root) (volume.Usage, error) {
	sc := s.enter(key)
	if u, fresh := s.fresh(sc); fresh {
		return u, nil
	}
	select {
	case <-sc.turn:
	default:
		select {
		case <-sc.turn:
		case <-ctx.Done():
			// Somebody else counts, who may be replacing the count: any lower bound is right, and 0 is one.
			return volume.Usage{At: s.now()}, nil
		}
	}
	defer func() { sc.turn <- struct{}{} }()
	if u, fresh := s.fresh(sc); fresh { // counted while we waited
		return u, nil
	}
	now := s.now()
	if sc.count == nil || now.Sub(sc.started) > maxCountAge || now.Sub(s.lastPause(sc)) > maxPauseAge {
		sc.count, sc.started = newCount(), now
	}
	u, err := sc.count.proceed(ctx, root, s.workers)
	u.At = s.now()
	if _, left := sc.count.sofar(); err != nil || !left {
		sc.count = nil
	}
	s.leave(sc, u)
	return u, err
}

// Last is the last complete result of key, however old.
func (s *Scanner) Last(key string) (volume.Usage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc := s.scans[key]; sc != nil && sc.known {
		return sc.last, true
	}
	return volume.Usage{}, false
}

// Forget drops what is known of key, after its files changed or went.
func (s *Scanner) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.scans, key) // a count that is running ends with its caller
}

func (s *Scanner) enter(key string) *scan {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.scans[key]
	if sc == nil {
		if len(s.scans) >= maxResults {
			s.drop(func(*scan) bool { return true })
		}
		sc = &scan{turn: make(chan struct{}, 1), used: s.now()}
		sc.turn <- struct{}{}
		s.scans[key] = sc
	}
	return sc
}

func (s *Scanner) fresh(sc *scan) (volume.Usage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sc.last, sc.known && s.ttl > 0 && s.now().Sub(sc.last.At) < s.ttl
}

func (s *Scanner) lastPause(sc *scan) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sc.used
}

// leave records what a count found and forgets the oldest paused counts that are too many.
func (s *Scanner) leave(sc *scan, u volume.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.used, sc.paused = s.now(), sc.count != nil
	if u.Complete {
		sc.last, sc.known = u, true
	}
	paused := 0
	for _, other := range s.scans {
		if other.paused {
			paused++
		}
	}
	if paused > maxPaused {
		s.drop(func(other *scan) bool { return other.paused && other != sc })
	}
}

// drop forgets the scan that was used longest ago among those that fit; s.mu is held.
func (s *Scanner) drop(fits func(*scan) bool) {
	oldest := ""
	for key, sc := range s.scans {
		if fits(sc) && (oldest == "" || sc.used.Before(s.scans[oldest].used)) {
			oldest = key
		}
	}
	delete(s.scans, oldest)
}
