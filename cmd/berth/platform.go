package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage"
)

// platform is a whole cluster in one process: embedded services, manager and agent, joined by
// the same sockets and code as separate processes.
type platform struct {
	dir      stateDir
	settings settings
	ports    string // "auto" or "fixed"
	log      *slog.Logger
	// say tells the operator about progress; show prints the login once and never reaches a log.
	say    func(format string, args ...any)
	show   func(text string)
	health *chassis.Health
	stack  *embedded.Stack

	mu      sync.Mutex
	report  report
	at      ports // where to listen
	bound   ports // where everybody listens
	storage *storage.Proxy
	apps    *appproxy.Proxy // nil when it is turned off
	manager *managerParts
	agent   *agent.Agent
	engine  *docker.Runtime
}

// report is what `berth status` shows of a running cluster.
type report struct {
	Running  bool      `json:"running"`
	Ready    bool      `json:"ready"`
	Phase    string    `json:"phase"`
	Pid      int       `json:"pid"`
	Version  string    `json:"version"`
	StateDir string    `json:"state_dir"`
	Started  time.Time `json:"started_at"`
	API      string    `json:"api"`
	Agents   string    `json:"agent_port"`
	Email    string    `json:"admin_email"`
	// Storage is where clients transfer files.
	Storage string       `json:"storage"`
	Volumes []volumeLine `json:"volumes,omitempty"`
	// Apps is how visitors reach the apps of sessions; nil when the app proxy is turned off.
	Apps *appproxy.Status `json:"apps,omitempty"`
	// Notes are things that an operator should know although the cluster is up.
	Notes    []string              `json:"notes,omitempty"`
	Services []chassis.CheckResult `json:"services"`
	Backends map[string]string     `json:"backends,omitempty"`
}

func newPlatform(dir stateDir, s settings, portMode string, log *slog.Logger, say func(string, ...any), show func(string)) (*platform, error) {
	p := &platform{dir: dir, settings: s, ports: portMode, log: log, say: say, show: show, health: chassis.NewHealth()}
	s.Embedded.StateDir = string(dir)
	stack, err := embedded.New(s.Embedded, log)
	if err != nil {
		return nil, err
	}
	p.stack = stack
	p.report = report{Running: true, Phase: "starting the database, etcd and Redis", Pid: os.Getpid(), Version: chassis.Build().Version, StateDir: string(dir), Started: time.Now()}
	return p, nil
}

// controlSocket is where a running cluster answers `berth status`, `berth doctor` and `berth admin`.
func (d stateDir) controlSocket() string {
	return filepath.Join(embedded.SocketDir(string(d), "ctl", "berth.sock"), "berth.sock")
}

// group declares the order: control socket, embedded services, storage, manager, agent, announcement.
func (p *platform) group() (*chassis.Group, error) {
	mux := http.NewServeMux()
	mux.Handle("/", p.health.Handler())
	mux.HandleFunc("GET /status", p.serveStatus)
	mux.HandleFunc("GET /findings", p.serveFindings)
	mux.HandleFunc("POST /admin/reset-password", p.serveReset)
	socket := p.dir.controlSocket()
	if err := embedded.PrepareSocketDir(filepath.Dir(socket)); err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	control := chassis.NewHTTPServer("control", chassis.HTTPOptions{Listen: "unix:" + socket, Handler: mux, Log: p.log, Drain: time.Second})
	services := append([]*chassis.Service{control.Service}, p.stack.Services()...)
	p.health.Watch(services...)
	services = append(services,
		chassis.Nest("storage", time.Minute, p.buildStorage).After("control", "etcd"),
		chassis.Nest("manager", 2*time.Minute, p.buildManager).After("control", "postgres", "etcd", "redis", "storage"),
		chassis.Nest("agent", time.Minute, p.buildAgent).After("manager"),
		chassis.Nest("appproxy", time.Minute, p.buildAppProxy).After("manager"),
		chassis.NewService("announcement", chassis.Hooks{Run: p.announce}).After("agent", "appproxy"),
	)
	if l := p.settings.Admin.Listen; l != "" && l != defaultSettings().Admin.Listen {
		services = append(services, chassis.NewAdminServer(p.settings.Admin, p.health, p.log).Service)
	}
	return chassis.NewGroup(p.log, services...)
}

func (p *platform) phase(text string) {
	p.mu.Lock()
	p.report.Phase = text
	p.mu.Unlock()
	p.say("%s", text)
}

func (p *platform) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.mu.Lock()
	p.report.Notes = append(p.report.Notes, text)
	p.mu.Unlock()
	p.say("note: %s", text)
}

