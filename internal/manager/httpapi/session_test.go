package httpapi_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/runner"
	"berth.dev/berth/internal/wire/run"
)

// asRunner makes the test binary act as the runner: sessions of these tests have a real one.
const asRunner = "BERTH_TEST_AS_RUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(asRunner) != "" {
		os.Unsetenv(asRunner)
		os.Exit(runner.Main(os.Args))
	}
	os.Exit(m.Run())
}

const patience = time.Minute

// fakeNode is an agent with one runner for whatever kernel is asked for.
type fakeNode struct {
	client *http.Client
	token  string
	home   string
}

func startNode(t *testing.T) *fakeNode {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bh") // short: a socket lives below it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := run.Config{Version: run.Version, Token: "test-token-0123456789", KernelID: "0a1b2c3d-0000-0000-0000-000000000000", Dir: dir,
		Env: map[string]string{
			"PATH": "/usr/local/bin:/usr/bin:/bin",
		}, User: run.User{UID: os.Getuid(), GID: os.Getgid(), Home: filepath.Join(dir, "home")},
		Apps: []run.AppPort{{Name: "jupyter", Protocol: run.AppHTTP, Ports: []int{8070}}}}
	if os.Getuid() == 0 {
		cfg.User.UID, cfg.User.GID = 4242, 4243
	}
	file := filepath.Join(dir, "config.json")
	require.NoError(t, run.WriteConfig(file, cfg))
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, file)
	cmd.Env = append(os.Environ(), asRunner+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	n := &fakeNode{token: cfg.Token, home: cfg.User.Home}
	dial := run.UnixDialer(cfg.WithDefaults().Socket)
	transport := &http.Transport{DisableCompression: true, DialContext: dialContext(dial)}
	t.Cleanup(transport.CloseIdleConnections)
	n.client = &http.Client{Transport: transport}
	c := run.NewClient(run.Options{Transport: transport, Token: cfg.Token})
	require.Eventually(t, func() bool { _, err := c.Hello(t.Context()); return err == nil }, patience, 2*time.Millisecond)
	return n
}

// RoundTrip implements session.Streams as an agent's proxy does it.
func (n *fakeNode) RoundTrip(_ cluster.AgentID, req *http.Request) (*http.Response, error) {
	_, rest, ok := strings.Cut(req.URL.Path, "/runner/")
	if !ok {
		return nil, fault.NotFoundf("no such path")
	}
	out := req.Clone(req.Context())
	out.URL.Host, out.URL.Path, out.URL.RawPath = "runner", "/"+rest, ""
	out.Header.Set("Authorization", "Bearer "+n.token)
	return n.client.Transport.RoundTrip(out)
}

func (n *fakeNode) Upgrade(context.Context, cluster.AgentID, string, http.Header) (io.ReadWriteCloser, error) {
	return nil, fault.Unavailablef("not here")
}

// cell is a site with an agent and its runner.
type cell struct {
	*site
	node  *fakeNode
	nodes *node.Reports
	epoch int64
}

const testAgent = cluster.AgentID("i-test")

func newCell(t *testing.T, options ...siteOption) *cell {
	t.Helper()
	return newCellOn(t, storetest.New(t), options...)
}

func newCellOn(t *testing.T, st *store.Store, options ...siteOption) *cell {
	t.Helper()
	n := startNode(t)
	s := newSiteOn(t, st, append(options, func(d *nouns.Deps, _ *httpapi.Deps) { d.Streams = n })...)
	c := &cell{site: s, node: n, nodes: s.nouns.Reports}
	python := []cluster.NodeImage{{Reference: "berth/python:1.0", Digest: managertest.Digest(1), Architecture: "x86_64", SizeBytes: 1,
		Labels: map[string]string{
			"ai.backend.service-ports": "jupyter:http:8070,web:tcp:[9001,9002]", "ai.backend.runtime-type": "python",
		}}}
	require.NoError(t, s.nouns.Images.ImportOwn(t.Context(), python))
	var err error
	c.epoch, err = c.nodes.Register(t.Context(), cluster.NodeHello{Agent: testAgent, Version: "test"})
	require.NoError(t, err)
	require.NoError(t, c.nodes.UpdateFacts(t.Context(), testAgent, c.epoch, cluster.NodeFacts{
		Revision: 1, Architecture: "x86_64", EngineOK: true, Engine: "fake",
		Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(64), cluster.SlotMem: cluster.Whole(64 << 30)},
		SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
		Images:    python,
	}))
	return c
}

