package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// appNode is an agent with apps: web answers in capitals and ends when its visitor says bye, stuck takes nothing, broken does not start.
type appNode struct{}

func (appNode) RoundTrip(_ cluster.AgentID, req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	known := map[string]run.App{
		"web": {
			AppPort: run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{9001}}, Origin: run.AppDeclared, State: run.AppReady,
			URLTemplate: "{url}/x", AllowedArguments: []string{"--a"},
		},
		"silent": {
			AppPort: run.AppPort{Name: "silent", Protocol: run.AppTCP, Ports: []int{9002}}, Origin: run.AppNoticed, State: run.AppReady,
			Detail: "nobody knows",
		},
	}
	name, verb, _ := strings.Cut(strings.TrimPrefix(req.URL.Path[strings.Index(req.URL.Path, "/v1/apps"):], "/v1/apps/"), "/")
	a, ok := known[name]
	switch {
	case strings.HasSuffix(req.URL.Path, "/v1/apps"):
		_ = json.NewEncoder(rec).Encode(run.AppList{Apps: []run.App{known["web"], known["silent"]}})
	case name == "broken":
		run.WriteFailure(rec, fault.New(fault.Internal, "broken ended with exit code 3"))
	case !ok:
		run.WriteFailure(rec, fault.NotFoundf("there is no app %s", name))
	case verb == "stop":
		_ = json.NewEncoder(rec).Encode(a)
	default:
		_ = json.NewEncoder(rec).Encode(run.AppStartResult{App: a, Port: a.Ports[0]})
	}
	return rec.Result(), nil
}

func (appNode) Upgrade(_ context.Context, _ cluster.AgentID, path string, _ http.Header) (io.ReadWriteCloser, error) {
	if !strings.HasSuffix(path, "/ports/9001") {
		return nil, fault.Unavailablef("nothing listens there")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		b := make([]byte, 1024)
		for {
			n, err := theirs.Read(b)
			if err != nil || string(b[:n]) == "bye" {
				return
			}
			_, _ = theirs.Write([]byte(strings.ToUpper(string(b[:n]))))
		}
	}()
	return ours, nil
}

// appSite has a running session "lab" of the administrator, and an app proxy "p".
func appSite(t *testing.T) *site {
	t.Helper()
	// An app proxy counts as there for half a minute after it was seen: every look at the clock is a millisecond, however long it takes.
	began, looks := time.Now(), new(atomic.Int64)
	s := newSite(t, func(d *nouns.Deps, _ *httpapi.Deps) {
		d.Streams, d.Clock = appNode{}, func() time.Time {
			return began.Add(time.Duration(looks.Add(1)) * time.Millisecond)
		}
	})
	id := uuid.NewString()
	for _, q := range []string{
		`INSERT INTO agents (id, status, resource_group) VALUES ('a1', 'ALIVE', 'default') ON CONFLICT DO NOTHING`,
		`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
			SELECT '` + id + `', 'lab', 'interactive', 'default', (SELECT id FROM projects LIMIT 1), k.user_id, k.access_key, ` +
			`'default', 'img', 'RUNNING', '{}' FROM keypairs k LIMIT 1`,
		`INSERT INTO kernels (id, session_id, image, architecture, agent_id, status, requested_slots) VALUES ('` + uuid.NewString() + `',
			'` + id + `', 'img', 'x86_64', 'a1', 'RUNNING', '{}')`,
	} {
		_, err := s.store.Pool().Exec(t.Context(), q)
		require.NoError(t, err)
	}
	return s
}

func (s *site) proxy() {
	s.t.Helper()
	require.NoError(
		s.t,
		s.apps.See(
			s.t.Context(), "p",
			proxy.Instance{Node: "n", URL: "https://apps.example.org", Domain: "apps.example.org", DomainURL: "https://apps.example.org"},
		),
	)
}

