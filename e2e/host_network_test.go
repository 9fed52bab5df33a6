package e2e_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheNetworkOfHosts: two kernels of a session in the network of their host get different ports, reach each other by name and SSH, and
// serve an app; tunnels lead to nobody else's port, strangers do not get in by SSH, and the ports are free again behind a crash.
func TestTheNetworkOfHosts(t *testing.T) {
	t.Parallel()
	needEngine(t)
	extraImage(t, "mpi")
	p := up(t)
	before, err := os.ReadFile("/etc/hosts")
	require.NoError(t, err)
	create := []string{"session", "create", "mpi", "--name", "onhost", "--network", "host", "--cluster-size", "2", "-r", "cpu=1",
		"-r", "mem=256m"}
	r := p.run("", create...)
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "does not let sessions run in the network of their hosts")
	p.must("resource-group", "set", "default", "--host-network")
	p.must(create...)
	inside := func(script string) string {
		t.Helper()
		r := p.inside("onhost", script)
		require.Zero(t, r.code, r.stdout+r.stderr)
		return strings.TrimSpace(r.stdout)
	}
	main, sub := inside("echo $BERTH_SSH_PORT"), inside("ssh sub1 'echo $BERTH_SSH_PORT'")
	require.NotEmpty(t, main)
	require.NotEmpty(t, sub)
	require.NotEqual(t, main, sub)
	require.Equal(t, "sub1", inside("ssh sub1 hostname </dev/null"))
	require.Equal(t, "main1", inside("ssh sub1 ssh main1 hostname </dev/null"))
	namespace, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	require.Equal(t, namespace, inside("readlink /proc/self/ns/net"))
	after, err := os.ReadFile("/etc/hosts")
	require.NoError(t, err)
	require.Equal(t, string(before), string(after), "the host's own names")

	t.Run("strangers have no key", func(t *testing.T) {
		host := inside("getent hosts main1 | cut -d' ' -f1")
		require.False(t, net.ParseIP(host).IsLoopback())
		require.Contains(t, inside("ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -p "+sub+" work@sub1 true 2>&1 || echo refused"),
			"refused")
	})
	t.Run("apps are on leased ports", func(t *testing.T) {
		port := inside("echo $BERTH_FREE_PORTS | cut -d, -f1")
		inside("echo found > index.html; nohup python3 -m http.server --bind 127.0.0.1 " + port + " >/dev/null 2>&1 &")
		connect := fmt.Sprintf(`import socket; socket.create_connection(("127.0.0.1", %s))`, port)
		p.eventually("the program listens", func() bool { return p.inside("onhost", "python3 -c '"+connect+"'").code == 0 })
		out := p.must("app", "open", "--no-browser", "onhost", "port-"+port)
		status, body, _ := newVisitor(t, "").get(strings.TrimSpace(out[strings.Index(out, "http"):]))
		require.Equal(t, 200, status)
		require.Contains(t, body, "found")
	})
	t.Run("tunnels lead to nobody else's port", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		r := p.run("", "app", "open", "--no-browser", "onhost", fmt.Sprintf("port-%d", port))
		require.NotZero(t, r.code, r.stdout)
		require.Contains(t, r.stderr, "has no app") // it is not noticed; the runner's own refusal is a test of runner/app
	})
	t.Run("leases outlive a crash and end with the session", func(t *testing.T) {
		p.kill()
		p.start()
		p.eventually("the session can be used", func() bool { return p.inside("onhost", "true").code == 0 })
		require.Equal(t, main, inside("echo $BERTH_SSH_PORT"))
		require.Equal(t, "sub1", inside("ssh sub1 hostname </dev/null"))
		p.must("session", "rm", "--yes", "onhost")
		p.eventually("the ports are free", func() bool {
			for _, port := range []string{main, sub} {
				l, err := net.Listen("tcp", ":"+port)
				if err != nil {
					return false
				}
				_ = l.Close()
			}
			return true
		})
	})
	p.clean()
}
