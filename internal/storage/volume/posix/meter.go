package posix

import (
	"context"
	"encoding/json"
	"path"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// meter is what is known about the bytes of one scope on a file system without quotas: the last count and what
// this proxy wrote since. What sessions and other proxies write is seen by the next count.
type meter struct {
	mu       sync.Mutex
	limit    int64
	counted  int64
	complete bool
	known    bool
	stale    bool          // the last count says too much
	at       time.Time     // when the last count ended, also one that failed
	took     time.Duration // the last count
	guess    int64         // what an earlier process counted, until the first count
	delta    int64         // own changes since the last count began
	before   int64         // own changes before the running count began
	scan     chan struct{} // closed when the running count ends; nil when none runs
}

const (
	countEvery = 30 * time.Second
	// A count may take this part of the time at most.
	countShare = 20
	reserve    = 4 << 20 // bytes per check while writing
	// firstWait is how long a caller waits for a scope's first count. A scope of many millions of files takes
	// longer: until it is counted, what an earlier process counted stands in.
	firstWait = 10 * time.Second
	// countsAtOnce bounds the counts of scopes, and those of folders, that run at one time: each has many workers, and
	// each of those a thread where the file system is slow or hangs.
	countsAtOnce = 4
	// slowCount is from when on a count is worth to be kept for the next process.
	slowCount = time.Second
)

// usageFile is .berth/usage.json of a scope: the last count that took long.
type usageFile struct {
	Bytes int64     `json:"bytes"`
	At    time.Time `json:"at"`
}

const usageFileName = "usage.json"

// used is the best estimate; mu is held.
func (m *meter) used() int64 {
	counted := m.counted
	if !m.known {
		counted = m.guess
	}
	return max(counted+m.before+m.delta, 0)
}

// maxDelta keeps sums of sizes that are not real, as of files with holes, from turning round.
const maxDelta = 1 << 60

// add notes own bytes that came (or went).
func (m *meter) add(n int64) {
	m.mu.Lock()
	m.delta = min(max(m.delta+min(max(n, -maxDelta), maxDelta), -maxDelta), maxDelta)
	m.mu.Unlock()
}

func (m *meter) limited() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limit != volume.NoLimit
}

// take reserves up to n bytes below the limit and says how many it got. One that got fewer than it uses gives
// the rest back by add.
func (m *meter) take(n int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit != volume.NoLimit {
		n = max(min(n, m.limit-m.used()), 0)
	}
	m.delta += n
	return n
}

// fits tells whether n bytes more stay below the limit.
func (m *meter) fits(n int64) (limit int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limit, m.limit == volume.NoLimit || max(n, 0) <= m.limit-m.used()
}

func (m *meter) setLimit(limit int64) {
	m.mu.Lock()
	m.limit = limit
	m.mu.Unlock()
}

// outdate makes a reader count anew soon, after something went that nobody measured.
func (m *meter) outdate() {
	m.mu.Lock()
	m.stale = true
	m.mu.Unlock()
}

// meterOf is the scope's meter with the limit as it is on disk now.
func (v *vol) meterOf(s cluster.QuotaScope) (*meter, error) {
	doc, err := v.readScope(s)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	m := v.meters[s.Dir()]
	v.mu.Unlock()
	if m == nil {
		fresh := &meter{limit: volume.NoLimit, guess: v.lastCount(s)}
		v.mu.Lock()
		if m = v.meters[s.Dir()]; m == nil {
			m = fresh
			v.meters[s.Dir()] = m
		}
		v.mu.Unlock()
	}
	m.setLimit(doc.LimitBytes)
	return m, nil
}

// lastCount is what a process before this one counted, 0 when nobody kept it.
func (v *vol) lastCount(s cluster.QuotaScope) int64 {
	var last usageFile
	doc, err := v.root.get(path.Join(s.Dir(), private, usageFileName))
	if err != nil || json.Unmarshal(doc, &last) != nil {
		return 0
	}
	return min(max(last.Bytes, 0), maxDelta)
}

// keepCount remembers a count for the next process. Without it that one only guesses worse.
func (v *vol) keepCount(s cluster.QuotaScope, bytes int64) {
	doc, err := json.Marshal(usageFile{Bytes: bytes, At: v.now().UTC()})
	if err != nil {
		return
	}
	in, err := v.root.dir(path.Join(s.Dir(), private), noLinks)
	if err == nil {
		err = in.put(usageFileName, doc, v.owner)
		in.Close()
	}
	if err != nil {
		v.log.Debug("could not keep the count of a quota scope", "volume", v.opt.Name, "scope", s.String(), "error", err)
	}
}

// usage counts where the last count is old. A caller waits for the first count only, for a while and as long as its
// ctx lets it; later ones run behind.
func (v *vol) usage(ctx context.Context, s cluster.QuotaScope, m *meter) (bytes int64, complete bool) {
	m.mu.Lock()
	rest := max(countEvery, countShare*m.took)
	if m.stale {
		rest = 2 * m.took // not at once: while much trash is removed, that would be one count after the other
	}
	if m.scan == nil && (m.at.IsZero() || v.now().Sub(m.at) >= rest) && v.startCount(s, m) {
		m.mu.Lock() // startCount lets go
	}
	wait := m.scan
	if m.known {
		wait = nil
	}
	m.mu.Unlock()
	if wait != nil {
		patience := time.NewTimer(v.firstWait)
		defer patience.Stop()
		select {
		case <-wait:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return max(m.before+m.delta, 0), false // a lower bound, which a guess is not
	}
	return m.used(), m.complete
}

// startCount begins a count in the background; it is called with m.mu held and gives it back unlocked when it is
// true.
func (v *vol) startCount(s cluster.QuotaScope, m *meter) bool {
	ctx, done := v.background()
	if ctx == nil {
		return false
	}
	end := make(chan struct{})
	m.scan, m.stale = end, false
	m.before += m.delta
	m.delta = 0
	m.mu.Unlock()
	go func() {
		defer done()
		keep := int64(-1)
		defer func() {
			if keep >= 0 { // after the meter is free
				v.keepCount(s, keep)
			}
		}()
		var u volume.Usage
		var err error
		begin := v.now()
		select {
		case v.scopeCounts <- struct{}{}:
			begin = v.now()
			u, err = v.count(ctx, s)
			<-v.scopeCounts
		case <-ctx.Done():
			err = ctx.Err()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.scan = nil
		close(end)
		m.at, m.took = v.now(), v.now().Sub(begin)
		if err != nil {
			v.log.Warn("counting a quota scope failed", "volume", v.opt.Name, "scope", s.String(), "error", err)
			return
		}
		m.counted, m.complete, m.known, m.before = min(u.Bytes, maxDelta), u.Complete, true, 0
		if m.took >= slowCount && u.Complete {
			keep = u.Bytes
		}
	}()
	return true
}

// over is what a writer hears whose quota is used up.
func over(s cluster.QuotaScope, limit int64) *fault.Error {
	return fault.Exhaustedf("the quota of %s (%d bytes) is used up", s, limit).WithReason("quota-exceeded").
		WithNext("delete files and empty the trash, or ask for a higher quota")
}
