// Package manager is the role that owns what should be true: tenancy, sessions, placement, folders, circuits.
// This package only makes the parts below it and wires them into services with a declared order:
//
//	store ─► nouns ─► agent port, storage proxies ─► loops ─► API ─► presence
//
// It holds no use case. Clients of PostgreSQL, etcd and Redis come from outside, so that embedded and external
// services are used through the same code. Package platform runs it.
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
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit/syslog"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/httpapi/signature"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/ldap"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/manager/link/peer"
	proxylink "berth.dev/berth/internal/manager/link/proxy"
	storagelink "berth.dev/berth/internal/manager/link/storage"
	"berth.dev/berth/internal/manager/live"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/manager/mail"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/metric/external"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/proxy"
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
	// PasswordCost is what hashing a password takes; the zero value means the default.
	PasswordCost seal.Cost
	Health       *chassis.Health
	Build        chassis.BuildInfo
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
	key     *seal.Key
	nouns   *nouns.Set
	link    *agentlink.Link
	peers   *peer.Directory   // nil without etcd
	relay   *peer.Relay       // nil without etcd
	storage *storagelink.Link // nil without a shared secret
	rights  *folder.Rights
	// recorder gathers the history of use; nil where none is kept.
	recorder *metric.Recorder
	loops    *reconcile.Leader
	api      *chassis.HTTPServer
	certs    *certs.Source // nil without TLS
	handler  *httpapi.API
	admin    tenancy.Credentials
	created  bool
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
	var err error
	if m.store, err = store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), MaxConns: cfg.Postgres.conns(runtime.NumCPU())},
		m.log); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	key, err := m.masterKey(ctx)
	if err == nil {
		err = m.wire(ctx, key)
	}
	if err != nil {
		m.store.Close()
		return nil, err
	}
	return m, nil
}

func (m *Manager) wire(ctx context.Context, key *seal.Key) (err error) {
	m.key = key
	m.admin, m.created, err = Bootstrap(ctx, tenancy.Deps{Store: m.store, Seal: key, IDs: m.deps.IDs, Random: m.deps.Random,
		PasswordCost: m.deps.PasswordCost, Log: m.log})
	if err != nil {
		return fmt.Errorf("make the first rows: %w", err)
	}
	streams := &lateStreams{}
	planner := scheduling.NewPlanner(m.store, m.deps.Clock)
	roles, err := m.cfg.otpRoles()
	if err != nil {
		return err
	}
	deps := nouns.Deps{
		Store: m.store, Seal: key, Vault: &vault{m.store, key}, ClusterID: m.admin.ClusterID,
		Clock: m.deps.Clock.Now, IDs: m.deps.IDs, Random: m.deps.Random, PasswordCost: m.deps.PasswordCost, Streams: streams,
		OTPRoles: roles, Link: m.cfg.mailLink(), OIDC: m.cfg.OIDC, WebOrigins: m.cfg.WebOrigins,
		SignUp:    tenancy.SignUpPolicy{Domains: m.cfg.SignUp.Domains, Active: m.cfg.SignUp.Active},
		Explainer: planner,
		Revoked: func(ctx context.Context) ([]proxy.Revocation, error) {
			return ca.RevokedProxies(ctx, &vault{m.store, key})
		},
		Callbacks: callback.Policy{AllowPrivate: m.cfg.Callbacks.AllowPrivate}, LoginPolicy: m.cfg.Login.policy(), Log: m.log,
	}
	linkDeps := agentlink.Deps{
		ClusterID: m.admin.ClusterID, Vault: &vault{m.store, key}, Clock: m.deps.Clock, Random: m.deps.Random,
		Forget: func(ctx context.Context, n ca.Node) error { return freeAddresses(ctx, m.store, n) },
		Wrap:   m.deps.WrapAgents, Log: m.log.With("part", "agentlink"),
	}
	idleDeps := idle.LoopDeps{Clock: m.deps.Clock, Busy: m.busy, Tell: m.tell}
	limiter := throttle.RateLimiter(throttle.NewLocalLimiter(m.deps.Clock.Now))
	if m.deps.Redis != nil {
		figures := live.New(m.deps.Redis, "berth:"+m.admin.ClusterID+":", m.log.With("part", "live"))
		deps.Live, deps.Usage, linkDeps.Live, idleDeps.Usage = figures, figures, figures, figures
		limiter = throttle.NewRedisLimiter(m.deps.Redis, m.deps.Clock.Now)
		deps.Logins = login.NewRedis(m.deps.Redis, "berth:"+m.admin.ClusterID+":", m.deps.Clock.Now)
	}
	if err := m.wireStorage(); err != nil {
		return err
	}
	if m.storage != nil {
		deps.Proxies = m.storage
	}
	if history := external.New(m.cfg.Metrics.Prometheus, m.log.With("part", "metrics")); history != nil {
		deps.History = history
	}
	m.rights = folder.NewRights(m.store, m.deps.Clock.Now, m.log.With("part", "rights"))
	if sender := mail.New(m.cfg.Mail); sender != nil {
		deps.Mailer = sender
	}
	if deps.Provisioners, err = m.cfg.provisioners(); err != nil {
		return err
	}
	if m.cfg.Directory.URL != "" {
		client, err := ldap.New(m.cfg.Directory.Config)
		if err != nil {
			return err
		}
		deps.DirectoryClient, deps.DirectoryPolicy = client, m.cfg.Directory.policy()
	}
	if m.nouns, err = nouns.New(deps); err != nil {
		return err
	}
	proxies := proxylink.New(proxylink.Deps{App: m.nouns.Apps, Managers: m.AgentPorts, Counts: m.proxyCounts, Clock: m.deps.Clock,
		Log: m.log.With("part", "proxylink")})
	linkDeps.Proxies = func(ctx context.Context, name string, conn *tls.Conn) { proxies.Serve(ctx, name, conn) }
	linkDeps.Grants = m.nouns.Apps
	linkDeps.Sink = m.nouns.Reports
	if m.cfg.Metrics.Export && m.deps.Health != nil {
		exporter := metric.NewExporter(linkDeps.Live, m.deps.Clock.Now)
		m.deps.Health.Registry().MustRegister(exporter)
		linkDeps.Live = exporter
	}
	if m.cfg.Metrics.Retention > 0 {
		m.recorder = metric.NewRecorder(linkDeps.Live, m.store, m.deps.Clock, m.log.With("part", "metrics"))
		linkDeps.Live = m.recorder
	}
	if m.cfg.Idle.WorkIsUse {
		linkDeps.Live = idle.NewWork(linkDeps.Live, m.nouns.Sessions.Uses(), m.deps.Clock.Now)
	}
	if m.deps.WrapSink != nil {
		linkDeps.Sink = m.deps.WrapSink(linkDeps.Sink)
	}
	m.wirePeers(&linkDeps)
	if m.link, err = agentlink.New(m.cfg.Agents, linkDeps); err != nil {
		return fmt.Errorf("prepare agent port: %w", err)
	}
	streams.Streams = m.streams()
	if err := m.wireLoops(planner, idleDeps); err != nil {
		return err
	}
	return m.wireAPI(limiter)
}

