package live

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/wire/node"
)

const (
	// usageWish is how long KeepUsage holds; whoever needs the use of kernels asks again before.
	usageWish = time.Hour
	// usageMax bounds the window.
	usageMax = 24 * time.Hour
	// usageBatch is the number of kernels read in one exchange, so that a reply stays small.
	usageBatch = 50
)

// opened is the bucket of a kernel that is being filled.
type opened struct {
	bucket int64
	sums   map[string]float64
	counts map[string]int
}

// measuresUse reports whether a metric belongs to the use of what is allocated: momentary values, not totals.
func measuresUse(name string) bool {
	if _, _, one := node.SplitDevice(name); one {
		return false // of one device; its kernel has the sum
	}
	for _, end := range []string{"_util", "_mem", "_mem_total"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return name == "mem" || name == "cpu_want"
}

// KeepUsage asks all managers to keep the use of kernels over a window for Usage. Without it nothing is kept, because
// it costs memory; what was before the first call is not known.
func (s *Stats) KeepUsage(ctx context.Context, window time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	seconds := strconv.FormatInt(int64(min(window, usageMax)/time.Second), 10)
	if err := s.redis.Do(ctx, s.redis.B().Set().Key(s.wishKey()).Value(seconds).Ex(usageWish).Build()).Error(); err != nil {
		s.log.Debug("the wish to keep the use of kernels was not stored", "err", err)
	}
}

func (s *Stats) wishKey() string { return s.prefix + "use-window" }

// kept is how far back the use of kernels is to be kept, asked once a bucket; 0 is not at all.
func (s *Stats) kept(ctx context.Context) time.Duration {
	s.mu.Lock()
	now := rule.BucketOf(s.Now())
	keep, fresh := s.keep, s.asked == now
	s.mu.Unlock()
	if fresh {
		return keep
	}
	n, err := s.redis.Do(ctx, s.redis.B().Get().Key(s.wishKey()).Build()).AsInt64()
	if err != nil || n < 0 {
		n = 0
	}
	keep = min(time.Duration(n)*time.Second, usageMax)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep, s.asked = keep, now
	return keep
}

func (s *Stats) usageKey(id cluster.KernelID) string { return s.prefix + "use:" + string(id) }

// fold adds measurements to the open buckets and returns commands that store those that are full. Buckets of kernels that
// are not measured any more are stored and forgotten too, so that the map holds what runs.
func (s *Stats) fold(ctx context.Context, kernels map[cluster.KernelID]map[string]float64) valkey.Commands {
	keep := s.kept(ctx)
	now := rule.BucketOf(s.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	var full valkey.Commands
	for id, o := range s.open {
		if o.bucket < now {
			full = append(full, s.store(id, o, keep)...)
			delete(s.open, id)
		}
	}
	if keep == 0 {
		return full
	}
	for id, values := range kernels {
		for name, v := range values {
			if !measuresUse(name) || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				continue
			}
			o := s.open[id]
			if o == nil {
				o = &opened{bucket: now, sums: map[string]float64{}, counts: map[string]int{}}
				s.open[id] = o
			}
			o.sums[name] += v
			o.counts[name]++
		}
	}
	return full
}

func (s *Stats) store(id cluster.KernelID, o *opened, keep time.Duration) valkey.Commands {
	if keep == 0 {
		return nil
	}
	sample := rule.Sample{Bucket: o.bucket, Values: make(map[string]float64, len(o.sums))}
	for name, sum := range o.sums {
		sample.Values[name] = math.Round(sum/float64(o.counts[name])*100) / 100
	}
	raw, err := json.Marshal(sample)
	if err != nil {
		return nil // not a number: unknown
	}
	key := s.usageKey(id)
	return valkey.Commands{
		s.redis.B().Rpush().Key(key).Element(valkey.BinaryString(raw)).Build(),
		s.redis.B().Ltrim().Key(key).Start(-int64(keep/rule.Bucket) - 1).Stop(-1).Build(),
		s.redis.B().Expire().Key(key).Seconds(int64((keep + usageWish) / time.Second)).Build(),
	}
}

// Usage returns what is known of the kernels' use over a window that ends now; kernels of which nothing is known are absent.
func (s *Stats) Usage(ctx context.Context, kernels []cluster.KernelID, window time.Duration) map[cluster.KernelID][]rule.Sample {
	out := make(map[cluster.KernelID][]rule.Sample, len(kernels))
	length := min(int64(window/rule.Bucket)+1, int64(usageMax/rule.Bucket))
	oldest := rule.BucketOf(s.Now()) - length
	ctx, cancel := context.WithTimeout(ctx, 4*s.Patience)
	defer cancel()
	for len(kernels) > 0 {
		n := min(len(kernels), usageBatch)
		cmds := make(valkey.Commands, n)
		for i, id := range kernels[:n] {
			cmds[i] = s.redis.B().Lrange().Key(s.usageKey(id)).Start(-length).Stop(-1).Build()
		}
		for i, r := range s.redis.DoMulti(ctx, cmds...) {
			list, err := r.AsStrSlice()
			if err != nil {
				s.log.Debug("the use of kernels was not read", "err", err)
				return out
			}
			for _, text := range list {
				var m rule.Sample
				if json.Unmarshal([]byte(text), &m) == nil && m.Bucket >= oldest {
					out[kernels[i]] = append(out[kernels[i]], m)
				}
			}
		}
		kernels = kernels[n:]
	}
	return out
}
