package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/token"
)

// with sends a request with an API token.
func (s *site) with(secret, method, target, body string) answer {
	s.t.Helper()
	r := s.request(method, target, "application/json", body)
	r.Header.Set("Authorization", "Bearer "+secret)
	return s.send(r)
}

func (s *site) token(body string) credential.NewToken {
	s.t.Helper()
	a := s.call("POST", "/auth/tokens", body)
	require.Equal(s.t, http.StatusCreated, a.status, a.body)
	var t credential.NewToken
	a.into(s.t, &t)
	return t
}

// A token is let in where a signature is, by REST, GraphQL and streams, within its scope; it is kept as a hash, is shown once, and is
// refused at once when it was taken back.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	made := s.token(`{"name":"ci"}`)
	require.True(t, strings.HasPrefix(made.Secret, token.Prefix))
	require.Equal(t, 200, s.with(made.Secret, "GET", "/auth/test", "").status)
	require.Equal(t, "10000", s.with(made.Secret, "GET", "/auth/test", "").header.Get("X-Ratelimit-Limit"))
	actor, err := s.nouns.Tokens.Authenticate(t.Context(), seal.Secret(made.Secret))
	require.NoError(t, err)
	own, err := s.nouns.Tenancy.GetKeypair(t.Context(), actor, "")
	require.NoError(t, err)
	require.Equal(t, s.admin.AccessKey, own.AccessKey)
	require.Empty(t, own.SecretKey, "a token is told a secret key")

	var kept int
	require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM api_tokens t
WHERE t::text LIKE '%' || $1::text || '%' OR token_hash = convert_to($1, 'UTF8')`, made.Secret).Scan(&kept))
	require.Zero(t, kept, "the database holds the token itself")
	var inLog int
	require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM audit_changes WHERE after::text LIKE '%token_hash": "\\x%'`).
		Scan(&inLog))
	require.Zero(t, inLog)
	require.NotContains(t, s.log.String(), made.Secret)
	require.NotContains(t, s.call("GET", "/auth/tokens", "").body, made.Secret)

	// What proves who somebody is cannot be made or changed with a token.
	s.with(made.Secret, "POST", "/auth/tokens", `{"name":"more"}`).problem(t, 403, "generic-forbidden")
	s.with(made.Secret, "DELETE", "/auth/tokens/"+made.ID, "").problem(t, 403, "generic-forbidden")
	s.with(made.Secret, "POST", "/auth/update-password", `{"old_password":"x","new_password":"yyyyyyyyyyyy","new_password2":"yyyyyyyyyyyy"}`).
		problem(t, 403, "generic-forbidden")

	reads := s.token(`{"name":"dashboard","read_only":true}`)
	require.Equal(t, 200, s.with(reads.Secret, "GET", "/folders", "").status)
	s.with(reads.Secret, "POST", "/manager/announcement", `{"enabled":true,"message":"x"}`).problem(t, 403, "generic-forbidden")
	folders := s.token(`{"name":"backup","areas":["folder"]}`)
	require.Equal(t, 200, s.with(folders.Secret, "GET", "/folders", "").status)
	s.with(folders.Secret, "POST", "/manager/announcement", `{"enabled":true,"message":"x"}`).problem(t, 403, "generic-forbidden")

	for _, wrong := range []string{"", "x", made.Secret + "a", made.Secret[:len(made.Secret)-1], token.Prefix + strings.Repeat("A", 43),
		strings.ToUpper(made.Secret)} {
		s.with(wrong, "GET", "/auth/test", "").problem(t, 401, "auth-failed")
	}
	require.Equal(t, 204, s.call("DELETE", "/auth/tokens/"+made.ID, "").status)
	s.with(made.Secret, "GET", "/auth/test", "").problem(t, 401, "auth-failed")
	s.call("DELETE", "/auth/tokens/"+made.ID, "").problem(t, 404, "object-not-found")
	s.call("DELETE", "/auth/tokens/nonsense", "").problem(t, 404, "object-not-found")
}

func TestBadTokenRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, body := range []string{`{}`, `{"name":""}`, `{"name":"` + strings.Repeat("x", 65) + `"}`, `{"name":"a\u0007"}`,
		`{"name":"a","areas":["everything"]}`, `{"name":"a","expires_in":"9000h"}`, `{"name":"a","expires_in":"1s"}`,
		`{"name":"a","expires_in":"-1h"}`} {
		s.call("POST", "/auth/tokens", body).problem(t, 400, "invalid-api-params")
	}
	s.call("POST", "/auth/tokens", `{"name":"a","projects":["none"]}`).problem(t, 404, "object-not-found")
	s.token(`{"name":"a"}`)
	require.Contains(t, s.call("POST", "/auth/tokens", `{"name":"a"}`).problem(t, 400, "generic-bad-request"), "already")
	s.call("POST", "/auth/tokens", `{"name":"b","for":"nobody@x.org"}`).problem(t, 403, "generic-forbidden")
}

// A token ends with its time, its keypair, its user and its address; nobody has more than fifty.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	began := time.Now()
	clock := func() time.Time { return began.Add(time.Duration(late.Load())) }
	s := newSite(t, func(d *nouns.Deps, _ *httpapi.Deps) { d.Clock = clock })
	short := s.token(`{"name":"short","expires_in":"1h"}`)
	long := s.token(`{"name":"long"}`)
	require.Equal(t, 200, s.with(short.Secret, "GET", "/auth/test", "").status)
	late.Store(int64(time.Hour))
	s.with(short.Secret, "GET", "/auth/test", "").problem(t, 401, "auth-failed")
	require.Equal(t, 200, s.with(long.Secret, "GET", "/auth/test", "").status)
	exec := func(sql string, args ...any) {
		_, err := s.store.Pool().Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	key := string(s.admin.AccessKey)
	const ends = "UPDATE api_tokens SET expires_at = now() "
	const byKey, byMain = " WHERE access_key = $1", " WHERE main_access_key = $1"
	for off, on := range map[string]string{
		"UPDATE keypairs SET is_active = false" + byKey:                        "UPDATE keypairs SET is_active = true" + byKey,
		"UPDATE users SET status = 'inactive'" + byMain:                        "UPDATE users SET status = 'active'" + byMain,
		"UPDATE users SET allowed_client_ip = '{10.0.0.0/8}'" + byMain:         "UPDATE users SET allowed_client_ip = NULL" + byMain,
		"UPDATE domains SET is_active = false WHERE $1 <> ''":                  "UPDATE domains SET is_active = true WHERE $1 <> ''",
		ends + "- interval '1h'" + byKey:                                       ends + "+ interval '1d'" + byKey,
		"UPDATE api_tokens SET token_hash = sha256(token_hash || '1')" + byKey: "",
	} {
		exec(off, key)
		s.with(long.Secret, "GET", "/auth/test", "").problem(t, 401, "auth-failed")
		if on == "" {
			long = s.token(`{"name":"again"}`)
			continue
		}
		exec(on, key)
		require.Equal(t, 200, s.with(long.Secret, "GET", "/auth/test", "").status, on)
	}
	for i := range token.MaxPerUser - 3 {
		s.token(fmt.Sprintf(`{"name":"t%d"}`, i))
	}
	require.Equal(t, 412, s.call("POST", "/auth/tokens", `{"name":"one too many"}`).status)
}

