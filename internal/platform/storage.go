package platform

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/storage"
)

// The names below the state directory of a cluster that belong to its storage.
const (
	StorageSecretFile = "storage.secret"
	FirstVolume       = "volume1"
)

// storageConfig is the configuration of the cluster's own proxy. What the operator configured stays.
func (p *platform) storageConfig() storage.Config {
	cfg, d := p.settings.Storage, storage.DefaultConfig()
	cfg.ClientListen, cfg.ManagerListen = p.at.StorageClient, p.at.StorageManager
	cfg.Etcd.Prefix = p.settings.Manager.Etcd.Prefix
	if cfg.StateDir == d.StateDir {
		cfg.StateDir = p.dir.Path("storage")
	}
	if cfg.Secret.IsZero() && cfg.SecretFile == "" {
		cfg.SecretFile = p.dir.Path(StorageSecretFile)
	}
	if len(cfg.Volumes) == 0 {
		cfg.Volumes = map[string]storage.VolumeConfig{FirstVolume: {Backend: "posix", Path: p.dir.Path("volumes", FirstVolume)}}
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
	if cfg.SecretFile == p.dir.Path(StorageSecretFile) {
		if err := makeSecret(cfg.SecretFile); err != nil {
			return nil, fmt.Errorf("make the secret of the storage proxy: %w", err)
		}
	}
	if path := p.dir.Path("volumes", FirstVolume); len(p.settings.Storage.Volumes) == 0 {
		if err := makeVolume(path, cfg.UID, cfg.GID); err != nil {
			return nil, fmt.Errorf("make the first volume: %w", err)
		}
	}
	proxy, err := storage.New(ctx, cfg, storage.Deps{Etcd: p.stack.Endpoints().Etcd, Metrics: p.health.Registry(), Build: chassis.Build(),
		Log: p.log.With("part", "storage")})
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
	return durable.WriteFile(path, []byte(rand.Text()+rand.Text()+"\n"), 0o600)
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
