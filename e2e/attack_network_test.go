package e2e_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/network"
	engine "berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/cluster"
)

// fence names what an agent has in the network of this host.
type fence struct{ bridge, network, table string }

func fenceOf(t testing.TB, c agent.Config) fence {
	t.Helper()
	n, err := network.New(network.Options{Config: network.DefaultConfig(), Scope: c.Scope(), Agent: cluster.AgentID(c.ID)})
	require.NoError(t, err)
	return fence{n.Bridge(), n.Name(), n.Table()}
}

// fence is that of the cluster's agent.
func (p *platform) fence() fence {
	p.t.Helper()
	c := agent.DefaultConfig()
	c.StateDir = filepath.Join(p.dir, "agent")
	return fenceOf(p.t, c)
}

// tables lists the tables of the fence that the kernel has.
func (f fence) tables(t *testing.T) (out []*nftables.Table) {
	t.Helper()
	c, err := nftables.New()
	require.NoError(t, err)
	all, err := c.ListTables()
	require.NoError(t, err)
	for _, table := range all {
		if table.Name == f.table {
			out = append(out, table)
		}
	}
	return out
}

// flush removes the tables, as somebody does who flushes all rules of the host.
func (f fence) flush(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	require.NoError(t, err)
	for _, table := range f.tables(t) {
		c.DelTable(table)
	}
	require.NoError(t, c.Flush())
}

// forget removes what an agent leaves behind that runs alone; registered before the agent is started, it comes after its end.
func forget(t *testing.T, c agent.Config) {
	t.Helper()
	forgetAt(t, c, "")
}

// forgetAt does so with the engine at an address; "" is that of this machine.
func forgetAt(t testing.TB, c agent.Config, host string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own has ended
		defer cancel()
		c.Network = agent.DefaultConfig().Network
		rt, err := engine.New(engine.Config{Host: host, Cluster: c.Scope(), Agent: cluster.AgentID(c.ID)}, slog.New(slog.DiscardHandler))
		if err == nil {
			_, err = agent.EndAll(ctx, c, rt)
			_ = rt.Close()
		}
		if err != nil {
			t.Logf("the network of agent %s may be left: %v", c.ID, err)
		}
	})
}

// probe is code of a tenant: it visits all targets at a time and says of each whether something answers there, and of itself what address
// it has. It waits long only for those that are marked by "+": they should answer, on a machine that may be busy.
const probe = `
import socket, sys
from concurrent.futures import ThreadPoolExecutor
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    s.connect(("44.44.0.1", 9))
    print("own", s.getsockname()[0])
except OSError as e:
    print("own", "none")

def visit(target):
    host, port = target.lstrip("+").rsplit(":", 1)
    try:
        info = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        c = socket.socket(info[0], info[1])
        c.settimeout(60 if target[0] == "+" else 2)
        c.connect(info[4])
        return len(c.recv(2)) > 0
    except OSError:
        return False

targets = sys.argv[1:]
with ThreadPoolExecutor(16) as visitors:
    for target, ok in zip(targets, visitors.map(visit, targets)):
        print(target.lstrip("+"), "open" if ok else "closed")
`

// greeter greets everybody who connects to port 8000, by IPv4 and IPv6.
const greeter = `
import socket
l = socket.create_server(("::", 8000), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    c, _ = l.accept()
    c.sendall(b"hi")
    c.close()
`

// tenantIn is somebody with a session.
type tenantIn struct {
	p       *platform
	env     []string
	session string
	address string
}

func (x tenantIn) berth(args ...string) result {
	x.p.t.Helper()
	return x.p.tool("", "", "env", append(append(x.env, binary), args...)...)
}

