// Package manager is the role that owns what should be true: tenancy, sessions, placement.
// This package only wires its subpackages into services with a declared order:
//
//	store ─► service, apps ─► agent port, storage proxies ─► reconcile ─► API ─► presence
//
// Clients of PostgreSQL, etcd and Redis come from outside, so that embedded and external
// services are used through the same code.
package manager

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/httpapi"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/peer"
	proxylink "berth.dev/berth/internal/manager/link/proxy"
	storagelink "berth.dev/berth/internal/manager/link/storage"
	"berth.dev/berth/internal/manager/live"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/service"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/wire/run"
)

// Deps are what a Manager works with. Log is required.
type Deps struct {
	// Etcd may be nil: this manager leads without asking.
	Etcd *clientv3.Client
	// Redis may be nil: limits are counted in this process and nothing is known live.
	Redis valkey.Client
	Clock chassis.Clock
	// Random and IDs default to the system's.
	Random io.Reader
	IDs    func() string
	Health *chassis.Health
	Build  chassis.BuildInfo
	// WrapAgents may replace every connection of the agent port below its TLS; tests break them there.
	WrapAgents func(net.Conn) net.Conn
	// WrapSink may replace where agents' reports go; tests lose, double and reorder them there.
	WrapSink func(agentlink.Sink) agentlink.Sink
	Log      *slog.Logger
}

// Manager is one running manager; its fields are valid once its services run.
type Manager struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	store   *store.Store
	service *service.Service
	link    *agentlink.Link
	peers   *peer.Directory   // nil without etcd
	relay   *peer.Relay       // nil without etcd
	storage *storagelink.Link // nil without a shared secret
	folders *folder.Service
	apps    *app.Service
	loops   *reconcile.Loops
	api     *chassis.HTTPServer
	handler *httpapi.API
	admin   service.Credentials
	created bool
}

// New opens the database, makes the first rows of an empty cluster and prepares the services.
func New(ctx context.Context, cfg Config, deps Deps) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	if deps.Random == nil {
		deps.Random = rand.Reader
	}
	m := &Manager{cfg: cfg, deps: deps, log: deps.Log}
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	key, err := seal.LoadOrCreate(filepath.Join(cfg.StateDir, "master.key"), deps.Random)
	if err != nil {
		return nil, fmt.Errorf("load master key: %w", err)
	}
	if m.store, err = store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), MaxConns: cfg.Postgres.MaxConns}, m.log); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := m.wire(ctx, key); err != nil {
		m.store.Close()
		return nil, err
	}
	return m, nil
}

