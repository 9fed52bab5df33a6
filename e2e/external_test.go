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

	"berth.dev/berth/internal/manager/store/storetest"
)

// TestExternalServices runs the manager and the agent as processes of their own, on Debian's
// PostgreSQL, Redis and etcd, and kills each of the two. Our command line and the official client walk on it.
func TestExternalServices(t *testing.T) {
	needEngine(t)
	dir, err := os.MkdirTemp("", "berth-ext-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &platform{t: t, dir: filepath.Join(dir, "manager")}

	redis, etcd, peer, api, agents := freePort(t), freePort(t), freePort(t), freePort(t), freePort(t)
	process(t, dir, "redis", "redis-server", "--port", redis, "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	client, member := "http://127.0.0.1:"+etcd, "http://127.0.0.1:"+peer
	process(t, dir, "etcd", "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", member, "--initial-advertise-peer-urls", member, "--initial-cluster", "default="+member)
	for _, port := range []string{redis, etcd} {
		listening(t, port)
	}

	config := filepath.Join(dir, "berth.toml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
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
listen = "127.0.0.1:%s"
join_token_file = "%s/join.token"

[agent]
id = "i-external"
manager = "127.0.0.1:%s"
join_token_file = "%s/join.token"
state_dir = "%s/agent"
cpu_overcommit = 16
`, api, p.dir, strings.ReplaceAll(storetest.DSN(t), `"`, `\"`), redis, client, agents, dir, agents, dir, dir), 0o600))
	require.Zero(t, p.run("", "config", "check", "--role", "manager", "--config", config).code)
	require.Zero(t, p.run("", "config", "check", "--role", "agent", "--config", config).code)

	manager := process(t, dir, "manager", binary, "manager", "--config", config)
	listening(t, api)
	p.eventually("the manager writes client.env", func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "client.env"))
		return err == nil
	})
	agent := process(t, dir, "agent", binary, "agent", "--config", config)
	p.eventually("the agent is alive and has images", func() bool {
		return strings.Contains(p.must("agent", "list"), "ALIVE") && strings.Contains(p.must("image", "list"), "python")
	})
	t.Cleanup(func() {
		for _, id := range containers(t, "label=berth.agent=i-external") {
			_, _ = docker("rm", "-f", id)
		}
	})
	smoke(t, p)
	walk(t, newOfficial(t, p.env()))
	p.clean("--config", config)

	for _, victim := range []struct {
		process *exec.Cmd
		role    string
	}{{manager, "manager"}, {agent, "agent"}} {
		survive(t, p, "berth.agent=i-external", func() {
			require.NoError(t, victim.process.Process.Kill())
			process(t, dir, victim.role, binary, victim.role, "--config", config)
			listening(t, api)
			p.eventually("sessions are listed after the death of the "+victim.role, func() bool {
				return p.run("", "session", "list").code == 0
			})
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			left, err := docker("ps", "-a", "--filter", "label=berth.agent=i-external", "--format", "{{.ID}} {{.Names}} {{.Status}} {{.Labels}}")
			t.Logf("containers that are left (error %v):\n%s", err, left)
		}
	})
	p.eventually("all containers are gone", func() bool { return len(containers(t, "label=berth.agent=i-external")) == 0 })
	p.clean("--config", config)
}

// process starts a server that ends with the test; its output is shown when the test fails.
func process(t *testing.T, dir, name string, argv ...string) *exec.Cmd {
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

func listening(t *testing.T, port string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, 50*time.Millisecond, "nobody listens on port %s", port)
}
