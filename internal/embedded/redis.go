package embedded

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// redisSocketPattern is what the names of its sockets look like. Every process uses a name of
// its own: a server that a killed berth left behind removes its socket when it ends, and must
// not remove the one of its successor.
const redisSocketPattern = "redis-????????.sock"

// RedisKind selects how Redis is provided.
type RedisKind string

// The kinds.
const (
	// RedisAuto is a child where valkey-server or redis-server is installed, else in process.
	RedisAuto RedisKind = "auto"
	// RedisChild insists on a child.
	RedisChild RedisKind = "child"
	// RedisInProcess is miniredis: slower under load, good enough for one machine.
	RedisInProcess RedisKind = "in-process"
)

// miniredisTick is how often time is moved on in the in-process server, whose keys would
// otherwise never expire; its own clock is far slower.
const miniredisTick = 100 * time.Millisecond

// Redis is a Redis-compatible server without persistence that lives and dies with this process.
type Redis struct {
	stateDir string
	kind     RedisKind
	log      *slog.Logger
	server   string // path of the child's program; empty means in process
	socket   string
	sup      supervisor
	mini     *miniredis.Miniredis
	password string
	service  *chassis.Service
}

// NewRedis makes the server without starting it.
func NewRedis(stateDir string, kind RedisKind, log *slog.Logger) (*Redis, error) {
	name := strings.Replace(redisSocketPattern, "????????", strings.ToLower(rand.Text()[:8]), 1)
	r := &Redis{stateDir: stateDir, kind: kind, log: log, socket: filepath.Join(SocketDir(stateDir, "redis", name), name)}
	if kind != RedisInProcess {
		for _, name := range []string{"valkey-server", "redis-server"} {
			if path, err := exec.LookPath(name); err == nil {
				r.server = path
				break
			}
		}
	}
	if r.server == "" && kind == RedisChild {
		return nil, fault.Unavailablef("neither valkey-server nor redis-server is on PATH").
			WithNext("install one with: apt-get install redis-server, or set embedded.redis = %q", RedisInProcess)
	}
	if r.server == "" {
		r.kind = RedisInProcess
		r.service = chassis.NewService("redis", chassis.Hooks{Start: r.startInProcess, Run: r.tick, Stop: r.stopInProcess})
		return r, nil
	}
	r.kind = RedisChild
	r.service = chassis.NewService("redis", chassis.Hooks{
		Start: r.startChild,
		Run:   func(ctx context.Context) error { return r.sup.supervise(ctx) },
		Stop: func(context.Context) error {
			return errors.Join(r.sup.stop(), RemoveSocketDir(r.stateDir, filepath.Dir(r.socket)))
		},
	})
	return r, nil
}

// Service is the server as a part of the process.
func (r *Redis) Service() *chassis.Service { return r.service }

// Kind is RedisChild or RedisInProcess.
func (r *Redis) Kind() RedisKind { return r.kind }

// Program is the path of the child's program, "miniredis" in process.
func (r *Redis) Program() string {
	if r.server == "" {
		return "miniredis"
	}
	return r.server
}

// Pid is the child's process id, 0 when there is none.
func (r *Redis) Pid() int { return r.sup.pid() }

// Options are what valkey.NewClient needs to reach the server; valid while it runs.
func (r *Redis) Options() valkey.ClientOption {
	o := LeanRedisOptions()
	if r.server != "" {
		o.InitAddress = []string{r.socket}
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		}
		return o
	}
	o.InitAddress = []string{r.mini.Addr()}
	o.Password = r.password
	// The in-process server refuses commands on a connection that also subscribes, and has no
	// client tracking.
	o.AlwaysRESP2, o.DisableCache = true, true
	return o
}

// LeanRedisOptions are client options with buffers sized for a control plane; the library's
// own defaults take megabytes per connection.
func LeanRedisOptions() valkey.ClientOption {
	return valkey.ClientOption{
		ForceSingleClient:   true,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
		RingScaleEachConn:   8,
		PipelineMultiplex:   -1, // one connection; commands are pipelined on it
		DisableCache:        true,
		ClientName:          "berth",
	}
}

func (r *Redis) startChild(ctx context.Context) error {
	acct, err := accountFor("redis", "valkey")
	if err != nil {
		return err
	}
	if err := acct.checkReachable(r.socket); err != nil {
		return err
	}
	dir := filepath.Dir(r.socket)
	r.sup.spec = child{
		name: "redis", path: r.server, cred: acct.cred, dir: "/",
		args: []string{
			"--port", "0", "--unixsocket", r.socket, "--unixsocketperm", "700",
			"--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", "",
			"--dir", dir, "--loglevel", "notice", "--hz", "10",
			"--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl", "--maxclients", "128",
			"--repl-backlog-size", "1mb", "--set-proc-title", "no",
		},
		deathSignal: syscall.SIGTERM, stopSignal: syscall.SIGTERM, stopGrace: 5 * time.Second,
		before: func(context.Context) error {
			if err := acct.prepareSocketDir(dir); err != nil {
				return fmt.Errorf("prepare socket directory: %w", err)
			}
			old, err := filepath.Glob(filepath.Join(dir, redisSocketPattern))
			if err != nil {
				return err
			}
			for _, path := range old {
				if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("remove old socket: %w", err)
				}
			}
			return nil
		},
		probe: func(ctx context.Context) error { return pingRedis(ctx, r.socket) },
		level: func(line string) slog.Level {
			// "PID:ROLE date time LEVEL text" with '#' for warnings. Its warnings at every start
			// (overcommit, no configuration file) are about other uses than ours.
			return slog.LevelDebug
		},
		log: r.log,
	}
	return r.sup.launch(ctx)
}

func pingRedis(ctx context.Context, path string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "+PONG") {
		return fmt.Errorf("redis answers %q to PING", strings.TrimSpace(line))
	}
	return nil
}

func (r *Redis) startInProcess(context.Context) error {
	r.password = rand.Text()
	r.mini = miniredis.NewMiniRedis()
	r.mini.RequireAuth(r.password)
	if err := r.mini.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("start in-process redis: %w", err)
	}
	return nil
}

func (r *Redis) tick(ctx context.Context) error {
	t := time.NewTicker(miniredisTick)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			now := time.Now()
			r.mini.FastForward(now.Sub(last))
			last = now
		}
	}
}

func (r *Redis) stopInProcess(context.Context) error {
	r.mini.Close()
	return nil
}
