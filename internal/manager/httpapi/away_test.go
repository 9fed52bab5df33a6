package httpapi_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// exposed is a cell with GraphQL whose database the test may take away. Callers stay known for good, so that requests fail where they do
// their work and not where their sender is looked up.
type exposed struct {
	*cell
	relay  *storetest.Relay
	direct *store.Store
}

func newExposed(t *testing.T) *exposed {
	t.Helper()
	dsn := storetest.DSN(t)
	e := &exposed{relay: storetest.NewRelay(t, dsn), direct: storetest.Open(t, dsn)}
	began := time.Now()
	var graph http.Handler
	e.cell = newCellOn(t, storetest.OpenWith(t, store.Config{DSN: e.relay.DSN(), Patience: time.Millisecond}),
		func(n *nouns.Deps, h *httpapi.Deps) {
			n.Clock = func() time.Time { return began }
			h.GraphQL = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { graph.ServeHTTP(w, r) })
		})
	graph = graphapi.New(graphapi.Deps{Nouns: e.site.nouns, Actor: httpapi.ActorFrom, Fail: httpapi.Fail, Log: slog.New(slog.DiscardHandler)})
	return e
}

// away asserts that an answer says that the database is away, and when to come again.
func away(t *testing.T, what string, status int, header http.Header, body string) {
	t.Helper()
	require.Equal(t, http.StatusServiceUnavailable, status, "%s: %s", what, body)
	require.Equal(t, "2", header.Get("Retry-After"), what)
	require.Equal(t, "application/problem+json", header.Get("Content-Type"), what)
	var p api.Problem
	require.NoError(t, json.Unmarshal([]byte(body), &p), "%s: %s", what, body)
	require.Equal(t, "service-unavailable", p.Slug(), what)
	require.Contains(t, []string{p.Code, p.OwnCode}, fault.DatabaseAway, what)
	require.NotEmpty(t, p.Msg, what)
	require.NotEmpty(t, p.Next, what)
}

// ways are requests of every kind. The first part needs the database to read, the second one to write.
func ways() (reads, writes map[string][2]string) {
	gql := func(q string) string {
		raw, _ := json.Marshal(map[string]string{"query": q})
		return string(raw)
	}
	reads = map[string][2]string{
		"one object":        {"GET /session/here", ""},
		"a list":            {"GET /folders", ""},
		"a query":           {"POST /admin/gql", gql(`{ compute_session_list(limit: 5, offset: 0) { items { id } total_count } }`)},
		"a bare query":      {"POST /admin/graphql", gql(`{ agent_list(limit: 5, offset: 0) { items { id } total_count } }`)},
		"events":            {"GET /events/session?sessionName=here", ""},
		"events of a task":  {"GET /events/background-task?task_id=00000000-0000-4000-8000-000000000000", ""},
		"a terminal":        {"GET /stream/session/here/pty", ""},
		"code":              {"GET /stream/session/here/execute", ""},
		"a command":         {"GET /stream/session/here/exec?cmd=true", ""},
		"bytes of an app":   {"GET /stream/session/here/tcpproxy?app=web", ""},
		"a wait":            {"GET /session/here/wait", ""},
		"the cluster's own": {"GET /manager/announcement", ""},
	}
	writes = map[string][2]string{
		"a session":   {"POST /session", `{"name":"new-one","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":1,"mem":"256m"}}}`},
		"an end":      {"DELETE /session/here?forced=true", ""},
		"a name":      {"POST /session/here/rename?name=other-name", ""},
		"a mutation":  {"POST /admin/gql", gql(`mutation { modify_domain(name: "default", props: {allowed_vfolder_hosts: "{}"}) { ok msg } }`)},
		"a keypair":   {"PATCH /auth/ssh-keypair", ""},
		"words":       {"POST /manager/announcement", `{"enabled":true,"message":"hi"}`},
		"a dotfile":   {"POST /user-config/dotfiles?path=.vimrc&permission=644", `{"data":"set nu"}`},
		"use, longer": {"POST /session/here/keep-alive", `{"for":"2h","reason":"demo"}`},
	}
	return reads, writes
}

// asks sends a request; what is a WebSocket elsewhere is asked for as one.
func (e *exposed) asks(request, body string) (status int, header http.Header, text string) {
	e.t.Helper()
	method, target, _ := strings.Cut(request, " ")
	if !strings.HasPrefix(target, "/stream/") {
		a := e.call(method, target, body)
		return a.status, a.header, a.body
	}
	r, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.url+target, nil)
	require.NoError(e.t, err)
	api.SignRequest(r, string(e.site.admin.AccessKey), e.site.admin.SecretKey.Reveal(), time.Now())
	conn, resp, err := websocket.Dial(e.t.Context(), e.url+target, &websocket.DialOptions{HTTPHeader: r.Header})
	if err == nil {
		_ = conn.CloseNow()
	}
	require.NotNil(e.t, resp, "%s: %v", target, err)
	raw := make([]byte, 4<<10)
	n, _ := resp.Body.Read(raw) // the library keeps the first KiB of it
	return resp.StatusCode, resp.Header, string(raw[:n])
}