// choosePorts decides where the API, the agent port and the storage proxy listen. An address that the operator
// configured stays; a remembered port that somebody else took meanwhile is given up.
func (p *platform) choosePorts() ports {
	want := fixedPorts()
	if p.ports == portsAuto {
		want = p.dir.rememberedPorts()
		for _, addr := range []*string{&want.API, &want.Agent, &want.StorageClient, &want.StorageManager, &want.AppProxy} {
			ln, err := net.Listen("tcp", *addr)
			if err != nil {
				p.note("%s is taken by another program, choosing another port", *addr)
				*addr = "127.0.0.1:0"
				continue
			}
			_ = ln.Close() // only tried
		}
		want.AppPorts = chooseAppPorts(want.AppPorts, string(p.dir))
	}
	d := defaultSettings()
	if p.settings.Manager.Listen != d.Manager.Listen {
		want.API = p.settings.Manager.Listen
	}
	if p.settings.Manager.Agents.Listen != d.Manager.Agents.Listen {
		want.Agent = p.settings.Manager.Agents.Listen
	}
	if p.settings.Storage.ClientListen != d.Storage.ClientListen {
		want.StorageClient = p.settings.Storage.ClientListen
	}
	if p.settings.Storage.ManagerListen != d.Storage.ManagerListen {
		want.StorageManager = p.settings.Storage.ManagerListen
	}
	if p.settings.AppProxy.Listen != d.AppProxy.Listen {
		want.AppProxy = p.settings.AppProxy.Listen
	}
	return want
}

func (p *platform) buildManager(ctx context.Context) (*chassis.Group, error) {
	p.phase("starting the manager")
	end := p.stack.Endpoints()
	cfg := p.settings.Manager
	cfg.Listen, cfg.Agents.Listen = p.at.API, p.at.Agent
	if cfg.Storage.Secret.IsZero() && cfg.Storage.SecretFile == "" {
		s := p.storageConfig()
		cfg.Storage.Secret, cfg.Storage.SecretFile = s.Secret, s.SecretFile
	}
	cfg.StateDir = p.dir.path("manager")
	cfg.Agents.JoinTokenFile = p.dir.joinToken()
	cfg.Postgres.DSN = chassis.NewSecret(end.PostgresDSN)
	// Agents on this machine join with a file that only we can read.
	if err := os.MkdirAll(filepath.Dir(p.dir.joinToken()), 0o700); err != nil {
		return nil, fmt.Errorf("prepare the agent's directory: %w", err)
	}
	parts, err := makeManager(ctx, cfg, end.Etcd, end.Redis, p.health, p.log)
	if err != nil {
		return nil, err
	}
	p.health.Watch(parts.services...)
	p.mu.Lock()
	p.manager = parts
	p.mu.Unlock()
	// The password exists in clear only now: it is on disk before anything else can fail.
	admin, created := parts.manager.Admin()
	if created {
		if _, err := writeClientEnv(p.dir.clientEnv(), "http://"+cfg.Listen, admin, true); err != nil {
			return nil, joinClose(err, parts.manager.Close)
		}
	}
	ready := chassis.NewService("client-env", chassis.Hooks{Start: func(context.Context) error {
		return p.managerIsUp(parts)
	}}).After("manager-api")
	return chassis.NewGroup(p.log, append(parts.services, ready)...)
}

// managerIsUp records where the manager really listens.
func (p *platform) managerIsUp(parts *managerParts) error {
	at := ports{
		API: parts.manager.APIAddr(), Agent: parts.manager.AgentAddr(),
		StorageClient: p.storage.ClientAddr(), StorageManager: p.storage.ManagerAddr(),
		AppProxy: p.at.AppProxy, AppPorts: p.at.AppPorts,
	}
	if err := p.dir.rememberPorts(at); err != nil {
		return fmt.Errorf("remember ports: %w", err)
	}
	admin, _ := parts.manager.Admin()
	endpoint := "http://" + reachable(at.API)
	if _, err := writeClientEnv(p.dir.clientEnv(), endpoint, admin, false); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound = at
	p.report.API, p.report.Agents, p.report.Email = endpoint, at.Agent, admin.Email
	p.report.Storage = p.storage.ClientURL()
	p.report.Backends = map[string]string{
		"postgresql": p.stack.Postgres.Version(), "etcd": p.stack.Etcd.Version(), "redis": p.stack.Redis.Program(),
	}
	return nil
}

func (p *platform) buildAgent(context.Context) (*chassis.Group, error) {
	p.phase("starting the agent")
	s := p.settings
	s.Agent.Manager = reachable(p.manager.manager.AgentAddr())
	s.Agent.StateDir = p.dir.path("agent")
	s.Agent.JoinTokenFile = p.dir.joinToken()
	if s.Agent.DataListen == agent.DefaultConfig().DataListen {
		s.Agent.DataListen = "127.0.0.1:0" // the only app proxies are on this machine
	}
	a, engine, err := makeAgent(s, p.dir.path("lib"), p.health, p.log)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.agent, p.engine = a, engine
	p.mu.Unlock()
	p.health.Watch(a.Services()...)
	p.health.Check("agent", a.Ready)
	return chassis.NewGroup(p.log, a.Services()...)
}

// How long `up` waits for an agent that can take sessions before it says that there is none
// yet and goes on without: for a reason nobody knows, and when it is the engine.
const (
	agentPatience  = 20 * time.Second
	enginePatience = 2 * time.Second
)

