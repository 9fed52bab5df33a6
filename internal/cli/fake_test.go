package cli

import (
	"archive/tar"
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const (
	fakeAccess = "AKIAFAKEFAKEFAKEFAKE"
	fakeSecret = "fake-secret-0123456789abcdefghijklmnopqr"
)

// fakeManager answers the documented wire from memory. Sessions move one status per
// look, so that nothing in the tests depends on time.
type fakeManager struct {
	*httptest.Server
	t *testing.T

	mu          sync.Mutex
	sessions    map[string]*fakeSession // by id
	uploads     map[string]string       // path -> content
	creates     []api.CreateSession
	destroys    []string
	aliases     map[string]string
	calls       []string // method and path
	interrupted chan struct{}
	tarFiles    []tar.Header
	// cell runs code sent to the execute stream; nil uses fakeCell.
	cell func(c *fakeCellConn, code string)
	// stages is the life of a new session, one status per look.
	stages []string
	exit   int
	log    string
	agents int
	// hardware is what the first agent tells of its machine.
	hardware string
	queue    fakeQueue
	// folders have a lock of their own.
	folders fakeFolders
	apps    fakeApps
	// mute makes sessions and answers nothing.
	mute bool
}

type fakeSession struct {
	api.SessionInfo
	stages []string
}

func newFake(t *testing.T) *fakeManager {
	t.Helper()
	f := &fakeManager{
		t: t, sessions: map[string]*fakeSession{}, uploads: map[string]string{}, aliases: map[string]string{},
		interrupted: make(chan struct{}, 8), agents: 1,
		stages: []string{api.StatusPending, api.StatusPulling, api.StatusCreating, api.StatusRunning},
	}
	mux := http.NewServeMux()
	handle := func(pattern string, h func(w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if f.signed(w, r) {
				h(w, r)
			}
		})
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]string{"version": api.Version, "manager": "24.09.12"})
	})
	handle("GET /auth/role", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"global_role": "superadmin", "domain_role": "admin", "group_role": nil})
	})
	handle("POST /session", f.create)
	handle("GET /config/resource-slots/details", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]api.SlotDetails{"cpu": {Name: "cpu"}, "mem": {Name: "mem", Format: api.NumberFormat{Binary: true}}})
	})
	handle("GET /config/scheduling-policies", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, api.SchedulingPolicies{Orders: []string{"fifo", "astrology"}, Placements: []string{"pack", "feng-shui"}})
	})
	handle("GET /session/{s}", f.info)
	handle("DELETE /session/{s}", f.destroy)
	handle("PATCH /session/{s}", f.noContent)
	handle("POST /session/{s}/rename", f.rename)
	handle("POST /session/{s}/interrupt", func(w http.ResponseWriter, r *http.Request) {
		f.interrupted <- struct{}{}
		f.noContent(w, r)
	})
	handle(
		"POST /session/{s}/commit",
		func(w http.ResponseWriter, _ *http.Request) { reply(w, 201, map[string]string{"bgtask_id": "task-1"}) },
	)
	handle("GET /session/{s}/logs", f.logs)
	handle("POST /session/{s}/upload", f.upload)
	handle("POST /session/{s}/download", f.download)
	handle("GET /session/{s}/files", func(w http.ResponseWriter, _ *http.Request) {
		reply(
			w,
			200,
			map[string]string{
				"errors": "", "abspath": "/home/work",
				"files": `[{"mode":"-rw-r--r--","size":5,"ctime":1,"mtime":86400,"atime":1,"filename":"a.txt"}]`,
			},
		)
	})
	handle("GET /events/session", f.sessionEvents)
	handle("GET /events/background-task", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(
			w,
			"event: bgtask_updated\ndata: {\"task_id\":\"task-1\",\"message\":\"packing\",\"current_progress\":1,\"total_progress\":2}\n\n",
		)
		fmt.Fprint(w, "event: bgtask_done\ndata: {\"task_id\":\"task-1\",\"message\":\"\"}\n\nevent: server_close\ndata: {}\n\n")
	})
	handle("GET /stream/session/{s}/execute", f.execute)
	handle("GET /stream/session/{s}/exec", f.exec)
	handle("POST /admin/gql", f.graphql)
	f.queueRoutes(handle)
	f.idleRoutes(handle)
	f.deviceRoutes(handle)
	f.noticeRoutes(handle)
	f.folderRoutes(mux, handle)
	f.appRoutes(handle)
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func problem(w http.ResponseWriter, status int, slug, msg, next string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemPrefix + slug, Title: "It failed", Msg: msg, Next: next})
}

