package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/manager/store/storetest"
)

// fragile is a cluster whose roles are processes of their own, and whose manager reaches everything else over wires that can be cut:
// a PostgreSQL of its own, and two agents on this host's engine. Redis, etcd, storage proxy and app proxy are never broken.
type fragile struct {
	*platform
	wires    wires
	database *storetest.Server
	home     string            // directory of everything
	configs  map[string]string // files, by process
	running  map[string]*exec.Cmd
	api      string // host:port
}

// The wires of the manager. Agents have one each, named after them.
const (
	wireDatabase = "database"
	wireServices = "services"
)

// chaosAgents are the agents; the second one has the sessions that live through all rounds.
var chaosAgents = []string{"i-chaos-0", "i-chaos-1"}

// lostGrace is how long an agent may be LOST, after its lease of 30 s, before its sessions end: short enough that the longest fault
// outlasts it, and longer than all others.
func lostGrace() time.Duration {
	if os.Getenv("BERTH_CHAOS_LONG") != "" {
		return 5 * time.Minute
	}
	return 40 * time.Second
}

// theManager is the name of its process.
const theManager = "manager"

func newFragile(t *testing.T) *fragile {
	t.Helper()
	needEngine(t)
	home, err := os.MkdirTemp("", "berth-chaos-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(home, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	f := &fragile{platform: &platform{t: t, dir: filepath.Join(home, "manager")}, home: home, configs: map[string]string{},
		running: map[string]*exec.Cmd{}}
	f.wires = layWires(t, append([]string{wireDatabase, wireServices}, chaosAgents...)...)
	f.database = storetest.NewServerAt(t, f.wires.far(wireDatabase))
	for _, id := range chaosAgents {
		forget(t, agent.Config{ID: id, StateDir: filepath.Join(home, id)})
	}
	t.Cleanup(func() {
		for _, id := range chaosAgents {
			for _, c := range containers(t, "label=berth.agent="+id) {
				_, _ = docker("rm", "-f", c)
			}
		}
	})
	f.configure()
	f.begin(theManager)
	f.begin("storage")
	for _, id := range chaosAgents {
		f.begin(id)
	}
	f.begin("appproxy")
	return f
}

// configure starts the services and writes a file for every process.
func (f *fragile) configure() {
	f.t.Helper()
	services, at := f.wires.far(wireServices), func(port string) string { return net.JoinHostPort(f.wires.far(wireServices), port) }
	redis, etcd, peer, api, hub, storage, clients := freePort(f.t), freePort(f.t), freePort(f.t), freePort(f.t), freePort(f.t), freePort(f.t),
		freePort(f.t)
	process(f.t, f.home, "redis", "redis-server", "--port", redis, "--bind", services, "--protected-mode", "no", "--save", "", "--dir", f.home)
	client, member := "http://"+at(etcd), "http://"+at(peer)
	process(f.t, f.home, "etcd", "etcd", "--data-dir", filepath.Join(f.home, "etcd"), "--listen-client-urls", client,
		"--advertise-client-urls", client, "--listen-peer-urls", member, "--initial-advertise-peer-urls", member,
		"--initial-cluster", "default="+member)
	for _, port := range []string{redis, etcd} {
		f.listens(at(port))
	}
	volume := filepath.Join(f.home, "volume")
	require.NoError(f.t, os.Mkdir(volume, 0o755))
	database := strings.Replace(f.database.DSN(), fmt.Sprintf("host=%s port=%s", split(f.database.Addr())...),
		fmt.Sprintf("host=%s port=%s", split(f.wires.reach(wireDatabase, f.database.Addr()))...), 1)
	f.api = f.wires.expose(wireServices, api)
	// Agents dial the end of their own wire. The address that they learn from the manager leads nowhere, so that none goes over
	// the wire of another one.
	f.config(theManager, `
[manager]
listen = "%s"
state_dir = "%s"
[manager.postgres]
dsn = "%s"
[manager.redis]
address = "%s"
[manager.etcd]
endpoints = ["%s"]
[manager.agents]
listen = "0.0.0.0:%s"
advertise = "127.0.0.1:9"
[manager.storage]
secret = "%s"
[manager.reconcile]
lost_grace = "%s"
`, net.JoinHostPort(f.wires.near(wireServices), api), f.dir, database, at(redis), client, hub, storageSecret, lostGrace())
	f.config("storage", `
[storage]
proxy = "local"
node = "n1"
client_listen = "%s"
manager_listen = "%s"
state_dir = "%s"
secret = "%s"
[storage.etcd]
endpoints = ["%s"]
[storage.volumes.volume1]
backend = "posix"
path = "%s"
`, at(clients), at(storage), filepath.Join(f.home, "storage"), storageSecret, client, volume)
	for _, id := range chaosAgents {
		f.config(id, `
[agent]
id = "%s"
manager = "%s"
join_token_file = "%s"
state_dir = "%s"
cpu_overcommit = 16
[agent.volumes]
"local:volume1" = "%s"
`, id, f.wires.expose(id, hub), filepath.Join(f.home, id+".token"), filepath.Join(f.home, id), volume)
	}
	listen, first := freePort(f.t), 22000+os.Getpid()%8000
	f.config("appproxy", `
[appproxy]
name = "one"
managers = ["%s"]
join_token_file = "%s"
state_dir = "%s"
listen = "127.0.0.1:%s"
url = "http://127.0.0.1:%s"
domain = "apps.localhost"
[appproxy.ports]
from = %d
to = %d
`, f.wires.expose(wireServices, hub), filepath.Join(f.home, "appproxy.token"), filepath.Join(f.home, "appproxy"), listen, listen, first,
		first+20)
}