// begin does to a new session what scheduler and agent do.
func (c *cell) begin(name string) cluster.SessionID {
	c.t.Helper()
	actor, _, err := c.nouns.Tenancy.Authenticate(c.t.Context(), c.admin.AccessKey)
	require.NoError(c.t, err)
	var s *session.Session
	require.Eventually(c.t, func() bool {
		s, err = c.nouns.Sessions.Find(c.t.Context(), actor, name, "")
		return err == nil
	}, patience, 2*time.Millisecond)
	require.NoError(c.t, c.store.Tx(c.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, s.ID)
		if err != nil {
			return err
		}
		for _, k := range l.Kernels {
			if err := k.Move(ctx, store.KernelMove{To: cluster.Scheduled, Agent: testAgent, Allocation: `{"cpu":{"0":1000}}`}); err != nil {
				return err
			}
		}
		return l.Settle(ctx, "", "")
	}))
	c.report(s, cluster.PhaseRunning)
	return s.ID
}

func (c *cell) report(s *session.Session, phase cluster.Phase, change ...func(*cluster.KernelObservation)) {
	c.t.Helper()
	k := s.MainKernel()
	o := cluster.KernelObservation{Kernel: k.ID, Session: s.ID, Generation: k.Generation, Phase: phase, ContainerID: "c1"}
	for _, f := range change {
		f(&o)
	}
	_, err := c.nodes.Observe(c.t.Context(), testAgent, c.epoch, false, nil, []cluster.KernelObservation{o})
	require.NoError(c.t, err)
}

// running creates a session that runs.
func (c *cell) running(name string) cluster.SessionID {
	c.t.Helper()
	a := c.call(
		"POST", "/session", `{"name":"`+name+`","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"1","mem":"256m"}}}`,
	)
	require.Equal(c.t, 201, a.status, a.body)
	return c.begin(name)
}

