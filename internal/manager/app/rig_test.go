package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// runners answers for the runners of all kernels.
type runners struct {
	mu     sync.Mutex
	apps   map[string]run.App
	starts map[string]int
	last   run.AppStartRequest
	fail   error
	away   bool
	ports  map[int]func(io.ReadWriteCloser) // what listens
	during func()                           // called while an app is being started
}

var runnerPath = regexp.MustCompile(`^/kernels/[0-9a-f-]+/runner/v1/apps(?:/([^/]+)/(start|stop))?$`)

func (r *runners) RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return nil, fault.Unavailablef("agent %s is not connected", agent)
	}
	rec := httptest.NewRecorder()
	m := runnerPath.FindStringSubmatch(req.URL.Path)
	if m == nil {
		run.WriteFailure(rec, fault.NotFoundf("no such route"))
		return rec.Result(), nil
	}
	a, known := r.apps[m[1]]
	switch {
	case m[1] == "":
		list := run.AppList{Apps: []run.App{}}
		for _, name := range slices.Sorted(maps.Keys(r.apps)) {
			list.Apps = append(list.Apps, r.apps[name])
		}
		_ = json.NewEncoder(rec).Encode(list)
	case !known:
		run.WriteFailure(rec, fault.NotFoundf("there is no app %s", m[1]))
	case m[2] == "stop":
		a.State = run.AppStopped
		r.apps[m[1]] = a
		_ = json.NewEncoder(rec).Encode(a)
	case r.fail != nil:
		run.WriteFailure(rec, r.fail)
	default:
		r.last = run.AppStartRequest{}
		_ = json.NewDecoder(req.Body).Decode(&r.last)
		if r.during != nil {
			r.during()
		}
		r.starts[m[1]]++
		a.State = run.AppReady
		r.apps[m[1]] = a
		port := a.Ports[0]
		if r.last.Port != 0 {
			port = r.last.Port
		}
		_ = json.NewEncoder(rec).Encode(run.AppStartResult{App: a, Port: port})
	}
	return rec.Result(), nil
}

func (r *runners) Upgrade(_ context.Context, _ cluster.AgentID, path string, _ http.Header) (io.ReadWriteCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, port, ok := strings.Cut(path, "/ports/")
	if !ok {
		return nil, errors.New("no such stream")
	}
	for n, serve := range r.ports {
		if port == itoa(n) {
			ours, theirs := net.Pipe()
			go serve(theirs)
			return ours, nil
		}
	}
	return nil, fault.Unavailablef("nothing listens on port %s", port)
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// rig is a cluster with people, a running session of alice, and an app proxy "p" that is connected.
type rig struct {
	*app.Service
	t       *testing.T
	store   *store.Store
	nouns   *nouns.Set
	deps    app.Deps
	runners *runners
	mu      sync.Mutex
	now     time.Time

	project                                           cluster.ProjectID
	super, admin, monitor, alice, bob, carol, mallory authz.Actor // alice and bob are in project; mallory is of another domain
	session                                           string
	kernel                                            string
}

var laptop = netip.MustParseAddr("203.0.113.7")

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: storetest.New(t), now: time.Now().UTC().Truncate(time.Millisecond),
		runners: &runners{starts: map[string]int{}, ports: map[int]func(io.ReadWriteCloser){},
			apps: map[string]run.App{
				"jupyter": {AppPort: run.AppPort{Name: "jupyter", Protocol: run.AppHTTP, Ports: []int{8888}}, Origin: run.AppDeclared,
					URLTemplate: "{url}/lab", AllowedArguments: []string{"--x"}},
				"web":  {AppPort: run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{9001, 9002}}, Origin: run.AppDeclared},
				"sshd": {AppPort: run.AppPort{Name: "sshd", Protocol: run.AppTCP, Ports: []int{2200}}, Origin: run.AppIntrinsic, State: run.AppReady},
			}}}
	ctx := t.Context()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	nd := managertest.Deps(t, r.store)
	nd.Clock, nd.Streams = r.clock, r.runners
	world := managertest.On(t, nd)
	r.nouns = world.Set
	var err error
	r.deps = app.Deps{Store: r.store, Sessions: r.nouns.Sessions, Vault: &managertest.Vault{}, Streams: r.runners, Clock: r.clock, Log: log}
	r.Service, err = app.New(r.deps)
	r.must(err)
	for _, d := range []string{"d", "e"} {
		_, err := r.store.AddDomain(ctx, d, nil)
		r.must(err)
	}
	r.project = cluster.ProjectID(uuid.NewString())
	r.must(r.store.AddProject(ctx, string(r.project), "proj", nil, "d"))
	r.super = r.person("super", "d", authz.RoleSuperadmin)
	r.admin = r.person("admin", "d", authz.RoleAdmin)
	r.monitor = r.person("monitor", "d", authz.RoleMonitor)
	r.alice = r.person("alice", "d", authz.RoleUser, r.project)
	r.bob = r.person("bob", "d", authz.RoleUser, r.project)
	r.carol = r.person("carol", "d", authz.RoleUser)
	r.mallory = r.person("mallory", "e", authz.RoleUser)
	r.sql(`INSERT INTO agents (id, status, resource_group, boot_id, data_address, data_socket) VALUES ('a1', 'ALIVE', 'default',
		'boot-1', ` +
		`'10.0.0.1:7000', '/run/a1.sock')`)
	r.session, r.kernel = r.running(r.alice, "My Lab")
	r.see(instance())
	return r
}

func instance() proxy.Instance {
	return proxy.Instance{Node: "n1", Version: 1, URL: "https://apps.example.org", Domain: "apps.example.org",
		DomainURL: "https://apps.example.org:8443",
		PortHost:  "ports.example.org", PortFrom: 20000, PortTo: 20002, PortTLS: true}
}