func TestApps(t *testing.T) {
	t.Parallel()
	s := appSite(t)
	var list []map[string]any
	s.call("GET", "/stream/session/lab/apps", "").into(t, &list)
	require.Equal(t, []map[string]any{
		{
			"name": "web", "protocol": "http", "ports": []any{9001.0}, "url_template": "{url}/x", "allowed_arguments": []any{"--a"},
			"state": "ready", "origin": "declared",
		},
		{"name": "silent", "protocol": "tcp", "ports": []any{9002.0}, "state": "ready", "origin": "noticed", "detail": "nobody knows"},
	}, list)
	require.JSONEq(t, `{"wsproxy_version":"v2"}`, s.call("GET", "/scaling-groups/default/wsproxy-version?group=x", "").body)
	s.call("GET", "/scaling-groups/nowhere/wsproxy-version", "").problem(t, 404, "object-not-found")

	require.Contains(
		t, s.call("POST", "/session/lab/start-service", `{"app":"web"}`).problem(t, 503, "service-unavailable"),
		"no app proxy is connected",
	)
	require.Contains(t, s.call("POST", "/session/lab/tickets", `{"app":"web"}`).body, `"error_code":"no-app-proxy"`)
	s.proxy()
	var started struct{ Token, Wsproxy_addr string }
	s.call("POST", "/session/lab/start-service", `{"login_session_token":"x","app":"web","envs":{},"arguments":"null"}`).into(t, &started)
	require.Equal(t, "https://apps.example.org", started.Wsproxy_addr)
	require.NotEmpty(t, started.Token)
	s.call("POST", "/session/lab/start-service", `{}`).problem(t, 400, "invalid-api-params")
	s.call("POST", "/session/lab/start-service", `{"app":"web","arguments":"{"}`).problem(t, 400, "invalid-api-params")
	s.call("POST", "/session/lab/start-service", `{"app":"nope"}`).problem(t, 404, "object-not-found")
	require.Contains(
		t, s.call("POST", "/session/lab/start-service", `{"app":"broken"}`).problem(t, 500, "kernel-execution-failed"), "exit code 3",
	)
	s.call("POST", "/session/nope/start-service", `{"app":"web"}`).problem(t, 404, "object-not-found")

	var session string
	require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT id FROM sessions`).Scan(&session))
	reply, err := s.apps.Launch(
		t.Context(),
		proxy.LaunchRequest{Proxy: "p", Token: started.Token, Session: session, App: "web", Client: netip.MustParseAddr("127.0.0.1")},
	)
	require.NoError(t, err)
	var circuits []api.Circuit
	s.call("GET", "/apps/circuits?session=lab", "").into(t, &circuits)
	require.Len(t, circuits, 1)
	c := circuits[0]
	require.Equal(
		t, []any{reply.Circuit.ID, "web", "http", session, "lab", "subdomain", reply.URL, false},
		[]any{c.ID, c.App, c.Protocol, c.SessionID, c.SessionName, c.Mode, c.URL, c.Public},
	)
	at := "/apps/circuits/" + c.ID
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	var changed api.Circuit
	s.call("PATCH", at, `{"public":true,"allowed_client_ips":["10.0.0.1"],"expires_at":"`+end.Format(time.RFC3339)+`"}`).into(t, &changed)
	require.Equal(t, []any{true, []string{"10.0.0.1/32"}, end}, []any{changed.Public, changed.Allowed, changed.ExpiresAt.UTC()})
	s.call("PATCH", at, `{"expires_at":"","allowed_client_ips":[]}`).into(t, &changed)
	require.Equal(t, []any{true, []string{}}, []any{changed.Public, changed.Allowed})
	require.Contains(t, s.call("GET", "/apps/circuits", "").body, `"expires_at":null`)
	for _, bad := range []string{`{}`, `{"expires_at":"tomorrow"}`, `{"public":"perhaps"}`, `{"shared_users":["nobody@example.org"]}`} {
		s.call("PATCH", at, bad).problem(t, 400, "invalid-api-params")
	}
	var entry struct{ URL, Ticket, Circuit string }
	s.call("POST", at+"/enter", "").into(t, &entry)
	u, err := url.Parse(entry.URL)
	require.NoError(t, err)
	_, err = s.apps.Redeem(t.Context(), "p", proxy.RedeemRequest{Circuit: c.ID, Code: u.Query().Get("token")})
	require.NoError(t, err)
	var ticket struct{ URL, Circuit, Ticket string }
	s.call("POST", "/session/lab/tickets", `{"app":"web"}`).into(t, &ticket)
	require.Equal(t, []any{"https://apps.example.org", c.ID}, []any{ticket.URL, ticket.Circuit})
	s.call("POST", "/session/lab/tickets", `{"port":70000}`).problem(t, 400, "invalid-api-params")
	require.Equal(t, 204, s.call("DELETE", at, "").status)
	s.call("DELETE", at, "").problem(t, 404, "object-not-found")
	require.Equal(t, 204, s.call("POST", "/session/lab/shutdown-service", `{"service_name":"web"}`).status)
	s.call("POST", "/session/lab/shutdown-service", `{}`).problem(t, 400, "invalid-api-params")
}

// open connects as official clients do.
func (s *site) open(target string) (*websocket.Conn, *http.Response, error) {
	s.t.Helper()
	r := s.request("GET", target, "text/plain", "")
	api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
	return websocket.Dial(s.t.Context(), s.url+target, &websocket.DialOptions{HTTPHeader: r.Header})
}

// TestTunnel: bytes both ways in binary messages, and the wire's close codes.
func TestTunnel(t *testing.T) {
	t.Parallel()
	s := appSite(t)
	for _, target := range []string{
		"/stream/session/lab/tcpproxy?app=web", "/stream/kernel/lab/httpproxy?service=web", "/stream/session/lab/tcpproxy?app=&port=9001",
	} {
		conn, _, err := s.open(target)
		require.NoError(t, err, target)
		for _, text := range []string{"hello", strings.Repeat("x", 1000)} {
			require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte(text)))
			got := ""
			for len(got) < len(text) {
				kind, b, err := conn.Read(t.Context())
				require.NoError(t, err)
				require.Equal(t, websocket.MessageBinary, kind)
				got += string(b)
			}
			require.Equal(t, strings.ToUpper(text), got)
		}
		require.NoError(t, conn.Write(t.Context(), websocket.MessageBinary, []byte("bye")))
		_, _, err = conn.Read(t.Context())
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
	}
	conn, _, err := s.open("/stream/session/lab/tcpproxy?app=silent")
	require.NoError(t, err)
	_, _, err = conn.Read(t.Context())
	require.Equal(t, websocket.StatusTryAgainLater, websocket.CloseStatus(err), "%v", err)

	for target, status := range map[string]int{
		"/stream/session/lab/tcpproxy?app=nope": 404, "/stream/session/lab/tcpproxy?app=broken": 500, "/stream/session/lab/tcpproxy": 400,
		"/stream/session/nope/tcpproxy?app=web": 404, "/stream/session/lab/tcpproxy?app=web&envs=x": 400,
	} {
		_, resp, err := s.open(target)
		require.Error(t, err)
		require.Equal(t, status, resp.StatusCode, target)
	}
	s.call("GET", "/stream/session/lab/tcpproxy?app=web", "").problem(t, 400, "generic-bad-request")

	// A client that leaves, and a manager that stops.
	conn, _, err = s.open("/stream/session/lab/tcpproxy?app=web")
	require.NoError(t, err)
	_ = conn.Close(websocket.StatusNormalClosure, "") // it waits five seconds for the answer, and a machine may be busier
	conn, _, err = s.open("/stream/session/lab/tcpproxy?app=web")
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- s.api.Stop(context.WithoutCancel(t.Context())) }()
	_, _, err = conn.Read(t.Context())
	require.Equal(t, websocket.StatusServiceRestart, websocket.CloseStatus(err), "%v", err)
	require.NoError(t, <-stopped)
}
