package forward

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
)

// bucket is a token bucket for a rate of requests per second and bursts of twice that. It stores only the time, in nanoseconds,
// at which it will be full again; the number of tokens follows from that.
type bucket struct{ full atomic.Int64 }

// take takes a token at now (nanoseconds); when there is none it returns how long it takes until there is.
func (b *bucket) take(now int64, rate float64) (time.Duration, bool) {
	if rate <= 0 {
		return 0, true
	}
	each := int64(float64(time.Second) / rate)
	burst := int64(2 * max(rate, 1) * float64(each))
	for {
		full := b.full.Load()
		next := max(full, now) + each
		if wait := next - now - burst; wait > 0 {
			return time.Duration(wait), false
		}
		if b.full.CompareAndSwap(full, next) {
			return 0, true
		}
	}
}

// maxBuckets bounds one shard; there are limitShards.
const (
	maxBuckets  = 4096
	limitShards = 16
)

// buckets are the buckets of users or addresses.
type buckets[K comparable] struct {
	seed   maphash.Seed
	shards [limitShards]struct {
		mu sync.Mutex
		m  map[K]*bucket
	}
}

func newBuckets[K comparable]() *buckets[K] {
	b := &buckets[K]{seed: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].m = map[K]*bucket{}
	}
	return b
}

// of finds or makes the bucket of a key. When a shard has too many buckets it drops those that are full again; when that is not
// enough it drops some others, whose owners get a full bucket anew. So many different addresses cannot exhaust the memory.
func (b *buckets[K]) of(k K, now int64) *bucket {
	s := &b.shards[maphash.Comparable(b.seed, k)%limitShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.m[k]; one != nil {
		return one
	}
	if len(s.m) >= maxBuckets {
		for key, one := range s.m {
			if one.full.Load() <= now {
				delete(s.m, key)
			}
		}
		for key := range s.m {
			if len(s.m) < maxBuckets*3/4 {
				break
			}
			delete(s.m, key)
		}
	}
	one := new(bucket)
	s.m[k] = one
	return one
}

// tally counts the open connections of each address.
type tally struct {
	mu sync.Mutex
	m  map[netip.Addr]int
}

// enter counts one more unless there are most already; 0 is without limit.
func (t *tally) enter(a netip.Addr, most int) bool {
	a = circuit.Network(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	if most > 0 && t.m[a] >= most {
		return false
	}
	t.m[a]++
	return true
}

func (t *tally) leave(a netip.Addr) {
	a = circuit.Network(a)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[a]--; t.m[a] <= 0 {
		delete(t.m, a)
	}
}