// announce waits until a session could be created and says so. A cluster whose container
// engine is down is up all the same; the agent keeps trying.
func (p *platform) announce(ctx context.Context) error {
	p.phase("waiting for the agent")
	err := p.awaitAgent(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		p.note("%s; sessions wait until it is back, the agent keeps trying", strings.TrimSuffix(err.Error(), "."))
		if next := fault.NextOf(err); next != "" {
			p.note("next: %s", next)
		}
	}
	p.mu.Lock()
	p.report.Ready, p.report.Phase = true, "up"
	text := p.summary()
	p.mu.Unlock()
	p.show(text)
	<-ctx.Done()
	return nil
}

func (p *platform) awaitAgent(ctx context.Context) error {
	client, err := p.dir.client()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	pause := chassis.Backoff{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond}
	for {
		err := p.agent.Ready(ctx)
		if err == nil {
			var alive []api.Agent
			if alive, err = client.Agents(ctx, "ALIVE"); err == nil && len(alive) > 0 {
				// The manager knows the agent's images from the moment it knows of the engine.
				var a api.AgentDetails
				if a, err = client.Agent(ctx, alive[0].ID); err == nil && engineKnown(a) {
					return nil
				}
			}
		}
		waited := time.Since(began)
		if waited > enginePatience {
			if _, down := p.engine.Info(ctx); down != nil {
				return fmt.Errorf("the container engine does not answer: %w", down)
			}
		}
		if waited > agentPatience {
			if err == nil {
				err = errors.New("no agent has reported yet")
			}
			return err
		}
		if chassis.Wait(ctx, chassis.RealClock(), pause.Next()) != nil {
			return ctx.Err()
		}
	}
}

func engineKnown(a api.AgentDetails) bool {
	var hardware struct {
		EngineOK bool `json:"engine_ok"`
	}
	return json.Unmarshal(a.Hardware, &hardware) == nil && hardware.EngineOK
}

// summary is what a person wants to see once the cluster is up. The caller holds the lock.
func (p *platform) summary() string { return summarize(p.dir, p.report) }

func summarize(dir stateDir, r report) string {
	env, _ := readEnvFile(dir.clientEnv()) // written by ourselves a moment ago
	flag := ""
	if def, err := findStateDir(""); err != nil || def != dir {
		flag = " --state-dir " + string(dir)
	}
	password := env["BERTH_ADMIN_PASSWORD"]
	if password == "" {
		password = "(set earlier)"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Berth %s is up.\n", r.Version)
	fmt.Fprintf(&b, "  API         %s\n", r.API)
	fmt.Fprintf(&b, "  agent port  %s\n", r.Agents)
	fmt.Fprintf(&b, "  storage     %s\n", r.Storage)
	if r.Apps != nil {
		fmt.Fprintf(&b, "  apps        %s\n", appsLine(*r.Apps))
	}
	fmt.Fprintf(&b, "  login       %s  %s\n", r.Email, password)
	fmt.Fprintf(&b, "  client.env  %s\n", dir.clientEnv())
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note        %s\n", n)
	}
	fmt.Fprintf(&b, "Try: berth run%s python -c 'print(6*7)'", flag)
	return b.String()
}

func (d stateDir) client() (*api.Client, error) {
	cfg, err := api.LoadConfig(api.Lookup{StateDir: string(d)})
	if err != nil {
		return nil, err
	}
	return api.New(cfg, api.WithUserAgent("berth/"+chassis.Build().Version))
}

func (p *platform) serveStatus(w http.ResponseWriter, r *http.Request) {
	_, services := p.health.Ready(r.Context())
	p.mu.Lock()
	out := p.report
	proxy, apps := p.storage, p.apps
	p.mu.Unlock()
	out.Volumes = volumeLines(proxy)
	if apps != nil {
		status := apps.Status()
		out.Apps = &status
	}
	out.Services = services
	writeJSON(w, out)
}

func (p *platform) serveFindings(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m, a, proxy, apps := p.manager, p.agent, p.storage, p.apps
	p.mu.Unlock()
	if m == nil || a == nil || proxy == nil {
		http.Error(w, "the cluster is still starting", http.StatusServiceUnavailable)
		return
	}
	found := []Finding{}
	rows, err := m.manager.Findings(r.Context())
	if err != nil {
		found = append(found, Finding{Kind: "database", Object: "rows", Problem: err.Error(), Next: "berth status"})
	}
	for _, f := range rows {
		found = append(found, Finding{Warning: f.Severity == "warning", Kind: f.Kind, Object: f.Object, Problem: f.Detail, Next: f.Next})
	}
	local, err := a.Findings(r.Context())
	if err != nil {
		found = append(found, Finding{Kind: "agent", Object: "state", Problem: err.Error(), Next: "berth status"})
	}
	found = append(found, fromStorage(proxy.Findings())...)
	if apps != nil {
		found = append(found, fromAppProxy(apps.Findings())...)
	}
	writeJSON(w, append(found, fromAgent(local)...))
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a caller that left needs no answer
}