// tenantIn starts a session in which something greets, and learns its address.
func (p *platform) tenantIn(env []string, session string) tenantIn {
	p.t.Helper()
	x := tenantIn{p: p, env: env, session: session}
	r := x.berth("session", "create", "python", "--name", session, "-r", "cpu=1", "-r", "mem=256m")
	require.Zero(p.t, r.code, r.stderr)
	r = x.berth("session", "exec", session, "--", "sh", "-c", "setsid python3 -c '"+greeter+"' >/dev/null 2>&1 </dev/null &")
	require.Zero(p.t, r.code, r.stderr)
	p.eventually("the greeter of "+session+" listens", func() bool { return x.sees("127.0.0.1:8000")["127.0.0.1:8000"] })
	r = x.berth("session", "exec", session, "--", "python3", "-c", probe)
	require.Zero(p.t, r.code, r.stderr)
	x.address = strings.Fields(r.stdout)[1]
	x.open("its own address", x.address+":8000")
	return x
}

// sees tries targets from inside the session.
func (x tenantIn) sees(targets ...string) map[string]bool {
	x.p.t.Helper()
	r := x.berth(append([]string{"session", "exec", x.session, "--", "python3", "-c", probe}, targets...)...)
	require.Zero(x.p.t, r.code, r.stdout+r.stderr)
	out := map[string]bool{}
	for line := range strings.Lines(r.stdout) {
		if what, is, ok := strings.Cut(strings.TrimSpace(line), " "); ok && what != "own" {
			out[what] = is == "open"
		}
	}
	require.Len(x.p.t, out, len(targets), r.stdout)
	return out
}

// open asserts that something answers at the target.
func (x tenantIn) open(what, target string) {
	x.p.t.Helper()
	require.True(x.p.t, x.sees("+" + target)[target], what)
}

// closed asserts that nothing answers at the targets.
func (x tenantIn) closed(why string, targets ...string) {
	x.p.t.Helper()
	for target, open := range x.sees(targets...) {
		require.False(x.p.t, open, "%s: session %s reaches %s", why, x.session, target)
	}
}

// listener greets everybody on all addresses of this host, and returns its port.
func listener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hi")
			_ = c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// hostAddresses are those of this host, that of the bridge included.
func hostAddresses(t *testing.T) (out []string) {
	t.Helper()
	list, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range list {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			out = append(out, ip.String())
		}
	}
	require.NotEmpty(t, out)
	return out
}

// internet makes a network behind this host with an address that is nobody's and greets on ports 80 and 3128. It returns that
// address and a private one of the same machine.
func internet(t *testing.T) (public, private string) {
	t.Helper()
	needTools(t, "ip", "nsenter", "unshare")
	n := os.Getpid() % 16000
	public = fmt.Sprintf("44.44.%d.%d", n/250, 2+n%250)
	private, host := fmt.Sprintf("198.18.%d.%d", n/62, n%62*4+2), fmt.Sprintf("198.18.%d.%d", n/62, n%62*4+1)
	dir := t.TempDir()
	far := process(t, dir, "far", "unshare", "--net", "sleep", "3600")
	pid, name := fmt.Sprint(far.Process.Pid), fmt.Sprintf("e2e%d", n)
	run := func(argv ...string) {
		t.Helper()
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		require.NoError(t, err, "%v: %s", argv, out)
	}
	require.Eventually(t, func() bool {
		theirs, err1 := os.Readlink("/proc/" + pid + "/ns/net")
		ours, err2 := os.Readlink("/proc/thread-self/ns/net")
		return err1 == nil && err2 == nil && ours != theirs
	}, patience, 10*time.Millisecond)
	run("ip", "link", "add", name, "type", "veth", "peer", "name", "far0", "netns", pid)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	run("ip", "addr", "add", host+"/30", "dev", name)
	run("ip", "link", "set", name, "up")
	in := func(argv ...string) { t.Helper(); run(append([]string{"nsenter", "-t", pid, "-n"}, argv...)...) }
	in("ip", "link", "set", "lo", "up")
	in("ip", "addr", "add", private+"/30", "dev", "far0")
	in("ip", "addr", "add", public+"/32", "dev", "lo")
	in("ip", "link", "set", "far0", "up")
	in("ip", "route", "add", "default", "via", host)
	run("ip", "route", "add", public+"/32", "via", private)
	for _, port := range []string{"80", "3128"} {
		process(t, dir, "greeter"+port, "nsenter", "-t", pid, "-n", "python3", "-c", strings.Replace(greeter, "8000", port, 1))
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", net.JoinHostPort(public, port))
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		}, patience, 50*time.Millisecond, "the far end greets on port %s", port)
	}
	return public, private
}

