package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

// site is a manager's interface on a database of its own, with its first administrator.
type site struct {
	t     *testing.T
	store *store.Store
	nouns *nouns.Set
	apps  *app.Service
	url   string
	admin tenancy.Credentials
	log   *logbook
	api   *httpapi.API
}

type siteOption func(*nouns.Deps, *httpapi.Deps)

func newSite(t *testing.T, options ...siteOption) *site {
	t.Helper()
	return newSiteOn(t, storetest.New(t), options...)
}

func newSiteOn(t *testing.T, st *store.Store, options ...siteOption) *site {
	t.Helper()
	logs := &logbook{}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), logs), &slog.HandlerOptions{Level: slog.LevelDebug}))
	deps := managertest.Deps(t, st)
	deps.Log = log
	http := httpapi.Deps{Log: log, ActorsTurn: st.ActorsTurn}
	for _, o := range options {
		o(&deps, &http)
	}
	w := managertest.On(t, deps)
	http.Nouns = w.Set
	handler := httpapi.New(http)
	server := httptest.NewUnstartedServer(handler)
	server.Config = httpapi.NewServer(server.Config.Handler, log)
	server.Config.ReadHeaderTimeout = patience // a busy machine is no client that says nothing
	server.Start()
	t.Cleanup(server.Close)
	return &site{t: t, store: st, nouns: w.Set, apps: w.Apps, url: server.URL, admin: w.Creds, log: logs, api: handler}
}

// answer is what a request brought.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) into(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), v), a.body)
}

// problem checks that the answer is a problem document of the given kind and returns its msg.
func (a answer) problem(t *testing.T, status int, slug string) string {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	var p struct{ Type, Title, Msg string }
	a.into(t, &p)
	require.Equal(t, "https://api.backend.ai/probs/"+slug, p.Type, a.body)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Msg)
	return p.Msg
}

// client has connections of its own: a server of httptest that closes takes those of http.DefaultClient away from other tests.
var client = &http.Client{Transport: &http.Transport{}}

func (s *site) send(r *http.Request) answer {
	s.t.Helper()
	resp, err := client.Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (s *site) request(method, target, contentType, body string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+target, strings.NewReader(body))
	require.NoError(s.t, err)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// call sends a signed request with a JSON body, or with an empty text/plain one as official clients do.
func (s *site) call(method, target, body string) answer {
	s.t.Helper()
	contentType := "application/json"
	if body == "" {
		contentType = "text/plain"
	}
	r := s.request(method, target, contentType, body)
	api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
	return s.send(r)
}

func TestVersionProbeNeedsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.send(s.request("GET", "/", "", ""))
	require.Equal(t, 200, a.status)
	require.JSONEq(t, `{"version":"v8.20240915","manager":"24.09.12"}`, a.body)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.Equal(t, "BackendAI", a.header.Get("Server"))
	require.Equal(t, "1000", a.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "900", a.header.Get("X-RateLimit-Window"))
}

func TestEveryErrorIsAProblem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	signed := func(method, target, contentType, body string, change func(*http.Request)) answer {
		r := s.request(method, target, contentType, body)
		api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
		if change != nil {
			change(r)
		}
		return s.send(r)
	}
	for _, c := range []struct {
		name   string
		answer answer
		status int
		slug   string
	}{
		{"unknown path", s.send(s.request("GET", "/nothing/here", "", "")), 404, "url-not-found"},
		{"unclean path", s.send(s.request("GET", "/session//x", "", "")), 404, "url-not-found"},
		{"trailing slash", s.send(s.request("GET", "/session/", "", "")), 404, "url-not-found"},
		{"method", s.send(s.request("DELETE", "/auth/authorize", "", "")), 405, "method-not-allowed"},
		{"strange method", s.send(s.request("BREW", "/auth", "", "")), 405, "method-not-allowed"},
		{"unsigned", s.send(s.request("GET", "/auth", "", "")), 401, "auth-failed"},
		{"malformed authorization", signed("GET", "/auth", "text/plain", "", func(r *http.Request) {
			r.Header.Set("Authorization", "Basic x")
		}), 400, "invalid-auth-params"},
		{"no API token", signed("GET", "/auth", "text/plain", "", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer x")
		}), 401, "auth-failed"},
		{"changed after signing", signed("GET", "/auth", "text/plain", "", func(r *http.Request) {
			r.URL.RawQuery = "echo=1"
		}), 401, "auth-failed"},
		{"other content type", signed("GET", "/auth", "text/plain", "", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
		}), 401, "auth-failed"},
		{"unknown version", signed("GET", "/auth", "text/plain", "", func(r *http.Request) {
			r.Header.Set("X-BackendAI-Version", "v99.20991231")
		}), 400, "generic-bad-request"},
		{"malformed JSON", signed("POST", "/session", "application/json", "{", nil), 400, "invalid-api-params"},
		{"missing fields", signed("POST", "/session", "application/json", "{}", nil), 400, "invalid-api-params"},
		{"unknown session", signed("GET", "/session/no-such-session", "text/plain", "", nil), 404, "object-not-found"},
		{"no websocket", signed("GET", "/stream/session/no-such-session/execute", "text/plain", "", nil), 404, "object-not-found"},
		{"later still signed", s.send(s.request("GET", "/folders", "", "")), 401, "auth-failed"},
		{"oversized", signed("POST", "/session", "application/json", `{"name":"`+strings.Repeat("x", 21<<20)+`"}`, nil), 413,
			"request-too-large"},
		{"unknown task", signed("GET", "/events/background-task?task_id=zzz", "", "", nil), 404, "object-not-found"},
	} {
		t.Run(c.name, func(t *testing.T) { c.answer.problem(t, c.status, c.slug) })
	}
	require.Equal(t, "POST", s.send(s.request("DELETE", "/auth/authorize", "", "")).header.Get("Allow"))
}

func TestSkewedClocksAndWrongKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	at := func(key, secret string, when time.Time) answer {
		r := s.request("GET", "/auth", "text/plain", "")
		api.SignRequest(r, key, secret, when)
		return s.send(r)
	}
	key, secret := string(s.admin.AccessKey), s.admin.SecretKey.Reveal()
	require.Equal(t, 200, at(key, secret, time.Now().Add(14*time.Minute)).status)
	require.Contains(t, at(key, secret, time.Now().Add(16*time.Minute)).problem(t, 400, "invalid-auth-params"), "date/time sync")
	require.Contains(t, at(key, secret, time.Now().Add(-16*time.Minute)).problem(t, 400, "invalid-auth-params"), "clock")
	at(key, "wrong", time.Now()).problem(t, 401, "auth-failed")
	at("AKIAUNKNOWNUNKNOWN00", secret, time.Now()).problem(t, 401, "auth-failed")
}

func TestEveryVersionOfClientsIsAccepted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for v := range strings.FieldsSeq(`v4.20181215 v4.20190115 v4.20190315 v4.20190615 v5.20191215 v6.20200815 v6.20210815
		v6.20220315 v6.20220615 v6.20221201 v6.20230315 v7.20230615 v8.20240315 v8.20240915 v9.20250722`) {
		for _, header := range []string{"X-BackendAI-Version", "X-Sorna-Version"} {
			r := s.request("GET", "/", "", "")
			r.Header.Set(header, v)
			require.Equal(t, 200, s.send(r).status, "%s: %s", header, v)
		}
	}
}

func TestAuthRoutes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, method := range []string{"GET", "POST"} {
		for _, path := range []string{"/auth", "/auth/test"} {
			require.JSONEq(t, `{"authorized":"yes","echo":"hi"}`, s.call(method, path, `{"echo":"hi"}`).body)
		}
	}
	require.JSONEq(t, `{"authorized":"yes","echo":"query"}`, s.call("POST", "/auth?echo=query", `{"echo":"body"}`).body, "the query wins")
	require.JSONEq(t, `{"global_role":"superadmin","domain_role":"admin","group_role":null}`, s.call("GET", "/auth/role", "").body)

	var login struct{ Data map[string]string }
	a := s.send(
		s.request(
			"POST", "/auth/authorize", "application/json",
			`{"type":"keypair","domain":"default","username":"`+tenancy.AdminEmail+`","password":"`+s.admin.Password.Reveal()+`"}`,
		),
	)
	require.Equal(t, 200, a.status, a.body)
	a.into(t, &login)
	require.Equal(t, string(s.admin.AccessKey), login.Data["access_key"])
	require.Equal(t, s.admin.SecretKey.Reveal(), login.Data["secret_key"])
	require.Equal(t, "success", login.Data["response_type"])
	require.NotEmpty(t, login.Data["session_token"])
	s.send(s.request(
		"POST", "/auth/authorize", "application/json", `{"domain":"default","username":"`+tenancy.AdminEmail+`","password":"x"}`,
	)).
		problem(t, 401, "auth-failed")

	mismatch := s.call("POST", "/auth/update-password", `{"old_password":"a","new_password":"b","new_password2":"c"}`)
	require.Equal(t, 400, mismatch.status)
	require.Contains(t, mismatch.body, "error_msg")
	var pair map[string]string
	s.call("PATCH", "/auth/ssh-keypair", "").into(t, &pair)
	require.Contains(t, pair["ssh_private_key"], "PRIVATE KEY")
	require.Contains(t, s.call("GET", "/auth/ssh-keypair", "").body, strings.Fields(pair["ssh_public_key"])[1])
	// Nothing secret reaches the log.
	logged := s.log.with(t, "method=GET path=/auth/ssh-keypair")
	require.NotContains(t, logged, s.admin.SecretKey.Reveal())
	require.NotContains(t, logged, s.admin.Password.Reveal())
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) { d.RateLimiter = fewRequests{} })
	a := s.call("GET", "/auth", "")
	a.problem(t, 429, "rate-limit-exceeded")
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
}

