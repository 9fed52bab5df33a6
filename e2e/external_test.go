package e2e_test

import (
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

// apart is a cluster whose roles are processes of their own, on Debian's PostgreSQL, Redis and etcd.
type apart struct {
	*platform
	config    string // file
	api       string // port
	hub       string // where the manager takes agents
	agentID   string
	processes map[string]*exec.Cmd
}

// newApart starts the manager and an agent. agentConfig is added to the agent's configuration, more to the file; there DIR
// stands for the directory of the cluster and HUB for the address where the manager takes agents.
func newApart(t *testing.T, agentID, agentConfig, more string) *apart {
	t.Helper()
	needEngine(t)
	dir, err := os.MkdirTemp("", "berth-ext-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	forget(t, agent.Config{ID: agentID, StateDir: filepath.Join(dir, "agent")})
	a := &apart{platform: &platform{t: t, dir: filepath.Join(dir, "manager")}, config: filepath.Join(dir, "berth.toml"),
		processes: map[string]*exec.Cmd{}}

	redis, etcd, peer, agents := freePort(t), freePort(t), freePort(t), freePort(t)
	a.api = freePort(t)
	process(t, dir, "redis", "redis-server", "--port", redis, "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	client, member := "http://127.0.0.1:"+etcd, "http://127.0.0.1:"+peer
	process(t, dir, "etcd", "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls",
		client,
		"--listen-peer-urls", member, "--initial-advertise-peer-urls", member, "--initial-cluster", "default="+member)
	for _, port := range []string{redis, etcd} {
		listening(t, port)
	}
	hub := "127.0.0.1:" + agents
	a.hub, a.agentID = hub, agentID
	require.NoError(t, os.WriteFile(a.config, fmt.Appendf(nil, `
[log]
level = "info"

[manager]
listen = "127.0.0.1:%s"
state_dir = "%s"
[manager.postgres]
dsn = "%s"
[manager.redis]
address = "127.0.0.1:%s"
[manager.etcd]
endpoints = ["%s"]
[manager.agents]
listen = "%s"

[agent]
id = "%s"
manager = "%s"
join_token_file = "%s/agent.token"
state_dir = "%s/agent"
cpu_overcommit = 16
%s
%s
`, a.api, a.dir, strings.ReplaceAll(storetest.DSN(t), `"`, `\"`), redis, client, hub, agentID, hub, dir, dir, agentConfig,
		strings.NewReplacer("DIR", dir, "HUB", hub).Replace(more)), 0o600))
	for _, role := range []string{"manager", "agent"} {
		a.begin(role)
	}
	t.Cleanup(func() {
		for _, id := range containers(t, "label=berth.agent="+agentID) {
			_, _ = docker("rm", "-f", id)
		}
	})
	return a
}

// joinToken has an administrator of the manager's host make a token for a role, into the file that its configuration names.
func (a *apart) joinToken(role, name string) (file string) {
	a.t.Helper()
	file = filepath.Join(filepath.Dir(a.config), role+".token")
	a.must("admin", "join-token", "create", "--role", role, "--name", name, "--config", a.config, "--out", file)
	return file
}

// begin starts a role and waits until it can be used. Who joins for the first time gets a token.
func (a *apart) begin(role string) {
	a.t.Helper()
	if name := map[string]string{"agent": a.agentID, "appproxy": "one"}[role]; name != "" && a.processes[role] == nil {
		a.joinToken(role, name)
	}
	r := a.run("", "config", "check", "--role", role, "--config", a.config)
	require.Zero(a.t, r.code, r.stdout+r.stderr)
	connected := func() int {
		log, _ := os.ReadFile(filepath.Join(filepath.Dir(a.config), "agent.log")) // there is none before its first start
		return strings.Count(string(log), "connected to the manager")
	}
	before := connected()
	a.processes[role] = process(a.t, filepath.Dir(a.config), role, binary, role, "--config", a.config)
	switch role {
	case "manager":
		listening(a.t, a.api)
		a.eventually("the manager writes client.env", func() bool {
			_, err := os.Stat(filepath.Join(a.dir, "client.env"))
			return err == nil
		})
		a.eventually("the manager answers", func() bool { return a.run("", "session", "list").code == 0 })
	case "agent":
		// The manager calls one that was killed alive for as long as its lease lasts.
		a.eventually("the agent is connected", func() bool { return connected() > before })
		a.eventually("the agent is alive and has images", func() bool {
			if !strings.Contains(a.must("agent", "list"), "ALIVE") {
				return false
			}
			// The administrator says whose images are good; nothing that the agent reports is usable by itself.
			r := a.run("", "image", "import", "--agent", a.agentID, "berth/*")
			return r.code == 0 && strings.Contains(a.must("image", "list"), "python")
		})
	}
}

// kill ends a role without any warning.
func (a *apart) kill(role string) {
	a.t.Helper()
	killed(a.t, a.processes[role].Process.Pid)
}

// TestExternalServices kills the manager and the agent, each a process of its own. Our command line and the official client
// walk on them.
func TestExternalServices(t *testing.T) {
	t.Parallel()
	a := newApart(t, "i-external", "", "")
	smoke(t, a.platform)
	walk(t, newOfficial(t, a.env()))
	a.clean("--config", a.config)

	for _, role := range []string{"manager", "agent"} {
		survive(t, a.platform, "berth.agent=i-external", func() {
			a.kill(role)
			a.begin(role)
		})
	}
	a.eventually("all containers are gone", func() bool { return len(containers(t, "label=berth.agent=i-external")) == 0 })
	a.clean("--config", a.config)
}

// process starts a server that ends with the test; its output is shown when the test fails.
func process(t testing.TB, dir, name string, argv ...string) *exec.Cmd {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start(), "start %s", name)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", name, text[max(0, len(text)-8000):])
		}
	})
	return cmd
}

func listening(t testing.TB, port string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, 50*time.Millisecond, "nobody listens on port %s", port)
}
