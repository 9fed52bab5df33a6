package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdembed "go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
)

// etcdSocket is the longer of the two socket names, which decides where they fit.
const etcdSocket = "client:0"

// Etcd is a one-member etcd in this process. Its sockets are private files; this process
// itself reaches it without any.
type Etcd struct {
	stateDir string
	log      *slog.Logger
	sockets  string
	server   *etcdembed.Etcd
	client   *clientv3.Client
	service  *chassis.Service
}

// NewEtcd makes the server without starting it; its data go to stateDir/etcd.
func NewEtcd(stateDir string, log *slog.Logger) *Etcd {
	e := &Etcd{stateDir: stateDir, log: log, sockets: SocketDir(stateDir, "etcd", etcdSocket)}
	e.service = chassis.NewService("etcd", chassis.Hooks{
		Start: e.start,
		Run: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case err := <-e.server.Err():
				return fmt.Errorf("etcd: %w", err)
			}
		},
		Stop: func(context.Context) error { return e.stop() },
	})
	return e
}

// Service is the server as a part of the process.
func (e *Etcd) Service() *chassis.Service { return e.service }

// Client talks to the server in process; valid while the service runs. Do not close it.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// Endpoint is where other processes of this host and user reach the server.
func (e *Etcd) Endpoint() string { return "unix://" + filepath.Join(e.sockets, "client:0") }

// Version is the server's version.
func (e *Etcd) Version() string { return version.Version }

func (e *Etcd) start(ctx context.Context) error {
	own := account{uid: os.Geteuid(), gid: os.Getegid()}
	data := filepath.Join(e.stateDir, "etcd")
	if err := own.privateDir(data); err != nil {
		return fmt.Errorf("prepare etcd directory: %w", err)
	}
	if err := own.prepareSocketDir(e.sockets); err != nil {
		return fmt.Errorf("prepare etcd sockets: %w", err)
	}
	urls := map[string][]url.URL{}
	for _, name := range []string{"client", "peer"} {
		path := filepath.Join(e.sockets, name+":0")
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old etcd socket: %w", err)
		}
		urls[name] = []url.URL{{Scheme: "unix", Path: path}}
	}
	cfg := etcdembed.NewConfig()
	cfg.Name = "berth"
	cfg.Dir = data
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls["client"], urls["client"]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls["peer"], urls["peer"]
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// A single member elects itself after one to five ticks, which a start waits for. Ticks cost CPU for ever after: with 50 ms a start is
	// 0.13 s faster, and an idle cluster uses a third more.
	cfg.TickMs, cfg.ElectionMs = 100, 500
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", "1h"
	cfg.QuotaBackendBytes = 256 << 20
	cfg.SnapshotCount = 5000
	cfg.LogLevel = "fatal" // it reports its own orderly stop as errors
	server, err := etcdembed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start etcd in %s: %w", data, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		server.Close()
		return fmt.Errorf("start etcd in %s: %w", data, err)
	case <-server.Server.StopNotify():
		server.Close()
		return errors.New("etcd stopped while it started")
	case <-ctx.Done():
		server.Close()
		return fmt.Errorf("etcd has no leader yet: %w", context.Cause(ctx))
	}
	e.server, e.client = server, v3client.New(server.Server)
	if err := unpopulate(filepath.Join(data, "member", "snap", "db")); err != nil {
		e.log.Debug("give memory of etcd's database back", "error", err)
	}
	return nil
}

// unpopulate takes a file's pages out of this process's memory until they are read again. etcd maps its database with all pages present,
// and the file is 16 MiB from the beginning, most of which nobody ever reads.
func unpopulate(file string) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("look for the mapping of %s: %w", file, err)
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 6)
		if len(f) < 6 || strings.TrimSpace(f[5]) != file || !strings.HasSuffix(f[1], "s") { // shared: the file holds what the pages hold
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("read %q: %w", line, err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap the pages of %s: %w", file, errno)
		}
	}
	return nil
}

func (e *Etcd) stop() error {
	// An open client holds the server's stop for seconds, so it goes first.
	err := e.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.server.Close()
	}()
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	select {
	case <-closed:
		return errors.Join(err, RemoveSocketDir(e.stateDir, e.sockets))
	case <-limit.C:
		return errors.New("etcd does not stop: a client is still connected")
	}
}
