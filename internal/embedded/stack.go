package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Config says what to run.
type Config struct {
	// StateDir is the cluster's directory; everything lives below it.
	StateDir string `config:"-"`
	// PostgresBin is a directory with postgres and initdb; empty looks for one.
	PostgresBin string
	// Redis is "auto", "child" or "in-process".
	Redis RedisKind
	// UnsafeNoSync gives up durability for speed, for tests.
	UnsafeNoSync bool
	// ReserveMiB of the state directory's disk are held back for the platform, and given to it when that disk is nearly full; at
	// most a twentieth of the disk. 0 holds none.
	ReserveMiB int `config:"reserve_mib"`
}

// DefaultConfig leaves everything to be found.
func DefaultConfig() Config { return Config{Redis: RedisAuto, ReserveMiB: 256} }

// Validate reports the first field that cannot be used.
func (c Config) Validate() error {
	if c.ReserveMiB < 0 || c.ReserveMiB > 1<<20 {
		return fault.Invalidf("embedded.reserve_mib is %d", c.ReserveMiB).WithNext("choose between 0 and %d", 1<<20)
	}
	switch c.Redis {
	case RedisAuto, RedisChild, RedisInProcess:
		return nil
	}
	return fault.Invalidf("embedded.redis is %q", c.Redis).WithNext("use %q, %q or %q", RedisAuto, RedisChild, RedisInProcess)
}

// Endpoints are how the three services are reached, exactly as external ones would be.
type Endpoints struct {
	PostgresDSN string
	Etcd        *clientv3.Client
	Redis       valkey.ClientOption
}

// Stack is the three services of one state directory.
type Stack struct {
	Postgres *Postgres
	Etcd     *Etcd
	Redis    *Redis
}

// New makes the services without starting them. Whoever calls it holds the state directory's lock.
func New(cfg Config, log *slog.Logger) (*Stack, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fault.Invalidf("state directory %q is not an absolute path", cfg.StateDir)
	}
	if err := prepareStateDir(cfg.StateDir); err != nil {
		return nil, err
	}
	redis, err := NewRedis(cfg.StateDir, cfg.Redis, log)
	if err != nil {
		return nil, err
	}
	return &Stack{
		Postgres: NewPostgres(PostgresConfig{StateDir: cfg.StateDir, BinDir: cfg.PostgresBin, UnsafeNoSync: cfg.UnsafeNoSync}, log),
		Etcd:     NewEtcd(cfg.StateDir, log),
		Redis:    redis,
	}, nil
}

// prepareStateDir makes the directory and its run/: children that run as other users must be
// able to pass through, never to list or read.
func prepareStateDir(dir string) error {
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}
	for _, d := range []string{dir, filepath.Join(dir, "run")} {
		if err := os.MkdirAll(d, mode); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
		if err := os.Chmod(d, mode); err != nil {
			return fmt.Errorf("make state directory: %w", err)
		}
	}
	return nil
}

// Services are "postgres", "etcd" and "redis"; they do not depend on one another.
func (s *Stack) Services() []*chassis.Service {
	return []*chassis.Service{s.Postgres.Service(), s.Etcd.Service(), s.Redis.Service()}
}

// Endpoints returns the addresses; valid once the services run.
func (s *Stack) Endpoints() Endpoints {
	return Endpoints{PostgresDSN: s.Postgres.DSN(), Etcd: s.Etcd.Client(), Redis: s.Redis.Options()}
}

// Start makes and starts all three; stop ends them and waits.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (endpoints *Endpoints, stop func(context.Context) error, err error) {
	s, err := New(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	g, err := chassis.NewGroup(log, s.Services()...)
	if err != nil {
		return nil, nil, err
	}
	if err := g.Start(ctx); err != nil {
		return nil, nil, err
	}
	e := s.Endpoints()
	return &e, g.Stop, nil
}
