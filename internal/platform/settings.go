package platform

import (
	"io"
	"log/slog"
	"time"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/storage"
	"berth.dev/berth/internal/webserver"
)

// Settings is the whole configuration; one file may serve every role, each of which reads
// its own sections.
type Settings struct {
	Log       chassis.LogConfig
	Admin     chassis.AdminConfig
	Manager   manager.Config
	Agent     agent.Config
	Docker    EngineSettings
	Storage   storage.Config
	AppProxy  appproxy.Config  `config:"appproxy"`
	WebServer webserver.Config `config:"webserver"`
	Embedded  embedded.Config
}

// EngineSettings is the agent's container engine.
type EngineSettings struct {
	// Host is unix:///path or tcp://host:port; empty means DOCKER_HOST, else the usual socket.
	Host string
	// LogMaxBytes bounds the log of one container.
	LogMaxBytes int64
	// PullIdle ends a pull that reports nothing for so long.
	PullIdle time.Duration
}

// DefaultSettings are the settings where the operator says nothing.
func DefaultSettings() Settings {
	return Settings{
		Log: chassis.DefaultLogConfig(), Admin: chassis.AdminConfig{Listen: "127.0.0.1:0"},
		Manager: manager.DefaultConfig(), Agent: agent.DefaultConfig(),
		Docker:   EngineSettings{LogMaxBytes: 20 << 20, PullIdle: 5 * time.Minute},
		Storage:  storage.DefaultConfig(),
		AppProxy: appproxy.DefaultConfig(), WebServer: webserver.DefaultConfig(),
		Embedded: embedded.DefaultConfig(),
	}
}

// dockerConfig is the configuration of the agent's container engine.
func (s Settings) dockerConfig() docker.Config {
	return docker.Config{Host: s.Docker.Host, LogMaxBytes: s.Docker.LogMaxBytes, PullIdle: s.Docker.PullIdle,
		Cluster: s.Agent.Scope(), Agent: cluster.AgentID(s.Agent.ID)}
}

// Engine is the agent's container engine, which need not answer yet. The caller closes it.
func (s Settings) Engine(log *slog.Logger) (*docker.Runtime, error) {
	return docker.New(s.dockerConfig(), log)
}

// The names of roles in `berth config`.
const (
	RoleUp        = "up"
	RoleManager   = "manager"
	RoleAgent     = "agent"
	RoleStorage   = "storage"
	RoleAppProxy  = "appproxy"
	RoleWebServer = "webserver"
)

// Check validates the sections that a role reads.
func (s Settings) Check(role string) error {
	if err := s.Log.Validate(); err != nil {
		return err
	}
	if role == RoleManager || role == RoleUp {
		if err := s.Manager.Validate(); err != nil {
			return err
		}
	}
	if role == RoleManager {
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
	if role == RoleAgent || role == RoleUp {
		if err := s.Agent.Validate(); err != nil {
			return err
		}
		if err := s.dockerConfig().WithDefaults().Validate(); err != nil {
			return err
		}
	}
	if role == RoleStorage || role == RoleUp {
		if err := s.Storage.Validate(); err != nil {
			return err
		}
	}
	if role == RoleStorage {
		if err := s.Storage.Complete(); err != nil {
			return err
		}
		if len(s.Storage.Etcd.Endpoints) == 0 {
			return fault.Invalidf("storage.etcd.endpoints is not set").WithNext("set it to the managers' etcd, a list such as [\"10.0.0.1:2379\"]")
		}
	}
	if role == RoleAppProxy || role == RoleUp {
		if err := s.AppProxy.Validate(); err != nil {
			return err
		}
	}
	if role == RoleAppProxy {
		if err := s.AppProxy.Complete(); err != nil {
			return err
		}
	}
	if role == RoleWebServer || role == RoleUp {
		if err := s.WebServer.Validate(); err != nil {
			return err
		}
	}
	if role == RoleWebServer {
		if err := s.WebServer.Complete(); err != nil {
			return err
		}
	}
	if role == RoleUp {
		return s.Embedded.Validate()
	}
	return nil
}

// LoadSettings reads a role's configuration and makes its logger, writing to w.
func LoadSettings(path, role string, w io.Writer) (Settings, *slog.Logger, error) {
	c, err := chassis.LoadFile(DefaultSettings(), path, nil)
	if err != nil {
		return Settings{}, nil, err
	}
	if err := c.Value.Check(role); err != nil {
		return Settings{}, nil, err
	}
	log, err := chassis.NewLogger(c.Value.Log, w)
	return c.Value, log, err
}

// SectionsOf names the sections of the configuration that a role reads; nil means all.
func SectionsOf(role string) []string {
	switch role {
	case RoleManager:
		return []string{"log", "admin", "manager"}
	case RoleAgent:
		return []string{"log", "admin", "agent", "docker"}
	case RoleStorage:
		return []string{"log", "admin", "storage"}
	case RoleAppProxy:
		return []string{"log", "admin", "appproxy"}
	case RoleWebServer:
		return []string{"log", "admin", "webserver"}
	}
	return nil
}
