package storage

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

// Deps are what a proxy gets from outside.
type Deps struct {
	// Etcd is where the proxy announces itself; nil means nowhere.
	Etcd *clientv3.Client
	// Volumes are opened already, beside those of the configuration; for tests.
	Volumes map[string]volume.Volume
	Clock   chassis.Clock // the machine's when nil
	NewID   func() string // random UUIDs when nil
	// Metrics is where the proxy registers its figures; nil means nowhere.
	Metrics prometheus.Registerer
	Build   chassis.BuildInfo
	Log     *slog.Logger
}

// Proxy is the storage role.
type Proxy struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	started time.Time

	volumes  volumes
	tasks    *task.Engine
	transfer *transfer.Server
	rights   *transfer.Rights
	auth     [sha256.Size]byte // of the managers' key
	// announceKey proves what the proxy announces.
	announceKey string
	usage       *usages

	client, manager *chassis.HTTPServer
	services        []*chassis.Service
	// changed says that the announcement is out of date.
	changed chan struct{}
}

// New makes a proxy. Volumes need not be there yet: they are opened, and opened again, while the proxy runs.
func New(_ context.Context, cfg Config, deps Deps) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	keys, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	trusted, err := cfg.trusted()
	if err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	if deps.NewID == nil {
		deps.NewID = uuid.NewString
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	seen, err := openMemory(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	sealKey, err := hex.DecodeString(keys.Tasks)
	if err != nil {
		return nil, fmt.Errorf("read the key of tasks: %w", err)
	}
	tlsConfig, err := cfg.TLS.load(deps.Clock)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, deps: deps, log: deps.Log, started: deps.Clock.Now().UTC(), volumes: volumes{}, changed: make(chan struct{}, 1),
		auth: sha256.Sum256([]byte(keys.Manager)), announceKey: keys.Announce, usage: newUsages(),
	}
	poke := func() {
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
	for name, v := range cfg.Volumes {
		open := opener(name, v, cfg, seen, deps.NewID, deps.Clock, deps.Log)
		p.volumes[name] = newMounted(name, v, open, deps.Clock, deps.Log, poke)
	}
	for name, v := range deps.Volumes {
		info := v.Info()
		open := func() (volume.Volume, error) { return v, nil }
		p.volumes[name] = newMounted(name, VolumeConfig{Backend: info.Backend, Path: info.Path}, open, deps.Clock, deps.Log, poke)
	}
	if len(p.volumes) == 0 {
		return nil, cfg.Complete()
	}
	p.tasks = task.New(task.Options{
		Volumes: p.volumes, Clock: taskClock{deps.Clock}, Log: deps.Log.With("part", "tasks"), NewID: deps.NewID, SealKey: sealKey,
		Stores:  s3.Policy{AllowPrivate: cfg.ObjectStores.AllowPrivate, AllowHTTP: cfg.ObjectStores.AllowHTTP},
		Workers: cfg.TasksPerVolume, ReapRate: cfg.ReapRate, UploadExpiry: cfg.UploadExpiry,
	})
	p.rights = transfer.NewRights(deps.Clock, deps.NewID())
	p.transfer = transfer.New(transfer.Options{
		Rights: p.rights,
		Key:    keys.Client, Version: deps.Build.Version, VolumeNames: p.volumes.Names,
		Volumes: func(name string) (volume.Volume, bool) {
			v, err := p.volumes.Volume(name)
			return v, err == nil
		},
		MaxUploadSize: int64(cfg.MaxUploadSize), UploadLife: cfg.TokenLife, UploadExpiry: cfg.UploadExpiry,
		AllowedOrigins: cfg.AllowedOrigins, HSTS: cfg.HSTS, Trusted: trusted, Clock: deps.Clock, Log: deps.Log.With("part", "transfer"),
	})
	p.client = chassis.NewHTTPServer("storage-client-api",
		chassis.HTTPOptions{Listen: cfg.ClientListen, Handler: p.transfer, TLS: tlsConfig.Clone(), Log: deps.Log,
			Configure: p.transfer.Configure})
	p.manager = chassis.NewHTTPServer("storage-manager-api", chassis.HTTPOptions{
		Listen: cfg.ManagerListen, Handler: p.managerAPI(), TLS: tlsConfig.Clone(), Log: deps.Log,
		Configure: func(s *http.Server) { s.ReadTimeout = time.Minute },
	})
	if deps.Metrics != nil {
		if err := deps.Metrics.Register(figures{p}); err != nil {
			return nil, fmt.Errorf("register metrics of the storage proxy: %w", err)
		}
	}
	p.services = p.makeServices()
	return p, nil
}

// Services are the parts of the role, to be run in one group. The names begin with "storage-".
func (p *Proxy) Services() []*chassis.Service { return p.services }

func (p *Proxy) makeServices() []*chassis.Service {
	const first = "storage-volumes"
	return []*chassis.Service{
		chassis.NewService(first, chassis.Hooks{Start: p.firstLook, Run: p.watch, Stop: p.closeVolumes}),
		chassis.NewService("storage-tasks", chassis.Hooks{Run: p.tasks.Run, StopTimeout: 20 * time.Second}).After(first),
		chassis.NewService("storage-rights", chassis.Hooks{Run: p.rights.Run}),
		p.client.After(first),
		p.manager.After(first),
		chassis.NewService("storage-presence", chassis.Hooks{Run: p.announce}).After(p.client.Name(), p.manager.Name()),
	}
}

// firstLook opens the volumes that answer, so that the first request finds them.
func (p *Proxy) firstLook(ctx context.Context) error {
	var all sync.WaitGroup
	for _, m := range p.volumes {
		all.Go(func() { m.look(ctx) })
	}
	all.Wait()
	return nil
}

func (p *Proxy) watch(ctx context.Context) error {
	var all sync.WaitGroup
	for _, m := range p.volumes {
		all.Go(func() { m.watch(ctx) })
	}
	all.Wait()
	return nil
}

func (p *Proxy) closeVolumes(ctx context.Context) error {
	// Transfers whose connections were cut still make durable what came.
	ended, cancel := context.WithTimeout(ctx, 5*time.Second)
	_ = p.transfer.Wait(ended)
	cancel()
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for _, m := range p.volumes {
		all.Go(func() {
			if err := m.close(); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// ClientAddr and ManagerAddr are where the two APIs listen; valid once the services run.
func (p *Proxy) ClientAddr() string { return p.client.Addr() }

// ManagerAddr is where the manager-facing API listens.
func (p *Proxy) ManagerAddr() string { return p.manager.Addr() }

// ClientURL is how clients reach the proxy.
func (p *Proxy) ClientURL() string { return p.url(p.cfg.ClientURL, p.client) }

// ManagerURL is how managers reach the proxy.
func (p *Proxy) ManagerURL() string { return p.url(p.cfg.ManagerURL, p.manager) }

func (p *Proxy) url(configured string, s *chassis.HTTPServer) string {
	if configured != "" {
		return configured
	}
	scheme := "http"
	if p.cfg.TLS.Cert != "" {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		return scheme + "://" + s.Addr()
	}
	// An address that means "all" reaches nobody from elsewhere; the node's name at least may.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = p.cfg.node()
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// Volumes is the state of all volumes, sorted by name.
func (p *Proxy) Volumes() []wire.Volume {
	out := []wire.Volume{}
	for _, name := range p.volumes.Names() {
		v := p.volumes[name].state(p.cfg.UID, p.cfg.GID)
		if v.FSPrefix == "" {
			v.FSPrefix = p.cfg.Volumes[name].Options["fsprefix"]
		}
		out = append(out, v)
	}
	return out
}

// Ready is an error while no volume can be used.
func (p *Proxy) Ready(context.Context) error {
	var last error
	for _, m := range p.volumes {
		if _, err := m.get(); err == nil {
			return nil
		} else {
			last = err
		}
	}
	return last
}

// Name is the proxy's name.
func (p *Proxy) Name() string { return p.cfg.Proxy }

// Finding is something that an operator should look at.
type Finding struct {
	Warning bool   `json:"warning,omitempty"`
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Next    string `json:"next,omitempty"`
}

// Findings names volumes with problems, tasks that nobody works on, and trash that does not shrink.
func (p *Proxy) Findings() []Finding {
	out := []Finding{}
	for _, name := range p.volumes.Names() {
		if _, err := p.volumes[name].get(); err != nil {
			out = append(out, Finding{Kind: "volume", Object: p.cfg.Proxy + ":" + name, Problem: err.Error(), Next: fault.NextOf(err)})
		}
	}
	for _, f := range p.tasks.Findings() {
		out = append(out, Finding{Kind: "storage " + f.Kind, Object: p.cfg.Proxy + ":" + f.Volume + " " + f.Object, Problem: f.Problem,
			Next: f.Next})
	}
	return out
}

// taskClock gives the tasks the role's clock.
type taskClock struct{ chassis.Clock }

func (c taskClock) Wait(ctx context.Context, d time.Duration) error {
	return chassis.Wait(ctx, c.Clock, d)
}

// load returns nil for no TLS. The files are read again when they are renewed.
func (c TLSConfig) load(clock chassis.Clock) (*tls.Config, error) {
	if c.Cert == "" {
		return nil, nil
	}
	r := &renewed{c: c, clock: clock}
	if _, err := r.get(nil); err != nil {
		return nil, fault.Invalidf("the certificate of the storage proxy cannot be used").WithCause(err).
			WithNext("correct storage.tls.cert and storage.tls.key")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: r.get}, nil
}

// renewed keeps a certificate and looks for a newer one once a minute.
type renewed struct {
	c     TLSConfig
	clock chassis.Clock
	mu    sync.Mutex
	cert  *tls.Certificate
	read  time.Time
}

func (r *renewed) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if r.cert != nil && now.Sub(r.read) < time.Minute {
		return r.cert, nil
	}
	cert, err := tls.LoadX509KeyPair(r.c.Cert, r.c.Key)
	if err != nil && r.cert == nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	if err == nil { // else half-written files: the old one is good for another minute
		r.cert = &cert
	}
	r.read = now
	return r.cert, nil
}
