package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage"
)

func newStorage() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "storage", Short: "Run the storage role alone: a proxy in front of volumes", Args: cobra.NoArgs,
		Long: "Run a storage proxy. It needs etcd 3.4+, where it announces itself to the managers, the secret\n" +
			"that it shares with them, and volumes that are mounted on this host;\n" +
			"`berth config print --role storage` shows every setting.",
		Example: "  berth storage --config storage.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := loadSettings(path, roleStorage, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return runStorage(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	return c
}

func runStorage(ctx context.Context, s settings, log *slog.Logger) error {
	// etcd may be away: files are served all the same.
	etcd, err := clientv3.New(clientv3.Config{Endpoints: s.Storage.Etcd.Endpoints, DialTimeout: 5 * time.Second, Context: context.WithoutCancel(ctx)})
	if err != nil {
		return fault.Invalidf("etcd at %v cannot be used", s.Storage.Etcd.Endpoints).WithCause(err).WithNext("correct storage.etcd.endpoints")
	}
	defer etcd.Close()
	health := chassis.NewHealth()
	proxy, err := storage.New(ctx, s.Storage, storage.Deps{Etcd: etcd, Metrics: health.Registry(), Build: chassis.Build(), Log: log})
	if err != nil {
		return err
	}
	health.Check("storage", proxy.Ready)
	services := proxy.Services()
	var apis []string
	for _, service := range services {
		apis = append(apis, service.Name())
	}
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		log.Info("storage proxy is ready", "proxy", proxy.Name(), "clients", proxy.ClientURL(), "managers", proxy.ManagerURL(), "version", chassis.Build().Version)
		return nil
	}}).After(apis...)
	services = append(services, greet)
	if s.Admin.Listen != "" {
		services = append(services, chassis.NewAdminServer(s.Admin, health, log).Service)
	}
	return runGroup(ctx, log, health, services)
}

// volumeLine is a volume in `berth status`.
type volumeLine struct {
	Host     string `json:"host"`
	Backend  string `json:"backend"`
	Path     string `json:"path"`
	Problem  string `json:"problem,omitempty"`
	Capacity int64  `json:"capacity_bytes,omitempty"`
	Used     int64  `json:"used_bytes,omitempty"`
}

func (v volumeLine) sick() bool { return v.Problem != "" }

func (v volumeLine) String() string {
	if v.sick() {
		return fmt.Sprintf("%s  NOT WELL: %s", v.Host, v.Problem)
	}
	return fmt.Sprintf("%s  %s at %s, %.1f of %.1f GiB used", v.Host, v.Backend, v.Path, float64(v.Used)/(1<<30), float64(v.Capacity)/(1<<30))
}

// volumeLines is empty while there is no proxy yet.
func volumeLines(p *storage.Proxy) []volumeLine {
	if p == nil {
		return nil
	}
	var out []volumeLine
	for _, v := range p.Volumes() {
		out = append(out, volumeLine{Host: p.Name() + ":" + v.Name, Backend: v.Backend, Path: v.Path, Problem: v.Problem, Capacity: v.CapacityBytes, Used: v.UsedBytes})
	}
	return out
}

func fromStorage(in []storage.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		out = append(out, Finding{Warning: f.Warning, Kind: f.Kind, Object: f.Object, Problem: f.Problem, Next: f.Next})
	}
	return out
}

// storage asks a storage proxy that runs alone on this machine.
func (c *checkup) storage(ctx context.Context, file string, cfg storage.Config) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	found, err := storage.AskFindings(ctx, cfg)
	switch {
	case fault.Is(err, fault.Unavailable):
		c.add(Finding{Warning: true, Kind: "storage", Object: cfg.Proxy, Problem: "its proxy does not run: " + err.Error(), Next: "berth storage --config " + file})
	case err != nil:
		c.add(Finding{Kind: "storage", Object: cfg.Proxy, Problem: err.Error(), Next: fault.NextOf(err)})
	default:
		c.Running = true
		c.Findings = append(c.Findings, fromStorage(found)...)
	}
}

// The names below the state directory of a cluster that belong to its storage.
const (
	storageSecretFile = "storage.secret"
	firstVolume       = "volume1"
)

// storageConfig is the configuration of the cluster's own proxy. What the operator configured stays.
func (p *platform) storageConfig() storage.Config {
	cfg, d := p.settings.Storage, storage.DefaultConfig()
	cfg.ClientListen, cfg.ManagerListen = p.at.StorageClient, p.at.StorageManager
	cfg.Etcd.Prefix = p.settings.Manager.Etcd.Prefix
	if cfg.StateDir == d.StateDir {
		cfg.StateDir = p.dir.path("storage")
	}
	if cfg.Secret.IsZero() && cfg.SecretFile == "" {
		cfg.SecretFile = p.dir.path(storageSecretFile)
	}
	if len(cfg.Volumes) == 0 {
		cfg.Volumes = map[string]storage.VolumeConfig{firstVolume: {Backend: "posix", Path: p.dir.path("volumes", firstVolume)}}
	}
	return cfg
}

func (p *platform) buildStorage(ctx context.Context) (*chassis.Group, error) {
	p.mu.Lock()
	p.at = ports{}
	p.mu.Unlock()
	at := p.choosePorts()
	p.mu.Lock()
	p.at = at
	p.mu.Unlock()
	cfg := p.storageConfig()
	if cfg.SecretFile == p.dir.path(storageSecretFile) {
		if err := makeSecret(cfg.SecretFile); err != nil {
			return nil, fmt.Errorf("make the secret of the storage proxy: %w", err)
		}
	}
	if path := p.dir.path("volumes", firstVolume); len(p.settings.Storage.Volumes) == 0 {
		if err := makeVolume(path, cfg.UID, cfg.GID); err != nil {
			return nil, fmt.Errorf("make the first volume: %w", err)
		}
	}
	proxy, err := storage.New(ctx, cfg, storage.Deps{Etcd: p.stack.Endpoints().Etcd, Metrics: p.health.Registry(), Build: chassis.Build(), Log: p.log.With("part", "storage")})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.storage = proxy
	p.mu.Unlock()
	services := proxy.Services()
	p.health.Watch(services...)
	return chassis.NewGroup(p.log, services...)
}

// makeSecret keeps the one that is there.
func makeSecret(path string) error {
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) != "" {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeFile(path, []byte(rand.Text()+rand.Text()+"\n"), 0o600)
}

// makeVolume makes the directory that stands for a volume: its path is open to all, its folders are not.
func makeVolume(path string, uid, gid int) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, uid, gid)
}
