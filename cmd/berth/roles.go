package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/runnerbin"
)

// managerParts are a manager that is ready to be started.
type managerParts struct {
	manager  *manager.Manager
	services []*chassis.Service
}

// makeManager connects Redis, which may be away, and builds the manager on it.
func makeManager(ctx context.Context, cfg manager.Config, etcd *clientv3.Client, redis valkey.ClientOption, health *chassis.Health, log *slog.Logger) (*managerParts, error) {
	client, err := valkey.NewClient(redis)
	if err != nil {
		return nil, fault.Unavailablef("Redis at %v does not answer", redis.InitAddress).WithCause(err).
			WithNext("start it, or correct manager.redis.address")
	}
	m, err := manager.New(ctx, cfg, manager.Deps{
		Etcd: etcd, Redis: client, Health: health, Build: chassis.Build(), Log: log,
	})
	if err != nil {
		client.Close()
		return nil, err
	}
	// The client closes after everybody who uses it has stopped.
	kv := chassis.NewService("redis-client", chassis.Hooks{Stop: func(context.Context) error { client.Close(); return nil }})
	services := m.Services()
	for _, s := range services {
		s.After(kv.Name())
	}
	return &managerParts{manager: m, services: append([]*chassis.Service{kv}, services...)}, nil
}

// makeAgent builds an agent on the container engine. The engine need not answer yet.
func makeAgent(s settings, runnerDir string, health *chassis.Health, log *slog.Logger) (*agent.Agent, *docker.Runtime, error) {
	runner, err := runnerbin.Unpack(runnerDir)
	if err != nil {
		return nil, nil, err
	}
	rt, err := docker.New(s.Docker.docker(s.Agent), log.With("part", "docker"))
	if err != nil {
		return nil, nil, err
	}
	a, err := agent.New(s.Agent, agent.Deps{Runtime: rt, RunnerPath: runner, Registry: health.Registry(), Log: log.With("part", "agent")})
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

// redisOptions reach an external Redis.
func redisOptions(c manager.RedisConfig) valkey.ClientOption {
	o := embedded.LeanRedisOptions()
	o.InitAddress, o.Password = []string{c.Address}, c.Password.Reveal()
	if filepath.IsAbs(c.Address) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		}
	}
	return o
}

func newManager() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "manager", Short: "Run the manager role alone, on external PostgreSQL, Redis and etcd", Args: cobra.NoArgs,
		Long: "Run the manager role alone. It needs PostgreSQL 15+, Redis 7 (or Valkey) and etcd 3.4+;\n" +
			"`berth config print --role manager` shows every setting.",
		Example: "  berth manager --config manager.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := loadSettings(path, roleManager, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return runManager(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	return c
}

func runManager(ctx context.Context, s settings, log *slog.Logger) error {
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
	parts, err := makeManager(ctx, s.Manager, etcd, redisOptions(s.Manager.Redis), health, log)
	if err != nil {
		return err
	}
	services := parts.services
	if s.Admin.Listen != "" {
		services = append(services, chassis.NewAdminServer(s.Admin, health, log).Service)
	}
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		file := filepath.Join(s.Manager.StateDir, "client.env")
		admin, created := parts.manager.Admin()
		if _, err := writeClientEnv(file, "http://"+reachable(parts.manager.APIAddr()), admin, created); err != nil {
			return err
		}
		log.Info("manager is ready", "api", parts.manager.APIAddr(), "agents", parts.manager.AgentAddr(), "client_env", file, "version", chassis.Build().Version)
		return nil
	}}).After("manager-api")
	return runGroup(ctx, log, health, append(services, greet))
}

// reachable replaces the addresses that mean "all" by one that a client on this machine can dial.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// addAgentRole gives the client's noun "agent" its second life: with --config it runs the role.
func addAgentRole(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "agent" {
			continue
		}
		var path string
		c.Short = "Look at worker hosts, or run the agent role"
		c.Long += "\n\nWith --config it runs the agent role on this host: it joins the manager named in the\n" +
			"file and runs sessions on the container engine."
		c.Example = "  berth agent list\n  berth agent --config agent.toml"
		c.Flags().StringVar(&path, "config", "", "run the agent role with this TOML file")
		client := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("config") {
				return client(cmd, args)
			}
			s, log, err := loadSettings(path, roleAgent, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return runAgent(ctx, s, log)
		}
	}
}

func runAgent(ctx context.Context, s settings, log *slog.Logger) error {
	// Containers are told apart by the state directory, so it belongs to one agent at a time.
	if err := os.MkdirAll(s.Agent.StateDir, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	release, err := stateDir(s.Agent.StateDir).lock()
	if err != nil {
		return err
	}
	defer release()
	health := chassis.NewHealth()
	a, _, err := makeAgent(s, filepath.Join(s.Agent.StateDir, "lib"), health, log)
	if err != nil {
		return err
	}
	health.Check("agent", a.Ready)
	services := a.Services()
	if s.Admin.Listen != "" {
		services = append(services, chassis.NewAdminServer(s.Admin, health, log).Service)
	}
	return runGroup(ctx, log, health, services)
}

// runGroup runs the services until ctx ends, which is an orderly end.
func runGroup(ctx context.Context, log *slog.Logger, health *chassis.Health, services []*chassis.Service) error {
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
