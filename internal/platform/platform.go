package platform

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
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/diskspace"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/storage"
	"berth.dev/berth/internal/webserver"
	"berth.dev/berth/internal/webserver/upstream"
)

// platform is a whole cluster in one process: embedded services, manager and agent, joined by
// the same sockets and code as separate processes.
type platform struct {
	dir      StateDir
	settings Settings
	o        Options
	log      *slog.Logger
	health   *chassis.Health
	stack    *embedded.Stack

	mu      sync.Mutex
	report  Report
	at      ports          // where to listen
	bound   ports          // where everybody listens
	claim   net.PacketConn // of the ports; nil when they are the operator's
	storage *storage.Proxy
	apps    *appproxy.Proxy   // nil when it is turned off
	web     *webserver.Server // nil when it is turned off
	inside  *upstream.Pipe    // the web server's way to the manager
	manager *Manager
	agent   *agent.Agent
	engine  *docker.Runtime
}

func newPlatform(dir StateDir, s Settings, o Options) (*platform, error) {
	p := &platform{dir: dir, settings: s, o: o, log: o.Log, health: chassis.NewHealth()}
	s.Embedded.StateDir = string(dir)
	stack, err := embedded.New(s.Embedded, o.Log)
	if err != nil {
		return nil, err
	}
	p.stack = stack
	p.report = Report{Running: true, Phase: "starting the database, etcd and Redis", Pid: os.Getpid(), Version: chassis.Build().Version,
		StateDir: string(dir), Started: time.Now()}
	return p, nil
}

// group declares the order: control socket, embedded services, storage, manager, agent, announcement.
func (p *platform) group() (*chassis.Group, error) {
	mux := http.NewServeMux()
	mux.Handle("/", p.health.Handler())
	mux.HandleFunc("GET /status", p.serveStatus)
	mux.HandleFunc("GET /findings", p.serveFindings)
	mux.HandleFunc("POST /admin/reset-password", p.serveReset)
	mux.HandleFunc("POST /admin/rotate-master-key", p.serveRotate)
	p.serveJoins(mux)
	socket := p.dir.controlSocket()
	if err := embedded.PrepareSocketDir(filepath.Dir(socket)); err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	control := chassis.NewHTTPServer("control", chassis.HTTPOptions{Listen: "unix:" + socket, Handler: mux, Log: p.log, Drain: time.Second})
	services := append([]*chassis.Service{control.Service}, p.stack.Services()...)
	// It is there before the database, which may have to start on a full disk.
	reserve := diskspace.NewReserve(p.dir.Path("reserve"), int64(p.settings.Embedded.ReserveMiB)<<20, p.log.With("part", "reserve"),
		chassis.RealClock())
	services = append(services, chassis.NewService("disk-reserve", chassis.Hooks{
		Start: func(context.Context) error { reserve.Look(); return nil }, Run: reserve.Run,
	}))
	p.health.Watch(services...)
	services = append(services,
		chassis.Nest("storage", time.Minute, p.buildStorage).After("control", "etcd"),
		chassis.Nest("manager", 2*time.Minute, p.buildManager).After("control", "postgres", "etcd", "redis", "storage"),
		chassis.Nest("agent", time.Minute, p.buildAgent).After("manager"),
		chassis.Nest("appproxy", time.Minute, p.buildAppProxy).After("manager"),
		chassis.Nest("webserver", time.Minute, p.buildWebServer).After("manager"),
		chassis.NewService("announcement", chassis.Hooks{Run: p.announce}).After("agent", "appproxy", "webserver"),
	)
	if l := p.settings.Admin.Listen; l != "" && l != DefaultSettings().Admin.Listen {
		services = append(services, chassis.NewAdminServer(p.settings.Admin, p.health, p.log).Service)
	}
	return chassis.NewGroup(p.log, services...)
}

func (p *platform) phase(text string) {
	p.mu.Lock()
	p.report.Phase = text
	p.mu.Unlock()
	p.o.Say("%s", text)
}

