package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/httpapi/signature"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/testkit/address"
)

// A captured request of our client cannot be sent again, nor with another body, nor as one of an official client.
func TestCapturedRequestsAreWorthNothing(t *testing.T) {
	t.Parallel()
	redis := miniredis.NewMiniRedis()
	require.NoError(t, redis.StartAddr(address.Hold(t)))
	t.Cleanup(redis.Close)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redis.Addr()}, DisableCache: true, ForceSingleClient: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) { d.Seen = patient{signature.NewRedisSeen(client)} })
	when, nonce := time.Now(), 0
	send := func(method, target, signed, body string, change func(*http.Request)) answer {
		r := s.request(method, target, "application/json", body)
		api.SignStrictly(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), when,
			api.Strict{Nonce: strings.Repeat(string(rune('0'+nonce)), 32), Body: api.BodyDigest([]byte(signed))})
		if change != nil {
			change(r)
		}
		return s.send(r)
	}
	const target, body = "/auth/update-full-name", `{"full_name":"Ada"}`
	require.Equal(t, 200, send("POST", target, body, body, nil).status)
	require.Contains(t, send("POST", target, body, body, nil).problem(t, 401, "auth-failed"), "received before")
	require.Len(t, redis.Keys(), 1)
	nonce++
	require.Contains(t, send("POST", target, body, `{"full_name":"Eve"}`, nil).problem(t, 401, "auth-failed"), "not the one that was signed")
	nonce++
	require.Contains(t, send("POST", target, "", body, nil).problem(t, 401, "auth-failed"), "not the one that was signed")
	nonce++
	send("POST", target, body, body, func(r *http.Request) { r.Header.Del(api.HeaderSignature) }).problem(t, 400, "invalid-auth-params")
	send("POST", target, body, body, func(r *http.Request) {
		r.Header.Del(api.HeaderSignature)
		r.Header.Set("Date", strings.Replace(r.Header.Get("Date"), "-00:00", "+00:00", 1))
	}).problem(t, 401, "auth-failed")
	nonce++
	for range 2 {
		require.Equal(t, 200, send("GET", "/auth", "", "", nil).status, "reading")
	}
	require.Contains(t, s.call("GET", "/auth/role", "").body, "superadmin", "official clients sign as ever")

	// Redis away: what this manager received counts.
	redis.Close()
	nonce++
	require.Equal(t, 200, send("POST", target, body, body, nil).status)
	require.Contains(t, send("POST", target, body, body, nil).problem(t, 401, "auth-failed"), "received before")
}

// A cluster may insist on bodies that are signed.
func TestRequiredDigest(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) { d.RequireDigest = true })
	require.Contains(t, s.call("POST", "/auth/update-full-name", `{"full_name":"Ada"}`).problem(t, 401, "auth-failed"), "sign the body")
	require.Equal(t, 200, s.call("GET", "/auth", "").status)
	client, err := api.New(api.Config{Endpoint: s.url, AccessKey: string(s.admin.AccessKey), Domain: "default",
		SecretKey: api.Secret(s.admin.SecretKey.Reveal())})
	require.NoError(t, err)
	require.ErrorContains(t, client.CloseCircuit(t.Context(), "00000000-0000-4000-8000-000000000000"), "No such circuit")
}

// counted lets so many requests pass.
type counted struct {
	fewRequests
	left *int
}

func (l counted) Take(context.Context, string, int) (int, bool) {
	*l.left--
	return max(*l.left, 0), *l.left >= 0
}

// patient waits for Redis for as long as it takes, where a manager would go by its own memory for a while.
type patient struct{ seen *signature.RedisSeen }

func (p patient) FirstSight(ctx context.Context, key, value string, life time.Duration) (string, error) {
	return p.seen.FirstSight(context.WithoutCancel(ctx), key, value, life)
}

// What a keypair sends beyond its rate is not noted, here or in Redis, so that nobody fills these memories. What comes again does not
// count against the rate, so that whoever captured a request cannot use up the rate of its sender.
func TestTheMemoryOfRequestsIsBoundedByTheirRate(t *testing.T) {
	t.Parallel()
	redis := miniredis.RunT(t)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redis.Addr()}, DisableCache: true, ForceSingleClient: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	left := 2
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) {
		d.Seen, d.RateLimiter = patient{signature.NewRedisSeen(client)}, counted{left: &left}
	})
	const target, body = "/auth/update-full-name", `{"full_name":"Ada"}`
	captured := s.request("POST", target, "application/json", body)
	api.SignStrictly(captured, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now(),
		api.Strict{Nonce: strings.Repeat("1", 32), Body: api.BodyDigest([]byte(body))})
	again := func() answer {
		r := s.request("POST", target, "application/json", body)
		r.Header = captured.Header.Clone()
		return s.send(r)
	}
	require.Equal(t, 200, again().status)
	for range 5 {
		require.Contains(t, again().problem(t, 401, "auth-failed"), "received before")
	}
	require.Equal(t, 200, s.call("POST", target, body).status)
	require.Len(t, redis.Keys(), 2)
	for range 5 {
		s.call("POST", target, body).problem(t, 429, "rate-limit-exceeded")
	}
	require.Len(t, redis.Keys(), 2)
}

// Passwords that are tried with a keypair count like those that are tried at a login.
func TestOldPasswordsAreLimitedLikeLogins(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	try := func() answer {
		return s.call("POST", "/auth/update-password", `{"old_password":"guess","new_password":"long enough","new_password2":"long enough"}`)
	}
	for range 10 {
		try().problem(t, 401, "auth-failed")
	}
	require.Contains(t, try().problem(t, 429, "rate-limit-exceeded"), "10 wrong passwords")
}

// Whoever carries files into a session or out of it takes a place, however slowly the bytes are read.
func TestFilesOfSessionsTakePlaces(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) {
		d.Limits = throttle.Limits{StreamsPerUser: 9, PerAddress: 9, Total: 9}
	})
	for _, route := range []string{"POST /session/x/upload", "GET /session/x/download?files=a", "POST /session/x/download",
		"GET /session/x/download_single?file=a", "POST /kernel/x/download_single", "GET /session/_/logs?session_name=x"} {
		method, target, _ := strings.Cut(route, " ")
		s.call(method, target, `{}`).problem(t, 429, "rate-limit-exceeded")
	}
}
