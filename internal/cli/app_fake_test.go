package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/testkit/address"
)

const fakeKey = "-----BEGIN OPENSSH PRIVATE KEY-----\nbm90IGEga2V5\n-----END OPENSSH PRIVATE KEY-----\n"

// fakeApps is the apps of every session, and the app proxy that leads to them.
type fakeApps struct {
	mu       sync.Mutex
	list     []api.App
	circuits []map[string]any
	changes  []map[string]any
	started  []string
	how      []string // arguments and environments of starts
	stopped  []string
	added    []string // queries of add
	tickets  int
	streams  int
	noProxy  bool
	key      string
	proxy    *httptest.Server
	ticket   string
}

func declared(name, protocol, state string, ports ...int) api.App {
	return api.App{ServicePort: api.ServicePort{Name: name, Protocol: protocol, Ports: ports}, State: state, Origin: api.AppDeclared}
}

func (f *fakeManager) appRoutes(handle func(pattern string, h func(w http.ResponseWriter, r *http.Request))) {
	a := &f.apps
	a.key, a.ticket = fakeKey, "ticket-1"
	own := func(name string, port int) api.App {
		app := declared(name, "tcp", api.AppReady, port)
		app.Origin = api.AppIntrinsic
		return app
	}
	missing := declared("vscode", "http", api.AppMissing, 8180)
	missing.Detail = "the image has no program code-server"
	a.list = []api.App{
		own("sshd", 2200), declared("jupyter", "http", api.AppStopped, 8888), missing, declared("db", "tcp", api.AppReady, 5432),
	}
	a.proxy = address.Serve(f.t, http.HandlerFunc(a.serveProxy))

	session := func(w http.ResponseWriter, r *http.Request) *fakeSession {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.find(w, r.PathValue("s"))
	}
	handle("GET /stream/session/{s}/apps", func(w http.ResponseWriter, r *http.Request) {
		if session(w, r) != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			reply(w, 200, a.list)
		}
	})
	handle("POST /session/{s}/start-service", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.noProxy {
			noProxyProblem(w)
			return
		}
		if body["app"] == "tensorboard" && !slices.ContainsFunc(a.list, func(k api.App) bool { return k.Name == "tensorboard" }) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).
				Encode(api.Problem{
					Type: api.ProblemPrefix + api.SlugNotFound, Title: "No such object",
					Msg: "the session has no program for app tensorboard", Code: api.CodeAppMissing, Next: "pip install --user tensorboard",
				})
			return
		}
		a.started = append(a.started, fmt.Sprint(body["app"]))
		for i, k := range a.list {
			if k.Origin == api.AppNoticed && k.Name == body["app"] {
				a.list[i].Protocol = "http" // who opens it asks more patiently than a list
			}
		}
		for _, k := range []string{"arguments", "envs"} {
			if v, ok := body[k]; ok {
				a.how = append(a.how, fmt.Sprint(v))
			}
		}
		reply(w, 200, map[string]string{"token": "launch", "wsproxy_addr": a.proxy.URL})
	})
	handle("POST /session/{s}/shutdown-service", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stopped = append(a.stopped, body["service_name"])
		w.WriteHeader(http.StatusNoContent)
	})
	handle("POST /session/{s}/tickets", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			App  string `json:"app"`
			Port int    `json:"port"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if session(w, r) == nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.tickets++
		if a.noProxy {
			noProxyProblem(w)
			return
		}
		reply(
			w,
			200,
			map[string]any{
				"url": a.proxy.URL, "circuit": fmt.Sprintf("%s:%d", body.App, body.Port), "ticket": a.ticket,
				"expires_at": time.Now().Add(time.Hour),
			},
		)
	})
	handle("GET /stream/session/{s}/tcpproxy", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.streams++
		a.mu.Unlock()
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		_, b, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		_ = conn.Write(r.Context(), websocket.MessageBinary, []byte("manager "+strings.ToUpper(string(b))))
		_ = conn.Close(websocket.StatusGoingAway, "")
	})
	handle("GET /apps/circuits", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		out := []map[string]any{}
		for _, k := range a.circuits {
			s, kernel, _ := strings.Cut(r.URL.Query().Get("session"), ":")
			if (s == "" || s == k["session_id"] || s == k["session_name"]) && (kernel == "" || kernel == k["kernel"]) {
				out = append(out, k)
			}
		}
		reply(w, 200, out)
	})
	find := func(w http.ResponseWriter, r *http.Request) int {
		i := slices.IndexFunc(a.circuits, func(k map[string]any) bool { return k["id"] == r.PathValue("id") })
		if i < 0 {
			problem(w, 404, api.SlugNotFound, "there is no circuit "+r.PathValue("id"), "")
		}
		return i
	}
	handle("PATCH /apps/circuits/{id}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := find(w, r); i >= 0 {
			var body map[string]any
			_ = json.NewDecoder(r.Body).Decode(&body)
			a.changes = append(a.changes, body)
			for k, v := range body {
				a.circuits[i][k] = v
			}
			w.WriteHeader(http.StatusNoContent)
		}
	})
	handle("DELETE /apps/circuits/{id}", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := find(w, r); i >= 0 {
			a.circuits = slices.Delete(a.circuits, i, i+1)
			w.WriteHeader(http.StatusNoContent)
		}
	})
	handle("POST /apps/circuits/{id}/enter", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := find(w, r); i >= 0 {
			reply(w, 200, map[string]string{"url": "http://apps.test/setup?token=shared"})
		}
	})
}

func noProxyProblem(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).
		Encode(api.Problem{
			Type: api.ProblemPrefix + api.SlugUnavailable, Title: "It failed", Msg: "no app proxy is connected", Code: api.CodeNoAppProxy,
		})
}

// serveProxy is the app proxy. Its app echoes in capitals; as an HTTP app it says what it was asked.
func (a *fakeApps) serveProxy(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	ticket := a.ticket
	a.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/add"):
		a.mu.Lock()
		a.added = append(a.added, r.URL.RawQuery)
		a.mu.Unlock()
		reply(w, 200, map[string]any{"code": 200, "url": a.proxy.URL + "/v2/proxy/auth?app=" + r.URL.Query().Get("app")})
	case r.URL.Path == "/v2/proxy/auth":
		reply(w, 200, map[string]any{"redirect_url": a.proxy.URL + "/setup?token=once", "reuse": false})
	case r.URL.Path == "/setup" && r.URL.Query().Get("do-not-redirect") == "true":
		reply(
			w, 200, map[string]string{"redirectURI": "http://localhost:45678/start?directTCP=true&proto=tcp&gateway=tcp://127.0.0.1:10300"},
		)
	case r.URL.Path == "/v2/tunnel" && r.Header.Get("Authorization") == "Berth "+ticket:
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth-conn/1\r\n\r\n")
		if strings.HasPrefix(r.URL.Query().Get("circuit"), "jupyter") {
			req, err := http.ReadRequest(buffered.Reader)
			if err != nil {
				return
			}
			body := fmt.Sprintf("%s %s host=%s cookie=%s", req.Method, req.URL, req.Host, req.Header.Get("Cookie"))
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
			return
		}
		b, _ := io.ReadAll(buffered.Reader)
		_, _ = conn.Write([]byte(strings.ToUpper(string(b))))
	default:
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"title":"No.","msg":"the ticket is not valid"}`)
	}
}

// fakePrograms writes down what would be started. have are the programs that exist.
type fakePrograms struct {
	mu   sync.Mutex
	have []string
	runs [][]string
	// run stands for the program.
	run func(in io.Reader, out, errs io.Writer, args []string) int
}

func (p *fakePrograms) LookPath(name string) (string, error) {
	if slices.Contains(p.have, name) {
		return "/usr/bin/" + name, nil
	}
	return "", errors.New("not found")
}

func (p *fakePrograms) Start(name string, args ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = append(p.runs, append([]string{name}, args...))
	return nil
}

func (p *fakePrograms) Run(_ context.Context, in io.Reader, out, errs io.Writer, name string, args ...string) (int, error) {
	_ = p.Start(name, args...)
	if p.run != nil {
		return p.run(in, out, errs, args), nil
	}
	return 0, nil
}