// Streams end when the token that they began with is taken back.
func TestStreamsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	made := c.token(`{"name":"watcher"}`)
	dial := func() (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), strings.Replace(c.url, "http", "ws", 1)+"/stream/session/none/pty",
			&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + made.Secret}, "X-Backendai-Version": {"v8.20240915"}}})
	}
	_, resp, err := dial()
	require.Error(t, err)
	require.Equal(t, 404, resp.StatusCode, "the token was not let in")
	require.NoError(t, resp.Body.Close())
	r := c.request("GET", "/events/session?sessionName=*", "", "")
	r.Header.Set("Authorization", "Bearer "+made.Secret)
	open, err := client.Do(r)
	require.NoError(t, err)
	defer open.Body.Close()
	require.Equal(t, 200, open.StatusCode)
	require.Equal(t, 204, c.call("DELETE", "/auth/tokens/"+made.ID, "").status)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1024)
		for {
			if _, err := open.Body.Read(buf); err != nil {
				return
			}
		}
	}()
	managertest.Soon(t, "the stream ends", func() bool {
		httpapi.CheckRights(t.Context(), c.site.api)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// Administrators make service accounts of their domain, and tokens of these; nobody logs in as one by a password.
func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.call("POST", "/auth/service-accounts", `{"name":"backup","project":"default"}`)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var account credential.ServiceAccount
	a.into(t, &account)
	require.Equal(t, "backup@default.service.invalid", account.Email)
	made := s.token(`{"name":"nightly","for":"` + account.Email + `"}`)
	require.Equal(t, account.Email, made.Email)
	who := s.with(made.Secret, "GET", "/auth/tokens", "")
	require.Contains(t, who.body, account.Email)
	s.with(made.Secret, "POST", "/auth/tokens", `{"name":"x"}`).problem(t, 403, "generic-forbidden")

	s.send(s.request("POST", "/auth/authorize", "application/json",
		`{"type":"keypair","domain":"default","username":"`+account.Email+`","password":""}`)).problem(t, 400, "invalid-api-params")
	s.send(s.request("POST", "/auth/authorize", "application/json",
		`{"type":"keypair","domain":"default","username":"`+account.Email+`","password":"x"}`)).problem(t, 401, "auth-failed")
	admin, _, err := s.nouns.Tenancy.Authenticate(t.Context(), s.admin.AccessKey)
	require.NoError(t, err)
	password := seal.Secret("correct horse battery")
	require.ErrorContains(t, s.nouns.Tenancy.ModifyUser(t.Context(), admin, account.Email, tenancy.UserProps{Password: &password}),
		"service account")
	for _, bad := range []string{"", "UPPER", "-x", "a b", strings.Repeat("x", 40), "a@b"} {
		require.Equal(t, 400, s.call("POST", "/auth/service-accounts", `{"name":"`+bad+`"}`).status, bad)
	}
	s.call("POST", "/auth/service-accounts", `{"name":"backup"}`).problem(t, 400, "generic-bad-request")
	s.call("POST", "/auth/service-accounts", `{"name":"other","domain":"none"}`).problem(t, 404, "object-not-found")
}

// oneWindow keeps all requests in one window of a rate: windows begin at every quarter of an hour.
func oneWindow(_ *nouns.Deps, d *httpapi.Deps) {
	began := time.Now()
	d.Clock = func() time.Time { return began }
}

// Strangers have a number of requests of their address; the version probe and logins are not refused for it.
func TestStrangersHaveARate(t *testing.T) {
	t.Parallel()
	s := newSite(t, oneWindow, func(_ *nouns.Deps, d *httpapi.Deps) { d.AnonymousRate = 10 })
	for i := range 10 {
		a := s.send(s.request("GET", "/", "", ""))
		require.Equal(t, 200, a.status)
		require.Equal(t, "10", a.header.Get("X-Ratelimit-Limit"))
		require.Equal(t, fmt.Sprint(9-i), a.header.Get("X-Ratelimit-Remaining"))
		require.Equal(t, "900", a.header.Get("X-Ratelimit-Window"))
	}
	s.send(s.request("GET", "/nowhere", "", "")).problem(t, 429, "rate-limit-exceeded")
	require.Equal(t, 200, s.send(s.request("GET", "/", "", "")).status)
	s.send(s.request("POST", "/auth/authorize", "application/json", `{"username":"x","password":"y"}`)).problem(t, 401, "auth-failed")
	require.Equal(t, 200, s.call("GET", "/auth/test", "").status, "requests with a signature have the rate of their keypair")
}

// Behind a proxy that is trusted the client counts, not the proxy.
func TestStrangersBehindAProxy(t *testing.T) {
	t.Parallel()
	trusted, err := clientaddr.ParseTrusted("manager.trusted_proxies", []string{"127.0.0.1"})
	require.NoError(t, err)
	s := newSite(t, oneWindow, func(_ *nouns.Deps, d *httpapi.Deps) { d.AnonymousRate, d.Trusted = 10, trusted })
	ask := func(from string) answer {
		r := s.request("GET", "/nowhere", "", "")
		r.Header.Set("X-Forwarded-For", from)
		return s.send(r)
	}
	for range 10 {
		ask("203.0.113.7").problem(t, 404, "url-not-found")
	}
	ask("203.0.113.7").problem(t, 429, "rate-limit-exceeded")
	ask("198.51.100.1, 203.0.113.7").problem(t, 429, "rate-limit-exceeded")
	ask("203.0.113.8").problem(t, 404, "url-not-found")
	for range 10 {
		ask("2001:db8::1")
	}
	ask("2001:db8::2").problem(t, 429, "rate-limit-exceeded")
}

// A session of a token has no more than the token: no folders without that area, no project but those of its scope.
func TestSessionsOfTokens(t *testing.T) {
	t.Parallel()
	p := &proxies{}
	c := newCell(t, p.folders())
	c.allowHosts()
	c.made(`{"name":"data"}`)
	c.made(`{"name":".config"}`)
	for _, sql := range []string{
		`INSERT INTO projects (id, name, domain_name, resource_policy)
VALUES ('00000000-0000-4000-8000-00000000000a', 'q', 'default', 'default')`,
		`INSERT INTO project_members SELECT '00000000-0000-4000-8000-00000000000a', user_id FROM keypairs`,
	} {
		_, err := c.store.Pool().Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	create := func(secret, name, project, mounts string) answer {
		return c.with(secret, "POST", "/session", `{"name":"`+name+`","image":"python","group":"`+project+
			`","enqueueOnly":true,"config":{"mounts":[`+mounts+`],"resources":{"cpu":"1","mem":"256m"}}}`)
	}
	mounts := func(name string) (n int) {
		require.NoError(t, c.store.Pool().QueryRow(t.Context(),
			`SELECT count(*) FROM session_mounts m JOIN sessions s ON s.id = m.session_id WHERE s.name = $1`, name).Scan(&n))
		return n
	}
	all := c.token(`{"name":"all"}`)
	sessions := c.token(`{"name":"sessions","areas":["session"]}`)
	made := create(all.Secret, "with-all", "default", `"data"`)
	require.Equal(t, 201, made.status, made.body)
	require.Equal(t, 2, mounts("with-all"), "the folder that was named, and the one that is mounted by itself")
	require.Equal(t, 201, create(sessions.Secret, "with-none", "default", "").status)
	require.Zero(t, mounts("with-none"), "a token without the area of folders mounts one")
	require.Equal(t, 201, create(all.Secret, "with-auto", "default", "").status)
	require.Equal(t, 1, mounts("with-auto"))
	create(sessions.Secret, "with-data", "default", `"data"`).problem(t, 404, "object-not-found")

	one := c.token(`{"name":"one project","projects":["q"]}`)
	create(one.Secret, "elsewhere", "default", "").problem(t, 404, "object-not-found")
	c.with(one.Secret, "GET", "/session/with-all", "").problem(t, 404, "object-not-found")
	c.with(one.Secret, "DELETE", "/session/with-all", "").problem(t, 404, "object-not-found")
	require.Equal(t, 200, c.with(all.Secret, "GET", "/session/with-all", "").status)
	folders := c.with(one.Secret, "GET", "/folders", "")
	require.Equal(t, 200, folders.status)
	require.NotContains(t, folders.body, `"data"`)
}
