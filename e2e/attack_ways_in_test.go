package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// intruder has the keypair of somebody else, and is elsewhere.
type intruder struct {
	t              testing.TB
	endpoint       string
	access, secret string
	client         *http.Client
}

// elsewhere is an address of this machine that stands for a foreign network; users of the story may come from home.
const (
	home      = "127.0.0.1"
	elsewhere = "127.0.0.9"
)

func newIntruder(t *testing.T, env []string, from string) *intruder {
	t.Helper()
	c := newConsole(t, env)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialerFrom(from)
	t.Cleanup(transport.CloseIdleConnections)
	return &intruder{t: t, endpoint: c.endpoint, access: c.access, secret: c.token, client: &http.Client{Transport: transport}}
}

// ask sends a request as an official client signs it; change may alter it afterwards.
func (v *intruder) ask(method, target, body string, change ...func(*http.Request)) (status int, text string, header http.Header) {
	v.t.Helper()
	r, cancel := v.request(method, target, body)
	defer cancel()
	api.SignRequest(r, v.access, v.secret, time.Now())
	return v.send(r, change...)
}

func (v *intruder) request(method, target, body string) (*http.Request, context.CancelFunc) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), patience)
	r, err := http.NewRequestWithContext(ctx, method, v.endpoint+target, strings.NewReader(body))
	require.NoError(v.t, err)
	r.Header.Set("Content-Type", "application/json")
	return r, cancel
}

func (v *intruder) send(r *http.Request, change ...func(*http.Request)) (status int, text string, header http.Header) {
	v.t.Helper()
	for _, c := range change {
		c(r)
	}
	resp, err := v.client.Do(r)
	require.NoError(v.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	require.NoError(v.t, err)
	return resp.StatusCode, string(b), resp.Header
}

// opens begins a stream of events and returns a channel that is closed when it ends.
func (v *intruder) opens() (ended <-chan struct{}) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), "GET", v.endpoint+"/events/session?sessionName=*", nil)
	require.NoError(v.t, err)
	api.SignRequest(r, v.access, v.secret, time.Now())
	resp, err := v.client.Do(r)
	require.NoError(v.t, err)
	require.Equal(v.t, 200, resp.StatusCode)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}()
	return done
}

func value(env []string, name string) string {
	for _, line := range env {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			return v
		}
	}
	return ""
}

