package signature_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/signature"
)

const (
	key    = "AKTESTVECTOR00000001"
	secret = "sk-test-vector-0123456789abcdefghijklmno"
)

var start = time.Date(2026, 11, 20, 8, 21, 13, 659045000, time.UTC)

// memory is a signature.Shared.
type memory struct {
	mu    sync.Mutex
	seen  map[string]string
	err   error
	asked int
}

func (m *memory) FirstSight(_ context.Context, key, value string, life time.Duration) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.err != nil {
		return "", m.err
	}
	if life <= 0 {
		return "", fmt.Errorf("a life of %s", life)
	}
	if first, ok := m.seen[key]; ok {
		return first, nil
	}
	if m.seen == nil {
		m.seen = map[string]string{}
	}
	m.seen[key] = value
	return value, nil
}

// official is a request as official clients sign it, ours one of our client.
func official(t *testing.T, method, target string, at time.Time) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, "http://berth.example.org"+target, nil)
	r.Header.Set("Content-Type", "application/json")
	api.SignRequest(r, key, secret, at)
	return r
}

func ours(t *testing.T, method, target, nonce, body string, at time.Time) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, "http://berth.example.org"+target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	api.SignStrictly(r, key, secret, at, api.Strict{Nonce: nonce, Body: api.BodyDigest([]byte(body))})
	return r
}

func read(t *testing.T, r *http.Request, now time.Time) *signature.Signed {
	t.Helper()
	s, err := signature.Read(r, now)
	require.NoError(t, err)
	require.True(t, s.Matches(secret))
	return s
}

const nonce = "000102030405060708090a0b0c0d0e0f"

func TestExtension(t *testing.T) {
	t.Parallel()
	good := func() *http.Request { return ours(t, "POST", "/session", nonce, `{"a":1}`, start) }
	s := read(t, good(), start)
	require.True(t, s.Extended())
	require.True(t, s.Writes())
	require.Equal(t, api.BodyDigest([]byte(`{"a":1}`)), fmt.Sprintf("%x", s.Digest()))
	require.False(t, s.Matches("another"))
	require.EqualValues(t, key, s.AccessKey())

	r := ours(t, "POST", "/session", nonce, "", start)
	api.SignStrictly(r, key, secret, start, api.Strict{Nonce: nonce, Body: api.StreamBody})
	require.Nil(t, read(t, r, start).Digest())

	// What somebody on the way changes no longer matches, or cannot be read.
	for name, change := range map[string]func(r *http.Request){
		"left out": func(r *http.Request) { r.Header.Del(signature.Extension) },
		"left out, with the date of others": func(r *http.Request) {
			r.Header.Del(signature.Extension)
			r.Header.Set("Date", strings.Replace(r.Header.Get("Date"), "-00:00", "+00:00", 1))
		},
		"twice": func(r *http.Request) { r.Header.Add(signature.Extension, r.Header.Get(signature.Extension)) },
		"another nonce": func(r *http.Request) {
			r.Header.Set(signature.Extension, strings.Replace(r.Header.Get(signature.Extension), "0001", "1001", 1))
		},
		"another digest": func(r *http.Request) {
			r.Header.Set(signature.Extension, strings.Replace(r.Header.Get(signature.Extension), "body=", "body=00", 1))
		},
		"a digest less": func(r *http.Request) {
			h := r.Header.Get(signature.Extension)
			at := strings.Index(h, "body=") + len("body=")
			r.Header.Set(signature.Extension, h[:at]+"stream"+h[at+64:])
		},
		"another method": func(r *http.Request) { r.Method = "DELETE" },
		"another path":   func(r *http.Request) { r.RequestURI = "/other" },
		"no mac":         func(r *http.Request) { r.Header.Set(signature.Extension, "nonce="+nonce+", body=stream") },
		"junk":           func(r *http.Request) { r.Header.Set(signature.Extension, ",,=,=") },
	} {
		r := good()
		change(r)
		s, err := signature.Read(r, start)
		if err != nil {
			require.Equal(t, signature.ReasonInvalid, fault.ReasonOf(err), name)
			continue
		}
		require.False(t, s.Matches(secret), name)
	}
}

