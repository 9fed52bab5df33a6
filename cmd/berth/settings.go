package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/storage"
)

// settings is the whole configuration; one file may serve every role, each of which reads
// its own sections.
type settings struct {
	Log      chassis.LogConfig
	Admin    chassis.AdminConfig
	Manager  manager.Config
	Agent    agent.Config
	Docker   engineSettings
	Storage  storage.Config
	AppProxy appproxy.Config `config:"appproxy"`
	Embedded embedded.Config
}

// engineSettings is the agent's container engine.
type engineSettings struct {
	// Host is unix:///path or tcp://host:port; empty means DOCKER_HOST, else the usual socket.
	Host string
	// LogMaxBytes bounds the log of one container.
	LogMaxBytes int64
	// PullIdle ends a pull that reports nothing for so long.
	PullIdle time.Duration
}

func (e engineSettings) docker(a agent.Config) docker.Config {
	return docker.Config{Host: e.Host, LogMaxBytes: e.LogMaxBytes, PullIdle: e.PullIdle, Cluster: a.Scope(), Agent: cluster.AgentID(a.ID)}
}

func defaultSettings() settings {
	return settings{
		Log: chassis.DefaultLogConfig(), Admin: chassis.AdminConfig{Listen: "127.0.0.1:0"},
		Manager: manager.DefaultConfig(), Agent: agent.DefaultConfig(),
		Docker:   engineSettings{LogMaxBytes: 20 << 20, PullIdle: 5 * time.Minute},
		Storage:  storage.DefaultConfig(),
		AppProxy: appproxy.DefaultConfig(),
		Embedded: embedded.DefaultConfig(),
	}
}

// The names of roles in `berth config`.
const (
	roleUp       = "up"
	roleManager  = "manager"
	roleAgent    = "agent"
	roleStorage  = "storage"
	roleAppProxy = "appproxy"
)

// check validates the sections that a role reads.
func (s settings) check(role string) error {
	if err := s.Log.Validate(); err != nil {
		return err
	}
	if role == roleManager || role == roleUp {
		if err := s.Manager.Validate(); err != nil {
			return err
		}
	}
	if role == roleManager {
		if s.Manager.Postgres.DSN.IsZero() {
			return fault.Invalidf("manager.postgres.dsn is not set").
				WithNext("set it to postgres://user:password@host:5432/berth, or use `berth up`, which brings a PostgreSQL")
		}
		if len(s.Manager.Etcd.Endpoints) == 0 {
			return fault.Invalidf("manager.etcd.endpoints is not set").WithNext("set it to a list such as [\"10.0.0.1:2379\"]")
		}
		if s.Manager.Redis.Address == "" {
			return fault.Invalidf("manager.redis.address is not set").WithNext("set it to host:port or the path of a unix socket")
		}
	}
	if role == roleAgent || role == roleUp {
		if err := s.Agent.Validate(); err != nil {
			return err
		}
		if err := s.Docker.docker(s.Agent).WithDefaults().Validate(); err != nil {
			return err
		}
	}
	if role == roleStorage || role == roleUp {
		if err := s.Storage.Validate(); err != nil {
			return err
		}
	}
	if role == roleStorage {
		if err := s.Storage.Complete(); err != nil {
			return err
		}
		if len(s.Storage.Etcd.Endpoints) == 0 {
			return fault.Invalidf("storage.etcd.endpoints is not set").WithNext("set it to the managers' etcd, a list such as [\"10.0.0.1:2379\"]")
		}
	}
	if role == roleAppProxy || role == roleUp {
		if err := s.AppProxy.Validate(); err != nil {
			return err
		}
	}
	if role == roleAppProxy {
		if err := s.AppProxy.Complete(); err != nil {
			return err
		}
	}
	if role == roleUp {
		return s.Embedded.Validate()
	}
	return nil
}

// loadSettings reads a role's configuration and makes its logger, writing to w.
func loadSettings(path, role string, w io.Writer) (settings, *slog.Logger, error) {
	c, err := chassis.LoadFile(defaultSettings(), path, nil)
	if err != nil {
		return settings{}, nil, err
	}
	if err := c.Value.check(role); err != nil {
		return settings{}, nil, err
	}
	log, err := chassis.NewLogger(c.Value.Log, w)
	return c.Value, log, err
}

func newConfig() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Print or check the configuration of a role"}
	var path, role string
	c.PersistentFlags().StringVar(&path, "config", "", "TOML file")
	c.PersistentFlags().StringVar(&role, "role", roleUp, "role to look at: up, manager, agent, storage or appproxy")
	load := func() (*chassis.Config[settings], error) {
		switch role {
		case roleUp, roleManager, roleAgent, roleStorage, roleAppProxy:
		default:
			return nil, fault.Invalidf("there is no role %q", role).WithNext("use --role up, manager, agent, storage or appproxy")
		}
		return chassis.LoadFile(defaultSettings(), path, nil)
	}
	c.AddCommand(&cobra.Command{
		Use: "print", Short: "Print the effective configuration as TOML, secrets redacted", Args: cobra.NoArgs,
		Long: "Print the effective configuration: defaults, then the file, then environment variables\n" +
			"BERTH_<SECTION>__<KEY>. Values that are not defaults say where they come from.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			return cfg.Print(cmd.OutOrStdout(), sectionsOf(role)...)
		},
	}, &cobra.Command{
		Use: "check", Short: "Check a configuration and say what is wrong with it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			if err := cfg.Value.check(role); err != nil {
				return err
			}
			say(cmd, "The configuration for `berth %s` is good.", role)
			return nil
		},
	})
	return c
}

func sectionsOf(role string) []string {
	switch role {
	case roleManager:
		return []string{"log", "admin", "manager"}
	case roleAgent:
		return []string{"log", "admin", "agent", "docker"}
	case roleStorage:
		return []string{"log", "admin", "storage"}
	case roleAppProxy:
		return []string{"log", "admin", "appproxy"}
	}
	return nil
}
