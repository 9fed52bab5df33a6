// Package throttle bounds what callers of the API may do at one time and in a time: requests and their cost (RateLimiter), what
// they hold open (Places) and passwords that they try (Logins). No limit is about everybody, so that nobody locks out others.
package throttle

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valkey-io/valkey-go"
)

// Reason is the wire's word for what the limits of this package refuse.
const Reason = "rate-limit-exceeded"

const (
	// RateWindow is the window of Take, and costWindow that of Spend.
	RateWindow = 15 * time.Minute
	costWindow = time.Minute
)

// RateLimiter counts requests over a window of 15 minutes that slides: the part of the
// previous fixed window that still overlaps counts proportionally. It counts cost in the same way over a window of a minute.
type RateLimiter interface {
	// Take counts one request of key unless limit is reached. It never fails: who cannot count lets pass.
	Take(ctx context.Context, key string, limit int) (remaining int, ok bool)
	// Spend counts amount for key in the window of a minute unless that is more than limit. Keys are apart from those of Take.
	Spend(ctx context.Context, key string, amount, limit int) bool
}

// maxLocalKeys bounds the memory of a LocalLimiter.
const maxLocalKeys = 100_000

// LocalLimiter counts in this process.
type LocalLimiter struct {
	now             func() time.Time
	requests, costs counts
}

// NewLocalLimiter returns an empty limiter.
func NewLocalLimiter(now func() time.Time) *LocalLimiter {
	return &LocalLimiter{now: now, requests: counts{every: RateWindow}, costs: counts{every: costWindow}}
}

// Take implements RateLimiter.
func (l *LocalLimiter) Take(_ context.Context, key string, limit int) (int, bool) {
	return l.requests.take(l.now(), key, 1, limit)
}

// Spend implements RateLimiter.
func (l *LocalLimiter) Spend(_ context.Context, key string, amount, limit int) bool {
	_, ok := l.costs.take(l.now(), key, amount, limit)
	return ok
}

// counts are the counts of a sliding window.
type counts struct {
	every time.Duration

	mu       sync.Mutex
	window   int64 // number of the current window
	cur, old map[string]int
}

// windowOf returns the number of the window and how much of the one before still counts, 0 to 1.
func windowOf(now time.Time, every time.Duration) (n int64, overlap float64) {
	ns, w := now.UnixNano(), int64(every)
	return ns / w, 1 - float64(ns%w)/float64(w)
}

func (l *counts) take(now time.Time, key string, amount, limit int) (int, bool) {
	n, overlap := windowOf(now, l.every)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cur != nil && n == l.window:
	case l.cur != nil && n == l.window+1:
		l.old, l.cur, l.window = l.cur, map[string]int{}, n
	default:
		l.old, l.cur, l.window = map[string]int{}, map[string]int{}, n
	}
	used := l.cur[key] + int(overlap*float64(l.old[key]))
	if used+amount > limit {
		return 0, false
	}
	if _, known := l.cur[key]; known || len(l.cur) < maxLocalKeys {
		l.cur[key] += amount
	}
	return limit - used - amount, true
}

// RedisLimiter counts in Redis, so that all managers of a cluster count together. While Redis
// is away it counts in this process.
//
// A key that is far from its limit is not asked about with every request: Redis' last answer is believed for a
// moment, and what was taken meanwhile is told with the next question. The margin to the limit is larger than what all
// managers can owe, so the limit itself is kept by Redis alone.
type RedisLimiter struct {
	client valkey.Client
	script *valkey.Lua
	local  *LocalLimiter
	now    func() time.Time
	// patience is how long Redis is waited for.
	patience time.Duration
	// awayUntil is when Redis is asked again after a failure, in nanoseconds.
	awayUntil atomic.Int64

	mu     sync.Mutex
	shares map[string]*share
}

// share is what is known of a key's window.
type share struct {
	window int64
	asked  time.Time
	// cur and old are the counts of the window and of the one before, cur with everything that was told.
	cur, old int64
	// owed was taken here and not told yet.
	owed int64
}

const (
	redisPatience = 100 * time.Millisecond
	redisRest     = 5 * time.Second
	// believeFor and believeTakes bound how long an answer of Redis is believed.
	believeFor   = time.Second
	believeTakes = 64
	// exactBelow is the number of remaining requests from which on every one of them asks.
	exactBelow = 1000
)