// TestAttackNetwork: code in a session looks for its neighbours, the host and what the host's network has.
func TestAttackNetwork(t *testing.T) {
	needEngine(t)
	public, private := internet(t)
	p := up(t)
	admin := p.env()
	f := p.fence()
	p.eventually("the rules are there before the first session", func() bool { return len(f.tables(t)) == 2 })
	victim := p.tenantIn(admin, "victim")
	twin := p.tenantIn(admin, "twin")
	mallory := p.tenantIn(p.member("mallory"), "mallory")
	port := listener(t)
	web := public + ":80"

	var host []string
	for _, a := range hostAddresses(t) {
		host = append(host, a+":"+port)
	}
	var endpoint string
	for _, line := range admin {
		if v, ok := strings.CutPrefix(line, "BACKEND_ENDPOINT="); ok {
			endpoint = v[strings.LastIndex(v, ":")+1:]
		}
	}
	require.NotEmpty(t, endpoint)
	for _, a := range hostAddresses(t) {
		host = append(host, a+":"+endpoint)
	}
	attack := func(why string) {
		t.Helper()
		mallory.closed(why, append(host, victim.address+":8000", private+":80", "169.254.169.254:80")...)
		twin.closed(why, victim.address+":8000")
		victim.closed(why, mallory.address+":8000")
	}
	t.Run("neighbours, host, metadata and private addresses are closed", func(t *testing.T) {
		attack("at the start")
		mallory.open("the internet", web)
	})
	t.Run("so is IPv6", func(t *testing.T) {
		for _, x := range []tenantIn{victim, twin} {
			r := x.berth("session", "exec", x.session, "--", "cat", "/proc/net/if_inet6")
			require.Zero(t, r.code)
			for line := range strings.Lines(r.stdout) {
				if a := strings.Fields(line); a[5] != "lo" {
					var groups []string
					for i := 0; i < 32; i += 4 {
						groups = append(groups, a[0][i:i+4])
					}
					mallory.closed("IPv6", strings.Join(groups, ":")+"%eth0:8000")
				}
			}
		}
		if i, err := net.InterfaceByName(f.bridge); err == nil {
			addrs, _ := i.Addrs()
			for _, a := range addrs {
				if ip := a.(*net.IPNet).IP; ip.To4() == nil {
					mallory.closed("IPv6 of the bridge", ip.String()+"%eth0:"+port)
				}
			}
		}
	})
	t.Run("the rules come back", func(t *testing.T) {
		f.flush(t)
		p.eventually("the tables are there", func() bool { return len(f.tables(t)) == 2 })
		attack("after somebody flushed the rules")
		mallory.open("the internet, after somebody flushed the rules", web)
	})
	t.Run("the bridge comes back", func(t *testing.T) {
		out, err := exec.Command("ip", "link", "del", f.bridge).CombinedOutput()
		require.NoError(t, err, string(out))
		p.eventually("sessions are connected again", func() bool { return mallory.sees(web)[web] })
		attack("after the bridge was made again")
	})
	t.Run("a killed agent's rules hold, and the next one takes over", func(t *testing.T) {
		p.kill()
		require.Len(t, f.tables(t), 2)
		p.start()
		p.eventually("the session can be used", func() bool {
			return mallory.berth("session", "exec", mallory.session, "--", "true").code == 0
		})
		attack("after a crash")
		mallory.open("the internet, after a crash", web)
	})
	t.Run("egress", func(t *testing.T) { egressPolicies(t, p, mallory, web, public, private) })
	p.must("session", "rm", "--yes", "--force", "victim", "twin")
	p.clean()
	p.must("down", "--sessions")
	require.Empty(t, f.tables(t), "rules of a cluster that is gone")
	_, err := docker("network", "inspect", f.network)
	require.Error(t, err, "its network")
	_, err = net.InterfaceByName(f.bridge)
	require.Error(t, err, "its bridge")
}