// A request of our client is good once, wherever it comes from and whichever manager it reaches.
func TestOurRequestsAreGoodOnce(t *testing.T) {
	t.Parallel()
	now := start
	clock := func() time.Time { return now }
	shared := &memory{}
	one, two := signature.NewGuard(clock, shared), signature.NewGuard(clock, shared)
	here := netip.MustParseAddr("192.0.2.7")
	ctx := t.Context()
	take := func(g *signature.Guard, r *http.Request) error { return g.Take(ctx, read(t, r, now), here) }
	again := func(err error) {
		t.Helper()
		require.Equal(t, fault.Unauthenticated, fault.KindOf(err))
		require.ErrorContains(t, err, "good once")
	}
	post := func() *http.Request { return ours(t, "POST", "/session", nonce, "{}", start) }
	require.NoError(t, take(one, post()))
	again(take(one, post()))
	again(take(two, post()))
	require.NoError(t, take(one, ours(t, "POST", "/session", strings.Repeat("1", 32), "{}", start)), "another nonce of the same moment")
	for range 2 {
		require.NoError(t, take(one, ours(t, "GET", "/session", strings.Repeat("2", 32), "", start)), "reading changes nothing")
	}
	stream := func() *http.Request {
		r := ours(t, "GET", "/stream/session/x/exec?cmd=rm", strings.Repeat("3", 32), "", start)
		r.Header.Set("Upgrade", "websocket")
		return r
	}
	require.NoError(t, take(one, stream()))
	again(take(two, stream()))

	// While the shared memory is away each manager goes by its own.
	shared.err = errors.New("away")
	fresh := func() *http.Request { return ours(t, "POST", "/session", strings.Repeat("4", 32), "{}", start) }
	require.NoError(t, take(one, fresh()))
	again(take(one, fresh()))
	asked := shared.asked
	require.NoError(t, take(one, ours(t, "POST", "/session", strings.Repeat("5", 32), "{}", start)))
	require.Equal(t, asked, shared.asked, "it is given a rest")
	shared.err, now = nil, now.Add(6*time.Second)
	again(take(two, post()))
}

// Signatures of official clients may come again for a moment, from the same network.
func TestOfficialSignatures(t *testing.T) {
	t.Parallel()
	now := start
	clock := func() time.Time { return now }
	shared := &memory{}
	one, two := signature.NewGuard(clock, shared), signature.NewGuard(clock, shared)
	here, elsewhere := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("203.0.113.9")
	ctx := t.Context()
	post := func(g *signature.Guard, from netip.Addr) error {
		return g.Take(ctx, read(t, official(t, "POST", "/admin/gql", start), now), from)
	}
	require.NoError(t, post(one, here))
	require.NoError(t, post(one, here), "a browser asks two things in one millisecond")
	require.NoError(t, post(two, here), "at two managers")
	require.ErrorContains(t, post(one, elsewhere), "from another address")
	require.ErrorContains(t, post(two, elsewhere), "from another address")
	now = start.Add(119 * time.Second)
	require.NoError(t, post(one, here))
	now = start.Add(121 * time.Second)
	require.ErrorContains(t, post(one, here), "too long ago")
	third := signature.NewGuard(clock, shared)
	require.ErrorContains(t, post(third, here), "too long ago", "a manager that was started meanwhile")
	require.NoError(t, one.Take(ctx, read(t, official(t, "GET", "/session/x", start), now), elsewhere), "reading")
	v6 := func(g *signature.Guard, from string) error {
		return g.Take(ctx, read(t, official(t, "DELETE", "/session/x", start), now), netip.MustParseAddr(from))
	}
	require.NoError(t, v6(one, "2001:db8::1"))
	require.NoError(t, v6(two, "2001:db8::2"), "a host changes its address inside its network")
	require.ErrorContains(t, v6(two, "2001:db8:0:1::2"), "from another address")
}