func (c *cell) dial(target string) *websocket.Conn {
	c.t.Helper()
	r, err := http.NewRequest("GET", c.url+target, nil)
	require.NoError(c.t, err)
	api.SignRequest(r, string(c.admin.AccessKey), c.admin.SecretKey.Reveal(), time.Now())
	conn, resp, err := websocket.Dial(c.t.Context(), c.url+target, &websocket.DialOptions{HTTPHeader: r.Header})
	if err != nil && resp != nil {
		b, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("dial %s: %v: %s", target, err, b)
	}
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func (c *cell) read(conn *websocket.Conn) map[string]any {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, b, err := conn.Read(ctx)
	require.NoError(c.t, err)
	var m map[string]any
	require.NoError(c.t, json.Unmarshal(b, &m), string(b))
	return m
}

func consoleText(m map[string]any) string {
	var b strings.Builder
	for _, item := range m["console"].([]any) {
		if s, ok := item.([]any)[1].(string); ok {
			b.WriteString(s)
		}
	}
	return b.String()
}

func TestCreateHoldsUntilTheSessionRuns(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	const body = `{"name":"first-one","image":"python","type":"interactive","enqueueOnly":false,"maxWaitSeconds":0,"reuseIfExists":true,
		"starts_at":null,"startupCommand":null,"bootstrap_script":null,"owner_access_key":null,"tag":null,"dependencies":null,"callback_url":null,
		"architecture":"x86_64","group":"default","domain":"default","clusterSize":1,"clusterMode":"single-node",
		"config":{"mounts":[],"mount_map":{},"mount_options":{},"environ":{"A":"b"},"resources":{"cpu":1,"mem":"256m"},"resource_opts":{},
			"scalingGroup":null,"preopen_ports":null,"agentList":null,"attach_network":null,"unknown":1}}`
	answers := make(chan answer, 1)
	go func() { answers <- c.call("POST", "/session", body) }()
	id := c.begin("first-one")
	a := <-answers
	require.Equal(t, 201, a.status, a.body)
	var made struct {
		SessionID, SessionName, Status string
		Created                        bool
		ServicePorts                   []session.ServicePort
	}
	a.into(t, &made)
	require.Equal(t, string(id), made.SessionID)
	require.Equal(t, "RUNNING", made.Status)
	require.True(t, made.Created)
	require.Len(t, made.ServicePorts, 2)

	again := c.call("POST", "/session", body)
	require.Equal(t, 201, again.status, again.body)
	require.Contains(t, again.body, `"created":false`)
	c.call("POST", "/session", strings.Replace(body, `"reuseIfExists":true`, `"reuseIfExists":"false"`, 1)).
		problem(t, 400, "session-already-exists")

	var info map[string]any
	for _, ref := range []string{"first-one", string(id), strings.ReplaceAll(string(id), "-", "")} {
		for _, prefix := range []string{"/session/", "/kernel/"} {
			c.call("GET", prefix+ref, "").into(t, &info)
			require.Equal(t, "RUNNING", info["status"])
			require.JSONEq(t, `{"A":"b"}`, info["environ"].(string))
			require.Contains(t, info["occupiedSlots"], `"cpu":"1"`)
		}
	}
	require.Contains(t, c.call("GET", "/session/_/match?id=first", "").body, string(id))
	require.Contains(t, c.call("GET", "/stream/session/first-one/apps", "").body, `"name":"jupyter"`)
	require.JSONEq(t, `{}`, c.call("GET", "/session/first-one/abusing-report", "").body)
	require.JSONEq(t, `{}`, c.call("GET", "/session/first-one/direct-access-info", "").body)
	require.Contains(t, c.call("GET", "/session/first-one/dependency-graph", "").body, `"status":"KernelStatus.RUNNING"`)
}

func TestCreateTimesOutAndSurvivesItsClient(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	a := c.call("POST", "/session?maxWaitSeconds=1", `{"name":"slow-one","image":"python"}`)
	require.Equal(t, 201, a.status, a.body)
	require.Contains(t, a.body, `"status":"TIMEOUT"`)

	ctx, leave := context.WithCancel(t.Context())
	r := c.request("POST", "/session", "application/json", `{"name":"left-alone","image":"python"}`).WithContext(ctx)
	api.SignRequest(r, string(c.site.admin.AccessKey), c.site.admin.SecretKey.Reveal(), time.Now())
	gone := make(chan error, 1)
	go func() { _, err := client.Do(r); gone <- err }()
	actor, _, err := c.nouns.Tenancy.Authenticate(t.Context(), c.site.admin.AccessKey)
	require.NoError(t, err)
	require.Eventually(
		t, func() bool { _, err := c.nouns.Sessions.Find(t.Context(), actor, "left-alone", ""); return err == nil }, patience,
		2*time.Millisecond,
	)
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	c.begin("left-alone")
	require.Contains(t, c.call("GET", "/session/left-alone", "").body, `"status":"RUNNING"`)
}

func TestBadCreateRequests(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	for _, b := range []struct{ name, body, slug, says string }{
		{"short name", `{"name":"abc","image":"python"}`, "invalid-api-params", "abc"},
		{"odd name", `{"name":"a b c d","image":"python"}`, "invalid-api-params", "a b c d"},
		{"unknown image", `{"name":"good-name","image":"no-such-image"}`, "object-not-found", "no-such-image"},
		{
			"unknown slot", `{"name":"good-name","image":"python","config":{"resources":{"cpu":1,"mem":"1g","warp.drive":1}}}`,
			"invalid-api-params", "warp.drive",
		},
		{"unreadable slot", `{"name":"good-name","image":"python","config":{"resources":{"mem":"plenty"}}}`, "invalid-api-params", "plenty"},
		{"resources no object", `{"name":"good-name","image":"python","config":{"resources":[1]}}`, "invalid-api-params", "config.resources"},
		{"batch without command", `{"name":"good-name","image":"python","type":"batch"}`, "invalid-api-params", "startup"},
		{"unknown type", `{"name":"good-name","image":"python","type":"eternal"}`, "invalid-api-params", "eternal"},
		{"low port", `{"name":"good-name","image":"python","config":{"preopen_ports":[80]}}`, "invalid-api-params", "preopen_ports"},
	} {
		a := c.call("POST", "/session", b.body)
		status := 400
		if b.slug == "object-not-found" {
			status = 404
		}
		require.Contains(t, a.problem(t, status, b.slug), b.says, b.name)
	}
}

func TestPollingExecution(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.running("poll-me")
	step := func(body string) map[string]any {
		a := c.call("POST", "/session/poll-me", body)
		require.Equal(t, 200, a.status, a.body)
		var m struct{ Result map[string]any }
		a.into(t, &m)
		return m.Result
	}
	text, status, code := "", "", any(nil)
	body := `{"mode":"query","code":"name = input('who? ')\nprint('hi', name)","runId":null,"options":{}}`
	for range 100 {
		r := step(body)
		text += consoleText(r)
		status, code = r["status"].(string), r["exitCode"]
		id := r["runId"].(string)
		require.NotEmpty(t, id)
		if status == "finished" {
			break
		}
		body = `{"mode":"continue","code":"","runId":"` + id + `"}`
		if status == "waiting-input" {
			body = `{"mode":"input","code":"Ada","runId":"` + id + `"}`
		}
	}
	require.Equal(t, "finished", status)
	require.EqualValues(t, 0, code)
	require.Contains(t, text, "hi Ada\n")
	c.call("POST", "/session/poll-me", `{"mode":"continue","code":"","runId":null}`).problem(t, 400, "invalid-api-params")
	c.call("POST", "/session/poll-me", `{"mode":"dance","code":"","runId":null}`).problem(t, 400, "invalid-api-params")
	require.Contains(
		t, c.call("POST", "/session/poll-me/complete", `{"code":"impo","options":{"row":0,"col":4,"line":"impo","post":""}}`).body,
		`"completions":[`,
	)
	require.Equal(t, 204, c.call("POST", "/session/poll-me/interrupt", "").status)
}

func TestStreamingExecution(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.running("stream-me")
	for _, how := range []struct{ name, input, want string }{
		{"an answer", "Ada", "hi Ada\n"}, {"the end of input", "\x04", "EOFError"},
	} {
		t.Run(how.name, func(t *testing.T) {
			conn := c.dial("/stream/session/stream-me/execute")
			require.NoError(
				t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"code":"print('hi', input())","mode":"query","options":{}}`)),
			)
			text := ""
			for {
				m := c.read(conn)
				text += consoleText(m)
				if m["status"] == "waiting-input" {
					require.Equal(t, map[string]any{"is_password": false}, m["options"])
					require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(how.input)))
				}
				if m["status"] == "finished" {
					break
				}
			}
			require.Contains(t, text, how.want)
			_, _, err := conn.Read(t.Context())
			require.Equal(t, websocket.StatusNormalClosure, websocket.CloseStatus(err))
		})
	}
	t.Run("batch", func(t *testing.T) {
		conn := c.dial("/stream/session/stream-me/execute")
		require.NoError(
			t,
			conn.Write(
				t.Context(), websocket.MessageText,
				[]byte(`{"code":"","mode":"batch","options":{"build":"echo built","exec":"echo ran; exit 3"}}`),
			),
		)
		text, statuses := "", []string{}
		for {
			m := c.read(conn)
			text += consoleText(m)
			statuses = append(statuses, m["status"].(string))
			if m["status"] == "finished" {
				require.EqualValues(t, 3, m["exitCode"])
				break
			}
		}
		require.Contains(t, statuses, "build-finished")
		require.Contains(t, text, "ran\n")
	})
	t.Run("a client that leaves interrupts its code", func(t *testing.T) {
		conn := c.dial("/stream/session/stream-me/execute")
		require.NoError(t, conn.Write(
			t.Context(),
			websocket.MessageText,
			[]byte(
				`{"code":"import time\ntry:\n  print('begun', flush=True)\n  time.sleep(600)\nexcept KeyboardInterrupt:\n  `+
					`open('interrupted', 'w').close()","mode":"query"}`,
			),
		))
		require.Contains(t, consoleText(c.read(conn)), "begun")
		_ = conn.Close(websocket.StatusNormalClosure, "") // it waits five seconds for the answer, and a machine may be busier
		require.Eventually(
			t, func() bool { _, err := os.Stat(filepath.Join(c.node.home, "interrupted")); return err == nil }, patience,
			5*time.Millisecond,
		)
	})
	t.Run("a stopping manager says so and leaves the code alone", func(t *testing.T) {
		d := newCell(t)
		d.running("stop-here")
		conn := d.dial("/stream/session/stop-here/execute")
		require.NoError(t, conn.Write(
			t.Context(),
			websocket.MessageText,
			[]byte(
				`{"code":"import time\nprint('begun', flush=True)\nwhile not __import__('os').path.exists('go'): `+
					`time.sleep(.01)\nopen('through', 'w').close()","mode":"query"}`,
			),
		))
		require.Contains(t, consoleText(d.read(conn)), "begun")
		stopped := make(chan error, 1)
		go func() { stopped <- d.api.Stop(t.Context()) }()
		require.Equal(t, "server-restarting", d.read(conn)["status"])
		_, _, err := conn.Read(t.Context())
		require.Equal(t, websocket.StatusServiceRestart, websocket.CloseStatus(err))
		require.NoError(t, <-stopped)
		require.NoError(t, os.WriteFile(filepath.Join(d.node.home, "go"), nil, 0o644))
		require.Eventually(
			t, func() bool { _, err := os.Stat(filepath.Join(d.node.home, "through")); return err == nil }, patience, 5*time.Millisecond,
		)
	})
	t.Run("nonsense is refused", func(t *testing.T) {
		conn := c.dial("/stream/session/stream-me/execute")
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(`nonsense`)))
		require.Equal(t, "error", c.read(conn)["status"])
	})
	c.call("GET", "/stream/session/stream-me/execute", "").problem(t, 400, "generic-bad-request")
}

