package posix

import (
	"context"
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
	at       time.Time     // when the last count ended
	took     time.Duration // the last count
	delta    int64         // own changes since the last count began
	before   int64         // own changes before the running count began
	scan     chan struct{} // closed when the running count ends; nil when none runs
}

const (
	countEvery = 30 * time.Second
	// A count may take this part of the time at most.
	countShare = 20
	reserve    = 4 << 20 // bytes per check while writing
)

// used is the best estimate; mu is held.
func (m *meter) used() int64 { return max(m.counted+m.before+m.delta, 0) }

// add notes own bytes that came (or went).
func (m *meter) add(n int64) {
	m.mu.Lock()
	m.delta += n
	m.mu.Unlock()
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

// stale makes the next reader count anew, after something went that nobody measured.
func (m *meter) stale() {
	m.mu.Lock()
	m.at = time.Time{}
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
	if m == nil {
		m = &meter{limit: volume.NoLimit}
		v.meters[s.Dir()] = m
	}
	v.mu.Unlock()
	m.setLimit(doc.LimitBytes)
	return m, nil
}

// usage counts where the last count is old. A caller waits for the first count only, as long as its ctx lets it;
// later ones run behind.
func (v *vol) usage(ctx context.Context, s cluster.QuotaScope, m *meter) (bytes int64, complete bool) {
	m.mu.Lock()
	rest := max(countEvery, countShare*m.took)
	if m.scan == nil && (!m.known || v.now().Sub(m.at) >= rest) && v.startCount(s, m) {
		m.mu.Lock() // startCount lets go
	}
	wait := m.scan
	if m.known {
		wait = nil
	}
	m.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used(), m.known && m.complete
}

// startCount begins a count in the background; it is called with m.mu held and gives it back unlocked when it is
// true.
func (v *vol) startCount(s cluster.QuotaScope, m *meter) bool {
	ctx, done := v.background()
	if ctx == nil {
		return false
	}
	end := make(chan struct{})
	m.scan = end
	m.before += m.delta
	m.delta = 0
	m.mu.Unlock()
	go func() {
		defer done()
		begin := v.now()
		u, err := v.countScope(ctx, s)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.scan = nil
		close(end)
		m.at, m.took = v.now(), v.now().Sub(begin)
		if err != nil {
			v.log.Warn("counting a quota scope failed", "volume", v.opt.Name, "scope", s.String(), "error", err)
			return
		}
		m.counted, m.complete, m.known, m.before = u.Bytes, u.Complete, true, 0
	}()
	return true
}

// over is what a writer hears whose quota is used up.
func over(s cluster.QuotaScope, limit int64) *fault.Error {
	return fault.Exhaustedf("the quota of %s (%d bytes) is used up", s, limit).WithReason("quota-exceeded").
		WithNext("delete files and empty the trash, or ask for a higher quota")
}