func (r *rig) see(i proxy.Instance) { r.t.Helper(); r.must(r.See(r.t.Context(), "p", i)) }

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) sql(text string, args ...any) {
	r.t.Helper()
	if _, err := r.store.Pool().Exec(r.t.Context(), text, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) count(text string, args ...any) (n int) {
	r.t.Helper()
	r.must(r.store.Pool().QueryRow(r.t.Context(), text, args...).Scan(&n))
	return n
}

func (r *rig) person(name, domain string, role authz.Role, projects ...cluster.ProjectID) authz.Actor {
	r.t.Helper()
	ctx := r.t.Context()
	a := authz.Actor{UserID: cluster.UserID(uuid.NewString()), Email: name + "@x", Username: name, Role: role, Domain: domain,
		AccessKey: cluster.AccessKey("K" + name), Projects: projects}
	r.must(r.store.AddUser(ctx, dbgen.AddUserParams{ID: string(a.UserID), Username: name + "-x", Email: a.Email, DomainName: domain,
		Role: string(role)}))
	r.must(r.store.AddKeypair(ctx, dbgen.AddKeypairParams{AccessKey: string(a.AccessKey), SecretSealed: []byte{1}, UserID: string(a.UserID),
		ResourcePolicy: "default"}))
	for _, p := range projects {
		r.must(r.store.AddMember(ctx, string(p), string(a.UserID)))
	}
	return a
}

// running adds a session that runs on agent a1.
func (r *rig) running(owner authz.Actor, name string) (session, kernel string) {
	r.t.Helper()
	session, kernel = uuid.NewString(), uuid.NewString()
	r.sql(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
		requested_slots, started_at)
		VALUES ($1, $2, 'interactive', $3, $4, $5, $6, 'default', 'img', 'RUNNING', '{}', now())`, session, name, owner.Domain, r.project,
		owner.UserID, owner.AccessKey)
	r.sql(`INSERT INTO kernels (id, session_id, image, architecture, agent_id, status, requested_slots, service_ports)
		VALUES ($1, $2, 'img', 'x86_64', 'a1', 'RUNNING', '{}', '[{"name":"jupyter","protocol":"http","ports":[8888]}]')`, kernel, session)
	return session, kernel
}

// move changes a kernel and its session as a guarded move does, with its hint.
func (r *rig) move(session, kernel, status string) {
	r.t.Helper()
	end := ""
	if slices.Contains([]string{"TERMINATED", "CANCELLED", "ERROR"}, status) {
		end = ", ended_at = now()"
	}
	r.sql(`UPDATE kernels SET status_before_lost = status, status = $2`+end+` WHERE id = $1`, kernel, status)
	if status != "LOST" {
		r.sql(`UPDATE sessions SET status = $2`+end+` WHERE id = $1`, session, status)
	}
	r.store.Wake(store.SessionTopic(session))
}

// run serves until the test ends.
func (r *rig) run(s *app.Service, st *store.Store) {
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = s.Run(ctx) })
	if st != nil {
		parts.Go(func() { _ = st.Run(ctx) })
	}
	r.t.Cleanup(func() { stop(); parts.Wait() })
}

func (r *rig) token(a authz.Actor, name string) string {
	r.t.Helper()
	l, err := r.Start(r.t.Context(), a, r.session, "", app.Want{App: name})
	r.must(err)
	return l.Token
}

// launch publishes an app of alice's session through proxy p.
func (r *rig) launch(name string, change ...func(*proxy.LaunchRequest)) (proxy.LaunchReply, error) {
	r.t.Helper()
	req := proxy.LaunchRequest{Proxy: "p", Token: r.token(r.alice, name), Session: r.session, App: name, Client: laptop}
	for _, c := range change {
		c(&req)
	}
	return r.Launch(r.t.Context(), req)
}

func (r *rig) launched(name string, change ...func(*proxy.LaunchRequest)) proxy.LaunchReply {
	r.t.Helper()
	reply, err := r.launch(name, change...)
	r.must(err)
	return reply
}

func (r *rig) redeem(circuit, code string) (proxy.RedeemReply, error) {
	r.t.Helper()
	return r.Redeem(r.t.Context(), "p", proxy.RedeemRequest{Circuit: circuit, Code: code, Client: laptop})
}

// circuit is what proxies are told of it now; nil when it is not published.
func (r *rig) circuit(id string) *proxy.Circuit {
	r.t.Helper()
	rows, err := r.store.PublishedCircuits(r.t.Context(), []string{id})
	r.must(err)
	if len(rows) == 0 {
		return nil
	}
	req := proxy.LookupRequest{}
	if rows[0].Circuit.Label != nil {
		req.Label = *rows[0].Circuit.Label
	} else {
		req.Port = int(*rows[0].Circuit.Port)
	}
	reply, err := r.Lookup(r.t.Context(), "p", req)
	r.must(err)
	return reply.Circuit
}

// waits waits until some transaction waits for another.
func (r *rig) waits() {
	r.t.Helper()
	soon(r.t, "it waits for the other", func() bool { return storetest.Waiting(r.t, r.store) > 0 })
}

func wantKind(t *testing.T, err error, kind fault.Kind, what string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%s: got %v (%v), want %v", what, err, fault.KindOf(err), kind)
	}
}

func wantReason(t *testing.T, err error, reason, what string) {
	t.Helper()
	if fault.ReasonOf(err) != reason {
		t.Errorf("%s: got %v (%s), want %s", what, err, fault.ReasonOf(err), reason)
	}
}

// soon waits for a condition that another goroutine brings about.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 2*time.Millisecond, what)
}

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