type fewRequests struct{}

func (fewRequests) Take(context.Context, string, int) (int, bool) { return 0, false }

func (fewRequests) Spend(context.Context, string, int, int) bool { return false }

func TestPanicsAreProblems(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) {
		d.GraphQL = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, ok := httpapi.ActorFrom(r.Context()); ok {
				panic("the actor is " + strings.Repeat("here", 1))
			}
		})
	})
	msg := s.call("POST", "/admin/gql", "{}").problem(t, 500, "internal-server-error")
	require.NotContains(t, msg, "here")
	require.Contains(t, s.log.String(), "the actor is here")
}

// A header cannot turn a signed request into another one.
func TestMethodOverrideIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, name := range []string{"X-Method-Override", "X-HTTP-Method-Override", "X-HTTP-Method"} {
		for method, other := range map[string]string{"POST": "GET", "GET": "DELETE", "DELETE": "junk"} {
			r := s.request(method, "/auth/role", "text/plain", "")
			api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
			r.Header.Set(name, other)
			require.Contains(t, s.send(r).problem(t, 400, "generic-bad-request"), "is not accepted", "%s: %s as %s", name, method, other)
		}
	}
	r := s.request("GET", "/auth/role", "text/plain", "")
	api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
	r.Header.Set("X-Method-Override", "GET")
	require.Equal(t, 200, s.send(r).status, "the method that it has anyway")
}

// Who cannot sign learns nothing of keys: the answers for keys that do not exist, are not active, belong to a user or a domain that is
// not active, and for wrong secrets are the same bytes.
func TestRefusalsTellNothingOfKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ask := func(key, secret string) answer {
		r := s.request("GET", "/auth", "text/plain", "")
		api.SignRequest(r, key, secret, time.Now())
		a := s.send(r)
		require.Equal(t, 401, a.status, a.body)
		a.body = strings.ReplaceAll(a.body, a.header.Get("X-Backendai-Request-Id"), "<request>")
		a.header.Del("Date")
		a.header.Del("X-Backendai-Request-Id")
		return a
	}
	sql := func(text string) {
		_, err := s.store.Pool().Exec(t.Context(), text)
		require.NoError(t, err)
	}
	key, secret := string(s.admin.AccessKey), s.admin.SecretKey.Reveal()
	want := ask(key, "wrong")
	for range 2 { // the second one may be answered from memory
		require.Equal(t, want, ask("AKIAUNKNOWNUNKNOWN00", secret), "unknown key")
		require.Equal(t, want, ask(strings.Repeat("A", 100), secret), "no key at all")
	}
	for what, change := range map[string][2]string{
		"inactive key":    {`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET is_active = true`},
		"inactive user":   {`UPDATE users SET status = 'inactive'`, `UPDATE users SET status = 'active'`},
		"inactive domain": {`UPDATE domains SET is_active = false`, `UPDATE domains SET is_active = true`},
	} {
		sql(change[0])
		for range 2 {
			require.Equal(t, want, ask(key, secret), what)
			require.Equal(t, want, ask(key, "wrong"), what)
		}
		sql(change[1])
		require.Equal(t, 200, s.call("GET", "/auth", "").status, "%s is over", what)
	}
}

// Users are told no names and addresses of hosts.
func TestStatusForUsers(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) { d.Info.NodeID = "host-7" })
	admin := s.call("GET", "/manager/status", "")
	require.Contains(t, admin.body, "host-7")
	require.Contains(t, admin.body, strings.TrimPrefix(s.url, "http://"))
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE users SET role = 'user'`)
	require.NoError(t, err)
	a := s.call("GET", "/manager/status", "")
	require.Equal(t, 200, a.status)
	require.NotContains(t, a.body, "host-7")
	require.NotContains(t, a.body, "127.0.0.1")
	require.Contains(t, a.body, `"running"`)
	require.Equal(t, 401, s.send(s.request("GET", "/manager/status", "", "")).status)
}

func TestStopEndsStreamsWithAWord(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	begun, answers := make(chan struct{}), make(chan answer, 1)
	go func() {
		r := s.request("GET", "/events/session?sessionName=*", "", "")
		api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
		resp, err := client.Do(r)
		close(begun)
		if err != nil {
			answers <- answer{}
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answers <- answer{status: resp.StatusCode, body: string(b)}
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, s.api.Stop(ctx))
	require.Equal(t, 200, (<-answers).status)
	s.call("GET", "/events/session?sessionName=*", "").problem(t, 503, "service-unavailable")
	require.Equal(t, 200, s.call("GET", "/auth", "").status, "short requests go on")
}
