// Package docker runs containers on a Docker engine (API 1.41 and later) over its socket.
//
// It implements runtime.Runtime and holds no policy and no state that matters: what runs is
// read back from container labels. Its caches only hold answers of the engine that cannot change.
// The agent is its only caller.
package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/hoststats"
	"berth.dev/berth/internal/cluster"
)

// DefaultHost is where the engine listens when nothing else is configured.
const DefaultHost = "unix:///var/run/docker.sock"

// Config says which engine to use and for whom.
type Config struct {
	// Host is the engine's address: unix:///path or tcp://host:port. Empty means DOCKER_HOST,
	// else DefaultHost.
	Host string
	// Cluster and Agent scope every container; those of others are invisible. Both are required.
	Cluster string
	Agent   cluster.AgentID
	// LogMaxBytes bounds the log of one container; it is split over two files. 0 means 20 MiB.
	LogMaxBytes int64
	// PullIdle ends a pull that reports nothing for so long; 0 means 5 minutes.
	PullIdle time.Duration
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	if c.Host == "" {
		c.Host = os.Getenv("DOCKER_HOST")
	}
	if c.Host == "" {
		c.Host = DefaultHost
	}
	if c.LogMaxBytes == 0 {
		c.LogMaxBytes = 20 << 20
	}
	if c.PullIdle == 0 {
		c.PullIdle = 5 * time.Minute
	}
	return c
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	if c.Cluster == "" || c.Agent == "" {
		errs = append(errs, errors.New("docker: cluster and agent are required"))
	}
	if !strings.Contains(c.Host, "://") {
		errs = append(errs, fmt.Errorf("docker: host %q is not of the form unix:///path or tcp://host:port", c.Host))
	}
	if c.LogMaxBytes < 64<<10 {
		errs = append(errs, fmt.Errorf("docker: log limit of %d bytes is below 64 KiB", c.LogMaxBytes))
	}
	return errors.Join(errs...)
}

// The deadlines of calls that are usually quick. Pull, Commit and followed logs have rules of their own.
const (
	shortCall  = 15 * time.Second // inspect, list, version
	createCall = 2 * time.Minute
	startCall  = time.Minute
	removeCall = 90 * time.Second
	stopMargin = 30 * time.Second // on top of the grace
	commitCall = 2 * time.Hour
)

// parallel bounds the calls that one List or Images makes at a time.
const parallel = 8

// Runtime talks to one engine. Make it with New.
type Runtime struct {
	cfg    Config
	log    *slog.Logger
	api    *client.Client
	limits *limits
	numa   map[int]int // core -> node; nil when the engine's host is not ours
	stats  *hoststats.Reader
	seen   observedCache
	images imageCache
	files  fileCache
	token  string // tells this value's probes from those of earlier ones
	swept  atomic.Bool
	// unfiltered: the engine's kernel cannot filter system calls.
	unfiltered atomic.Bool
	commits    sync.Map // kernels of which an image is being made, or of which the files change owners
	// dataDir is the engine's directory, once it told.
	dataDir atomic.Pointer[string]

	// closing ends watchers; watchers counts them.
	closing  context.Context
	close    context.CancelFunc
	watchers sync.WaitGroup
}

var _ runtime.Runtime = (*Runtime)(nil)

// New prepares a runtime; it does not need the engine yet, so that an agent can start
// before its engine and say so.
func New(cfg Config, log *slog.Logger) (*Runtime, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		MaxIdleConns: 32, MaxIdleConnsPerHost: 32,
		// Longer than usual pauses between calls, so that a start finds an open connection.
		IdleConnTimeout: 5 * time.Minute,
	}
	api, err := client.New(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(cfg.Host), // configures the transport's dialer
		client.WithScheme("http"), // the client would take any transport of ours for one with TLS
		client.WithScheme("http"), // the client would guess https once the transport has a TLS configuration
		client.WithUserAgent("berth-agent"),
	)
	if err != nil {
		return nil, fmt.Errorf("docker: engine address %s: %w", cfg.Host, err)
	}
	r := &Runtime{cfg: cfg, log: log, api: api, stats: hoststats.New("/"), token: rand.Text()}
	r.closing, r.close = context.WithCancel(context.Background())
	r.limits = &limits{socket: strings.TrimPrefix(cfg.Host, "unix://")}
	if r.local() {
		r.numa = readNUMA(os.DirFS("/sys/devices/system/node"))
	}
	return r, nil
}

// Cluster returns the cluster whose containers this runtime serves.
func (r *Runtime) Cluster() string { return r.cfg.Cluster }

// local reports whether the engine runs on this host, so that its processes are ours to look at.
func (r *Runtime) local() bool { return strings.HasPrefix(r.cfg.Host, "unix://") }

// Close ends the watchers and drops idle connections; containers are untouched.
func (r *Runtime) Close() error {
	r.close()
	r.watchers.Wait()
	return r.api.Close()
}

// Info probes the engine.
func (r *Runtime) Info(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	res, err := r.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return runtime.Info{}, r.failure(err, "ask the engine what it is")
	}
	in := res.Info
	r.noteFilters(in.SecurityOptions)
	out := runtime.Info{
		Name: "docker", Version: in.ServerVersion, APIVersion: r.api.ClientVersion(),
		Architecture: wireArch(in.Architecture), StorageDriver: in.Driver,
		CDI: in.CDISpecDirs,
	}
	out.CgroupVersion, _ = strconv.Atoi(in.CgroupVersion) // 0 says that the engine does not tell
	out.Warnings = append(out.Warnings, missingFeatures(in)...)
	out.Warnings = append(out.Warnings, r.limits.warnings()...)
	return out, nil
}

// missingFeatures names, in words, the limits for sessions that this engine cannot enforce.
func missingFeatures(in system.Info) []string {
	var out []string
	add := func(present bool, text string) {
		if !present {
			out = append(out, text)
		}
	}
	add(in.MemoryLimit, "the engine cannot limit memory: sessions may use all of the host's")
	add(in.SwapLimit, "the engine cannot limit swap: sessions may swap beyond their memory")
	add(in.CPUSet, "the engine cannot pin cores: sessions share all cores")
	add(in.PidsLimit, "the engine cannot limit processes: a session may exhaust the host's")
	seccomp := false
	for _, o := range in.SecurityOptions {
		seccomp = seccomp || strings.Contains(o, "seccomp") // with which profile does not matter: containers have ours
	}
	add(seccomp, "the engine filters no system calls: sessions reach more of the kernel than they should")
	return out
}

// wireArch turns any spelling of an architecture into the wire's.
func wireArch(a string) string {
	switch a {
	case "amd64", "x86_64":
		return "x86_64"
	case "arm64", "aarch64":
		return "aarch64"
	default:
		return a
	}
}