func split(address string) []any {
	host, port, _ := net.SplitHostPort(address)
	return []any{host, port}
}

func (f *fragile) config(name, format string, args ...any) {
	f.t.Helper()
	f.configs[name] = filepath.Join(f.home, name+".toml")
	require.NoError(f.t, os.WriteFile(f.configs[name], fmt.Appendf(nil, "[log]\nlevel = \"info\"\n"+format, args...), 0o600))
}

// listens waits until somebody listens at an address.
func (f *fragile) listens(address string) {
	f.t.Helper()
	f.eventually("somebody listens at "+address, func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// begin starts a process, and at its first start waits until it can be used. Who joins for the first time gets a token.
func (f *fragile) begin(name string) {
	f.t.Helper()
	role, first := name, f.running[name] == nil
	switch name {
	case theManager, "storage":
	case "appproxy":
		if first {
			f.token("appproxy", "one", "appproxy")
		}
	default:
		if role = "agent"; first {
			f.token("agent", name, name)
		}
	}
	argv := []string{binary, role, "--config", f.configs[name]}
	if name == theManager {
		argv = append(f.wires.inside(), argv...)
	}
	f.running[name] = process(f.t, f.home, name, argv...)
	if !first {
		return
	}
	switch role {
	case theManager:
		f.listens(f.api)
		f.eventually("the manager writes client.env", func() bool {
			_, err := os.Stat(filepath.Join(f.dir, "client.env"))
			return err == nil
		})
		f.eventually("the manager answers", func() bool { return f.run("", "session", "list").code == 0 })
	case "storage":
		f.eventually("the storage proxy is known", func() bool {
			return strings.Contains(f.run("", "folder", "hosts").stdout, "local:volume1")
		})
	case "agent":
		f.eventually("agent "+name+" has images", func() bool {
			r := f.run("", "image", "import", "--agent", name, "berth/*")
			return r.code == 0 && strings.Contains(f.must("image", "list"), "python")
		})
	}
}

func (f *fragile) token(role, name, file string) {
	f.t.Helper()
	f.must("admin", "join-token", "create", "--role", role, "--name", name, "--config", f.configs[theManager],
		"--out", filepath.Join(f.home, file+".token"))
}

func (f *fragile) signal(name string, s syscall.Signal) {
	f.t.Helper()
	require.NoError(f.t, f.running[name].Process.Signal(s))
}

// attempt runs berth for a limited time, also from other goroutines than the test's; ok is false where it did not end by itself.
func (f *fragile) attempt(limit time.Duration, args ...string) (r result, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = f.environ(), &stdout, &stderr
	err := cmd.Run()
	r = result{stdout: stdout.String(), stderr: stderr.String(), code: -1}
	var exit *exec.ExitError
	switch {
	case err == nil:
		r.code = 0
	case errors.As(err, &exit) && ctx.Err() == nil:
		r.code = exit.ExitCode()
	}
	return r, ctx.Err() == nil
}
