package throttle_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/testkit/address"
)

func TestRedisLimiterCountsForAllManagersAndSurvivesRedis(t *testing.T) {
	t.Parallel()
	redis := miniredis.NewMiniRedis()
	require.NoError(t, redis.StartAddr(address.Hold(t)))
	t.Cleanup(redis.Close)
	connect := func() valkey.Client {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redis.Addr()}, ForceSingleClient: true, DisableCache: true})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	now := time.Unix(900*1_000_000, 0)
	clock := func() time.Time { return now }
	a, b := throttle.NewRedisLimiter(connect(), clock).WaitFor(time.Minute), throttle.NewRedisLimiter(connect(), clock).WaitFor(time.Minute)
	for i := range 4 {
		l := []*throttle.RedisLimiter{a, b}[i%2]
		left, ok := l.Take(t.Context(), "key", 4)
		require.True(t, ok)
		require.Equal(t, 3-i, left)
	}
	_, ok := a.Take(t.Context(), "key", 4)
	require.False(t, ok)
	_, ok = a.Take(t.Context(), "other", 4)
	require.True(t, ok)
	now = now.Add(20 * time.Minute) // a third of the window before is out
	left, ok := b.Take(t.Context(), "key", 4)
	require.True(t, ok)
	require.Equal(t, 1, left)

	redis.Close()
	left, ok = a.Take(t.Context(), "key", 4)
	require.True(t, ok, "who cannot count lets pass")
	require.Equal(t, 3, left)
}

func TestRedisLimiterAsksLittleFarFromTheLimitAndAlwaysNearIt(t *testing.T) {
	t.Parallel()
	redis := miniredis.RunT(t)
	connect := func() valkey.Client {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redis.Addr()}, ForceSingleClient: true, DisableCache: true})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	now := time.Unix(900*1_000_000, 0)
	clock := func() time.Time { return now }
	managers := []*throttle.RedisLimiter{
		throttle.NewRedisLimiter(connect(), clock).WaitFor(time.Minute), throttle.NewRedisLimiter(connect(), clock).WaitFor(time.Minute),
	}

	// One manager alone counts every request, whether it asks or not.
	const limit = 3000
	left, ok := managers[0].Take(t.Context(), "key", limit)
	require.True(t, ok)
	require.Equal(t, limit-1, left)
	asked := redis.CommandCount()
	for i := range 1000 {
		left, ok = managers[0].Take(t.Context(), "key", limit)
		require.True(t, ok)
		require.Equal(t, limit-2-i, left)
	}
	require.Less(t, redis.CommandCount()-asked, 6*1000/64, "nearly every request asked")

	// What was taken without asking is told when the belief ends.
	now = now.Add(time.Second)
	_, ok = managers[0].Take(t.Context(), "key", limit)
	require.True(t, ok)
	left, ok = managers[1].Take(t.Context(), "key", limit)
	require.True(t, ok)
	require.Equal(t, limit-1003, left)

	// However the managers share the load, the limit holds to the last request.
	taken := 1003
	for i := 0; ; i++ {
		if _, ok = managers[i/100%2].Take(t.Context(), "key", limit); !ok {
			break
		}
		taken++
	}
	require.LessOrEqual(t, taken, limit)
	require.Greater(t, taken, limit-2)
	for _, m := range managers {
		_, ok = m.Take(t.Context(), "key", limit)
		require.False(t, ok)
	}
}

func TestLocalLimiterSlides(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0).Add(1000 * throttle.RateWindow)
	l := throttle.NewLocalLimiter(func() time.Time { return now })
	for i := range 10 {
		left, ok := l.Take(t.Context(), "a", 10)
		require.True(t, ok)
		require.Equal(t, 9-i, left)
	}
	_, ok := l.Take(t.Context(), "a", 10)
	require.False(t, ok)
	_, ok = l.Take(t.Context(), "b", 10)
	require.True(t, ok, "keys are counted apart")
	now = now.Add(throttle.RateWindow + throttle.RateWindow/2) // half of the old window still counts
	left, ok := l.Take(t.Context(), "a", 10)
	require.True(t, ok)
	require.Equal(t, 4, left)
	now = now.Add(5 * throttle.RateWindow)
	left, _ = l.Take(t.Context(), "a", 10)
	require.Equal(t, 9, left)
}

func TestCostIsCountedApartAndByTheMinute(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0).Add(1000 * throttle.RateWindow)
	redis := miniredis.RunT(t)
	c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redis.Addr()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	clock := func() time.Time { return now }
	for _, l := range []throttle.RateLimiter{throttle.NewLocalLimiter(clock), throttle.NewRedisLimiter(c, clock).WaitFor(time.Minute)} {
		began := now
		require.True(t, l.Spend(t.Context(), "ada", 60, 100))
		require.False(t, l.Spend(t.Context(), "ada", 41, 100))
		require.True(t, l.Spend(t.Context(), "ada", 40, 100), "what was refused costs nothing")
		require.True(t, l.Spend(t.Context(), "bob", 100, 100))
		_, ok := l.Take(t.Context(), "ada", 1)
		require.True(t, ok)
		now = now.Add(2 * time.Minute)
		require.True(t, l.Spend(t.Context(), "ada", 100, 100))
		now = began
	}
}
