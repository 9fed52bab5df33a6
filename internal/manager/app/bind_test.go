package app_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/wire/proxy"
)

// A bound token opens exactly what it was bound to, once; the token that it was made of opens nothing any more.
func TestBoundLaunches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	want := app.Want{App: "jupyter", Arguments: map[string]any{"--x": "1"}}
	l, err := r.Start(ctx, r.alice, r.session, "", want)
	r.must(err)
	req := proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: r.session, App: "jupyter", Protocol: "http", Client: laptop,
		Arguments: `{"--x":"1"}`, Envs: "null", Allowed: "203.0.113.7, 203.0.113.0/24"}
	bound, err := r.Bind(ctx, req)
	r.must(err)
	require.NotEqual(t, l.Token, bound.Token)
	same := req
	same.Arguments, same.Envs, same.Allowed = "{ \"--x\": \"1\" }", "", "203.0.113.0/24,203.0.113.7/32"
	again, err := r.Bind(ctx, same)
	r.must(err)
	require.Equal(t, bound, again, "a browser that asks the same again gets the same")

	changes := map[string]func(*proxy.LaunchRequest){
		"public":    func(q *proxy.LaunchRequest) { q.Public = true },
		"addresses": func(q *proxy.LaunchRequest) { q.Allowed = "" },
		"app":       func(q *proxy.LaunchRequest) { q.App = "web" },
		"app port":  func(q *proxy.LaunchRequest) { q.Port = 9002 },
		"arguments": func(q *proxy.LaunchRequest) { q.Arguments = `{"--x":"2"}` },
		"no args":   func(q *proxy.LaunchRequest) { q.Arguments = "" },
		"envs":      func(q *proxy.LaunchRequest) { q.Envs = `{"A":"1"}` },
		"protocol":  func(q *proxy.LaunchRequest) { q.Protocol = "tcp" },
		"mode":      func(q *proxy.LaunchRequest) { q.Mode = proxy.ModePort },
		"port":      func(q *proxy.LaunchRequest) { q.ProxyPort = 20001 },
		"label":     func(q *proxy.LaunchRequest) { q.Label = "mine" },
		"reuse":     func(q *proxy.LaunchRequest) { q.NoReuse = true },
	}
	for name, change := range changes {
		q := req
		q.Token = bound.Token
		change(&q)
		_, err := r.Launch(ctx, q)
		wantReason(t, err, "launch-changed", name)
		q.Token = l.Token
		if _, err = r.Bind(ctx, q); err == nil {
			t.Errorf("%s: it was bound to something else", name)
		}
		_, err = r.Launch(ctx, q)
		require.Error(t, err, name)
	}
	_, err = r.Launch(ctx, req)
	wantReason(t, err, "launch-used", "the token that was bound")
	_, err = r.Bind(ctx, func() proxy.LaunchRequest { q := req; q.Token = bound.Token; return q }())
	wantReason(t, err, "launch-changed", "a bound token is bound")

	q := req
	q.Token = bound.Token
	got, err := r.Launch(ctx, q)
	r.must(err)
	require.Equal(t, map[string]any{"--x": "1"}, r.runners.last.Arguments)
	_, err = r.Launch(ctx, q)
	wantReason(t, err, "launch-used", "a second time")
	afterwards, err := r.Bind(ctx, req)
	r.must(err)
	require.Equal(t, bound, afterwards)
	q.Token = afterwards.Token
	_, err = r.Launch(ctx, q)
	wantReason(t, err, "launch-used", "asking again makes no further launch")
	// What was launched with it can be closed with it, and with the token of the start.
	r.must(r.Close(ctx, "p", proxy.CloseRequest{Token: l.Token, Session: r.session}))
	require.Nil(t, r.circuit(got.Circuit.ID))

	r.advance(11 * time.Minute)
	_, err = r.Bind(ctx, req)
	wantReason(t, err, "bad-launch-token", "a token that is too old")
}

// Of launches with one token at two managers and several replicas one wins. Its own further tries go on, those of others do not.
func TestOneLaunchAToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	two, err := app.New(r.deps)
	r.must(err)
	req := proxy.LaunchRequest{Proxy: "p", Token: r.token(r.alice, "web"), Session: r.session, App: "web", Mode: proxy.ModePort}
	var all sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		all.Go(func() {
			s, q := r.Service, req
			if i%2 == 0 {
				s = two
			}
			q.Attempt = string(rune('a' + i))
			_, errs[i] = s.Launch(t.Context(), q)
		})
	}
	all.Wait()
	won := -1
	for i, err := range errs {
		if err == nil {
			require.Negative(t, won)
			won = i
			continue
		}
		wantReason(t, err, "launch-used", "the others")
	}
	require.GreaterOrEqual(t, won, 0)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM circuits`))
	req.Passed = []string{"00000000-0000-4000-8000-000000000001"}
	for attempt, ok := range map[string]bool{string(rune('a' + won)): true, "z": false, "": false} {
		req.Attempt = attempt
		_, err := two.Launch(t.Context(), req)
		require.Equal(t, ok, err == nil, "%q: %v", attempt, err)
	}
}

// A launch that failed did not use its token up.
func TestAFailedLaunchCanBeRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := proxy.LaunchRequest{Proxy: "unknown", Token: r.token(r.alice, "web"), Session: r.session, App: "web"}
	_, err := r.Launch(t.Context(), req)
	require.Error(t, err)
	req.Proxy = "p"
	_, err = r.Launch(t.Context(), req)
	r.must(err)
}

// Proxies of version 2 do not name their tries; one that found a port taken tries again.
func TestTriesOfOlderProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := proxy.LaunchRequest{Proxy: "p", Token: r.token(r.alice, "web"), Session: r.session, App: "web", Mode: proxy.ModePort}
	first, err := r.Launch(t.Context(), req)
	r.must(err)
	req.Passed, req.Unopened = []string{first.Circuit.ID}, first.Circuit.ID
	second, err := r.Launch(t.Context(), req)
	r.must(err)
	require.NotEqual(t, first.Circuit.Port, second.Circuit.Port)
	req.Passed, req.Unopened = nil, ""
	_, err = r.Launch(t.Context(), req)
	wantReason(t, err, "launch-used", "another launch")
}