func (m *Manager) wire(ctx context.Context, key *seal.Key) (err error) {
	streams := &lateStreams{}
	deps := service.Deps{
		Store: m.store, Seal: key, Clock: m.deps.Clock.Now, IDs: m.deps.IDs, Random: m.deps.Random, Streams: streams,
		Callbacks: service.CallbackPolicy{AllowPrivate: m.cfg.Callbacks.AllowPrivate}, Log: m.log.With("part", "service"),
	}
	planner := reconcile.NewPlanner(m.store, m.deps.Clock)
	deps.Explainer = planner
	if m.admin, m.created, err = service.Bootstrap(ctx, deps); err != nil {
		return fmt.Errorf("make the first rows: %w", err)
	}
	secrets := &vault{m.store, key}
	linkDeps := agentlink.Deps{
		ClusterID: m.admin.ClusterID, Vault: secrets, Clock: m.deps.Clock, Random: m.deps.Random,
		Wrap: m.deps.WrapAgents, Log: m.log.With("part", "agentlink"),
	}
	idle := reconcile.Idle{Busy: m.busy}
	limiter := httpapi.RateLimiter(httpapi.NewLocalLimiter(m.deps.Clock.Now))
	if m.deps.Redis != nil {
		figures := live.New(m.deps.Redis, "berth:"+m.admin.ClusterID+":", m.log.With("part", "live"))
		deps.Live, deps.Usage, linkDeps.Live, idle.Usage = figures, figures, figures, figures
		limiter = httpapi.NewRedisLimiter(m.deps.Redis, m.deps.Clock.Now)
	}
	if err := m.wireFolders(); err != nil {
		return err
	}
	deps.Folders = m.folders
	if m.service, err = service.New(deps); err != nil {
		return err
	}
	m.apps, err = app.New(app.Deps{Store: m.store, Sessions: m.service, Vault: secrets, Streams: streams, Clock: m.deps.Clock.Now, IDs: m.deps.IDs,
		Random: m.deps.Random, Log: m.log.With("part", "app")})
	if err != nil {
		return err
	}
	proxies := proxylink.New(proxylink.Deps{App: m.apps, Managers: m.AgentPorts, Clock: m.deps.Clock, Log: m.log.With("part", "proxylink")})
	linkDeps.Proxies = func(ctx context.Context, name string, conn *tls.Conn) { proxies.Serve(ctx, name, conn) }
	linkDeps.Sink = m.service.Nodes()
	if m.deps.WrapSink != nil {
		linkDeps.Sink = m.deps.WrapSink(linkDeps.Sink)
	}
	m.wirePeers(&linkDeps)
	if m.link, err = agentlink.New(m.cfg.Agents, linkDeps); err != nil {
		return fmt.Errorf("prepare agent port: %w", err)
	}
	streams.Streams = m.streams()
	loops := m.cfg.Reconcile
	loops.AgentLease = m.cfg.Agents.Lease
	loopDeps := reconcile.Deps{
		Store: m.store, Nodes: m.service.Nodes(), History: m.service, Etcd: m.deps.Etcd, Clock: m.deps.Clock, Log: m.log.With("part", "reconcile"),
		Folders: m.folders, Holder: m.cfg.id(), Prefix: m.cfg.Etcd.Prefix + "/" + m.admin.ClusterID, Planner: planner,
	}
	if m.deps.Health != nil {
		loopDeps.Registry = m.deps.Health.Registry()
		m.deps.Health.Check("postgres", m.store.Ping)
	}
	loopDeps.Idle = idle
	if m.loops, err = reconcile.New(loops, loopDeps); err != nil {
		return err
	}
	graph := graphapi.New(graphapi.Deps{Service: m.service, Folders: m.folders, Actor: httpapi.ActorFrom, Fail: httpapi.Fail, Log: m.log.With("part", "graphapi")})
	m.handler = httpapi.New(httpapi.Deps{
		Service: m.service, Folders: m.folders, Apps: m.apps, GraphQL: graph, Log: m.log.With("part", "httpapi"), Clock: m.deps.Clock.Now, RateLimiter: limiter,
		Info: httpapi.Info{NodeID: m.cfg.id(), Build: m.deps.Build.String(), APIVersion: m.cfg.Wire.APIVersion, ManagerVersion: m.cfg.Wire.ManagerVersion},
	})
	m.api = chassis.NewHTTPServer("manager-api", chassis.HTTPOptions{Listen: m.cfg.Listen, Handler: m.handler, Log: m.log, Drain: 2 * time.Second,
		Configure: func(s *http.Server) { s.WriteTimeout = 0 }})
	return nil
}

// wireFolders prepares the use cases of folders. Without a shared secret there are no storage proxies.
func (m *Manager) wireFolders() error {
	deps := folder.Deps{Store: m.store, Clock: m.deps.Clock.Now, IDs: m.deps.IDs, Log: m.log.With("part", "folder")}
	secret, err := m.cfg.Storage.secret()
	if err != nil {
		return err
	}
	if !secret.IsZero() && m.deps.Etcd != nil {
		m.storage = storagelink.New(storagelink.Config{Prefix: m.cfg.Etcd.Prefix, Secret: secret},
			storagelink.Deps{Etcd: m.deps.Etcd, Clock: m.deps.Clock, Log: m.log.With("part", "storagelink")})
		deps.Proxies = m.storage
	}
	m.folders, err = folder.New(deps)
	return err
}

