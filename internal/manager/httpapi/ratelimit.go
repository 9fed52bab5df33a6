package httpapi

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"
)

// RateLimiter counts requests over a window of 15 minutes that slides: the part of the
// previous fixed window that still overlaps counts proportionally.
type RateLimiter interface {
	// Take counts one request of key unless limit is reached. It never fails: who cannot count lets pass.
	Take(ctx context.Context, key string, limit int) (remaining int, ok bool)
}

// maxLocalKeys bounds the memory of a LocalLimiter.
const maxLocalKeys = 100_000

// LocalLimiter counts in this process.
type LocalLimiter struct {
	now func() time.Time

	mu       sync.Mutex
	window   int64 // number of the current window
	cur, old map[string]int
}

// NewLocalLimiter returns an empty limiter.
func NewLocalLimiter(now func() time.Time) *LocalLimiter {
	return &LocalLimiter{now: now, cur: map[string]int{}, old: map[string]int{}}
}

// windowOf returns the number of the window and how much of the one before still counts, 0 to 1.
func windowOf(now time.Time) (n int64, overlap float64) {
	ns, w := now.UnixNano(), int64(rateWindow)
	return ns / w, 1 - float64(ns%w)/float64(w)
}

// Take implements RateLimiter.
func (l *LocalLimiter) Take(_ context.Context, key string, limit int) (int, bool) {
	n, overlap := windowOf(l.now())
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case n == l.window:
	case n == l.window+1:
		l.old, l.cur, l.window = l.cur, map[string]int{}, n
	default:
		l.old, l.cur, l.window = map[string]int{}, map[string]int{}, n
	}
	used := l.cur[key] + int(overlap*float64(l.old[key]))
	if used >= limit {
		return 0, false
	}
	if _, known := l.cur[key]; known || len(l.cur) < maxLocalKeys {
		l.cur[key]++
	}
	return limit - used - 1, true
}

// RedisLimiter counts in Redis, so that all managers of a cluster count together. While Redis
// is away it counts in this process.
type RedisLimiter struct {
	client valkey.Client
	script *valkey.Lua
	local  *LocalLimiter
	now    func() time.Time
	// awayUntil is when Redis is asked again after a failure, in nanoseconds.
	awayUntil atomic.Int64
}

const (
	redisPatience = 100 * time.Millisecond
	redisRest     = 5 * time.Second
)

// takeScript counts in KEYS[1] unless it and the overlapping part of KEYS[2] reach the limit ARGV[1]; it returns
// what was used before, or -1.
const takeScript = `
local used = tonumber(redis.call('GET', KEYS[1]) or '0') + math.floor(tonumber(redis.call('GET', KEYS[2]) or '0') * tonumber(ARGV[2]))
if used >= tonumber(ARGV[1]) then return -1 end
if redis.call('INCR', KEYS[1]) == 1 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return used`

// NewRedisLimiter returns a limiter that uses client; the caller closes it.
func NewRedisLimiter(client valkey.Client, now func() time.Time) *RedisLimiter {
	return &RedisLimiter{client: client, script: valkey.NewLuaScript(takeScript), local: NewLocalLimiter(now), now: now}
}

// Take implements RateLimiter.
func (l *RedisLimiter) Take(ctx context.Context, key string, limit int) (int, bool) {
	now := l.now()
	if now.UnixNano() < l.awayUntil.Load() {
		return l.local.Take(ctx, key, limit)
	}
	n, overlap := windowOf(now)
	bounded, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	used, err := l.script.Exec(bounded, l.client,
		// One hash tag per key keeps both windows on one node of a Redis cluster.
		[]string{"berth:rate:{" + key + "}:" + strconv.FormatInt(n, 10), "berth:rate:{" + key + "}:" + strconv.FormatInt(n-1, 10)},
		[]string{strconv.Itoa(limit), strconv.FormatFloat(overlap, 'f', 6, 64), strconv.Itoa(int(2 * rateWindow / time.Second))}).AsInt64()
	switch {
	case err != nil:
		if ctx.Err() == nil {
			l.awayUntil.Store(now.Add(redisRest).UnixNano())
		}
		return l.local.Take(ctx, key, limit)
	case used < 0:
		return 0, false
	}
	return limit - int(used) - 1, true
}