// egressPolicies changes what sessions may reach while they run. Visitors reach their apps all the same.
func egressPolicies(t *testing.T, p *platform, mallory tenantIn, web, public, private string) {
	demo := p.demo("demo")
	c := newConsole(t, p.env())
	app := c.launch(demo, "web")
	visitor := newVisitor(t, "").enters(app)
	proxy, other := private+":3128", public+":3128"
	for _, x := range []struct {
		egress string
		open   []string
		closed []string
	}{
		{"none", nil, []string{web, proxy, other}},
		{"proxy:" + proxy, []string{proxy}, []string{web, other, private + ":80"}},
		{"proxy:" + other, []string{other}, []string{web, proxy}},
		{"open", []string{web, other}, []string{proxy}},
	} {
		p.must("scheduler", "network", "default", "--egress", x.egress)
		p.eventually("the policy "+x.egress+" holds for a running session", func() bool {
			seen := mallory.sees(append(x.open, x.closed...)...)
			for target, open := range seen {
				want := false
				for _, o := range x.open {
					want = want || o == target
				}
				if open != want {
					return false
				}
			}
			return true
		})
		require.Equal(t, "GET", visitor.sees(app.Base).Method, "an app under policy %s", x.egress)
		require.Equal(t, "over and out", echoes(t, c.gateway(demo, "echo"), "", "over and out"), "a TCP app under policy %s", x.egress)
		require.Zero(t, p.run("", "ssh", "demo", "true").code, "SSH under policy %s", x.egress)
		// The first thing that a new session does finds the policy in force, and its network there.
		targets := slices.Clone(x.closed)
		for _, o := range x.open {
			targets = append(targets, "+"+o)
		}
		script := "python3 -c '" + probe + "' " + strings.Join(targets, " ")
		r := p.run("", "run", "python", "--batch", script)
		require.Zero(t, r.code, r.stdout+r.stderr)
		for _, o := range x.open {
			require.Contains(t, r.stdout, o+" open", "policy %s at the start: %s", x.egress, r.stdout)
		}
		for _, o := range x.closed {
			require.Contains(t, r.stdout, o+" closed", "policy %s at the start: %s", x.egress, r.stdout)
		}
	}
	require.NotZero(t, p.run("", "scheduler", "network", "default", "--egress", "proxy:squid:3128").code)
	r := mallory.berth("scheduler", "network", "default", "--egress", "open")
	require.NotZero(t, r.code, "tenants change no policy")
	p.must("session", "rm", "--yes", "demo")
}

// TestAttackNetworkCondition: an agent that cannot make the network of sessions takes none and says so; sessions wait for it.
func TestAttackNetworkCondition(t *testing.T) {
	t.Parallel()
	p := up(t)
	needTools(t, "ip")
	f := p.fence()
	run := func(argv ...string) {
		t.Helper()
		out, err := exec.Command("ip", argv...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	// The agent makes the network again, in between too.
	p.eventually("something else has the name of the bridge", func() bool {
		_, _ = docker("network", "rm", f.network)
		return exec.Command("ip", "link", "add", f.bridge, "type", "veth", "peer", "name", "x"+f.bridge).Run() == nil
	})
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "x"+f.bridge).Run() })
	node, _ := p.node()
	p.eventually("the agent says so", func() bool {
		return strings.Contains(p.must("agent", "info", node), "the network of sessions is broken")
	})
	doctor := p.run("", "doctor")
	require.NotZero(t, doctor.code)
	require.Contains(t, doctor.stdout, "the network of sessions is broken")
	p.must("session", "create", "python", "--name", "patient", "--detach")
	require.Equal(t, "PENDING", p.sessions()["patient"].Status)
	run("link", "del", "x"+f.bridge)
	p.eventually("the session runs", func() bool { return p.sessions()["patient"].Status == "RUNNING" })
	p.must("session", "rm", "--yes", "patient")
	p.clean()
}