func TestTerminalAndExec(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.running("term-one")
	t.Run("terminal", func(t *testing.T) {
		conn := c.dial("/stream/session/term-one/pty?rows=30&cols=100")
		send := func(v map[string]any) {
			b, _ := json.Marshal(v)
			require.NoError(t, conn.Write(t.Context(), websocket.MessageText, b))
		}
		send(map[string]any{"type": "ping"})
		send(map[string]any{"type": "resize", "rows": 31, "cols": 101})
		send(map[string]any{"type": "stdin", "chars": base64.StdEncoding.EncodeToString([]byte("echo $((6*7)); stty size\n"))})
		text := ""
		for !strings.Contains(text, "31 101") {
			m := c.read(conn)
			require.Equal(t, "out", m["type"], m)
			b, err := base64.StdEncoding.DecodeString(m["data"].(string))
			require.NoError(t, err)
			text += string(b)
		}
		require.Contains(t, text, "42")
	})
	client, err := api.New(
		api.Config{
			Endpoint: c.url, AccessKey: string(c.site.admin.AccessKey), SecretKey: api.Secret(c.site.admin.SecretKey.Reveal()),
			Domain: "default",
		},
	)
	require.NoError(t, err)
	t.Run("exec passes input, both outputs and the exit code", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		code, err := client.Exec(t.Context(), "term-one", api.Exec{Command: []string{"sh", "-c", "cat; echo bad >&2; exit 5"}},
			api.ExecStreams{Stdin: strings.NewReader("through"), Stdout: &stdout, Stderr: &stderr})
		require.NoError(t, err)
		require.Equal(t, 5, code)
		require.Equal(t, "through", stdout.String())
		require.Equal(t, "bad\n", stderr.String())
	})
	t.Run("exec of nothing that is there", func(t *testing.T) {
		var stderr bytes.Buffer
		code, err := client.Exec(
			t.Context(), "term-one", api.Exec{Command: []string{"/no/such/program"}}, api.ExecStreams{Stdout: io.Discard, Stderr: &stderr},
		)
		require.NoError(t, err)
		require.Equal(t, 127, code)
		require.NotEmpty(t, stderr.String())
	})
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.running("file-one")
	upload := func(files ...string) answer {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for i := 0; i < len(files); i += 2 {
			h := textproto.MIMEHeader{
				"Content-Disposition": {`form-data; name="src"; filename="` + files[i] + `"`}, "Content-Type": {"application/octet-stream"},
			}
			p, err := w.CreatePart(h)
			require.NoError(t, err)
			_, _ = io.WriteString(p, files[i+1])
		}
		require.NoError(t, w.Close())
		r, err := http.NewRequest("POST", c.url+"/session/file-one/upload", &body)
		require.NoError(t, err)
		r.Header.Set("Content-Type", w.FormDataContentType())
		api.SignRequest(r, string(c.site.admin.AccessKey), c.site.admin.SecretKey.Reveal(), time.Now())
		return c.send(r)
	}
	// Official clients percent-encode the names, separators included.
	a := upload("deep%2Fdown%2Fa.txt", "alpha", "b.txt", "beta", "100%", "")
	require.Equal(t, 204, a.status, a.body)
	for _, escape := range []string{"../out.txt", "..%2Fout.txt", "/etc/cron.d/x", "a/../../x"} {
		require.Contains(t, upload(escape, "x").problem(t, 400, "invalid-api-params"), "not allowed")
	}
	upload("big", strings.Repeat("x", 1<<20+1)).problem(t, 400, "invalid-api-params")
	many := []string{}
	for i := range 21 {
		many = append(many, "f"+string(rune('a'+i)), "")
	}
	upload(many...).problem(t, 400, "invalid-api-params")

	// The listing's parameter comes in the body of a GET.
	var list struct{ Files, Errors, Abspath string }
	c.call("GET", "/session/file-one/files", `{"path":"deep/down"}`).into(t, &list)
	var entries []map[string]any
	require.NoError(t, json.Unmarshal([]byte(list.Files), &entries))
	require.Equal(t, "a.txt", entries[0]["filename"])
	c.call("GET", "/session/file-one/files", `{"path":"../.."}`).problem(t, 400, "invalid-api-params")

	parts := func(a answer) map[string]string {
		require.Equal(t, 200, a.status, a.body)
		media, attrs, err := mime.ParseMediaType(a.header.Get("Content-Type"))
		require.NoError(t, err)
		require.Equal(t, "multipart/mixed", media)
		out := map[string]string{}
		mr := multipart.NewReader(strings.NewReader(a.body), attrs["boundary"])
		for {
			p, err := mr.NextRawPart()
			if err == io.EOF {
				return out
			}
			require.NoError(t, err)
			require.Equal(t, "identity", p.Header.Get("Content-Encoding"))
			tr := tar.NewReader(p)
			for {
				h, err := tr.Next()
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				b, _ := io.ReadAll(tr)
				out[h.Name] = string(b)
			}
			_, _ = io.Copy(io.Discard, p)
		}
	}
	want := map[string]string{"a.txt": "alpha", "b.txt": "beta"}
	require.Equal(t, want, parts(c.call("GET", "/session/file-one/download", `{"files":["deep/down/a.txt","b.txt"]}`)))
	require.Equal(t, want, parts(c.call("POST", "/session/file-one/download?files=deep%2Fdown%2Fa.txt&files=b.txt", "")))
	c.call("POST", "/session/file-one/download?files=missing", "").problem(t, 404, "object-not-found")
	c.call("POST", "/session/file-one/download?files=..%2F..%2Fetc%2Fpasswd", "").problem(t, 400, "invalid-api-params")
	c.call("POST", "/session/file-one/download?files=1&files=2&files=3&files=4&files=5&files=6", "").problem(t, 400, "invalid-api-params")
	single := c.call("POST", "/session/file-one/download_single?file=b.txt", "")
	tr := tar.NewReader(strings.NewReader(single.body))
	h, err := tr.Next()
	require.NoError(t, err)
	require.Equal(t, "b.txt", h.Name)
}