// A manager that refused a copy because of what another manager knows does not take the copy for the original when it comes again,
// neither afterwards nor at the same moment, nor when the one who sent it left before the answer.
func TestACopyDoesNotBecomeTheOriginal(t *testing.T) {
	t.Parallel()
	now := start
	clock := func() time.Time { return now }
	here, elsewhere := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("203.0.113.9")
	post := func(ctx context.Context, g *signature.Guard, from netip.Addr) error {
		return g.Take(ctx, read(t, official(t, "POST", "/admin/gql", start), now), from)
	}
	shared := &memory{}
	one, two := signature.NewGuard(clock, shared), signature.NewGuard(clock, shared)
	require.NoError(t, post(t.Context(), one, here))
	for range 3 {
		require.ErrorContains(t, post(t.Context(), two, elsewhere), "from another address")
	}
	require.NoError(t, post(t.Context(), two, here), "its sender may repeat it there")
	now = start.Add(121 * time.Second)
	third := signature.NewGuard(clock, shared)
	for range 3 {
		require.ErrorContains(t, post(t.Context(), third, here), "too long ago")
	}

	now = start
	left, leave := context.WithCancel(t.Context())
	leave()
	fourth := signature.NewGuard(clock, leaving{shared})
	require.ErrorIs(t, post(left, fourth, elsewhere), context.Canceled)
	require.ErrorContains(t, post(t.Context(), fourth, elsewhere), "from another address")

	// While the first copy waits for the answer, a second one comes.
	var fifth *signature.Guard
	fifth = signature.NewGuard(clock, during{shared, func() {
		require.ErrorContains(t, post(t.Context(), fifth, elsewhere), "from another address")
	}, new(bool)})
	require.ErrorContains(t, post(t.Context(), fifth, elsewhere), "from another address")
	asked := shared.asked
	require.ErrorContains(t, post(t.Context(), fifth, elsewhere), "from another address")
	require.NoError(t, post(t.Context(), fifth, here))
	require.Equal(t, asked, shared.asked, "what all agree on is not asked about again")
}

// leaving fails like a client that goes by its context.
type leaving struct{ *memory }

func (l leaving) FirstSight(ctx context.Context, key, value string, life time.Duration) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return l.memory.FirstSight(ctx, key, value, life)
}

// during does something while it is asked for the first time.
type during struct {
	*memory
	then func()
	done *bool
}

func (d during) FirstSight(ctx context.Context, key, value string, life time.Duration) (string, error) {
	if !*d.done {
		*d.done = true
		d.then()
	}
	return d.memory.FirstSight(ctx, key, value, life)
}

// A full memory forgets the oldest, and what is too old to be accepted anyway.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	now := start
	g := signature.NewGuard(func() time.Time { return now }, nil)
	here := netip.MustParseAddr("192.0.2.7")
	s := func(n int, at time.Time) *signature.Signed {
		return read(t, ours(t, "POST", "/session", fmt.Sprintf("%032x", n), "{}", at), now)
	}
	signature.LimitMemory(g, 100)
	first := s(0, now)
	require.NoError(t, g.Take(t.Context(), first, here))
	require.Error(t, g.Take(t.Context(), first, here))
	for n := range 99 {
		require.NoError(t, g.Take(t.Context(), s(n+1, now), here))
	}
	require.Error(t, g.Take(t.Context(), first, here))
	require.NoError(t, g.Take(t.Context(), s(100, now), here))
	require.NoError(t, g.Take(t.Context(), first, here), "there was no room for it")
	require.Equal(t, 100, signature.Remembered(g))
	now = now.Add(16 * time.Minute)
	require.NoError(t, g.Take(t.Context(), s(1000, now), here))
	require.Equal(t, 1, signature.Remembered(g))
}