// TestAttackWaysIn: somebody who stole a keypair, requests, links and cookies, and who is in a network that the owner may not come
// from, gets in nowhere; what was opened before ends.
func TestAttackWaysIn(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo := p.demo("demo")
	env := p.env()
	owner := newConsole(t, env)
	app := owner.launch(demo, "web", "mode=port")
	stolenCookie := newVisitor(t, elsewhere).enters(app)
	stolenCookie.sees(app.Base)
	row := owner.circuit(demo, app)
	p.must("folder", "create", "data")
	intruder := newIntruder(t, env, elsewhere)
	events := intruder.opens()

	// From now on the owner, who is the administrator, may come from home only.
	p.sql(`UPDATE users SET allowed_client_ip = '{`+home+`}' WHERE email = $1`, value(env, "BERTH_ADMIN_EMAIL"))
	t.Run("a stream that was opened before", func(t *testing.T) { ends(t, events, "it") })

	t.Run("requests and streams", func(t *testing.T) {
		intruder := newIntruder(t, env, elsewhere)
		p.eventually("what was known of the owner's keypair is forgotten", func() bool {
			status, _, _ := intruder.ask("GET", "/auth", "")
			return status == 401
		})
		for _, target := range []string{
			"GET /auth", "POST /admin/gql", "GET /session/demo", "GET /folders", "GET /events/session?sessionName=*", "GET /stream/session/demo/pty",
			"POST /session/" + demo + "/start-service", "DELETE /session/demo", "GET /apps/circuits?session=" + demo,
			"POST /apps/circuits/" + row.ID + "/enter",
			"GET /stream/session/demo/exec?cmd=id", "POST /folders/data/request-download",
		} {
			method, path, _ := strings.Cut(target, " ")
			for _, claims := range []string{"", "X-Forwarded-For", "X-Real-Ip", "Forwarded"} {
				status, text, _ := intruder.ask(method, path, "", func(r *http.Request) {
					if claims != "" {
						r.Header.Set(claims, home)
					}
				})
				require.Equal(t, 401, status, "%s with %s: %s", target, claims, text)
			}
		}
		status, _, _ := newIntruder(t, env, home).ask("GET", "/auth", "")
		require.Equal(t, 200, status, "its owner at home")
	})

	t.Run("login with the password", func(t *testing.T) {
		body, err := json.Marshal(map[string]string{"domain": "default", "username": value(env, "BERTH_ADMIN_EMAIL"),
			"password": value(env, "BERTH_ADMIN_PASSWORD")})
		require.NoError(t, err)
		for from, want := range map[string]int{elsewhere: 401, home: 200} {
			v := newIntruder(t, env, from)
			r, cancel := v.request("POST", "/auth/authorize", string(body))
			status, text, _ := v.send(r, func(r *http.Request) { r.Header.Set("X-Forwarded-For", home) })
			cancel()
			require.Equal(t, want, status, text)
			require.Equal(t, want == 200, strings.Contains(text, "secret_key"), text)
		}
	})

	t.Run("links for transfers", func(t *testing.T) {
		for _, upload := range []bool{false, true} {
			request, body, method := "request-download", `{"path":".","archive":true}`, "GET"
			if upload {
				request, body, method = "request-upload", `{"path":"x","size":5}`, "HEAD"
			}
			var link struct{ Token, URL string }
			owner.into(&link, 200, "POST", "/folders/data/"+request, body)
			for from, want := range map[string]int{elsewhere: 403, home: 200} {
				v := newIntruder(t, env, from)
				r, cancel := v.request("GET", "/", "")
				at, err := url.Parse(link.URL + "?token=" + url.QueryEscape(link.Token))
				require.NoError(t, err)
				r.Method, r.URL, r.Host, r.Body = method, at, at.Host, nil
				status, text, _ := v.send(r, func(r *http.Request) {
					r.Header.Set("X-Forwarded-For", home)
					r.Header.Set("Tus-Resumable", "1.0.0")
				})
				cancel()
				require.Equal(t, want, status, "%s from %s: %s", request, from, text)
			}
		}
	})

	t.Run("cookies, codes and tickets of apps", func(t *testing.T) {
		stolenCookie.t = t
		stolenCookie.eventually("the app proxy has heard of it", func() bool {
			status, _, _ := stolenCookie.get(app.Base + "/headers")
			return status != 200
		})
		stolenCookie.shut(app.Base + "/headers")
		fresh := owner.launch(demo, "web", "mode=port")
		code := newVisitor(t, elsewhere)
		status, _, _ := code.get(fresh.Enter, "X-Forwarded-For: "+home)
		require.NotEqual(t, 200, status, "a code of the owner")
		code.shut(fresh.Base + "/headers")
		mine := newVisitor(t, "").enters(owner.launch(demo, "web", "mode=port"))
		mine.sees(fresh.Base)
		at, err := url.Parse(fresh.Base)
		require.NoError(t, err)
		taken := newVisitor(t, elsewhere)
		taken.client.Jar.SetCookies(at, mine.client.Jar.Cookies(at))
		taken.shut(fresh.Base + "/headers")
		taken.shut(fresh.Base+"/headers", "X-Forwarded-For: "+home)
		mine.sees(fresh.Base)
	})
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

func ends(t *testing.T, ended <-chan struct{}, what string) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		t.Fatalf("%s does not end", what)
	}
}