// signed verifies a request as the manager does.
func (f *fakeManager) signed(w http.ResponseWriter, r *http.Request) bool {
	f.mu.Lock()
	f.calls = append(f.calls, r.Method+" "+r.URL.Path)
	f.mu.Unlock()
	date := r.Header.Get("Date")
	want := api.Authorization(fakeAccess, api.Sign(fakeSecret, strings.ReplaceAll(date, "-", "")[:8], api.Signed{
		Method: r.Method, Target: r.RequestURI, Date: date, Host: r.Host,
		ContentType: r.Header.Get("Content-Type"), Version: r.Header.Get(api.HeaderVersion),
	}))
	if subtle.ConstantTimeCompare([]byte(want), []byte(r.Header.Get("Authorization"))) != 1 {
		problem(w, 401, api.SlugAuthFailed, "the signature does not match", "")
		return false
	}
	return true
}

func (f *fakeManager) called(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}

// find locates a session by id, or by name while it lives. The caller holds mu.
func (f *fakeManager) find(w http.ResponseWriter, key string) *fakeSession {
	key, _, _ = strings.Cut(key, ":") // all kernels are alike
	if s := f.sessions[key]; s != nil {
		return s
	}
	for _, s := range f.sessions {
		if s.Name == key && !api.Ended(s.Status) {
			return s
		}
	}
	problem(w, 404, api.SlugNotFound, "session "+key+" does not exist", "")
	return nil
}

func (f *fakeManager) create(w http.ResponseWriter, r *http.Request) {
	var req api.CreateSession
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		problem(w, 400, api.SlugInvalidParams, err.Error(), "")
		return
	}
	if req.Image == "nope" {
		problem(w, 404, api.SlugNotFound, "image nope does not exist", "berth image list")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.URL.Query().Get("dry_run") == "true" {
		f.queue.dry = append(f.queue.dry, req)
		reply(w, 200, f.queue.plan)
		return
	}
	f.creates = append(f.creates, req)
	for _, s := range f.sessions {
		if s.Name == req.Name && !api.Ended(s.Status) {
			reply(w, 201, api.CreatedSession{ID: s.ID, Name: s.Name, Status: s.Status})
			return
		}
	}
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", len(f.sessions)+1)
	s := &fakeSession{stages: slices.Clone(f.stages)}
	s.ID, s.Name, s.Type, s.Status, s.Image, s.Result = id, req.Name, req.Type, api.StatusPending, req.Image, api.ResultUndefined
	s.Occupying = api.JSONText(`"{\"cpu\":\"1\",\"mem\":\"536870912\"}"`)
	_ = json.Unmarshal(s.Occupying, &s.Occupying)
	s.CreatedAt = "2026-11-20T08:00:00+00:00"
	f.sessions[id] = s
	if f.mute {
		<-r.Context().Done()
		return
	}
	reply(w, 201, api.CreatedSession{ID: id, Name: req.Name, Status: s.Status, Created: true})
}

func (f *fakeManager) info(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.find(w, r.PathValue("s"))
	if s == nil {
		return
	}
	if len(s.stages) > 0 {
		s.Status, s.stages = s.stages[0], s.stages[1:]
	}
	s.StatusInfo = map[string]string{api.StatusError: "image pull failed"}[s.Status]
	s.StatusData = nil
	if s.Status == api.StatusPending {
		s.StatusInfo, s.StatusData = "capacity", api.JSONText(`{"scheduler":{"msg":"no agent has 1 cpu free"}}`)
	}
	if s.Status == api.StatusPulling {
		s.StatusData = api.JSONText(`{"pull":{"image":"berth/python:3.11","current":1,"total":2}}`)
	}
	if s.Type == api.TypeBatch && s.Status == api.StatusTerminated {
		s.ExitCode, s.Result = &f.exit, api.ResultFailure
		if f.exit == 0 {
			s.Result = api.ResultSuccess
		}
	}
	reply(w, 200, s.SessionInfo)
}