// wireLoops gathers the control loops of all nouns.
func (m *Manager) wireLoops(planner *scheduling.Planner, idleDeps idle.LoopDeps) error {
	var registry prometheus.Registerer
	if m.deps.Health != nil {
		registry = m.deps.Health.Registry()
		m.deps.Health.Check("postgres", m.store.Ping)
		m.deps.Health.Check("orders", m.link.Delivering)
	}
	c, log := m.cfg.Reconcile, m.log.With("part", "reconcile")
	placing, err := scheduling.New(scheduling.Config{Debounce: c.Debounce, Resync: c.Resync, Networks: m.cfg.SessionNetworks},
		scheduling.Deps{Store: m.store, Clock: m.deps.Clock, Registry: registry, Planner: planner, Log: log})
	if err != nil {
		return err
	}
	idleDeps.Registry = registry
	sweep := node.SweepConfig{Every: c.Sweep, Lease: m.cfg.Agents.Lease, LostGrace: c.LostGrace}
	loops := slices.Concat(
		placing.Loops(), []reconcile.Loop{m.nouns.Reports.Loop(sweep)}, m.nouns.Idle.Loops(idleDeps), m.nouns.Folders.Loops(),
		m.nouns.Images.Loops(), m.nouns.Tenancy.Loops(), m.nouns.Purges.Loops(), metric.Loops(m.cfg.Metrics, m.deps.Clock.Now),
		m.nouns.Directory.Loops(), m.nouns.Provision.Loops(), m.nouns.Notices.Loops(),
		syslog.Loops(m.cfg.AuditSyslog, m.store, m.nouns.Audit, m.cfg.id()),
		m.nouns.Sessions.Loops(session.LoopConfig{Sweep: c.Sweep, EventRetention: c.EventRetention,
			SessionRetention: c.SessionRetention, TaskRetention: c.TaskRetention, AuditRetention: c.AuditRetention,
			UsageRetention: c.UsageRetention}),
	)
	m.loops, err = reconcile.New(reconcile.Config{LeaderTTL: c.LeaderTTL}, reconcile.Deps{
		Store: m.store, Loops: loops, Etcd: m.deps.Etcd, Clock: m.deps.Clock, Registry: registry, Log: log,
		Holder: m.cfg.id(), Prefix: m.cfg.Etcd.Prefix + "/" + m.admin.ClusterID,
	})
	return err
}