// Services are the manager's parts; a group starts them in the declared order.
func (m *Manager) Services() []*chassis.Service {
	services := []*chassis.Service{
		chassis.NewService("store", chassis.Hooks{
			Run:  m.store.Run,
			Stop: func(context.Context) error { m.store.Close(); return nil },
		}),
		chassis.NewService("service", chassis.Hooks{Run: m.service.Run}).After("store"),
		chassis.NewService("apps", chassis.Hooks{Run: m.apps.Run}).After("store"),
		m.link.Service("agent-port").After("service", "apps"),
		chassis.NewService("agent-relay", chassis.Hooks{Stop: m.stopRelay}).After("agent-port"),
		chassis.NewService("agent-wakes", chassis.Hooks{Run: m.wakeAgents}).After("agent-port"),
		m.loops.Service().After("agent-relay"),
		m.api.After("service", "agent-port", "agent-relay"),
		// Streams and held requests end with a word to their clients before the server drains the rest.
		chassis.NewService("api-streams", chassis.Hooks{Stop: m.handler.Stop}).After(m.api.Name()),
	}
	if m.storage != nil {
		services = append(services, chassis.NewService("storage-proxies", chassis.Hooks{Run: m.storage.Run}).After("store"),
			chassis.NewService("storage-volumes", chassis.Hooks{Start: m.hearOfVolumes}).After("storage-proxies"))
		m.api.After("storage-volumes")
	}
	if m.peers != nil {
		services = append(services, chassis.NewService("presence", chassis.Hooks{Run: m.announce}).After("manager-api", "agent-port"),
			chassis.NewService("managers", chassis.Hooks{Run: m.peers.Run}).After("store"))
	}
	return services
}

// maxHearing bounds how long the API waits for the first look at storage proxies.
const maxHearing = 3 * time.Second

// hearOfVolumes keeps the first sessions from missing folders that are there. etcd being away costs nothing but this wait.
func (m *Manager) hearOfVolumes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxHearing)
	defer cancel()
	select {
	case <-m.storage.Heard():
	case <-ctx.Done():
	}
	return nil
}

// wakeAgents passes hints about agents' desired state on to the agent port.
func (m *Manager) wakeAgents(ctx context.Context) error {
	prefix := store.AgentTopic("")
	isAgent := func(topic string) bool { return len(topic) > len(prefix) && topic[:len(prefix)] == prefix }
	wakes := m.store.Wakes(isAgent)
	defer wakes.Close()
	for {
		select {
		case <-wakes.C:
			for _, topic := range wakes.Take() {
				if isAgent(topic) {
					m.link.Wake(cluster.AgentID(topic[len(prefix):]))
				} else {
					m.link.WakeAll()
				}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// busy asks a kernel's runner whether it executes something now.
func (m *Manager) busy(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID) (bool, error) {
	c := run.NewClient(run.Options{Transport: service.LookAtRunner(m.streams(), agent, kernel)})
	defer c.Close()
	hello, err := c.Hello(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the runner of kernel %s: %w", kernel, err)
	}
	return hello.Kernel.State == run.KernelBusy, nil
}

// Admin returns the first administrator; created says that this start made it, and only
// then is the password known.
func (m *Manager) Admin() (c service.Credentials, created bool) { return m.admin, m.created }

// Service gives access to the use cases for commands that run in this process.
func (m *Manager) Service() *service.Service { return m.service }

// Folders gives access to the use cases of folders for commands that run in this process.
func (m *Manager) Folders() *folder.Service { return m.folders }

// Apps gives access to the use cases of apps for commands that run in this process.
func (m *Manager) Apps() *app.Service { return m.apps }

// Findings compares the rows with each other, for the machine's own administrator.
func (m *Manager) Findings(ctx context.Context) ([]service.Finding, error) {
	found, err := m.service.Findings(ctx)
	if err != nil {
		return nil, err
	}
	apps, err := m.apps.Findings(ctx)
	return append(found, apps...), err
}

// APIAddr is the address of the API, AgentAddr that of the agent port; valid once they run.
func (m *Manager) APIAddr() string { return m.api.Addr() }

// AgentAddr is the address of the agent port.
func (m *Manager) AgentAddr() string { return m.link.Addr().String() }

// JoinToken makes a new token with which an agent may join.
func (m *Manager) JoinToken(ctx context.Context) (string, error) {
	token, err := m.link.JoinToken(ctx)
	return token.String(), err
}

// lateStreams breaks the ring between service (which opens streams) and agentlink (which
// reports to service): it is filled before either runs.
type lateStreams struct{ service.Streams }

// Close releases what New opened, for a Manager whose services were never started.
func (m *Manager) Close() error { m.store.Close(); return nil }