func (f *fakeManager) destroy(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.find(w, r.PathValue("s"))
	if s == nil {
		return
	}
	f.destroys = append(f.destroys, s.Name+" "+r.URL.RawQuery)
	if s.Status != api.StatusRunning && s.Status != api.StatusPending && r.URL.Query().Get("forced") != "true" {
		problem(w, 403, api.SlugForbidden, "session "+s.Name+" is "+s.Status, "")
		return
	}
	s.Status, s.stages = api.StatusTerminated, nil
	reply(w, 200, map[string]any{"stats": map[string]any{}})
}

func (f *fakeManager) noContent(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(w, r.PathValue("s")) != nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fakeManager) rename(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.find(w, r.PathValue("s")); s != nil {
		s.Name = r.URL.Query().Get("name")
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fakeManager) logs(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	s := f.find(w, r.PathValue("s"))
	f.mu.Unlock()
	switch {
	case s == nil:
	case r.Header.Get("Accept") == "text/plain" && r.URL.Query().Get("follow") == "true":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		from, _ := strconv.Atoi(r.URL.Query().Get("from"))
		for line := range strings.Lines(f.log[min(from, len(f.log)):]) {
			_, _ = io.WriteString(w, line)
			w.(http.Flusher).Flush()
		}
		f.mu.Lock()
		if s.Type == api.TypeBatch {
			s.stages = []string{api.StatusTerminating, api.StatusTerminated}
		}
		f.mu.Unlock()
	default:
		reply(w, 200, map[string]any{"result": map[string]string{"logs": f.log}})
	}
}

func (f *fakeManager) upload(w http.ResponseWriter, r *http.Request) {
	form, err := r.MultipartReader()
	if err != nil {
		problem(w, 400, api.SlugInvalidParams, err.Error(), "")
		return
	}
	for n := 0; ; n++ {
		part, err := form.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil || n == api.MaxUploadFiles {
			problem(w, 400, api.SlugInvalidParams, "too many files", "")
			return
		}
		_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		b, _ := io.ReadAll(part)
		f.mu.Lock()
		name, _ := url.PathUnescape(params["filename"])
		f.uploads[name] = string(b)
		f.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
}

func (f *fakeManager) download(w http.ResponseWriter, r *http.Request) {
	body := multipart.NewWriter(w)
	w.Header().Set("Content-Type", "multipart/mixed; boundary="+body.Boundary())
	for _, name := range r.URL.Query()["files"] {
		part, err := body.CreatePart(textproto.MIMEHeader{"Content-Encoding": {"identity"}})
		if err != nil {
			return
		}
		var buf bytes.Buffer
		archive := tar.NewWriter(&buf)
		headers := f.tarFiles
		if headers == nil {
			headers = []tar.Header{{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}}
		}
		for _, h := range headers {
			content := ""
			if h.Typeflag == tar.TypeReg {
				content = "content of " + h.Name
				if h.Name == "id_container" {
					content = f.apps.key
				}
			}
			h.Size = int64(len(content))
			_ = archive.WriteHeader(&h)
			_, _ = io.WriteString(archive, content)
		}
		_ = archive.Close()
		_, _ = part.Write(buf.Bytes())
	}
	_ = body.Close()
}

func (f *fakeManager) sessionEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if name := r.URL.Query().Get("sessionName"); name == "gone" {
		problem(w, 404, api.SlugNotFound, "session gone does not exist", "")
		return
	}
	fmt.Fprint(
		w,
		"id: 1\nevent: session_enqueued\ndata: {\"sessionName\":\"mylab\",\"sessionId\":\"x\",\"reason\":\"user-requested\","+
			"\"exitCode\":null,\"at\":\"2026-11-20T08:00:00Z\"}\n\n",
	)
	fmt.Fprint(
		w,
		": still here\n\nid: 2\nevent: session_started\ndata: {\"sessionName\":\"mylab\",\"sessionId\":\"x\",\"reason\":\"\","+
			"\"exitCode\":null,\"at\":\"2026-11-20T08:00:01Z\"}\n\n",
	)
	fmt.Fprint(w, "event: server_close\ndata: {}\n\n")
}

// fakeCellConn is the program's side of an execution.
type fakeCellConn struct {
	ctx  *http.Request
	conn *websocket.Conn
	f    *fakeManager
}

func (c *fakeCellConn) send(r api.ExecuteResult) {
	if r.Console == nil {
		r.Console = []api.ConsoleItem{}
	}
	b, _ := json.Marshal(r)
	_ = c.conn.Write(c.ctx.Context(), websocket.MessageText, b)
}

func (c *fakeCellConn) print(stream, text string) {
	c.send(api.ExecuteResult{Status: api.ExecContinued, Console: []api.ConsoleItem{api.ConsoleText(stream, text)}})
}

func (c *fakeCellConn) input(password bool) string {
	c.send(api.ExecuteResult{Status: api.ExecWaitingInput, Options: &api.InputOptions{IsPassword: password}})
	_, b, _ := c.conn.Read(c.ctx.Context())
	return string(b)
}

func (c *fakeCellConn) finish(code int) {
	c.send(api.ExecuteResult{Status: api.ExecFinished, ExitCode: &code})
}

// fakeCell is a tiny interpreter: print:TEXT, exit:N, hello, hang.
func fakeCell(c *fakeCellConn, code string) {
	verb, arg, _ := strings.Cut(code, ":")
	switch verb {
	case "print":
		c.print("stdout", arg+"\n")
		c.finish(0)
	case "exit":
		var n int
		_, _ = fmt.Sscan(arg, &n)
		c.print("stderr", "leaving\n")
		c.finish(n)
	case "hello":
		line := c.input(false)
		if line == api.InputEOF {
			c.print("stderr", "EOFError: EOF when reading a line\n")
			c.finish(1)
			return
		}
		c.print("stdout", "hi "+line+"\n")
		c.finish(0)
	case "hang":
		c.print("stdout", "working\n")
		<-c.f.interrupted
		c.print("stderr", "KeyboardInterrupt\n")
		if arg == "again" {
			<-c.ctx.Context().Done()
			return
		}
		c.finish(130)
	}
}

func (f *fakeManager) execute(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	var req struct {
		Code, Mode string
		Options    api.BatchCommands
	}
	_, b, err := conn.Read(r.Context())
	if err != nil || json.Unmarshal(b, &req) != nil {
		return
	}
	c := &fakeCellConn{ctx: r, conn: conn, f: f}
	switch {
	case req.Mode == api.ModeBatch:
		c.send(api.ExecuteResult{Status: api.ExecCleanFinished})
		c.send(api.ExecuteResult{Status: api.ExecBuildFinished})
		c.print("stdout", frame.Deref(req.Options.Exec)+"\n")
		c.finish(0)
	case f.cell != nil:
		f.cell(c, req.Code)
	default:
		fakeCell(c, req.Code)
	}
	_, _, _ = conn.Read(r.Context())
}

// exec is cat with a last word: it echoes its input, then its arguments on stderr, then exits with 7.
func (f *fakeManager) exec(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	s := f.find(w, r.PathValue("s"))
	f.mu.Unlock()
	if s == nil {
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		_, b, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if b[0] == api.ChannelStdinEOF {
			break
		}
		if b[0] == api.ChannelStdin {
			_ = conn.Write(r.Context(), websocket.MessageBinary, append([]byte{api.ChannelStdout}, b[1:]...))
		}
	}
	_ = conn.Write(r.Context(), websocket.MessageBinary, append([]byte{api.ChannelStderr}, r.URL.Query().Get("cmd")...))
	_ = conn.Write(r.Context(), websocket.MessageBinary, append([]byte{api.ChannelExit}, `{"exitCode":7}`...))
	_, _, _ = conn.Read(r.Context())
}

func (f *fakeManager) graphql(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		problem(w, 400, api.SlugInvalidParams, err.Error(), "")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	data := map[string]any{}
	switch {
	case strings.Contains(req.Query, "compute_session_list"):
		items := f.listSessions(req.Variables)
		data["compute_session_list"] = page(items, req.Variables)
	case strings.Contains(req.Query, "agent_list"):
		var items []map[string]any
		for i := range f.agents {
			items = append(items, fakeAgent(fmt.Sprintf("i-worker%d", i+1)))
		}
		data["agent_list"] = page(items, req.Variables)
	case strings.Contains(req.Query, "agent("):
		if id := req.Variables["id"]; id == "i-worker1" {
			agent := fakeAgent("i-worker1")
			if f.hardware != "" {
				agent["hardware_metadata"] = f.hardware
			}
			data["agent"] = agent
		} else {
			data["agent"] = nil
		}
	case strings.Contains(req.Query, "alias_image"):
		field := "alias_image"
		if strings.Contains(req.Query, "dealias_image") {
			field = "dealias_image"
		}
		alias, _ := req.Variables["alias"].(string)
		target, _ := req.Variables["target"].(string)
		ok := alias != "forbidden"
		if ok {
			f.aliases[alias] = target
		}
		data[field] = map[string]any{"ok": ok, "msg": map[bool]string{true: "success", false: "no permission to execute " + field}[ok]}
	case strings.Contains(req.Query, "images"):
		data["images"] = []any{map[string]any{
			"id": nil, "name": "python", "project": "berth", "registry": "local", "architecture": "x86_64", "tag": "latest",
			"digest": "sha256:0123456789abcdef0123456789abcdef", "size_bytes": 367001600, "aliases": []string{"python"},
			"labels": []any{map[string]string{"key": "ai.backend.runtime-type", "value": "python"}},
		}}
	case strings.Contains(req.Query, "keypair"):
		data["keypair"] = map[string]any{
			"access_key": fakeAccess, "user_id": "admin@berth.local", "is_active": true, "is_admin": true, "resource_policy": "default",
			"rate_limit": 1000,
		}
	default:
		reply(w, 200, map[string]any{"data": nil, "errors": []any{map[string]any{"message": "unknown field"}}})
		return
	}
	reply(w, 200, map[string]any{"data": data})
}

func (f *fakeManager) listSessions(vars map[string]any) []map[string]any {
	statuses, _ := vars["status"].(string)
	filter, _ := vars["filter"].(string)
	ids := []string{}
	for id := range f.sessions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	items := []map[string]any{}
	for _, id := range ids {
		s := f.sessions[id]
		if !slices.Contains(strings.Split(statuses, ","), s.Status) || filter != "" && filter != fmt.Sprintf("name == %q", s.Name) {
			continue
		}
		items = append(items, map[string]any{
			"id": id, "name": s.Name, "type": strings.ToUpper(s.Type), "status": s.Status, "status_info": s.StatusInfo, "image": s.Image,
			"result": s.Result, "created_at": s.CreatedAt, "occupying_slots": `{"cpu":"1","mem":"536870912"}`, "access_key": fakeAccess,
			"cluster_size": max(s.ClusterSize, 1),
		})
	}
	return items
}

func fakeAgent(id string) map[string]any {
	return map[string]any{
		"id": id, "status": "ALIVE", "architecture": "x86_64", "scaling_group": "default", "region": nil, "schedulable": id != "i-worker2",
		"addr": "tcp://127.0.0.1:6001", "version": "0.1.0", "first_contact": "2026-11-20T08:00:00+00:00", "cpu_cur_pct": 12.4,
		"mem_cur_bytes": 1073741824, "available_slots": `{"cpu":"8","mem":"17179869184"}`, "occupied_slots": `{"cpu":"1","mem":"536870912"}`,
		"hardware_metadata": "{}", "live_stat": nil,
	}
}

// page cuts a list as the manager does.
func page[T any](items []T, vars map[string]any) map[string]any {
	limit, offset := int(vars["limit"].(float64)), int(vars["offset"].(float64))
	total := len(items)
	items = items[min(offset, total):min(offset+limit, total)]
	if items == nil {
		items = []T{}
	}
	return map[string]any{"items": items, "total_count": total}
}
