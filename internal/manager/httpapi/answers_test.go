package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/wire/proxy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// answers records what the manager answers, without what differs from run to run, and compares it with a golden file.
// The official clients depend on every member of these answers.
type answers struct {
	t    *testing.T
	name string
	list []recorded
}

// recorded is one request and its answer.
type recorded struct {
	Request string          `json:"request"`
	Status  int             `json:"status"`
	Body    json.RawMessage `json:"body,omitempty"`
}

func recordAnswers(t *testing.T, name string) *answers { return &answers{t: t, name: name} }

// ask sends a signed request, records the answer and returns it.
func (g *answers) ask(s *site, method, target, body string) answer {
	g.t.Helper()
	a := s.call(method, target, body)
	g.add(strings.TrimSpace(method+" "+target+" "+body), a.status, a.body)
	return a
}

func (g *answers) add(request string, status int, body string) {
	g.t.Helper()
	r := recorded{Request: steady("", request).(string), Status: status}
	if body != "" {
		var v any
		require.NoError(g.t, json.Unmarshal([]byte(body), &v), body)
		r.Body = plainJSON(g.t, steady("", v), "")
	}
	g.list = append(g.list, r)
}

// compare ends a recording.
func (g *answers) compare() {
	g.t.Helper()
	got := string(plainJSON(g.t, g.list, " "))
	file := filepath.Join("testdata", "answers", g.name+".json")
	if *update {
		require.NoError(g.t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(g.t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(g.t, err, "run the test with -update")
	require.Equal(g.t, string(want), got, "an answer of the wire has changed")
}

// plainJSON encodes v without escaping what is special in HTML.
func plainJSON(t *testing.T, v any, indent string) []byte {
	t.Helper()
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	require.NoError(t, e.Encode(v))
	return buf.Bytes()
}

var (
	changingText = []struct {
		is *regexp.Regexp
		to string
	}{
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uuid>"},
		{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "<hex>"},
		{regexp.MustCompile(`202\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)`), "<time>"},
		{regexp.MustCompile(`AKIA[0-9A-Z]{16}`), "<access key>"},
		{regexp.MustCompile(`^[0-9a-f]{16}$`), "<id>"},
		{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<address>"},
		{regexp.MustCompile(`/tmp/bh\d+`), "<home>"},
		{regexp.MustCompile(`"[cma]time":[0-9.]+`), `"?time":0`},
		{regexp.MustCompile(`ticket=[^&"]+`), "ticket=<secret>"},
		{regexp.MustCompile(`token=[^&"]+`), "token=<secret>"},
		{regexp.MustCompile(`nobody used it for \d+s`), "nobody used it for <seconds>"},
		{regexp.MustCompile(`(web|silent)-lab-[a-z0-9]{8}`), "$1-lab-<random>"},
	}
	changingMembers = []string{
		"login_id", "age", "request_id", "secret_key", "session_token", "ssh_public_key", "ssh_private_key", "token", "ticket", "remaining",
		"webhook_secret",
		"runId", "completions",
	}
)

// steady replaces what differs from run to run; the kind of each value stays visible.
func steady(member string, v any) any {
	for _, m := range changingMembers {
		if m == member {
			return fmt.Sprintf("<%s: %T>", m, v)
		}
	}
	if member == "last_access" { // it is told a moment after the access
		return "<time or null>"
	}
	if member == "status" && (v == "started" || v == "failed") { // of a background task
		return "<task status>"
	}
	switch v := v.(type) {
	case string:
		for _, c := range changingText {
			v = c.is.ReplaceAllString(v, c.to)
		}
		return v
	case []any:
		for i := range v {
			v[i] = steady("", v[i])
		}
	case map[string]any:
		for k := range v {
			item := steady(k, v[k])
			delete(v, k)
			v[steady("", k).(string)] = item
		}
	}
	return v
}

// messages records what a WebSocket says until it ends; only the last message when the number differs from run to run.
func (g *answers) messages(c *cell, target string, lastOnly bool, send ...string) {
	g.t.Helper()
	conn := c.dial(target)
	for _, text := range send {
		require.NoError(g.t, conn.Write(g.t.Context(), websocket.MessageText, []byte(text)))
	}
	var all []string
	for {
		_, b, err := conn.Read(g.t.Context())
		if err != nil {
			break
		}
		all = append(all, string(b))
	}
	require.NotEmpty(g.t, all)
	if lastOnly {
		all = all[len(all)-1:]
	}
	for _, m := range all {
		g.add("WebSocket "+target+" "+strings.Join(send, " "), 101, strings.TrimLeft(m, "\x00\x01\x02\x03\x04"))
	}
}

// events records the data of server-sent events.
func (g *answers) events(s *site, target string) {
	g.t.Helper()
	a := s.call("GET", target, "")
	require.Equal(g.t, 200, a.status, a.body)
	name, lines := "", bufio.NewScanner(strings.NewReader(a.body))
	seen := map[string]bool{}
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = n
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && !seen[name] {
			seen[name] = true
			g.add("event "+name+" of "+target, 200, data)
		}
	}
}

func TestAnswersOfSessions(t *testing.T) {
	t.Parallel()
	p := &proxies{}
	o := &oracle{explanation: session.Explanation{Group: "default", Status: cluster.Pending, Reason: "capacity", Text: "no room",
		Rejected: map[string]int{"cpu": 1}, Shortfall: cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, Position: 2, Queue: 3,
		Estimate: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Remedies: []string{"ask for 1 cpu"},
		AsOf: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)},
		plan: session.Explanation{Group: "default", Text: "it would start now", Placements: []session.PlannedKernel{
			{Agent: "a1", Devices: map[cluster.SlotName]map[string]cluster.Amount{"cpu": {"0": cluster.Whole(1)}}}}}}
	c := newCell(t, p.folders(), func(d *nouns.Deps, _ *httpapi.Deps) { d.Explainer = o })
	c.allowHosts()
	c.made(`{"name":"data"}`)
	eve := c.user("eve", "user", true)
	g := recordAnswers(t, "session")
	defer g.compare()
	const create = `{"name":"first-one","image":"python","enqueueOnly":true,"tag":"<b>&","priority":7,"config":{"mounts":["data"],` +
		`"environ":{"A":"<b>&"},"resources":{"cpu":1,"mem":"256m"},"resource_opts":{"shmem":"64m"}}}`
	g.ask(c.site, "POST", "/session", create)
	g.ask(c.site, "GET", "/session/first-one", "")
	g.ask(c.site, "GET", "/session/first-one/explain", "")
	g.ask(c.site, "GET", "/session/first-one/status-history", "")
	g.ask(c.site, "GET", "/session/first-one/wait?timeout=1", "")
	g.ask(c.site, "POST", "/session?dry_run=true", `{"name":"dry-one","image":"python","config":{"resources":{"cpu":1,"mem":"256m"}}}`)
	g.ask(c.site, "POST", "/session?maxWaitSeconds=1", `{"name":"slow-one","image":"python","config":{"resources":{"cpu":1,"mem":"256m"}}}`)
	c.begin("first-one")
	g.ask(c.site, "GET", "/session/first-one", "")
	g.ask(c.site, "GET", "/session/first-one/devices", "")
	g.ask(c.site, "GET", "/resource/session-devices", "")
	g.ask(c.site, "GET", "/session/first-one/wait", "")
	g.ask(c.site, "GET", "/session/_/match?id=first", "")
	g.ask(c.site, "GET", "/session/_/match?id=nothing", "")
	g.ask(c.site, "GET", "/stream/session/first-one/apps", "")
	g.ask(c.site, "GET", "/session/first-one/abusing-report", "")
	g.ask(c.site, "GET", "/session/first-one/direct-access-info", "")
	g.ask(c.site, "GET", "/session/first-one/commit", "")
	g.ask(c.site, "GET", "/session/nothing", "")
	g.ask(eve, "GET", "/session/first-one", "")
	g.ask(c.site, "POST", "/session", `{"name":"first-one","image":"python","reuseIfExists":false}`)
	g.ask(c.site, "POST", "/session", `{"name":"first-one","image":"no-such-image"}`)
	g.ask(c.site, "POST", "/session", `{"image":"python","config":{"scaling_group":"nowhere"}}`)
	g.ask(c.site, "POST", "/session", `{"name":"group-one","image":"python","config":{"scaling_group":"nowhere"}}`)
	g.ask(c.site, "POST", "/session", `{"name":"group-one","image":"python","group":"nowhere"}`)
	g.ask(c.site, "POST", "/session", `{"name":"agent-one","image":"python","config":{"agent_list":["nowhere"]}}`)
	g.ask(c.site, "POST", "/session/first-one", `{"mode":"query","code":"print('<b>&')","runId":"run-1"}`)
	g.ask(c.site, "POST", "/session/first-one", `{"mode":"complete","code":"zzzz","options":{"row":0,"col":1}}`)
	g.ask(c.site, "POST", "/session/first-one", `{"mode":"dance"}`)
	g.ask(c.site, "POST", "/session/first-one/complete", `{"code":"zzzz","options":{"row":0,"col":1,"line":"zzzz","post":""}}`)
	g.ask(c.site, "POST", "/session/first-one/interrupt", "")
	g.ask(c.site, "GET", "/session/first-one/files?path=nowhere", "")
	require.NoError(t, os.MkdirAll(filepath.Join(c.node.home, "empty"), 0o777))
	g.ask(c.site, "GET", "/session/first-one/files?path=empty", "")
	require.NoError(t, os.WriteFile(filepath.Join(c.node.home, "empty", "a.txt"), []byte("abc"), 0o644))
	g.ask(c.site, "GET", "/session/first-one/files?path=empty", "")
	g.messages(c, "/stream/session/first-one/execute", true, `{"mode":"query","code":"1"}`)
	g.messages(c, "/stream/session/first-one/execute", true, `[]`)
	g.messages(c, "/stream/session/first-one/execute", true, `{"mode":"dance"}`)
	g.messages(c, "/stream/session/first-one/exec?cmd=false", true)
	g.messages(c, "/stream/session/first-one/pty", true, `{"type":"dance"}`)
	g.ask(c.site, "POST", "/session/first-one/keep-alive", `{"for":"2h","reason":"demo"}`)
	g.ask(c.site, "GET", "/resource/idle-report", "")
	g.ask(c.site, "DELETE", "/session/first-one/keep-alive", "")
	g.ask(c.site, "POST", "/session/first-one/rename?name=second-one", "")
	g.ask(c.site, "GET", "/session/second-one/dependency-graph", "")
	g.ask(c.site, "GET", "/resource/agents/"+string(testAgent), "")
	g.ask(c.site, "PATCH", "/resource/agents/"+string(testAgent), `{"schedulable":false}`)
	g.ask(c.site, "GET", "/resource/agents/nowhere", "")
	g.ask(c.site, "GET", "/resource/images/unknown", "")
	g.ask(c.site, "POST", "/resource/images/import", `{"reference":"lab/tool:1","agent":"`+string(testAgent)+`"}`)
	g.ask(c.site, "POST", "/resource/images/import", `{"reference":"lab/tool:1"}`)
	task := g.ask(c.site, "POST", "/session/second-one/commit", "")
	if task.status == 201 {
		var reply struct {
			ID string `json:"bgtask_id"`
		}
		task.into(t, &reply)
		g.ask(c.site, "GET", "/events/background-task?task_id="+strings.Repeat("0", 32), "")
	}
	g.ask(c.site, "GET", "/session/second-one/logs", "")
	g.events(c.site, "/events/session?sessionName=*&follow=false")
	g.ask(c.site, "DELETE", "/session/second-one?forced=true&wait=0", "")
	g.ask(c.site, "POST", "/session", `{"name":"third-one","image":"python","enqueueOnly":true}`)
	g.ask(c.site, "DELETE", "/session/third-one?recursive=true", "")
}

func TestAnswersOfFolders(t *testing.T) {
	t.Parallel()
	s, p := withFolders(t)
	ada, eve := s.user("ada", "user", true), s.user("eve", "user", true)
	_, _ = p, eve
	g := recordAnswers(t, "folder")
	defer g.compare()
	g.ask(ada, "GET", "/folders", "")
	g.ask(ada, "POST", "/folders", `{"name":"data","cloneable":true}`)
	g.ask(s, "POST", "/folders", `{"name":"shared","group":"default","permission":"ro"}`)
	g.ask(ada, "POST", "/folders", `{"name":"data"}`)
	g.ask(ada, "POST", "/folders", `{"name":"elsewhere","host":"nowhere:nothing"}`)
	g.ask(ada, "GET", "/folders", "")
	g.ask(ada, "GET", "/folders/data", "")
	g.ask(ada, "GET", "/folders/nothing", "")
	g.ask(ada, "GET", "/folders/_/id?name=data", "")
	g.ask(ada, "GET", "/folders/_/hosts", "")
	g.ask(s, "GET", "/folders/_/all-hosts", "")
	g.ask(ada, "GET", "/folders/_/allowed-types", "")
	g.ask(ada, "GET", "/acl", "")
	g.ask(s, "GET", "/folders/_/perf-metric?folder_host=local:volume1", "")
	var id struct{ ID string }
	ada.call("GET", "/folders/_/id?name=data", "").into(t, &id)
	g.ask(ada, "GET", "/folders/_/quota?folder_host=local:volume1&id="+id.ID, "")
	g.ask(s, "POST", "/folders/_/quota?folder_host=local:volume1&id="+id.ID, `{"input":{"size_bytes":4096}}`)
	g.ask(ada, "GET", "/folders/_/usage?folder_host=local:volume1&id="+id.ID, "")
	g.ask(ada, "GET", "/folders/_/used-bytes?folder_host=local:volume1&id="+id.ID, "")
	g.ask(s, "GET", "/folders/_/mounts", "")
	g.ask(s, "POST", "/folders/_/mounts", "{}")
	g.ask(ada, "POST", "/folders/data/mkdir", `{"path":["a","b"],"parents":true}`)
	g.ask(ada, "POST", "/folders/data/mkdir", `{"path":["bad"]}`)
	g.ask(ada, "POST", "/folders/data/request-upload", `{"path":"a.txt","size":5}`)
	g.ask(ada, "POST", "/folders/data/request-download", `{"path":"a.txt"}`)
	g.ask(ada, "POST", "/folders/data/request-download-archive", `{"files":["a.txt"]}`)
	g.ask(ada, "POST", "/folders/data/rename-file", `{"target_path":"a.txt","new_name":"b.txt"}`)
	g.ask(ada, "POST", "/folders/data/move-file", `{"src":"a.txt","dst":"b.txt"}`)
	g.ask(ada, "DELETE", "/folders/data/delete-files", `{"files":["a.txt"]}`)
	g.ask(ada, "DELETE", "/folders/data/delete-files", `{"files":["bad.txt"]}`)
	g.ask(ada, "POST", "/folders/data/delete-files-async", `{"files":["a.txt"]}`)
	g.ask(ada, "GET", "/folders/data/files?path=.", "")
	g.ask(ada, "POST", "/folders/data/import", `{"store":{"endpoint":"https://s3.example","bucket":"b","access_key":"k","secret_key":"s"}}`)
	g.ask(ada, "POST", "/folders/data/invite", `{"perm":"rw","emails":["eve@x"]}`)
	g.ask(eve, "GET", "/folders/invitations/list", "")
	g.ask(ada, "GET", "/folders/invitations/list-sent", "")
	var sent struct{ Invitations []api.Invitation }
	ada.call("GET", "/folders/invitations/list-sent", "").into(t, &sent)
	require.Len(t, sent.Invitations, 1)
	g.ask(ada, "POST", "/folders/invitations/update/"+sent.Invitations[0].ID, `{"perm":"ro"}`)
	g.ask(eve, "POST", "/folders/invitations/accept", `{"inv_id":"`+sent.Invitations[0].ID+`"}`)
	g.ask(eve, "GET", "/folders", "")
	g.ask(ada, "GET", "/folders/_/shared", "")
	g.ask(eve, "POST", "/folders/data/leave", `{"shared_user_uuid":null}`)
	g.ask(s, "POST", "/folders/shared/share", `{"permission":"rw","emails":["eve@x"]}`)
	g.ask(s, "POST", "/folders/shared/unshare", `{"emails":["eve@x"]}`)
	g.ask(ada, "POST", "/folders/data/clone", `{"target_name":"copy"}`)
	g.ask(ada, "POST", "/folders/data/rename", `{"new_name":"renamed"}`)
	g.ask(ada, "POST", "/folders/renamed/update-options", `{"cloneable":false}`)
	g.ask(ada, "DELETE", "/folders", `{"id":"`+id.ID+`"}`)
	g.ask(s, "POST", "/folders/_/change-ownership", `{"vfolder":"`+id.ID+`","user_email":"eve@x"}`)
}

func TestAnswersOfApps(t *testing.T) {
	t.Parallel()
	s := appSite(t)
	g := recordAnswers(t, "app")
	defer g.compare()
	g.ask(s, "GET", "/stream/session/lab/apps", "")
	g.ask(s, "GET", "/scaling-groups/default/wsproxy-version", "")
	g.ask(s, "GET", "/scaling-groups/nowhere/wsproxy-version", "")
	g.ask(s, "POST", "/session/lab/start-service", `{"app":"web"}`)
	g.ask(s, "GET", "/apps/circuits", "")
	s.proxy()
	var started api.Launch
	g.ask(s, "POST", "/session/lab/start-service", `{"app":"web"}`).into(t, &started)
	g.ask(s, "POST", "/session/lab/start-service", `{"app":"broken"}`)
	g.ask(s, "POST", "/session/lab/tickets", `{"app":"silent"}`)
	var session string
	require.NoError(t, s.store.Pool().QueryRow(t.Context(), `SELECT id FROM sessions`).Scan(&session))
	reply, err := s.apps.Launch(t.Context(),
		proxy.LaunchRequest{Proxy: "p", Token: started.Token, Session: session, App: "web", Client: netip.MustParseAddr("127.0.0.1")})
	require.NoError(t, err)
	at := "/apps/circuits/" + reply.Circuit.ID
	g.ask(s, "GET", "/apps/circuits?session=lab", "")
	g.ask(s, "PATCH", at, `{"public":true,"allowed_client_ips":["10.0.0.1"]}`)
	g.ask(s, "PATCH", at, `{}`)
	g.ask(s, "POST", at+"/enter", "")
	g.ask(s, "DELETE", at, "")
	g.ask(s, "POST", "/session/lab/shutdown-service", `{"service_name":"web"}`)
}

func TestAnswersOfTheRest(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	s := a.site
	g := recordAnswers(t, "rest")
	defer g.compare()
	anonymous := s.send(s.request("GET", "/", "", ""))
	g.add("GET / (anonymous)", anonymous.status, anonymous.body)
	unsigned := s.send(s.request("GET", "/auth", "", ""))
	g.add("GET /auth (unsigned)", unsigned.status, unsigned.body)
	g.ask(s, "GET", "/no-such-address", "")
	g.ask(s, "POST", "/auth", `{"echo":"hi"}`)
	g.ask(s, "GET", "/auth", "")
	g.ask(s, "GET", "/auth/role", "")
	g.ask(s, "GET", "/auth/role?group=default", "")
	g.ask(s, "GET", "/auth/role?group=nowhere", "")
	g.ask(s, "GET", "/auth/my-ip", "")
	login, err := json.Marshal(
		map[string]string{"type": "keypair", "domain": "default", "username": string(s.admin.Email), "password": s.admin.Password.Reveal()},
	)
	require.NoError(t, err)
	in := s.send(s.request("POST", "/auth/authorize", "application/json", string(login)))
	g.add("POST /auth/authorize", in.status, in.body)
	var opened api.LoginReply
	in.into(t, &opened)
	token := `{"session_token":"` + opened.Data.SessionToken + `"}`
	for _, verb := range []string{"resume", "extend"} {
		g.add("POST /auth/logins/"+verb, 200, s.post("/auth/logins/"+verb, token).body)
	}
	sibling := s.post("/auth/logins/sibling", strings.Replace(token, "}", `,"agent":"berth on lab"}`, 1))
	g.add("POST /auth/logins/sibling", sibling.status, sibling.body)
	g.ask(s, "GET", "/auth/logins", "")
	g.ask(s, "GET", "/auth/oidc", "")
	g.ask(s, "POST", "/auth/oidc/begin", `{"provider":"none","origin":"https://berth.example.org"}`)
	g.ask(s, "POST", "/auth/oidc/finish", `{"provider":"none","flow":"x","state":"y","code":"z"}`)
	g.ask(s, "POST", "/auth/token-login", `{"sToken":"x"}`)
	g.ask(s, "POST", "/auth/passkeys/login/begin", `{}`)
	g.ask(s, "POST", "/auth/passkeys/login/finish", `{"flow":"x","credential":{}}`)
	g.ask(s, "POST", "/auth/passkeys/enrol/begin", `{"session_token":"x"}`)
	g.ask(s, "POST", "/auth/passkeys/enrol/finish", `{"session_token":"x","flow":"y","name":"n","credential":{}}`)
	g.ask(s, "GET", "/auth/passkeys", "")
	g.ask(s, "PATCH", "/auth/passkeys/00000000-0000-0000-0000-000000000001", `{"name":"n"}`)
	g.ask(s, "DELETE", "/auth/passkeys/00000000-0000-0000-0000-000000000001", "")
	g.ask(s, "GET", "/auth/identities", "")
	g.ask(s, "DELETE", "/auth/identities/none", "")
	g.ask(s, "DELETE", "/auth/logins/none", "")
	ended := s.post("/auth/logout", token)
	g.add("POST /auth/logout", ended.status, ended.body)
	g.ask(s, "DELETE", "/auth/logins/all", "")
	gone := s.post("/auth/logins/resume", token)
	g.add("POST /auth/logins/resume after its end", gone.status, gone.body)
	g.ask(s, "POST", "/auth/signout", `{"email":"a@x","password":"p"}`)
	out := s.send(s.request("POST", "/auth/authorize", "application/json", `{"domain":"default","username":"a@x","password":"wrong"}`))
	g.add("POST /auth/authorize wrongly", out.status, out.body)
	g.ask(s, "POST", "/auth/update-password", `{"old_password":"a","new_password":"b","new_password2":"c"}`)
	g.ask(s, "POST", "/auth/update-password", `{"old_password":"a","new_password":"bcdefgh1!","new_password2":"bcdefgh1!"}`)
	g.ask(s, "POST", "/auth/update-full-name", `{"full_name":"Ada"}`)
	g.ask(s, "GET", "/auth/ssh-keypair", "")
	g.ask(s, "PATCH", "/auth/ssh-keypair", "")
	g.ask(s, "GET", "/auth/ssh-keypair", "")
	g.ask(s, "GET", "/manager/announcement", "")
	g.ask(s, "POST", "/manager/announcement", `{"enabled":true,"message":"<b>hi</b>"}`)
	g.ask(s, "GET", "/manager/announcement", "")
	g.ask(s, "GET", "/manager/status", "")
	g.ask(s, "GET", "/manager/scheduler", "")
	g.ask(s, "GET", "/manager/doctor", "")
	g.ask(a.another, "GET", "/manager/doctor", "")
	g.ask(s, "GET", "/config/resource-slots", "")
	g.ask(s, "GET", "/config/resource-slots/details", "")
	g.ask(a.another, "GET", "/config/scheduling-policies", "")
	unsigned = s.send(s.request("GET", "/config/scheduling-policies", "", ""))
	g.add("GET /config/scheduling-policies (unsigned)", unsigned.status, unsigned.body)
	g.ask(s, "GET", "/config/vfolder-types", "")
	g.ask(s, "GET", "/config/docker-registries", "")
	g.ask(s, "GET", "/logs/error", "")
	g.ask(s, "POST", "/logs/error", `{}`)
	g.ask(s, "GET", "/scaling-groups?group=default", "")
	g.ask(s, "GET", "/scaling-groups?group=nowhere", "")
	g.ask(s, "GET", "/scaling-groups/default/scheduler", "")
	g.ask(s, "GET", "/scaling-groups/nowhere/scheduler", "")
	g.ask(s, "PATCH", "/scaling-groups/default/scheduler", `{"scheduler":"drf","scheduler_opts":{"pending_timeout":60}}`)
	g.ask(s, "PATCH", "/scaling-groups/default/scheduler", `{"scheduler":"astrology"}`)
	g.ask(s, "GET", "/scaling-groups/default/network", "")
	g.ask(s, "GET", "/scaling-groups/nowhere/network", "")
	g.ask(s, "PATCH", "/scaling-groups/default/network", `{"egress":"proxy:10.0.0.5:3128"}`)
	g.ask(s, "PATCH", "/scaling-groups/default/network", `{"egress":"proxy:squid:3128"}`)
	g.ask(s, "PATCH", "/scaling-groups/default/network", `{}`)
	g.ask(a.owner, "PATCH", "/scaling-groups/default/network", `{"egress":"open"}`)
	g.ask(a.owner, "GET", "/scaling-groups/default/network", "")
	g.ask(s, "PATCH", "/scaling-groups/default/network", `{"egress":"open"}`)
	g.ask(s, "GET", "/resource/presets", "")
	g.ask(s, "POST", "/resource/check-presets", `{"group":"default"}`)
	g.ask(a.owner, "POST", "/resource/check-presets", `{"group":"default"}`)
	const document = `{"apiVersion":"6","kind":"taskTemplate","metadata":{"name":"train"},"spec":{"kernel":{"image":"python"}}}`
	g.ask(a.owner, "POST", "/template/session", `{"payload":`+strconv.Quote(document)+`,"group_name":"default"}`)
	g.ask(a.owner, "POST", "/template/session", `{"payload":`+document+`}`)
	g.ask(a.owner, "POST", "/template/session", `{"payload":"a: ["}`)
	g.ask(a.owner, "GET", "/template/session", "")
	g.ask(a.owner, "GET", "/template/session/train?format=json", "")
	g.ask(a.owner, "GET", "/template/session/nowhere", "")
	g.ask(a.owner, "PUT", "/template/session/train", `{"payload":`+document+`}`)
	g.ask(a.owner, "POST", "/session/_/create-from-template", `{"template_id":"train","enqueueOnly":true}`)
	g.ask(a.owner, "POST", "/session/_/create-cluster", `{"template_id":"train"}`)
	g.ask(a.owner, "DELETE", "/template/session/train", "")
	g.ask(a.owner, "GET", "/template/cluster", "")
	g.ask(s, "GET", "/resource/limits", "")
	g.ask(a.owner, "GET", "/resource/limits?scaling_group=default", "")
	g.ask(a.owner, "GET", "/resource/limits?user=admin@berth.local", "")
	g.ask(s, "GET", "/auth/why?action=change&object=project:default", "")
	g.ask(a.owner, "GET", "/auth/why?action=change&object=project:default", "")
	g.ask(a.owner, "GET", "/auth/why?action=fly&object=project:default", "")
	g.ask(a.owner, "GET", "/auth/why?object=project:default", "")
	g.ask(s, "PUT", "/resource/project-visibility", `{"group_resource_visibility":false}`)
	g.ask(a.owner, "POST", "/resource/check-presets", `{"group":"default"}`)
	g.ask(s, "POST", "/resource/recalculate-usage", "")
	g.ask(s, "GET", "/resource/agents/a1", "")
	g.ask(s, "GET", "/resource/agents/nowhere", "")
	g.ask(
		s, "PUT", "/resource/idle-checkers/life",
		`{"type":"session_lifetime","spec":{"max_lifetime_seconds":3600},"bindings":[{"project":"default"},{}]}`,
	)
	g.ask(
		s, "PUT", "/resource/idle-checkers/use",
		`{"type":"utilization","spec":{"time_window_seconds":3600,"resource_thresholds":{"cpu_util":5}}}`,
	)
	g.ask(s, "GET", "/resource/idle-checkers", "")
	g.ask(s, "GET", "/resource/idle-report", "")
	s.runs("mine")
	g.ask(s, "GET", "/resource/idle-report", "")
	g.ask(s, "GET", "/session/mine", "")
	g.ask(s, "POST", "/session/mine/keep-alive", `{"for":"0"}`)
	for _, base := range []string{"/user-config", "/domain-config", "/group-config"} {
		q := map[string]string{"/user-config": "?", "/domain-config": "?domain=default&", "/group-config": "?group=default&domain=default&"}[base]
		g.ask(s, "GET", base+"/dotfiles"+strings.TrimRight(q, "?&"), "")
		g.ask(s, "POST", base+"/dotfiles"+q+"path=.vimrc&permission=644", `{"data":"set nu"}`)
		g.ask(s, "GET", base+"/dotfiles"+strings.TrimRight(q, "?&"), "")
		g.ask(s, "GET", base+"/dotfiles"+q+"path=.vimrc", "")
		g.ask(s, "DELETE", base+"/dotfiles"+q+"path=.vimrc", "")
	}
	g.ask(s, "GET", "/user-config/bootstrap-script", "")
	g.ask(s, "POST", "/user-config/bootstrap-script", `{"script":"echo"}`)
	g.ask(s, "GET", "/user-config/bootstrap-script", "")
	g.ask(s, "GET", "/services", "")
}
