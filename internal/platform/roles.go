package platform

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/runnerbin"
	"berth.dev/berth/internal/storage"
	"berth.dev/berth/internal/webserver"
	"berth.dev/berth/web"
)

// Manager is the manager role with everything that it needs, ready to be started.
type Manager struct {
	*manager.Manager
	services []*chassis.Service
}

// Services are those of the role and of what it needs.
func (m *Manager) Services() []*chassis.Service { return m.services }

// NewManager builds a manager. It connects to Redis, which may be away, and closes the connection after everybody who uses it has
// stopped; nil means that there is no Redis.
func NewManager(ctx context.Context, cfg manager.Config, redis *valkey.ClientOption, deps manager.Deps) (*Manager, error) {
	deps.Build = chassis.Build()
	if redis == nil {
		m, err := manager.New(ctx, cfg, deps)
		if err != nil {
			return nil, err
		}
		return &Manager{m, m.Services()}, nil
	}
	client, err := valkey.NewClient(*redis)
	if err != nil {
		return nil, fault.Unavailablef("Redis at %v does not answer", redis.InitAddress).WithCause(err).
			WithNext("start it, or correct manager.redis.address")
	}
	deps.Redis = client
	m, err := manager.New(ctx, cfg, deps)
	if err != nil {
		client.Close()
		return nil, err
	}
	kv := chassis.NewService("redis-client", chassis.Hooks{Stop: func(context.Context) error { client.Close(); return nil }})
	services := m.Services()
	for _, s := range services {
		s.After(kv.Name())
	}
	return &Manager{m, append([]*chassis.Service{kv}, services...)}, nil
}

// imports takes the images of an engine into the catalogue.
type imports func(context.Context, []cluster.NodeImage) error

// newDockerAgent builds an agent on the container engine. The engine need not answer yet. own is nil where the engine is not the
// manager's own.
func newDockerAgent(s Settings, runnerDir string, own imports, health *chassis.Health,
	log *slog.Logger) (*agent.Agent, *docker.Runtime, error) {
	runner, err := runnerbin.Unpack(runnerDir)
	if err != nil {
		return nil, nil, err
	}
	rt, err := s.Engine(log.With("part", "docker"))
	if err != nil {
		return nil, nil, err
	}
	a, err := agent.New(s.Agent, agent.Deps{
		Runtime: rt, RunnerPath: runner, Registry: health.Registry(), Log: log.With("part", "agent"), Images: own,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("prepare agent: %w", joinClose(err, rt.Close))
	}
	return a, rt, nil
}

func joinClose(err error, shut func() error) error {
	if cerr := shut(); cerr != nil {
		return fmt.Errorf("%w (and close: %w)", err, cerr)
	}
	return err
}

// redisOptions reach an external Redis; nil when none is configured.
func redisOptions(c manager.RedisConfig) *valkey.ClientOption {
	if c.Address == "" {
		return nil
	}
	o := embedded.LeanRedisOptions()
	o.InitAddress, o.Password = []string{c.Address}, c.Password.Reveal()
	if filepath.IsAbs(c.Address) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		}
	}
	return &o
}

// RunManager runs the manager role alone until ctx ends. When it serves, it writes client.env into its state directory and calls
// ready, which may be nil.
func RunManager(ctx context.Context, s Settings, log *slog.Logger, ready func(*Manager)) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: s.Manager.Etcd.Endpoints, DialTimeout: 5 * time.Second, Context: ctx})
	if err != nil {
		return fault.Unavailablef("etcd at %v cannot be reached", s.Manager.Etcd.Endpoints).WithCause(err).
			WithNext("start it, or correct manager.etcd.endpoints")
	}
	defer etcd.Close()
	probe, cancel := context.WithTimeout(ctx, 10*time.Second)
	_, err = etcd.Get(probe, s.Manager.Etcd.Prefix)
	cancel()
	if err != nil {
		return fault.Unavailablef("etcd at %v does not answer", s.Manager.Etcd.Endpoints).WithCause(err).
			WithNext("start it, or correct manager.etcd.endpoints")
	}
	health := chassis.NewHealth()
	m, err := NewManager(ctx, s.Manager, redisOptions(s.Manager.Redis), manager.Deps{Etcd: etcd, Health: health, Log: log})
	if err != nil {
		return err
	}
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		file := StateDir(s.Manager.StateDir).ClientEnv()
		admin, created := m.Admin()
		how := m.Transport()
		if _, err := writeClientEnv(file, endpointOf(how, m.APIAddr()), how.Fingerprint, admin, created); err != nil {
			return err
		}
		if how.Exposed {
			log.Warn("the API "+exposedProblem, "api", m.APIAddr(), "next", exposedNext)
		}
		log.Info("manager is ready", "api", m.APIAddr(), "tls", encryptionOf(how).String(), "agents", m.AgentAddr(),
			"client_env", file, "version", chassis.Build().Version)
		if ready != nil {
			ready(m)
		}
		return nil
	}}).After("manager-api")
	return runAlone(ctx, s, log, health, append(m.Services(), greet))
}