// events reads a stream of server-sent events.
func (c *cell) events(ctx context.Context, target string, head http.Header) (<-chan map[string]string, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", c.url+target, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range head {
		r.Header[k] = v
	}
	api.SignRequest(r, string(c.site.admin.AccessKey), c.site.admin.SecretKey.Reveal(), time.Now())
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	out := make(chan map[string]string, 100)
	go func() {
		defer close(out)
		defer resp.Body.Close()
		e := map[string]string{}
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			k, v, _ := strings.Cut(lines.Text(), ": ")
			switch {
			case lines.Text() == "":
				if len(e) > 0 {
					out <- e
				}
				e = map[string]string{}
			case k != "":
				e[k] = v
			}
		}
	}()
	return out, nil
}

func next(t *testing.T, events <-chan map[string]string) map[string]string {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(patience):
		t.Fatal("no event")
		return nil
	}
}

func TestEventsOfASessionResumeAndEnd(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.call("POST", "/session", `{"name":"tell-me","image":"python","enqueueOnly":true}`)
	live, err := c.events(t.Context(), "/events/session?sessionName=tell-me&scope=session", nil)
	require.NoError(t, err)
	id := c.begin("tell-me")
	var names, ids []string
	for len(names) == 0 || names[len(names)-1] != "session_started" {
		e := next(t, live)
		names, ids = append(names, e["event"]), append(ids, e["id"])
		require.NotContains(t, e["event"], "kernel_")
		require.Contains(t, e["data"], `"sessionName":"tell-me"`)
	}
	require.Equal(t, "session_scheduled", names[0])
	// Resuming after the first one brings the rest again, and no more.
	head := http.Header{"Last-Event-Id": {ids[0]}}
	again, err := c.events(t.Context(), "/events/session?sessionName=tell-me&scope=session", head)
	require.NoError(t, err)
	for i := 1; i < len(names); i++ {
		require.Equal(t, ids[i], next(t, again)["id"])
	}
	kept, err := c.events(t.Context(), "/events/session?sessionName=tell-me&follow=false", nil)
	require.NoError(t, err)
	var all []string
	for e := range kept {
		all = append(all, e["event"])
	}
	require.Equal(t, "session_enqueued", all[0])
	require.Contains(t, all, "kernel_started")
	require.Equal(t, "server_close", all[len(all)-1])

	a := c.call("DELETE", "/session/tell-me?forced=true&wait=0", "")
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `"stats":{`)
	actor, _, err := c.nouns.Tenancy.Authenticate(t.Context(), c.site.admin.AccessKey)
	require.NoError(t, err)
	s, err := c.nouns.Sessions.Find(t.Context(), actor, string(id), "")
	require.NoError(t, err)
	zero := 0
	c.report(s, cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.ExitCode = &zero })
	var last map[string]string
	for e := range live {
		last = e
	}
	require.Equal(t, "server_close", last["event"])
	c.call("GET", "/events/session?scope=moon", "").problem(t, 400, "invalid-api-params")
}

func TestRenameHistoryAndLogs(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	id := c.running("old-name")
	const cell = `{"mode":"query","code":"1","runId":null}`
	require.Equal(t, 200, c.call("POST", "/session/old-name", cell).status)
	a := c.call("POST", "/session/old-name/rename?name=new-name", "")
	c.call("POST", "/session/old-name", cell).problem(t, 404, "object-not-found") // the way by the old name is forgotten
	require.Equal(t, 200, c.call("POST", "/session/new-name", cell).status)
	require.Equal(t, 204, a.status, a.body)
	c.call("GET", "/session/old-name", "").problem(t, 404, "object-not-found")
	c.call("POST", "/session/new-name/rename?name=x", "").problem(t, 400, "invalid-api-params")
	var history struct{ Result map[string]*string }
	c.call("GET", "/session/"+url.PathEscape(string(id))+"/status-history", "").into(t, &history)
	require.NotNil(t, history.Result["preparing"])
	require.Nil(t, history.Result["terminated"])
}