func (m *Manager) wireAPI(limiter throttle.RateLimiter) error {
	trusted, err := m.cfg.trusted()
	if err != nil {
		return err
	}
	var seen signature.Shared
	if m.deps.Redis != nil {
		seen = signature.NewRedisSeen(m.deps.Redis)
	}
	graph := graphapi.New(graphapi.Deps{Nouns: m.nouns, Actor: httpapi.ActorFrom, HidesTrash: httpapi.HidesTrash, Fail: httpapi.Fail,
		Budget: limiter, Config: &m.cfg.GraphQL, Log: m.log.With("part", "graphapi")})
	m.handler = httpapi.New(httpapi.Deps{
		Nouns: m.nouns, GraphQL: graph, Log: m.log.With("part", "httpapi"), Clock: m.deps.Clock.Now, RateLimiter: limiter,
		Limits:        m.cfg.Streams,
		AnonymousRate: m.cfg.AnonymousRate,
		Trusted:       trusted, ActorsTurn: m.store.ActorsTurn, Seen: seen, RequireDigest: m.cfg.RequireBodyDigest,
		HSTS: m.cfg.HSTS && !m.cfg.TLS.Generated,
		Info: httpapi.Info{NodeID: m.cfg.id(), Build: m.deps.Build.String(), APIVersion: m.cfg.Wire.APIVersion,
			ManagerVersion: m.cfg.Wire.ManagerVersion},
	})
	if m.certs, err = m.openTLS(); err != nil {
		return err
	}
	m.api = m.apiServer(m.handler, m.certs)
	return nil
}

// proxyCounts fails when the certificate of an app proxy's connection was replaced or revoked.
func (m *Manager) proxyCounts(ctx context.Context, conn net.Conn) error {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return fault.New(fault.Internal, "the connection of an app proxy has no TLS")
	}
	_, _, err := m.link.Authority().Proxy(ctx, c.ConnectionState())
	return err
}

// wireStorage prepares the connections to storage proxies. Without a shared secret there are none.
func (m *Manager) wireStorage() error {
	secret, err := m.cfg.Storage.secret()
	if err != nil {
		return err
	}
	if !secret.IsZero() && m.deps.Etcd != nil {
		m.storage = storagelink.New(storagelink.Config{Prefix: m.cfg.Etcd.Prefix, Secret: secret},
			storagelink.Deps{Etcd: m.deps.Etcd, Clock: m.deps.Clock, Log: m.log.With("part", "storagelink")})
	}
	return nil
}

// Services are the manager's parts; a group starts them in the declared order.
func (m *Manager) Services() []*chassis.Service {
	services := []*chassis.Service{
		chassis.NewService("store", chassis.Hooks{
			Run:  m.store.Run,
			Stop: func(context.Context) error { m.store.Close(); return nil },
		}),
		chassis.NewService("operations", chassis.Hooks{Run: m.nouns.Operations.Run}).After("store"),
		chassis.NewService("sessions", chassis.Hooks{Run: m.nouns.Sessions.Run}).After("operations"),
		chassis.NewService("refused-logins", chassis.Hooks{Run: m.nouns.Audit.Run}).After("store"),
		chassis.NewService("letters", chassis.Hooks{Run: m.nouns.Letters.Run}).After("store"),
		chassis.NewService("apps", chassis.Hooks{Run: m.nouns.Apps.Run}).After("sessions"),
		m.link.Service("agent-port").After("sessions", "apps"),
		chassis.NewService("agent-relay", chassis.Hooks{Stop: m.stopRelay}).After("agent-port"),
		chassis.NewService("agent-wakes", chassis.Hooks{Run: m.wakeAgents}).After("agent-port"),
		m.loops.Service().After("agent-relay"),
		m.api.After("sessions", "agent-port", "agent-relay"),
		// Streams and held requests end with a word to their clients before the server drains the rest.
		chassis.NewService("api-streams", chassis.Hooks{Run: m.handler.Run, Stop: m.handler.Stop}).After(m.api.Name()),
	}
	if m.recorder != nil {
		services = append(services, chassis.NewService("metrics", chassis.Hooks{Run: m.recorder.Run}).After("store"))
	}
	if c := m.cfg.TLS.ACME; c.Enabled && c.HTTPListen != "" {
		services = append(services, chassis.NewHTTPServer("manager-acme", chassis.HTTPOptions{
			Listen: c.HTTPListen, Handler: m.certs.HTTP(http.HandlerFunc(onlyTLS)), Log: m.log, Drain: time.Second,
		}).Service)
	}
	if m.storage != nil {
		services = append(services, chassis.NewService("storage-proxies", chassis.Hooks{Run: m.storage.Run}).After("store"),
			chassis.NewService("folder-rights", chassis.Hooks{Run: m.rights.Follow}).After("store"),
			chassis.NewService("proxy-rights", chassis.Hooks{Run: m.pushRights}).After("storage-proxies", "folder-rights"),
			chassis.NewService("proxy-volumes", chassis.Hooks{Start: m.hearOfVolumes}).After("storage-proxies"))
		m.api.After("proxy-volumes")
	}
	if m.peers != nil {
		services = append(services, chassis.NewService("presence", chassis.Hooks{Run: m.announce}).After("manager-api", "agent-port"),
			chassis.NewService("managers", chassis.Hooks{Run: m.peers.Run}).After("store"))
	}
	return services
}