// TestEveryWaySaysThatTheDatabaseIsAway: requests, GraphQL and streams answer 503 with Retry-After while PostgreSQL is away, changes also
// while it takes no writes, and all of them work when it is back.
func TestEveryWaySaysThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	e := newExposed(t)
	require.Equal(t, 201, e.call("POST", "/session",
		`{"name":"here","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":1,"mem":"256m"}}}`).status)
	e.begin("here")
	reads, writes := ways()
	login, err := json.Marshal(map[string]string{"type": "keypair", "domain": "default", "username": string(e.site.admin.Email),
		"password": e.site.admin.Password.Reveal()})
	require.NoError(t, err)

	e.relay.Refuse(true)
	for name, w := range reads {
		status, header, body := e.asks(w[0], w[1])
		away(t, name, status, header, body)
	}
	for name, w := range writes {
		status, header, body := e.asks(w[0], w[1])
		away(t, name, status, header, body)
	}
	a := e.send(e.request("POST", "/auth/authorize", "application/json", string(login)))
	away(t, "a login", a.status, a.header, a.body)
	require.Equal(t, 200, e.send(e.request("GET", "/", "", "")).status, "who it is needs no database")
	e.relay.Refuse(false)

	// Read-only: a standby, after a failover.
	var database string
	require.NoError(t, e.direct.Pool().QueryRow(t.Context(), "SELECT current_database()").Scan(&database))
	readOnly := func(on string) {
		_, err := e.direct.Pool().Exec(t.Context(), "ALTER DATABASE "+database+" SET default_transaction_read_only = "+on)
		require.NoError(t, err)
		e.relay.Refuse(true)   // a failover breaks all connections
		e.store.Pool().Reset() // and nobody meets a broken one later
		e.relay.Refuse(false)
		require.Eventually(t, func() bool { return e.call("GET", "/session/here", "").status == 200 }, patience, 5*time.Millisecond)
	}
	readOnly("on")
	for name, w := range writes {
		status, header, body := e.asks(w[0], w[1])
		away(t, name, status, header, body)
		require.Contains(t, body, "takes no writes", name)
	}
	for name, w := range reads {
		if name == "events" || name == "a terminal" || name == "code" || name == "a command" || name == "bytes of an app" {
			continue // they would last
		}
		status, _, body := e.asks(w[0], w[1])
		require.Less(t, status, 500, "%s: %s", name, body)
	}
	readOnly("off")
	for name, w := range writes {
		if name != "an end" && name != "a name" { // the others need the session
			status, _, body := e.asks(w[0], w[1])
			require.Less(t, status, 300, "%s: %s", name, body)
		}
	}
}

// TestNoRequestFailsOtherwiseWithoutTheDatabase sends all requests whose answers are recorded. None of them is answered 500 while
// PostgreSQL is away or takes no writes, and none says that something is not there.
func TestNoRequestFailsOtherwiseWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	e := newExposed(t)
	var all []recorded
	files, err := filepath.Glob(filepath.Join("testdata", "answers", "*.json"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var list []recorded
		require.NoError(t, json.Unmarshal(text, &list), file)
		all = append(all, list...)
	}
	sweep := func(judge func(what string, was int, a answer)) {
		t.Helper()
		for _, r := range all {
			method, rest, _ := strings.Cut(r.Request, " ")
			target, body, _ := strings.Cut(rest, " ")
			if strings.HasPrefix(body, "(") || method == "WebSocket" || method == "event" || !strings.HasPrefix(target, "/") {
				continue
			}
			fill := strings.NewReplacer("<uuid>", "00000000-0000-4000-8000-000000000001", "<access key>", "AKIA0000000000000000",
				"<hex>", "00000000000040008000000000000001", "<time>", "2026-01-02T03:04:05Z", "<address>", "127.0.0.1:1")
			judge(r.Request, r.Status, e.call(method, fill.Replace(target), fill.Replace(body)))
		}
	}
	e.call("GET", "/auth", "") // the caller is known from now on
	e.relay.Refuse(true)
	count := 0
	sweep(func(what string, was int, a answer) {
		switch {
		case a.status == was: // a refusal that needs no database to be known
			require.True(t, was >= 400 || slices.Contains(needNoDatabase, pathOf(what)), "%s: %s", what, a.body)
		case strings.Contains(a.body, "scheduler's mind"): // there is no scheduler in this test
		case a.status == http.StatusServiceUnavailable:
			away(t, what, a.status, a.header, a.body)
			count++
		default:
			require.Less(t, a.status, 500, "%s: %s", what, a.body)
			require.True(t, a.status >= 400 || slices.Contains(needNoDatabase, pathOf(what)), "%s: %s", what, a.body)
			if !strings.Contains(a.body, "No such folder host") { // etcd says which there are
				require.NotContains(t, a.body, "object-not-found", "%s: nobody can know that", what)
			}
		}
	})
	t.Logf("%d requests say that the database is away", count)
	require.Greater(t, count, 100)
}

// needNoDatabase are the paths that are answered without one: what is known of the caller, logins, which are in Redis or memory, and what
// never changes.
var needNoDatabase = []string{"/acl", "/auth", "/auth/my-ip", "/auth/oidc", "/auth/role", "/config/docker-registries",
	"/config/scheduling-policies", "/auth/logins", "/auth/logins/all", "/auth/logout", "/config/vfolder-types", "/folders/_/allowed-types",
	"/folders/_/mounts", "/tenancy/apply"}

func pathOf(request string) string {
	path, _, _ := strings.Cut(strings.Fields(request)[1], "?")
	return path
}