// RunAgent runs the agent role alone until ctx ends.
func RunAgent(ctx context.Context, s Settings, log *slog.Logger) error {
	// Containers are told apart by the state directory, so it belongs to one agent at a time.
	if err := os.MkdirAll(s.Agent.StateDir, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	dir := StateDir(s.Agent.StateDir)
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release()
	health := chassis.NewHealth()
	a, _, err := newDockerAgent(s, dir.Path("lib"), nil, health, log)
	if err != nil {
		return err
	}
	health.Check("agent", a.Ready)
	return runAlone(ctx, s, log, health, a.Services())
}

// RunStorage runs the storage role alone until ctx ends.
func RunStorage(ctx context.Context, s Settings, log *slog.Logger) error {
	// etcd may be away: files are served all the same.
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: s.Storage.Etcd.Endpoints, DialTimeout: 5 * time.Second, Context: context.WithoutCancel(ctx),
	})
	if err != nil {
		return fault.Invalidf("etcd at %v cannot be used", s.Storage.Etcd.Endpoints).WithCause(err).
			WithNext("correct storage.etcd.endpoints")
	}
	defer etcd.Close()
	health := chassis.NewHealth()
	deps := storage.Deps{Etcd: etcd, Metrics: health.Registry(), Build: chassis.Build(), Log: log}
	proxy, err := storage.New(ctx, s.Storage, deps)
	if err != nil {
		return err
	}
	health.Check("storage", proxy.Ready)
	services := proxy.Services()
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		log.Info("storage proxy is ready", "proxy", proxy.Name(), "clients", proxy.ClientURL(), "managers", proxy.ManagerURL(),
			"version", chassis.Build().Version)
		return nil
	}}).After(names(services)...)
	return runAlone(ctx, s, log, health, append(services, greet))
}

// RunAppProxy runs the app proxy role alone until ctx ends.
func RunAppProxy(ctx context.Context, s Settings, log *slog.Logger) error {
	if err := os.MkdirAll(s.AppProxy.StateDir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	release, err := StateDir(s.AppProxy.StateDir).Lock()
	if err != nil {
		return err
	}
	defer release()
	proxy, err := appproxy.New(s.AppProxy, appproxy.Deps{Build: chassis.Build(), Log: log})
	if err != nil {
		return err
	}
	health := chassis.NewHealth()
	health.Check("appproxy", proxy.Ready)
	services := proxy.Services()
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		log.Info("app proxy listens", "proxy", proxy.Name(), "url", proxy.URL(), "version", chassis.Build().Version)
		return nil
	}}).After(names(services)...)
	return runAlone(ctx, s, log, health, append(services, greet))
}

// RunWebServer runs the web server role alone until ctx ends.
func RunWebServer(ctx context.Context, s Settings, log *slog.Logger) error {
	health := chassis.NewHealth()
	server, err := webserver.New(s.WebServer, webserver.Deps{
		Console: web.Console(), Registry: health.Registry(), Build: chassis.Build(), Log: log})
	if err != nil {
		return err
	}
	health.Check("webserver", server.Ready)
	services := server.Services()
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		if server.Exposed() {
			log.Warn("the web server "+exposedProblem, "listen", server.Addr(), "next", webExposedNext)
		}
		log.Info("web server listens", "url", server.URL(), "fingerprint", server.Fingerprint(), "version", chassis.Build().Version)
		return nil
	}}).After(names(services)...)
	return runAlone(ctx, s, log, health, append(services, greet))
}

func names(services []*chassis.Service) []string {
	var out []string
	for _, s := range services {
		out = append(out, s.Name())
	}
	return out
}

// runAlone runs the services of one role, with a port for its operator where one is configured, until ctx ends, which is an
// orderly end.
func runAlone(ctx context.Context, s Settings, log *slog.Logger, health *chassis.Health, services []*chassis.Service) error {
	if s.Admin.Listen != "" {
		services = append(services, chassis.NewAdminServer(s.Admin, health, log).Service)
	}
	g, err := chassis.NewGroup(log, services...)
	if err != nil {
		return err
	}
	health.Watch(services...)
	chassis.RelaxTimers()
	err = g.Run(ctx)
	if err != nil && ctx.Err() != nil && g.Err() == nil {
		log.Warn("stopped, but not cleanly", "error", err)
		return nil
	}
	return err
}

// Start starts services in one group, in their order. The caller stops the group.
func Start(ctx context.Context, log *slog.Logger, services ...*chassis.Service) (*chassis.Group, error) {
	g, err := chassis.NewGroup(log, services...)
	if err != nil {
		return nil, err
	}
	if err := g.Start(ctx); err != nil {
		return nil, err
	}
	return g, nil
}