// TestAttackRequests: captured requests are worth nothing, methods are not overridden, refusals tell nothing, and what a user is told
// of the cluster names no address.
func TestAttackRequests(t *testing.T) {
	t.Parallel()
	p := up(t)
	tenant := newIntruder(t, p.member("tenant"), home)
	other := newIntruder(t, p.member("other"), home)

	t.Run("a captured request of our client", func(t *testing.T) {
		const target, body = "/auth/update-full-name", `{"full_name":"Ada"}`
		date := time.Now()
		captured := func(nonce string, change ...func(*http.Request)) (int, string) {
			r, cancel := tenant.request("POST", target, body)
			defer cancel()
			api.SignStrictly(r, tenant.access, tenant.secret, date, api.Strict{Nonce: strings.Repeat(nonce, 32), Body: api.BodyDigest([]byte(body))})
			status, text, _ := tenant.send(r, change...)
			return status, text
		}
		status, text := captured("1")
		require.Equal(t, 200, status, text)
		status, text = captured("1")
		require.Equal(t, 401, status, "again: %s", text)
		evil := `{"full_name":"Eve"}`
		status, text = captured("2", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(evil)), int64(len(evil))
		})
		require.Equal(t, 401, status, "with another body: %s", text)
		status, text = captured("3", func(r *http.Request) { r.Header.Del(api.HeaderSignature) })
		require.Equal(t, 400, status, "like one of an official client: %s", text)
	})

	t.Run("a captured request of an official client, from elsewhere", func(t *testing.T) {
		date := time.Now()
		send := func(from string) int {
			v := *tenant
			v.t, v.client = t, newIntruder(t, p.env(), from).client
			r, cancel := v.request("POST", "/auth/update-full-name", `{"full_name":"Ada"}`)
			defer cancel()
			api.SignRequest(r, tenant.access, tenant.secret, date)
			status, _, _ := v.send(r)
			return status
		}
		require.Equal(t, 200, send(home))
		require.Equal(t, 401, send(elsewhere))
	})

	t.Run("methods", func(t *testing.T) {
		for _, name := range []string{"X-Method-Override", "X-HTTP-Method-Override", "X-HTTP-Method"} {
			status, text, _ := tenant.ask("GET", "/auth/role", "", func(r *http.Request) { r.Header.Set(name, "DELETE") })
			require.Equal(t, 400, status, "%s: %s", name, text)
			status, text, _ = tenant.ask("POST", "/auth/role", "", func(r *http.Request) { r.Header.Set(name, "GET") })
			require.Equal(t, 400, status, "%s: %s", name, text)
		}
	})

	t.Run("refusals", func(t *testing.T) {
		refused := func(access, secret string) string {
			v := *tenant
			v.t, v.access, v.secret = t, access, secret
			status, text, header := v.ask("GET", "/auth", "")
			require.Equal(t, 401, status, text)
			return strings.ReplaceAll(text, header.Get("X-Backendai-Request-Id"), "")
		}
		want := refused(tenant.access, "wrong")
		require.Equal(t, want, refused("AKIANOBODYNOBODYNOBO", "wrong"), "no such key")
		p.sql(`UPDATE users SET status = 'inactive' WHERE username = 'other'`)
		require.Equal(t, want, refused(other.access, other.secret), "a user who is not active")
		p.sql(`UPDATE users SET status = 'active' WHERE username = 'other'`)
	})

	t.Run("what users are told", func(t *testing.T) {
		status, text, _ := tenant.ask("GET", "/manager/status", "")
		require.Equal(t, 200, status, text)
		require.NotContains(t, text, "127.0.0.1")
		r, cancel := tenant.request("GET", "/manager/status", "")
		defer cancel()
		status, text, _ = tenant.send(r)
		require.Equal(t, 401, status, text)
	})

	t.Run("a revoked key, and a domain that is not active", func(t *testing.T) {
		p.eventually("the user is let in again", func() bool { // refusals are remembered for a moment
			status, _, _ := other.ask("GET", "/auth", "")
			return status == 200
		})
		events := other.opens()
		p.sql(`UPDATE keypairs SET is_active = false WHERE access_key = $1`, other.access)
		ends(t, events, "a stream of a revoked key")
		p.eventually("the key is refused", func() bool {
			status, _, _ := other.ask("GET", "/auth", "")
			return status == 401
		})
		events = tenant.opens()
		p.sql(`UPDATE domains SET is_active = false`)
		ends(t, events, "a stream in a domain that is not active")
		p.sql(`UPDATE domains SET is_active = true`)
	})
	p.clean()
}