// takeScript adds ARGV[4] to KEYS[1], then ARGV[5] more unless that and the overlapping part of KEYS[2] would exceed
// the limit ARGV[1]. It returns whether ARGV[5] was added, and both counts.
const takeScript = `
local owed = tonumber(ARGV[4])
local cur = tonumber(redis.call('GET', KEYS[1]) or '0') + owed
local old = tonumber(redis.call('GET', KEYS[2]) or '0')
local add = tonumber(ARGV[5])
local took = 1
if cur + math.floor(old * tonumber(ARGV[2])) + add > tonumber(ARGV[1]) then took, add = 0, 0 end
if owed + add > 0 and redis.call('INCRBY', KEYS[1], owed + add) == owed + add then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return {took, cur + add, old}`

// NewRedisLimiter returns a limiter that uses client; the caller closes it.
func NewRedisLimiter(client valkey.Client, now func() time.Time) *RedisLimiter {
	return &RedisLimiter{
		client: client, script: valkey.NewLuaScript(takeScript), local: NewLocalLimiter(now), now: now, patience: redisPatience,
		shares: map[string]*share{},
	}
}

// Take implements RateLimiter.
func (l *RedisLimiter) Take(ctx context.Context, key string, limit int) (int, bool) {
	now := l.now()
	if now.UnixNano() < l.awayUntil.Load() {
		return l.local.Take(ctx, key, limit)
	}
	n, overlap := windowOf(now, RateWindow)
	remaining, owed, ok := l.believe(key, n, overlap, limit, now)
	if ok {
		return remaining, true
	}
	counts, err := l.ask(ctx, "berth:rate:{"+key+"}:", RateWindow, owed, 1, limit, now)
	l.settle(key, n, owed, now, counts, err)
	switch {
	case err != nil:
		return l.local.Take(ctx, key, limit)
	case counts[0] == 0:
		return 0, false
	}
	return max(limit-int(counts[1])-int(overlap*float64(counts[2])), 0), true
}

// Spend implements RateLimiter. Redis is asked every time.
func (l *RedisLimiter) Spend(ctx context.Context, key string, amount, limit int) bool {
	now := l.now()
	if now.UnixNano() < l.awayUntil.Load() {
		return l.local.Spend(ctx, key, amount, limit)
	}
	counts, err := l.ask(ctx, "berth:cost:{"+key+"}:", costWindow, 0, amount, limit, now)
	if err != nil {
		return l.local.Spend(ctx, key, amount, limit)
	}
	return counts[0] == 1
}

// ask runs the script. When Redis does not answer it is left alone for a while.
func (l *RedisLimiter) ask(ctx context.Context, prefix string, every time.Duration, owed int64, amount, limit int, now time.Time) (
	[]int64, error) {
	n, overlap := windowOf(now, every)
	bounded, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	counts, err := l.script.Exec(
		bounded,
		l.client,
		// One hash tag per key keeps both windows on one node of a Redis cluster.
		[]string{prefix + strconv.FormatInt(n, 10), prefix + strconv.FormatInt(n-1, 10)},
		[]string{
			strconv.Itoa(limit), strconv.FormatFloat(overlap, 'f', 6, 64), strconv.Itoa(int(2 * every / time.Second)),
			strconv.FormatInt(owed, 10), strconv.Itoa(amount),
		},
	).AsIntSlice()
	if err == nil && len(counts) != 3 {
		err = errors.New("redis answers the rate limit's script with something else")
	}
	if err != nil && ctx.Err() == nil {
		l.awayUntil.Store(now.Add(redisRest).UnixNano())
	}
	return counts, err
}

// believe takes a request by what is known of the key, or says what Redis is to be told with the question.
func (l *RedisLimiter) believe(key string, window int64, overlap float64, limit int, now time.Time) (remaining int, owed int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shares[key]
	if s == nil || s.window != window { // what the window before still owes, at most believeTakes, is let off
		return 0, 0, false
	}
	if now.Sub(s.asked) < believeFor && s.owed < believeTakes {
		if remaining = limit - int(s.cur+s.owed) - int(overlap*float64(s.old)) - 1; remaining >= exactBelow {
			s.owed++
			return remaining, 0, true
		}
	}
	owed = s.owed
	s.cur, s.owed = s.cur+owed, 0
	return 0, owed, false
}

// settle notes Redis' answer, or that it has not heard what is owed.
func (l *RedisLimiter) settle(key string, window, owed int64, asked time.Time, counts []int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shares[key]
	if s != nil && s.window > window {
		return
	}
	if err != nil {
		if s != nil && s.window == window {
			s.cur, s.owed = s.cur-owed, s.owed+owed
		}
		return
	}
	if s == nil || s.window != window {
		if len(l.shares) >= maxLocalKeys {
			clear(l.shares)
		}
		s = &share{window: window}
		l.shares[key] = s
	}
	s.asked, s.cur, s.old = asked, counts[1], counts[2]
}