// pushRights tells storage proxies whose rights changed.
func (m *Manager) pushRights(ctx context.Context) error {
	return m.storage.PushRights(ctx, func() storagelink.RightsWatch { return m.rights.Watch() })
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

// tell shows a text on the terminals of a kernel.
func (m *Manager) tell(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, text string) error {
	c := run.NewClient(run.Options{Transport: session.LookAtRunner(m.streams(), agent, kernel)})
	defer c.Close()
	return c.Notice(ctx, text)
}

// busy asks a kernel's runner whether it executes something now.
func (m *Manager) busy(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID) (bool, error) {
	c := run.NewClient(run.Options{Transport: session.LookAtRunner(m.streams(), agent, kernel)})
	defer c.Close()
	hello, err := c.Hello(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the runner of kernel %s: %w", kernel, err)
	}
	return hello.Kernel.State == run.KernelBusy, nil
}

// Admin returns the first administrator; created says that this start made it, and only
// then is the password known.
func (m *Manager) Admin() (c tenancy.Credentials, created bool) { return m.admin, m.created }

// Nouns gives access to the use cases for commands that run in this process.
func (m *Manager) Nouns() *nouns.Set { return m.nouns }

// Findings compares the rows with each other, for the machine's own administrator.
func (m *Manager) Findings(ctx context.Context) ([]cluster.Finding, error) {
	found, err := m.nouns.Operations.Findings(ctx)
	if err != nil {
		return nil, err
	}
	apps, err := m.nouns.Apps.Findings(ctx)
	return append(found, apps...), err
}

// APIAddr is the address of the API, AgentAddr that of the agent port; valid once they run.
func (m *Manager) APIAddr() string { return m.api.Addr() }

// AgentAddr is the address of the agent port.
func (m *Manager) AgentAddr() string { return m.link.Addr().String() }

// Authority decides who may join the cluster; valid once the agent port runs.
func (m *Manager) Authority() *ca.Authority { return m.link.Authority() }

// OpenAuthority is Authority without a running manager, on its database and with its master key. The caller calls done.
func OpenAuthority(ctx context.Context, cfg Config) (a *ca.Authority, done func(), err error) {
	key, err := seal.Load(masterKeyFile(cfg.StateDir), rand.Reader)
	if err != nil {
		return nil, nil, fault.Invalidf("the master key of the managers cannot be read").WithCause(err).
			WithNext("run this on a manager's host as the manager's user, after its first start")
	}
	db, err := store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), SkipMigrations: true, MaxConns: 1},
		slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	a, err = ca.OpenExisting(ctx, ca.Options{Vault: &vault{db, key}, Clock: chassis.RealClock(), Random: rand.Reader,
		Forget: func(ctx context.Context, n ca.Node) error { return freeAddresses(ctx, db, n) }})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return a, db.Close, nil
}

// freeAddresses lets others have the addresses of an app proxy whose certificates were revoked.
func freeAddresses(ctx context.Context, db *store.Store, n ca.Node) error {
	if n.Role != ca.RoleAppProxy {
		return nil
	}
	return db.FreeProxyAddresses(ctx, n.Name)
}

// lateStreams breaks the ring between session (which opens streams) and link/agent (which
// reports to node): it is filled before either runs.
type lateStreams struct{ session.Streams }

// Close releases what New opened, for a Manager whose services were never started.
func (m *Manager) Close() error { m.store.Close(); return nil }
