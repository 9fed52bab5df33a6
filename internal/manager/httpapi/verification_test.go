package httpapi_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/tenancy"
)

// Every answer, good or bad, has the fields that keep browsers from guessing its type and from telling others its address. What came by
// TLS tells browsers to come by TLS from then on, where the operator has a certificate that they trust.
func TestHeadersOfEveryAnswer(t *testing.T) {
	t.Parallel()
	for _, hsts := range []bool{true, false} {
		s := newSite(t, func(_ *nouns.Deps, d *httpapi.Deps) { d.HSTS = hsts })
		for status, answers := range map[int][]answer{
			200: {s.call("GET", "/auth", ""), s.send(s.request("GET", "/", "", ""))},
			400: {s.call("POST", "/auth/authorize", `{`)},
			401: {s.send(s.request("GET", "/auth", "", "")), s.send(s.request("GET", "/events/session?sessionName=*", "", ""))},
			404: {s.call("GET", "/nonsense", ""), s.call("GET", "/session/none", "")},
		} {
			for _, a := range answers {
				require.Equal(t, status, a.status, a.body)
				require.Equal(t, []string{"nosniff"}, a.header.Values("X-Content-Type-Options"))
				require.Equal(t, []string{"no-referrer"}, a.header.Values("Referrer-Policy"))
				require.Empty(t, a.header.Get("Strict-Transport-Security"), "plain HTTP")
			}
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.TLS = &tls.ConnectionState{}
		w := httptest.NewRecorder()
		s.api.ServeHTTP(w, r)
		want := map[bool]string{true: "max-age=31536000"}[hsts]
		require.Equal(t, want, w.Header().Get("Strict-Transport-Security"))
	}
}

// Passwords are taken as they are: eight characters and more, 64 and more, of any kind; no other case, no cut or trimmed one.
func TestPasswordsAreTakenAsTheyAre(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	now := s.admin.Password.Reveal()
	change := func(to string) answer {
		return s.call("POST", "/auth/update-password", jsonOf(map[string]string{"old_password": now, "new_password": to, "new_password2": to}))
	}
	login := func(password string) int {
		return s.send(s.request("POST", "/auth/authorize", "application/json",
			jsonOf(map[string]string{"domain": "default", "username": tenancy.AdminEmail, "password": password}))).status
	}
	require.Contains(t, change("sevench").problem(t, 400, "invalid-api-params"), "too short")
	require.Equal(t, 200, login(now), "it is the old one still")
	long := strings.Repeat("aB3 ", 15) + "Zähl: ✓ " // 68 characters, more bytes, a space at the end
	for _, fine := range []string{"eight ch", long} {
		require.Equal(t, 200, change(fine).status, fine)
		now = fine
	}
	require.Equal(t, 200, login(long))
	for what, wrong := range map[string]string{"other case": strings.ToLower(long), "trimmed": strings.TrimSpace(long), "cut": long[:64]} {
		require.Equal(t, 401, login(wrong), what)
	}
}

// A right password from an address that its user may not come from is answered like a wrong one, and counts like it.
func TestAPasswordElsewhereIsAWrongOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE users SET allowed_client_ip = '{10.0.0.0/8}'`)
	require.NoError(t, err)
	login := func(password string) answer {
		return s.send(s.request("POST", "/auth/authorize", "application/json",
			jsonOf(map[string]string{"domain": "default", "username": tenancy.AdminEmail, "password": password})))
	}
	right, wrong := login(s.admin.Password.Reveal()), login("wrong password")
	right.problem(t, 401, "auth-failed")
	same := func(body string) string {
		return regexp.MustCompile(`"request_id":"[0-9a-f]+"`).ReplaceAllString(body, "")
	}
	require.Equal(t, same(wrong.body), same(right.body))
	for _, h := range []http.Header{right.header, wrong.header} {
		h.Del("Date")
		h.Del("X-Backendai-Request-Id")
		h.Del("X-Ratelimit-Remaining")
	}
	require.Equal(t, wrong.header, right.header)
	s.log.with(t, "came from an address that the user may not come from") // the operator is told
}

func jsonOf(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// The log says who did what, when and from where, also of what was refused; and nobody writes lines of their own into it.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.call("POST", "/auth/update-full-name", `{"full_name":"A"}`)
	s.call("GET", "/session/not-mine", "")
	r := s.request("GET", "/auth", "", "")
	api.SignRequest(r, string(s.admin.AccessKey), "wrong", time.Now())
	s.send(r)
	evil := "/session/x%0atime=2026-01-01T00:00:00.000Z%20level=ERROR%20msg=forged%20key=root"
	s.call("GET", evil, "")
	lines := map[string]string{}
	for line := range strings.Lines(s.log.with(t, "forged")) {
		fields := strings.Fields(line)
		require.NotEmpty(t, fields)
		stamp, ok := strings.CutPrefix(fields[0], "time=")
		require.True(t, ok, "a line of its own: %q", line)
		at, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(t, err, line)
		require.WithinDuration(t, time.Now(), at, time.Hour, "forged: %q", line)
		if strings.Contains(line, "msg=request") {
			for _, path := range []string{"/auth/update-full-name", "/session/not-mine", "path=/auth ", "forged"} {
				if strings.Contains(line, path) {
					lines[path] += line
				}
			}
		}
	}
	key := "key=" + string(s.admin.AccessKey)
	for path, words := range map[string][]string{
		"/auth/update-full-name": {"method=POST", "status=200", key, "from=127.0.0.1"},
		"/session/not-mine":      {"method=GET", "status=404", key, "from=127.0.0.1"},
		"path=/auth ":            {"status=401", "from=127.0.0.1"},
		"forged":                 {`\n`, key, "from=127.0.0.1"},
	} {
		for _, word := range words {
			require.Contains(t, lines[path], word, path)
		}
	}
}

// Users hear how many sessions they have, not how many the cluster has.
func TestUsersHearOfTheirOwnSessions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	for _, stmt := range []string{
		`INSERT INTO users (id, username, email, domain_name, resource_policy, role) VALUES
			('00000000-0000-4000-8000-0000000000aa', 'o', 'o@x', 'default', 'default', 'user')`,
		`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy)
			SELECT 'AKIAO', secret_sealed, '00000000-0000-4000-8000-0000000000aa', 'default' FROM keypairs LIMIT 1`,
		`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
			SELECT gen_random_uuid(), 'n' || i, 'interactive', 'default', p.id, '00000000-0000-4000-8000-0000000000aa', 'AKIAO', 'default', 'i',
			'SCHEDULED', '{}' FROM generate_series(1, 3) AS i, (SELECT id FROM projects LIMIT 1) AS p`,
	} {
		_, err := s.store.Pool().Exec(ctx, stmt)
		require.NoError(t, err)
	}
	count := func() int {
		var st api.ManagerStatus
		s.call("GET", "/manager/status", "").into(t, &st)
		require.Equal(t, st.ActiveSessions, st.Nodes[0].ActiveSessions)
		return st.ActiveSessions
	}
	require.Equal(t, 3, count(), "an administrator")
	_, err := s.store.Pool().Exec(ctx, `UPDATE users SET role = 'user'`)
	require.NoError(t, err)
	require.Zero(t, count(), "a user without sessions")
}