func (p *platform) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.mu.Lock()
	p.report.Notes = append(p.report.Notes, text)
	p.mu.Unlock()
	p.o.Say("note: %s", text)
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
	cfg.Postgres.DSN = chassis.NewSecret(end.PostgresDSN)
	p.dir.PlaceManager(&cfg)
	p.dir.removeOldToken()
	m, err := NewManager(ctx, cfg, &end.Redis, manager.Deps{Etcd: end.Etcd, Health: p.health, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.health.Watch(m.Services()...)
	p.mu.Lock()
	p.manager = m
	p.mu.Unlock()
	// The password exists in clear only now: it is on disk before anything else can fail.
	admin, created := m.Admin()
	if created {
		if _, err := writeClientEnv(p.dir.ClientEnv(), "http://"+cfg.Listen, "", admin, true); err != nil {
			return nil, joinClose(err, m.Close)
		}
	}
	ready := chassis.NewService("client-env", chassis.Hooks{Start: func(context.Context) error {
		return p.managerIsUp(m)
	}}).After("manager-api")
	p.inside = upstream.NewPipe()
	return chassis.NewGroup(p.log, append(m.Services(), ready, m.Inside(p.inside))...)
}

// managerIsUp records where the manager really listens.
func (p *platform) managerIsUp(m *Manager) error {
	at := ports{
		API: m.APIAddr(), Agent: m.AgentAddr(),
		StorageClient: p.storage.ClientAddr(), StorageManager: p.storage.ManagerAddr(),
		AppProxy: p.at.AppProxy, AppPorts: p.at.AppPorts, Web: p.at.Web,
	}
	if err := p.dir.rememberPorts(at); err != nil {
		return fmt.Errorf("remember ports: %w", err)
	}
	admin, _ := m.Admin()
	how := m.Transport()
	endpoint := endpointOf(how, at.API)
	if _, err := writeClientEnv(p.dir.ClientEnv(), endpoint, how.Fingerprint, admin, false); err != nil {
		return err
	}
	if how.Exposed {
		p.note("WARNING: the API at %s %s", at.API, exposedProblem)
		p.note("next: %s", exposedNext)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound, p.report.TLS = at, encryptionOf(how)
	p.report.API, p.report.Agents, p.report.Email = endpoint, at.Agent, admin.Email
	p.report.Storage = p.storage.ClientURL()
	p.report.Backends = map[string]string{
		"postgresql": p.stack.Postgres.Version(), "etcd": p.stack.Etcd.Version(), "redis": p.stack.Redis.Program(),
	}
	return nil
}

func (p *platform) buildAgent(ctx context.Context) (_ *chassis.Group, err error) {
	p.phase("starting the agent")
	s := p.settings
	p.dir.PlaceAgent(&s.Agent, "agent", p.manager.AgentAddr())
	if s.Agent.JoinToken, err = p.manager.Admit(ctx, RoleAgent, s.Agent.ID, s.Agent.ResourceGroup, s.Agent.StateDir); err != nil {
		return nil, fmt.Errorf("let the agent join: %w", err)
	}
	// Whoever runs the cluster owns this engine: its images are for everybody. Those of agents elsewhere are imported by hand.
	a, engine, err := newDockerAgent(s, p.dir.Path("lib"), p.manager.Nouns().Images.ImportOwn, p.health, p.log)
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

// upGC is the percentage by which the heap grows between two collections while the cluster is up.
const upGC = 60

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
	r := p.report
	p.mu.Unlock()
	p.o.Show(r)
	// A control plane holds little and should look it: collect a little more often. The start makes much that it drops again, and is
	// over sooner without.
	debug.SetGCPercent(upGC)
	<-ctx.Done()
	return nil
}

func (p *platform) awaitAgent(ctx context.Context) error {
	client, err := p.dir.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
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
		if chassis.Wait(ctx, chassis.RealClock(), lookAgain(waited)) != nil {
			return ctx.Err()
		}
	}
}

// lookAgain is how long to wait before the next look at something that has been waited for so long: nobody notices 3 % more.
func lookAgain(waited time.Duration) time.Duration {
	return min(max(waited/32, 5*time.Millisecond), 250*time.Millisecond)
}

func engineKnown(a api.AgentDetails) bool {
	var hardware struct {
		EngineOK bool `json:"engine_ok"`
	}
	return json.Unmarshal(a.Hardware, &hardware) == nil && hardware.EngineOK
}
