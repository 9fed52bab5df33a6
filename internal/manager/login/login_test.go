package login_test

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/testkit/address"
)

const (
	ada = cluster.UserID("11111111-1111-4111-8111-111111111111")
	bob = cluster.UserID("22222222-2222-4222-8222-222222222222")
)

// clock is set by tests.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func token(t *testing.T, u cluster.UserID) login.Token {
	t.Helper()
	k, err := login.NewToken(u)
	require.NoError(t, err)
	return k
}

func redis(t *testing.T) (*miniredis.Miniredis, valkey.Client) {
	t.Helper()
	server := miniredis.NewMiniRedis()
	require.NoError(t, server.StartAddr(address.Hold(t)))
	t.Cleanup(server.Close)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return server, client
}

// both runs a test with each keeper.
func both(t *testing.T, test func(t *testing.T, k login.Keeper, c *clock)) {
	t.Run("memory", func(t *testing.T) {
		c := &clock{time.Now().Truncate(time.Millisecond).UTC()}
		test(t, login.NewMemory(c.now), c)
	})
	t.Run("redis", func(t *testing.T) {
		c := &clock{time.Now().Truncate(time.Millisecond).UTC()}
		_, client := redis(t)
		test(t, login.NewRedis(client, "test:", c.now).WaitFor(time.Minute), c)
	})
}

func session(c *clock, id string) login.Session {
	return login.Session{ID: id, AccessKey: "AKIA1", Created: c.at, Seen: c.at, Expires: c.at.Add(time.Hour), Address: "10.0.0.7",
		Agent: "test", Stamp: "s"}
}

func ids(t *testing.T, k login.Keeper, u cluster.UserID) string {
	t.Helper()
	list, err := k.List(t.Context(), u)
	require.NoError(t, err)
	var out []string
	for _, s := range list {
		out = append(out, s.ID)
	}
	return strings.Join(out, " ")
}

func TestLoginsAreFoundByTheirTokenAlone(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k login.Keeper, c *clock) {
		ctx := t.Context()
		one, other := token(t, ada), token(t, bob)
		require.NoError(t, k.Open(ctx, one, session(c, "a"), 0, false))
		got, ok, err := k.Find(ctx, one)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, session(c, "a"), got)
		for _, stranger := range []login.Token{other, token(t, ada)} {
			_, ok, err = k.Find(ctx, stranger)
			require.NoError(t, err)
			require.False(t, ok)
		}
		got.Seen, got.Expires = c.at.Add(time.Minute), c.at.Add(2*time.Hour)
		require.NoError(t, k.Replace(ctx, one, got))
		again, _, err := k.Find(ctx, one)
		require.NoError(t, err)
		require.Equal(t, got, again)
		require.NoError(t, k.Replace(ctx, other, got), "what is not there stays away")
		require.Empty(t, ids(t, k, bob))
		require.NoError(t, k.Remove(ctx, one))
		_, ok, err = k.Find(ctx, one)
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func TestLoginsExpire(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k login.Keeper, c *clock) {
		one := token(t, ada)
		require.NoError(t, k.Open(t.Context(), one, session(c, "a"), 1, false))
		c.at = c.at.Add(time.Hour)
		_, ok, err := k.Find(t.Context(), one)
		require.NoError(t, err)
		require.False(t, ok)
		require.Empty(t, ids(t, k, ada))
		require.NoError(t, k.Open(t.Context(), token(t, ada), session(c, "b"), 1, false), "an expired login takes no place")
	})
}

func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k login.Keeper, c *clock) {
		ctx := t.Context()
		open := func(id string, most int, force bool) error {
			c.at = c.at.Add(time.Millisecond)
			return k.Open(ctx, token(t, ada), session(c, id), most, force)
		}
		require.NoError(t, open("a", 2, false))
		require.NoError(t, open("b", 2, false))
		require.ErrorIs(t, open("c", 2, false), login.ErrFull)
		require.Equal(t, "b a", ids(t, k, ada))
		require.NoError(t, open("d", 2, true))
		require.Equal(t, "d b", ids(t, k, ada), "the oldest one ended")
		require.NoError(t, k.Open(ctx, token(t, bob), session(c, "x"), 2, false), "others have their own")
		require.NoError(t, open("e", 1, true))
		require.Equal(t, "e", ids(t, k, ada), "a bound that was lowered holds from then on")
		for range login.MaxSessions + 3 {
			require.NoError(t, open("n", 0, false))
		}
		list, err := k.List(ctx, ada)
		require.NoError(t, err)
		require.Len(t, list, login.MaxSessions)
	})
}

func TestLoginsEndOneByOneOrAll(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k login.Keeper, c *clock) {
		ctx := t.Context()
		for _, id := range []string{"a", "b", "c"} {
			c.at = c.at.Add(time.Millisecond)
			require.NoError(t, k.Open(ctx, token(t, ada), session(c, id), 0, false))
		}
		end := func(u cluster.UserID, id string) int {
			n, err := k.End(ctx, u, id)
			require.NoError(t, err)
			return n
		}
		require.Zero(t, end(bob, "a"), "nobody ends a login of others")
		require.Equal(t, 1, end(ada, "b"))
		require.Equal(t, "c a", ids(t, k, ada))
		require.Equal(t, 2, end(ada, ""))
		require.Empty(t, ids(t, k, ada))
	})
}

func TestTokensAreReadStrictly(t *testing.T) {
	t.Parallel()
	one := token(t, ada)
	require.Equal(t, ada, one.User())
	require.NotContains(t, one.String(), one.Reveal())
	again, ok := login.ParseToken(one.Reveal())
	require.True(t, ok)
	require.Equal(t, one, again)
	for _, bad := range []string{"", "x", one.Reveal() + "A", one.Reveal()[1:], strings.Repeat("*", login.TokenLength),
		strings.Repeat("/", login.TokenLength), strings.Repeat("\n", login.TokenLength)} {
		_, ok := login.ParseToken(bad)
		require.False(t, ok, "%q", bad)
	}
}

// Redis holds nothing by which somebody logs in, and nothing of a user stays when the logins have expired.
func TestRedisHoldsNoTokens(t *testing.T) {
	t.Parallel()
	server, client := redis(t)
	c := &clock{time.Now().Truncate(time.Millisecond).UTC()}
	k := login.NewRedis(client, "test:", c.now).WaitFor(time.Minute)
	one := token(t, ada)
	require.NoError(t, k.Open(t.Context(), one, session(c, "a"), 0, false))
	require.NotContains(t, server.Dump(), one.Reveal())
	require.Equal(t, []string{"test:logins:" + string(ada)}, server.Keys())
	server.SetTime(c.at)
	require.NotZero(t, server.TTL("test:logins:"+string(ada)))
	server.FastForward(2 * time.Hour)
	require.Empty(t, server.Keys())
	server.Close()
	_, _, err := login.NewRedis(client, "test:", c.now).Find(t.Context(), one)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}
